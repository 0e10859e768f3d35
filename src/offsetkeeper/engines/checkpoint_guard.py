"""Compares a query's checkpoint with the ledger before the query starts: before the group is taken, and again after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Batch, OffsetRange, Positions, TopicPartition, in_kafka, query_topic
from offsetkeeper.engines.checkpoint_match import (
    NEW_CHECKPOINT,
    NEW_STATE,
    Match,
    Reconciliation,
    batch_ranges,
    reconcile,
)
from offsetkeeper.engines.run import QueryRun
from offsetkeeper.errors import CheckpointMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CheckpointGuard:
    """Compares the newest batch of a query's checkpoint with the ledger's positions.

    Attributes:
        asked: the settings of the query.
        spark: the session; it reads the checkpoint.
        ledger: ledger of the group, loaded.
    """

    asked: QueryRun
    spark: SparkSession
    ledger: Ledger

    def query(self) -> str | None:
        """See `Guard.query`."""
        if not self.asked.stateful:
            return None
        log = self._log({})
        return "" if log.newest() is None else log.query_id()

    def check(self, positions: Positions, waiting: Batch | None) -> None:
        """See `Guard.check`.

        Raises:
            CheckpointMismatch: the state of the query is gone, the ledger was set back, or the pending batch is not the
                one that the checkpoint runs next.
            CorruptStore: a file of the checkpoint is not what Spark writes.
        """
        log = self._log(positions)
        newest = log.newest()
        if waiting is not None:
            self._check_waiting(log, newest, waiting)
        if newest is None:
            self._check_state()
            return
        found = self._found(log, *newest, positions)
        name = f"batch {newest[0]} of {self.asked.place}"
        holes = found.of(Match.HOLE)
        if holes and self.asked.on_mismatch.hole == "stop":
            raise found.mismatch(name, holes, NEW_STATE if self.asked.stateful else NEW_CHECKPOINT)
        ahead = found.of(Match.DONE, Match.PARTLY)
        if ahead and self.asked.stateful and self._next_is(log, newest[0] + newest[1], positions):
            raise found.mismatch(name, ahead, NEW_STATE)

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

    def _next_is(self, log: BatchLog, number: int, positions: Positions) -> bool:
        """Whether the ledger has counted the query's batches up to this one: then an operator has moved positions."""
        at = positions.get(TopicPartition(query_topic(log.query_id()), 0))
        return at is not None and at.offset == number

    def _check_state(self) -> None:
        found, asked = self.ledger.snapshot, self.asked
        read = any(asked.run.subscription.topics.covers(tp) for tp in found.positions) and found.sequence > 0
        if asked.stateful and read and not asked.run.given and asked.on_mismatch.state == "stop":
            raise CheckpointMismatch(
                f"{asked.place} is empty, so the query would start with empty state, but group "
                f"{found.group!r} has read before: results would lack the earlier records. Restore the checkpoint; or "
                "give offsets= to read again from there and build new state; or give "
                "on_mismatch=OnMismatch(state='empty') to continue with empty state"
            )

    def _check_waiting(self, log: BatchLog, newest: tuple[int, bool] | None, waiting: Batch) -> None:
        """Check that the query runs the pending batch again: the checkpoint has it as planned, with the same ranges."""
        number = next(r.start for r in waiting.ranges if not in_kafka(r.topic))
        if newest == (number, False):
            bounds = log.batch_offsets(number)
            if batch_ranges(bounds.starts, bounds.ends) == tuple(r for r in waiting.ranges if in_kafka(r.topic)):
                return
        raise CheckpointMismatch(
            f"batch {waiting.id} is pending, as batch {number} of this query, but "
            f"{self.asked.place} does not run it again: the checkpoint is an older or a newer copy, or "
            "the pipeline reads other topics now. Restore the checkpoint or the topics of that batch; or start with a "
            "new checkpoint, offsets= and Policies(pending='drop') to build new state"
        )
