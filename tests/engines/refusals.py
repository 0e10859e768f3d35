"""Each kind of output with records whose values its server refuses, each for a reason of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Delta

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper.sinks import Cassandra, DeltaTable, Files, Table, Topic
from sinks.topics import committed

UUID = "00000000-0000-0000-0000-000000000001"


class Refusing(NamedTuple):
    """An output, and what its server refuses.

    Attributes:
        sink: the sink.
        offsets: returns the offsets of the source whose rows it has, sorted.
        columns: the frame, as expressions over records; the value of a record names what is wrong in its row.
        wrong: the values whose rows are refused.
    """

    sink: Any
    offsets: Callable[[], Sequence[int]]
    columns: Sequence[str]
    wrong: Sequence[str]


def _if(value: str, bad: str, good: str, name: str) -> str:
    return f"if(value = '{value}', {bad}, {good}) as {name}"


SQL = (
    'offset as "offset"'.replace('"', "`"),
    _if("long", "'abcd'", "'abc'", "short"),
    _if("check", "0", "1", "positive"),
    _if("unique", "-1", "int(offset)", "single"),
    _if("null", "null", "1", "needed"),
    _if("parent", "7", "1", "parent"),
)
WRONG = ("long", "check", "unique", "null", "parent")
POSTGRESQL = """
    create table parents (id int primary key);
    insert into parents values (1);
    create table orders ("offset" bigint, short varchar(3), positive int check (positive > 0), single int unique,
        needed int not null, parent int references parents deferrable initially deferred, doc jsonb, id uuid, text text,
        small numeric(3));
    create function refuse() returns trigger language plpgsql as
        $$ begin if new.text = 'refused' then raise exception 'not this one'; end if; return new; end $$;
    create trigger refuses before insert on orders for each row execute function refuse();
    insert into orders values (null, 'a', 1, -1, 1, 1)"""
MYSQL = (
    "create table parents (id int primary key)",
    "insert into parents values (1)",
    (
        "create table orders (`offset` bigint, short varchar(3), positive int check (positive > 0), single int unique, "
        "needed int not null, parent int, doc json, foreign key (parent) references parents (id))"
    ),
    "insert into orders values (null, 'a', 1, -1, 1, 1, null)",
)
SQLITE = """
    create table parents (id int primary key);
    create table orders ("offset" int, short text check (length(short) < 4), positive int check (positive > 0),
        single int unique, needed int not null, parent int check (parent = 1));
    insert into orders values (null, 'a', 1, -1, 1, 1)"""


def postgresql(_: Lab, request: pytest.FixtureRequest, __: Path) -> Refusing:
    """Return a table in another database than the store's."""
    url = request.getfixturevalue("database")
    do(url, POSTGRESQL)
    columns = (
        *SQL,
        _if("json", "'{'", "'{}'", "doc"),
        _if("uuid", "'x'", f"'{UUID}'", "id"),
        (
            "case value when 'nul' then string(x'6100') when 'trigger' then 'refused' when 'utf8' then string(x'FF') "
            "else 'a' end as text"
        ),
        _if("overflow", "decimal(1000)", "decimal(1)", "small"),
    )
    wrong = (*WRONG, "json", "uuid", "nul", "trigger", "utf8", "overflow")
    return Refusing(Table(url, "orders"), lambda: _offsets(connect(url), '"offset"'), columns, wrong)


def in_transaction(lab: Lab, request: pytest.FixtureRequest, path: Path) -> Refusing:
    """Return a table in PostgreSQL, with the store in the same database."""
    made = postgresql(lab, request, path)
    lab.store = request.getfixturevalue("database")
    return made


def mysql(_: Lab, request: pytest.FixtureRequest, __: Path) -> Refusing:
    """Return a table in MariaDB."""
    server = request.getfixturevalue("mariadb_server")
    url = server.url(server.create_database())
    do(url, *MYSQL)
    columns = (*SQL, _if("json", "'{'", "'{}'", "doc"))
    return Refusing(Table(url, "orders"), lambda: _offsets(connect(url), "`offset`"), columns, (*WRONG, "json"))


def sqlite(lab: Lab, *_: Any) -> Refusing:
    """Return a table in the store's own database."""
    with closing(connect(lab.store)) as connection:
        connection.executescript(SQLITE)
    return Refusing(Table(lab.store, "orders"), lambda: _offsets(connect(lab.store), '"offset"'), SQL, WRONG)


