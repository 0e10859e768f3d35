"""The store in Kafka whose topic loses its tail, or is made again, while a run holds a group.

A single broker that loses power, an unclean election and a restored volume cut a log. Here the topic is made again with
its first records only, which looks the same, and is the other way to lose them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError, VersionConflict
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

A = TopicPartition("a", 0)
Opener = Callable[[], KafkaStore]


@pytest.fixture
def ledgers(kafka_server: KafkaServer) -> str:
    """The topic of the ledgers, of this test's own."""
    name = f"ledgers-{secrets.token_hex(6)}"
    kafka_server.create_topic(name, 1, {"cleanup.policy": "compact"})
    return name


@pytest.fixture
def open_one(kafka_server: KafkaServer, ledgers: str, at_end: ExitStack) -> Opener:
    """Open stores on the topic, as many as there are programs; they share nothing but the broker."""
    url = f"kafka://{kafka_server.bootstrap}?topic={ledgers}&prefix={ledgers}-"
    return lambda: at_end.enter_context(closing(KafkaStore(url)))


@pytest.fixture
def cut(kafka_server: KafkaServer, ledgers: str) -> Callable[..., None]:
    """Leave so many records in the topic, or all but some."""

    def cut(left: int, without: Collection[int] = ()) -> None:
        kept = [each for place, each in enumerate(records(kafka_server, ledgers)) if place not in without][:left]
        kafka_server.delete_topic(ledgers)
        wait_until(lambda: ledgers not in kafka_server.topics(), "the topic was gone", 30)
        kafka_server.create_topic(ledgers, 1, {"cleanup.policy": "compact"})
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
        for each in kept:
            producer.produce(ledgers, each.value(), each.key(), 0, headers=each.headers())
        producer.flush(30)
        assert len(records(kafka_server, ledgers)) == len(kept)

    return cut


def records(server: KafkaServer, topic: str) -> list[Message]:
    at_once = {"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bare", **at_once})
    consumer.assign([KafkaPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    return found


def rewind(snapshot: Snapshot, offset: int) -> Change:
    author = rules.Author("me", "me", 0, secrets.token_hex(4))
    return rules.decide(snapshot, rules.Rewind({A: Position(offset)}, force=True), author)


def move(store: KafkaStore, group: str, offset: int) -> None:
    store.apply(rewind(store.load(group), offset))


def test_a_run_ends_once_a_newer_one_has_filled_the_place_of_its_lost_changes(
    open_one: Opener, cut: Callable[[int], None]
) -> None:
    """Else both commit, and the records between are there twice."""
    older, newer = Ledger(open_one(), "g"), Ledger(open_one(), "g")
    older.acquire()
    older.place({A: Position(0)})
    for start in (0, 10, 20):
        older.commit(older.batch([OffsetRange(*A, start, start + 10)]))
    cut(3)
    newer.acquire()
    newer.commit(newer.batch([OffsetRange(*A, 10, 20)]))  # the topic is as long as the older run knows it
    with pytest.raises(OffsetkeeperError):
        older.commit(older.batch([OffsetRange(*A, 30, 40)]))
    newer.commit(newer.batch([OffsetRange(*A, 20, 25)]))
    with pytest.raises(OffsetkeeperError):
        older.commit(older.batch([OffsetRange(*A, 30, 40)]))
    assert older.load() == newer.load() == Ledger(open_one(), "g").load()
    assert newer.load().positions == {A: Position(25)}


def is_refused(store: KafkaStore, seen: Snapshot) -> None:
    """Check that a change of what a store has seen is refused, and that it sees what another one has written since."""
    with pytest.raises(VersionConflict):
        store.apply(rewind(seen, 2))
    assert store.load("g").positions == {A: Position(7)}


@pytest.mark.parametrize("more", [0, 1], ids=["as long as before", "longer"])
def test_a_change_that_came_behind_the_newest_one_known_is_seen(
    open_one: Opener, cut: Callable[[int], None], more: int
) -> None:
    """The newest change is still there, but not the records of others that were read behind it."""
    one, two = open_one(), open_one()
    move(one, "g", 1)
    for offset in range(3):
        move(two, "other", offset)
    seen = one.load("g")
    cut(2)
    newer = open_one()
    move(newer, "g", 7)
    for offset in range(1 + more):
        move(newer, "other", offset)
    is_refused(one, seen)


def test_a_group_that_had_no_ledger_is_looked_up_again(open_one: Opener, cut: Callable[[int], None]) -> None:
    one, two = open_one(), open_one()
    for offset in range(3):
        move(two, "other", offset)
    nothing = one.load("g")
    cut(1)
    newer = open_one()
    move(newer, "g", 7)
    move(newer, "other", 9)
    is_refused(one, nothing)


@pytest.mark.parametrize("known", [True, False], ids=["a ledger", "no ledger"])
def test_one_that_has_looked_away_while_what_it_knew_was_compacted_sees_what_is_newer(
    open_one: Opener, cut: Callable[..., None], *, known: bool
) -> None:
    """Old changes are deleted, and after a day without a look neither they nor their deletions are in the topic.

    Else its change is the beginning of another ledger, and every later start goes on from there.
    """
    idle, two = open_one(), open_one()
    move(two, "other", 0)
    if known:
        move(two, "g", 1)
    move(two, "other", 1)
    seen = idle.load("g")
    for offset in (2, 3, 4, 7):
        move(two, "g", offset)
    cut(99, without=range(2 + known, 4 + known))
    is_refused(idle, seen)
    move(idle, "g", 8)
    assert two.load("g") == open_one().load("g") == idle.load("g")
