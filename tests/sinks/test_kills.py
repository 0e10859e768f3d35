"""Servers of outputs and drivers are killed in the middle of landings: each batch is there once at the end."""

from __future__ import annotations

import json
import logging
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pymysql
import pytest
from deltalake import DeltaTable as Delta
from pyspark.sql import SparkSession

from offsetkeeper.errors import OutcomeUnknown, SinkError
from offsetkeeper.testing.conformance.landers import Record, batch_of, records
from offsetkeeper.testing.java import java
from sinks import killed_driver
from sinks.icebergs import Lake
from sinks.killed_driver import lander_of, write
from sinks.topics import values

log = logging.getLogger(__name__)
SERVERS = {
    "table, PostgreSQL": "postgresql_server",
    "table, MariaDB": "mariadb_server",
    "files, HDFS": "hdfs_server",
    "topic": "kafka_server",
}
MANY = 8
KINDS = {"table, PostgreSQL", "table, MariaDB", "table, SQLite", "files", "files, HDFS", "delta", "iceberg", "topic"}
LIMIT_S = 240
COLUMNS = ("id", "topic", "partition", "offset")


class Output:
    """An empty output of a kind.

    Attributes:
        kind: one of `KINDS`.
        place: of it, for a sink.
    """

    def __init__(self, kind: str, folder: Path, ask: Callable[[str], Any]) -> None:
        self.kind, self.place = kind, str(folder / kind.replace(", ", "-"))
        if kind == "files, HDFS":
            self.place = f"{ask('hdfs_server').rpc}/{folder.name}/files"
        elif kind == "topic":
            self.place = f"{ask('kafka_server').bootstrap}/{ask('topic')(2)}"
        elif kind == "delta":
            types = zip(COLUMNS, (pa.string(), pa.string(), pa.int32(), pa.int64()), strict=True)
            Delta.create(self.place, schema=pa.schema(list(types)))
        elif kind == "iceberg":
            types = zip(COLUMNS, (pa.string(), pa.string(), pa.int32(), pa.int64()), strict=True)
            Lake.made(Path(self.place)).create("records", pa.schema(list(types)))
        elif kind.startswith("table"):
            self._make_table(ask)

    def rows(self, spark: SparkSession) -> Counter[Record]:
        """Return what another program finds there."""
        if self.kind == "topic":
            brokers, name = self.place.split("/")
            return Counter(tuple(json.loads(text).values()) for text in values(brokers, name))
        if self.kind == "delta":
            return Counter(
                tuple(row[name] for name in COLUMNS) for row in Delta(self.place).to_pyarrow_table().to_pylist()
            )
        if self.kind == "iceberg":
            return Counter(Lake.at(Path(self.place)).rows("records"))
        if self.kind.startswith("files"):
            return Counter(tuple(row) for row in spark.read.parquet(self.place).select(*COLUMNS).collect())
        with closing(self._connected()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("select * from records")
            return Counter(tuple(row) for row in cursor.fetchall())

    def _make_table(self, ask: Callable[[str], Any]) -> None:
        self.place = f"sqlite:///{self.place}.db"
        if self.kind == "table, PostgreSQL":
            self.place = ask("database")
        elif self.kind == "table, MariaDB":
            server = ask("mariadb_server")
            self.place = server.url(server.create_database())
        quote = "`" if "Maria" in self.kind else '"'
        types = f"id varchar(99), topic varchar(99), {quote}partition{quote} int, {quote}offset{quote} bigint"
        with closing(self._connected()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(f"create table records ({types})")
            connection.commit()

    def _connected(self) -> Any:
        url = urlsplit(self.place)
        if url.scheme == "sqlite":
            return sqlite3.connect(url.path[1:] if url.path.startswith("//") else url.path)
        if url.scheme == "mysql":
            return pymysql.connect(host="127.0.0.1", port=url.port or 0, user="root", database=url.path[1:])
        return psycopg.connect(self.place)


@pytest.fixture
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Output]:
    """`output(kind)` makes one."""
    return lambda kind: Output(kind, tmp_path, request.getfixturevalue)


def expected(batches: int) -> Counter[Record]:
    """Return the rows of so many batches."""
    return Counter(row for sequence in range(1, batches + 1) for row in records(batch_of(sequence)))


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("table, PostgreSQL", 3),
        ("table, MariaDB", 3),
        *(
            pytest.param(kind, kills, marks=pytest.mark.soak)
            for kind, kills in {"table, PostgreSQL": 30, "table, MariaDB": 30, "files, HDFS": 8, "topic": 8}.items()
        ),
    ],
)
def test_a_server_that_is_killed_while_batches_land_has_each_once(
    spark: SparkSession, request: pytest.FixtureRequest, output: Callable[[str], Output], kind: str, kills: int
) -> None:
    """At moments that are spread over a landing, and a little beyond; the batch is then tried until it is there."""
    there, server = output(kind), request.getfixturevalue(SERVERS[kind])
    way, failed = lander_of(kind, there.place), 0
    took: list[float] = []
    began = time.monotonic()
    write(spark, kind, way, 1)
    write(spark, kind, replace(way, land=timed(way.land, took)), 2)
    log.info("%s: a landing takes %.3f s, the first batch took %.1f s", kind, took[0], time.monotonic() - began)
    chance = random.Random(kind)  # noqa: S311 - so that each run is the same, as far as clocks go
    for sequence in range(3, kills + 3):
        way = lander_of(kind, there.place)
        killer = threading.Timer(chance.uniform(0, 1.2 * took[0]), server.restart)  # which kills it first
        try:
            write(spark, kind, replace(way, land=beside(killer, way.land)), sequence)
        except (SinkError, OutcomeUnknown):
            failed += 1
        if killer.ident is None:  # it failed before it landed, as a connection to the server before was left
            killer.start()
        killer.join()
        write(spark, kind, lander_of(kind, there.place), sequence)
    log.info("%s: %d kills, %d within a landing", kind, kills, failed)
    assert there.rows(spark) == expected(kills + 2)
    assert failed or kills < MANY or kind == "topic"  # which waits for its broker


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("table, SQLite", 2),
        ("iceberg", 2),
        *(pytest.param(kind, 30 if kind == "iceberg" else 4, marks=pytest.mark.soak) for kind in sorted(KINDS)),
    ],
)
def test_a_driver_that_is_killed_while_batches_land_leaves_each_once(
    spark: SparkSession, output: Callable[[str], Output], kind: str, kills: int
) -> None:
    """Each time at a moment of its own within a landing; the next driver goes on."""
    there = output(kind)
    chance, batches = random.Random(1), kills + 1  # noqa: S311 - as above
    longest = 1.5 if kind == "topic" else 0.1 if kind.startswith(("files", "iceberg")) else 0.03
    for turn in range(1, kills + 1):
        assert run({kind: there.place}, batches, [kind, turn + 1, chance.uniform(0, longest)]) == -9
    assert run({kind: there.place}, batches, None) == 0
    assert there.rows(spark) == expected(batches)


def timed(land: Callable[..., object], took: list[float]) -> Callable[..., None]:
    """Return what lands, and notes how long that took."""

    def call(*arguments: Any) -> None:
        began = time.monotonic()
        land(*arguments)
        took.append(time.monotonic() - began)

    return call


def beside(killer: threading.Timer, land: Callable[..., object]) -> Callable[..., None]:
    """Return what lands while the killer waits for its moment."""

    def call(*arguments: Any) -> None:
        killer.start()
        land(*arguments)

    return call


def run(outputs: Mapping[str, str], batches: int, kill: Any) -> int:
    """Run a driver; return its exit code."""
    settings = json.dumps({"outputs": outputs, "batches": batches, "kill": kill})
    environment = os.environ | {
        "JAVA_HOME": str(java().resolve().parent.parent),
        "PYTHONPATH": ":".join(each for each in sys.path if each),
    }
    command = [sys.executable, killed_driver.__file__, settings]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode not in {0, -9}:
        raise AssertionError(done.stderr[-3000:])
    return done.returncode
