"""The store in MySQL, on MariaDB: what a block may do on the connection lent to it, and how it comes back."""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor, SSCursor

from offsetkeeper.clients.mysql import Connection
from offsetkeeper.clients.mysql_server import database_identity
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import Fenced, NotAllowed, StoreUnavailable
from offsetkeeper.sinks import Table
from offsetkeeper.stores.mysql import MySQLStore
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.rivals import PARTITION, next_batch


@pytest.fixture(scope="module")
def url(mariadb_server: MariaDBServer) -> str:
    """URL of a database for all tests of this file."""
    return f"{mariadb_server.url(mariadb_server.create_database())}?ssl_disabled=true"


def connect(url: str) -> pymysql.connections.Connection[Any]:
    """Return a connection of our own."""
    port, _, database = url.partition("?")[0].rpartition(":")[2].partition("/")
    return pymysql.connect(
        host="127.0.0.1", port=int(port), user="root", database=database, autocommit=True, ssl_disabled=True
    )


class Admin:
    """A connection beside the store's."""

    def __init__(self, connection: pymysql.connections.Connection[Any]) -> None:
        self.connection = connection

    def ask(self, statement: str) -> list[Any]:
        """Return the first column of the answer."""
        cursor = self.connection.cursor()
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()]


@pytest.fixture
def admin(url: str) -> Iterator[Admin]:
    """A connection beside the store's, and an empty table for rows."""
    with connect(url) as connection:
        admin = Admin(connection)
        admin.ask("CREATE OR REPLACE TABLE sink_rows (n int PRIMARY KEY)")
        yield admin


@pytest.fixture
def ledger(url: str, admin: Admin) -> Iterator[Ledger]:
    """A ledger that holds a group of its own, at offset 0."""
    assert admin.ask("SELECT COUNT(*) FROM sink_rows") == [0]
    ledger = Ledger(MySQLStore(url), f"группа-{secrets.token_hex(6)}", retry_timeout_s=20)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    yield ledger
    ledger.store.close()


def stored(ledger: Ledger, admin: Admin) -> tuple[list[int], int]:
    rows = admin.ask("SELECT n FROM sink_rows ORDER BY n")
    return rows, ledger.store.load(ledger.group).positions[PARTITION].offset


def test_a_savepoint_of_the_block_is_its_own_affair_in_mysql(ledger: Ledger, admin: Admin) -> None:
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        connection.execute("SAVEPOINT mine")
        connection.execute("INSERT INTO sink_rows VALUES (2)")
        connection.execute("ROLLBACK TO SAVEPOINT mine")
    assert stored(ledger, admin) == ([1], 10)


