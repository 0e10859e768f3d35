"""Compares the ledger with a batch that Spark's checkpoint has planned, by offsets. Pure.

match       condition, for one partition                        action
SAME        the ledger is at the start of the range             process the range
DONE        the ledger is at the end of the range or after it   none: the range was processed before
PARTLY      the ledger is within the range                      process only the records from the ledger's position on
HOLE        the ledger is before the start of the range         stop: records in between were never processed
UNKNOWN     the ledger does not know the partition              stop: it is unknown what was processed before

A partition that is new in the batch is first placed in the ledger, and then is SAME. The number of a batch of a query
with state is compared in the same way with the number that the ledger has for the query's next batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from offsetkeeper.core.batch import NO_QUERIES, Queries, QueryBatch
from offsetkeeper.core.offsets import OffsetRange, Positions, TopicPartition
from offsetkeeper.core.plan import PlanRow, Verdict
from offsetkeeper.errors import CheckpointMismatch, SettingsError, listed

NEW_STATE = (
    "The state of the query belongs to its checkpoint: start with a new checkpoint and offsets= to build new state "
    "from there, or restore the ledger with offsetkeeper undo"
)
FOLLOW_EMPTY = (
    "The query begins here with empty state, which lacks all earlier records. Start with a new checkpoint and offsets= "
    "to build new state from there; or give on_mismatch=OnMismatch(hole='follow', state='empty') to begin here with "
    "empty state"
)
_NEW_CHECKPOINT = (
    "Start with a new checkpoint to resume from the ledger: what it does not count as processed is read, also if the "
    "output has it already. Or give on_mismatch=OnMismatch(hole='follow') to resume from the checkpoint: this group "
    "never processes the records in between"
)
_FOLLOW_STATE = (
    f"{NEW_STATE}. Or give on_mismatch=OnMismatch(hole='follow') to go on from the checkpoint: its state has the "
    "records in between, and the output may lack them"
)
_NOT_COUNTED = (
    "The ledger does not count the batches of this query yet. If the query has run without offsetkeeper, give "
    "on_mismatch=OnMismatch(hole='follow') for the first start: the query keeps its state and its number of batches. "
    "If state was added to the query since, its checkpoint has none: start with a new checkpoint and offsets= to build "
    "it"
)
_NO_POSITION = (
    "The ledger has no position of these partitions: the records in between would never be processed. If the group or "
    "the store has another name now, give the old one. Otherwise put the positions of the checkpoint into the ledger "
    "with offsetkeeper checkpoint export; or give offsets= for these partitions; or start with a new checkpoint, to "
    "begin at start="
)


_LONGEST_S = 1e9
_PARTITIONS = re.compile(r"Partitions Set\((.+?)\)(?: have been|\. They may have been) deleted", re.IGNORECASE)
_KINDS = re.compile(  # what a source says of the offsets of another kind
    r"No usable value for (?:logOffset|offset)\b|Failed to read log file \S+/sources/\d+/\d+\b"
    r"|Expected e\.g\. \{\"topicA\""
)
_SOURCES = re.compile(r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\] sources")


class Match(StrEnum):
    """How the ledger relates to one range."""

    SAME = "same"
    DONE = "done before"
    PARTLY = "partly done before"
    HOLE = "a hole"
    UNKNOWN = "not in the ledger"


@dataclass(frozen=True, slots=True)
class OnMismatch:
    """What to do if ledger and checkpoint differ in a way that only you can judge. By default the query stops.

    Attributes:
        hole: the checkpoint is ahead of the ledger. "stop", or "follow": the ledger is set to the position of the
            checkpoint, and this group never processes the records in between.
        state: a query with state starts with an empty checkpoint, and a partition has a position that is not the first
            start's: the query would lack the records before it. "stop"; or "empty": the query starts with empty
            state, at the ledger's positions; or "rebuild": it first reads the records of its open windows again, and
            drops what the output has of them. Only `Pipeline.start` can rebuild, see docs/structured.md.
        window_s: with "rebuild": length of the longest window, in seconds. Without it, Spark's plan tells it.
        ahead_s: with "rebuild", if the event time is not the timestamp of the record in Kafka: by how many seconds at
            most it is ahead of that.
        read_all: with "rebuild": that the query has read all records of these windows, where the ledger's history is
            too short to show it.
        unchanged: with "rebuild": that the query that committed last is this one, in this output mode. Output mode
            update and `dropDuplicates` need it: they emit a result before its window ends, and what is read again is
            dropped. Of another query the output lacks it. Give it for one start, and not in the program.
    """

    hole: Literal["stop", "follow"] = "stop"
    state: Literal["stop", "empty", "rebuild"] = "stop"
    window_s: float | None = None
    ahead_s: float | None = None
    read_all: bool = False
    unchanged: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown words."""
        if self.hole not in {"stop", "follow"}:
            raise SettingsError(f"hole={self.hole!r}: use 'stop' or 'follow'")
        if self.state not in {"stop", "empty", "rebuild"}:
            raise SettingsError(f"state={self.state!r}: use 'stop', 'empty' or 'rebuild'")
        for name, seconds in (("window_s", self.window_s), ("ahead_s", self.ahead_s)):
            if seconds is not None and (isinstance(seconds, bool) or not 0 <= seconds < _LONGEST_S):
                raise SettingsError(f"{name}={seconds!r}: use a number of seconds from 0 on")
            if seconds is not None and self.state != "rebuild":
                raise SettingsError(f"{name} goes with state='rebuild'")
        for name, word in (("read_all", self.read_all), ("unchanged", self.unchanged)):
            if word and self.state != "rebuild":
                raise SettingsError(f"{name} goes with state='rebuild'")


