"""Real queries over a topic of two partitions with six records each, in batches of two records a partition."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.checkpoint import Edit, Files, LocalFiles, apply
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S = 120
_STATE = "spark.sql.streaming.stateStore"
ROCKSDB = {
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.checkpointFormatVersion": "2",  # Spark wants it again at each start
}
NO_CONFS: Mapping[str, str] = MappingProxyType({})
Batches = dict[int, list[tuple[int, ...]]]


class Failed(Exception):
    """Raised in a batch."""


@dataclass
class Queries:
    """Starts queries.

    Attributes:
        topic: what they read.
        count: of records of each partition.
    """

    spark: SparkSession
    server: KafkaServer
    topic: str
    count: int = 0

    def produce(self, count: int) -> None:
        """Write so many records into each partition."""
        produce(self.server, self.topic, count)
        self.count += count

    def frame(self, name: str = "", starting: str = "earliest") -> DataFrame:
        """Return the stream of the topic."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.server.bootstrap)
        reader = reader.option("maxOffsetsPerTrigger", 4).option("startingOffsets", starting)
        return (reader.name(name) if name else reader).option("subscribe", self.topic).load()

    def run(
        self,
        path: Path | str,
        *,
        counting: bool = False,
        fail: bool = False,
        name: str = "",
        starting: str = "earliest",
        confs: Mapping[str, str] = NO_CONFS,
    ) -> Batches:
        """Run until all is read; return by batch the (partition, offset) of its records.

        With `counting` the query keeps state, and it is the (partition, records so far) of what changed.
        """
        batches: Batches = {}

        def collect(frame: DataFrame, number: int) -> None:
            if fail:
                raise Failed(str(number))
            batches[number] = sorted(tuple(row) for row in frame.collect())

        with configured(self.spark, confs), suppress(*[StreamingQueryException] * fail):
            frame = self.frame(name, starting)
            frame = frame.groupBy("partition").count() if counting else frame.select("partition", "offset")
            writer = frame.writeStream.option("checkpointLocation", str(path)).foreachBatch(collect)
            writer = writer.outputMode("update" if counting else "append").trigger(availableNow=True)
            assert writer.start().awaitTermination(LIMIT_S)
        return {number: rows for number, rows in batches.items() if rows}

    def at(self, *offsets: int) -> dict[TopicPartition, int]:
        """Return offsets by partition."""
        return {TopicPartition(self.topic, partition): offset for partition, offset in enumerate(offsets)}


def produce(server: KafkaServer, topic: str, count: int) -> None:
    """Write so many records into each of two partitions."""
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for _ in range(count):
        for partition in (0, 1):
            producer.produce(topic, b"x", partition=partition)
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def configured(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Set what Spark is configured with, for the block."""
    for name, value in confs.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in confs:
            spark.conf.unset(name)


def records(*ranges: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """Return (partition, offset) for each (partition, start, end)."""
    return [(partition, offset) for partition, start, end in ranges for offset in range(start, end)]


def copy(made: Path, path: Path) -> LocalFiles:
    """Copy a checkpoint: what the session still knows of the state is not of the copy."""
    shutil.copytree(made, path)
    return LocalFiles(path)


def do(files: Files, edit: Edit) -> str:
    """Do it at once: no query runs."""
    return apply(files, edit, quiet_s=0, look_s=0)


def query_id(files: Files) -> str:
    """Return the id of the query."""
    return str(json.loads(files.read("metadata") or b"")["id"])
