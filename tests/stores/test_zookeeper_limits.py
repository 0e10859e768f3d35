"""The store in ZooKeeper: what others see, what does not fit into one request, and where a crash leaves it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore, Refused, VersionConflict
from offsetkeeper.stores.zookeeper import ZooKeeperStore
from offsetkeeper.stores.zookeeper import store as zookeeper
from offsetkeeper.testing.zookeeper import ZooKeeperServer

Opener = Callable[..., ZooKeeperStore]
A, B = TopicPartition("a", 0), TopicPartition("a", 1)
SMALL = "?jute.maxbuffer=65536"
MANY = 2000


@pytest.fixture(scope="module")
def bare(zookeeper_server: ZooKeeperServer) -> Iterator[Any]:
    """A bare client."""
    client = zookeeper_server.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def root() -> str:
    """A path of this test's own, without slash."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def open_store(zookeeper_server: ZooKeeperServer, root: str, at_end: ExitStack) -> Opener:
    """Open stores on the path; they are closed at the end."""
    return lambda query="": at_end.enter_context(closing(ZooKeeperStore(zookeeper_server.url(root) + query)))


def rewind(snapshot: Snapshot, offset: int, count: int = 1, name: str = "id") -> Change:
    positions = {TopicPartition("a", partition): Position(offset + partition) for partition in range(count)}
    return rules.decide(snapshot, rules.Rewind(positions), rules.Author("me", "me", 0, name))


def shown(bare: Any, root: str, partitions: int = 1) -> list[int]:
    """Return the offsets others see, less the partition's number."""
    path = f"/{root}/consumers/g/offsets/a"
    asked = [bare.get_async(f"{path}/{number}") for number in range(partitions)]
    return [int(answer.get()[0]) - number for number, answer in enumerate(asked)]


def test_the_old_consumers_find_their_offset_in_decimal(open_store: Opener, bare: Any, root: str) -> None:
    store = open_store()
    store.apply(rewind(store.load("g"), 1234))
    assert bare.get(f"/{root}/consumers/g/offsets/a/0")[0] == b"1234"
    assert bare.get_children(f"/{root}/consumers/g/offsets") == ["a"]


def test_the_first_offsets_of_a_batch_can_be_shown_in_place_of_the_last(
    open_store: Opener, bare: Any, root: str
) -> None:
    """Whoever starts from them reads the last batch again. The ledger itself goes on from the end."""
    store = open_store("?publish=start")
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({A: Position(10)})
    assert shown(bare, root) == [10]
    for start in (10, 20):
        ledger.commit(ledger.batch([OffsetRange(*A, start, start + 10)]))
        assert shown(bare, root) == [start]
    assert store.load("g").positions == {A: Position(30)}
    ledger.rewind({A: Position(5)}, "again")
    assert shown(bare, root) == [5]


@pytest.mark.parametrize("restarts", [False, True], ids=["one run", "a run each"])
def test_only_partitions_of_the_last_batch_show_where_it_began(
    open_store: Opener, bare: Any, root: str, *, restarts: bool
) -> None:
    """The others show where they are read on: else old batches of quiet partitions would be read again."""
    ledger = Ledger(open_store("?publish=start"), "g")
    ledger.acquire()
    ledger.place({A: Position(0), B: Position(1)})
    for tp, start, expected in ((A, 0, [0, 0]), (B, 1, [10, 0]), (B, 11, [10, 10]), (A, 10, [10, 20])):
        if restarts:
            ledger = Ledger(open_store("?publish=start"), "g")
            ledger.acquire()
        ledger.commit(ledger.batch([OffsetRange(*tp, start, start + 10)]))
        assert shown(bare, root, 2) == expected
        ledger.place({TopicPartition("b", start): Position(0)})  # a new one is no batch
        assert shown(bare, root, 2) == expected
    ledger = Ledger(open_store(), "g")
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*B, 21, 25)]))
    assert shown(bare, root, 2) == [20, 24]


