"""How long a batch takes into each output, exactly once, beside what people use there without any guarantee.

    python benchmarks/outputs.py --rows 200000 --runs 5 [--checks] [topic files delta iceberg table mysql]

The rows are the same cached frame of about 100 bytes each for all. The ways of an output take turns, after rounds that
do not count, and the rows are counted at the end. Seconds of CPU are those of driver, JVM and Python workers, without
the server. The last line is JSON: for each output the medians of each way, and their ratios to the first way.

With `--checks` the ways are our sink alone, without its look at each value and with it: the ratio is what that costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pymysql
from deltalake import DeltaTable as Lake
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import errors
from offsetkeeper.core import environment, pickle_by_value
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.sinks import DeltaTable, Files, IcebergTable, Sink, Table, Topic, few, limits
from offsetkeeper.sinks.delta import task as delta_task
from offsetkeeper.sinks.files import values
from offsetkeeper.sinks.iceberg import task as iceberg_task
from offsetkeeper.sinks.mysql import task as mysql_task
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.postgresql import task
from offsetkeeper.sinks.postgresql.database import PostgreSQLDatabase
from offsetkeeper.sinks.topic import task as topic_task
from offsetkeeper.stores import open_store
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from reading import open_session
from tasks import say

ROWS = (
    "id",
    "concat('customer ', id % 5000) as name",
    "rand(1) * 1000 as amount",
    "timestamp_micros(1700000000000000 + id * 1000003) as ts",
    "concat('note ', id, ' ', repeat('x', 50)) as note",
)
MESSAGES = ("cast(id as string) as key", "lpad(cast(id as string), 100, 'x') as value")
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "500000", "kafka.compression.type": "none"}
SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB"}  # else a checkpoint falls into one run and not another
IN_PYTHON = {"offsetkeeper.native": "never"}
PARTITION = TopicPartition("orders", 0)
TICKS = os.sysconf("SC_CLK_TCK")
Way = Callable[[], object]


def by_mark(frame: DataFrame, sink: Sink) -> Way:
    """Return the way of the engine into an output that keeps a mark, without the ledger."""
    once: Any = Once(sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE), "")  # type: ignore[arg-type]
    numbers: Iterator[int] = count(1)

    def write() -> None:
        number = next(numbers)
        once.write(frame, Batch("benchmark", "token", number, (OffsetRange(*PARTITION, number, number + 1),)))

    return write


def by_ledger(frame: DataFrame, url: str, table: str) -> Way:
    """Return the way of the engine into a table of the ledger's own database."""
    ledger = Ledger(open_store(url), "benchmark")
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    rows = Table(url, table).rows

    def write() -> None:
        start = ledger.snapshot.positions[PARTITION].offset
        batch = ledger.batch([OffsetRange(*PARTITION, start, start + 1)])
        finish = rows.stage(frame, batch)
        with ledger.transaction(batch) as connection:
            finish(connection)

    return write


def by_jdbc(frame: DataFrame, url: str, driver: str, table: str = "jdbc") -> Way:
    """Return the way of Spark's own JDBC writer."""
    options = {"url": url, "dbtable": table, "driver": driver}
    return lambda: frame.write.format("jdbc").options(**options).mode("append").save()


def by_copy(frame: DataFrame, url: str) -> Way:
    """Return the way of tasks that copy into the table itself, each in a transaction of its own."""
    database = PostgreSQLDatabase(url)
    statements = task.Statements(
        "select", "copy copied (attempt, id, name, amount, ts, note) from stdin (format binary)"
    )
    arguments: tuple[Any, ...] = (database.executors, database.address, statements, [], few.NONE)
    write = ship(task.copy_rows, arguments, (errors, environment, few, limits, task))
    return lambda: frame.mapInArrow(write, few.RESULT).collect()


Ways = Iterator[tuple[Mapping[str, Way], int, Callable[[], Mapping[str, int]]]]
"""The ways, the first one the base; the process whose CPU does not count; and how rows are counted."""


_COLUMNS = {"id": pa.int64(), "name": pa.string(), "amount": pa.float64(), "note": pa.string()}
_SCHEMA = pa.schema([*_COLUMNS.items(), ("ts", pa.timestamp("us", "UTC"))])  # of `orders`


@contextmanager
def topic(spark: SparkSession, rows: int) -> Ways:
    """A topic of Kafka with two partitions."""
    frame = cached(spark.range(0, rows, 1, 2).selectExpr(*MESSAGES))
    with KafkaServer() as kafka:
        names = ("tuned", "plain", "once", "python")
        for name in names:
            kafka.create_topic(name, 2)

        def by_spark(name: str, options: Mapping[str, str]) -> Way:
            every = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": name, **options}
            return lambda: frame.write.format("kafka").options(**every).save()

        def counted() -> dict[str, int]:
            asked = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap)
            asked = asked.option("kafka.isolation.level", "read_committed")
            return {name: asked.option("subscribe", name).load().count() for name in names}

        ways = {
            "spark, tuned": by_spark("tuned", TUNED),
            "spark, as it comes": by_spark("plain", {}),
            "Topic": by_mark(frame, Topic(kafka.bootstrap, "once")),
            "Topic, in Python": by_mark(frame, Topic(kafka.bootstrap, "python", kafka=IN_PYTHON)),
        }
        yield ways, kafka.process.pid, counted


