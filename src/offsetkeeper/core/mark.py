"""The mark that an output keeps of its last batch, and what it says about a batch. Pure.

An output that keeps a mark changes it in the same step as its rows, by compare-and-set. Each group has one mark for
each name of an output. The batch's sequence orders marks: sequences rise, also through rewinds, and a ledger never uses
one twice.

    the output's mark                             the batch is written       the batch is dropped
    ABSENT     none, or of an earlier batch       rows and mark land         a void mark lands: it can never land
    LANDED     of this batch                      nothing to do              reported: the output has it
    ELSEWHERE  of this batch, in another target   MarkMismatch               reported: it can no longer land
    VOID       of this batch, which was dropped   BatchVoid                  nothing to do
    OTHER      of another batch, same sequence    MarkMismatch               reported: it can no longer land
    PASSED     of a later batch                   Fenced, or MarkAhead       reported: it can no longer land
    PARTLY     of this batch, output has a part   the rest lands             the rest is made void: CUT
    CUT        of this batch, rest was dropped    BatchVoid                  nothing to do

Tables of one schema share the mark of a name. So the digest of such a mark is also of the target. A mark of release 0.2
has a digest without the target, and counts as here; but not if another program finishes the batch, see `core.pending`.
The last two lines occur in outputs with slots. Each slot has its own mark for its part of the rows; see `together`.

A start is refused if a mark does not match the ledger: it is of a later batch than the ledger knows (the store was
restored, or the ledger was created again), of an earlier batch than the ledger says that the output has (the output was
restored), or of another batch than the pending one. The same is asked before each landing: a server may go back in time
in the middle of a run, and the next mark would hide the rows that are gone.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple, Self

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.commands import command
from offsetkeeper.core.model import Landed, Snapshot
from offsetkeeper.errors import MarkAhead, MarkBehind, MarkError, MarkMismatch, listed

_PARTS = 3
_NOTHING: Mapping[str, str] = MappingProxyType({})


class OutputMark(NamedTuple):
    """The last batch of a group in an output.

    Attributes:
        sequence: sequence of the batch.
        token: token of the batch.
        digest: digest of its ranges and of the target with its rows: 16 hexadecimal digits.
        void: whether the output lacks the batch, or the rest of it, and will never get it.
        partly: whether the output has only a part of the batch.
    """

    sequence: int
    token: str
    digest: str
    void: bool = False
    partly: bool = False

    @classmethod
    def of(cls, batch: Batch, writes_to: str = "", *, void: bool = False) -> Self:
        """Return the mark of a batch.

        Args:
            batch: the batch.
            writes_to: what the output writes to, such as a table's name; empty if it does not tell, or if no other
                target has its mark.
            void: whether the batch is dropped.
        """
        text = f"{batch.lines()}\n{writes_to}" if writes_to else batch.lines()
        return cls(batch.sequence, batch.token, hashlib.sha256(text.encode()).hexdigest()[:16], void)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the mark from its text: `sequence token digest`, followed by ` void` if it is void.

        Raises:
            MarkError: the text is not a mark.
        """
        sequence, *rest = text.split(" ") if isinstance(text, str) else [""]
        void = rest[2:] == ["void"]
        if not re.fullmatch("[0-9]{1,19}", sequence) or len(rest) != _PARTS - 1 + void:
            raise MarkError("what is in its place is not a mark of offsetkeeper: another program has written it")
        return cls(int(sequence), rest[0], rest[1], void)

    def __str__(self) -> str:
        return f"{self.sequence} {self.token} {self.digest}" + (" void" if self.void else "")


class Landing(Enum):
    """What an output's mark says about a batch."""

    ABSENT = auto()
    LANDED = auto()
    ELSEWHERE = auto()
    VOID = auto()
    OTHER = auto()
    PASSED = auto()
    PARTLY = auto()
    CUT = auto()


