"""The function for `foreachBatch`: compares a query's batch with the ledger, writes it to its sink, and commits it.

With classic Spark it runs in the process that started the query, and uses the connections that are open there. With
Spark Connect it is pickled and runs in a process beside the server: there it opens the store by its URL, and continues
with the same owner id.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsetkeeper.checkpoint.logs import BatchLog, BatchOffsets
from offsetkeeper.core.batch import NO_QUERIES, Batch, Queries, QueryBatch, check_query
from offsetkeeper.core.identity import is_recreated
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.core.pending import Situation, when_planned
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.checkpoint_match import (
    FOLLOW_EMPTY,
    Match,
    Reconciliation,
    batch_ranges,
    hole_remedy,
    reconcile,
)
from offsetkeeper.engines.query_sources import check_sources
from offsetkeeper.engines.settings import QueryRun
from offsetkeeper.engines.stop import Stop, spark_gone
from offsetkeeper.errors import BrokerUnavailable, CheckpointMismatch, SettingsError, listed
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.consumers import Publisher
from offsetkeeper.kafka.start_plan import described, led_since
from offsetkeeper.kafka.topic_ids import check_cluster, recreated
from offsetkeeper.readers import StreamStart
from offsetkeeper.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")
_STATE = (
    "The checkpoint is older than the output, and the state cannot move forward without writing the output again: "
    "restore the newest copy of the checkpoint, or delete it and give offsets= to build new state"
)


class ForeachBatch:
    """A function for `foreachBatch`. It can be pickled; open connections are left out.

    Args:
        asked: the settings of the query.
        start: the topics of the query, and where it began.
        owner_id: id of the ledger's owner.
        delivery: the delivery, in the process that owns the ledger.

    Attributes:
        error: the error of the last batch, in the process where it ran.
    """

    def __init__(self, asked: QueryRun, start: StreamStart, owner_id: str, delivery: Delivery | None = None) -> None:
        self._asked = asked
        self._start = start
        self._owner_id = owner_id
        self._delivery = delivery
        self._log: BatchLog | None = None
        self._checked = False
        self._publisher: Publisher | None = None
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (_Release(), self._asked, self._start, self._owner_id)

    def __repr__(self) -> str:
        return f"ForeachBatch(group={self._asked.run.group!r}, checkpoint={self._asked.place!r})"

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Process batch `batch_id` of the query; `frame` has its records or results.

        Raises:
            CheckpointMismatch: ledger and checkpoint do not match; nothing was written.
            Fenced: another run has taken the group.
            Exception: the error of the output at its last attempt.
        """
        with self._lock:
            try:
                self._process(frame, batch_id)
            except Exception as error:
                self.error = spark_gone(error) or error
                raise
            except BaseException as error:  # Spark would wait for ever: it only handles an Exception
                self.error = error
                raise RuntimeError(f"the batch was ended by {error!r}") from error
            finally:
                _leave_to_the_server(frame)

    def wait(self, seconds: float) -> bool:
        """Wait for the current batch; return whether no batch runs any more."""
        free = self._lock.acquire(timeout=seconds)
        if free:
            self._lock.release()
        return free

    def _process(self, frame: DataFrame, batch_id: int) -> None:
        delivery = self.open()
        logs = self._batch_log(frame.sparkSession)
        if not self._checked:  # a query that runs keeps its sources
            check_sources(frame, logs, batch_id, self._asked.place)
            self._checked = True
        offsets = logs.batch_offsets(batch_id)
        self._place_new(delivery, offsets)
        ranges = batch_ranges(offsets.starts, offsets.ends)
        try:
            found = self._matched(delivery, ranges, batch_id)
        except CheckpointMismatch:
            delivery.ledger.check_held()  # else the snapshot may be older than the checkpoint, of a newer run
            raise
        if not found.left:
            if found.rows or found.count:
                where = self._asked.place
                log.info("batch %d of %s was committed before: its output is skipped", batch_id, where)
            if self._asked.stateful:  # Spark keeps the state of a batch only if its frame is used
                frame.write.format("noop").mode("overwrite").save()
            return
        batch = self._batch(delivery, found, batch_id, offsets.watermark_ms)
        if not batch.retry:
            self._check_uncut(delivery, batch)
        missing = self._missing(frame, found, batch_id)

        def may_go_on() -> bool:
            delivery.check_uncut(batch)
            return True

        delivery.deliver(batch, lambda _: missing, may_go_on)
        log.info("batch %s: %d offsets, batch %d of its query", batch.id, batch.size, batch_id)
        if self._publisher is not None:
            stored = delivery.ledger.snapshot.positions
            self._publisher.publish(lambda: {r.topic_partition: stored[r.topic_partition] for r in batch.ranges})

    def open(self) -> Delivery:
        """Open the connections that batches need, and keep Kafka's group alive if that is requested.

        Raises:
            Fenced: another run has the group.
            GuaranteeRefused, SettingsError, StoreUnavailable, SinkError: see `RunOutputs.prepare`.
        """
        if self._delivery is None:
            run = self._asked.run
            ledger = Ledger(open_store(run.store_url or ""), run.group, retry_timeout_s=run.pace.retry_timeout_s)
            ledger.join(self._owner_id)
            delivery = Delivery(run, ledger, Stop())
            delivery.outputs.prepare()
            self._delivery = delivery
        self._delivery.streams = True
        cluster = self._asked.run.cluster
        if self._asked.publish and self._publisher is None and isinstance(cluster, KafkaCluster):
            self._publisher = Publisher(cluster, self._asked.run.group)
            self._publisher.keep(self._stored)
        return self._delivery

    def close(self) -> None:
        """Close what `open` has opened; a delivery that was passed in stays open."""
        if self._publisher is not None:
            self._publisher.close()

    def _stored(self) -> Positions:
        """Return the stored positions of the query's topics if this run still owns the group."""
        ledger = self.open().ledger
        found = ledger.store.load(ledger.group)
        mine = found.owner is not None and found.owner.id == ledger.owner_id
        return {tp: at for tp, at in found.positions.items() if mine and self._start.topics.covers(tp)}

    def _batch_log(self, spark: SparkSession) -> BatchLog:
        if self._log is None:
            packed = self._asked.packed
            initial = {tp: at.offset for tp, at in self._start.positions.items()} if packed else {}
            folder = self._asked.open_folder(spark, self._asked.checkpoint)
            self._log = BatchLog(folder, self._start.topics, initial, packed)
        return self._log

    def _place_new(self, delivery: Delivery, offsets: BatchOffsets) -> None:
        """Store the start of partitions that neither the ledger nor the checkpoint knows.

        Raises:
            RangeGone: see `_made_again`.
        """
        stored = delivery.ledger.snapshot.positions
        again = self._made_again(delivery, offsets.new & stored.keys())
        new = {tp: offsets.starts[tp] for tp in offsets.new if tp in again or tp not in stored}
        if new:
            self._place(delivery, new, "new partitions")

    def _made_again(self, delivery: Delivery, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions whose position is of the topic before it was made again, and which the new one has.

        The ledger knows the new topic, which had fewer partitions at first: for a plan too, what it has since is new.

        Raises:
            RangeGone: the ledger does not know the new topic, or the position is of another cluster.
        """
        stored = delivery.ledger.snapshot.positions
        known = {tp: stored[tp] for tp in sorted(partitions)}
        if not known:
            return set()
        asked = delivery.asked
        now = asked.pace.patiently(BrokerUnavailable, lambda: described(asked.cluster, known))
        ids = {tp.topic: here.topic_id for tp, here in now.items()}
        current = {tp.topic for tp, at in stored.items() if at.topic_id == ids.get(tp.topic, "")}
        again = set()
        for tp, here in now.items():  # what is left out has gone again, with its records
            check_cluster(stored[tp].cluster_id, here.cluster_id, [tp.topic])
            if is_recreated(stored[tp].topic_id, here.topic_id):
                if tp.topic not in current:
                    raise recreated(tp.topic)
                again.add(tp)
        return again

    def _place(
        self, delivery: Delivery, offsets: Mapping[TopicPartition, int], reason: str, queries: Queries = NO_QUERIES
    ) -> None:
        """Store positions with the current ids of their topics and cluster."""
        found = delivery.asked.cluster.describe({tp.topic for tp in offsets})
        ids = {name: (topic.topic_id, topic.cluster_id) for name, topic in found.items()}
        placed = {tp: Position(offset, *ids.get(tp.topic, ())) for tp, offset in sorted(offsets.items())}
        delivery.ledger.place(placed, reason=reason, queries=queries)

    def _matched(self, delivery: Delivery, ranges: tuple[OffsetRange, ...], batch_id: int) -> Reconciliation:
        """Compare the batch with the ledger, and apply the policy for holes.

        Raises:
            CheckpointMismatch: the batch cannot be processed.
        """
        ledger, name = delivery.ledger, f"batch {batch_id} of {self._asked.place}"
        number = self._number(ledger, batch_id) if self._asked.stateful else None
        found = self._compared(ledger, ranges, number)
        holes = found.of(Match.HOLE, Match.UNKNOWN)
        self._check_state(found, batch_id, name)
        if holes and self._asked.on_mismatch.hole == "follow":
            log.warning("%s is ahead of the ledger; the ledger follows it: %s", name, listed(holes, "; "))
            queries = {number.query: number.number} if number and found.count in holes else NO_QUERIES
            self._place(delivery, found.holes(), "follows checkpoint", queries)
            found, holes = self._compared(ledger, ranges, number), ()
        if holes:
            raise found.mismatch(name, holes, hole_remedy(holes, stateful=self._asked.stateful))
        before = found.of(Match.DONE, Match.PARTLY)
        if self._asked.stateful and before and (found.left or any(not row.at_end for row in before)):
            raise found.mismatch(name, found.of(Match.DONE, Match.PARTLY), _STATE)
        return found

    def _check_state(self, found: Reconciliation, batch_id: int, name: str) -> None:
        """Refuse the first batch of a query with state behind a hole, such as of a seed: its state is empty.

        Raises:
            CheckpointMismatch: nothing says that the query may begin with empty state.
        """
        behind = found.of(Match.HOLE, Match.UNKNOWN)
        if behind and self._asked.stateful and batch_id == 0 and self._asked.on_mismatch.state != "empty":
            raise found.mismatch(name, behind, FOLLOW_EMPTY)

    def _compared(self, ledger: Ledger, ranges: tuple[OffsetRange, ...], number: QueryBatch | None) -> Reconciliation:
        return reconcile(ledger.snapshot.positions, ranges, number, ledger.snapshot.queries)

    def _number(self, ledger: Ledger, batch_id: int) -> QueryBatch:
        """Return the query's number of the batch, so that batches without records are known too; begin the count."""
        query = check_query(self._log.query_id() if self._log is not None else "")
        if batch_id == 0 and query not in ledger.snapshot.queries:
            ledger.place({}, reason="new query", queries={query: 0})
        return QueryBatch(query, batch_id)

    def _check_uncut(self, delivery: Delivery, batch: Batch) -> None:
        """Check that no log was cut since its position was stored, and store the leader epochs of now.

        Raises:
            RangeGone: a log was cut.
        """
        cluster, positions = delivery.asked.cluster, delivery.ledger.snapshot.positions
        known = {r.topic_partition: positions[r.topic_partition] for r in batch.ranges}

        def told(offset: int) -> str:
            return (
                f"before the position {offset}. Nothing was written. Start again: the plan has the partitions, and "
                "Policies(cut=…) the ways to go on"
            )

        bounds = delivery.asked.pace.patiently(BrokerUnavailable, lambda: led_since(cluster, known, told))
        anew = {tp: known[tp]._replace(leader_epoch=here.leader_epoch) for tp, here in bounds.items()}
        if anew:
            delivery.ledger.place(anew, reason="leader epochs")

    def _batch(self, delivery: Delivery, found: Reconciliation, batch_id: int, watermark_ms: int | None) -> Batch:
        ledger = delivery.ledger
        at = watermark_ms if found.query else None  # the state of others is not in the ledger's hands
        pending, batch = ledger.snapshot.pending, ledger.batch(found.rest, found.query, at)
        if pending is not None:
            asked, positions = self._asked.run, ledger.snapshot.positions
            policies, outputs = asked.subscription.policies, delivery.outputs.names
            planned = f"batch {batch_id} of {self._asked.place}"
            when_planned(
                Situation(pending, positions, (), asked.guarantee, policies, outputs, planned=batch, called=planned)
            )
        return replace(batch, retry=pending is not None)

    def _missing(self, frame: DataFrame, found: Reconciliation, batch_id: int) -> DataFrame:
        """Return the rows that were not processed before."""
        if not found.done:
            return frame
        lacking = {"topic", "partition", "offset"} - set(frame.columns)
        if lacking:
            rows, names = found.of(Match.DONE, Match.PARTLY), ", ".join(sorted(lacking))
            remedy = f"The rows that are already done cannot be recognised: the frame has no {names}. {_STATE}"
            raise found.mismatch(f"batch {batch_id}", rows, remedy)
        return self._asked.rows_from(frame, found.done)


class _Release:
    """The release of the client. It is pickled first, so the server refuses another one before it restores settings.

    These are restored by their fields' positions, so what another release calls a limit may be something else here.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _check_release, (_release(),)


def _check_release(client: str) -> None:
    """Check, on the server, that the client has the same release.

    Raises:
        SettingsError: it has another one.
    """
    if client != _release():
        raise SettingsError(
            f"the client has offsetkeeper {client}, and the Python of Spark Connect's server {_release()}: install the "
            "same release in both"
        )


def _restored(_: None, asked: QueryRun, start: StreamStart, owner_id: str) -> ForeachBatch:
    return ForeachBatch(asked, start, owner_id)


def _release() -> str:
    found: str = sys.modules["offsetkeeper"].__version__  # it imports this module, so it cannot be imported here
    return found


def _leave_to_the_server(frame: DataFrame) -> None:
    """Prevent PySpark from asking Spark Connect's server to drop a batch's frame: the server does that by itself.

    PySpark 4.2 asks in the frame's destructor. That call sometimes never returns, and then blocks the query.
    """
    plan: Any = getattr(frame, "_plan", None)
    if hasattr(plan, "_relation_id"):
        plan._relation_id = None  # noqa: SLF001 - the destructor reads it
