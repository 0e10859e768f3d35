"""The structured engine: Spark plans the batches and keeps the state, and the ledger is kept in step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.plan import Plan
from offsetkeeper.engines.direct import Direct
from offsetkeeper.engines.each_batch import EachBatch, Work
from offsetkeeper.engines.folder import is_connect
from offsetkeeper.engines.guard import CheckpointGuard
from offsetkeeper.engines.progress import QueryProgress, watch
from offsetkeeper.engines.query import Query, Stream
from offsetkeeper.engines.reconcile import OnMismatch
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.readers import PackedReader, StreamStart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Trigger = Mapping[str, Any]
_TRIGGERS = {"processingTime", "availableNow", "once"}


@dataclass(frozen=True, slots=True)
class Structured:
    """How one query of a pipeline is to run.

    Attributes:
        engine: takes the group, and finishes what an earlier run began.
        store_url: of the ledger, or None where the store was handed over open.
        checkpoint: of the query.
        stateful: whether what Spark remembers between batches goes into the output.
        on_mismatch: what to do where only the user can judge.
        publish: whether to put offsets into Kafka's group too.
    """

    engine: Direct
    store_url: str | None
    checkpoint: str
    stateful: bool
    on_mismatch: OnMismatch
    publish: bool

    def open(self) -> Stream:
        """Take the group, store where the query begins, and return the pieces of the query.

        Raises:
            CheckpointMismatch: the checkpoint does not fit the ledger, see `CheckpointGuard`.
            StartRefused, GuaranteeRefused, SettingsError: see `Pipeline.start`; nothing was changed.
        """
        engine = self.engine
        self._check_settings()
        guard = CheckpointGuard(
            engine.spark,
            engine.ledger,
            self.checkpoint,
            engine.subscription.topics,
            isinstance(engine.reader, PackedReader),
            self.stateful,
            bool(engine.given),
            self.on_mismatch,
        )
        plan = engine.take(guard)
        try:
            return self._stream(plan)
        except BaseException:
            engine.delivery.release()
            raise

    def start(
        self,
        query: Callable[[DataFrame], DataFrame] | None,
        trigger: Trigger | None,
        output_mode: str,
        name: str | None,
        on_progress: Callable[[QueryProgress], None] | None = None,
    ) -> Query:
        """Open the stream and start a query on it.

        Raises:
            SettingsError: the trigger is not one that keeps batches.
            CheckpointMismatch, StartRefused, GuaranteeRefused: see `open`.
        """
        given = dict(trigger or {})
        if not given.keys() <= _TRIGGERS or len(given) > 1:
            raise SettingsError(
                f"trigger={given!r}: use {{'processingTime': '10 seconds'}} or {{'availableNow': True}}; "
                "with other triggers there are no batches to commit"
            )
        stream = self.open()
        watching = None if on_progress is None else watch(self.engine.spark, on_progress)
        try:
            frame = stream.records if query is None else query(stream.records)
            writer = frame.writeStream.foreachBatch(stream.write).outputMode(output_mode)
            writer = writer.option("checkpointLocation", self.checkpoint)
            writer = writer.trigger(**given) if given else writer
            writer = writer.queryName(name) if name else writer
            started = writer.start()
            if watching is not None:
                watching.follow(started)
            return Query(started, stream, watching)
        except BaseException:
            if watching is not None:
                watching.close()
            stream.close()
            raise

    def _check_settings(self) -> None:
        if not isinstance(self.checkpoint, str) or not self.checkpoint:
            raise SettingsError("no checkpoint: give the folder in which Spark keeps the query's progress")
        if not isinstance(self.on_mismatch, OnMismatch):
            raise SettingsError(f"on_mismatch={self.on_mismatch!r}: write OnMismatch(hole='follow'), for example")
        if is_connect(self.engine.spark) and (self.store_url is None or self.store_url.startswith("memory:")):
            raise GuaranteeRefused(
                "with Spark Connect batches are written by another process, which must be able to open the store: give "
                f"the store as a URL, and one that is not in memory, instead of {self.engine.ledger.store.address}"
            )

    def _stream(self, plan: Plan) -> Stream:
        engine = self.engine
        stored = engine.ledger.snapshot.positions
        positions = {row.topic_partition: stored[row.topic_partition] for row in plan.rows if row.start is not None}
        start = StreamStart(engine.subscription.topics, positions, engine.pace.max_records, whole=self.stateful)
        cluster = engine.cluster
        work = Work(
            group=engine.ledger.group,
            store_url=self.store_url,
            owner_id=engine.ledger.owner_id,
            cluster=(cluster.brokers, dict(cluster.options), cluster.isolation, cluster.timeout_s),
            output=engine.delivery.output,
            guarantee=engine.guarantee,
            pace=engine.pace,
            start=start,
            packed=isinstance(engine.reader, PackedReader),
            checkpoint=self.checkpoint,
            stateful=self.stateful,
            on_mismatch=self.on_mismatch,
            publish=self.publish,
        )
        records = engine.reader.stream(engine.spark, start)
        each_batch = EachBatch(work, engine.delivery)
        if not is_connect(engine.spark):
            each_batch.open()
        return Stream(records, each_batch, self.checkpoint, engine.delivery)