def landing(mark: OutputMark | None, batch: Batch, writes_to: str = "", *, exact: bool = False) -> Landing:
    """Return what an output's mark says about a batch.

    Args:
        mark: mark of the output.
        batch: the batch.
        writes_to: as in `OutputMark.of`.
        exact: whether only a mark that names the target says that the batch is here.
    """
    if mark is None or mark.sequence < batch.sequence:
        return Landing.ABSENT
    if mark.sequence > batch.sequence:
        return Landing.PASSED
    if mark.token != batch.token:
        return Landing.OTHER
    names = {writes_to} - {""} if exact else {writes_to, ""}
    here = mark.digest in {OutputMark.of(batch, each).digest for each in names}
    if not here and not mark.void:  # a void mark keeps the batch out of each target
        return Landing.ELSEWHERE
    if mark.partly:
        return Landing.CUT if mark.void else Landing.PARTLY
    return Landing.VOID if mark.void else Landing.LANDED


def together(marks: Sequence[OutputMark | None]) -> OutputMark | None:
    """Return the mark of an output with slots. Each slot changes its rows and its mark in one step of its own.

    The first slot leads. A batch lands there first, by compare-and-set, and then in the other slots if their marks are
    of earlier batches. So a void mark in the first slot drops a batch; if the batch has landed there, void marks in the
    other slots drop the rest.

    Args:
        marks: the marks of the slots.
    """
    first, *others = marks
    if first is None or first.void or all(other == first for other in others):
        return first
    return first._replace(partly=True, void=first._replace(void=True) in others)


def lowered(landed: Landed, mark: OutputMark | None) -> str:
    """Return why an output no longer has the rows that the ledger knows there; empty if its mark shows them.

    Args:
        landed: the last batch in the output, as the ledger knows it.
        mark: mark of the output.
    """
    if (0 if mark is None else mark.sequence) >= landed.sequence:
        return ""
    return "the output was restored from a backup, lost rows in a failover or was made again; or its mark was deleted"


def above(landed: Landed, mark: OutputMark | None) -> bool:
    """Return whether a mark says that an output has a batch that the ledger does not know there yet.

    Args:
        landed: the last batch in the output, as the ledger knows it.
        mark: mark of the output.
    """
    return mark is not None and not mark.void and mark.sequence > landed.sequence


def behind(group: str, output: str, mark: OutputMark | None, landed: Landed, why: str, more: str = "") -> MarkBehind:
    """Return the error for an output that no longer has the rows that the ledger knows there.

    Args:
        group: the consumer group.
        output: name of the output.
        mark: mark of the output.
        landed: the last batch in the output, as the ledger knows it.
        why: the cause.
        more: a sentence on the pending batch.
    """
    known = f"it has batch {landed.sequence}" if landed.sequence else "its first batch is under way"
    return MarkBehind(_told(group, output, mark, f"the ledger says that {known}", why, more))


def check_marks(
    ledger: Snapshot,
    marks: Mapping[str, OutputMark | None],
    expiring: Collection[str] = (),
    lost: Mapping[str, str] = _NOTHING,
    reached: int = 0,
) -> None:
    """Check that the marks of a program's outputs match the ledger, before a run begins.

    Args:
        ledger: ledger of the group.
        marks: the mark of each output.
        expiring: outputs that forget marks after some time. A missing mark there says nothing. It is needed only if a
            batch is pending or unsettled, to find out whether the batch has landed, and the ledger does not say it.
        lost: for each output whose sink knows it, why rows that the ledger knows there are gone.
        reached: sequence of the last batch in a look at the ledger after the marks were looked at; see `latest`.

    Raises:
        MarkAhead, MarkBehind, MarkMismatch: a mark does not match. The message names all outputs whose mark does not.
    """
    pending = ledger.pending

    def asked(output: str) -> bool:
        return ledger.unsettled is not None or (pending is not None and output not in pending.written)

    def why(output: str, mark: OutputMark | None) -> str:
        says_nothing = mark is None and output in expiring and not asked(output)
        return lost.get(output) or ("" if says_nothing else lowered(ledger.landed_in(output), mark))

    known = max(ledger.sequence, reached)
    every = [_mismatched(ledger, known, output, mark, why(output, mark)) for output, mark in marks.items()]
    found = [error for error in every if error is not None]
    if found:
        raise type(found[0])("\n".join(map(str, found)))


