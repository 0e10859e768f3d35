"""The store in Kafka while connections break and the broker is killed, stopped or frozen."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Position
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import wait_until

CUTS: dict[str, Callable[[TcpProxy, bytes], Fault]] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
# How requests begin, after their length: the key of the API, and its version.
ADD_OFFSETS, END_TRANSACTION, COMMIT_OFFSETS = b"\x00\x19\x00", b"\x00\x1a\x00", b"\x00\x1c\x00"


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker of this file's own, to be killed and frozen."""
    with KafkaServer() as server:
        server.create_topic(PARTITION.topic)
        yield server


@pytest.fixture
def prefix() -> str:
    """Of the test's groups."""
    return f"test-{secrets.token_hex(6)}-"


@contextmanager
def holding(bootstrap: str, query: str) -> Iterator[Ledger]:
    """Open a ledger that holds the group, at offset 0."""
    ledger = Ledger(KafkaStore(f"kafka://{bootstrap}?{query}"), "g")
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def stored(server: KafkaServer, prefix: str) -> Callable[[], tuple[int, int]]:
    """Look, with a bare client and a store of its own, at offset and version."""

    def look() -> tuple[int, int]:
        [offset] = server.group_offsets(f"{prefix}g", [PARTITION]).values()
        store = KafkaStore(f"kafka://{server.bootstrap}?prefix={prefix}")
        version = store.load("g").version
        store.close()
        return offset, version

    return look


@pytest.mark.parametrize("at", [ADD_OFFSETS, COMMIT_OFFSETS, END_TRANSACTION], ids=["add", "offsets", "end"])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
def test_a_commit_through_a_cut_is_made_exactly_once(
    server: KafkaServer,
    prefix: str,
    stored: Callable[[], tuple[int, int]],
    cut: Callable[[TcpProxy, bytes], Fault],
    at: bytes,
) -> None:
    """The client tries again by itself, and the broker knows which transaction it is."""
    with server.proxy() as proxy, holding(proxy.address, f"prefix={prefix}") as ledger:
        with cut(proxy, at):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (10, 3)
        assert ledger.store.load("g") == ledger.snapshot


@pytest.mark.parametrize("end", [KafkaServer.kill, KafkaServer.stop], ids=["killed", "stopped"])
def test_what_was_acknowledged_survives_the_server(
    server: KafkaServer, prefix: str, stored: Callable[[], tuple[int, int]], end: Callable[[KafkaServer], None]
) -> None:
    """The broker ends in the middle of commits and is started again; the run goes on, nothing is lost or doubled."""
    batches, acknowledged = 40, threading.Semaphore(0)

    def work(ledger: Ledger) -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    with holding(server.bootstrap, f"prefix={prefix}") as ledger:
        worker = threading.Thread(target=work, args=(ledger,))
        worker.start()
        for _ in range(10):
            assert acknowledged.acquire(timeout=60)
        end(server)
        server.restart()
        worker.join(120)
        assert not worker.is_alive()
        assert ledger.store.load("g") == ledger.snapshot
    assert stored() == (batches * 10, batches + 2)


def test_no_wait_is_endless_while_the_server_is_frozen(
    server: KafkaServer, prefix: str, stored: Callable[[], tuple[int, int]]
) -> None:
    """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
    with holding(server.bootstrap, f"prefix={prefix}&timeout=2") as ledger:
        change = ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises((OutcomeUnknown, StoreUnavailable)):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable):
                ledger.store.load("g")
            assert time.monotonic() - began < 30
        finally:
            server.resume()
        wait_until(lambda: bool(server.topics()), "the broker answers again", 30)
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load("g") == ledger.snapshot
    assert stored() == (10, 3)
