"""The store in a ZooKeeper of three servers, of which some lag, are cut off, or die."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.stores.zookeeper import ZooKeeperStore
from offsetkeeper.testing.conformance.served import commit_of
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.zookeeper import ZooKeeperEnsemble

Opener = Callable[..., ZooKeeperStore]
GROUP = "orders"
_ENDLESS_S = 20.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """The three servers. Who kills one starts it again."""
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def root() -> str:
    """A path of this test's own, without slash."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def open_store(ensemble: ZooKeeperEnsemble, root: str, at_end: ExitStack) -> Opener:
    """Open stores on the path; they are closed at the end."""

    def open_one(only: int | None = None, timeout: float = 10) -> ZooKeeperStore:
        return at_end.enter_context(closing(ZooKeeperStore(f"{ensemble.url(root, only=only)}?timeout={timeout:g}")))

    return open_one


def test_the_doctor_counts_the_servers_that_vote(open_store: Opener) -> None:
    assert open_store().server_settings() == {"participants": "3"}


@contextmanager
def held(ensemble: ZooKeeperEnsemble, number: int) -> Iterator[None]:
    """Hold what is replicated from and to a server."""
    ensemble.hold(number)
    try:
        yield
    finally:
        ensemble.release(number)


def roles(ensemble: ZooKeeperEnsemble) -> tuple[int, int, int]:
    """Return the numbers of the leader and its followers."""
    leader = ensemble.leader()
    one, other = (number for number in range(3) if number != leader)
    return leader, one, other


def moved(snapshot: Snapshot) -> Change:
    """Return a change to the next offset, with an id of its own."""
    author = rules.Author("me", "me", 0, secrets.token_hex(4))
    return rules.decide(snapshot, rules.Rewind({PARTITION: Position(snapshot.version + 1)}), author)


def moved_twice(writer: ZooKeeperStore, reader: ZooKeeperStore) -> tuple[Change, Change]:
    """Make one change, which the reader sees, and return it and the next one, which is not made yet."""
    first = moved(writer.load(GROUP))
    writer.apply(first)
    assert reader.load(GROUP) == first.after
    return first, moved(first.after)


@contextmanager
def bare(ensemble: ZooKeeperEnsemble, number: int, root: str) -> Iterator[Callable[..., int]]:
    """Connect to one server as another program; what is yielded returns the offset it reads, after a `sync` or not."""
    path = f"/{root}/consumers/{GROUP}/offsets/{PARTITION.topic}/{PARTITION.partition}"
    client = ensemble.servers[number].client()

    def offset(*, synced: bool = False) -> int:
        client.sync(path) if synced else None
        return int(client.get(path)[0])

    yield offset
    client.stop()
    client.close()


def under_way(store: ZooKeeperStore, running: Future[None] | Future[Snapshot], requests: int) -> None:
    """Wait until so many requests have reached the server that does not answer; or, where it does, until the end."""
    wait_until(lambda: running.done() or len(store._sessions._held._pending) >= requests, "it asks", 30)


def test_what_is_read_from_a_follower_that_lags_is_the_newest_after_it_caught_up(
    ensemble: ZooKeeperEnsemble, open_store: Opener, root: str
) -> None:
    """Another program that asks it meanwhile reads what was."""
    leader, lagging, _ = roles(ensemble)
    writer, store = open_store(leader), open_store(lagging)
    first, second = moved_twice(writer, store)
    with ThreadPoolExecutor() as pool, bare(ensemble, lagging, root) as offset:
        with held(ensemble, lagging):
            writer.apply(second)
            loading = pool.submit(store.load, GROUP)
            under_way(store, loading, 3)
            assert offset() == first.after.positions[PARTITION].offset
        assert loading.result(30) == second.after
    assert [entry.version for entry in store.history(GROUP)] == [2, 1]


def test_a_follower_that_lags_for_long_is_unavailable(ensemble: ZooKeeperEnsemble, open_store: Opener) -> None:
    """It answers in no time, but not what is asked; afterwards the same store goes on."""
    leader, lagging, _ = roles(ensemble)
    writer, store = open_store(leader), open_store(lagging, timeout=2)
    _, second = moved_twice(writer, store)
    others = [open_store(lagging, timeout=2) for _ in range(2)]
    assert [other.groups() for other in others] == [[GROUP]] * 2
    with held(ensemble, lagging), ThreadPoolExecutor() as pool:
        writer.apply(second)
        began = time.monotonic()
        asked: list[Callable[[], object]] = [
            lambda: store.load(GROUP),
            lambda: others[0].history(GROUP),
            others[1].groups,
        ]
        for answer in [pool.submit(each) for each in asked]:
            with pytest.raises(StoreUnavailable, match="2 s"):
                answer.result(30)
        assert time.monotonic() - began < _ENDLESS_S
    assert Ledger(store, GROUP).load() == second.after


