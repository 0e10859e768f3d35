"""The store in HBase while connections break and its servers are killed or frozen."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from offsetkeeper import rules
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Change, OffsetRange, Position, TopicPartition
from offsetkeeper.stores.hbase import HBaseStore
from offsetkeeper.testing.hbase import HBaseServer
from offsetkeeper.testing.process import ServerProcess
from offsetkeeper.testing.proxy import Fault, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import free_port, wait_until

Arm = Callable[[TcpProxy, bytes], Fault]
Stored = Callable[[], tuple[int, int]]
CUTS: dict[str, Arm] = {
    "before the request": TcpProxy.cut_request,
    "before the reply": TcpProxy.cut_reply,
    "in the middle of the reply": TcpProxy.cut_mid_reply,
}
cuts = pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
READ, CHANGE, PUBLISH = b"getRowWithColumns", b"checkAndPut", b"mutateRows"
OTHER = TopicPartition("other", 0)


@pytest.fixture(scope="module")
def table(hbase_server: HBaseServer) -> str:
    """Tables of this file; each test has a group."""
    name = f"faults_{secrets.token_hex(4)}"
    with holding(f"{hbase_server.url()}?table={name}", "first"):
        return name


@pytest.fixture
def group() -> str:
    """A group of the test's own."""
    return f"g-{secrets.token_hex(4)}"


@pytest.fixture
def url(hbase_server: HBaseServer, table: str) -> str:
    """URL of the tables."""
    return f"{hbase_server.url()}?table={table}"


@pytest.fixture
def proxy(hbase_server: HBaseServer) -> Iterator[TcpProxy]:
    """A proxy in front of the Thrift server."""
    with TcpProxy("127.0.0.1", hbase_server.port) as proxy:
        yield proxy


@contextmanager
def holding(url: str, group: str, *, patience_s: float = 60) -> Iterator[Ledger]:
    """Open a ledger that holds the group, with two topics at offset 0."""
    ledger = Ledger(HBaseStore(url), group, patience_s=patience_s)
    ledger.acquire()
    ledger.place({PARTITION: Position(0), OTHER: Position(0)})
    try:
        yield ledger
    finally:
        ledger.store.close()


@pytest.fixture
def ledger(hbase_server: HBaseServer, proxy: TcpProxy, table: str, group: str) -> Iterator[Ledger]:
    """A ledger that reaches HBase through the proxy."""
    with holding(f"{hbase_server.url(port=proxy.port)}?table={table}", group) as ledger:
        yield ledger


def look(server: HBaseServer, table: str, group: str, topic: str = PARTITION.topic) -> tuple[int, int]:
    """Look, with a bare client, at the offset in the newest row and at the version in the ledger."""
    client: Any = server.client()
    try:
        prefix = f"{topic}:{group}:".encode()
        [(_, row)] = client.table(table).scan(row_prefix=prefix, reverse=True, limit=1)
        document = client.table(f"{table}_ledger").row(group.encode())[b"ledger:document"]
    finally:
        client.close()
    return int(row[b"offsets:0"]), json.loads(document)["version"]


@pytest.fixture
def stored(hbase_server: HBaseServer, table: str, group: str) -> Stored:
    """See `look`."""
    return lambda: look(hbase_server, table, group)


def commit_of(ledger: Ledger) -> Change:
    return ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))


@cuts
def test_a_reply_that_is_lost_makes_the_outcome_unknown(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm
) -> None:
    """Wherever the connection is cut, the store does not guess. What was done can be read back."""
    change = commit_of(ledger)
    with cut(proxy, CHANGE), pytest.raises(OutcomeUnknown):
        ledger.store.apply(change)
    done = cut is not TcpProxy.cut_request
    assert stored() == (0, 3 if done else 2)
    assert (ledger.store.load(ledger.group) == change.after) == done


@cuts
def test_a_commit_through_a_cut_is_made_exactly_once(ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm) -> None:
    """And published, though the reply that would have said so was lost."""
    for number in (1, 2, 3):
        with cut(proxy, CHANGE):
            ledger.commit(next_batch(ledger, 10))
        assert stored() == (number * 10, 2 + number)