def topic(lab: Lab, request: pytest.FixtureRequest, _: Path) -> Refusing:
    """Return a topic."""
    name = request.getfixturevalue("topic")(1, {"max.message.bytes": "10000"})
    columns = (
        "string(offset) as key",
        "if(value = 'large', string(repeat('x', 20000)), string(value)) as value",
        "case value when 'missing' then 'no-such-topic' when 'name' then 'no topic!' end as topic",
        "if(value = 'partition', 7, null) as partition",
        "if(value = 'time', timestamp_millis(-5), timestamp_millis(5)) as timestamp",
        "if(value = 'header', array(struct(string(null) as key, binary('x') as value)), null) as headers",
    )

    def offsets() -> list[int]:
        return sorted(int(each.key) for each in committed(lab.kafka.bootstrap, name) if each.key)

    wrong = ("large", "missing", "name", "partition", "time", "header")
    return Refusing(Topic(lab.kafka.bootstrap, name), offsets, columns, wrong)


def files(_: Lab, __: pytest.FixtureRequest, path: Path) -> Refusing:
    """Return a folder."""
    folder = path / "orders"

    def offsets() -> list[int]:
        lines = [line for each in folder.glob("batch=*/**/*.json") for line in each.read_text().splitlines()]
        return sorted(int(line.partition('"offset":')[2].strip("}").partition(",")[0]) for line in lines)

    text = "if(value = 'utf8', string(x'FF'), 'a') as text"
    return Refusing(Files(folder.as_uri(), format="json"), offsets, ("offset", text), ("utf8",))


def delta(_: Lab, __: pytest.FixtureRequest, path: Path) -> Refusing:
    """Return a Delta table with a column that must have a value, and partitions."""
    folder = str(path / "orders")
    needed, offset = pa.field("needed", pa.int32(), nullable=False), pa.field("offset", pa.int64())
    schema = pa.schema([offset, needed, pa.field("text", pa.string()), pa.field("part", pa.string())])
    Delta.create(folder, schema, partition_by=["part"])

    def offsets() -> list[int]:
        return sorted(Delta(folder).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())

    columns = (
        "offset",
        _if("null", "null", "1", "needed"),
        "if(value = 'utf8', string(x'FF'), 'a') as text",
        "if(value = 'name', '__HIVE_DEFAULT_PARTITION__', 'a') as part",
    )
    return Refusing(DeltaTable(folder), offsets, columns, ("null", "utf8", "name"))


def cassandra(_: Lab, request: pytest.FixtureRequest, __: Path) -> Refusing:
    """Return a table of Cassandra."""
    server = request.getfixturevalue("cassandra_server")
    space = server.create_keyspace()
    with server.session() as session:
        session.execute(f"create table {space}.orders (topic text, place bigint, id uuid, primary key (topic, place))")

    def offsets() -> list[int]:
        with server.session() as session:
            return sorted(row[0] for row in session.execute(f"select place from {space}.orders"))  # noqa: S608 - ours

    columns = (
        (
            "case value when 'empty' then '' when 'utf8' then string(x'FF') when 'huge' then repeat('x', 70000) "
            "else topic end as topic"
        ),
        "if(value = 'null', null, offset) as place",
        _if("uuid", "'x'", f"'{UUID}'", "id"),
    )
    sink = Cassandra(server.url(space), "orders", key=["topic", "place"])
    return Refusing(sink, offsets, columns, ("empty", "utf8", "huge", "null", "uuid"))


KINDS: Mapping[str, Callable[[Lab, pytest.FixtureRequest, Path], Refusing]] = {
    "SQLite": sqlite,
    "PostgreSQL": postgresql,
    "PostgreSQL, in the store's transaction": in_transaction,
    "MySQL": mysql,
    "Topic": topic,
    "Files": files,
    "DeltaTable": delta,
    "Cassandra": cassandra,
}


def _offsets(connection: Any, name: str) -> list[int]:
    with closing(connection), closing(connection.cursor()) as cursor:
        cursor.execute(f"select {name} from orders where {name} is not null order by 1")  # noqa: S608 - ours
        return [int(each) for (each,) in cursor.fetchall()]
