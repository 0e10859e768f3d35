"""What few rows save: batches whose rows come with the answers of the tasks, by those that are staged in a table.

    python benchmarks/few.py [--rows 20 200 2000 20000 200000] [--runs 20] [SERVER…]

Each batch has two tasks with half of its rows of about 100 bytes, which are in Spark's memory, and goes into a table of
the ledger's database. Both ways take turns. `ms` is the median of a batch by the clock, `ratio` that of both ways, and
`made` how many rows a batch adds to `pg_class` and `pg_attribute`, which vacuum has to remove.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pymysql
from pyspark.sql import SparkSession

from offsetkeeper.sinks import few
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from outputs import SERVER, by_ledger, orders
from reading import open_session
from tasks import say

WAYS = {"staged": few.NONE, "with the answer": few.Few(1 << 30, 1 << 30)}
_MADE = "select sum(n_tup_ins) from pg_stat_sys_tables where relname in ('pg_class', 'pg_attribute')"
Place = tuple[str, Callable[[], int]]


@contextmanager
def postgresql() -> Iterator[Place]:
    """A database with a table `orders`, and how many rows its catalogs have got."""
    with PostgreSQLServer(settings=SERVER) as server:
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


def measure(spark: SparkSession, place: Place, rows: int, runs: int) -> dict[str, float]:
    """Return the medians of both ways in ms, their ratio, and what each batch has left in the catalogs."""
    url, made = place
    write = by_ledger(orders(spark, rows), url, "orders")
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    usual = few.LIMIT
    try:
        for run in range(-3, runs):
            for name, few.LIMIT in WAYS.items():
                began = time.perf_counter()
                write()
                if run >= 0:
                    times[name].append((time.perf_counter() - began) * 1000)
        left = {}
        for name, few.LIMIT in WAYS.items():
            before = made()
            for _ in range(5):
                write()
            left[f"made, {name}"] = (made() - before) / 5
    finally:
        few.LIMIT = usual
        spark.catalog.clearCache()
    medians = {name: statistics.median(each) for name, each in times.items()}
    staged, along = medians.values()
    return {**{name: round(each, 1) for name, each in medians.items()}, "ratio": round(along / staged, 2), **left}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"of {', '.join(SERVERS)}; all by default")
    parser.add_argument("--rows", type=int, nargs="+", default=[20, 200, 2_000, 20_000, 200_000])
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    spark, result = open_session(), {}
    for server in given.servers or SERVERS:
        with SERVERS[server]() as place:
            for rows in given.rows:
                result[f"{server}, {rows} rows"] = measure(spark, place, rows, given.runs)
                say(f"{server}, {rows} rows: {result[f'{server}, {rows} rows']}")
    spark.stop()
    print(json.dumps({"benchmark": "few", "batches": result}))


if __name__ == "__main__":
    main()
