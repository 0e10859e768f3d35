"""The store in ZooKeeper while connections break and the server is killed, stopped or frozen."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Position
from offsetkeeper.stores.zookeeper import ZooKeeperStore
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import free_port, wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperServer

CUTS: dict[str, Callable[[TcpProxy, bytes], Fault]] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
APPLY, LOAD = b"/offsetkeeper/history/", b"/offsetkeeper/unpublished"


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server of this file's own, to be killed and frozen."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def root() -> str:
    """A path of this test's own, without slash."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def proxy(server: ZooKeeperServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@contextmanager
def holding(url: str) -> Iterator[Ledger]:
    """Open a ledger that holds the group, at offset 0."""
    ledger = Ledger(ZooKeeperStore(url), "g")
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def ledger(server: ZooKeeperServer, proxy: TcpProxy, root: str) -> Iterator[Ledger]:
    """A ledger that reaches the server through the proxy."""
    with holding(server.url(root, port=proxy.port)) as ledger:
        yield ledger


@pytest.fixture
def stored(server: ZooKeeperServer, root: str) -> Callable[[], tuple[int, int]]:
    """Look, with a bare client and a store of its own, at offset and version."""

    def look() -> tuple[int, int]:
        client: Any = server.client()
        offset = int(client.get(f"/{root}/consumers/g/offsets/{PARTITION.topic}/{PARTITION.partition}")[0])
        client.stop()
        client.close()
        store = ZooKeeperStore(server.url(root))
        version = store.load("g").version
        store.close()
        return offset, version

    return look


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]], cut: Callable[[TcpProxy, bytes], Fault]
) -> None:
    """Wherever the connection is cut, the store does not guess. What was done can be read back."""
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with cut(proxy, APPLY), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert stored() == ((10, 3) if done else (0, 2))
    assert (ledger.store.load("g") == change.after) == done


@cuts
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]], cut: Callable[[TcpProxy, bytes], Fault]
) -> None:
    for number in (1, 2, 3):
        with cut(proxy, APPLY):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (number * 10, 2 + number)


@cuts
def test_a_load_through_a_cut_is_tried_again(
    ledger: Ledger, proxy: TcpProxy, cut: Callable[[TcpProxy, bytes], Fault]
) -> None:
    with cut(proxy, LOAD), pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    with cut(proxy, LOAD):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], tuple[int, int]]
) -> None:
    proxy.refuse()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        ledger.store.load("g")
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        ledger.store.apply(change)
    assert time.monotonic() - began < 10
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert stored() == (10, 3)


@pytest.mark.parametrize("host", [f"127.0.0.1:{free_port()}", "nowhere.invalid:2181"], ids=["refused", "unknown"])
def test_a_server_that_is_not_there_is_told_at_once(host: str) -> None:
    store, began = ZooKeeperStore(f"zookeeper://{host}/?timeout=8"), time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        store.load("g")
    assert time.monotonic() - began < 7
    store.close()


@pytest.mark.parametrize("end", [ZooKeeperServer.kill, ZooKeeperServer.stop], ids=["killed", "stopped"])
def test_what_was_acknowledged_survives_the_server(
    server: ZooKeeperServer,
    root: str,
    stored: Callable[[], tuple[int, int]],
    end: Callable[[ZooKeeperServer], None],
) -> None:
    """The server ends in the middle of commits and is started again; the run goes on and nothing is lost or doubled."""
    batches, acknowledged = 60, threading.Semaphore(0)

    def work(ledger: Ledger) -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    with holding(server.url(root)) as ledger:
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
    assert stored() == (batches * 10, batches + 2)


def test_no_wait_is_endless_while_the_server_is_frozen(
    server: ZooKeeperServer, root: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    with holding(f"{server.url(root)}?timeout=0.5") as ledger:
        change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(OutcomeUnknown, match=r"no answer came for 0\.5 s"):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable, match="cannot be connected"):
                ledger.store.load("g")
            assert time.monotonic() - began < 5
        finally:
            server.resume()
        wait_until(lambda: stored()[1] >= 2, "the server answers again", 20)
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load("g") == ledger.snapshot
        assert stored() == (10, 3)


def test_a_session_that_expired_is_replaced(
    server: ZooKeeperServer, root: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """As after a long pause of this process."""
    with holding(f"{server.url(root)}?timeout=1") as ledger:
        store = ledger.store
        assert isinstance(store, ZooKeeperStore)
        session, password = store._sessions._held.client_id
        thief: Any = server.client(client_id=(session, password))  # whoever names the session moves it, and ends it
        thief.stop()
        thief.close()
        ledger.commit(next_batch(ledger, 10))
        assert stored() == (10, 3)
