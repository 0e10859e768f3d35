"""Readers: exact ranges of Kafka as Spark frames, with the columns of Spark's own Kafka source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, Protocol

from offsetkeeper.core.bounds import NO_LEADER_EPOCHS
from offsetkeeper.core.executors import error_text, our_error, told_by_java
from offsetkeeper.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAuthorized,
    OffsetkeeperError,
    RangeGone,
    SettingsError,
    UnknownTopic,
)
from offsetkeeper.kafka.topic_ids import NO_IDS
from offsetkeeper.readers.connector import ConnectorReader
from offsetkeeper.readers.packed import AutoReader, PackedReader
from offsetkeeper.readers.source import Source
from offsetkeeper.readers.streaming import StreamStart
from offsetkeeper.readers.unreadable import BAD_TIME, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.core.offsets import OffsetRange, TopicPartition
    from offsetkeeper.kafka import KafkaCluster

__all__ = [
    "AutoReader",
    "ConnectorReader",
    "PackedReader",
    "Reader",
    "Source",
    "StreamStart",
    "open_reader",
    "reading_error",
    "task_error",
]

# Errors of Spark's connector and its Java client, recognised by their text.
_THEIRS = {
    "COULD_NOT_READ_OFFSET_RANGE": RangeGone,
    "OffsetOutOfRangeException": RangeGone,
    "UnknownTopicOrPartitionException": UnknownTopic,
    "UnknownTopicIdException": UnknownTopic,
    "AuthorizationException": NotAuthorized,
    "AuthenticationException": NotAuthorized,
    "org.apache.kafka.common.errors.TimeoutException": BrokerUnavailable,
}
# What Kafka's Java consumer says of a record batch that is damaged. No producer says so.
_CONSUMER = r"(?:\(org\.apache\.kafka\.[\w.$]+\) |(?:org\.apache\.kafka\.[\w.$]+: )+)"
_DAMAGED = (
    re.compile(_CONSUMER + r"Record (?:batch )?for partition (.+)-(\d+) at offset (\d+) is invalid, cause: ([^\r\n]*)"),
    re.compile(_CONSUMER + r"Received exception when fetching the next record from (.+)-(\d+)()\.()"),
)
# What Spark's connector says of a time that Spark's timestamp cannot hold.
_BAD_TIME = re.compile(
    r"org\.apache\.spark\.sql\.kafka010\.\w+: Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value "
    r"(-?\d+) that overflows"
)


class Reader(Protocol):
    """Reads exact ranges."""

    def read(
        self,
        spark: SparkSession,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str] = NO_IDS,
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,
    ) -> DataFrame:
        """Return a frame of exactly the records in `ranges`, whenever and however often it is used.

        Columns: key and value binary, topic string, partition int, offset long, timestamp, timestampType int (0 create
        time, 1 append time) and, if requested, headers array<struct<key:string,value:binary>>.

        Args:
            spark: the session.
            ranges: of offsets.
            topic_ids: the expected ids of topics, as far as known: a topic that was deleted and created again has
                other records at these offsets.
            cluster_id: the expected id of the Kafka cluster, if it is known: a name may lead to another one.
            leader_epochs: the leader epoch of partitions in which Kafka held all of their ranges, as far as known. The
                connector reader only takes other consumers where it is another one.

        Raises:
            SettingsError: two ranges overlap, or a range is not valid.
            RangeGone: a topic has another id, or the cluster has. The packed reader raises it at an action: each task
                checks before its first and before its last record. The connector reader checks in this call, by a
                client that connects now. With the packed reader also: a record has a later leader epoch.
        """
        ...

    def in_any_order(self) -> Reader:
        """Return the reader for outputs that accept rows in any order.

        With split="auto" it may read one large partition by several tasks; else it reads as this one does.
        """
        ...

    def bare(self) -> Reader:
        """Return the reader that gives whatever Kafka holds: without headers, and `timestamp` as Kafka has it.

        That is a long, milliseconds since 1970. Spark's connector cannot give the times that Spark's timestamp cannot
        hold.
        """
        ...

    def sample(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return the number and the bytes of the records sampled from each offset on; see `sample`.

        Raises:
            BrokerUnavailable, NotAuthorized: see `offsetkeeper.errors`.
        """
        ...

    def for_query(self, spark: SparkSession, start: StreamStart, connector_began: Callable[[], bool]) -> Reader:
        """Return the reader for a query on this session: this one, or a more suitable one.

        It is called before anything is touched.

        Args:
            spark: the session.
            start: the topics of the query; its positions are not known yet.
            connector_began: returns whether Spark's own connector began the query's checkpoint.

        Raises:
            SparkTooOld: this release of Spark does not support the reader.
            SettingsError: Spark's connector does not support these settings.
            MissingExtra: the session does not have the connector.
        """
        ...

    def stream(self, spark: SparkSession, start: StreamStart) -> DataFrame:
        """Return a streaming frame with the same columns; a query without a checkpoint starts at `start`.

        Its batches keep to `start.limits`, and new partitions are read from their beginning.
        """
        ...


