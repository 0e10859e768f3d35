"""Whether anything of the driver grows with each batch: thousands of small ones, into each sink, by each engine.

    python benchmarks/endurance.py [--batches 5000] [--engines run start] [SINK…]

What Spark keeps for its page is cut to a few entries, so that a slope is of what is kept without end. Looks are taken
within batches, and take no part in their time: the heap's live bytes after forced collections, the resident bytes of
Python, and threads and open files of Python and Java together. The first fifth of the batches warms up and does not
count. Slopes are of the straight line nearest to the looks; the time is that of the last tenth against the second.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sqlite3
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Function, Idempotent, Outputs, Sink, Table, Transaction
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from structured import scratch
from tasks import say

_LOOKS = 10
_PARTITIONS = 2
_RECORDS = 10  # of a batch
_KEPT = (
    "spark.ui.retainedJobs",
    "spark.ui.retainedStages",
    "spark.ui.retainedTasks",
    "spark.sql.ui.retainedExecutions",
)
_COLUMNS = 'create table {} (topic text, "partition" int, "offset" bigint)'
ENGINES = ("run", "start")


class Look(NamedTuple):
    """What is held in a batch: kB of live heap and of Python, and how many threads and files."""

    batch: int
    heap_kb: float
    python_kb: float
    threads: int
    files: int


@dataclass
class Watch:
    """Is called in each batch, keeps the time, and looks now and then."""

    spark: SparkSession
    batches: int
    looks: list[Look] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _left: float = 0.0

    def __call__(self, frame: DataFrame, _: object) -> DataFrame:
        """Be the function before the sink."""
        if self._left:
            self.seconds.append(time.perf_counter() - self._left)
        number = len(self.seconds)
        if number >= self.batches // 5 and number % max(self.batches * 4 // 5 // _LOOKS, 1) == 0:
            self.looks.append(self._look(number))
        self._left = time.perf_counter()
        return frame.select("topic", "partition", "offset")

    def _look(self, number: int) -> Look:
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to it
        for _ in range(3):  # what the first lets go of, Spark's cleaner lets go of then
            gc.collect()
            java.java.lang.System.gc()
            time.sleep(0.3)
        runtime = java.java.lang.Runtime.getRuntime()
        processes = [Path("/proc/self"), Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}")]
        return Look(
            number,
            (runtime.totalMemory() - runtime.freeMemory()) / 1024,
            _status(processes[0], "VmRSS"),
            sum(_status(process, "Threads") for process in processes),
            sum(1 for process in processes for _ in (process / "fd").iterdir()),
        )

    def slopes(self) -> dict[str, float]:
        """Return what a batch adds, and how much longer the last ones take."""
        tenth = self.batches // 10
        numbers = [float(look.batch) for look in self.looks]

        def slope(values: list[float]) -> float:
            return statistics.linear_regression(numbers, values).slope

        return {
            "heap_kb": round(slope([look.heap_kb for look in self.looks]), 1),
            "python_kb": round(slope([look.python_kb for look in self.looks]), 1),
            "threads_in_1000": round(1000 * slope([float(look.threads) for look in self.looks]), 1),
            "files_in_1000": round(1000 * slope([float(look.files) for look in self.looks]), 1),
            "batch_s": round(statistics.median(self.seconds), 3),
            "last_tenth_by_second": round(
                statistics.median(self.seconds[-tenth:]) / statistics.median(self.seconds[tenth : 2 * tenth]), 2
            ),
        }


class Places(NamedTuple):
    """Where rows and offsets go: a SQLite file and a PostgreSQL database, each with a table `rows`."""

    sqlite: str
    postgresql: str


def _status(process: Path, name: str) -> int:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def throw_away(frame: DataFrame, _: object) -> None:
    """Be a function that writes its output by itself."""
    frame.write.format("noop").mode("overwrite").save()


def insert(frame: DataFrame, _: object, connection: Any) -> None:
    """Be a function that runs SQL of its own."""
    connection.executemany("insert into rows values (?, ?, ?)", frame.collect())


SINKS: Mapping[str, Callable[[Places], tuple[Sink | Outputs, str]]] = {
    "function": lambda at: (Function(throw_away), at.sqlite),
    "idempotent": lambda at: (Idempotent(throw_away), at.sqlite),
    "table-sqlite": lambda at: (Table(at.sqlite, "rows"), at.sqlite),
    "table-postgresql": lambda at: (Table(at.postgresql, "rows"), at.postgresql),
    "transaction": lambda at: (Transaction(insert), at.sqlite),
    "outputs": lambda at: (Outputs(archive=Idempotent(throw_away), rows=Table(at.sqlite, "rows")), at.sqlite),
}


def open_session() -> SparkSession:
    """Start Spark with two cores, its Kafka connector, and a short memory for its page."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(map(str, fetch_jars("connector"))),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **dict.fromkeys(_KEPT, "10"),
    }
    builder: SparkSession.Builder = SparkSession.builder
    return builder.master("local[2]").config(map=settings).getOrCreate()


def fill(server: KafkaServer, topic: str, records: int) -> None:
    """Make a topic and write its records, in turns to its partitions."""
    server.create_topic(topic, _PARTITIONS)
    with Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20, "log_level": 0}) as producer:
        for number in range(records):
            producer.produce(topic, b"x" * 100, partition=number % _PARTITIONS)
            producer.poll(0)
        producer.flush(60)


def go(watch: Watch, brokers: str, name: str, places: Places, engine: str) -> None:
    """Read the topic of that name to its end, batch by batch."""
    sink, store = SINKS[name](places)
    pipeline = Pipeline(
        group=f"endurance-{name}-{engine}", store=store, brokers=brokers, topics=["endurance"], max_records=_RECORDS
    )
    if engine == "run":
        pipeline.run(watch.spark, watch, sink=sink, until="caught_up")
        return
    with scratch() as folder:
        trigger = {"availableNow": True}
        with pipeline.start(watch.spark, watch, sink=sink, checkpoint=folder, trigger=trigger) as query:
            query.awaitTermination()


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sinks", nargs="*", help=f"some of {', '.join(SINKS)}; all by default")
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    found: dict[str, dict[str, float]] = {}
    with KafkaServer() as server, PostgreSQLServer() as postgresql, scratch() as folder:
        places = Places(f"sqlite:///{folder}/rows.db", postgresql.url(postgresql.create_database()))
        with closing(sqlite3.connect(f"{folder}/rows.db")) as connection:
            connection.execute(_COLUMNS.format("rows"))
        with psycopg.connect(places.postgresql) as database:
            database.execute(_COLUMNS.format('"rows"').encode())
        spark = open_session()
        fill(server, "endurance", chosen.batches * _RECORDS)
        for name in chosen.sinks or SINKS:
            for engine in chosen.engines:
                watch = Watch(spark, chosen.batches)
                go(watch, server.bootstrap, name, places, engine)
                found[f"{name}, {engine}"] = watch.slopes()
                say(f"{name}, {engine}: {found[f'{name}, {engine}']}")
        spark.stop()
    print(json.dumps({"benchmark": "endurance", "batches": chosen.batches, "a batch adds": found}))


if __name__ == "__main__":
    main()
