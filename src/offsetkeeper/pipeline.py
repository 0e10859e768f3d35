"""A pipeline: one consumer group that reads topics with Spark and keeps its offsets in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Batch, Guarantee, OffsetRange, TopicPartition, check_group, check_offset
from offsetkeeper.core.plan import Plan, Policies
from offsetkeeper.core.store import Store, check_writable
from offsetkeeper.core.topics import Excluded, Topics, Wanted
from offsetkeeper.engines.checkpoint_match import OnMismatch
from offsetkeeper.engines.direct import Direct, Progress, Summary, Until
from offsetkeeper.engines.progress import QueryProgress
from offsetkeeper.engines.run import Pace, QueryRun, Run, Stop, stop_on_signals, telling_spark_gone
from offsetkeeper.engines.structured import Query, Stream, Trigger, open_stream, start_query
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
    """Reads topics for a consumer group, batch by batch, and keeps what was processed in a store.

    Args:
        group: the consumer group; one run at a time works for it, a newer one fences the older.
        store: URL of the store, such as `sqlite:///offsets.db`, or a `Store` of your own.
        brokers: `host:port,host:port`.
        topics: names of the topics to read; numbers of partitions by name, such as {"orders": [0, 1]}, to read only
            these; or a pattern, such as re.compile("orders-.*"), that the whole name of a topic must match.
        exclude: names, or a pattern of names, that the pattern is not to find.
        start: where a topic begins that was never read: "earliest", "latest", a datetime with a time zone, or
            offsets by `TopicPartition`.
        policies: what to do where a stored position cannot be resumed; stops by default.
        kafka: settings of librdkafka (security.protocol, sasl.*, ssl.*), and ours (offsetkeeper.token.*,
            offsetkeeper.rack.env, see docs/running.md); never shown.
        isolation: "read_committed" leaves out records of aborted transactions, and waits for open ones;
            "read_uncommitted" reads all records.
        reader: "packed", needs no jar; "connector", Spark's own; "auto", the packed one, but for queries where Spark
            is older than 4.2 or the connector has begun the checkpoint.
        headers: whether frames have the column `headers`.
        split: the most offsets of one partition in one task, or None to keep each partition in one task. With "auto" a
            partition with far more records than the others is read by several tasks where all sinks take rows in any
            order, as all do but `Topic` and functions.
        max_records: the most offsets in one batch.
        max_records_per_topic: the same for single topics, by name.
        max_bytes: about the most bytes of keys, values and headers in one batch.
        min_records: the fewest offsets in one batch, unless the first of them has waited for `max_delay_s`.
        max_delay_s: seconds that offsets wait for `min_records`.
        interval_s: seconds from the start of one batch to the start of the next. Without, a batch starts as soon as
            there is something to read.
        poll_interval_s: seconds between two looks at Kafka while there is nothing to read.
        attempts: how often a failing batch is tried, each time with the same ranges.
        retry_timeout_s: seconds that brokers or the store may be away before a run ends.
        stall_s: seconds that a task waits for the next record of a batch, before the batch fails.
        log_ranges: log `topic partition start end` for each range, to the logger `offsetkeeper.ranges`.
        dead_letters: where records go that fail, with `Policies(poison="quarantine")`: a sink, or a function of
            (frame, batch). See docs/sinks.md.

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
        self._pace = Pace(limits, interval_s, poll_interval_s, attempts, retry_timeout_s, log_ranges=log_ranges)
        if not isinstance(kafka, Mapping | None):
            raise SettingsError("kafka: give librdkafka's settings as a dict of texts")  # not shown: may hold a secret
        self._cluster = KafkaCluster(brokers, kafka or {}, isolation=isolation, timeout_s=min(30.0, retry_timeout_s))
        self._reader = open_reader(
            reader,
            brokers=brokers,
            options=kafka or {},
            isolation=isolation,
            headers=headers,
            split=None if split == "auto" else split,
            stall_s=stall_s,
            group=group,
        )
        self._cuts = split == "auto"
        self._dead_letters = None if dead_letters is None else Outputs.dead_letters(dead_letters)
        if (self._dead_letters is None) is (self._subscription.policies.poison == "quarantine"):
            raise SettingsError("give both or neither: Policies(poison='quarantine') and dead_letters=…")
        self._stop = Stop()

    def __repr__(self) -> str:
        return f"Pipeline(group={self.group!r}, topics=[{self._subscription.topics}], store={self.store.address})"

    def plan(self, *, offsets: Mapping[TopicPartition, int] | None = None) -> Plan:
        """Return where a run would start now, and why; nothing is changed and no run is disturbed.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized, StoreUnavailable, CorruptStore: see `errors`.
        """
        given = check_offsets(offsets or {}, self._subscription.topics)
        with closing(self.store):
            stored = self._ledger().load()
            return ask_plan(self._cluster, self._subscription, self.group, stored.positions, given)

    def lag(self) -> Lags:
        """Return how far the group is behind in each partition of its topics; no run is disturbed.

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
        """Read, process and commit batch after batch, until a signal, `stop`, or all that was there is done.

        Args:
            spark: the session; classic or Connect.
            process: called with (DataFrame, Batch) for each batch. Without a sink it writes the output by itself;
                with one it returns the DataFrame that goes into the sink, with `Outputs` also a dict of them by name.
            sink: where the output goes, from `offsetkeeper.sinks`.
            guarantee: what is asked for; a sink which can keep more does so, one that cannot is refused at start.
            until: "stopped" runs for ever; "caught_up" ends when everything Kafka held at the start is committed.
            offsets: offsets by hand for some partitions, set at this start whatever the store says.
            on_batch: called after each commit.

        Raises:
            StartRefused: a partition's position cannot be resumed and its policy says stop.
            Fenced: another run has taken the group.
            GuaranteeRefused: store, sink or function cannot keep the guarantee.
            SparkGone: Spark has died; what was committed stays committed, and the next run goes on from there.
            Exception: what `process` raised at its last attempt, with the ranges noted on it.
        """
        engine = self._engine(spark, process, sink, guarantee, offsets)
        engine.until = until
        engine.on_batch = on_batch or engine.on_batch
        try:
            with closing(self.store), stop_on_signals(self._stop), telling_spark_gone():
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
        """Start a query of Structured Streaming, of which each batch is committed in the store.

        Args:
            spark: the session; classic or Connect.
            process: as in `run`, with the batch's exact ranges; the frame is what `query` makes of the records.
            checkpoint: folder in which Spark keeps the query's progress and state.
            query: makes a streaming frame of the records' one: whatever needs state (aggregation, watermark,
                de-duplication, a join) goes here. Without it the frames are the records themselves.
            sink: as in `run`.
            guarantee: as in `run`.
            trigger: as for Spark: `{"processingTime": "10 seconds"}` or `{"availableNow": True}`.
            offsets: as in `run`.
            on_mismatch: what to do where ledger and checkpoint differ and only you can judge; stops by default.
            publish: put the offsets into Kafka's consumer group too, for the tools that look there: after each batch,
                and now and then while none comes.
            output_mode: as for Spark.
            name: of the query, as for Spark.
            on_progress: called after each batch with what Spark tells of it, from a thread of its own; for people who
                watch the query. What it raises is logged.

        Raises:
            StartRefused: a partition's position cannot be resumed and its policy says stop.
            GuaranteeRefused: store, sink or function cannot keep the guarantee.
            CheckpointMismatch: the query needs state, and its checkpoint is empty though the group has read before.
            SparkTooOld: reader="packed" needs Spark 4.2 for a query; nothing was touched.
            MissingExtra: the connector is needed, and the session has not got it; nothing was touched.
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
        """Return the two pieces of a query of your own: a streaming frame, and a function for its `foreachBatch`.

        The query must have this checkpoint. See `start` for the rest.

        Raises:
            StartRefused, GuaranteeRefused, CheckpointMismatch, SparkTooOld, MissingExtra, SparkGone: see `start`.
        """
        engine = self._engine(spark, process, sink, guarantee, offsets)
        asked = QueryRun(engine.asked, checkpoint, True, on_mismatch or OnMismatch(), publish)  # noqa: FBT003 - it may have state
        with telling_spark_gone():
            return open_stream(engine, asked)

    def read(self, spark: SparkSession, ranges: Iterable[OffsetRange]) -> DataFrame:
        """Return the records of exactly these ranges; no offsets are touched and no run is disturbed. For replays.

        Raises:
            SettingsError: a range is none, or of another topic.
            RangeGone: Kafka does not hold a range any more.
            ReadStalled: a range ends past the end of its partition, or in a transaction that is still open.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `errors`.
            Exception: at an action on the frame Spark raises an error of its own, with ours in its text:
                `reading_error` finds it. Such as RangeGone, where a topic was made again meanwhile.
        """
        wanted = tuple(sorted(map(check_range, ranges)))
        for r in wanted:
            check_offsets({r.topic_partition: r.start}, self._subscription.topics)
            if check_offset(r.end) < r.start:
                raise SettingsError(f"the range '{r}' runs backwards")
        filled = tuple(r for r in wanted if r.size)
        ids = self._cluster.topic_ids({r.topic for r in filled}, required=True)
        if not isinstance(self._reader, ConnectorReader):  # which asks by itself, at each read
            check_ranges(self._cluster, filled)
        return self._reader.read(spark, filled, ids)

    def stop(self) -> None:
        """Let the batch under way finish and end the run, or the next one if none has begun; for any thread."""
        self._stop.set()

    def _engine(
        self,
        spark: SparkSession,
        process: Process | None,
        sink: Sink | Outputs | None,
        guarantee: Guarantee | str,
        offsets: Mapping[TopicPartition, int] | None,
    ) -> Direct:
        output = process if sink is None else sink
        if output is None:
            raise SettingsError("nothing to do with the records: give a function, a sink, or both")
        check_writable(self.store)
        outputs = Outputs.of(output)
        asked = Run(
            group=self.group,
            store_url=self._url,
            cluster=self._cluster,
            subscription=self._subscription,
            reader=self._reader.in_any_order() if self._cuts and outputs.any_order else self._reader,
            outputs=outputs,
            process=process if sink is not None else None,
            guarantee=_guarantee(guarantee),
            pace=self._pace,
            given=check_offsets(offsets or {}, self._subscription.topics),
            dead_letters=self._dead_letters,
        )
        return Direct(spark, asked, self._ledger(), self._stop)

    def _ledger(self) -> Ledger:
        return Ledger(self.store, self.group, retry_timeout_s=self._pace.retry_timeout_s)


def _guarantee(name: Guarantee | str) -> Guarantee:
    try:
        return Guarantee(name)
    except ValueError:
        known = ", ".join(repr(str(g)) for g in Guarantee)
        raise SettingsError(f"guarantee={name!r}: use one of {known}") from None
