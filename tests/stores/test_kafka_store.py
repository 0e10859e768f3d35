"""The store in Kafka's own group offsets: the suites."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.model import TopicPartition
from offsetkeeper.store import Store
from offsetkeeper.testing.conformance import DurableConformance, HistoryConformance, StoreConformance
from offsetkeeper.testing.kafka import KafkaServer

TOPICS = {"a": 2, "b": 8, "new": 3, "rivals": 1, "orders": 500, "payments": 500}
PARTITIONS = [(topic, number) for topic, count in TOPICS.items() for number in range(count)] + [("offsetkeeper", 0)]


@pytest.fixture(scope="module")
def server(kafka_server: KafkaServer) -> Iterator[KafkaServer]:
    """The broker, with the topics that the suites write offsets of."""
    for name, partitions in TOPICS.items():
        kafka_server.create_topic(name, partitions)
    yield kafka_server
    for name in set(TOPICS) & kafka_server.topics():
        kafka_server.delete_topic(name)


def group_id(url: str, group: str) -> str:
    """Return what Kafka knows the group by."""
    prefix = url.partition("prefix=")[2].partition("&")[0]
    return prefix + "".join(c if " " <= c <= "~" and c != "%" else quote(c) for c in group)


class TestKafka(StoreConformance, HistoryConformance, DurableConformance):
    """The suites. Kafka takes offsets only of partitions that exist: those others see are of the topics above."""

    @pytest.fixture
    def url(self, server: KafkaServer) -> str:
        """Groups of a prefix of their own."""
        self.server = server
        return f"kafka://{server.bootstrap}?prefix=test-{secrets.token_hex(6)}-"

    server: KafkaServer

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Ask as kafka-consumer-groups does."""
        found = self.server.group_offsets(group_id(url, group), PARTITIONS)
        return {TopicPartition(*each): offset for each, offset in found.items()}

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Commit as a consumer does. To delete one offset, Kafka has to forget the group."""
        name = group_id(url, group)
        offsets = {**self.read_positions(url, group), tp: offset}
        if offset is None:
            admin: Any = self.server.admin()
            admin.delete_consumer_groups([name])[name].result(30)
        self.commit(name, {each: at for each, at in offsets.items() if at is not None})

    def commit(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets."""
        consumer = Consumer({"bootstrap.servers": self.server.bootstrap, "group.id": name, "enable.auto.commit": False})
        consumer.commit(offsets=[KafkaPartition(*tp, at) for tp, at in offsets.items()], asynchronous=False)
        consumer.close()

    @pytest.mark.parametrize("count", [1, 2, 100, 1_000])
    def test_any_number_of_partitions_changes_in_one_step(self, store: Store, url: str, count: int) -> None:
        """As in the suite, but for partitions that exist; more are in the tests of limits."""
        super().test_any_number_of_partitions_changes_in_one_step(store, url, count)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """Let the group's pointer lead to another record."""
        texts = {
            "no JSON": b"garbage",
            "badly compressed": b"x garbage",
            "JSON of another kind": zlib.compress(b"[]"),
            "no offsets": zlib.compress(b'{"version": 2}'),
            "a newer format": zlib.compress(b'{"offsets": {}, "format": 99, "version": 2}'),
        }
        return {name: partial(self.spoil, group_id(url, group), text) for name, text in texts.items()}

    def spoil(self, name: str, value: bytes) -> None:
        """Write a ledger."""
        placed: list[int] = []
        producer = Producer({"bootstrap.servers": self.server.bootstrap})
        producer.produce("offsetkeeper", value, name, 0, lambda _, message: placed.append(message.offset() or 0))
        producer.flush(30)
        self.commit(f"offsetkeeper.{name}", {TopicPartition("offsetkeeper", 0): placed[0]})

    def dump(self, url: str) -> object:
        """Read all groups' offsets."""
        admin: Any = self.server.admin()
        names = [each.group_id for each in admin.list_consumer_groups().result(30).valid]
        return [self.read_positions("", name) for name in sorted(names) if group_id(url, "") in name]