@dataclass(frozen=True, slots=True)
class RangeMatch:
    """One range of the batch, the ledger's position in its partition (None: no position), and how they match."""

    wanted: OffsetRange
    position: int | None
    match: Match

    @property
    def at_end(self) -> bool:
        """Whether the ledger is at the end of the range."""
        return self.position == self.wanted.end

    def __str__(self) -> str:
        ledger = "has no position" if self.position is None else f"is at {self.position}"
        w = self.wanted
        has = f"has {w.start} to {w.end}" if w.size else f"is at {w.start}"
        ahead = "ahead of it" if self.match is Match.DONE and not w.size else self.match
        return f"{w.topic_partition}: the checkpoint {has}, the ledger {ledger}: {ahead}"


@dataclass(frozen=True, slots=True)
class CountMatch:
    """The number of a query's batch, the number of the next one in the ledger (None: not counted), and their match."""

    wanted: QueryBatch
    counted: int | None
    match: Match

    @property
    def at_end(self) -> bool:
        """Whether the ledger is right after this batch."""
        return self.counted == self.wanted.number + 1

    def __str__(self) -> str:
        ledger = "does not count it" if self.counted is None else f"is at batch {self.counted}"
        query, number = self.wanted
        return f"query {query}: the checkpoint is at batch {number}, the ledger {ledger}: {self.match}"


Row = RangeMatch | CountMatch


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Every range of a batch, and its number in a query with state, compared with the ledger."""

    rows: tuple[RangeMatch, ...]
    count: CountMatch | None = None

    @property
    def query(self) -> QueryBatch | None:
        """The number of the batch if it is left to process; None also without a query with state."""
        return self.count.wanted if self.count is not None and self.count.match is Match.SAME else None

    @property
    def left(self) -> bool:
        """Whether something is left to process; a batch of a query with state may have no records."""
        return self.query is not None or bool(self.rest)

    @property
    def rest(self) -> tuple[OffsetRange, ...]:
        """The ranges that are left to process."""
        return tuple(
            row.wanted._replace(start=max(row.wanted.start, row.position or 0))
            for row in self.rows
            if row.match in {Match.SAME, Match.PARTLY}
        )

    @property
    def done(self) -> dict[TopicPartition, int]:
        """For each partition that was partly or fully processed before, the offset up to which it was."""
        skipped = {Match.DONE, Match.PARTLY}
        return {r.wanted.topic_partition: r.position or 0 for r in self.rows if r.match in skipped}

    def of(self, *matches: Match) -> tuple[Row, ...]:
        """Return the ranges with one of these matches, and the number if it has one of them."""
        every: tuple[Row, ...] = self.rows if self.count is None else (*self.rows, self.count)
        return tuple(row for row in every if row.match in matches)

    def holes(self) -> dict[TopicPartition, int]:
        """Return the position that the ledger needs in each partition with a hole, so that the batch can follow."""
        holes = {Match.HOLE, Match.UNKNOWN}
        return {row.wanted.topic_partition: row.wanted.start for row in self.rows if row.match in holes}

    def mismatch(self, batch: str, rows: Sequence[Row], remedy: str) -> CheckpointMismatch:
        """Return the error that shows both sides of up to twenty `rows`. Spark's text is parsed by its indentation."""
        return CheckpointMismatch(
            f"{batch} does not match the ledger; nothing was written:\n  {listed(rows)}\n  {remedy}"
        )


