"""The store in PostgreSQL while connections break and the server is killed, stopped or frozen."""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Position
from offsetkeeper.stores.postgresql import PostgreSQLStore
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import wait_until

Arm = Callable[[TcpProxy, bytes], Fault]
CUTS: dict[str, Arm] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
APPLY, COMMIT = b"WITH control AS", b"COMMIT"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    """A server of this file's own, to be killed and frozen."""
    with PostgreSQLServer() as server:
        yield server


@pytest.fixture(scope="module")
def database(server: PostgreSQLServer) -> str:
    """Name of a database for all tests of this file."""
    return server.create_database()


@pytest.fixture
def settings(server: PostgreSQLServer, database: str) -> str:
    """Query of a URL that leads to a schema of the test's own, with a table for rows."""
    schema = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server.url(database)) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.sink_rows (content text)".encode())
    return f"?options=-csearch_path%3D{schema}"


@pytest.fixture
def url(server: PostgreSQLServer, database: str, settings: str) -> str:
    """URL of the test's schema."""
    return server.url(database) + settings


@pytest.fixture
def proxy(server: PostgreSQLServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@contextmanager
def holding(url: str, *, patience_s: float = 60) -> Iterator[Ledger]:
    """Open a ledger that holds the group, at offset 0."""
    ledger = Ledger(PostgreSQLStore(url), "g", patience_s=patience_s)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def ledger(server: PostgreSQLServer, proxy: TcpProxy, database: str, settings: str) -> Iterator[Ledger]:
    """A ledger that reaches the server through the proxy."""
    with holding(server.url(database, port=proxy.port) + settings) as ledger:
        yield ledger


class Witness:
    """Looks at the database without store and proxy."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, statement: str) -> list[int]:
        """Return the first column of the answer."""
        with psycopg.connect(self._url) as connection:
            return [row[0] for row in connection.execute(statement.encode())]

    def stored(self) -> tuple[int, int, int]:
        """Return offset, version, and number of rows."""
        [offset] = self.ask('SELECT "offset" FROM kafka_offsets')
        [version] = self.ask("SELECT version FROM offsetkeeper_groups")
        return offset, version, len(self.ask("SELECT content FROM sink_rows"))


@pytest.fixture
def witness(url: str) -> Witness:
    """Looks at the test's schema."""
    return Witness(url)


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm
) -> None:
    """Wherever the connection is cut, the store does not guess. What was done can be read back."""
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with cut(proxy, APPLY), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert witness.stored() == ((10, 3, 0) if done else (0, 2, 0))
    assert (ledger.store.load("g") == change.after) == done


@cuts
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm
) -> None:
    for number in (1, 2, 3):
        with cut(proxy, APPLY):
            ledger.commit(next_batch(ledger, 10))
        assert witness.stored() == (number * 10, 2 + number, 0)


@cuts
@pytest.mark.parametrize("at", [b"BEGIN", b"set_config", b"sink_rows", b"current_setting", APPLY, COMMIT, b"DISCARD"])
def test_a_transaction_cut_anywhere_is_whole_or_nothing(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm, at: bytes
) -> None:
    """And who runs the block is told which of the two it was."""
    committed = at == b"DISCARD" or (at == COMMIT and cut is not TcpProxy.cut_request)
    batch = next_batch(ledger, 10)
    try:
        with cut(proxy, at), ledger.transaction(batch) as connection:
            connection.execute("INSERT INTO sink_rows VALUES ('row')")
    except StoreUnavailable:
        assert not committed
        assert at != b"sink_rows"
    except psycopg.OperationalError:  # the block's own statement, so the block's own error
        assert at == b"sink_rows"
    else:
        assert committed
    assert witness.stored() == ((10, 3, 1) if committed else (0, 2, 0))
    if not committed:
        with ledger.transaction(batch) as connection:
            connection.execute("INSERT INTO sink_rows VALUES ('row')")
    assert witness.stored() == (10, 3, 1)
    assert ledger.store.load("g") == ledger.snapshot