@contextmanager
def files(spark: SparkSession, rows: int) -> Ways:
    """Parquet files in a local folder."""
    frame, numbers = orders(spark, rows), count(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = f"{folder}/plain", f"{folder}/files"
        ways = {
            "write.parquet": lambda: frame.write.parquet(f"{plain}/batch={next(numbers)}"),
            "Files": by_mark(frame, Files(Path(ours))),
        }

        def counted() -> dict[str, int]:
            return {where: spark.read.parquet(where).count() for where in (plain, ours) if Path(where).exists()}

        yield ways, 0, counted


@contextmanager
def delta(spark: SparkSession, rows: int) -> Ways:
    """A local Delta Lake table."""
    frame, numbers = orders(spark, rows), count(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = f"{folder}/plain", f"{folder}/delta"
        Lake.create(ours, _SCHEMA)
        ways = {
            "write.parquet": lambda: frame.write.parquet(f"{plain}/batch={next(numbers)}"),
            "DeltaTable": by_mark(frame, DeltaTable(ours)),
        }

        def counted() -> dict[str, int]:
            there = {plain: spark.read.parquet(plain).count()} if Path(plain).exists() else {}
            return {**there, ours: Lake(ours).to_pyarrow_dataset().count_rows()}

        yield ways, 0, counted


@contextmanager
def iceberg(spark: SparkSession, rows: int) -> Ways:
    """A local Iceberg table, with its catalog in SQLite."""
    frame, numbers = orders(spark, rows), count(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, about = f"{folder}/plain", {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder}
        with SqlCatalog("lake", **about) as catalog:
            catalog.create_namespace("shop")
            tables = [catalog.create_table(f"shop.{name}", _SCHEMA) for name in ("ours", "driver")]
            ways = {
                "write.parquet": lambda: frame.write.parquet(f"{plain}/batch={next(numbers)}"),
                "pyiceberg, on the driver": lambda: tables[1].append(frame.toArrow().select(_SCHEMA.names)),
                "IcebergTable": by_mark(frame, IcebergTable("shop.ours", catalog="lake", properties=about)),
            }

            def counted() -> dict[str, int]:
                there = {plain: spark.read.parquet(plain).count()} if Path(plain).exists() else {}
                return {**there, **{"/".join(each.name()): each.refresh().scan().count() for each in tables}}

            yield ways, 0, counted


@contextmanager
def table(spark: SparkSession, rows: int) -> Ways:
    """A table of PostgreSQL."""
    frame, names = orders(spark, rows), ("here", "elsewhere", "jdbc", "rewritten", "copied")
    with PostgreSQLServer(settings=SERVER) as server:
        url = server.url(server.create_database())
        with psycopg.connect(url, autocommit=True) as connection:
            for name in names:
                connection.execute(
                    f"create table {name} (id bigint, name text, amount float8, ts timestamptz, note text, "
                    "attempt bigint)".encode()
                )

            def counted() -> dict[str, int]:
                return {name: connection.execute(f"table {name}".encode()).rowcount for name in names}

            jdbc = url.replace("postgresql://postgres@", "jdbc:postgresql://") + "?user=postgres"
            driver = "org.postgresql.Driver"
            ways = {
                "Table, in the ledger's database": by_ledger(frame, url, "here"),
                "Table elsewhere": by_mark(frame, Table(url, "elsewhere")),
                "spark's jdbc": by_jdbc(frame, jdbc, driver),
                "spark's jdbc, inserts rewritten": by_jdbc(
                    frame, f"{jdbc}&reWriteBatchedInserts=true", driver, "rewritten"
                ),
                "copy, a task that is retried doubles its rows": by_copy(frame, url),
            }
            yield ways, server.process.pid, counted


@contextmanager
def mysql(spark: SparkSession, rows: int) -> Ways:
    """A table of MariaDB, by MySQL's drivers."""
    frame, names = (
        orders(spark, rows),
        ("jdbc", "rewritten", "here", "elsewhere"),
    )
    with MariaDBServer() as server:
        url = server.url(server.create_database())
        parts = urlsplit(url)
        connection = pymysql.connect(
            host=parts.hostname,
            port=parts.port or 0,
            user=parts.username or "",
            ssl_disabled=True,
            database=parts.path[1:],
            autocommit=True,
        )
        with connection, connection.cursor() as cursor:
            for name in names:
                cursor.execute(
                    f"create table {name} (id bigint, name varchar(100), amount double, ts timestamp(6), note text)"
                )

            def counted() -> dict[str, int]:
                found = {}
                for name in names:
                    cursor.execute(f"select count(*) from {name}")  # noqa: S608 - names of ours
                    [[found[name]]] = cursor.fetchall()
                return found

            plain = f"jdbc:mysql://{parts.hostname}:{parts.port}{parts.path}?user={parts.username}"
            driver = "com.mysql.cj.jdbc.Driver"
            ways = {
                "spark's jdbc": by_jdbc(frame, plain, driver),
                "spark's jdbc, statements rewritten": by_jdbc(
                    frame, f"{plain}&rewriteBatchedStatements=true", driver, "rewritten"
                ),
                "Table, in the ledger's database": by_ledger(frame, url, "here"),
                "Table elsewhere": by_mark(frame, Table(url, "elsewhere")),
            }
            yield ways, server.process.pid, counted


def orders(spark: SparkSession, rows: int) -> DataFrame:
    """Return rows of about 100 bytes each, all in memory."""
    return cached(spark.range(rows, numPartitions=2).selectExpr(*ROWS))


def cached(frame: DataFrame) -> DataFrame:
    """Return the frame, with all its rows in memory."""
    frame = frame.cache()
    frame.count()
    return frame


def cpu_s(without: int) -> float:
    """Return the seconds of CPU of this process and all below it, but for one of them and all below that."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total = 0
    for pid, (_, ticks) in parents.items():
        line = [pid]
        while line[-1] in parents and line[-1] not in {os.getpid(), without}:
            line.append(parents[line[-1]][0])
        total += ticks if line[-1] == os.getpid() else 0
    return total / TICKS


def measure(ways: Mapping[str, Way], server: int, runs: int, warm: int) -> dict[str, dict[str, float]]:
    """Return the medians of each way, in seconds by the clock and of CPU, and their ratios to the first way."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for run in range(-warm, runs):
        for name, way in ways.items():
            began, cpu = time.perf_counter(), cpu_s(server)
            way()
            took = time.perf_counter() - began, cpu_s(server) - cpu
            say(f"{'warm up' if run < 0 else f'run {run}'}: {name} {took[0]:.2f} s, {took[1]:.2f} s of CPU")
            if run >= 0:
                found[name].append(took)
    medians = {name: [statistics.median(each) for each in zip(*all_, strict=True)] for name, all_ in found.items()}
    base = next(iter(medians.values()))
    return {
        name: {
            "wall_s": round(wall, 2),
            "cpu_s": round(cpu, 2),
            "wall_ratio": round(wall / base[0], 2),
            "cpu_ratio": round(cpu / base[1], 2),
        }
        for name, (wall, cpu) in medians.items()
    }


def unchecked_rows(batch: pa.RecordBatch, limits: object) -> None:
    """Look at no value."""


def unchecked_frame(frame: DataFrame, layout: object) -> DataFrame:  # noqa: ARG001 - in the place of `checked`
    """Return the frame, which looks at no value."""
    return frame


OURS: Mapping[str, tuple[str, Any, str, Any]] = {
    "topic": ("Topic", topic_task, "check", unchecked_rows),
    "files": ("Files", values, "checked", unchecked_frame),
    "delta": ("DeltaTable", delta_task, "check", unchecked_rows),
    "iceberg": ("IcebergTable", iceberg_task, "check", unchecked_rows),
    "table": ("Table elsewhere", task, "check", unchecked_rows),
    "mysql": ("Table elsewhere", mysql_task, "check", unchecked_rows),
}
"""Our way into each output, and where its look at each value is, with what is there instead."""


def of_checks(output: str, ways: Mapping[str, Way]) -> Mapping[str, Way]:
    """Return our way into an output without its look at each value, and with it; both pickle their code anew."""
    name, module, function, instead = OURS[output]
    usual = getattr(module, function)

    def write(chosen: Any) -> None:
        pickle_by_value._code.cache_clear()  # noqa: SLF001 - it would keep the other way's
        setattr(module, function, chosen)
        try:
            ways[name]()
        finally:
            setattr(module, function, usual)

    return {f"{name}, unchecked": partial(write, instead), name: partial(write, usual)}


TARGETS = {each.__name__: each for each in (topic, files, delta, iceberg, table, mysql)}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", nargs="*", metavar="OUTPUT", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--checks", action="store_true", help="what the look at each value costs in our sink")
    given = parser.parse_args()
    spark, result = open_session("jdbc", "jdbc-mysql"), {}
    for name in given.outputs or TARGETS:
        with TARGETS[name](spark, given.rows) as (ways, server, counted):
            tried = of_checks(name, ways) if given.checks else ways
            result[name] = measure(tried, server, given.runs, given.warm)
            there, wanted = counted(), given.rows * (given.runs + given.warm) * (2 if given.checks else 1)
            if {*there.values()} - ({0} if given.checks else set()) != {wanted}:
                raise SystemExit(f"{name}: {there}, and {wanted} rows were written")
        spark.catalog.clearCache()
    spark.stop()
    print(json.dumps({"rows": given.rows, "outputs": result}))


if __name__ == "__main__":
    main()
