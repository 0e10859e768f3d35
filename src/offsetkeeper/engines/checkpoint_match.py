"""The ledger against a batch that Spark's checkpoint has planned, decided by offsets. Pure.

match       when, for one partition                             what is done
SAME        the ledger stands where the range starts            the range is processed
DONE        the ledger stands at the range's end or after it    nothing: it was processed before
PARTLY      the ledger stands within the range                  only what comes after it is processed
HOLE        the ledger stands before the range's start          stop: what lies between was never processed
UNKNOWN     the ledger does not know the partition              stop: nobody knows what lies before

A partition that the batch found new is placed in the ledger before, and then is SAME.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from offsetkeeper.core.model import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import CheckpointMismatch, SettingsError, listed

NEW_CHECKPOINT = (
    "Start with a new checkpoint to go on from the ledger, and nothing is lost or doubled; or give "
    "on_mismatch=OnMismatch(hole='follow') to go on where the checkpoint stands"
)
NEW_STATE = (
    "The state of the query belongs to its checkpoint: start with a new checkpoint and offsets= to build the state "
    "anew from there, or put the ledger back with offsetkeeper undo"
)


class Match(StrEnum):
    """How the ledger stands to one range."""

    SAME = "same"
    DONE = "done before"
    PARTLY = "partly done before"
    HOLE = "a hole"
    UNKNOWN = "not in the ledger"


@dataclass(frozen=True, slots=True)
class OnMismatch:
    """What is done where ledger and checkpoint differ in a way that only you can judge; stops by default.

    Attributes:
        hole: the checkpoint is ahead of the ledger. "stop", or "follow": the ledger is set to where the checkpoint
            stands, and what lies between is not processed by this group.
        state: a query with state starts with an empty checkpoint, though the group has read before, so its state is
            gone. "stop", or "empty": it starts with empty state, from where the ledger stands.
    """

    hole: Literal["stop", "follow"] = "stop"
    state: Literal["stop", "empty"] = "stop"

    def __post_init__(self) -> None:
        """Refuse words that are no policy."""
        if self.hole not in {"stop", "follow"}:
            raise SettingsError(f"hole={self.hole!r}: use 'stop' or 'follow'")
        if self.state not in {"stop", "empty"}:
            raise SettingsError(f"state={self.state!r}: use 'stop' or 'empty'")


@dataclass(frozen=True, slots=True)
class RangeMatch:
    """One range of the batch, where the ledger stands in its partition (None: nowhere), and how the two match."""

    wanted: OffsetRange
    position: int | None
    match: Match

    def __str__(self) -> str:
        ledger = "has no position" if self.position is None else f"stands at {self.position}"
        w = self.wanted
        has = f"has {w.start} to {w.end}" if w.size else f"stands at {w.start}"
        ahead = "ahead of it" if self.match is Match.DONE and not w.size else self.match
        return f"{w.topic_partition}: the checkpoint {has}, the ledger {ledger}: {ahead}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Every range of a batch against the ledger."""

    rows: tuple[RangeMatch, ...]

    @property
    def rest(self) -> tuple[OffsetRange, ...]:
        """What is left to process."""
        return tuple(
            row.wanted._replace(start=max(row.wanted.start, row.position or 0))
            for row in self.of(Match.SAME, Match.PARTLY)
        )

    @property
    def done(self) -> dict[TopicPartition, int]:
        """For each partition of which something was processed before, the offset up to which."""
        skipped = {Match.DONE, Match.PARTLY}
        return {r.wanted.topic_partition: r.position or 0 for r in self.rows if r.match in skipped}

    def of(self, *matches: Match) -> tuple[RangeMatch, ...]:
        """Return the rows that match so."""
        return tuple(row for row in self.rows if row.match in matches)

    def holes(self) -> dict[TopicPartition, int]:
        """Return where the ledger must stand so that the batch can follow, for each partition where it does not."""
        return {row.wanted.topic_partition: row.wanted.start for row in self.of(Match.HOLE, Match.UNKNOWN)}

    def mismatch(self, batch: str, rows: Sequence[RangeMatch], remedy: str) -> CheckpointMismatch:
        """Return the error that shows both sides of `rows`, up to twenty. Indented: Spark's text is read so."""
        return CheckpointMismatch(
            f"{batch} does not fit the ledger, nothing was written:\n  {listed(rows)}\n  {remedy}"
        )


def reconcile(positions: Positions, ranges: Sequence[OffsetRange]) -> Reconciliation:
    """Hold the ranges of a batch, one for each partition, against the ledger's positions.

    An empty range stands for where a checkpoint stands: the ledger is there, ahead of it (DONE), or behind (HOLE).
    """
    return Reconciliation(tuple(_row(each, positions.get(each.topic_partition)) for each in sorted(ranges)))


def batch_ranges(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> tuple[OffsetRange, ...]:
    """Return the ranges between two offsets of a source, without empty ones; what has no start begins at 0.

    Kafka's source reads a partition it finds new from its beginning, which must be 0 or it fails; the packed source
    writes where a new partition begins into the batch before.
    """
    ranges = (OffsetRange(*tp, starts.get(tp, 0), end) for tp, end in sorted(ends.items()))
    return tuple(each for each in ranges if each.size > 0)


def _row(wanted: OffsetRange, position: Position | None) -> RangeMatch:
    if position is None:
        return RangeMatch(wanted, None, Match.UNKNOWN)
    at = position.offset
    if at == wanted.start:
        match = Match.SAME
    elif at < wanted.start:
        match = Match.HOLE
    else:
        match = Match.DONE if at >= wanted.end else Match.PARTLY
    return RangeMatch(wanted, at, match)
