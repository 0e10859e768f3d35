"""The meaning of the records of the store in Kafka: of the newest version, the first record counts. Pure.

A record is `<group>/<version>/<token>`, its value a `document` with the history `entry` of its change, its header
`previous` the token of the record that it builds on, which has the version before. A writer builds only on records that
count. So of several that build on the same record, the first counts, and the others never have a newer version.

The version tells it, and not what builds on what, because records go: old ones are deleted. And of a record that was
sent twice, compaction keeps the later copy, behind others that built on the same record and lost to the earlier one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from offsetkeeper.core.codec import GARBAGE, REMEDY, entry_fields, read_entry
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.outside import load_stored, reason, unpack
from offsetkeeper.errors import CorruptStore

_KEY = re.compile(r"(.+)/([0-9]{1,18})/([0-9a-f]+)", re.DOTALL)


class Line(NamedTuple):
    """A record of the log.

    Attributes:
        offset: offset of the record.
        group: name of the group in Kafka.
        version: version of the ledger.
        token: random and unique to this record.
        previous: token of the record that it builds on; empty for a group's first record.
        value: see above; empty if the record is deleted.
    """

    offset: int
    group: str
    version: int
    token: str
    previous: str
    value: bytes

    @property
    def key(self) -> str:
        """Return the record's key."""
        return f"{self.group}/{self.version}/{self.token}"


def read_line(offset: int, key: bytes, previous: bytes, value: bytes) -> Line | None:
    """Return a Kafka record as a line, or None if it is not one."""
    match = _KEY.fullmatch(key.decode("utf-8", "replace"))
    return (
        Line(offset, match[1], int(match[2]), match[3], previous.decode("utf-8", "replace"), value) if match else None
    )


def deletes(head: Line | None, lines: Collection[Line]) -> bool:
    """Return whether `head` or one of the `lines` after it is deleted there; then only all lines tell what counts."""
    known = {line.token for line in lines if line.value} | {head.token if head else ""}
    return any(line.token in known for line in lines if not line.value)


def newest(lines: Iterable[Line]) -> Line | None:
    """Return the newest line that counts.

    Args:
        lines: all lines of a group that are left, in their order; or the newest one that counted, and those after it
            if they delete none of these, see `deletes`.
    """
    return max(undeleted(lines).values(), key=lambda line: (line.version, -line.offset), default=None)


def chain(head: Line, lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines that count, from `head` back to the oldest line that is left."""
    left = undeleted(lines)
    at: Line | None = head
    while at is not None:
        yield at
        at = left.get(at.previous)


def undeleted(lines: Iterable[Line]) -> dict[str, Line]:
    """Return the lines that are not deleted, by token; of a line that was sent twice the first that is left."""
    left: dict[str, Line] = {}
    for line in lines:
        if line.value:
            left.setdefault(line.token, line)
        else:
            left.pop(line.token, None)
    return left


def dump_change(change: Change) -> bytes:
    """Return the value of a change's record."""
    return zlib.compress(dump_document(change.after, entry=entry_fields(change.entry)).encode(), 1)


def load_snapshot(line: Line, group: str, where: str) -> Snapshot:
    """Return the ledger in a line.

    Raises:
        CorruptStore: the line has no ledger.
    """
    snapshot = load_document(_unpacked(line), group, where)
    if snapshot.version != line.version:
        raise CorruptStore(f"{where} has version {snapshot.version}, but its key has {line.version}. {REMEDY}")
    return snapshot


def load_entry(line: Line, where: str) -> Entry:
    """Return the history entry in a line.

    Raises:
        CorruptStore: the line has no entry.
    """
    try:
        raw = load_stored(_unpacked(line))["entry"]
    except GARBAGE as error:
        raise CorruptStore(f"{where} has no valid entry: {reason(error)}. {REMEDY}") from None
    return read_entry(raw, line.version, where)


def _unpacked(line: Line) -> bytes:
    try:
        return unpack(line.value)
    except (zlib.error, ValueError):
        return line.value  # damaged or far too large data: the caller reports it
