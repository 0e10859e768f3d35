"""The store in PostgreSQL: what a block may do on the connection lent to it, and how the connection comes back."""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import psycopg
import pytest
from psycopg.rows import dict_row

from offsetkeeper.clients.postgresql_server import database_identity
from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import NotAllowed, SinkError, StoreUnavailable, VersionConflict
from offsetkeeper.sinks import Table
from offsetkeeper.stores.postgresql import PostgreSQLStore
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.rivals import PARTITION, next_batch


@pytest.fixture(scope="module")
def database(postgresql_server: PostgreSQLServer) -> str:
    """URL of a database for all tests of this file, with a table for rows."""
    url = postgresql_server.url(postgresql_server.create_database())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE sink_rows (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    return url


@pytest.fixture
def admin(database: str) -> Iterator[psycopg.Connection]:
    """A connection beside the store's."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("TRUNCATE sink_rows")
        yield connection


@pytest.fixture
def ledger(database: str, admin: psycopg.Connection) -> Iterator[Ledger]:
    """A ledger that holds a group of its own, at offset 0."""
    assert not admin.closed
    ledger = Ledger(PostgreSQLStore(database), f"group-{secrets.token_hex(6)}", retry_timeout_s=20)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    yield ledger
    ledger.store.close()


def rows(admin: psycopg.Connection) -> list[int]:
    return [n for (n,) in admin.execute("SELECT n FROM sink_rows ORDER BY n")]


def stored(ledger: Ledger) -> int:
    return ledger.store.load(ledger.group).positions[PARTITION].offset


def test_psycopgs_own_rollback_exception_comes_out_and_commits_nothing(
    ledger: Ledger, admin: psycopg.Connection
) -> None:
    """Its transaction block would swallow it, and the ledger would believe that all was committed."""
    with pytest.raises(psycopg.Rollback), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        raise psycopg.Rollback
    assert (rows(admin), stored(ledger)) == ([], 0)
    assert ledger.snapshot == ledger.store.load(ledger.group)


def test_a_savepoint_of_the_block_is_its_own_affair_in_postgresql(ledger: Ledger, admin: psycopg.Connection) -> None:
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        with suppress(psycopg.Error), connection.transaction():
            connection.execute("INSERT INTO nowhere VALUES (2)")
    assert (rows(admin), stored(ledger)) == ([1], 10)


def test_an_error_swallowed_by_the_block_is_told(ledger: Ledger, admin: psycopg.Connection) -> None:
    with (
        pytest.raises(NotAllowed, match="after a failed statement"),
        ledger.transaction(next_batch(ledger, 10)) as connection,
    ):
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        with suppress(psycopg.Error):
            connection.execute("INSERT INTO nowhere VALUES (2)")
    assert (rows(admin), stored(ledger)) == ([], 0)


WAYS = ["execute", "executemany", "copy", "stream", "cursor", "nested", "pipeline", "begin", "class"]


@pytest.mark.parametrize(
    ("way", "end"),
    [
        *((way, "COMMIT") for way in WAYS),
        *(("execute", end) for end in ("ROLLBACK", "END", "ABORT", "PREPARE TRANSACTION 'other'")),
    ],
)
def test_a_block_stores_nothing_more_once_its_transaction_is_over_in_postgresql(
    ledger: Ledger, admin: psycopg.Connection, way: str, end: str
) -> None:
    """Each row would be stored by itself, and once more at each start."""
    with (
        pytest.raises(NotAllowed, match="block ended the transaction"),
        ledger.transaction(next_batch(ledger, 10)) as connection,
        connection.pipeline() if way == "pipeline" else nullcontext(),
    ):
        with suppress(psycopg.errors.ObjectNotInPrerequisiteState):  # the server has no prepared transactions
            connection.execute(end.encode())
        for n in (2, 3):
            with suppress(NotAllowed):
                store_row(connection, way, n)
        with pytest.raises(NotAllowed, match="so nothing more is written"):
            connection.execute("SELECT 1")
    assert (rows(admin), stored(ledger)) == ([], 0)


def store_row(connection: psycopg.Connection, way: str, n: int) -> None:
    """Store a row in one of the ways that psycopg has."""
    insert = "INSERT INTO sink_rows VALUES (%s)"
    if way == "executemany":
        connection.cursor().executemany(insert, [(n,)])
    elif way == "copy":
        with connection.cursor().copy("COPY sink_rows FROM STDIN") as copy:
            copy.write_row((n,))
    elif way == "stream":
        list(connection.cursor().stream(f"{insert} RETURNING n", (n,)))
    elif way == "nested":
        with connection.transaction():
            connection.execute(insert, (n,))
    elif way == "begin":
        with suppress(NotAllowed):
            connection.execute("BEGIN")
        connection.execute(insert, (n,))
        connection.execute("COMMIT")
    elif way == "class":
        psycopg.ClientCursor(connection).execute(insert, (n,))
    else:
        (connection.cursor() if way == "cursor" else connection).execute(insert, (n,))


@pytest.mark.parametrize("end", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
def test_what_a_block_writes_into_a_transaction_that_follows_its_own_is_rolled_back(
    ledger: Ledger, admin: psycopg.Connection, end: str
) -> None:
    """That transaction is not the ledger's either."""
    with (
        pytest.raises(NotAllowed, match="ended the transaction"),
        ledger.transaction(next_batch(ledger, 10)) as connection,
    ):
        connection.execute(end.encode())
        connection.execute("INSERT INTO sink_rows VALUES (2)")
    assert (rows(admin), stored(ledger)) == ([], 0)


def test_a_block_may_use_pipelines_and_savepoints(ledger: Ledger, admin: psycopg.Connection) -> None:
    """They are as they were, though each statement of a pipeline is answered before the next is sent."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        with connection.pipeline() as pipeline, connection.transaction():
            connection.cursor().executemany("INSERT INTO sink_rows VALUES (%s)", [(1,), (2,)])
            pipeline.sync()
            found = connection.execute("SELECT n FROM sink_rows ORDER BY n")
        assert found.fetchall() == [(1,), (2,)]
        with connection.cursor().copy("COPY sink_rows FROM STDIN") as copy:
            copy.write_row((3,))
        assert list(connection.cursor().stream("INSERT INTO sink_rows VALUES (4) RETURNING n")) == [(4,)]
        with suppress(ZeroDivisionError), connection.transaction():
            connection.execute("INSERT INTO sink_rows VALUES (5)")
            raise ZeroDivisionError
    assert (rows(admin), stored(ledger)) == ([1, 2, 3, 4], 10)


def test_a_constraint_that_fails_at_the_commit_is_the_sinks_error(ledger: Ledger, admin: psycopg.Connection) -> None:
    admin.execute("INSERT INTO sink_rows VALUES (1)")
    with pytest.raises(SinkError, match="duplicate key"), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
    assert (rows(admin), stored(ledger)) == ([1], 0)


def test_a_connection_that_dies_while_the_block_works_elsewhere_commits_nothing_in_postgresql(
    ledger: Ledger, admin: psycopg.Connection
) -> None:
    """Found at the end; the batch can be tried again."""
    with pytest.raises(StoreUnavailable), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        admin.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    assert (rows(admin), stored(ledger)) == ([], 0)
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
    assert (rows(admin), stored(ledger)) == ([1], 10)


def test_a_rival_that_takes_over_while_the_block_runs_wins_in_postgresql(
    ledger: Ledger, admin: psycopg.Connection
) -> None:
    """It does not wait for the block: a stuck run can always be replaced."""
    rival = Ledger(ledger.store, ledger.group, retry_timeout_s=20)
    change_lost = pytest.raises(Exception, match="taken over")
    with change_lost, ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        rival.acquire()
    assert (rows(admin), stored(ledger)) == ([], 0)


def test_at_the_strictest_isolation_a_rival_wins_as_well(database: str, ledger: Ledger) -> None:
    """The database finds the conflict itself, and tells it in its own way."""
    strict = PostgreSQLStore(f"{database}?options=-cdefault_transaction_isolation%3Dserializable")
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with pytest.raises((StoreUnavailable, VersionConflict)), strict.transaction(change) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        Ledger(ledger.store, ledger.group, retry_timeout_s=20).acquire()
    assert stored(ledger) == 0
    strict.close()


def test_the_connection_is_kept_and_comes_back_as_new_in_postgresql(ledger: Ledger) -> None:
    """Settings, temporary tables and factories of one block do not reach the next, nor the store's own statements."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        first = connection.info.backend_pid
        connection.execute("SET search_path TO nowhere")
        connection.execute("CREATE TEMP TABLE kafka_offsets (n int)")
        connection.row_factory = dict_row
    assert stored(ledger) == 10
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        assert connection.info.backend_pid == first
        assert connection.execute("SELECT current_setting('search_path')").fetchone() == ('"$user", public',)
    assert stored(ledger) == 20


def test_the_identity_tells_databases_apart_in_postgresql(postgresql_server: PostgreSQLServer, database: str) -> None:
    """However their URLs are spelled."""
    store = PostgreSQLStore(database.replace("127.0.0.1", "localhost"))
    with psycopg.connect(database) as same, psycopg.connect(postgresql_server.url()) as other:
        assert store.identity() == database_identity(same) != database_identity(other)
    store.close()


def test_a_transaction_that_ends_within_an_inner_block_is_told_so(ledger: Ledger, admin: psycopg.Connection) -> None:
    """Psycopg has an error of its own for that, which says nothing of the cause."""
    with (
        pytest.raises(NotAllowed, match="the block has ended the transaction"),
        ledger.transaction(next_batch(ledger, 10)) as connection,
        connection.transaction(),
    ):
        connection.execute("COMMIT")
    assert (rows(admin), stored(ledger)) == ([], 0)


def vanished(connection: psycopg.Connection) -> list[int]:
    """Return after how long a connection notices that the server's host has vanished."""
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with socket.socket(fileno=os.dup(connection.fileno())) as there:
        assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        return [there.getsockopt(socket.IPPROTO_TCP, name) for name in names]


def test_a_wait_without_a_limit_ends_where_the_servers_host_vanishes_in_postgresql(
    database: str, ledger: Ledger
) -> None:
    """A merge and a block have no limit. A setting of the URL counts before ours."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        assert vanished(connection) == [10, 5, 4, 30_000]
    found: list[int] = []
    sink = Table(f"{database}?keepalives_idle=60", "sink_rows")
    sink.rows._database.transaction(lambda it: found.extend(vanished(it)))  # type: ignore[attr-defined]
    assert found == [60, 5, 4, 30_000]
