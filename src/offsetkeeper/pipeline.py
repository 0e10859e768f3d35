"""A pipeline: one consumer group that reads topics with Spark and keeps its offsets in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.cluster import Isolation, cluster_id_of, topic_ids_of
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee, check_group
from offsetkeeper.core.offsets import OffsetRange, TopicPartition, check_offset
from offsetkeeper.core.plan import Plan, Policies
from offsetkeeper.core.store import Store, check_writable
from offsetkeeper.core.topics import Excluded, Topics, Wanted
from offsetkeeper.core.trace import Who, ending
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.engines.loop import Loop, Progress, Summary, Until
from offsetkeeper.engines.progress import QueryProgress
from offsetkeeper.engines.query import Query, Stream, Trigger, open_stream, start_query
from offsetkeeper.engines.settings import Pace, QueryRun, Run
from offsetkeeper.engines.stop import Stop, stop_on_signals, telling_spark_gone
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.start_plan import Start, Subscription, ask_plan, check_offsets
from offsetkeeper.operate.lag import Lags, group_lag
from offsetkeeper.readers import ConnectorReader, open_reader
from offsetkeeper.readers.check import check_ranges
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.ranges import check_range
from offsetkeeper.sinks import Outputs, Sink
from offsetkeeper.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Process = Callable[[DataFrame, Batch], object]


class Pipeline:
    """Reads topics for a consumer group, batch by batch, and keeps the processed offsets in a store.

    Args:
        group: name of the consumer group, as in Kafka (`group.id`). One run at a time works for it; a newer run fences
            the older one. A run does not join the group in Kafka.
        store: URL of the store, such as `sqlite:///offsets.db`, or a `Store` of your own.
        brokers: `host:port,host:port`.
        topics: names of the topics to read; or partitions by topic name, such as {"orders": [0, 1]}, to read only
            these; or a pattern, such as re.compile("orders-.*"), that must match the whole name of a topic.
        exclude: topics that the pattern must not include: names, or another pattern.
        start: where to start a topic that was never read: "earliest", "latest", a datetime with a time zone, or
            offsets by `TopicPartition`.
        policies: what to do if a stored position cannot be resumed. By default the start is refused.
        kafka: settings of librdkafka (security.protocol, sasl.*, ssl.*), and ours (offsetkeeper.token.*,
            offsetkeeper.rack.env, offsetkeeper.native, see docs/running.md). Values are never shown.
        isolation: "read_committed" skips records of aborted transactions and waits for open transactions;
            "read_uncommitted" reads all records.
        reader: "packed" needs no jar. "connector" is Spark's own Kafka source. "auto" is the packed reader; but the
            connector for queries if Spark is older than 4.2, or if the connector has begun the checkpoint.
        headers: whether frames have the column `headers`.
        split: the most offsets of one partition in one task; None keeps each partition in one task. With "auto",
            several tasks read a partition with far more records than the others, if all sinks accept rows in any
            order; `Topic` and functions do not.
        max_records: the most offsets in one batch.
        max_records_per_topic: the most offsets of a topic in one batch, by topic name.
        max_bytes: the approximate limit of bytes of keys, values and headers in one batch.
        min_records: the fewest offsets in one batch, unless the first of them has waited for `max_delay_s`.
        max_delay_s: seconds that offsets wait for `min_records`.
        interval_s: seconds from the start of one batch to the start of the next. Without it, a batch starts as soon
            as there are records to read.
        poll_interval_s: seconds between two polls of Kafka while there are no records to read.
        attempts: how often a failing batch is tried, each time with the same ranges.
        retry_timeout_s: seconds that brokers or the store may be unavailable before a run ends.
        stall_s: seconds that a task waits for the next record of a batch before the batch fails. A task of the packed
            reader waits on while it fetches records of aborted transactions, which it passes over.
        log_ranges: log `topic partition start end` for each range, to the logger `offsetkeeper.ranges`.
        dead_letters: the output for records that fail, with `Policies(poison="quarantine")`: a sink, or a function
            of (frame, batch). See docs/sinks.md.

    Raises:
        SettingsError: a setting is wrong; nothing was touched.
        TokenUnavailable: the token provider failed; nothing was touched.
    """

    def __init__(
        self,
        *,
        group: str,
        store: str | Store,
        brokers: str,
        topics: Wanted,
        exclude: Excluded | None = None,
        start: Start = "earliest",
        policies: Policies | None = None,
        kafka: Mapping[str, str] | None = None,
        isolation: Isolation = "read_committed",
        reader: str = "auto",
        headers: bool = False,
        split: int | Literal["auto"] | None = "auto",
        max_records: int | None = None,
        max_records_per_topic: Mapping[str, int] | None = None,
        max_bytes: int | None = None,
        min_records: int | None = None,
        max_delay_s: float | None = None,
        interval_s: float | None = None,
        poll_interval_s: float = 1.0,
        attempts: int = 3,
        retry_timeout_s: float = 60.0,
        stall_s: float = 60.0,
        log_ranges: bool = False,
        dead_letters: Sink | Process | None = None,
    ) -> None:

        self.group = check_group(group)
        self.store = store if isinstance(store, Store) else open_store(store)
        self._url = None if isinstance(store, Store) else store
        policies = Policies() if policies is None else policies
        self._subscription = Subscription(Topics.of(topics, exclude), start, policies)
        limits = Limits(max_records, max_records_per_topic or {}, max_bytes, min_records, max_delay_s)
        if unread := sorted(topic for topic in limits.max_records_per_topic if topic not in self._subscription.topics):
            raise SettingsError(f"max_records_per_topic names {unread[0]!r}, which is not read: check the name")
        self._pace = Pace(limits, interval_s, poll_interval_s, attempts, retry_timeout_s, log_ranges=log_ranges)
        if not isinstance(kafka, Mapping | None):
            raise SettingsError("kafka: give librdkafka's settings as a dict of texts")  # may be secret
        self._cluster = KafkaCluster(brokers, kafka or {}, isolation=isolation, timeout_s=min(30.0, retry_timeout_s))
        self._reader = open_reader(reader, self._cluster, group=group, headers=headers, split=split, stall_s=stall_s)
        self._dead_letters = None if dead_letters is None else Outputs.dead_letters(dead_letters)
        if (self._dead_letters is None) is (self._subscription.policies.poison == "quarantine"):
            raise SettingsError("Policies(poison='quarantine') and dead_letters=… go together: give both or neither")
        self._stop = Stop()

    def __repr__(self) -> str:
        return f"Pipeline(group={self.group!r}, topics=[{self._subscription.topics}], store={self.store.address})"

    def plan(self, *, offsets: Mapping[TopicPartition, int] | None = None) -> Plan:
        """Return where a run would start now, and why. Nothing changes, and no run is disturbed.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized, StoreUnavailable, CorruptStore: see `errors`.
        """
        given = check_offsets(offsets or {}, self._subscription.topics)
        with closing(self.store):
            return ask_plan(self._cluster, self._subscription, self._ledger().load(), given)

    def lag(self) -> Lags:
        """Return the lag of the group in each partition of its topics. No run is disturbed.

        Raises:
            BrokerUnavailable, NotAuthorized, StoreUnavailable, CorruptStore: see `errors`.
        """
        with closing(self.store):
            return group_lag(self._ledger().load(), self._cluster)

    def run(
        self,
        spark: SparkSession,
        process: Process | None = None,
        *,
        sink: Sink | Outputs | None = None,
        guarantee: Guarantee | str = Guarantee.AT_LEAST_ONCE,
        until: Until = "stopped",
        offsets: Mapping[TopicPartition, int] | None = None,
        on_batch: Callable[[Progress], None] | None = None,
    ) -> Summary:
        """Read, process and commit batch after batch, until a signal, a call of `stop`, or the end that `until` sets.

        Args:
            spark: the session; classic or Connect.
            process: called with (DataFrame, Batch) for each batch. Without a sink, it writes the output itself. With a
                sink, it returns the DataFrame for the sink; with `Outputs`, it may return a dict of frames by name.
            sink: the output, from `offsetkeeper.sinks`.
            guarantee: the guarantee to keep. A sink that keeps more does so; a sink that keeps less is refused.
            until: "stopped" runs for ever; "caught_up" ends when everything that Kafka held at the start is committed.
            offsets: start offsets for some partitions; at this start they replace the stored positions.
            on_batch: called after each commit, also that of a batch of the run before that counts as done.

        Raises:
            StartRefused: a partition's position cannot be resumed, and its policy says stop.
            Fenced: another run has taken the group.
            GuaranteeRefused: store, sink or function cannot keep the guarantee.
            SparkGone: Spark has died; committed batches stay committed, and the next run resumes after them.
            Exception: the error that `process` raised at its last attempt, with the ranges as a note.
        """
        engine = self._engine(spark, process, sink, guarantee, offsets)
        engine.until = until
        engine.on_batch = on_batch or engine.on_batch

        def who() -> Who:
            return engine.ledger.who

        try:
            with closing(self.store), stop_on_signals(self._stop), telling_spark_gone(), ending(who):
                return engine.run()
        finally:
            self._stop.clear()

    def start(
        self,
        spark: SparkSession,
        process: Process | None = None,
        *,
        checkpoint: str,
        query: Callable[[DataFrame], DataFrame] | None = None,
        sink: Sink | Outputs | None = None,
        guarantee: Guarantee | str = Guarantee.AT_LEAST_ONCE,
        trigger: Trigger | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
        on_mismatch: OnMismatch | None = None,
        publish: bool = False,
        output_mode: str = "append",
        name: str | None = None,
        on_progress: Callable[[QueryProgress], None] | None = None,
    ) -> Query:
        """Start a query of Structured Streaming and commit each of its batches in the store.

        Args:
            spark: the session; classic or Connect.
            process: as in `run`, with the batch's exact ranges; the frame is the result of `query`.
            checkpoint: folder in which Spark keeps the query's progress and state.
            query: turns the streaming frame of records into another streaming frame. Operations with state
                (aggregation, watermark, de-duplication, join) go here. Without it, the frames have the records.
            sink: as in `run`.
            guarantee: as in `run`.
            trigger: as for Spark: `{"processingTime": "10 seconds"}` or `{"availableNow": True}`.
            offsets: as in `run`.
            on_mismatch: what to do if ledger and checkpoint differ and only you can decide. By default the query stops.
            publish: also commit the offsets to Kafka's consumer group, for tools that read them there: after each
                batch, and from time to time while no batch comes.
            output_mode: as for Spark.
            name: name of the query, as for Spark.
            on_progress: called after each batch with Spark's progress of the query, from its own thread; for
                monitoring. Errors that it raises are logged.

        Raises:
            StartRefused: a partition's position cannot be resumed, and its policy says stop.
            GuaranteeRefused: store, sink or function cannot keep the guarantee.
            CheckpointMismatch: ledger and checkpoint differ; or the query has state, its checkpoint has none, and the
                group has positions that this query has not committed. A query with `query=` counts as one with state.
            SparkTooOld: reader="packed" needs Spark 4.2 for a query; nothing was touched.
            MissingExtra: the connector is needed, but the session does not have it; nothing was touched.
            SparkGone: Spark has died.
        """
        engine = self._engine(spark, process, sink, guarantee, offsets)
        asked = QueryRun(engine.asked, checkpoint, query is not None, on_mismatch or OnMismatch(), publish)
        with telling_spark_gone():
            return start_query(engine, asked, query, trigger, output_mode, name, on_progress)

    def stream(
        self,
        spark: SparkSession,
        process: Process | None = None,
        *,
        checkpoint: str,
        sink: Sink | Outputs | None = None,
        guarantee: Guarantee | str = Guarantee.AT_LEAST_ONCE,
        offsets: Mapping[TopicPartition, int] | None = None,
        on_mismatch: OnMismatch | None = None,
        publish: bool = False,
    ) -> Stream:
        """Return the two parts for your own query: a streaming frame, and a function for its `foreachBatch`.

        The query must use this checkpoint. The other arguments are those of `start`.

        Raises:
            StartRefused, GuaranteeRefused, CheckpointMismatch, SparkTooOld, MissingExtra, SparkGone: see `start`.
        """
        engine = self._engine(spark, process, sink, guarantee, offsets)
        asked = QueryRun(engine.asked, checkpoint, True, on_mismatch or OnMismatch(), publish)  # noqa: FBT003 - it may have state
        with telling_spark_gone():
            return open_stream(engine, asked)

    def read(self, spark: SparkSession, ranges: Iterable[OffsetRange]) -> DataFrame:
        """Return the records of exactly these ranges, for example for a replay. No offset and no run is touched.

        Raises:
            SettingsError: a range is wrong, or is of another topic.
            RangeGone: Kafka no longer holds a range.
            ReadStalled: a range ends past the end of its partition, or in a transaction that is still open.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `errors`.
            Exception: an action on the frame raises an error of Spark whose text contains ours, such as RangeGone if a
                topic was created again meanwhile. `reading_error` finds it.
        """
        wanted = tuple(sorted(map(check_range, ranges)))
        for r in wanted:
            check_offsets({r.topic_partition: r.start}, self._subscription.topics)
            if check_offset(r.end) < r.start:
                raise SettingsError(f"the range '{r}' runs backwards")
        filled = tuple(r for r in wanted if r.size)
        found = self._cluster.describe({r.topic for r in filled}, required=True)
        if not isinstance(self._reader, ConnectorReader):  # the connector checks by itself, at each read
            check_ranges(self._cluster, filled)
        return self._reader.read(spark, filled, topic_ids_of(found), cluster_id_of(found))

    def stop(self) -> None:
        """End the run after its current batch. If no run has begun, end the next one. Any thread may call this."""
        self._stop.set()

    def _engine(
        self,
        spark: SparkSession,
        process: Process | None,
        sink: Sink | Outputs | None,
        guarantee: Guarantee | str,
        offsets: Mapping[TopicPartition, int] | None,
    ) -> Loop:
        output = process if sink is None else sink
        if output is None:
            raise SettingsError("no output for the records: give a function, a sink, or both")
        check_writable(self.store)
        topics, letters = self._subscription.topics, self._dead_letters
        outputs = Outputs.of(output).for_reader_of(self._cluster, topics)
        asked = Run(
            group=self.group,
            store_url=self._url,
            cluster=self._cluster,
            subscription=self._subscription,
            reader=self._reader.in_any_order() if outputs.any_order else self._reader,
            outputs=outputs,
            process=process if sink is not None else None,
            guarantee=_guarantee(guarantee),
            pace=self._pace,
            given=check_offsets(offsets or {}, self._subscription.topics),
            dead_letters=None if letters is None else letters.for_reader_of(self._cluster, topics),
        )
        return Loop(spark, asked, self._ledger(), self._stop)

    def _ledger(self) -> Ledger:
        return Ledger(self.store, self.group, retry_timeout_s=self._pace.retry_timeout_s)


def _guarantee(name: Guarantee | str) -> Guarantee:
    try:
        return Guarantee(name)
    except ValueError:
        known = ", ".join(repr(str(g)) for g in Guarantee)
        raise SettingsError(f"guarantee={name!r}: use one of {known}") from None
