"""What rows cost on their way into a table of PostgreSQL: what exactly once adds to plain COPY, and what else there is.

    python benchmarks/copying.py [--rows 1000000] [--runs 5]

No Spark: two connections copy rows of about 100 bytes that are ready in memory, as two tasks do, so that only the
server counts. All ways take turns. `plain` is a COPY into the table from each connection, each with a commit of its
own: after a failure half of a batch is there. The others are all or nothing. `staged` is what `Table` does; its parts
are shown too. `wal` is the bytes that the server wrote ahead, in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg
from psycopg import sql

from offsetkeeper.testing.postgresql import PostgreSQLServer

_SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_prepared_transactions": "4"}
_COLUMNS = "id bigint, name text, amount float8, ts timestamptz, note text"
_ROWS = """
    copy (select id::bigint, 'customer ' || id % 5000, id * 0.37::float8,
        timestamptz 'epoch' + id * interval '1 second', 'note ' || id || repeat('x', 50)
        from generate_series({}, {}) id) to stdout (format binary)"""
Parts = dict[str, float]
Way = Callable[[str], Parts]


class Server:
    """A database, two connections that copy, and one that does the rest.

    Args:
        url: of the database.
        rows: to copy.
    """

    def __init__(self, url: str, rows: int) -> None:
        self.driver, *self.tasks = (psycopg.connect(url, autocommit=True) for _ in range(3))
        half = rows // 2
        self.halves = [self._made(1, half), self._made(half + 1, rows)]
        self._pool = ThreadPoolExecutor(2)

    def run(self, *statements: str, on: psycopg.Connection | None = None) -> None:
        """Execute statements."""
        for each in statements:
            (on or self.driver).execute(each.encode())

    def copy(self, table: str, half: int, on: psycopg.Connection) -> None:
        """Copy one half of the rows."""
        statement = sql.SQL("copy {} from stdin (format binary)").format(sql.Identifier(table))
        with on.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(self.halves[half])

    def together(self, work: Callable[[int, psycopg.Connection], None]) -> None:
        """Do something on both connections at once."""
        list(self._pool.map(work, range(2), self.tasks))

    def timed(self, parts: Parts, name: str, act: Callable[[], None]) -> None:
        """Do it, and note the milliseconds it took."""
        began = time.perf_counter()
        act()
        parts[name] = (time.perf_counter() - began) * 1000

    def wal(self) -> int:
        """Return the bytes that were ever written ahead."""
        [(found,)] = self.driver.execute("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')").fetchall()
        return int(found)

    def _made(self, first: int, last: int) -> bytes:
        with self.driver.cursor() as cursor, cursor.copy(_ROWS.format(first, last).encode()) as rows:
            return b"".join(map(bytes, rows))


def ways(server: Server) -> dict[str, Way]:
    """Return each way to get all rows into a table; a way returns the milliseconds of its parts."""
    numbers = count()

    def copies(table: str) -> Callable[[], None]:
        return lambda: server.together(lambda half, on: server.copy(table, half, on))

    def plain(table: str) -> Parts:
        parts: Parts = {}
        server.timed(parts, "copy", copies(table))
        return parts

    def staged(table: str) -> Parts:
        parts: Parts = {}
        server.run(f"create unlogged table staging ({_COLUMNS}) with (autovacuum_enabled = false)")
        server.timed(parts, "copy into unlogged", copies("staging"))
        server.run("begin")
        server.timed(parts, "insert select", lambda: server.run(f"insert into {table} table staging"))
        server.run("drop table staging")
        server.timed(parts, "commit", lambda: server.run("commit"))
        return parts

    def one(table: str) -> Parts:
        """All rows through the driver: its own cost, to have them, is not counted."""
        parts: Parts = {}
        server.run("begin")
        for half in range(2):
            server.timed(parts, f"copy {half}", lambda: server.copy(table, half, server.driver))  # noqa: B023 - done now
        server.timed(parts, "commit", lambda: server.run("commit"))
        return parts

    def prepared(table: str) -> Parts:
        parts: Parts = {}

        def work(half: int, on: psycopg.Connection) -> None:
            server.run("begin", on=on)
            server.copy(table, half, on)
            server.run(f"prepare transaction 'half {half}'", on=on)

        server.timed(parts, "copy and prepare", lambda: server.together(work))
        both = "commit prepared 'half 0'", "commit prepared 'half 1'"
        server.timed(parts, "commit", lambda: server.run(*both))
        return parts

    def attached(table: str) -> Parts:
        parts: Parts = {}
        number = next(numbers)
        part = f"{table}_{number}"
        server.run(f"create table {part} ({_COLUMNS}, batch int not null default {number} check (batch = {number}))")

        def work(half: int, on: psycopg.Connection) -> None:
            columns = sql.SQL("copy {} (id, name, amount, ts, note) from stdin (format binary)")
            with on.cursor() as cursor, cursor.copy(columns.format(sql.Identifier(part))) as copy:
                copy.write(server.halves[half])

        server.timed(parts, "copy", lambda: server.together(work))
        attach = f"begin; alter table {table} attach partition {part} for values in ({number}); commit"
        server.timed(parts, "attach", lambda: server.run(attach))
        return parts

    return {"plain": plain, "staged": staged, "one": one, "prepared": prepared, "attached": attached}


def measure(server: Server, rows: int, runs: int) -> dict[str, Parts]:
    """Return the medians of each way, by turns, and its ratio to the first."""
    every = ways(server)
    for name in every:
        partitioned = name == "attached"
        how = "(id bigint, name text, amount float8, ts timestamptz, note text, batch int) partition by list (batch)"
        server.run(f"create table {name} {how if partitioned else f'({_COLUMNS})'}")
    took: dict[str, list[Parts]] = {name: [] for name in every}
    for number in range(runs + 1):
        for name, way in every.items():
            server.run("checkpoint")
            wal, began = server.wal(), time.perf_counter()
            parts = way(name)
            parts = {"all": (time.perf_counter() - began) * 1000, **parts, "wal": (server.wal() - wal) / 1e6}
            [(found,)] = server.driver.execute(
                sql.SQL("select count(*) from {}").format(sql.Identifier(name))
            ).fetchall()
            if found != rows:
                raise RuntimeError(f"{name}: {found} rows, not {rows}")
            server.run(f"truncate {name}")
            if number:
                took[name].append(parts)
        print(f"round {number}", file=sys.stderr)
    return {name: summed(each, took["plain"]) for name, each in took.items()}


def summed(runs: Sequence[Parts], base: Sequence[Parts]) -> Parts:
    """Return the medians of the parts, and the median of the ratios to the base."""
    medians = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
    ratio = statistics.median(a["all"] / b["all"] for a, b in zip(runs, base, strict=True))
    return {**medians, "ratio": round(ratio, 2)}


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    with PostgreSQLServer(settings=_SERVER) as server:
        found = measure(Server(server.url(server.create_database()), chosen.rows), chosen.rows, chosen.runs)
    print(json.dumps({"benchmark": "copying", "rows": chosen.rows, "load": os.getloadavg()[1], "ms": found}))


if __name__ == "__main__":
    main()