def open_reader(
    name: str,
    cluster: KafkaCluster,
    *,
    group: str,
    headers: bool = False,
    split: int | Literal["auto"] | None = None,
    stall_s: float = 60,
) -> Reader:
    """Return a reader. It connects when it reads.

    Args:
        name: "packed" reads with few tasks in Python; "connector" with Spark's own Kafka connector, whose jars the
            session must have; "auto" is "packed", except for queries if Spark does not support it.
        cluster: Kafka; with `read_committed` records of aborted transactions are skipped.
        group: the consumer group; Kafka only sees the label `offsetkeeper-<group>`, and the group is never joined.
        headers: whether frames have the column `headers`.
        split: the most offsets for one task; larger ranges are cut. With None, a partition stays in one task; with
            "auto" too, but where rows may come in any order (`Reader.in_any_order`).
        stall_s: seconds without progress after which reading fails.

    Raises:
        SettingsError: a setting is wrong.
    """
    # benchmarks/reading.py: the packed reader is faster in every case, the more the more partitions there are.
    kinds: Mapping[str, Callable[..., Reader]] = {
        "auto": AutoReader,
        "packed": PackedReader,
        "connector": ConnectorReader,
    }
    if name not in kinds:
        raise SettingsError(f"{name!r} is not a reader: use one of {', '.join(kinds)}")
    if split not in (None, "auto") and (not isinstance(split, int) or split < 1):
        raise SettingsError(f"split={split!r}: use a number of offsets from 1 on")
    if not stall_s > 0:
        raise SettingsError(f"stall_s={stall_s} must be more than 0 seconds")
    source = Source(
        cluster.brokers,
        dict(cluster.options),
        f"offsetkeeper-{group}",
        cluster.isolation,
        headers=headers,
        stall_s=stall_s,
    )
    return kinds[name](source, split=split)


def reading_error(error: BaseException) -> OffsetkeeperError | None:
    """Return the error of offsetkeeper that made Spark raise `error` while a frame was read, or None.

    It is RangeGone, ReadStalled or another error of a reader's task. With the connector it is the error with the same
    meaning as the connector's own.
    """
    if isinstance(error, OffsetkeeperError):
        return error
    text = error_text(error)
    ours = our_error(error) or _damage(error)
    if ours is not None:
        return ours
    for mark, kind in _THEIRS.items():
        line = next((line for line in text.splitlines() if mark in line), None)
        if line is not None:
            return kind(f"Spark's Kafka connector could not read the ranges: {line.strip()}")
    return None


def task_error(error: Exception) -> OffsetkeeperError | None:
    """Return our own error of a task, which Spark passes on as text, or that of a damaged record; None for others.

    Other errors of Spark's connector do not count: an output to Kafka raises the same ones.
    """
    if isinstance(error, OffsetkeeperError):
        return None
    return our_error(error) or _damage(error)


def _damage(error: BaseException) -> BrokerError | None:
    """Return the error for a record that Spark's connector has met and cannot give; None if it has met none.

    A value may have the same words, but not where an error of Java begins.
    """
    said = [*told_by_java(error)]
    if bad := next(filter(None, map(_BAD_TIME.match, said)), None):
        what = f"{BAD_TIME.format(bad[4])}, and its connector gives nothing of the record: use reader='packed'"
        return unreadable((bad[1], int(bad[2]), int(bad[3])), what)
    found = next((match for mark in _DAMAGED for each in said if (match := mark.match(each))), None)
    if found is None:
        return None
    topic, partition, offset, why = found.groups()
    told = f"offset {offset}: {why}" if offset else "a record batch cannot be read"
    return BrokerError(f"partition {topic} {partition}: {told}. Spark's Kafka connector could not read the ranges")
