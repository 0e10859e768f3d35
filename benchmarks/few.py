"""What few rows save: batches whose rows come with the answers of the tasks, by those that are staged in a table.

    python benchmarks/few.py [--rows 10 100 1000 10000 100000] [--runs 50] [--tasks 2] [SERVER…]

No Spark: the tasks of a batch run in this process, one after another, each with so many rows of about 100 bytes, so
that only our work and the server's count. The driver then merges all rows and commits them. Both ways take turns. `ms`
is the median of a batch by the clock, `ratio` that of both ways, and `made` how many rows a batch adds to `pg_class`
and `pg_attribute`, which vacuum has to remove.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pymysql
from pyspark.sql.types import StructType

from offsetkeeper.core.batch import Batch
from offsetkeeper.sinks import Table, few
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from tasks import say

WAYS = {"staged": few.NONE, "with the answer": few.Few(1 << 30, 1 << 30)}
_SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB"}  # else a checkpoint falls into one run and not another
_FIELDS = {"id": "long", "name": "string", "amount": "double", "ts": "timestamp", "note": "string"}
_MADE = "select sum(n_tup_ins) from pg_stat_sys_tables where relname in ('pg_class', 'pg_attribute')"
_ARROW = 10_000  # rows that Spark gives to a task at once
Place = tuple[str, Callable[[], int]]


class Tasks:
    """A frame whose tasks run here."""

    schema = StructType.fromJson(
        {"fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _FIELDS.items()]}
    )

    def __init__(self, tasks: int, rows: int) -> None:
        self._tasks = [_rows(number * rows, rows) for number in range(tasks)]
        self._done: list[tuple[Any, ...]] = []

    def mapInArrow(self, work: Any, _: str) -> Tasks:  # noqa: N802 - Spark's name
        """Do the work of all tasks."""
        done = [batch for task in self._tasks for batch in work(iter(task.to_batches(_ARROW)))]
        self._done = [tuple(row.values()) for batch in done for row in batch.to_pylist()]
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        """Return what the tasks have answered."""
        return self._done


def _rows(start: int, rows: int) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"customer {number % 5000}" for number in numbers],
            "amount": pa.array([number * 0.37 for number in numbers], pa.float64()),
            "ts": pa.array([1_700_000_000_000_000 + number for number in numbers], pa.timestamp("us", "UTC")),
            "note": [f"note {number} {'x' * 50}" for number in numbers],
        }
    )


@contextmanager
def postgresql() -> Iterator[Place]:
    """A database with a table `orders`, and how many rows its catalogs have got."""
    with PostgreSQLServer(settings=_SERVER) as server:
        url = server.url(server.create_database())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table orders (id bigint, name text, amount float8, ts timestamptz, note text)")

            def made() -> int:
                time.sleep(1.2)  # until other sessions have told
                [(found,)] = connection.execute(_MADE).fetchall()
                return int(found)

            yield url, made


@contextmanager
def mysql() -> Iterator[Place]:
    """A database of MariaDB with a table `orders`; its catalogs tell nothing."""
    with MariaDBServer() as server:
        url = server.url(server.create_database())
        parts = urlsplit(url)
        host, port, user = str(parts.hostname), parts.port or 0, parts.username or ""
        with (
            pymysql.connect(host=host, port=port, user=user, database=parts.path[1:], autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "create table orders (id bigint, name varchar(100), amount double, ts timestamp(6), note text)"
            )
            yield url, lambda: 0


SERVERS = {each.__name__: each for each in (postgresql, mysql)}


def measure(place: Place, tasks: int, rows: int, runs: int) -> dict[str, float]:
    """Return the medians of both ways in ms, their ratio, and what each batch has left in the catalogs."""
    url, made = place
    frame: Any = Tasks(tasks, rows)
    table, batch, usual = Table(url, "orders").rows, Batch("benchmark", "token", 1, ()), few.LIMIT
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    left: dict[str, float] = {}
    try:
        for run in range(-3, runs):
            for name, few.LIMIT in WAYS.items():
                began = time.perf_counter()
                table.write(frame, batch)
                if run >= 0:
                    times[name].append((time.perf_counter() - began) * 1000)
        for name, few.LIMIT in WAYS.items():
            before = made()
            for _ in range(5):
                table.write(frame, batch)
            left[f"made, {name}"] = (made() - before) / 5
    finally:
        few.LIMIT = usual
    medians = {name: statistics.median(each) for name, each in times.items()}
    staged, along = medians.values()
    return {**{name: round(each, 1) for name, each in medians.items()}, "ratio": round(along / staged, 2), **left}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"of {', '.join(SERVERS)}; all by default")
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 100, 1_000, 10_000, 100_000], help="of a task")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=2)
    given = parser.parse_args()
    result = {}
    for server in given.servers or SERVERS:
        with SERVERS[server]() as place:
            for rows in given.rows:
                result[f"{server}, {rows} rows"] = measure(place, given.tasks, rows, given.runs)
                say(f"{server}, {rows} rows: {result[f'{server}, {rows} rows']}")
    print(json.dumps({"benchmark": "few", "tasks": given.tasks, "batches": result}))


if __name__ == "__main__":
    main()
