"""How the tests of the store in Kafka reach groups without the store."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.stores.kafka.store import NAMES
from offsetkeeper.testing.conformance.medium import Medium
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.rivals import PARTITION


def group_id(url: str, group: str) -> str:
    """Return what Kafka knows the group by."""
    prefix = url.partition("prefix=")[2].partition("&")[0]
    return prefix + NAMES.name_of(group)


def commit(server: KafkaServer, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets as a consumer does."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": name, "enable.auto.commit": False})
    consumer.commit(offsets=[KafkaPartition(*tp, at) for tp, at in offsets.items()], asynchronous=False)
    consumer.close()


class KafkaMedium(Medium):
    """Offsets of groups, as others read and commit them.

    Attributes:
        kafka: the broker.
        partitions: that the suites write offsets of.
    """

    rows_are_positions = False

    kafka: KafkaServer
    partitions: tuple[tuple[str, int], ...] = (PARTITION,)

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Ask as kafka-consumer-groups does."""
        found = self.kafka.group_offsets(group_id(url, group), self.partitions)
        return {TopicPartition(*each): offset for each, offset in found.items()}

    def part(self, url: str, number: int) -> str:
        """A topic of their own: who looks at a group for the first time reads all records."""
        return f"{url}&topic=offsetkeeper-{number}"
