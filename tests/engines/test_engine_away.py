"""An output that is away for a while stops nothing: no attempt is spent, no record is quarantined, each row is once."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from engines.misfits import LETTERS
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import OffsetkeeperError, Refused
from offsetkeeper.sinks import Table, Topic
from offsetkeeper.sinks.postgresql import staging
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from sinks.topics import values

NewTopic = Callable[..., str]
TABLE = "create table orders (value text)"
TRIES = 4  # of which three fail


@pytest.fixture
def letters(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The database with the dead letters."""
    with closing(sqlite3.connect(tmp_path / "letters.db")) as connection:
        connection.execute(LETTERS)
        yield connection


def run(lab: Lab, source: str, to: Any, letters: sqlite3.Connection, hooks: Mapping[int, Callable[[], object]]) -> int:
    """Run a pipeline with one attempt for each batch; a hook is called at a call of its function. Return the calls."""
    calls = 0

    def process(frame: DataFrame, _: Batch) -> DataFrame:
        nonlocal calls
        calls += 1
        if calls in hooks:
            hooks[calls]()
        return frame.selectExpr("string(value) as value")

    [(_, _, file)] = letters.execute("pragma database_list").fetchall()
    pipeline = lab.pipeline(
        source,
        attempts=1,
        retry_timeout_s=60,
        policies=Policies(poison="quarantine"),
        dead_letters=Table(f"sqlite:///{file}", "letters"),
    )
    sink = Table(to, "orders") if isinstance(to, str) else to
    pipeline.run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")
    return calls


@contextmanager
def rows_in_postgresql(name: str, _: int) -> Iterator[Callable[[], list[str]]]:
    with psycopg.connect(name, autocommit=True) as connection:
        connection.execute(TABLE)
        yield lambda: [value for (value,) in connection.execute("select value from orders order by 1").fetchall()]


@contextmanager
def rows_in_mysql(name: str, port: int) -> Iterator[Callable[[], list[str]]]:
    with pymysql.connect(host="127.0.0.1", port=port, user="root", database=name, autocommit=True) as connection:

        def ask(statement: str) -> Any:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()

        ask(TABLE)
        yield lambda: [value for (value,) in ask("select value from orders order by 1")]


@contextmanager
def healing(proxy: TcpProxy) -> Iterator[None]:
    """Let the proxy take connections again when the ledger has tried in vain."""

    class Healing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Try 1 failed"):
                proxy.heal()

    handler, log = Healing(), logging.getLogger("offsetkeeper")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("kind", ["PostgreSQL", "PostgreSQL, in the store's transaction", "MySQL"])
def test_a_database_that_cannot_be_reached_for_a_while_gets_each_row_once(
    kind: str, lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, letters: sqlite3.Connection
) -> None:
    source = topic(1)
    lab.produce(source, "a", "b", "c")
    table: Callable[[str, int], AbstractContextManager[Callable[[], list[str]]]]
    if kind == "MySQL":
        maria: MariaDBServer = request.getfixturevalue("mariadb_server")
        name, port, table = maria.create_database(), maria.port, rows_in_mysql
    else:
        server: PostgreSQLServer = request.getfixturevalue("postgresql_server")
        name, port, table = request.getfixturevalue("database"), server.port, rows_in_postgresql
    with TcpProxy("127.0.0.1", port) as proxy, table(name, port) as rows:
        direct = maria.url(name) if kind == "MySQL" else name
        url = direct.replace(f":{port}", f":{proxy.port}")
        joined = "transaction" in kind
        if joined:  # the ledger waits for its store before the output gets another try
            lab.store = url
            with healing(proxy):
                calls = run(lab, source, url, letters, {1: proxy.refuse})
        else:
            calls = run(lab, source, url, letters, {1: proxy.refuse, TRIES: proxy.heal})
        assert rows() == ["a", "b", "c"]
        assert calls == (2 if joined else TRIES)
        assert letters.execute("select count(*) from letters").fetchall() == [(0,)]
        waits = [entry.reason for entry in lab.history() if entry.event == "wait"]
        assert [" its output is away since " in reason for reason in waits] == ([] if joined else [True])


