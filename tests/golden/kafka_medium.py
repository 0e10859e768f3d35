"""Ledgers in a topic of Kafka, and the offsets of its groups."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import ConfigResource, ConfigSource  # type: ignore[attr-defined]  # they are public

from golden.medium import Medium
from golden.scenario import GROUPS, TOPICS
from golden.values import readable, written
from offsetkeeper.testing.kafka import KafkaServer

_PREFIX = "golden-"
_LEDGERS = "the topic of the ledgers"


class KafkaMedium(Medium):
    """A topic for the ledgers, and those that the groups have offsets of."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._topic = f"golden-ledgers-{secrets.token_hex(6)}"
        self.url = f"kafka://{server.bootstrap}?topic={self._topic}&prefix={_PREFIX}"
        for name, partitions in TOPICS.items():
            server.create_topic(name, partitions)

    def close(self) -> None:
        """Delete the topics, and with them what the groups have committed: other tests use the broker too."""
        for name in {self._topic, *TOPICS} & self._server.topics():
            self._server.delete_topic(name)

    def dump(self) -> Any:
        """Read every record, the topic's settings, and what the groups have committed."""
        names = [start + _named(group) for group in GROUPS for start in ("", "offsetkeeper.")]
        groups = {name: self._committed(name) for name in names}
        return {"settings": self._settings(), "records": list(self._records()), "groups": groups}

    def restore(self, content: Any) -> None:
        """Write them again."""
        self._server.create_topic(self._topic, 1, content["settings"])
        producer = Producer({"bootstrap.servers": self._server.bootstrap})
        for record in content["records"]:
            headers = [(name, value.encode()) for name, value in record["headers"]]
            producer.produce(self._topic, written(record["value"]), record["key"], 0, headers=headers)
        producer.flush(30)
        for name, offsets in content["groups"].items():
            wanted = [self._partition(*each) for each in offsets]
            consumer = self._consumer(name)
            consumer.commit(offsets=wanted, asynchronous=False)
            consumer.close()

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Ask as kafka-consumer-groups does."""
        found = self._server.group_offsets(_named(group), [(t, n) for t, count in TOPICS.items() for n in range(count)])
        return dict(found)

    def _settings(self) -> dict[str, str]:
        asked = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        admin = self._server.admin()  # kept: it ends what is under way when nobody holds it
        found: Any = admin.describe_configs([asked])[asked].result(30)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: each.value for name, each in sorted(found.items()) if each.source == own}

    def _records(self) -> Iterator[dict[str, Any]]:
        consumer = self._consumer("golden-reader")
        consumer.assign([KafkaPartition(self._topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            key, value, headers = message.key() or b"", message.value() or b"", message.headers() or []
            told = [[name, text.decode()] for name, text in dict(headers).items() if isinstance(text, bytes)]
            yield {"offset": message.offset(), "key": key.decode(), "headers": told, "value": readable(value)}
        consumer.close()

    def _committed(self, name: str) -> list[list[Any]]:
        topics = {**TOPICS, self._topic: 1}
        consumer = self._consumer(name)
        asked = [KafkaPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        found = [each for each in consumer.committed(asked, 30) if each.offset >= 0]
        consumer.close()
        names = {self._topic: _LEDGERS}
        return [[names.get(each.topic, each.topic), each.partition, each.offset, each.metadata or ""] for each in found]

    def _partition(self, topic: str, number: int, offset: int, metadata: str) -> KafkaPartition:
        return KafkaPartition(self._topic if topic == _LEDGERS else topic, number, offset, metadata)

    def _consumer(self, group: str) -> Consumer:
        settings = {"group.id": group, "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
        settings["fetch.wait.max.ms"] = 10
        return Consumer({"bootstrap.servers": self._server.bootstrap, **settings})


def _named(group: str) -> str:
    unsafe = {each for each in group if not " " <= each <= "~"}
    return _PREFIX + "".join(quote(each) if unsafe and each in {"%", *unsafe} else each for each in group)
