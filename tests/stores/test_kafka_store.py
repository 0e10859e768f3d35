"""The store in Kafka's own group offsets: the suites."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import Refused
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.conformance import DurableConformance, HistoryConformance, StoreConformance
from offsetkeeper.testing.conformance.medium import ledger_of
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from stores.kafka_media import KafkaMedium, commit, group_id

TOPICS = {"a": 2, "b": 8, "new": 3, "rivals": 1, "orders": 500, "payments": 500}
PARTITIONS = tuple((topic, number) for topic, count in TOPICS.items() for number in range(count))


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker of this file's own, with the topics that the suites write offsets of."""
    with KafkaServer() as server:
        for name, partitions in TOPICS.items():
            server.create_topic(name, partitions)
        yield server


def records(server: KafkaServer) -> list[Message]:
    """Return all records of the ledgers' topic, read by a bare client."""
    if "offsetkeeper" not in server.topics():
        return []
    at_once = {"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "bare", **at_once})
    consumer.assign([KafkaPartition("offsetkeeper", 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    return found


def newest_token(server: KafkaServer, name: str) -> str:
    """Return the token in the key of a group's newest record; empty where there is none."""
    keys = [(message.key() or b"").decode().rsplit("/", 2) for message in records(server) if message.value()]
    return next((token for group, _, token in reversed(keys) if group == name), "")


class TestKafka(KafkaMedium, StoreConformance, HistoryConformance, DurableConformance):
    """The suites. Kafka takes offsets only of partitions that exist: those others see are of the topics above."""

    @pytest.fixture
    def url(self, server: KafkaServer) -> str:
        """Groups of a prefix of their own."""
        self.kafka = server
        return f"kafka://{server.bootstrap}?prefix=test-{secrets.token_hex(6)}-"

    partitions = PARTITIONS
    examples = 4

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Commit as a consumer does. To delete one offset, Kafka has to forget the group."""
        name = group_id(url, group)
        offsets = {**self.read_positions(url, group), tp: offset}
        if offset is None:
            admin: Any = self.kafka.admin()
            admin.delete_consumer_groups([name])[name].result(30)
        commit(self.kafka, name, {each: at for each, at in offsets.items() if at is not None})

    @pytest.mark.parametrize("count", [1, 2, 100, 1_000])
    def test_any_number_of_partitions_changes_in_one_step(self, store: Store, url: str, count: int) -> None:
        """As in the suite, but for partitions that exist; more are in the tests of limits."""
        super().test_any_number_of_partitions_changes_in_one_step(store, url, count)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """Let a newer record follow the one that counts."""
        texts = {
            "no JSON": b"garbage",
            "badly compressed": b"x garbage",
            "JSON of another kind": zlib.compress(b"[]"),
            "no offsets": zlib.compress(b'{"version": 3}'),
            "another version than its key": zlib.compress(b'{"offsets": {}, "version": 7}'),
            "a newer format": zlib.compress(b'{"offsets": {}, "format": 99, "version": 3}'),
        }
        counts = newest_token(self.kafka, group_id(url, group))
        return {name: partial(self.spoil, group_id(url, group), counts, text) for name, text in texts.items()}

    def spoil(self, name: str, previous: str, value: bytes) -> None:
        """Take the spoiler before out, and write another."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        if self.spoiled:
            producer.produce("offsetkeeper", None, self.spoiled, 0)
        self.spoiled = f"{name}/3/{secrets.token_hex(4)}"
        producer.produce("offsetkeeper", value, self.spoiled, 0, headers=[("previous", previous.encode())])
        producer.flush(30)

    spoiled = ""

    def dump(self, url: str) -> object:
        """Read all groups' offsets, and the records of the ledgers."""
        admin: Any = self.kafka.admin()
        names = [each.group_id for each in admin.list_consumer_groups().result(30).valid]
        offsets = [self.read_positions("", name) for name in sorted(names) if group_id(url, "") in name]
        return [offsets, [(each.key(), each.value(), each.headers()) for each in records(self.kafka)]]


def test_offsets_of_a_group_whose_name_is_not_ascii_are_taken_over(server: KafkaServer) -> None:
    """Our own copy of them is in a group with another name, and the group is listed once."""
    prefix = f"test-{secrets.token_hex(6)}-"
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    commit(server, f"{prefix}größe 50%", {a: 10, b: 30})
    with closing(KafkaStore(f"kafka://{server.bootstrap}?prefix={prefix}")) as store:
        assert list(store.groups()) == ["größe 50%"]
        ledger = ledger_of(store, "größe 50%")
        ledger.acquire()
        ledger.commit(ledger.batch([OffsetRange(*a, 10, 15)]))
        assert list(store.groups()) == ["größe 50%"]
        assert {tp: at.offset for tp, at in store.load("größe 50%").positions.items()} == {a: 15, b: 30}
        assert server.group_offsets(f"{prefix}gr%C3%B6%C3%9Fe 50%25", [a, b]) == {a: 15, b: 30}
        stranger = "gr%C3%B6%C3%9Fe 50%25"  # the name of our copy is another group, which has nothing
        assert store.load(stranger).positions == {}


def test_a_consumer_in_a_group_whose_name_is_not_ascii_is_noticed_at_the_first_change(server: KafkaServer) -> None:
    group = f"größe-{secrets.token_hex(6)}"
    settings = {"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["a"])
    with closing(consumer), closing(KafkaStore(f"kafka://{server.bootstrap}")) as store:
        wait_until(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), "the consumer has joined", 60)
        with pytest.raises(Refused, match="consumers are in Kafka's group 'größe-"):
            ledger_of(store, group).acquire()


def test_a_group_in_kafka_that_begins_with_a_space_is_never_taken_for_another(server: KafkaServer) -> None:
    """The client library drops the space, so it would read and move the other one; a lone space ends the process."""
    name, a = f"lead-{secrets.token_hex(6)}", TopicPartition("a", 0)
    commit(server, name, {a: 7})
    admin: Any = server.admin()
    for each in (f" {name}", " "):
        wanted = ConsumerGroupTopicPartitions(each, [KafkaPartition(*a, 3)])
        admin.alter_consumer_group_offsets([wanted])[each].result(30)
    with closing(KafkaStore(f"kafka://{server.bootstrap}")) as store:
        assert {f" {name}", " ", name} <= set(store.groups())
        for each in (f" {name}", " "):
            with pytest.raises(Refused, match="the client library drops white space at the beginning"):
                store.load(each)
        ledger_of(store, f"  {name}").acquire()  # Kafka has none of this name, so it is free
        assert f"  {name}" in store.groups()
    assert server.group_offsets(name, [a]) == {a: 7}
