"""The mark that an output keeps of the last batch it has, and what it says of a batch. Pure.

An output that keeps a mark changes it in the same step as its rows, by compare-and-set. There is one for each group and
output. Marks are ordered by the sequence of the batch: sequences rise through rewinds, and no ledger uses one twice.

    the output's mark                           the batch is written       the batch is dropped
    ABSENT    none, or of an earlier batch      rows and mark land         a void mark lands: it never can
    LANDED    of this batch                     nothing is left to do      told: the output has it
    VOID      of this batch, which was dropped  BatchVoid                  nothing is left to do
    OTHER     of another, same sequence         MarkMismatch               told: it never can land any more
    PASSED    of a later batch                  Fenced, or MarkAhead       told: it never can land any more
    PARTLY    of this batch, a part is there    the rest lands             the rest is made void: CUT
    CUT       of this batch, rest was dropped   BatchVoid                  nothing is left to do

The last two are of outputs that have slots, each with a mark of its own for its part of the rows; see `together`.

A start is refused where the marks do not fit the ledger: a later batch than the ledger knows (the store was restored,
or the ledger made anew), an earlier one than it has committed (the output was restored), another one than the pending.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Self

from offsetkeeper.core.model import Batch, Snapshot, in_kafka
from offsetkeeper.errors import MarkAhead, MarkBehind, MarkError, MarkMismatch

_PARTS = 3


class OutputMark(NamedTuple):
    """The last batch of a group in an output.

    Attributes:
        sequence: of the batch.
        token: of the batch.
        digest: of its ranges: 16 hexadecimal digits.
        void: whether the output does not have the batch, and never will; or not the rest of it.
        partly: whether the output has only a part of the batch.
    """

    sequence: int
    token: str
    digest: str
    void: bool = False
    partly: bool = False

    @classmethod
    def of(cls, batch: Batch, *, void: bool = False) -> Self:
        """Return the mark of a batch."""
        lines = "\n".join(str(r) for r in batch.ranges if in_kafka(r.topic))
        return cls(batch.sequence, batch.token, hashlib.sha256(lines.encode()).hexdigest()[:16], void)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mark whose text this is: `sequence token digest`, with ` void` behind it where it is.

        Raises:
            MarkError: it is the text of no mark.
        """
        sequence, *rest = text.split(" ") if isinstance(text, str) else [""]
        void = rest[2:] == ["void"]
        if not re.fullmatch("[0-9]{1,19}", sequence) or len(rest) != _PARTS - 1 + void:
            raise MarkError(f"{text!r:.200} is not a mark of offsetkeeper: something else has written it there")
        return cls(int(sequence), rest[0], rest[1], void)

    def __str__(self) -> str:
        return f"{self.sequence} {self.token} {self.digest}" + (" void" if self.void else "")


class Landing(Enum):
    """What an output's mark says of a batch."""

    ABSENT = auto()
    LANDED = auto()
    VOID = auto()
    OTHER = auto()
    PASSED = auto()
    PARTLY = auto()
    CUT = auto()


def landing(mark: OutputMark | None, batch: Batch) -> Landing:
    """Return what an output's mark says of a batch."""
    if mark is None or mark.sequence < batch.sequence:
        return Landing.ABSENT
    if mark.sequence > batch.sequence:
        return Landing.PASSED
    if mark._replace(void=False, partly=False) != OutputMark.of(batch):
        return Landing.OTHER
    if mark.partly:
        return Landing.CUT if mark.void else Landing.PARTLY
    return Landing.VOID if mark.void else Landing.LANDED


def together(marks: Sequence[OutputMark | None]) -> OutputMark | None:
    """Return the mark of an output that has slots, each of which changes alone: rows and mark in one step.

    The first slot leads. A batch lands there by compare-and-set, and only then in the others, where their marks are of
    earlier batches. So a batch is dropped by a void mark in the first slot; one that has landed there, by void marks in
    the others.

    Args:
        marks: of the slots.
    """
    first, *others = marks
    if first is None or first.void or all(other == first for other in others):
        return first
    return first._replace(partly=True, void=first._replace(void=True) in others)


def check_marks(ledger: Snapshot, marks: Mapping[str, OutputMark | None], expiring: Collection[str] = ()) -> None:
    """Check that the marks of a program's outputs fit the ledger, as is right before a run begins.

    Args:
        ledger: of the group.
        marks: by output.
        expiring: outputs that forget marks in time. One that is missing there tells nothing, and is needed only where
            a batch is pending or unsettled, to tell whether it has landed.

    Raises:
        MarkAhead, MarkBehind, MarkMismatch: one does not.
    """
    asked = ledger.pending is not None or ledger.unsettled is not None
    for output, mark in marks.items():
        if mark is None and output in expiring and not asked:
            continue
        sequence, committed = 0 if mark is None else mark.sequence, ledger.landed.get(output, 0)
        if sequence > ledger.sequence:
            why = "the store was restored from a backup, or the ledger was made anew"
            raise MarkAhead(_told(ledger, output, mark, f"the ledger has come to batch {ledger.sequence}", why))
        if sequence < committed:
            why = "the output was restored from a backup or made anew, or its mark was deleted"
            raise MarkBehind(_told(ledger, output, mark, f"the ledger has committed batch {committed} into it", why))
        if ledger.pending is not None and landing(mark, ledger.pending) is Landing.OTHER:
            raise MarkMismatch(_told(ledger, output, mark, *mismatch(ledger.pending)))


def named(output: str) -> str:
    """Return an output as messages name it; the only one of a program has no name."""
    return f"output {output!r}" if output else "the output"


def mismatch(batch: Batch) -> tuple[str, str]:
    """Return what the ledger has where an output has another batch under the same sequence, and why that is."""
    return f"in the ledger that is batch {batch.id}, of other ranges", "two ledgers write into one output"


def _told(ledger: Snapshot, output: str, mark: OutputMark | None, here: str, why: str) -> str:
    there = "has no mark" if mark is None else f"has batch {mark.sequence} (token {mark.token})"
    option = f" --output {shlex.quote(output)}" if output else ""
    sequence = 0 if mark is None else mark.sequence
    return (
        f"group {ledger.group!r}: {named(output)} {there}, and {here}: {why}. Nothing was written. Compare the rows in "
        f"the output with the ledger's positions. Then put back what was restored; or accept both as they are: "
        f"offsetkeeper adopt {shlex.quote(ledger.group)}{option} --sequence {sequence}"
    )
