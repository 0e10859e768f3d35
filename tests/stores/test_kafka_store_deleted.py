"""The store in Kafka: ledgers and records that somebody deletes, by records without a value under their keys."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from confluent_kafka import Producer

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import CorruptStore, OffsetkeeperError
from offsetkeeper.kafka.ledger_log import Line
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServer

A = TopicPartition("a", 0)
Opener = Callable[[], KafkaStore]
TOPIC = "offsetkeeper"


@pytest.fixture
def group() -> str:
    """A group of this test's own."""
    return f"group-{secrets.token_hex(6)}"


@pytest.fixture
def open_one(kafka_server: KafkaServer, at_end: ExitStack) -> Opener:
    """Open stores on the broker; they are closed at the end."""
    return lambda: at_end.enter_context(closing(KafkaStore(f"kafka://{kafka_server.bootstrap}")))


def rewind(snapshot: Snapshot, offset: int) -> Change:
    author = rules.Author("me", "me", 0, secrets.token_hex(4))
    return rules.decide(snapshot, rules.Rewind({A: Position(offset)}, force=True), author)


def lines(store: KafkaStore, group: str) -> list[Line]:
    """Return the group's records, in their order."""
    return [line for line in store._lines(group) if line.value]


def delete(server: KafkaServer, deleted: Iterable[Line]) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for line in deleted:
        producer.produce(TOPIC, None, line.key, 0)
    producer.flush(30)


def test_a_ledger_whose_records_are_deleted_is_gone_for_those_who_knew_it_and_for_others(
    kafka_server: KafkaServer, open_one: Opener, group: str, topic: Callable[..., str]
) -> None:
    """At once, and not only when the broker compacts the topic. What Kafka has for the group counts as another's."""
    kept, part = Ledger(open_one(), group), TopicPartition(topic(1), 0)
    kept.acquire()
    kept.place({part: Position(0)})
    for start in (0, 10):
        kept.commit(kept.batch([OffsetRange(*part, start, start + 10)]))
    store = open_one()
    delete(kafka_server, lines(store, group))
    with pytest.raises(OffsetkeeperError):
        kept.commit(kept.batch([OffsetRange(*part, 20, 30)]))
    for each in (store, open_one(), kept.store):
        assert each.load(group) == Snapshot(group, positions={part: Position(20)})
        assert list(each.history(group)) == []
    admin: Any = kafka_server.admin()
    admin.delete_consumer_groups([group])[group].result(30)
    assert store.load(group) == Snapshot(group)
    again = Ledger(store, group)
    again.acquire()
    for each in (open_one(), kept.store):
        assert (each.load(group).version, len(each.history(group))) == (1, 1)


@pytest.mark.parametrize("taken", [1, 2])
def test_changes_whose_records_are_deleted_are_taken_back(
    kafka_server: KafkaServer, open_one: Opener, group: str, taken: int
) -> None:
    store = open_one()
    for offset in range(4):
        store.apply(rewind(store.load(group), offset))
    delete(kafka_server, lines(store, group)[-taken:])
    for each in (store, open_one()):
        assert each.load(group).positions == {A: Position(3 - taken)}
        assert [entry.version for entry in each.history(group)] == list(range(4 - taken, 0, -1))


def test_an_old_record_that_is_deleted_changes_nothing(kafka_server: KafkaServer, open_one: Opener, group: str) -> None:
    store = open_one()
    for offset in range(4):
        store.apply(rewind(store.load(group), offset))
    delete(kafka_server, lines(store, group)[:1])
    for each in (store, open_one()):
        assert each.load(group).positions == {A: Position(3)}
        assert [entry.version for entry in each.history(group)] == [4, 3, 2]


def test_a_damaged_record_that_is_deleted_is_a_hindrance_no_more(
    kafka_server: KafkaServer, open_one: Opener, group: str
) -> None:
    store = open_one()
    for offset in (1, 2):
        store.apply(rewind(store.load(group), offset))
    damaged = Line(-1, group, 3, secrets.token_hex(8), lines(store, group)[-1].token, b"garbage")
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce(TOPIC, damaged.value, damaged.key, 0, headers=[("previous", damaged.previous.encode())])
    producer.flush(30)
    for each in (store, open_one()):
        with pytest.raises(CorruptStore):
            each.load(group)
    delete(kafka_server, [damaged])
    for each in (store, open_one()):
        assert each.load(group).positions == {A: Position(2)}
    store.apply(rewind(store.load(group), 3))
    assert open_one().load(group).positions == {A: Position(3)}
