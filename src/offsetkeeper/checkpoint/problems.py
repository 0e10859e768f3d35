"""What `verify` tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offsetkeeper.checkpoint.contents import Checkpoint
from offsetkeeper.checkpoint.plans import plan_truncate
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import CorruptStore, NotAllowed

BACKUP = "Bring it back from a backup"
UNKNOWN_FORMAT = "Use a release of offsetkeeper that knows this format; change nothing with this one"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or worth knowing.

    Attributes:
        file: where, relative to the checkpoint.
        what: what is wrong there, and what comes of it.
        remedy: what to do.
        harmless: whether Spark starts from the checkpoint as it should nevertheless.
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
    """Return why a file cannot be read, or nothing where it can."""
    try:
        read()
    except CorruptStore as error:
        return str(error).partition(". Nothing was changed")[0]
    return ""


def way_back(found: Checkpoint, batch: int) -> str:
    """Return ", or truncate to batch N", the newest up to this one that can be the last; nothing if none can."""
    for number in reversed([each for each in found.offsets if each <= batch]):
        try:
            plan_truncate(found, number, query_id="keep")
        except (NotAllowed, CorruptStore):
            continue
        return f", or truncate to batch {number}: what came after it runs again"
    return ""
