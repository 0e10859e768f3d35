"""What does not follow on in a history: gaps nobody read, stretches committed twice, and what was deleted. Pure.

Commits of a group must follow one another, partition by partition. Where the next range does not begin at the end of
the one before, something jumped: a rewind, a policy at the start of a run, or an edit from outside of the ledger. A
position that the history has reached stays; a position that is gone is placed anew by the next run, and read again from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offsetkeeper.core.bounds import is_recreated
from offsetkeeper.core.model import Entry, Move, Position, Snapshot, TopicPartition
from offsetkeeper.core.plain import plain


class Kind(StrEnum):
    """What was found."""

    GAP = "gap"
    """Offsets that no batch has committed."""
    OVERLAP = "overlap"
    """Offsets that were committed more than once, or will be."""
    VANISHED = "vanished"
    """A position that the history reached, and that is not stored any more."""
    TOPIC_ID = "topic id"
    """A position with another topic's id than the history gave it."""
    MISSING = "missing"
    """Changes that are not in the history; `start` and `end` are versions."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Something in a history, or between it and the positions, that does not follow on.

    Attributes:
        kind: what.
        topic_partition: where; None where changes are missing.
        start, end: the offsets, half-open; their number is the upper bound of the number of records. Of a position the
            offset twice; of changes that are missing their versions.
        version: of the change that jumped; for an edit from outside, of the change that found it.
        why: event and reason of that change; empty where no change of the ledger explains it.
    """

    kind: Kind
    topic_partition: TopicPartition | None
    start: int
    end: int
    version: int
    why: str

    @property
    def explained(self) -> bool:
        """Whether somebody did it on purpose, through the ledger."""
        return bool(self.why)

    def __str__(self) -> str:
        why = self.why or "nothing in the history explains it"
        where = "" if self.topic_partition is None else f" {self.topic_partition}"
        return f"{self.kind}{where} {self.start} {self.end}: {why} (version {self.version})"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values; `topic` and `partition` are null where changes are missing."""
        found = plain(self, "explained")
        found.pop("topic_partition", None)
        return {"topic": None, "partition": None} | found


def audit(entries: Iterable[Entry], snapshot: Snapshot) -> list[Discrepancy]:
    """Walk a history, oldest entry first, to the ledger as it is now, and return what does not follow on.

    The first commit of a partition in the entries says where the walk begins, so older entries that were pruned raise
    no findings.

    Args:
        entries: oldest first.
        snapshot: the ledger; entries newer than it are changes that it has lost.
    """
    reached: dict[TopicPartition, Position] = {}
    findings: list[Discrepancy] = []
    version: int | None = None
    for entry in entries:
        findings += _lacking(version, entry.version)
        version = entry.version
        findings += _jumps(entry, reached)
    if version is None and snapshot.version:  # the newest change always has an entry, however few are kept
        version = snapshot.version - 1
    if version is not None:
        findings += _lacking(version, snapshot.version + 1)
    if version is not None and version > snapshot.version:
        findings.append(Discrepancy(Kind.MISSING, None, snapshot.version + 1, version + 1, snapshot.version, ""))
    for tp, position in sorted(reached.items()):
        findings += _left(tp, position, snapshot.positions.get(tp), version or 0)
    return findings


def up_to(snapshot: Snapshot, entries: Sequence[Entry], again: Callable[[], Snapshot]) -> Sequence[Entry]:
    """Return the entries that an audit of the ledger walks: those up to its version, in their order.

    A ledger is read before its history, and a run may commit in between: what is newer than the positions that were
    read would look like a jump. But where the ledger has not moved on, it has lost these changes, and all count.

    Args:
        snapshot: the ledger.
        entries: read after it, newest first.
        again: reads the ledger once more; called only where entries are newer.
    """
    if entries and entries[0].version > snapshot.version >= again().version:
        return entries
    return [entry for entry in entries if entry.version <= snapshot.version]


def _lacking(before: int | None, version: int) -> Iterator[Discrepancy]:
    if before is not None and version > before + 1:
        yield Discrepancy(Kind.MISSING, None, before + 1, version, version, "")


def _jumps(entry: Entry, reached: dict[TopicPartition, Position]) -> Iterator[Discrepancy]:
    why = f"{entry.event} by {entry.actor}" + (f": {entry.reason}" if entry.reason else "")
    for tp, move in entry.moves.items():
        yield from _moved(tp, reached.get(tp, move.before), move, entry.version, why)
        reached[tp] = move.after
    for r in entry.ranges if entry.event == "commit" else ():
        here = reached.get(r.topic_partition, Position(r.start))
        yield from _between(r.topic_partition, here.offset, r.start, entry.version, "")
        reached[r.topic_partition] = here._replace(offset=r.end)


def _moved(tp: TopicPartition, here: Position | None, move: Move, version: int, why: str) -> Iterator[Discrepancy]:
    if here is None:  # the first time that it is placed
        return
    if move.before is None:  # placed again, as the stored position was gone
        yield from _between(tp, here.offset, move.after.offset, version, "")
        return
    yield from _edited(tp, here, move.before, version)
    yield from _between(tp, move.before.offset, move.after.offset, version, why)


def _left(tp: TopicPartition, here: Position, stored: Position | None, version: int) -> Iterator[Discrepancy]:
    if stored is None:
        yield Discrepancy(Kind.VANISHED, tp, here.offset, here.offset, version, "")
    else:
        yield from _edited(tp, here, stored, version)


def _edited(tp: TopicPartition, here: Position, there: Position, version: int) -> Iterator[Discrepancy]:
    yield from _between(tp, here.offset, there.offset, version, "")
    if is_recreated(here.topic_id, there.topic_id):
        yield Discrepancy(Kind.TOPIC_ID, tp, there.offset, there.offset, version, "")


def _between(tp: TopicPartition, here: int, there: int, version: int, why: str) -> Iterator[Discrepancy]:
    if there > here:
        yield Discrepancy(Kind.GAP, tp, here, there, version, why)
    elif there < here:
        yield Discrepancy(Kind.OVERLAP, tp, there, here, version, why)