def sources_changed(raised: Exception, checkpoint: str) -> CheckpointMismatch | None:
    """Return the error for a query with other sources than its checkpoint, if Spark's error says so."""
    text = str(raised)
    if found := _SOURCES.search(text):
        what = (
            f"is the checkpoint of a query that read {found[1]} sources, and this query reads {found[2]}: a union, a "
            "join or another topic came or went. Spark cannot go on from there; nothing was read or written. Start the "
            "query as it was"
        )
    elif found := _PARTITIONS.search(text):
        what = (
            f"does not fit the sources of this query, by the partitions {found[1]}: the query reads its sources in "
            "another order, or other topics, or the topic was deleted. This batch was neither read nor written. Do not "
            "set failOnDataLoss: records would be skipped without an error. Start the query as it was; if that is "
            "refused too, Spark has already planned this batch, and 'offsetkeeper checkpoint verify' says how to take "
            "it back"
        )
    elif found := _KINDS.search(text):
        what = (
            f"does not fit the sources of this query ({found[0]}): the query reads its sources in another order, or "
            "one of another kind. This batch was neither read nor written. Start the query as it was; if that is "
            "refused too, 'offsetkeeper checkpoint verify' says which file is damaged"
        )
    else:
        return None
    return other_sources(checkpoint, what)


def other_sources(checkpoint: str, what: str) -> CheckpointMismatch:
    """Return the error for a query with other sources than its checkpoint; `what` follows the checkpoint's name."""
    return CheckpointMismatch(
        f"{checkpoint} {what}. Or start with a new checkpoint: without state, reading goes on from the ledger; with "
        "state, give offsets= to build new state. Sources that the query opens itself then begin anew"
    )


def hole_remedy(holes: Sequence[Row], *, stateful: bool) -> str:
    """Return what to do about a checkpoint that is ahead of the ledger.

    Args:
        holes: the ranges with a hole, or without a position in the ledger.
        stateful: whether the query has state.
    """
    if not stateful:
        return _NEW_CHECKPOINT
    if all(row.match is Match.UNKNOWN and isinstance(row, CountMatch) for row in holes):
        return _NOT_COUNTED
    return _FOLLOW_STATE


def reconcile(
    positions: Positions,
    ranges: Sequence[OffsetRange],
    number: QueryBatch | None = None,
    queries: Queries = NO_QUERIES,
) -> Reconciliation:
    """Compare the ranges of a batch, one for each partition, with the ledger's positions.

    An empty range is the position of a checkpoint: the ledger is at it (SAME), ahead of it (DONE), or behind it (HOLE).

    Args:
        positions: the positions of the ledger.
        ranges: the ranges.
        number: the number of the batch in a query with state.
        queries: the numbers of the next batches in the ledger, by query.
    """
    rows = tuple(_row(each, positions) for each in sorted(ranges))
    return Reconciliation(rows, None if number is None else count_match(number, queries))


def count_match(number: QueryBatch, queries: Queries) -> CountMatch:
    """Compare the number of a query's batch with the ledger's."""
    counted = queries.get(number.query)
    return CountMatch(number, counted, _match(counted, number.number, number.number + 1))


def begins_after(rows: Iterable[PlanRow], goes_on: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    """Return the partitions whose first position would be after the offset at which the checkpoint goes on, with both.

    Spark reads a partition that the checkpoint does not have from its beginning, if it has others of the topic.

    Args:
        rows: the plan of the start.
        goes_on: the offset at which the checkpoint goes on, by partition.
    """
    found, known = {}, {tp.topic for tp in goes_on}
    for row in rows:
        tp = row.topic_partition
        fresh = row.verdict in {Verdict.FIRST_RUN, Verdict.NEW_TOPIC} and tp.topic in known
        if not fresh or row.start is None or row.bounds is None:
            continue
        at = goes_on.get(tp, row.bounds.beginning)
        if at < row.start:
            found[tp] = f"{tp}: the checkpoint goes on at {at}, {row.policy} begins at {row.start}"
    return found


def no_position(batch: str, rows: Iterable[str]) -> CheckpointMismatch:
    """Return the error for what `begins_after` finds."""
    return CheckpointMismatch(
        f"{batch} does not match the ledger; nothing was written:\n  {listed(rows)}\n  {_NO_POSITION}"
    )


def batch_ranges(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> tuple[OffsetRange, ...]:
    """Return the ranges between two offsets of a source, without empty ones; a partition without a start begins at 0.

    Kafka's source reads a new partition from its beginning, which must be 0 or the source fails; the packed source
    writes the beginning of a new partition into the batch before.
    """
    ranges = (OffsetRange(*tp, starts.get(tp, 0), end) for tp, end in sorted(ends.items()))
    return tuple(each for each in ranges if each.size > 0)


def _row(wanted: OffsetRange, positions: Positions) -> RangeMatch:
    stored = positions.get(wanted.topic_partition)
    at = None if stored is None else stored.offset
    return RangeMatch(wanted, at, _match(at, wanted.start, wanted.end))


def _match(at: int | None, start: int, end: int) -> Match:
    if at is None:
        return Match.UNKNOWN
    if at == start:
        return Match.SAME
    if at < start:
        return Match.HOLE
    return Match.DONE if at >= end else Match.PARTLY
