"""The store in Redis while connections break and the server is killed, stopped or frozen."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Position
from offsetkeeper.stores.redis import RedisStore
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import wait_until

Arm = Callable[[TcpProxy, bytes], Fault]
CUTS: dict[str, Arm] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server of this file's own, to be killed and frozen."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def group() -> str:
    """A group for this test alone."""
    return f"group-{secrets.token_hex(6)}"


@contextmanager
def holding(url: str, group: str) -> Iterator[Ledger]:
    """Open a ledger that holds the group, at offset 0."""
    ledger = Ledger(RedisStore(url), group, patience_s=60)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def ledger(server: RedisServer, proxy: TcpProxy, group: str) -> Iterator[Ledger]:
    """A ledger that reaches the server through the proxy."""
    with holding(server.url(port=proxy.port), group) as ledger:
        yield ledger


@pytest.fixture
def stored(server: RedisServer, group: str) -> Iterator[Callable[[], tuple[int, int]]]:
    """Return offset and version, seen without store and proxy."""
    with redis.Redis(port=server.port, decode_responses=True) as client:
        yield lambda: (
            int(client.hget(f"offset:rivals:{group}", "0") or -1),
            int(client.hget(f"offsetkeeper:control:offset:*:{group}", "version") or -1),
        )


@cuts
@pytest.mark.parametrize("at", [b"EVALSHA", b""], ids=["found by its name", "the next request"])
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], object], cut: Arm, at: bytes
) -> None:
    """Wherever the connection is cut, the store does not guess, nor ask again. What was done can be read back."""
    change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
    with cut(proxy, at), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert stored() == ((10, 3) if done else (0, 2))
    assert (ledger.store.load(ledger.group) == change.after) == done


@cuts
def test_a_commit_through_a_cut_is_made_exactly_once(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], object], cut: Arm
) -> None:
    for number in (1, 2, 3):
        with cut(proxy, b"EVALSHA"):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (number * 10, 2 + number)


@cuts
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm) -> None:
    with cut(proxy, b"HGETALL"), pytest.raises(StoreUnavailable):
        ledger.store.load(ledger.group)
    with cut(proxy, b"HGETALL"):
        assert ledger.load().positions == {PARTITION: Position(0)}


def test_a_connection_that_ended_while_it_was_kept_is_made_anew_before_it_is_used(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], object]
) -> None:
    """So that a server's restart between two batches leaves nothing in doubt."""
    proxy.refuse()
    proxy.heal()
    ledger.store.apply(ledger._decide(rules.Commit(next_batch(ledger, 10).ranges)))
    assert stored() == (10, 3)


def test_a_store_that_is_away_for_a_while_is_waited_for(
    ledger: Ledger, proxy: TcpProxy, stored: Callable[[], object]
) -> None:
    proxy.refuse()
    with pytest.raises(StoreUnavailable, match="refused"):
        ledger.store.load(ledger.group)
    with pytest.raises(StoreUnavailable, match="refused"):
        ledger.store.apply(ledger._decide(rules.Commit(next_batch(ledger, 10).ranges)))
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert stored() == (10, 3)


@pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.stop], ids=["killed", "stopped"])
def test_what_was_acknowledged_survives_the_server(
    server: RedisServer, group: str, stored: Callable[[], object], end: Callable[[RedisServer], None]
) -> None:
    """The server ends in the middle of commits and is started again; the run goes on and nothing is lost or doubled."""
    batches, acknowledged = 60, threading.Semaphore(0)

    def work(ledger: Ledger) -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    with holding(server.url(), group) as ledger:
        worker = threading.Thread(target=work, args=(ledger,))
        worker.start()
        for _ in range(2):
            for _ in range(10):
                assert acknowledged.acquire(timeout=60)
            end(server)
            server.restart()
        worker.join(120)
        assert not worker.is_alive()
        assert ledger.store.load(group) == ledger.snapshot
    assert stored() == (batches * 10, batches + 2)


def test_no_wait_is_endless_while_the_server_is_frozen(
    server: RedisServer, group: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    with holding(f"{server.url()}?timeout=0.5", group) as ledger:
        change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(OutcomeUnknown, match=r"no answer came for 0\.5 s"):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable):
                ledger.store.load(group)
            assert time.monotonic() - began < 10
        finally:
            server.resume()
        wait_until(lambda: stored()[1] >= 2, "the server answers again", 20)
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load(group) == ledger.snapshot
        assert stored() == (10, 3)
