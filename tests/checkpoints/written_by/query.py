"""Runs queries over two topics until all is read, with whatever Spark this Python has; needs nothing else.

They are arguments: `KIND=CHECKPOINT`. The last line it prints is JSON, for each by batch the rows that it had:
(partition, offset), or (partition, records so far) of what changed where it counts. The second topic is read
only where a query has two sources.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all call it

LIMIT_S = 120
STREAMING = "spark.sql.streaming"
STATE = f"{STREAMING}.stateStore"
ROCKSDB = {f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
IDS = {f"{STATE}.checkpointFormatVersion": "2"}
NAMED = {f"{STREAMING}.queryEvolution.enableSourceEvolution": "true"}
SINK = {f"{STREAMING}.queryEvolution.enableSinkEvolution": "true"}
CONFS = {
    "rocks": {**ROCKSDB, **IDS},
    "changelog": {**ROCKSDB, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true"},
    "ids_unused": IDS,
    "offsets_v2": {f"{STREAMING}.offsetLog.formatVersion": "2"},
    "named": NAMED,
    "sink": SINK,
    "sink_rocks": {**SINK, **ROCKSDB, **IDS},
    "realtime_rocks": {**ROCKSDB, **IDS},
}
Writer = Any  # not every release exports its name, and of older ones it lacks what newer ones have
BATCHES: dict[int, list[list[int]]] = {}


class InFiles:
    """Keeps the rows of a real-time query, which has no `foreachBatch`: a file for each of its batches."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, partition: int, batch: int) -> bool:
        """Begin a batch in one task."""
        self.path, self.rows = Path(self.folder, f"{batch}-{partition}"), []  # type: ignore[var-annotated]
        return True

    def process(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append([int(value) for value in row])

    def close(self, error: Exception | None) -> None:
        """Write down what the task had, if it had all."""
        if error is None:
            self.path.write_text(json.dumps(self.rows), "utf-8")


def collect(frame: DataFrame, number: int) -> None:
    """Keep the rows of a batch."""
    BATCHES[number] = sorted([int(value) for value in row] for row in frame.collect())


def read(topic: str, name: str = "") -> DataFrame:
    """Return the stream of a topic, with a time that follows from the offset."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest")
    if not kind.startswith("realtime"):
        reader = reader.option("maxOffsetsPerTrigger", 4)
    if name:
        reader = reader.name(name)
    return reader.load().selectExpr("partition", "offset", "timestamp_seconds(1700000000 + 10 * offset) as at")


def counted(frame: DataFrame) -> DataFrame:
    """Return the records so far of each partition."""
    return frame.groupBy("partition").count()


def windowed(frame: DataFrame) -> DataFrame:
    """Return the partition and the count of two records after one another, when the second window after them begins."""
    windows = frame.withWatermark("at", "0 seconds").groupBy(F.expr("window(at, '20 seconds')"), "partition")
    return windows.count().select("partition", "count")


def joined(frame: DataFrame) -> DataFrame:
    """Return the records that have one in the other topic at the same place."""
    return frame.join(read(other), ["partition", "offset"]).select("partition", "offset")


def plain(frame: DataFrame) -> DataFrame:
    """Return each record."""
    return frame.select("partition", "offset")


def shape() -> DataFrame:
    """Return what the query makes of its topics."""
    if kind == "named":
        return plain(read(topic, "orders").union(read(other, "payments")))
    first = read(topic)
    shapes: dict[str, Callable[[DataFrame], DataFrame]] = {
        **dict.fromkeys(("counting", "rocks", "changelog", "sink_rocks"), counted),
        **dict.fromkeys(("distinct", "realtime_rocks"), lambda frame: plain(frame).dropDuplicates()),
        "windowed": windowed,
        "join": joined,
        "union": lambda frame: plain(frame.union(read(other))),
        "thrice": lambda frame: plain(frame.union(read(topic)).union(read(topic))),
    }
    return shapes.get(kind, plain)(first)


def run(writer: Writer) -> None:
    """Run until all is read."""
    if kind.startswith("sink"):
        writer._jwrite.name("shop")  # Python has no method for it
    writer = writer.foreachBatch(collect).trigger(availableNow=True)
    assert writer.start().awaitTermination(LIMIT_S)


def read_up_to(path: str) -> object:
    """Return the end of the newest batch that is done, None without one."""
    newest = max((int(each.name) for each in Path(path, "commits").glob("[0-9]*")), default=-1)
    return None if newest < 0 else json.loads(Path(path, "offsets", str(newest)).read_text("utf-8").splitlines()[-1])


def run_in_real_time(writer: Writer, folder: Path) -> None:
    """Run until all is read and committed; a batch may begin before its tasks do, and then has nothing."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
    ends = {str(row[0]): row[1] + 1 for row in reader.load().groupBy("partition").agg({"offset": "max"}).collect()}
    query = writer.foreach(InFiles(str(folder))).outputMode("update").trigger(realTime="5 seconds").start()
    until = time.monotonic() + LIMIT_S
    while read_up_to(checkpoint) != {topic: ends}:
        assert query.isActive, query.exception()
        assert time.monotonic() < until
        time.sleep(0.1)
    query.stop()
    for path in folder.iterdir():
        of_batch = BATCHES.setdefault(int(path.name.partition("-")[0]), [])
        of_batch.extend(json.loads(path.read_text("utf-8")))
        of_batch.sort()


def follow(path: str) -> None:
    """Run the query of this kind on a checkpoint until all is read."""
    found = shape()
    counts = "count" in found.columns and kind != "windowed"
    writer = found.writeStream.option("checkpointLocation", path).outputMode("update" if counts else "append")
    if not kind.startswith("realtime"):
        run(writer)
        return
    with tempfile.TemporaryDirectory() as folder:
        run_in_real_time(writer, Path(folder))


brokers, topic, other, jars, *asked = sys.argv[1:]
builder = SparkSession.builder.master("local[4]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
spark = builder.getOrCreate()
rows = []
for each in asked:
    kind, _, checkpoint = each.partition("=")
    for name, value in CONFS.get(kind, {}).items():
        spark.conf.set(name, value)
    BATCHES.clear()
    follow(checkpoint)
    rows.append({number: found for number, found in BATCHES.items() if found})
    for name in CONFS.get(kind, {}):
        spark.conf.unset(name)
spark.stop()
print(json.dumps(rows))  # noqa: T201 - its result
