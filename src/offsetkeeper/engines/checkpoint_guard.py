"""Compares a query's checkpoint with the ledger before the query starts: before the group is taken, and again after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.batch import Batch, Queries, QueryBatch, check_query
from offsetkeeper.core.duration import time_text
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Count, Entry, Move, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Positions
from offsetkeeper.core.pending import Fate
from offsetkeeper.core.plan import Plan, PlanRow
from offsetkeeper.engines.checkpoint_match import (
    NEW_STATE,
    CountMatch,
    Match,
    Reconciliation,
    Row,
    batch_ranges,
    begins_after,
    count_match,
    hole_remedy,
    no_position,
    reconcile,
)
from offsetkeeper.engines.read_before import read_before
from offsetkeeper.engines.rebuild import NO_WATERMARK, Reach, read_again
from offsetkeeper.engines.settings import QueryRun
from offsetkeeper.errors import CheckpointMismatch, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_HISTORY = 1000  # entries: stores keep this many, or fewer


@dataclass(frozen=True, slots=True)
class CheckpointGuard:
    """Compares the newest batch of a query's checkpoint with the ledger's positions.

    Attributes:
        asked: the settings of the query.
        spark: the session; it reads the checkpoint.
        ledger: ledger of the group, loaded.
        reach: which records the state can be built again from, if it was asked for and the checkpoint had no batch.
    """

    asked: QueryRun
    spark: SparkSession
    ledger: Ledger
    reach: Reach | None = None

    def query(self) -> str | None:
        """See `Guard.query`."""
        if not self.asked.stateful:
            return None
        log = self._log({})
        return "" if log.newest() is None else log.query_id()

    def begins(self) -> bool:
        """See `Guard.begins`."""
        return self._log({}).newest() is None

    def check(self, plan: Plan, then: Snapshot, fate: Fate | None) -> None:
        """See `Guard.check`.

        Raises:
            CheckpointMismatch: the state of the query is gone, the ledger was set back, the ledger does not count the
                batches of the query, the ledger has no position and would begin after the checkpoint, or the pending
                batch is not the one that the checkpoint runs next.
            CorruptStore: a file of the checkpoint is not what Spark writes.
            See `rebuild.read_again`, if the state is to be rebuilt.
        """
        positions, queries = then.positions, then.queries
        log = self._log(positions)
        newest = log.newest()
        if then.pending is not None and fate is Fate.WAIT:
            self._check_waiting(log, newest, then.pending)
        # A query that began its first batch is counted; where it is not, a query without state may have planned it.
        if newest is None or (newest == (0, False) and self._counted(log, queries) is None):
            self._check_state(plan, then, fate, self.reach if newest is None else None)
        if newest is None:
            return
        following = newest[0] + newest[1]
        name = f"batch {newest[0]} of {self.asked.place}"
        self._check_first(log, newest, plan, name)
        found = self._found(log, *newest, positions)
        if self.asked.on_mismatch.hole == "stop" and self._holes(log, newest, positions, queries):
            now = self.ledger.later()
            reached = self._reached(positions, now)
            if holes := self._holes(log, newest, reached, {**queries, **_later(queries, now.queries)}):
                why = hole_remedy(holes, stateful=self.asked.stateful)
                raise self._found(log, *newest, reached).mismatch(name, holes, why)
        ahead = found.of(Match.DONE, Match.PARTLY)
        if ahead and self.asked.stateful and self._counted(log, queries) == following:
            raise found.mismatch(name, ahead, NEW_STATE)

    def _check_first(self, log: BatchLog, newest: tuple[int, bool], plan: Plan, name: str) -> None:
        """Check that no partition gets its first position after records that the checkpoint has not read."""
        number, done = newest
        after = begins_after(plan.rows, log.ends(number) if done else log.batch_offsets(number).starts)
        if after:  # a run that lives may have stored its position since the ledger was loaded
            there = self.ledger.later().positions
            after = {tp: row for tp, row in after.items() if tp not in there}
        if after:
            raise no_position(name, after.values())

    def _holes(
        self, log: BatchLog, newest: tuple[int, bool], positions: Positions, queries: Queries
    ) -> tuple[Row, ...]:
        """Return where the checkpoint is ahead of positions and numbers."""
        return (*self._found(log, *newest, positions).of(Match.HOLE), *self._uncounted(log, sum(newest), queries))

    def _reached(self, positions: Positions, now: Snapshot) -> Positions:
        """Return the positions, moved to where a run that lives has committed since the ledger was loaded."""
        first = self.ledger.snapshot.positions
        moved = {tp: at for tp, at in now.positions.items() if tp not in first or at.offset > first[tp].offset}
        return {
            **positions,
            **{tp: at for tp, at in moved.items() if tp not in positions or at.offset > positions[tp].offset},
        }

    def _log(self, positions: Positions) -> BatchLog:
        folder = self.asked.open_folder(self.spark, self.asked.checkpoint)
        topics = self.asked.run.subscription.topics
        return BatchLog(folder, topics, {tp: at.offset for tp, at in positions.items()}, self.asked.packed)

    def _found(self, log: BatchLog, number: int, done: bool, positions: Positions) -> Reconciliation:  # noqa: FBT001 - private
        """Compare where the next batch starts with the ledger: the newest batch's end, or its start if not done."""
        if done:
            return reconcile(positions, [OffsetRange(*tp, end, end) for tp, end in log.ends(number).items()])
        bounds = log.batch_offsets(number)
        return reconcile(positions, batch_ranges(bounds.starts, bounds.ends))

    def _counted(self, log: BatchLog, queries: Queries) -> int | None:
        """Return the next batch of the query as the ledger counts it; None if it does not know the query."""
        return queries.get(check_query(log.query_id()))

    def _uncounted(self, log: BatchLog, following: int, queries: Queries) -> tuple[CountMatch, ...]:
        """Return the count of a query with state if the ledger is behind it; the first batch begins the count."""
        if not self.asked.stateful or not following:
            return ()
        count = count_match(QueryBatch(check_query(log.query_id()), following), queries)
        return (count,) if count.match in {Match.HOLE, Match.UNKNOWN} else ()

    def lacks(self, plan: Plan) -> list[PlanRow]:
        """Return the partitions whose earlier records a query with state would lack if it began with empty state."""
        found = self.ledger.snapshot
        if not found.generation and not any(row.stored for row in plan.rows):
            return []  # nothing was read, and nothing was forgotten
        return read_before(plan, self.history(), counted=any(found.queries.values()))

    def history(self) -> list[Entry]:
        """Return the history up to the ledger that was loaded, newest first."""
        return [entry for entry in self.ledger.history(_HISTORY) if entry.version <= self.ledger.snapshot.version]

    def _coming(self, plan: Plan, then: Snapshot, fate: Fate | None) -> list[Entry]:
        """Return what the start adds to the history before the query begins, newest first."""
        stored = {row.topic_partition: row.stored for row in plan.rows}
        placed = {tp: Move(stored[tp], at) for tp, at in plan.places.items()}
        entries = [Entry(then.version, "place", "", 0, "", moves=placed)]
        if then.pending is not None and fate in {Fate.FINISH, Fate.COUNT}:
            query, ranges = then.pending.query, then.pending.ranges
            counts = {query.query: Count(query.number, query.number + 1)} if query else {}
            entries.append(Entry(then.version, "commit", "", 0, "", ranges=ranges, counts=counts))
        return entries

    def _check_state(self, plan: Plan, then: Snapshot, fate: Fate | None, reach: Reach | None) -> None:
        asked, watermark_ms = self.asked, then.watermark_ms
        if not asked.stateful or asked.on_mismatch.state == "empty":
            return
        rows = self.lacks(plan)
        if rows and reach and watermark_ms:
            _check_still(plan, asked.place)
            read_again(asked, self.spark, plan, then, reach, [*self._coming(plan, then, fate), *self.history()])
        elif rows:
            places = [
                f"{row.topic_partition}: "
                + (f"the ledger is at {row.stored.offset}" if row.stored else "its position was forgotten")
                for row in rows
            ]
            raise CheckpointMismatch(
                f"{asked.place} has no batch that is done, so the query would start with empty state, but group "
                f"{then.group!r} has, or had, positions that this query has not committed:\n  {listed(places)}\n"
                f"Results would lack the records before them. {_watermark_text(watermark_ms)}Start with the checkpoint "
                "that has the state; or give offsets= for each of these partitions, to read again from there and build "
                "new state; or give on_mismatch=OnMismatch(state='empty') to begin with empty state, which costs "
                "nothing only where results do not depend on earlier records"
            )

    def _check_waiting(self, log: BatchLog, newest: tuple[int, bool] | None, waiting: Batch) -> None:
        """Check that the query runs the pending batch again: the checkpoint has it as planned, with the same ranges."""
        number = -1 if waiting.query is None else waiting.query.number
        if newest == (number, False):
            bounds = log.batch_offsets(number)
            if batch_ranges(bounds.starts, bounds.ends) == waiting.ranges:
                return
        pending = self.ledger.later().pending
        if pending is None or pending.id != waiting.id:
            return  # the run that began it lives, and has committed it since the ledger was loaded
        raise CheckpointMismatch(
            f"batch {waiting.id} is pending, as batch {number} of this query, but "
            f"{self.asked.place} does not run it again: the checkpoint is an older or a newer copy, or "
            "the pipeline reads other topics now. Restore the checkpoint or the topics of that batch; or start with a "
            "new checkpoint, offsets= and Policies(pending='drop') to build new state"
        )


def _check_still(plan: Plan, place: str) -> None:
    """Check that a start moves no position: the state that is lost belongs to those that are stored.

    Raises:
        CheckpointMismatch: it moves one.
    """
    moves = [
        f"{row.topic_partition} from {row.stored.offset} to {row.start}"
        for row in plan.rows
        if row.stored is not None and row.start is not None and row.start != row.stored.offset
    ]
    if moves:
        raise CheckpointMismatch(
            f"the state of {place} cannot be rebuilt by a start that moves positions: {listed(moves, ', ')}. Nothing "
            "was changed. Give offsets= for all partitions to build new state from there, or OnMismatch(state='empty')"
        )


def _watermark_text(watermark_ms: int | None) -> str:
    if not watermark_ms:
        return f"{NO_WATERMARK}. "
    return (
        f"The last batch ran with the watermark {time_text(watermark_ms)}: on_mismatch=OnMismatch(state='rebuild') "
        "reads the records of the windows that were open then again, and drops what the output has of them. Or: "
    )


def _later(queries: Queries, now: Queries) -> Queries:
    """Return the numbers that a run that lives has counted on since the ledger was loaded."""
    return {query: number for query, number in now.items() if number > queries.get(query, -1)}