@pytest.mark.parametrize("call", [Connection.begin, Connection.commit, Connection.rollback])
def test_beginning_and_ending_are_refused_at_once(ledger: Ledger, admin: Admin, call: Any) -> None:
    """Nothing the block does after it can be committed by itself."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        with pytest.raises(NotAllowed, match="transaction"):
            call(connection)
    assert stored(ledger, admin) == ([1], 10)


@pytest.mark.parametrize("statement", ["CREATE TABLE made_by_block (n int)", "TRUNCATE sink_rows", "BEGIN"])
def test_a_statement_that_commits_by_itself_is_found_out(ledger: Ledger, admin: Admin, statement: str) -> None:
    with (
        pytest.raises(NotAllowed, match="its writes may be stored"),
        ledger.transaction(next_batch(ledger, 10)) as connection,
    ):
        connection.execute(statement)
    assert stored(ledger, admin) == ([], 0)
    admin.ask("DROP TABLE IF EXISTS made_by_block")


def test_a_deadlock_swallowed_by_the_block_is_found_out(ledger: Ledger, admin: Admin) -> None:
    """The server has rolled all back then, and what the block writes afterwards is stored at once."""
    admin.ask("INSERT INTO sink_rows VALUES (1), (2)")
    with pytest.raises(NotAllowed), ledger.transaction(next_batch(ledger, 10)) as connection:
        with suppress(pymysql.OperationalError):
            connection.execute("SIGNAL SQLSTATE '40001'")  # a deadlock as the client sees it
        connection.execute("ROLLBACK")  # and as the server does it
        with suppress(NotAllowed):
            connection.execute("INSERT INTO sink_rows VALUES (3)")
    assert stored(ledger, admin) == ([1, 2], 0)


def test_a_deadlock_leaves_nothing_of_a_block_that_goes_on(ledger: Ledger, url: str, admin: Admin) -> None:
    """As functions that write row by row do. The server has rolled back, and is in a new transaction."""
    admin.ask("INSERT INTO sink_rows VALUES (1), (2), (100), (101), (102)")
    other = Admin(connect(url))
    other.ask("BEGIN")
    other.ask("UPDATE sink_rows SET n = n + 1000 WHERE n >= 100")  # it has more to roll back, so it goes on
    other.ask("SELECT n FROM sink_rows WHERE n = 2 FOR UPDATE")
    with (
        ThreadPoolExecutor(1) as aside,
        pytest.raises(NotAllowed),
        ledger.transaction(next_batch(ledger, 10)) as connection,
    ):
        connection.execute("SELECT n FROM sink_rows WHERE n = 1 FOR UPDATE")
        waiting = aside.submit(other.ask, "SELECT n FROM sink_rows WHERE n = 1 FOR UPDATE")
        with suppress(pymysql.OperationalError):
            connection.execute("SELECT n FROM sink_rows WHERE n = 2 FOR UPDATE")
        connection.execute("INSERT INTO sink_rows VALUES (0)")
        assert waiting.result(60) == [1]
    other.ask("ROLLBACK")
    other.connection.close()
    assert stored(ledger, admin) == ([1, 2, 100, 101, 102], 0)


@pytest.mark.parametrize("statement", ["CREATE OR REPLACE TABLE made_by_block (n int)", "ROLLBACK", "COMMIT"])
def test_a_block_stores_nothing_more_once_its_transaction_is_over_in_mysql(
    ledger: Ledger, admin: Admin, statement: str
) -> None:
    """Each row would be stored by itself, and once more at each start."""
    with pytest.raises(NotAllowed), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute(statement)
        for n in (1, 2):
            with suppress(NotAllowed):
                connection.execute(f"INSERT INTO sink_rows VALUES ({n})")  # noqa: S608 - ours
    assert stored(ledger, admin) == ([], 0)
    admin.ask("DROP TABLE IF EXISTS made_by_block")


def test_a_connection_that_dies_while_the_block_works_elsewhere_commits_nothing_in_mysql(
    ledger: Ledger, admin: Admin
) -> None:
    """Found at the end; the batch can be tried again."""
    with pytest.raises(StoreUnavailable), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        admin.ask(f"KILL {connection.thread_id()}")
    assert stored(ledger, admin) == ([], 0)
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
    assert stored(ledger, admin) == ([1], 10)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_rival_that_takes_over_while_the_block_runs_wins_in_mysql(
    ledger: Ledger, admin: Admin, isolation: str
) -> None:
    """It does not wait for the block: a stuck run can always be replaced."""
    [usual] = admin.ask("SELECT @@global.tx_isolation")
    admin.ask(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {isolation}")
    rival = Ledger(ledger.store, ledger.group, retry_timeout_s=20)
    try:
        with pytest.raises(Fenced), ledger.transaction(next_batch(ledger, 10)) as connection:
            connection.execute("INSERT INTO sink_rows VALUES (1)")
            rival.acquire()
    finally:
        admin.ask(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {usual.replace('-', ' ')}")
    assert stored(ledger, admin) == ([], 0)


def test_a_strict_snapshot_of_the_server_is_a_conflict_too(ledger: Ledger, admin: Admin) -> None:
    """The server itself refuses to change what was changed since the block began to read."""
    rival = Ledger(ledger.store, ledger.group, retry_timeout_s=20)
    with pytest.raises(Fenced), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("SET SESSION innodb_snapshot_isolation = ON")
        connection.execute("SELECT * FROM offsetkeeper_groups")
        rival.acquire()
    assert stored(ledger, admin) == ([], 0)


def test_the_connection_is_kept_and_comes_back_as_new_in_mysql(ledger: Ledger, admin: Admin) -> None:
    """Settings, temporary tables and classes of one block do not reach the next, nor the store's own statements."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        first = connection.thread_id()
        usual = connection.execute("SELECT @@sql_mode, @@autocommit, @@character_set_connection").fetchone()
        connection.execute("CREATE TEMPORARY TABLE kafka_offsets (n int)")
        connection.execute("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', NAMES latin1, @mine = 1")
        connection.execute("SET autocommit = 0")
        connection.execute("DROP TEMPORARY TABLE kafka_offsets")
        connection.select_db("mysql")
        connection.cursorclass = DictCursor
    assert stored(ledger, admin) == ([], 10)
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        assert connection.thread_id() == first
        now = connection.execute("SELECT @@sql_mode, @@autocommit, @@character_set_connection").fetchone()
        assert now == usual
        assert connection.execute("SELECT @mine").fetchone() == (None,)
    assert stored(ledger, admin) == ([], 20)