@cuts
def test_what_was_not_published_is_with_the_next_change(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, cut: Arm, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever topic that one moves."""
    with cut(proxy, PUBLISH):
        ledger.commit(next_batch(ledger, 10))
    assert "published with the next change" in caplog.text
    assert stored() == (0 if cut is TcpProxy.cut_request else 10, 3)
    ledger.commit(ledger.batch([OffsetRange(*OTHER, 0, 1)]))
    assert stored() == (10, 4)


def test_what_a_crash_left_unpublished_is_with_the_next_runs_first_change(
    ledger: Ledger, proxy: TcpProxy, stored: Stored, url: str
) -> None:
    with proxy.cut_request(PUBLISH):
        ledger.commit(next_batch(ledger, 10))
    assert stored() == (0, 3)
    again = Ledger(HBaseStore(url), ledger.group)
    again.acquire()
    assert stored() == (10, 4)
    again.store.close()


class _Repeating:
    """A Thrift client that asks twice and forgets the first answer, as HBase's own client in the Thrift server does."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def checkAndPut(self, *arguments: Any) -> Any:  # noqa: N802 - Thrift's name
        self._client.checkAndPut(*arguments)
        return self._client.checkAndPut(*arguments)


def test_a_change_that_the_thrift_server_tried_twice_is_made(
    url: str, group: str, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try is refused for what the first one wrote. What another writer wrote is a conflict all the same."""
    rival = HBaseStore(url)
    with holding(url, group) as ledger:
        store, change = ledger.store, commit_of(ledger)
        assert isinstance(store, HBaseStore)
        lend = store._connections.lend

        @contextmanager
        def repeating(*lost: Any) -> Iterator[Any]:
            with lend(*lost) as client:
                yield _Repeating(client)

        monkeypatch.setattr(store._connections, "lend", repeating)
        store.apply(change)
        assert ledger.load() == change.after
        assert stored() == (10, 3)
        rival.apply(commit_of(ledger))
        with pytest.raises(VersionConflict, match="another writer"):
            store.apply(commit_of(ledger))
    rival.close()


@cuts
def test_a_load_through_a_cut_is_tried_again(ledger: Ledger, proxy: TcpProxy, cut: Arm) -> None:
    with cut(proxy, READ), pytest.raises(StoreUnavailable):
        ledger.store.load(ledger.group)
    with cut(proxy, READ):
        assert ledger.load().positions == {PARTITION: Position(0), OTHER: Position(0)}


def test_a_store_that_is_away_for_a_while_is_waited_for(ledger: Ledger, proxy: TcpProxy, stored: Stored) -> None:
    proxy.refuse()
    for act in (lambda: ledger.store.load(ledger.group), lambda: ledger.store.apply(commit_of(ledger))):
        with pytest.raises(StoreUnavailable, match="cannot be connected"):
            act()
    back = threading.Timer(0.3, proxy.heal)
    back.start()
    ledger.commit(next_batch(ledger, 10))
    back.join()
    assert stored() == (10, 3)


@pytest.mark.parametrize("host", [f"127.0.0.1:{free_port()}", "nowhere.invalid"], ids=["refused", "unknown"])
def test_a_server_that_is_not_there_is_told_at_once(host: str) -> None:
    store, began = HBaseStore(f"hbase://{host}/?timeout=8"), time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be connected"):
        store.load("g")
    assert time.monotonic() - began < 7


def test_of_several_thrift_servers_one_that_is_there_is_taken(hbase_server: HBaseServer, table: str) -> None:
    store = HBaseStore(f"hbase://127.0.0.1:{free_port()},127.0.0.1:{hbase_server.port}/?table={table}")
    assert store.load("first").version == 2
    store.close()


def test_a_kept_connection_that_the_server_closed_is_not_used(
    hbase_server: HBaseServer, url: str, group: str, stored: Stored
) -> None:
    """As it closes those that are idle for a minute: the next change does not find out the hard way."""
    with holding(url, group) as ledger:
        hbase_server.restart()
        ledger.store.apply(commit_of(ledger))
        assert stored() == (10, 3)


def _restart_thrift(server: HBaseServer) -> None:
    server.kill()
    server.restart()


@pytest.mark.parametrize(
    ("restart", "times"),
    [(_restart_thrift, 2), (HBaseServer.restart_master, 1)],
    ids=["Thrift server", "master and region server"],
)
def test_what_was_acknowledged_survives(
    hbase_server: HBaseServer, url: str, group: str, stored: Stored, restart: Callable[[HBaseServer], None], times: int
) -> None:
    """A server is killed in the middle of commits; the run goes on and nothing is lost or doubled."""
    batches, acknowledged = 300, threading.Semaphore(0)

    def work(ledger: Ledger) -> None:
        for _ in range(batches):
            ledger.commit(next_batch(ledger, 10))
            acknowledged.release()

    with holding(url, group, patience_s=120) as ledger:
        worker = threading.Thread(target=work, args=(ledger,))
        worker.start()
        for _ in range(times):
            for _ in range(20):
                assert acknowledged.acquire(timeout=60)
            restart(hbase_server)
        worker.join(150)
        assert not worker.is_alive()
        assert ledger.store.load(group) == ledger.snapshot
        versions = [entry.version for entry in ledger.store.history(group, 1000)]
        assert versions == list(range(batches + 2, 0, -1))
    assert stored() == (batches * 10, batches + 2)


def test_no_wait_is_endless_while_the_server_is_frozen(
    hbase_server: HBaseServer, url: str, group: str, stored: Stored
) -> None:
    """Afterwards no late answer is taken for that to another question, and every change is made once."""
    with holding(f"{url}&timeout=0.5", group) as ledger:
        change = commit_of(ledger)
        hbase_server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(OutcomeUnknown, match=r"no answer came for 0\.5 s"):
                ledger.store.apply(change)
            with pytest.raises(StoreUnavailable, match=r"no answer came for 0\.5 s"):
                ledger.store.load("first")
            assert time.monotonic() - began < 5
        finally:
            hbase_server.resume()
        wait_until(lambda: stored()[1] == 3, "the change that was given up on is done", 20)
        assert ledger.store.load(group) == change.after
        ledger.commit(next_batch(ledger, 10))
        assert ledger.store.load(group) == ledger.snapshot
        assert stored() == (10, 3)


def test_a_late_answer_is_not_taken_for_that_to_the_next_question(
    hbase_server: HBaseServer, url: str, group: str
) -> None:
    """The server wakes up while the next question waits for its answer."""
    with holding(f"{url}&timeout=2", group) as ledger:
        first = ledger.store.load("first")
        hbase_server.pause()
        back = threading.Timer(2.5, hbase_server.resume)
        back.start()
        try:
            with pytest.raises(StoreUnavailable, match="no answer came for 2 s"):
                ledger.store.load(group)
            assert ledger.store.load("first") == first
        finally:
            back.join()


def test_a_framed_and_compact_server_is_spoken_to(hbase_server: HBaseServer, table: str, group: str) -> None:
    """Whoever forgets to say so is not left hanging."""
    port = free_port()
    options = ("start", "-p", str(port), "-b", "127.0.0.1", "--framed", "--compact")
    (hbase_server.folder / "framed").mkdir()
    process = ServerProcess(
        hbase_server._java("256m", "thrift.ThriftServer", *options), folder=hbase_server.folder / "framed"
    )
    url = f"{hbase_server.url(port=port)}?table={table}&timeout=5"
    try:
        with holding(f"{url}&transport=framed&protocol=compact", group) as ledger:
            ledger.commit(next_batch(ledger, 10))
            assert ledger.store.load(group) == ledger.snapshot
        assert look(hbase_server, table, group) == (10, 3)
        for settings in ("", "&protocol=compact", "&transport=framed"):
            store = HBaseStore(url + settings)
            with pytest.raises(StoreUnavailable, match="transport="):
                store.load(group)
            store.close()
    finally:
        process.kill()
