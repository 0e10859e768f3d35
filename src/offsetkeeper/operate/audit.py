"""Checks a history for gaps that no batch has read, offsets that were committed twice, and deleted entries. Pure.

In each partition, a commit must start where the commit before it ends. If it does not, the position jumped: by a
rewind, by a policy at the start of a run, or by an edit from outside of the ledger. A position in the history must
still be stored. If it was deleted, the next run sets it again and reads from there.
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
    """The kind of a finding."""

    GAP = "gap"
    """Offsets that no batch has committed."""
    OVERLAP = "overlap"
    """Offsets that were committed more than once, or will be."""
    VANISHED = "vanished"
    """A position in the history that is no longer stored."""
    TOPIC_ID = "topic id"
    """A position whose topic id differs from the one in the history."""
    MISSING = "missing"
    """Changes that the history lacks; `start` and `end` are versions."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A finding: something in a history, or between history and positions, that does not fit.

    Attributes:
        kind: the kind of the finding.
        topic_partition: the partition; None for missing changes.
        start, end: the offsets, half-open; their number is the upper bound of the number of records. For a position,
            its offset twice; for missing changes, their versions.
        version: version of the change that jumped; for an edit from outside, of the change that found it.
        why: event and reason of that change; empty if no change of the ledger explains the finding.
    """

    kind: Kind
    topic_partition: TopicPartition | None
    start: int
    end: int
    version: int
    why: str

    @property
    def explained(self) -> bool:
        """Whether a change through the ledger explains the finding."""
        return bool(self.why)

    def __str__(self) -> str:
        why = self.why or "nothing in the history explains it"
        where = "" if self.topic_partition is None else f" {self.topic_partition}"
        return f"{self.kind}{where} {self.start} {self.end}: {why} (version {self.version})"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain values; `topic` and `partition` are null for missing changes."""
        found = plain(self, "explained")
        found.pop("topic_partition", None)
        return {"topic": None, "partition": None} | found


def audit(entries: Iterable[Entry], snapshot: Snapshot) -> list[Discrepancy]:
    """Check a history, oldest entry first, up to the ledger as it is now, and return the findings.

    The check of a partition starts at its first commit in the entries, so pruned older entries give no findings.

    Args:
        entries: oldest first.
        snapshot: the ledger; newer entries are changes that the ledger has lost.
    """
    reached: dict[TopicPartition, Position] = {}
    findings: list[Discrepancy] = []
    version: int | None = None
    for entry in entries:
        findings += _lacking(version, entry.version)
        version = entry.version
        findings += _jumps(entry, reached)
    if version is None and snapshot.version:  # the newest change always has an entry
        version = snapshot.version - 1
    if version is not None:
        findings += _lacking(version, snapshot.version + 1)
    if version is not None and version > snapshot.version:
        findings.append(Discrepancy(Kind.MISSING, None, snapshot.version + 1, version + 1, snapshot.version, ""))
    for tp, position in sorted(reached.items()):
        findings += _left(tp, position, snapshot.positions.get(tp), version or 0)
    return findings


def up_to(snapshot: Snapshot, entries: Sequence[Entry], again: Callable[[], Snapshot]) -> Sequence[Entry]:
    """Return the entries for an audit of the ledger: those up to its version, in their order.

    A ledger is read before its history, and a run may commit in between: an entry newer than the positions would look
    like a jump. But if the ledger is still at its old version, it has lost the newer changes, and all entries count.

    Args:
        snapshot: the ledger.
        entries: read after it, newest first.
        again: reads the ledger again; called only if entries are newer.
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
    if here is None:  # the partition is placed for the first time
        return
    if move.before is None:  # placed again, because the stored position was deleted
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
