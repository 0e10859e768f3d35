"""How long a batch of a streaming query takes: Spark's Kafka source alone, and kept in step by offsetkeeper.

Every query writes what it reads into Spark's `noop` sink from `foreachBatch`, and each of its batches reads to the end
of the log, as queries do that keep up: when a batch is written, its function produces the records of the next one,
which does not count. A batch's time is Spark's own `triggerExecution`. The first ones of each query warm up and do not
count. The queries take turns, in one session of two cores, with the same broker and stores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from reading import open_session
from tasks import say

_MANY = 100  # partitions, at which a batch of Spark's source as it comes takes half a minute: one is enough
_LIMIT_S = 600.0


class Shape(NamedTuple):
    """How many partitions, and how many records of 100 bytes in each for a batch."""

    partitions: int
    records: int


SHAPES = (Shape(8, 1_000), Shape(100, 100))


@dataclass
class Load:
    """Produces the records of a query's batches, and keeps the time.

    Attributes:
        batches: how many shall have records.
        paused_s: seconds that producing took within each batch that had records.
    """

    server: KafkaServer
    topic: str
    shape: Shape
    batches: int
    paused_s: list[float] = field(default_factory=list)

    def produce(self) -> None:
        """Write the records of one batch."""
        value = os.urandom(100)
        with Producer({"bootstrap.servers": self.server.bootstrap, "linger.ms": 5, "log_level": 0}) as producer:
            for partition in range(self.shape.partitions):
                for _ in range(self.shape.records):
                    producer.produce(self.topic, value, partition=partition)
                producer.poll(0)
            producer.flush(60)

    def write(self, frame: DataFrame, _: object) -> None:
        """Be the function of a batch."""
        frame.write.format("noop").mode("overwrite").save()
        began = time.perf_counter()
        if len(self.paused_s) + 1 < self.batches:
            self.produce()
        self.paused_s.append(time.perf_counter() - began)


class Way(NamedTuple):
    """A way to run the query; the reader is offsetkeeper's, or None for Spark's source alone."""

    name: str
    reader: str | None
    store: str = ""
    tuned: bool = False


def start(spark: SparkSession, way: Way, load: Load, checkpoint: str) -> Any:
    """Start the query."""
    if way.reader is not None:
        pipeline = Pipeline(
            group=load.topic, store=way.store, brokers=load.server.bootstrap, topics=[load.topic], reader=way.reader
        )
        return pipeline.start(spark, load.write, checkpoint=checkpoint)
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", load.server.bootstrap)
    source = source.option("subscribe", load.topic).option("startingOffsets", "earliest")
    if way.tuned:
        source = source.option("kafka.fetch.max.wait.ms", "10")
    writer = source.load().writeStream.foreachBatch(load.write)
    return writer.option("checkpointLocation", checkpoint).start()


def batch_times(spark: SparkSession, way: Way, load: Load, folder: str) -> list[float]:
    """Return the seconds of each batch that had records."""
    load.server.create_topic(load.topic, load.shape.partitions)
    load.produce()
    query = start(spark, way, load, f"{folder}/{load.topic}")
    began = time.monotonic()
    try:
        # To ask for the progress costs time, the more batches there were: it is asked once all are written.
        while len(load.paused_s) < load.batches or len(found := _with_records(query)) < load.batches:
            if (error := query.exception()) is not None:
                raise error
            if time.monotonic() - began > _LIMIT_S:
                raise TimeoutError(f"{way.name}: only {len(load.paused_s)} batches in {_LIMIT_S:.0f} s")
            time.sleep(0.1)
    finally:
        query.stop()
        load.server.delete_topic(load.topic)
    return [taken - paused for taken, paused in zip(found, load.paused_s, strict=True)]


def _with_records(query: Any) -> list[float]:
    return [each.durationMs["triggerExecution"] / 1000 for each in query.recentProgress if each.numInputRows]


def compare(
    spark: SparkSession, server: KafkaServer, ways: list[Way], shape: Shape, chosen: argparse.Namespace
) -> dict[str, float]:
    """Return each way's median seconds for a batch."""
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(chosen.rounds):
        for number, way in enumerate(ways):
            crawls = way.name == "plain" and shape.partitions >= _MANY
            if crawls and turn:
                continue
            warm, counted = (1, 1) if crawls else (chosen.warm, chosen.batches)
            load = Load(server, f"structured-{shape.partitions}-{turn}-{number}", shape, warm + counted)
            with scratch() as folder:
                taken = batch_times(spark, way, load, folder)[warm:]
            times[way.name] += taken
            say(f"{shape.partitions}x{shape.records}, turn {turn + 1}: {way.name} {statistics.median(taken):.3f} s")
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


