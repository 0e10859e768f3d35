"""The topics of one history in a real Kafka, and what was produced into them."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, Producer

from engines.lab import Lab
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer
from swarm.book import Log
from swarm.records import MANY, POISON, Record, Where

_LIMIT_S = 60.0
_KEYS = ("a", "b", "key with a space", "ключ")
_TIMES = (1_700_000_000_000,)
_ODD_TIMES = (0, 1_700_000_000_000, 253_402_000_000_000, 4_000_000_000_000)
_ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
_COMPACTED = {"cleanup.policy": "compact,delete", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
_QUICKLY = {"delete.retention.ms": "0", "max.compaction.lag.ms": "100"}


@dataclass
class Source:
    """Topics, by the order in which they were made.

    Attributes:
        lab: acts on the broker.
        content: kinds of records, see `draw.CONTENT`.
        partitions: of each topic.
        ids: of the topics that have the names now.
        begins: the first offset that each log holds, if retention has deleted some.
        open_from: the first offset of the open transaction in each log.
    """

    kafka: KafkaServer
    lab: Lab
    content: frozenset[str]
    partitions: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    begins: dict[Log, int] = field(default_factory=dict)
    open_from: dict[Log, int] = field(default_factory=dict)
    _last: int = 0
    _open: Producer | None = None
    _commits: bool = False

    def make(self, partitions: int) -> None:
        """Make a topic."""
        name = f"in-{len(self.partitions)}-{secrets.token_hex(4)}"
        self.kafka.create_topic(name, partitions, self._config)
        self.partitions[name] = partitions
        self._appeared(name)

    @property
    def topics(self) -> list[str]:
        """The names."""
        return [*self.partitions]

    def log(self, topic: str, partition: int) -> Log:
        """Return the log that a partition has now."""
        return topic, self.ids[topic], partition

    def is_here(self, where: Where) -> bool:
        """Whether a record is in a topic that exists, and retention has not deleted it."""
        return self.ids.get(where.topic) == where.topic_id and where.offset >= self.begins.get(where.log, 0)

    def produce(self, chance: random.Random, count: int) -> list[Record]:
        """Produce records into partitions by chance, and return them as they are in Kafka."""
        return self._send(Producer({"bootstrap.servers": self.kafka.bootstrap}), chance, count, aborted=False)

    def abort(self, chance: random.Random) -> list[Record]:
        """Produce a transaction and abort it."""
        producer = self._transaction()
        found = self._send(producer, chance, chance.randrange(1, 4), aborted=True)
        producer.abort_transaction(_LIMIT_S)
        return found

    def open(self, chance: random.Random) -> list[Record]:
        """Produce a transaction, and leave it open. How it will end is drawn now."""
        if self._open is not None:
            return []
        self._open, self._commits = self._transaction(), chance.random() < 0.5
        found = self._send(self._open, chance, chance.randrange(1, 4), aborted=not self._commits)
        for record in found:
            log = record.where.log
            self.open_from[log] = min(self.open_from.get(log, record.where.offset), record.where.offset)
        return found

    def end(self) -> bool:
        """End the open transaction; return whether there was one."""
        if self._open is None:
            return False
        (self._open.commit_transaction if self._commits else self._open.abort_transaction)(_LIMIT_S)
        self._open = None
        self.open_from.clear()
        return True

    def grow(self, chance: random.Random) -> str:
        """Give a topic a partition more."""
        topic = chance.choice(self.topics)
        self.partitions[topic] += 1
        self.lab.grow(topic, self.partitions[topic])
        return topic

    def recreate(self, chance: random.Random) -> str:
        """Delete a topic and make it again."""
        self.end()
        topic = chance.choice(self.topics)
        self.partitions[topic] = chance.choice((self.partitions[topic], max(1, self.partitions[topic] - 1)))
        self.kafka.delete_topic(topic)
        self.kafka.create_topic(topic, self.partitions[topic], self._config)
        self._appeared(topic)
        return topic

    def delete(self, topic: str, partition: int, before: int) -> None:
        """Delete what retention would."""
        self.lab.delete_records(topic, before, partition)
        log = self.log(topic, partition)
        self.begins[log] = max(self.begins.get(log, 0), before)

    @property
    def _config(self) -> dict[str, str]:
        return {**_ANY_TIME, **(_COMPACTED | _QUICKLY if "compaction" in self.content else {})}

    def _appeared(self, topic: str) -> None:
        with KafkaCluster(self.kafka.bootstrap) as cluster:
            self.ids[topic] = str(cluster.describe([topic])[topic].topic_id)

    def _transaction(self) -> Producer:
        settings = {"bootstrap.servers": self.kafka.bootstrap, "transactional.id": secrets.token_hex(6)}
        producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        producer.init_transactions(_LIMIT_S)
        producer.begin_transaction()
        return producer

    def _send(self, producer: Producer, chance: random.Random, count: int, *, aborted: bool) -> list[Record]:
        found: list[Record] = []
        errors: list[Any] = []

        def made(drawn: dict[str, Any], topic: str, number: int) -> Any:
            def delivered(error: Any, message: Message) -> None:
                errors.extend([error] if error else [])
                where = Where(topic, self.ids[topic], message.partition() or 0, message.offset() or 0)
                heads = drawn["headers"]
                told = (
                    None
                    if heads is None
                    else ",".join(f"{key}={'-' if value is None else value}" for key, value in heads)
                )
                may_go = "compaction" in self.content
                record = Record(where, number, drawn["key"], drawn["value"], told, aborted=aborted, may_go=may_go)
                found.append(record)

            return delivered

        for _ in range(count):
            topic = chance.choice(self.topics)
            self._last += 1
            drawn = self._drawn(chance)
            producer.produce(
                topic,
                drawn["value"],
                drawn["key"],
                partition=chance.randrange(self.partitions[topic]),
                headers=drawn["headers"],
                timestamp=chance.choice(_ODD_TIMES if "odd times" in self.content else _TIMES) + self._last,
                on_delivery=made(drawn, topic, self._last),
            )
        assert producer.flush(_LIMIT_S) == 0
        assert not errors, errors
        assert self._last < MANY
        return found

    def _drawn(self, chance: random.Random) -> dict[str, Any]:
        """Return what a record has in it."""
        value: str | None = f"value {self._last} ☃"
        odd, poisoned, keyless, headed = (chance.random() for _ in range(4))
        if "null values" in self.content and odd < 0.3:
            value = None
        elif "empty values" in self.content and odd > 0.7:
            value = ""
        elif "poison" in self.content and poisoned < 0.2 and self._last % 3:  # those are skipped before they fail
            value = POISON
        key = None if "null keys" in self.content and "compaction" not in self.content and keyless < 0.4 else "x"
        heads = [("first", "1"), ("first", ""), ("second", None)][: chance.randrange(4)] or None
        return {
            "value": value,
            "key": key and chance.choice(_KEYS),
            "headers": heads if "headers" in self.content and headed < 0.6 else None,
        }
