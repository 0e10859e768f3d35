"""The findings of `verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.plans import COUNTS_ANEW, plan_truncate
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import CorruptStore, NotAllowed

BACKUP = "Restore it from a backup"
ANEW = f"seed a new checkpoint from a store that has the offsets ({COUNTS_ANEW})"
SAME_NUMBER = (
    "An output that remembers (query id, batch) drops what it has: give metadata another id before. Spark's own file "
    "sink drops it if its _spark_metadata has that number: then seed a new checkpoint with a new folder for the files, "
    "and go on with neither of the old ones"
)
"""What it means for the output if a batch that may have run is planned again under its number."""
_WAYS = 100  # batches that are tried, as many as Spark keeps: each try walks through all of them
UNKNOWN_FORMAT = "Use a release of offsetkeeper that knows this format; change nothing with this release"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, or a harmless note.

    Attributes:
        file: the file, relative to the checkpoint.
        what: the problem and its consequence.
        remedy: what to do.
        harmless: whether Spark still starts correctly from the checkpoint.
    """

    file: str
    what: str
    remedy: str
    harmless: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return plain(self)

    def __str__(self) -> str:
        return f"{'note' if self.harmless else 'wrong'} {self.file}: {self.what}. {self.remedy}"


def error_of(read: Callable[[], object]) -> str:
    """Return why a file cannot be read, or an empty text."""
    try:
        read()
    except CorruptStore as error:
        return str(error).partition(". Nothing was changed")[0]
    return ""


def way_back(found: Checkpoint, batch: int) -> str:
    """Return ", or truncate to batch N" with the newest possible batch up to this one; empty if there is none near."""
    for number in reversed([each for each in found.offsets if each <= batch][-_WAYS:]):
        try:
            plan_truncate(found, number, query_id="keep")
        except (NotAllowed, CorruptStore):
            continue
        return f", or truncate to batch {number}: later batches run again"
    return ""