@pytest.mark.parametrize("query", ["", SMALL], ids=["in one step", "in several"])
def test_offsets_are_shown_whatever_their_number(open_store: Opener, bare: Any, root: str, query: str) -> None:
    store = open_store(query)
    for offset in (1, 10**12):
        store.apply(rewind(store.load("g"), offset, MANY))
        assert shown(bare, root, MANY) == [offset] * MANY
    assert bare.get(f"/{root}/consumers/g/offsetkeeper/unpublished")[0] == b""
    assert len(store.load("g").positions) == MANY


def test_what_a_crash_left_unpublished_is_shown_with_the_next_change(
    open_store: Opener, bare: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes that change. Until then the ledger is right and the copy is old."""
    crashing, other = open_store(SMALL), open_store()
    crashing.apply(rewind(Snapshot("g"), 1, MANY))
    monkeypatch.setattr(crashing, "_publish", lambda *_: None)
    crashing.apply(rewind(crashing.load("g"), 50, MANY))
    assert shown(bare, root, MANY) == [1] * MANY
    assert other.load("g").positions[B] == Position(51)
    other.apply(rewind(other.load("g"), 70))
    assert shown(bare, root, MANY) == [70] + [50] * (MANY - 1)
    other.apply(rewind(other.load("g"), 71))
    assert shown(bare, root, 2) == [71, 50]


@pytest.mark.parametrize("late", [False, True], ids=["the try before", "after the look"])
def test_what_a_lost_reply_left_unpublished_is_shown_by_the_next_try(
    open_store: Opener, bare: Any, root: str, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """The next try of the same change is refused, as it was made, by a writer that gave up waiting for its reply."""
    store, lost = open_store(SMALL), open_store(SMALL)
    store.apply(rewind(Snapshot("g"), 1, MANY))
    change = rewind(lost.load("g"), 50, MANY)
    if late:
        store.load("g")
    monkeypatch.setattr(lost, "_publish", lambda *_: None)
    lost.apply(change)
    assert shown(bare, root, MANY) == [1] * MANY
    with pytest.raises(VersionConflict, match="it is at version 2, not 1"):
        store.apply(change)
    assert shown(bare, root, MANY) == [50] * MANY


def test_a_publisher_that_was_overtaken_writes_nothing_over(
    open_store: Opener, bare: Any, root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = open_store(SMALL), open_store()
    late: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patched:
        patched.setattr(slow, "_publish", lambda *arguments: late.append(arguments))
        slow.apply(rewind(Snapshot("g"), 1, MANY))
    quick.apply(rewind(quick.load("g"), 9, MANY))
    with caplog.at_level(logging.WARNING):
        slow._publish(*late[0])
    assert shown(bare, root, MANY) == [9] * MANY
    assert "published with the next change" in caplog.text
    slow.apply(rewind(slow.load("g"), 10, MANY))
    assert shown(bare, root, MANY) == [10] * MANY


def test_a_ledger_too_large_for_a_request_is_refused_before_anything_is_written(
    open_store: Opener, bare: Any, root: str
) -> None:
    """Compressed, 30,000 partitions are."""
    store = open_store(SMALL)
    store.apply(rewind(Snapshot("g"), 1))
    before = store.load("g")
    with pytest.raises(Refused, match=r"'g'.*allows requests of 61440.*jute\.maxbuffer"):
        store.apply(rewind(before, 2, 30_000))
    assert store.load("g") == before
    assert shown(bare, root) == [1]
    assert [entry.version for entry in store.history("g")] == [1]
    open_store().apply(rewind(before, 2, 30_000))


def test_a_writer_with_nothing_but_an_old_version_is_refused(open_store: Opener) -> None:
    one, two = open_store(), open_store()
    one.apply(rewind(Snapshot("g"), 1))
    stale = rewind(one.load("g"), 5)
    two.apply(rewind(two.load("g"), 2))
    with pytest.raises(VersionConflict, match="'g'"):
        one.apply(stale)
    assert one.load("g").positions == {A: Position(2)}


def test_a_run_that_sleeps_while_its_ledger_is_made_anew_writes_nothing(
    open_store: Opener, bare: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one and its node are of the versions that the run has seen."""
    one, two = open_store(), open_store()
    one.apply(rewind(Snapshot("g"), 1))
    stale = rewind(one.load("g"), 5)
    bare.delete(f"/{root}/consumers/g/offsetkeeper/ledger")
    two.apply(rewind(two.load("g"), 2, name="another"))
    monkeypatch.setattr(zookeeper, "_HOLDS_S", 0.0)  # as after a while
    with pytest.raises(VersionConflict, match="version 1 is not the one that was read"):
        one.apply(stale)
    assert two.load("g").positions == {A: Position(2)}


def test_what_was_seen_in_another_session_is_looked_up_again(
    open_store: Opener, bare: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup can only be restored while the servers are down."""
    one, two = open_store(), open_store()
    one.apply(rewind(Snapshot("g"), 1))
    stale = rewind(one.load("g"), 5)
    bare.delete(f"/{root}/consumers/g/offsetkeeper/ledger")
    two.apply(rewind(two.load("g"), 2, name="another"))
    monkeypatch.setattr(zookeeper, "_HOLDS_S", 3600.0)
    one._sessions.close()
    with pytest.raises(VersionConflict, match="version 1 is not the one that was read"):
        one.apply(stale)


def test_a_group_whose_ledger_was_deleted_begins_anew(open_store: Opener, bare: Any, root: str) -> None:
    """As a message about a spoilt one advises. The positions stay; the history is that of the new ledger."""
    store = open_store()
    for offset in (1, 2, 3):
        store.apply(rewind(store.load("g"), offset))
    bare.delete(f"/{root}/consumers/g/offsetkeeper/ledger")
    assert store.load("g") == Snapshot("g", positions={A: Position(3)})
    change = rewind(store.load("g"), 4)
    store.apply(change)
    assert store.load("g") == change.after
    assert list(store.history("g")) == [change.entry]


def test_a_note_of_a_ledger_that_was_deleted_is_not_published(open_store: Opener, bare: Any, root: str) -> None:
    store = open_store()
    store.apply(rewind(Snapshot("g"), 1))
    bare.set(f"/{root}/consumers/g/offsetkeeper/unpublished", b'{"a/0":"77"}')
    bare.delete(f"/{root}/consumers/g/offsetkeeper/ledger")
    store.apply(rewind(store.load("g"), 2))
    assert bare.get(f"/{root}/consumers/g/offsetkeeper/unpublished")[0] == b""
    assert shown(bare, root) == [2]


@pytest.mark.parametrize(
    ("node", "data"),
    [
        ("a/0", b"ten"),
        ("a/0", b""),
        ("a/0", b"-1"),
        ("a/0", b"9" * 30),
        ("a/one", b"1"),
        ("a/007", b"1"),
        ("a b/0", b"1"),
    ],
)
def test_what_can_be_no_offset_of_another_program_is_told(
    open_store: Opener, bare: Any, root: str, node: str, data: bytes
) -> None:
    bare.create(f"/{root}/consumers/g/offsets/{node}", data, makepath=True)
    with pytest.raises(CorruptStore, match=f"{node}.*correct or delete"):
        open_store().load("g")


def test_the_history_stays_bounded_and_is_read_by_stores_that_keep_less(
    open_store: Opener, bare: Any, root: str
) -> None:
    store = open_store("?history=5")
    for offset in range(1, 13):
        store.apply(rewind(store.load("g"), offset))
    assert len(bare.get_children(f"/{root}/consumers/g/offsetkeeper/history")) == 5
    assert [entry.version for entry in store.history("g")] == [12, 11, 10, 9, 8]
    assert {entry.version for entry in open_store("?history=3").history("g")} <= {12, 11, 10}


def test_old_consumers_without_offsets_are_no_groups(open_store: Opener, bare: Any, root: str) -> None:
    bare.ensure_path(f"/{root}/consumers/idle/ids")
    bare.ensure_path(f"/{root}/consumers/planned/offsets/a")
    assert list(open_store().groups()) == []
