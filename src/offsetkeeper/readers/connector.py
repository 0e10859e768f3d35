"""The connector reader: Spark's own Kafka connector, with explicit offsets and shorter waits.

Source of its options: Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import NO_LEADER_EPOCHS
from offsetkeeper.core.offsets import by_topic
from offsetkeeper.core.spark_session import is_connect, not_at_debug, unlogged
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.kafka import KafkaCluster, java_options
from offsetkeeper.kafka.java import literal_secrets
from offsetkeeper.kafka.own_settings import JAVA
from offsetkeeper.kafka.topic_ids import NO_IDS
from offsetkeeper.readers.check import check_ranges
from offsetkeeper.readers.consume import rounds
from offsetkeeper.readers.ranges import tidy
from offsetkeeper.readers.releases import connector_package, packed_streams, spark_version
from offsetkeeper.readers.sample import sample
from offsetkeeper.readers.subscription import query_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from offsetkeeper.core.offsets import OffsetRange, TopicPartition
    from offsetkeeper.readers.source import Source
    from offsetkeeper.readers.streaming import StreamStart

# The connector asks for a partition's bounds after each poll, and that request waits behind the consumer's own fetch,
# for 500 ms by default, wherever a range ends where the partition ends.
_TUNING = {"fetch.max.wait.ms": "5"}
# At DEBUG they log all settings of their clients, and hide only those that Spark knows to be secret.
_LOGGING = [f"org.apache.spark.sql.kafka010.{name}Strategy" for name in ("Assign", "Subscribe", "SubscribePattern")]


class ConnectorReader:
    """Reads exact ranges with Spark's own Kafka connector: one task and one consumer for each partition.

    The session must have the connector's jars. The ranges are first checked against Kafka, because the connector would
    wait for missing records until its timeout.

    Args:
        source: the brokers, and how to read the records.
        split: the most offsets for one task; larger ranges are cut. Otherwise each range is one task.

    Raises:
        SettingsError: an option cannot be translated for the connector, or librdkafka does not know it.
    """

    def __init__(self, source: Source, *, split: int | Literal["auto"] | None = None) -> None:
        self._source = source
        self._split = split
        self._java = _TUNING | java_options(source.options)
        # Executors cache consumers by group. They refuse a consumer whose settings differ from the cached one, with an
        # error that shows all settings, also secrets. So each reader has its own group. It stays for all batches, until
        # a log is another one: for minutes executors keep and give what they fetched ahead, whatever Kafka holds then.
        self._group = self._another_group()
        self._logs: dict[TopicPartition, tuple[str | None, str | None, int | None]] = {}  # what they were known by

    def read(
        self,
        spark: SparkSession,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str] = NO_IDS,
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,
    ) -> DataFrame:
        """Return a frame of exactly the records in `ranges`. They are read again each time the frame is used.

        Args: see `Reader.read`.

        Raises:
            SettingsError: two ranges overlap, or a range is not valid; or Spark Connect would show a secret.
            MissingExtra: the session has not got the connector.
            RangeGone: Kafka no longer holds the beginning of a range, a topic has another id, or is in another cluster.
            ReadStalled: a range ends past the end of its partition, or in a transaction that is still open.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `offsetkeeper.errors`.
        """
        from pyspark.sql.functions import expr  # noqa: PLC0415 - `import offsetkeeper` must not load it

        wanted = tidy(ranges)
        with self._connected() as cluster:
            check_ranges(cluster, wanted, topic_ids, cluster_id)
        if not wanted:
            return spark.createDataFrame([], self._source.columns)
        tps = [each.topic_partition for each in wanted]
        self._leave_other_logs({tp: (topic_ids.get(tp.topic), cluster_id, leader_epochs.get(tp)) for tp in tps})
        self._keep_secrets(spark)
        with unlogged():
            readers = [spark.read.format("kafka").options(**self._options(some)) for some in rounds(wanted)]
        frames = [self._loaded(spark, reader, streams=False) for reader in readers]
        frame = reduce(lambda one, other: one.union(other), frames)
        return frame.withColumn("timestamp", expr("unix_millis(timestamp)")) if self._source.raw_times else frame

    def for_query(
        self,
        spark: SparkSession,
        start: StreamStart,
        connector_began: Callable[[], bool],  # noqa: ARG002 - the protocol's signature
    ) -> ConnectorReader:
        """See `Reader.for_query`.

        Raises:
            SettingsError: the connector does not support these settings, or Spark Connect would show a secret.
            MissingExtra: the session has not got the connector.
        """
        query_options(start)
        self._streaming(spark, {"subscribe": self._group})  # no broker is asked
        return type(self)(self._source, split=self._split)  # its consumers have fetched nothing

    def in_any_order(self) -> ConnectorReader:
        """See `Reader.in_any_order`. Spark's connector cuts partitions only by a number."""
        return self

    def bare(self) -> ConnectorReader:
        """See `Reader.bare`."""
        return type(self)(replace(self._source, headers=False, raw_times=True), split=self._split)

    def sample(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `Reader.sample`."""
        return sample(self._source, offsets)

    def stream(self, spark: SparkSession, start: StreamStart) -> DataFrame:
        """See `Reader.stream`. A new query starts exactly at the positions: Spark writes them into its checkpoint.

        Raises:
            SettingsError, MissingExtra: see `for_query`.
        """
        begin = {tp: at.offset for tp, at in start.positions.items() if start.topics.covers(tp)}
        options = query_options(start) | {"startingOffsets": json.dumps(by_topic(begin))}
        return self._streaming(spark, options)

    def __repr__(self) -> str:
        return f"ConnectorReader({self._source!r}, split={self._split})"

    def _connected(self) -> KafkaCluster:
        """Return a client that connects now, as executors may do: their consumers cannot be asked where they are."""
        source = self._source
        return KafkaCluster(source.brokers, source.options, isolation=source.isolation)

    def _another_group(self) -> str:
        return f"{self._source.group}-{environment.token(4)}"

    def _leave_other_logs(self, logs: Mapping[TopicPartition, tuple[str | None, str | None, int | None]]) -> None:
        """Take other consumers if a partition has another topic id, cluster or leader epoch than when it was read last.

        What the old ones fetched ahead may be of a log that was cut since, or of another topic.
        """
        if any(self._logs.get(tp, log) != log for tp, log in logs.items()):
            self._group = self._another_group()
            self._logs.clear()
        self._logs |= logs

    def _keep_secrets(self, spark: SparkSession) -> None:
        """Keep secrets out of Spark's logs, and from Spark Connect.

        Raises:
            SettingsError: there is one. The server shows what the connector gets on its page and in its event log.
        """
        secrets = literal_secrets(self._java)
        if secrets and is_connect(spark):
            raise SettingsError(
                f"the server of Spark Connect would show {' and '.join(secrets)} on its page and in its event log: use "
                f"reader='packed', or let the server's Kafka client read it from a file, by {JAVA}config.providers"
            )
        if secrets:
            not_at_debug(spark, _LOGGING)

    def _streaming(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        self._keep_secrets(spark)
        with unlogged():
            reader = spark.readStream.format("kafka").options(**options, **self._common())
        return self._loaded(spark, reader, streams=True)

    def _loaded(self, spark: SparkSession, reader: DataFrameReader | DataStreamReader, *, streams: bool) -> DataFrame:
        try:
            frame = reader.load()
            frame.columns  # noqa: B018 - Spark Connect resolves the frame only now
        except Exception as error:
            if "Failed to find data source: kafka" not in str(error):
                raise
            told = f"this Spark session has no Kafka connector: add {connector_package(spark.version)} to "
            told += "spark.jars.packages"
            if not streams or packed_streams(spark_version(spark)):
                told += ", or use reader='packed', which needs no jar"
            raise MissingExtra(told) from None
        return frame

    def _options(self, ranges: Sequence[OffsetRange]) -> dict[str, str]:
        """Return the options to read `ranges`, at most one for each partition: the connector supports only one."""
        starts = by_topic({r.topic_partition: r.start for r in ranges})
        options = {
            "assign": json.dumps({topic: [*map(int, partitions)] for topic, partitions in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(by_topic({r.topic_partition: r.end for r in ranges})),
        }
        return options | self._common()

    def _common(self) -> dict[str, str]:
        source = self._source
        options = {
            "includeHeaders": str(source.headers).lower(),
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(int(source.stall_s * 1000)),
        }
        kafka = {
            "bootstrap.servers": source.brokers,
            "group.id": self._group,
            "isolation.level": source.isolation,
            "allow.auto.create.topics": "false",
        }
        if isinstance(self._split, int):
            options["maxRecordsPerPartition"] = str(self._split)
        return options | {f"kafka.{name}": value for name, value in (self._java | kafka).items()}