def check_left(group: str, output: str, mark: OutputMark | None, known: int) -> None:
    """Check the mark beside an output in the ledger's own database: at a start, and in the transaction of each batch.

    Args:
        group: the consumer group.
        output: name of the output.
        mark: mark of the output.
        known: sequence of the last batch that the ledger knows.

    Raises:
        MarkAhead: a run with another store has written a later batch.
    """
    if mark is not None and mark.sequence > known:
        raise MarkAhead(
            f"group {group!r}: {named(output)} has batch {mark.sequence} (token {mark.token}), but this ledger is at "
            f"batch {known}. A run with another store has written it, after a copy of the group; or this ledger was "
            "restored or deleted. Nothing was written. If the group runs with the other store, stop this program for "
            "good, or copy the group back first: offsetkeeper copy --overwrite. If it does not, compare the rows in "
            f"the output with this ledger's positions, then accept them: {_adoption(group, output, mark.sequence)}"
        )


def _mismatched(ledger: Snapshot, known: int, output: str, mark: OutputMark | None, lost: str) -> MarkError | None:
    if mark is not None and mark.sequence > known:
        why = "the store was restored from a backup, lost changes in a failover, or the ledger was created again"
        return MarkAhead(_told(ledger.group, output, mark, f"the ledger is at batch {known}", why))
    if lost:
        more = _unknown(ledger.pending, output) if mark is None else ""
        return behind(ledger.group, output, mark, ledger.landed_in(output), lost, more)
    if ledger.pending is not None and landing(mark, ledger.pending) is Landing.OTHER:
        return MarkMismatch(_told(ledger.group, output, mark, *mismatch(ledger.pending)))
    return None


def _unknown(pending: Batch | None, output: str) -> str:
    """Return what to look for where no mark shows whether an output has the pending batch; else an empty text."""
    if pending is None or output not in pending.lands_in or output in pending.written:
        return ""
    ends = "; ".join(f"{r.topic},{r.partition},{r.end}" for r in pending.ranges)
    unknown = (
        f"Nothing shows whether it has batch {pending.id} ({listed(pending.ranges, '; ')}). If it has these records, "
    )
    if others := _lacking(pending, output):
        return (
            f"{unknown}delete them there first, or they come twice: the batch is written again. Do not move the "
            f"positions behind them, as {listed(map(named, others), ', ')} may lack these records. "
        )
    return (
        f"{unknown}first move the positions behind them, or they come twice: "
        f"{command('reset', pending.group, '--from-file FILE')}, with the lines {ends}. "
    )


def _lacking(pending: Batch, output: str) -> list[str]:
    """Return the other outputs of a batch that are not noted to have it."""
    began = filter(pending.goes_into, pending.program.outputs if pending.program else ())
    return sorted({*began, *pending.lands_in} - {output, *pending.written})


def named(output: str) -> str:
    """Return the name of an output for messages; a program's only output has no name."""
    return f"output {output!r}" if output else "the output"


def listed_name(output: str) -> str:
    """Return the name of an output for lists, without quotes; see `named`."""
    return f"output {output}" if output else "the output"


def mismatch(batch: Batch) -> tuple[str, str]:
    """Return what the ledger has if an output has another batch with the same sequence, and the cause."""
    return f"the ledger has batch {batch.id} there, with other ranges", "two ledgers write into one output"


def _told(group: str, output: str, mark: OutputMark | None, here: str, why: str, more: str = "") -> str:
    there = "has no mark" if mark is None else f"has batch {mark.sequence} (token {mark.token})"
    sequence = 0 if mark is None else mark.sequence
    return (
        f"group {group!r}: {named(output)} {there}, but {here}: {why}. Nothing was written. {more}Compare the rows in "
        f"the output with the ledger's positions. Then undo the restore; or accept both sides as they are: "
        f"{_adoption(group, output, sequence)}"
    )


def _adoption(group: str, output: str, sequence: int) -> str:
    option = f"--output {shlex.quote(output)} " if output else ""
    return command("adopt", group, f"{option}--sequence {sequence}")