def test_a_block_takes_the_time_it_needs(url: str, ledger: Ledger) -> None:
    """The limit is for the store's own requests."""
    hasty = Ledger(MySQLStore(f"{url}&timeout=0.5"), ledger.group, retry_timeout_s=20)
    hasty.acquire()

    def sleep(_: float) -> None:
        with hasty.transaction(next_batch(hasty, 10)) as connection:
            connection.execute("SELECT SLEEP(1)")

    retry(StoreUnavailable, 45, sleep)  # on a busy machine, before the block
    committed = hasty.snapshot
    assert hasty.load() == committed
    assert committed.positions == {PARTITION: Position(10)}
    hasty.store.close()


def test_a_lent_connection_takes_one_statement_at_a_time(ledger: Ledger, admin: Admin) -> None:
    """Ours do more, which a block that is careless with its texts should not."""
    with pytest.raises(pymysql.ProgrammingError), ledger.transaction(next_batch(ledger, 10)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1); COMMIT")
    assert stored(ledger, admin) == ([], 0)


def test_a_result_that_a_failed_block_leaves_unread_fails_no_second_time(ledger: Ledger, admin: Admin) -> None:
    """Python closes its cursor some time later, and would print an error of that."""
    with pytest.raises(ZeroDivisionError), ledger.transaction(next_batch(ledger, 10)) as connection:
        unread = connection.cursor(SSCursor)
        unread.execute("SELECT 1 UNION ALL SELECT 2")
        raise ZeroDivisionError
    unread.close()
    assert stored(ledger, admin) == ([], 0)


def test_the_identity_tells_databases_apart_in_mysql(mariadb_server: MariaDBServer, url: str) -> None:
    """However their URLs are spelled."""
    store = MySQLStore(url.replace("127.0.0.1", "localhost").replace("mysql:", "mariadb:"))
    other = url.replace(url.partition("?")[0].rpartition("/")[2], mariadb_server.create_database())
    with connect(url) as same, connect(other) as different:
        assert store.identity() == database_identity(same) != database_identity(different)
    store.close()


def vanished(connection: Any) -> list[int]:
    """Return after how long a connection notices that the server's host has vanished."""
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    assert connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    return [connection._sock.getsockopt(socket.IPPROTO_TCP, name) for name in names]


def test_a_wait_without_a_limit_ends_where_the_servers_host_vanishes_in_mysql(url: str, ledger: Ledger) -> None:
    """A merge and a block have no limit."""
    with ledger.transaction(next_batch(ledger, 10)) as connection:
        assert vanished(connection) == [10, 5, 4, 30_000]
    found: list[int] = []
    sink = Table(url, "sink_rows")
    sink.rows._database.transaction(lambda it: found.extend(vanished(it)))  # type: ignore[attr-defined]
    assert found == [10, 5, 4, 30_000]
