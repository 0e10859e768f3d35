"""What the history says about every offset: gaps nobody read, and stretches that were committed twice. Pure.

Commits of a group must follow one another, partition by partition. Where the next range does not begin at the end of
the one before, something jumped: a rewind, a policy at the start of a run, or an edit from outside of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offsetkeeper.core.model import Entry, Positions, TopicPartition
from offsetkeeper.core.plain import plain


class Kind(StrEnum):
    """What was found."""

    GAP = "gap"
    """Offsets that no batch has committed."""
    OVERLAP = "overlap"
    """Offsets that were committed more than once, or will be."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of one partition that was jumped over, or gone back over.

    Attributes:
        kind: which of both.
        topic_partition: where.
        start, end: the offsets, half-open; their number is the upper bound of the number of records.
        version: of the change that jumped; for an edit from outside, of the change that found it.
        why: event and reason of that change; empty where no change of the ledger explains it.
    """

    kind: Kind
    topic_partition: TopicPartition
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
        return f"{self.kind} {self.topic_partition} {self.start} {self.end}: {why} (version {self.version})"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return plain(self, "explained")


def audit(entries: Iterable[Entry], positions: Positions) -> list[Gap]:
    """Walk a history, oldest entry first, to the positions stored now, and return what does not follow on.

    The first commit of a partition in the entries says where the walk begins, so older entries that were pruned raise
    no findings.
    """
    reached: dict[TopicPartition, int] = {}
    findings: list[Gap] = []
    version = 0
    for entry in entries:
        version = entry.version
        findings.extend(_jumps(entry, reached))
    for tp, position in sorted(positions.items()):
        if tp in reached:
            findings.extend(_between(tp, reached[tp], position.offset, version, ""))
    return findings


def up_to(version: int, entries: Iterable[Entry]) -> Sequence[Entry]:
    """Return the entries up to a version, in their order.

    A ledger is read before its history, and a run may commit in between: what is newer than the positions that were
    read would look like a jump.
    """
    return [entry for entry in entries if entry.version <= version]


def _jumps(entry: Entry, reached: dict[TopicPartition, int]) -> Iterator[Gap]:
    why = f"{entry.event} by {entry.actor}" + (f": {entry.reason}" if entry.reason else "")
    for tp, move in entry.moves.items():
        if move.before is not None:
            yield from _between(tp, reached.get(tp, move.before.offset), move.before.offset, entry.version, "")
            yield from _between(tp, move.before.offset, move.after.offset, entry.version, why)
        reached[tp] = move.after.offset
    for r in entry.ranges if entry.event == "commit" else ():
        yield from _between(r.topic_partition, reached.get(r.topic_partition, r.start), r.start, entry.version, "")
        reached[r.topic_partition] = r.end


def _between(tp: TopicPartition, here: int, there: int, version: int, why: str) -> Iterator[Gap]:
    if there > here:
        yield Gap(Kind.GAP, tp, here, there, version, why)
    elif there < here:
        yield Gap(Kind.OVERLAP, tp, there, here, version, why)
