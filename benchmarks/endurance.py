"""Whether anything of the driver grows with each batch: thousands of small ones, into each sink, by each engine.

    python benchmarks/endurance.py [--batches 5000] [--engines run start] [SINK…]
    python benchmarks/endurance.py --engines run files+delta+table-sqlite    # one pipeline that writes to all of them

What Spark keeps for its page is cut to a few entries, so that a slope is of what is kept without end. Looks are taken
within batches, and take no part in their time: the heap's live bytes after forced collections, the resident bytes of
Python, and threads and open files of Python and Java together. The first fifth of the batches warms up and does not
count. Slopes are of the straight line nearest to the looks; the time is that of the last tenth against the second, and
so is the CPU time of Python and Java, which other work on the machine disturbs less.
`catalog_rows` is what a batch adds to `pg_class` and `pg_attribute` of PostgreSQL, which vacuum has to remove; it has a
share of the tables that the start makes. Servers are started only for the sinks that need them.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pymysql
from confluent_kafka import Producer
from deltalake import DeltaTable as Lake
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import (
    Cassandra,
    DeltaTable,
    Files,
    Function,
    IcebergTable,
    Idempotent,
    Outputs,
    Sink,
    Table,
    Topic,
    Transaction,
)
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.cassandra import CassandraServer
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
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
_MADE = "select sum(n_tup_ins) from pg_stat_sys_tables where relname in ('pg_class', 'pg_attribute')"
_CASSANDRA = 'topic text, partition int, "offset" bigint, primary key (topic, partition, "offset")'
_COLUMNS = 'create table {} (topic text, "partition" int, "offset" bigint)'
_KINDS = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
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
    columns: Mapping[str, Sequence[str]]
    looks: list[Look] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    ends_at: float = float("inf")
    stop: Callable[[], object] = bool
    _left: float = 0.0
    _spent: float = 0.0

    def __call__(self, frame: DataFrame, _: object) -> DataFrame | dict[str, DataFrame]:
        """Be the function before the sink."""
        if self._left:
            self.seconds.append(time.perf_counter() - self._left)
            self.cpu_seconds.append(self._cpu() - self._spent)
        number = len(self.seconds)
        if number >= self.batches // 5 and number % max(self.batches * 4 // 5 // _LOOKS, 1) == 0:
            self.looks.append(self._look(number))
            say(f"{number} of {self.batches} batches: {self.looks[-1]}")
        if time.monotonic() > self.ends_at:
            self.stop()
        self._left, self._spent = time.perf_counter(), self._cpu()
        frames = {name: frame.select(*columns) for name, columns in self.columns.items()}
        return frames if len(frames) > 1 else next(iter(frames.values()))

    @cached_property
    def processes(self) -> tuple[Path, Path]:
        """What the system tells of Python and of Java."""
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to it
        return Path("/proc/self"), Path(f"/proc/{java.java.lang.ProcessHandle.current().pid()}")

    def _cpu(self) -> float:
        """Return the seconds of CPU that both have taken, in steps of 10 ms."""
        fields = [(process / "stat").read_text().rpartition(")")[2].split() for process in self.processes]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")

    def _look(self, number: int) -> Look:
        java: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to it
        for _ in range(3):  # what the first lets go of, Spark's cleaner lets go of then
            gc.collect()
            java.java.lang.System.gc()
            time.sleep(0.3)
        runtime, processes = java.java.lang.Runtime.getRuntime(), self.processes
        return Look(
            number,
            (runtime.totalMemory() - runtime.freeMemory()) / 1024,
            _status(processes[0], "VmRSS"),
            sum(_status(process, "Threads") for process in processes),
            sum(1 for process in processes for _ in (process / "fd").iterdir()),
        )

    def slopes(self) -> dict[str, float]:
        """Return what a batch adds, and how much longer the last ones take."""
        tenth = len(self.seconds) // 10
        numbers = [float(look.batch) for look in self.looks]

        def slope(values: list[float]) -> float:
            return statistics.linear_regression(numbers, values).slope if numbers[1:] else float("nan")

        return {
            "batches": len(self.seconds),
            "heap_kb": round(slope([look.heap_kb for look in self.looks]), 1),
            "python_kb": round(slope([look.python_kb for look in self.looks]), 1),
            "threads_in_1000": round(1000 * slope([float(look.threads) for look in self.looks]), 1),
            "files_in_1000": round(1000 * slope([float(look.files) for look in self.looks]), 1),
            "batch_s": round(statistics.median(self.seconds), 3),
            "last_tenth_by_second": round(
                statistics.median(self.seconds[-tenth:]) / statistics.median(self.seconds[tenth : 2 * tenth]), 2
            ),
            "cpu_s": round(statistics.fmean(self.cpu_seconds), 3),
            "cpu_last_tenth_by_second": round(
                sum(self.cpu_seconds[-tenth:]) / sum(self.cpu_seconds[tenth : 2 * tenth]), 2
            ),
        }


class Places:
    """Where rows and offsets go. A place is made when it is first asked for, with a table `rows` if it has tables."""

    def __init__(self, kafka: KafkaServer, folder: str, stack: ExitStack) -> None:
        self.kafka, self.folder, self._stack = kafka, folder, stack

    @cached_property
    def sqlite(self) -> str:
        """URL of a SQLite file."""
        with closing(sqlite3.connect(f"{self.folder}/rows.db")) as connection:
            connection.execute(_COLUMNS.format("rows"))
        return f"sqlite:///{self.folder}/rows.db"

    @cached_property
    def postgresql(self) -> str:
        """URL of a database of PostgreSQL."""
        server = self._stack.enter_context(PostgreSQLServer())
        url = server.url(server.create_database())
        with psycopg.connect(url) as database:
            database.execute(_COLUMNS.format('"rows"').encode())
        return url

    @cached_property
    def mysql(self) -> str:
        """URL of a database of MariaDB."""
        server = self._stack.enter_context(MariaDBServer())
        name = server.create_database()
        with pymysql.connect(host="127.0.0.1", port=server.port, user="root", database=name) as connection:
            connection.cursor().execute("create table `rows` (topic text, `partition` int, `offset` bigint)")
        return server.url(name)

    @cached_property
    def cassandra(self) -> str:
        """URL of a keyspace of Cassandra."""
        server = self._stack.enter_context(CassandraServer())
        keyspace = server.create_keyspace()
        with server.session() as session:
            session.execute(f"create table {keyspace}.rows ({_CASSANDRA})")
        return server.url(keyspace)

    @cached_property
    def delta(self) -> str:
        """Folder of a Delta Lake table."""
        Lake.create(f"{self.folder}/delta", pa.schema(_KINDS))
        return f"{self.folder}/delta"

    @cached_property
    def iceberg(self) -> dict[str, str]:
        """Properties of a catalog in SQLite that has an Iceberg table."""
        about = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"{self.folder}/iceberg"}
        Path(about["warehouse"]).mkdir()
        with SqlCatalog("lake", **about) as catalog:
            catalog.create_namespace("shop")
            catalog.create_table("shop.rows", pa.schema(_KINDS))
        return about

    @cached_property
    def topic(self) -> str:
        """Name of a topic."""
        self.kafka.create_topic("written", _PARTITIONS)
        return "written"

    def catalog_rows(self) -> int:
        """Return how many rows the catalogs of PostgreSQL have got, if it was started."""
        if "postgresql" not in vars(self):
            return 0
        time.sleep(1.2)  # until other sessions have told
        with psycopg.connect(self.postgresql) as database:
            [(found,)] = database.execute(_MADE).fetchall()
            return int(found)


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
    "table-postgresql-elsewhere": lambda at: (Table(at.postgresql, "rows"), at.sqlite),
    "table-mysql": lambda at: (Table(at.mysql, "rows"), at.mysql),
    "table-mysql-elsewhere": lambda at: (Table(at.mysql, "rows"), at.sqlite),
    "topic": lambda at: (Topic(at.kafka.bootstrap, at.topic), at.sqlite),
    "files": lambda at: (Files(f"{at.folder}/files"), at.sqlite),
    "delta": lambda at: (DeltaTable(at.delta), at.sqlite),
    "iceberg": lambda at: (IcebergTable("shop.rows", catalog="lake", properties=at.iceberg), at.sqlite),
    "cassandra": lambda at: (Cassandra(at.cassandra, "rows", key=("topic", "partition", "offset")), at.sqlite),
    "transaction": lambda at: (Transaction(insert), at.sqlite),
    "outputs": lambda at: (Outputs(archive=Idempotent(throw_away), rows=Table(at.sqlite, "rows")), at.sqlite),
}


def way_to(name: str, places: Places) -> tuple[Sink | Outputs, str]:
    """Return the sink of a name, or the outputs of names that `+` joins, and the store."""
    ways = {each.replace("-", "_"): SINKS[each](places) for each in name.split("+")}
    [store] = {store for _, store in ways.values()}
    sinks = {name: sink for name, (sink, _) in ways.items()}
    if len(sinks) == 1:
        return next(iter(sinks.values())), store
    return Outputs(**{name: sink for name, sink in sinks.items() if not isinstance(sink, Outputs)}), store


def columns_of(name: str) -> Mapping[str, Sequence[str]]:
    """Return which columns each output of a name takes."""
    return {each.replace("-", "_"): ("value",) if each == "topic" else tuple(_KINDS) for each in name.split("+")}


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


def fill(server: KafkaServer, topic: str, records: int, partitions: int) -> None:
    """Make a topic and write its records, in turns to its partitions."""
    server.create_topic(topic, partitions)
    with Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20, "log_level": 0}) as producer:
        for number in range(records):
            producer.produce(topic, b"x" * 100, partition=number % partitions)
            producer.poll(0)
        producer.flush(60)


def go(watch: Watch, brokers: str, group: str, way: tuple[Sink | Outputs, str], engine: str) -> None:
    """Read the topic to its end, batch by batch; `way` is a sink, and the store beside it."""
    sink, store = way
    pipeline = Pipeline(group=group, store=store, brokers=brokers, topics=["endurance"], max_records=_RECORDS)
    watch.stop = pipeline.stop
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
    parser.add_argument("sinks", nargs="*", help=f"some of {', '.join(SINKS)}, or several joined by +; all by default")
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end a run after so long, and tell of it")
    parser.add_argument("--partitions", type=int, default=_PARTITIONS, help="of the topic that is read")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=ENGINES)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    found: dict[str, dict[str, float]] = {}
    with KafkaServer() as server, scratch() as folder, ExitStack() as stack:
        places, spark = Places(server, folder, stack), open_session()
        fill(server, "endurance", chosen.batches * _RECORDS, chosen.partitions)
        for name in chosen.sinks or SINKS:
            for engine in chosen.engines:
                watch = Watch(spark, chosen.batches, columns_of(name))
                watch.ends_at = time.monotonic() + 60 * chosen.minutes
                way = way_to(name, places)
                before = places.catalog_rows()
                go(watch, server.bootstrap, f"endurance-{name}-{engine}", way, engine)
                added = round((places.catalog_rows() - before) / chosen.batches, 2)
                found[f"{name}, {engine}"] = {**watch.slopes(), "catalog_rows": added}
                say(f"{name}, {engine}: {found[f'{name}, {engine}']}")
        spark.stop()
    print(json.dumps({"benchmark": "endurance", "batches": chosen.batches, "a batch adds": found}))


if __name__ == "__main__":
    main()