def growth(spark: SparkSession, server: KafkaServer, ways: list[Way], batches: int) -> dict[str, float]:
    """Return by how much the last third of many small batches is slower than the second."""
    found = {}
    for number, way in enumerate(ways):
        load = Load(server, f"growth-{number}", Shape(1, 10), batches)
        with scratch() as folder:
            taken = batch_times(spark, way, load, folder)
        third = batches // 3
        found[way.name] = round(statistics.median(taken[-third:]) / statistics.median(taken[third : 2 * third]), 2)
        say(f"{batches} batches: {way.name} {found[way.name]}")
    return found


@contextmanager
def scratch() -> Iterator[str]:
    """Lend a folder."""
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ways_of(sqlite: str, postgresql: str) -> list[Way]:
    """Return what is compared."""
    kept = [
        Way(f"{reader}, {name}", reader, store)
        for reader in ("connector", "packed")
        for name, store in (("SQLite", sqlite), ("PostgreSQL", postgresql))
    ]
    return [Way("plain", None), Way("plain, tuned", None, tuned=True), *kept]


def ratios(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the ratios that matter, of each shape."""
    wanted: dict[str, Callable[[dict[str, float]], float]] = {
        "connector with SQLite / plain": lambda at: at["connector, SQLite"] / at["plain"],
        "connector with PostgreSQL / plain": lambda at: at["connector, PostgreSQL"] / at["plain"],
        "connector with SQLite / plain, tuned": lambda at: at["connector, SQLite"] / at["plain, tuned"],
        "connector with PostgreSQL / plain, tuned": lambda at: at["connector, PostgreSQL"] / at["plain, tuned"],
        "plain / packed with SQLite": lambda at: at["plain"] / at["packed, SQLite"],
        "plain / packed with PostgreSQL": lambda at: at["plain"] / at["packed, PostgreSQL"],
    }
    return {shape: {name: round(of(at), 2) for name, of in wanted.items()} for shape, at in found.items()}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each query")
    parser.add_argument("--batches", type=int, default=8, help="batches that count, in each turn")
    parser.add_argument("--warm", type=int, default=3, help="batches before them that do not")
    parser.add_argument("--growth", type=int, default=90, help="batches of the query that is to show whether age slows")
    parser.add_argument("--partitions", type=int, nargs="*", default=None, help="only shapes with so many")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    shapes = [shape for shape in SHAPES if chosen.partitions is None or shape.partitions in chosen.partitions]
    with KafkaServer() as server, PostgreSQLServer() as postgresql, scratch() as folder:
        spark = open_session()
        ways = ways_of(f"sqlite:///{folder}/offsets.db", postgresql.url(postgresql.create_database()))
        found = {f"{s.partitions}x{s.records}": compare(spark, server, ways, s, chosen) for s in shapes}
        aged = growth(spark, server, [ways[0], ways[2], ways[4]], chosen.growth) if chosen.growth else {}
        spark.stop()
    print(json.dumps({"median_s": found, "ratios": ratios(found), "last third / second third": aged}))


if __name__ == "__main__":
    main()