@cuts
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm) -> None:
    with cut(proxy, b"UNION ALL"), pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    with cut(proxy, b"UNION ALL"):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(ledger: Ledger, proxy: TcpProxy, witness: Witness) -> None:
    proxy.refuse()
    with pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert witness.stored() == (10, 3, 0)


@pytest.mark.parametrize("end", [PostgreSQLServer.kill, PostgreSQLServer.stop], ids=["killed", "stopped"])
def test_what_was_acknowledged_survives_the_server(
    server: PostgreSQLServer, url: str, witness: Witness, end: Callable[[PostgreSQLServer], None]
) -> None:
    """The server ends in the middle of commits and is started again; the run goes on and nothing is lost or doubled."""
    batches, acknowledged = 60, threading.Semaphore(0)

    def work(ledger: Ledger) -> None:
        for number in range(batches):
            if number % 2:
                ledger.commit(next_batch(ledger, 10))
            else:
                transact(ledger, number)
            acknowledged.release()

    with holding(url) as ledger:
        worker = threading.Thread(target=work, args=(ledger,))
        worker.start()
        for _ in range(2):
            for _ in range(10):
                assert acknowledged.acquire(timeout=60)
            end(server)
            server.restart()
        worker.join(120)
        assert not worker.is_alive()
        assert ledger.store.load("g") == ledger.snapshot
    assert witness.stored() == (batches * 10, batches + 2, batches // 2)
    assert len(set(witness.ask("SELECT content FROM sink_rows"))) == batches // 2


def transact(ledger: Ledger, number: int) -> None:
    """Commit a batch with a row, as long as it takes."""
    batch, deadline = next_batch(ledger, 10), time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with ledger.transaction(batch) as connection:
                connection.execute("INSERT INTO sink_rows VALUES (%s)", (str(number),))
        except (StoreUnavailable, psycopg.OperationalError):
            continue  # surely rolled back
        return
    pytest.fail("the store stayed away for a minute")


@contextmanager
def frozen(server: PostgreSQLServer, database: str) -> Iterator[None]:
    """Stop, with SIGSTOP, the processes that serve the database's connections, and the one that takes new ones."""
    with psycopg.connect(server.url()) as connection:
        pids = [
            pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = %s", (database,))
        ]
    server.pause()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        server.resume()


def test_no_wait_is_endless_while_the_server_is_frozen(
    server: PostgreSQLServer, database: str, url: str, witness: Witness
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    with holding(f"{url}&timeout=0.5&connect_timeout=2") as ledger:
        change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
        with frozen(server, database):
            began = time.monotonic()
            with pytest.raises(OutcomeUnknown, match=r"no answer came for 0\.5 s"):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable, match="cannot be connected"):
                ledger.store.load("g")
            assert time.monotonic() - began < 20
        wait_until(lambda: witness.stored()[1] >= 2, "the server answers again", 20)
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load("g") == ledger.snapshot
        assert witness.stored() == (10, 3, 0)


def test_a_transaction_does_not_wait_endlessly_for_a_frozen_server(
    server: PostgreSQLServer, database: str, url: str, witness: Witness
) -> None:
    """Neither at its end, nor when the block fails and must be rolled back."""
    with holding(f"{url}&timeout=0.5&connect_timeout=2", patience_s=1) as ledger:
        began = time.monotonic()
        with ExitStack() as thaw, pytest.raises(StoreUnavailable), ledger.transaction(next_batch(ledger, 10)):
            thaw.enter_context(frozen(server, database))
        with ExitStack() as thaw, pytest.raises(ZeroDivisionError), ledger.transaction(next_batch(ledger, 10)):
            thaw.enter_context(frozen(server, database))
            raise ZeroDivisionError
        assert time.monotonic() - began < 30
        assert witness.stored() == (0, 2, 0)