@pytest.mark.parametrize("knows", [True, False], ids=["has seen the old version", "looks first"])
def test_a_change_of_an_old_version_through_a_follower_that_lags_is_refused(
    ensemble: ZooKeeperEnsemble, open_store: Opener, *, knows: bool
) -> None:
    """For the follower it is the newest version."""
    leader, lagging, _ = roles(ensemble)
    writer, store = open_store(leader), open_store(lagging)
    first, second = moved_twice(writer, store)
    store._seen.clear() if not knows else None
    with ThreadPoolExecutor() as pool:
        with held(ensemble, lagging):
            writer.apply(second)
            applying = pool.submit(store.apply, moved(first.after))
            under_way(store, applying, 1)
        with pytest.raises(VersionConflict):
            applying.result(30)
    assert store.load(GROUP) == writer.load(GROUP) == second.after


def test_a_leader_that_does_not_know_of_the_next_one_is_unavailable(
    ensemble: ZooKeeperEnsemble, open_store: Opener, root: str
) -> None:
    """Cut off from the others, it goes on as their leader, and answers a `sync` alone."""
    old, *others = roles(ensemble)
    store, lost = open_store(old, timeout=4), open_store(old, timeout=4)
    first, second = moved_twice(open_store(old), store)
    lost.load(GROUP)
    with bare(ensemble, old, root) as offset, ThreadPoolExecutor() as pool, held(ensemble, old):
        ensemble.kill(*others)
        ensemble.restart(*others)
        open_store(ensemble.leader(others)).apply(second)
        assert offset(synced=True) == first.after.positions[PARTITION].offset
        for answer in [pool.submit(store.load, GROUP), pool.submit(lost.load, "another group")]:
            with pytest.raises(StoreUnavailable):
                answer.result(30)
        assert ensemble.leader([old]) == old
    assert Ledger(store, GROUP).load() == second.after


def test_what_was_acknowledged_survives_the_leaders(ensemble: ZooKeeperEnsemble, open_store: Opener, root: str) -> None:
    """Each is killed in the middle of commits; they go on through another server before it is back."""
    ledger, committed = Ledger(open_store(), GROUP, retry_timeout_s=120), 0
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            leader = ensemble.leader()
            killing = pool.submit(ensemble.kill, leader)
            while not killing.done():
                ledger.commit(next_batch(ledger, 10))
                committed += 1
            killing.result()
            for _ in range(10):
                ledger.commit(next_batch(ledger, 10))
                committed += 1
            ensemble.restart(leader)
    last = ledger.snapshot
    assert ledger.load() == last
    assert (last.positions[PARTITION].offset, last.version) == (committed * 10, committed + 2)
    assert [entry.version for entry in ledger.history(last.version)] == list(range(last.version, 0, -1))
    for number in range(3):
        with bare(ensemble, number, root) as offset:
            assert offset(synced=True) == committed * 10


def test_without_a_majority_nothing_waits_endlessly_and_what_may_be_written_is_called_so(
    ensemble: ZooKeeperEnsemble, open_store: Opener
) -> None:
    """The leader notes a change that nobody else gets: it is there when another server is back."""
    leader, *others = roles(ensemble)
    store, anywhere = open_store(leader, timeout=4), open_store(timeout=2)
    ledger = Ledger(store, GROUP, retry_timeout_s=120)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    change = commit_of(ledger)
    ensemble.pause(*others)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        store.apply(change)
    ensemble.kill(*others)
    for away in (store, anywhere):
        with pytest.raises(StoreUnavailable):
            away.load(GROUP)
    with pytest.raises(StoreUnavailable):
        anywhere.apply(change)
    assert time.monotonic() - began < _ENDLESS_S
    ensemble.restart(others[0])
    assert Ledger(anywhere, GROUP).load() == change.after
    ensemble.restart(others[1])
    ledger.commit(next_batch(ledger, 10))
    assert ledger.load() == change.after
