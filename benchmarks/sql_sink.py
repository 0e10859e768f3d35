"""How long a batch takes into PostgreSQL: exactly once by `Table`, by Spark's JDBC, and by a plain parallel COPY.

    python benchmarks/sql_sink.py --rows 1000000 --runs 5

The rows are the same cached frame for all, of about 100 bytes each; the table is new each time. The ways are run one
after the other in each round, after a round that does not count. The last line is JSON: medians in seconds, and ratios.
The plain COPY is the fastest that executors can do with no guarantee at all: a task that is retried doubles its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing

import psycopg
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import errors
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import OffsetRange, Position, TopicPartition
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.sinks import Table
from offsetkeeper.sinks.postgresql import Session, task
from offsetkeeper.stores import open_store
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.postgresql import PostgreSQLServer

COLUMNS = "id bigint, name text, amount double precision, ts timestamptz, note text"
ROWS = (
    "id",
    "concat('customer ', id % 5000) as name",
    "rand(1) * 1000 as amount",
    "timestamp_micros(1700000000000000 + id * 1000003) as ts",
    "concat('note ', id, ' ', repeat('x', 50)) as note",
)
SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB"}  # else a checkpoint falls into one run and not another
PARTITION = TopicPartition("orders", 0)
Way = Callable[[], None]


def session() -> SparkSession:
    """Return a session of two local cores with the JDBC driver."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.jars": ",".join(map(str, fetch_jars("jdbc"))),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master("local[2]").appName("sql_sink").getOrCreate()


def by_table(frame: DataFrame, url: str, ledger: Ledger) -> Way:
    """Return the way of the engine, for exactly once."""
    table = Table(url, "orders")

    def write() -> None:
        start = ledger.snapshot.positions[PARTITION].offset
        batch = ledger.batch([OffsetRange(*PARTITION, start, start + 1)])
        finish = table.rows.stage(frame, batch)
        with ledger.transaction(batch) as connection:
            finish(connection)

    return write


def by_jdbc(frame: DataFrame, url: str, parameters: str = "") -> Way:
    """Return the way of Spark's own JDBC writer."""
    jdbc = url.replace("postgresql://postgres@", "jdbc:postgresql://") + f"?user=postgres{parameters}"
    options = {"url": jdbc, "dbtable": "orders", "driver": "org.postgresql.Driver"}
    return lambda: frame.write.format("jdbc").options(**options).mode("append").save()


def by_copy(frame: DataFrame, url: str) -> Way:
    """Return the way of tasks that copy into the table itself, each in a transaction of its own."""
    session = Session(url)
    statement = "copy orders (id, name, amount, ts, note) from stdin (format binary)"
    write = ship(task.copy_rows, (session.executors, session.address, statement), (errors, task))

    def copy() -> None:
        frame.mapInArrow(write, task.RESULT).collect()

    return copy


def measure(ways: Mapping[str, Way], url: str, rows: int, runs: int) -> dict[str, list[float]]:
    """Return the seconds of each way's runs."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with psycopg.connect(url, autocommit=True) as connection:
        for run in range(runs + 1):
            for name, way in ways.items():
                connection.execute("drop table if exists orders")
                connection.execute(f"create table orders ({COLUMNS})".encode())
                connection.execute("checkpoint")
                began = time.perf_counter()
                way()
                took = time.perf_counter() - began
                [[found]] = connection.execute("select count(*) from orders").fetchall()
                if found != rows:
                    raise SystemExit(f"{name} wrote {found} rows of {rows}")
                print(f"{'warm up' if run == 0 else f'run {run}'}: {name} {took:.2f} s", flush=True)
                if run:
                    seconds[name].append(took)
    return seconds


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=8)
    options = parser.parse_args()
    spark = session()
    frame = spark.range(options.rows, numPartitions=options.partitions).selectExpr(*ROWS).cache()
    frame.count()
    with PostgreSQLServer(settings=SERVER) as server:
        url = server.url(server.create_database())
        with closing(open_store(url)) as store:
            ledger = Ledger(store, "benchmark")
            ledger.acquire()
            ledger.place({PARTITION: Position(0)})
            ways = {
                "table": by_table(frame, url, ledger),
                "jdbc": by_jdbc(frame, url),
                "jdbc_rewrite": by_jdbc(frame, url, "&reWriteBatchedInserts=true"),
                "copy": by_copy(frame, url),
            }
            seconds = measure(ways, url, options.rows, options.runs)
    spark.stop()
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    result = {
        "benchmark": "sql_sink",
        "rows": options.rows,
        "runs": options.runs,
        "seconds": {name: round(median, 3) for name, median in medians.items()},
        "times_as_long_as_table": {name: round(median / medians["table"], 2) for name, median in medians.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