def test_a_database_that_is_read_only_for_a_while_gets_each_row_once(
    lab: Lab, topic: NewTopic, database: str, letters: sqlite3.Connection
) -> None:
    """As after a failover, before the new primary is named."""
    source = topic(1)
    lab.produce(source, "a", "b", "c")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(TABLE)
        [(name,)] = admin.execute("select current_database()").fetchall()

        def read_only(value: str) -> Callable[[], None]:
            def change() -> None:
                admin.execute(f'alter database "{name}" set default_transaction_read_only = {value}')
                admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")

            return change

        assert run(lab, source, database, letters, {1: read_only("on"), TRIES: read_only("off")}) == TRIES
    with psycopg.connect(database) as connection:
        assert sorted(connection.execute("select value from orders").fetchall()) == [("a",), ("b",), ("c",)]
    assert letters.execute("select count(*) from letters").fetchall() == [(0,)]


@pytest.mark.parametrize("joined", [False, True], ids=["with a mark", "in the transaction"])
def test_a_table_that_somebody_has_locked_for_a_while_gets_each_row_once(
    lab: Lab,
    topic: NewTopic,
    database: str,
    letters: sqlite3.Connection,
    monkeypatch: pytest.MonkeyPatch,
    *,
    joined: bool,
) -> None:
    """As by a session that was left idle in its transaction: no wait is endless, and each is told."""
    monkeypatch.setattr(staging, "LOCK_WAIT_MS", 100)
    lab = Lab(lab.spark, lab.kafka, database) if joined else lab
    source = topic(1)
    lab.produce(source, "a", "b", "c")
    with psycopg.connect(database) as admin:
        admin.execute(TABLE)
        admin.commit()

        def lock() -> None:
            admin.execute("lock table orders in share mode")

        assert run(lab, source, database, letters, {1: lock, TRIES: admin.rollback}) == TRIES
        assert sorted(admin.execute("select value from orders").fetchall()) == [("a",), ("b",), ("c",)]
    assert letters.execute("select count(*) from letters").fetchall() == [(0,)]
    with lab.ledger() as ledger:
        told = [entry.reason for entry in ledger.history() if entry.event == "wait"]
    assert joined or "lock timeout" in " ".join(told)  # in the transaction nothing is begun that could be noted


def test_a_broker_that_cannot_be_reached_for_a_while_gets_each_row_once(
    lab: Lab, topic: NewTopic, letters: sqlite3.Connection
) -> None:
    """The broker of the output; the source is read as before."""
    source, target = topic(1), topic(1)
    lab.produce(source, "a", "b", "c")
    with lab.kafka.proxy() as proxy:
        to = Topic(proxy.address, target)
        assert run(lab, source, to, letters, {1: proxy.refuse, 2: proxy.heal}) == 2  # the client waits long by itself
    assert values(lab.kafka.bootstrap, target) == ["a", "b", "c"]
    assert letters.execute("select count(*) from letters").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("alter role clerk nologin", Refused),
        ("revoke insert on orders from clerk", Refused),
        ("alter table orders rename to gone", OffsetkeeperError),
        ("alter table orders rename value to words", OffsetkeeperError),
        ("alter table orders alter value type bytea using value::bytea", OffsetkeeperError),
    ],
)
def test_what_somebody_changes_in_mid_run_stops_it_and_is_no_record_s_fault(
    lab: Lab,
    topic: NewTopic,
    database: str,
    letters: sqlite3.Connection,
    act: str,
    told: type[Exception],
    postgresql_server: PostgreSQLServer,
) -> None:
    """The next program or start writes all."""
    source = topic(1)
    lab.produce(source, "a", "b", "c")

    def change() -> None:
        admin.execute(act)
        if "login" in act:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'clerk'")

    with psycopg.connect(database, autocommit=True) as admin:
        for statement in (TABLE, "drop role if exists clerk", "create role clerk login"):
            admin.execute(statement)
        for right in ("create on schema public", "select, insert on orders"):
            admin.execute(f"grant {right} to clerk")
        clerk = postgresql_server.url(admin.info.dbname).replace("postgres@", "clerk@")
        with pytest.raises(told):
            run(lab, source, clerk, letters, {1: change})
        assert letters.execute("select count(*) from letters").fetchall() == [(0,)]
        assert [at.offset for at in lab.snapshot().positions.values()] == [0]
        for statement in ("drop owned by clerk", "drop role clerk"):
            admin.execute(statement)
