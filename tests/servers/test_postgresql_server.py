"""PostgreSQL starts, dies and comes back with its data."""

import select
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.postgresql import PostgreSQLServer


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgreSQLServer]:
    """A server that the tests of this file may kill."""
    with PostgreSQLServer() as server:
        yield server


def show(url: str, name: str) -> object:
    """Return a setting of the server."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select current_setting(%s)", [name]).fetchone()
        assert row
        return row[0]


def test_a_killed_server_comes_back_with_what_was_committed_and_nothing_else(own_server: PostgreSQLServer) -> None:
    url = own_server.url(own_server.create_database())
    with psycopg.connect(url) as connection:
        connection.execute("create table t (n int)")
        connection.execute("insert into t values (1)")
    open_transaction = psycopg.connect(url)
    open_transaction.execute("insert into t values (2)")

    own_server.kill()
    with pytest.raises(psycopg.OperationalError):
        open_transaction.execute("select 1")
    open_transaction.close()
    own_server.restart()

    with psycopg.connect(url) as connection:
        assert connection.execute("select n from t").fetchall() == [(1,)]


def test_a_server_killed_again_and_again_starts_at_the_first_try_each_time(own_server: PostgreSQLServer) -> None:
    """Its child processes, each in a process group of its own, must be gone before it starts again."""
    for _ in range(5):
        with psycopg.connect(own_server.url(), autocommit=True) as connection:
            connection.execute("select pg_backend_pid()")
            own_server.kill()
        own_server.restart()


def test_a_paused_server_answers_once_it_is_resumed(own_server: PostgreSQLServer) -> None:
    own_server.pause()
    try:
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(own_server.url(), connect_timeout=2)
    finally:
        own_server.resume()
    assert show(own_server.url(), "port") == str(own_server.port)


def test_a_paused_server_says_nothing_on_open_connections(own_server: PostgreSQLServer) -> None:
    """Each has a process of its own at the server."""
    with closing(psycopg.connect(own_server.url())) as connection:
        own_server.pause()
        try:
            connection.pgconn.send_query(b"select 1")
            assert select.select([connection.fileno()], [], [], 0.3)[0] == []
        finally:
            own_server.resume()
        assert select.select([connection.fileno()], [], [], 20)[0]


def test_a_paused_server_can_be_stopped(own_server: PostgreSQLServer) -> None:
    """It ends by itself, and need not be killed."""
    log, end = own_server.folder / "log", "database system is shut down"
    before = log.read_text("utf-8").count(end)
    with closing(psycopg.connect(own_server.url())):
        own_server.pause()
        own_server.stop()
    assert log.read_text("utf-8").count(end) == before + 1
    own_server.restart()


def test_it_waits_for_the_disk_unless_told_otherwise(own_server: PostgreSQLServer) -> None:
    assert show(own_server.url(), "fsync") == "on"
    with PostgreSQLServer(fsync=False, settings={"max_connections": "7"}) as server:
        assert show(server.url(), "fsync") == "off"
        assert show(server.url(), "max_connections") == "7"


def test_a_database_that_exists_cannot_be_made(own_server: PostgreSQLServer) -> None:
    with pytest.raises(ServerError, match=r"did not create database postgres: .*already exists"):
        own_server.create_database("postgres")


def test_each_test_has_an_empty_database(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone() == (0,)


def test_a_wrong_setting_is_told_with_the_end_of_the_log_of_postgresql() -> None:
    with pytest.raises(ServerError, match=r"(?s)postgresql did not start.*no_such_setting"):
        PostgreSQLServer(settings={"no_such_setting": "1"}).start()
