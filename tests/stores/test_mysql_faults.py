"""The store in MySQL, on MariaDB, while connections break and the server is killed, stopped or frozen."""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pymysql
import pytest

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Position
from offsetkeeper.stores.mysql import MySQLStore
from offsetkeeper.testing.mariadb import MariaDBServer
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
PLAIN = "?ssl_disabled=true"  # so that the proxy sees what is said
CHECKS, WRITES = b"START TRANSACTION;", b"INSERT INTO"


@pytest.fixture
def database(mariadb_server: MariaDBServer) -> str:
    """Name of a database of the test's own, with a table for rows."""
    name = mariadb_server.create_database()
    Witness(mariadb_server, name).ask("CREATE TABLE sink_rows (content text)")
    return name


@pytest.fixture
def url(mariadb_server: MariaDBServer, database: str) -> str:
    """URL of the database."""
    return mariadb_server.url(database) + PLAIN


@pytest.fixture
def proxy(mariadb_server: MariaDBServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", mariadb_server.port) as proxy:
        yield proxy


@contextmanager
def holding(url: str, *, patience_s: float = 60) -> Iterator[Ledger]:
    """Open a ledger that holds the group, at offset 0."""
    ledger = Ledger(MySQLStore(url), "g", patience_s=patience_s)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def ledger(mariadb_server: MariaDBServer, proxy: TcpProxy, database: str) -> Iterator[Ledger]:
    """A ledger that reaches the server through the proxy."""
    with holding(mariadb_server.url(database, port=proxy.port) + PLAIN) as ledger:
        yield ledger


class Witness:
    """Looks at the database without store and proxy."""

    def __init__(self, server: MariaDBServer, database: str) -> None:
        self._server = server
        self._database = database

    def ask(self, statement: str) -> list[int]:
        """Return the first column of the answer."""
        with pymysql.connect(
            host="127.0.0.1", port=self._server.port, user="root", database=self._database, ssl_disabled=True
        ) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return [row[0] for row in cursor.fetchall()]

    def stored(self) -> tuple[int, int, int]:
        """Return offset, version, and number of rows."""
        [offset] = self.ask("SELECT `offset` FROM kafka_offsets")
        [version] = self.ask("SELECT version FROM offsetkeeper_groups")
        return offset, version, len(self.ask("SELECT content FROM sink_rows"))


@pytest.fixture
def witness(mariadb_server: MariaDBServer, database: str) -> Witness:
    """Looks at the test's database."""
    return Witness(mariadb_server, database)


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm
) -> None:
    """Wherever the connection is cut, the store does not guess. What was done can be read back."""
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with cut(proxy, WRITES), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert witness.stored() == ((10, 3, 0) if done else (0, 2, 0))
    assert (ledger.store.load("g") == change.after) == done


@cuts
def test_a_connection_that_breaks_before_anything_is_committed_leaves_no_doubt(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm
) -> None:
    with cut(proxy, CHECKS), pytest.raises(StoreUnavailable):
        ledger.store.apply(ledger._decide(rules.Commit(next_batch(ledger, 10).ranges)))
    assert witness.stored() == (0, 2, 0)
    ledger.commit(next_batch(ledger, 10))
    assert witness.stored() == (10, 3, 0)


@cuts
@pytest.mark.parametrize("at", [CHECKS, WRITES])
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm, at: bytes
) -> None:
    for number in (1, 2, 3):
        with cut(proxy, at):
            ledger.commit(next_batch(ledger, 10))
        assert witness.stored() == (number * 10, 2 + number, 0)


@cuts
@pytest.mark.parametrize(
    "at",
    [
        *(b"START", b"SAVEPOINT", b"sink_rows", b"RELEASE", b"sql_mode"),
        *(b"`offsetkeeper_groups` SET", b"`kafka_offsets` SET", b"DELETE", b"COMMIT", b"autocommit"),
    ],
)
def test_a_transaction_cut_anywhere_is_whole_or_nothing(
    ledger: Ledger, proxy: TcpProxy, witness: Witness, cut: Arm, at: bytes
) -> None:
    """And who runs the block is told which of the two it was."""
    with ledger.transaction(next_batch(ledger, 5)):
        pass  # makes the connection, whose first words are not what is cut
    committed = at == b"autocommit" or (at == b"COMMIT" and cut is not TcpProxy.cut_request)
    batch = next_batch(ledger, 10)
    try:
        with cut(proxy, at), ledger.transaction(batch) as connection:
            connection.execute("INSERT INTO sink_rows VALUES ('row')")
    except StoreUnavailable:
        assert not committed
        assert at != b"sink_rows"
    except pymysql.OperationalError:  # the block's own statement, so the block's own error
        assert at == b"sink_rows"
    else:
        assert committed
    assert witness.stored() == ((15, 4, 1) if committed else (5, 3, 0))
    if not committed:
        with ledger.transaction(batch) as connection:
            connection.execute("INSERT INTO sink_rows VALUES ('row')")
    assert witness.stored() == (15, 4, 1)
    assert ledger.store.load("g") == ledger.snapshot


@cuts
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm) -> None:
    with cut(proxy, b"UNION ALL"), pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    with cut(proxy, b"UNION ALL"):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(ledger: Ledger, proxy: TcpProxy, witness: Witness) -> None:
    proxy.refuse()
    for _ in range(2):  # first a connection that is broken, then none to be had
        with pytest.raises(StoreUnavailable):
            ledger.store.load("g")
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert witness.stored() == (10, 3, 0)


@pytest.mark.parametrize("end", [MariaDBServer.kill, MariaDBServer.stop], ids=["killed", "stopped"])
def test_what_was_acknowledged_survives_the_server(
    mariadb_server: MariaDBServer, url: str, witness: Witness, end: Callable[[MariaDBServer], None]
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
            end(mariadb_server)
            mariadb_server.restart()
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
        except (StoreUnavailable, pymysql.OperationalError, pymysql.InterfaceError):
            continue  # surely rolled back
        return
    pytest.fail("the store stayed away for a minute")


@contextmanager
def frozen(server: MariaDBServer) -> Iterator[None]:
    """Stop the server with SIGSTOP."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


def test_no_wait_is_endless_while_the_server_is_frozen(
    mariadb_server: MariaDBServer, url: str, witness: Witness
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    with holding(f"{url}&timeout=0.5") as ledger:
        change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
        with frozen(mariadb_server):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"no answer came for 0\.5 s"):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable, match="cannot be connected"):
                ledger.store.load("g")
            assert time.monotonic() - began < 20
        wait_until(lambda: witness.stored()[1] >= 2, "the server answers again", 20)
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load("g") == ledger.snapshot
        assert witness.stored() == (10, 3, 0)


def test_a_transaction_does_not_wait_endlessly_for_a_frozen_server(
    mariadb_server: MariaDBServer, url: str, witness: Witness
) -> None:
    """Neither at its end, nor when the block fails and must be rolled back."""
    with holding(f"{url}&timeout=0.5", patience_s=1) as ledger:
        began = time.monotonic()
        with ExitStack() as thaw, pytest.raises(StoreUnavailable), ledger.transaction(next_batch(ledger, 10)):
            thaw.enter_context(frozen(mariadb_server))
        with ExitStack() as thaw, pytest.raises(ZeroDivisionError), ledger.transaction(next_batch(ledger, 10)):
            thaw.enter_context(frozen(mariadb_server))
            raise ZeroDivisionError
        assert time.monotonic() - began < 30
        assert witness.stored() == (0, 2, 0)
