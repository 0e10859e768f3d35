"""From produce to a committed row: how long a record takes at ten bursts a second, against Structured Streaming tuned.

    python benchmarks/latency.py [--bursts 300] [--warm 100] [--rounds 2] [--partitions 8] [--records 10]

A producer writes a burst into all partitions every 100 ms. Each way writes the number of the burst into a table of
PostgreSQL, whose trigger tells it at the commit; a burst is there when the last of its records is. The ways take turns
in one session of two cores. Structured Streaming is tuned: no wait at the broker, inserts rewritten, one connection a
partition; its rows may be there twice after a crash. Both of ours write exactly once. The first turn of each warms up
Spark's JVM, and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.server import wait_until
from reading import open_session
from structured import scratch
from tasks import say

_EVERY_S = 0.1
_LIMIT_S = 120.0
_TRIGGER = """
create table {0} (burst int, note text);
create function tell_{0}() returns trigger language plpgsql as $$ begin
  perform pg_notify('{0}', (select string_agg(burst || ':' || n, ',') from
    (select burst, count(*) n from added group by burst) each)); return null; end $$;
create trigger tell after insert on {0} referencing new table as added
  for each statement execute function tell_{0}();
"""


@dataclass
class Trial:
    """One way's turn: a topic, a table, and when each burst was produced and committed."""

    server: KafkaServer
    url: str
    name: str
    partitions: int
    records: int
    produced: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the topic and the table."""
        self.server.create_topic(self.name, self.partitions)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_TRIGGER.format(self.name).encode())

    def produce(self, bursts: range) -> None:
        """Write the bursts, each at its time."""
        began = time.perf_counter()
        with Producer({"bootstrap.servers": self.server.bootstrap, "linger.ms": 0, "log_level": 0}) as producer:
            for number, burst in enumerate(bursts):
                time.sleep(max(0.0, began + number * _EVERY_S - time.perf_counter()))
                self.produced[burst] = time.perf_counter()
                for partition in range(self.partitions):
                    for _ in range(self.records):
                        producer.produce(self.name, str(burst).encode(), partition=partition)
                producer.flush(_LIMIT_S)

    def listen(self, bursts: int, listening: threading.Event) -> None:
        """Note when each burst is committed as a whole."""
        missing = Counter(dict.fromkeys(range(bursts), self.partitions * self.records))
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"listen {self.name}".encode())
            listening.set()
            for told in connection.notifies(timeout=_LIMIT_S):
                now = time.perf_counter()
                for pair in told.payload.split(","):
                    burst, count = map(int, pair.split(":"))
                    missing[burst] -= count
                    if not missing[burst]:
                        self.committed[burst] = now
                if len(self.committed) == bursts:
                    return

    def latencies(self, warm: int) -> list[float]:
        """Return the milliseconds of each burst after the first ones."""
        return [(at - self.produced[burst]) * 1000 for burst, at in sorted(self.committed.items()) if burst >= warm]


def rows(frame: DataFrame, _: object) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("cast(cast(value as string) as int) as burst", "topic as note")


def pipeline_of(trial: Trial) -> Pipeline:
    """Return the pipeline; group and ledger are the trial's own."""
    return Pipeline(
        group=trial.name,
        store=trial.url,
        brokers=trial.server.bootstrap,
        topics=[trial.name],
        poll_interval_s=0.02,
    )


@contextmanager
def run(spark: SparkSession, trial: Trial, _: str) -> Iterator[None]:
    """`Pipeline.run` into a `Table`, exactly once."""
    pipeline = pipeline_of(trial)
    how: dict[str, Any] = {"sink": Table(trial.url, trial.name), "guarantee": "exactly_once"}
    thread = threading.Thread(target=pipeline.run, args=[spark, rows], kwargs=how)
    thread.start()
    yield
    pipeline.stop()
    thread.join(_LIMIT_S)


@contextmanager
def start(spark: SparkSession, trial: Trial, checkpoint: str) -> Iterator[None]:
    """`Pipeline.start` into a `Table`, exactly once."""
    sink = Table(trial.url, trial.name)
    query = pipeline_of(trial).start(spark, rows, sink=sink, guarantee="exactly_once", checkpoint=checkpoint)
    yield
    query.stop()


@contextmanager
def plain(spark: SparkSession, trial: Trial, checkpoint: str) -> Iterator[None]:
    """Structured Streaming with Spark's source and JDBC."""
    options = {
        "url": trial.url.replace("postgresql://postgres@", "jdbc:postgresql://")
        + "?user=postgres&reWriteBatchedInserts=true",
        "dbtable": trial.name,
        "driver": "org.postgresql.Driver",
        "batchsize": "10000",
    }

    def write(frame: DataFrame, _: int) -> None:
        rows(frame, None).write.format("jdbc").options(**options).mode("append").save()

    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", trial.server.bootstrap)
    source = source.option("subscribe", trial.name).option("startingOffsets", "earliest")
    source = source.option("kafka.fetch.max.wait.ms", "10")
    writer = source.load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", checkpoint).start()
    yield
    if (error := query.exception()) is not None:
        raise error
    query.stop()


WAYS: dict[str, Callable[..., Any]] = {"run": run, "start": start, "structured streaming, tuned": plain}


def turn(spark: SparkSession, trial: Trial, way: Callable[..., Any], chosen: argparse.Namespace) -> list[float]:
    """Return the latencies of one turn."""
    trial.prepare()
    listening, bursts = threading.Event(), chosen.warm + chosen.bursts
    listener = threading.Thread(target=trial.listen, args=[bursts, listening])
    listener.start()
    listening.wait(_LIMIT_S)
    with scratch() as folder, way(spark, trial, f"{folder}/checkpoint"):
        trial.produce(range(chosen.warm))
        wait_until(lambda: len(trial.committed) == chosen.warm, "the first bursts", _LIMIT_S)
        trial.produce(range(chosen.warm, bursts))
        listener.join(_LIMIT_S)
    if len(trial.committed) < bursts:
        raise TimeoutError(f"{trial.name}: only {len(trial.committed)} of {bursts} bursts are there")
    return trial.latencies(chosen.warm)


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=300, help="that count, in each turn")
    parser.add_argument("--warm", type=int, default=100, help="before them, which do not, and are waited for")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--records", type=int, default=10, help="of each partition in a burst")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with KafkaServer() as server, PostgreSQLServer() as postgresql:
        spark, url = open_session("jdbc"), postgresql.url(postgresql.create_database())
        for number in range(chosen.rounds + 1):
            for at, (name, way) in enumerate(WAYS.items()):
                trial = Trial(server, url, f"latency_{number}_{at}", chosen.partitions, chosen.records)
                latencies = turn(spark, trial, way, chosen)
                found[name] += latencies if number else []
                say(f"turn {number}: {name} {statistics.median(latencies):.0f} ms")
        spark.stop()
    shown = {
        name: {"p50_ms": round(statistics.median(each)), "p99_ms": round(statistics.quantiles(each, n=100)[98])}
        for name, each in found.items()
    }
    theirs = shown["structured streaming, tuned"]
    ratios = {name: {of: round(each[of] / theirs[of], 2) for of in each} for name, each in shown.items()}
    print(json.dumps({"benchmark": "latency", "load": os.getloadavg()[1], "ms": shown, "ratio": ratios}))


if __name__ == "__main__":
    main()
