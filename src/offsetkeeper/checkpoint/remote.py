"""What checkpoints on servers share: their clocks, checksums that came along, and copies."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsetkeeper.checkpoint.files import Files


class ServerClock:
    """The clock of a server, which stamps its files: a query that runs is told by how old they are.

    It is set by the first answer and then left, so that a file has the same stamp at every look.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def told(self, date: str) -> None:
        """Set it by the header `Date` of an answer."""
        if self._ahead_s is None and date:
            self._ahead_s = ahead_s(date, time.time())

    def here(self, at_s: float) -> float:
        """Return a time of the server by this machine's clock."""
        return at_s - (self._ahead_s or 0)


def ahead_s(date: str, now_s: float) -> int:
    """Return by how many whole seconds a server's `Date` is ahead of a time of this machine."""
    return round(parsedate_to_datetime(date).timestamp() - now_s)


def checksum_of(name: str) -> str:
    """Return the name of a file's checksum: neither HDFS nor S3 makes any, but copies of local folders bring some."""
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}.{own}.crc"


def copied(source: Files, target: Files, name: str) -> None:
    """Copy a file and its checksum, if it is there."""
    for each in (name, checksum_of(name)):
        content = source.read(each)
        if content is not None:
            target.write(each, content)
