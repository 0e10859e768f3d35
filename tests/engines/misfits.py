"""Each kind of output with frames that fit it, frames that do not, and a value that it cannot hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import psycopg
import pyarrow as pa
import pytest

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper.errors import SinkMismatch
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, Table, Topic
from sinks.topics import committed

PLACE = ("topic", "partition", "offset")
LETTERS = (
    'create table letters (topic text, "partition" int, "offset" int, timestamp text, key blob, value blob, '
    "error text, batch text)"
)


class Output(NamedTuple):
    """An output, and frames for it as expressions over records.

    Attributes:
        sink: the sink.
        rows: returns the number of rows in it.
        fits: a frame that fits.
        misfits: frames that do not: a column renamed, dropped, or of another type.
        value: a frame that fits; its value for the record `bad` cannot be held. None if the sink itself refuses none.
        guarantee: of the run.
    """

    sink: Any
    rows: Callable[[], int]
    fits: Sequence[str]
    misfits: Sequence[Sequence[str]]
    value: Sequence[str] | None = None
    guarantee: str = "exactly_once"


MISFITS = (
    ("topic", "partition", "offset as place"),
    ("topic", "partition"),
    ("topic", "partition", "cast(offset as string) as offset"),
)
"""Of a table with the columns of `PLACE`, of which `offset` must have a value."""


def sqlite(lab: Lab, *_: Any) -> Output:
    """Return a table in the store's own database."""
    path = lab.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'create table orders (topic text, "partition" int, "offset" int not null, price real, item text)'
        )
    value = (*PLACE, "if(value = 'bad', double('NaN'), 1D) as price")
    return Output(Table(lab.store, "orders"), lambda: _counted(sqlite3.connect(path)), PLACE, MISFITS, value)


def postgresql(_: Lab, request: pytest.FixtureRequest, __: Path) -> Output:
    """Return a table in another database than the store's."""
    url = request.getfixturevalue("database")
    with psycopg.connect(url) as connection:
        connection.execute('create table orders (topic text, partition int, "offset" bigint not null, item text)')
    return Output(Table(url, "orders"), lambda: _counted(psycopg.connect(url)), PLACE, MISFITS)


def in_transaction(lab: Lab, request: pytest.FixtureRequest, path: Path) -> Output:
    """Return a table in PostgreSQL, with the store in the same database."""
    made = postgresql(lab, request, path)
    lab.store = request.getfixturevalue("database")
    return made


def mysql(_: Lab, request: pytest.FixtureRequest, __: Path) -> Output:
    """Return a table in MariaDB."""
    server = request.getfixturevalue("mariadb_server")
    url = server.url(server.create_database())
    do(url, "create table orders (topic text, `partition` int, `offset` bigint not null, price double, item text)")
    value = (*PLACE, "if(value = 'bad', double('NaN'), 1D) as price")
    return Output(Table(url, "orders"), lambda: _counted(connect(url)), PLACE, MISFITS, value)


def topic(lab: Lab, request: pytest.FixtureRequest, _: Path) -> Output:
    """Return a topic."""
    name = request.getfixturevalue("topic")(1, {"max.message.bytes": "10000"})
    long = "if(value = 'bad', string(repeat('x', 20000)), string(value)) as value"
    return Output(
        Topic(lab.kafka.bootstrap, name),
        lambda: len(committed(lab.kafka.bootstrap, name)),
        ["value"],
        [["value as payload"], ["key"], ["array(value) as value"]],
        [long],
    )


def files(_: Lab, __: pytest.FixtureRequest, path: Path) -> Output:
    """Return a folder. Its batches may add columns and leave some out, but not those that it is partitioned by."""
    folder = path / "orders"

    def count() -> int:
        return sum(len(each.read_text().splitlines()) for each in folder.glob("batch=*/**/*.json"))

    return Output(
        Files(folder.as_uri(), format="json", partition_by=["partition"]),
        count,
        PLACE,
        [["partition as part", "offset"], ["offset"], ["partition", "string(offset) as offset"]],
    )


def delta(_: Lab, __: pytest.FixtureRequest, path: Path) -> Output:
    """Return a table of Delta Lake."""
    where = str(path / "orders")
    offset = pa.field("offset", pa.int64(), nullable=False)
    there = pa.schema([("topic", pa.string()), ("partition", pa.int32()), offset, ("item", pa.string())])
    deltalake.DeltaTable.create(where, schema=there)
    value = ("topic", "partition", "if(value = 'bad', null, offset) as offset")
    return Output(
        DeltaTable(where), lambda: deltalake.DeltaTable(where).to_pyarrow_table().num_rows, PLACE, MISFITS, value
    )


def cassandra(_: Lab, request: pytest.FixtureRequest, __: Path) -> Output:
    """Return a table of Cassandra."""
    server = request.getfixturevalue("cassandra_server")
    space = server.create_keyspace()
    with server.session() as session:
        session.execute(
            f"create table {space}.orders (topic text, part int, place bigint, item text, primary key (topic, place))"
        )

    def count() -> int:
        with server.session() as session:
            return len(session.execute(f"select * from {space}.orders").all())  # noqa: S608 - a test's own name

    fits = ("topic", "partition as part", "offset as place")
    wrong = (("topic", "partition", "offset as place"), ("topic",), ("topic", "string(offset) as place"))
    empty = ("if(value = 'bad', '', topic) as topic", "offset as place")  # only the server knows that it is no key
    return Output(Cassandra(server.url(space), "orders", key=["topic", "place"]), count, fits, wrong, empty)


def function(_: Lab, __: pytest.FixtureRequest, ___: Path) -> Output:
    """Return a function that knows which columns it takes."""
    kept: list[Any] = []

    def write(frame: Any, _batch: Any) -> None:
        if frame.columns != list(PLACE):
            raise SinkMismatch("the frame does not fit")
        kept.extend(frame.collect())

    return Output(write, lambda: len(kept), PLACE, [["topic"]], guarantee="at_least_once")


KINDS: Mapping[str, Callable[[Lab, pytest.FixtureRequest, Path], Output]] = {
    "SQLite": sqlite,
    "PostgreSQL": postgresql,
    "PostgreSQL, in the store's transaction": in_transaction,
    "MySQL": mysql,
    "Topic": topic,
    "Files": files,
    "DeltaTable": delta,
    "Cassandra": cassandra,
    "function": function,
}


def _counted(connection: Any) -> int:
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute("select count(*) from orders")
        [[count]] = cursor.fetchall()
        return int(count)
