"""Readers: exact ranges of Kafka as Spark frames, with the columns of Spark's own Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, cast, get_args

from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka.clients import NO_OPTIONS, Isolation, check_brokers, check_isolation, check_options
from offsetkeeper.readers.connector import ConnectorReader
from offsetkeeper.readers.failures import reading_error
from offsetkeeper.readers.packed import PackedReader
from offsetkeeper.readers.source import Source
from offsetkeeper.readers.streaming import StreamStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.core.model import OffsetRange

__all__ = [
    "ConnectorReader",
    "PackedReader",
    "Reader",
    "ReaderName",
    "Source",
    "StreamStart",
    "open_reader",
    "reading_error",
]

ReaderName = Literal["auto", "packed", "connector"]


class Reader(Protocol):
    """Reads exact ranges."""

    def read(self, spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return a frame of exactly the records in `ranges`: whenever it is used, and however often.

        Columns: key and value binary, topic string, partition int, offset long, timestamp, timestampType int (0 create
        time, 1 append time) and, where asked for, headers array<struct<key:string,value:binary>>.

        Raises:
            SettingsError: two ranges overlap, or one is no range.
        """
        ...

    def stream(self, spark: SparkSession, start: StreamStart) -> DataFrame:
        """Return a streaming frame with the same columns; a query without a checkpoint begins at `start`.

        A batch of it has at most `start.max_records` offsets, and partitions found new are read from their beginning.
        """
        ...


def open_reader(
    name: str = "auto",
    *,
    brokers: str,
    group: str,
    options: Mapping[str, str] = NO_OPTIONS,
    isolation: Isolation = "read_committed",
    headers: bool = False,
    split: int | None = None,
    stall_s: float = 60,
) -> Reader:
    """Return a reader. It connects to nothing before it reads.

    Args:
        name: "packed" reads with few tasks in Python; "connector" with Spark's own Kafka connector, whose jars the
            session must have; "auto" is the one that measures better.
        brokers: `host:port,host:port,…`.
        group: the consumer group read for; to Kafka a label only, `offsetkeeper-<group>`, which is never joined.
        options: settings of librdkafka: security.protocol, sasl.*, ssl.* and all others.
        isolation: `read_committed` leaves out records of aborted transactions.
        headers: whether frames have the column `headers`.
        split: the most offsets for one task; ranges are cut for it. Without, a partition stays in one task.
        stall_s: seconds without any progress after which reading is given up.

    Raises:
        SettingsError: a setting is wrong.
    """
    if name not in get_args(ReaderName):
        raise SettingsError(f"{name!r} is no reader: use one of {', '.join(get_args(ReaderName))}")
    if split is not None and split < 1:
        raise SettingsError(f"split={split} must be 1 offset or more")
    source = Source(
        check_brokers(brokers),
        check_options(options),
        f"offsetkeeper-{group}",
        check_isolation(isolation),
        headers=headers,
        stall_s=stall_s,
    )
    if _choose(cast("ReaderName", name)) == "connector":
        return ConnectorReader(source, split=split)
    return PackedReader(source, split=split)


def _choose(name: ReaderName) -> ReaderName:
    # benchmarks/reading.py: the packed reader is ahead in every shape, by more the more partitions there are,
    # and needs no jar. So there is nothing about a run or its ranges to decide by.
    return "packed" if name == "auto" else name
