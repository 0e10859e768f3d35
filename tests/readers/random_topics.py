"""Topics with random contents of all kinds, and what is known of each record that was written to them.

The random choices come of one seed. What the brokers choose, such as when they compact a log, does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, Message, Producer, admin
from confluent_kafka import TopicPartition as Theirs

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer

Row = dict[str, Any]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LIMIT_S = 60
_COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "50",
    "delete.retention.ms": "0",
    "min.compaction.lag.ms": "0",
}
_KEEP = {"cleanup.policy": "delete", "retention.ms": "-1"}
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_LONG_AGO_MS = 1_600_000_000_000


class Topic(NamedTuple):
    """A topic: no records are written to its last partition."""

    name: str
    partitions: int
    timestamps: str
    compacted: bool

    @property
    def config(self) -> dict[str, str]:
        """Its settings while it is written."""
        return {"message.timestamp.type": self.timestamps} | (_COMPACT if self.compacted else _KEEP)


@dataclass
class Written:
    """What is known of the records of some topics.

    Attributes:
        seed: that all was chosen by.
        topics: them.
        rows: each record that was written, as a frame would show it.
        aborted: the places of those that belong to transactions that were aborted, or are still open.
    """

    seed: int
    topics: list[Topic]
    rows: dict[TopicPartition, dict[int, Row]] = field(default_factory=dict)
    aborted: set[tuple[TopicPartition, int]] = field(default_factory=set)

    def partitions(self, *, compacted: bool | None = None) -> list[TopicPartition]:
        """Return the partitions, of all topics or only of those that are compacted, or are not."""
        some = [each for each in self.topics if compacted in {None, each.compacted}]
        return [TopicPartition(each.name, number) for each in some for number in range(each.partitions)]

    def inside(self, ranges: list[OffsetRange], isolation: Isolation) -> dict[tuple[TopicPartition, int], Row]:
        """Return the records in these ranges that may be seen."""
        hidden = self.aborted if isolation == "read_committed" else set()
        return {
            (r.topic_partition, offset): row
            for r in ranges
            for offset, row in self.rows.get(r.topic_partition, {}).items()
            if r.start <= offset < r.end and (r.topic_partition, offset) not in hidden
        }

    def last_of_keys(self) -> set[tuple[TopicPartition, int]]:
        """Return the newest committed record of each key, of partitions that are compacted; not delete markers."""
        newest: dict[tuple[TopicPartition, bytes], int] = {}
        for tp in self.partitions(compacted=True):
            for offset, row in sorted(self.rows.get(tp, {}).items()):
                if (tp, offset) not in self.aborted:
                    newest[tp, row["key"]] = offset
        return {(tp, at) for (tp, _), at in newest.items() if self.rows[tp][at]["value"] is not None}


class RandomTopics:
    """Writes topics as a seed says, by producers that are kept."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._admin: Any = server.admin()
        self._plain = [self._producer({"compression.type": codec}) for codec in CODECS]
        self._transactional = [
            self._producer({"transactional.id": f"random-{codec}", "compression.type": codec})
            for codec in ("none", "lz4", "zstd")
        ]
        for producer in self._transactional:
            producer.init_transactions(LIMIT_S)
        _set(self._admin, "BROKER", "1", {"log.cleaner.backoff.ms": "50"})

    def close(self) -> None:
        """Close the producers."""
        for producer in (*self._plain, *self._transactional):
            producer.close()

    @contextmanager
    def written(self, seed: int, steps: int) -> Iterator[Written]:
        """Write topics; at the end, delete them. A transaction may be left open until then."""
        chance = Random(seed)  # noqa: S311 - what is written is no secret
        plain = [
            Topic(f"random-{seed}-{number}", chance.randint(2, 4), kind, compacted=False)
            for number, kind in enumerate(["CreateTime", "LogAppendTime"])
        ]
        compacted = Topic(f"random-{seed}-compacted", 2, chance.choice(["CreateTime", "LogAppendTime"]), compacted=True)
        written = Written(seed, [*plain, compacted])
        for topic in written.topics:
            self._server.create_topic(topic.name, topic.partitions, topic.config)
        story = _Story(chance, written, self._plain, self._transactional)
        try:
            story.tell(steps)
            self._compact(story, TopicPartition(compacted.name, 0))
            _set(self._admin, "TOPIC", compacted.name, _KEEP)  # from here on it stays as it is
            if chance.random() < 0.3:
                self._delete_some(chance, written)
            story.leave_open(plain)
            yield written
        finally:
            story.end()
            for topic in written.topics:
                self._server.delete_topic(topic.name)

    def _compact(self, story: _Story, partition: TopicPartition) -> None:
        """Write on until the cleaner has made holes."""
        deadline = time.monotonic() + LIMIT_S
        with KafkaCluster(self._server.bootstrap) as cluster:
            while True:
                story.more(partition)
                here = cluster.bounds([partition])
                if len(offsets_held(self._server, here)[partition]) < len(story.written.rows[partition]) * 0.8:
                    return
                assert time.monotonic() < deadline, "the cleaner made no hole"

    def _delete_some(self, chance: Random, written: Written) -> None:
        """Delete the beginning of a partition, as retention does."""
        partition = written.partitions(compacted=False)[0]
        request = Theirs(*partition, chance.choice([*written.rows.get(partition, {0: {}})]))
        self._admin.delete_records([request])[request].result(LIMIT_S)

    def _producer(self, config: dict[str, str]) -> Producer:
        given: dict[str, Any] = {"bootstrap.servers": self._server.bootstrap, "linger.ms": 1, "log_level": 0}
        return Producer({**given, **config})


class _Story:
    """Writes records in random order: plainly, and by several transactions at once, which commit or abort."""

    def __init__(self, chance: Random, written: Written, plain: list[Producer], transactional: list[Producer]) -> None:
        self.written = written
        self._chance, self._plain, self._transactional = chance, plain, transactional
        self._open: dict[Producer, list[tuple[TopicPartition, int]]] = {}
        self._commits = 0
        self._kinds = {topic.name: topic.timestamps for topic in written.topics}

    def tell(self, steps: int) -> None:
        """Write so many times, and end all transactions."""
        topics = self.written.topics
        for number in range(steps):
            topic = self._chance.choice(topics)
            partition = TopicPartition(topic.name, self._chance.randrange(topic.partitions - 1))
            self._write(self._chance.choice([*self._plain, *self._transactional]), partition, self._count(number))
            for producer in [*self._open]:
                if self._chance.random() < 0.3:
                    self._finish(producer)
        self.end()

    def more(self, partition: TopicPartition) -> None:
        """Write some more records to a partition, by a transaction or not."""
        self._write(self._chance.choice([*self._plain, *self._transactional]), partition, 20)
        self.end()

    def leave_open(self, topics: list[Topic]) -> None:
        """Perhaps begin a transaction in one of the topics, and write behind it."""
        if self._chance.random() < 0.5:
            partition = TopicPartition(self._chance.choice(topics).name, 0)
            self._write(self._transactional[0], partition, 3)
            self.written.aborted.update(self._open[self._transactional[0]])
            self._write(self._plain[0], partition, 3)

    def end(self) -> None:
        """End all transactions."""
        for producer in [*self._open]:
            self._finish(producer)

    def _finish(self, producer: Producer) -> None:
        places = self._open.pop(producer)
        self._commits += 1
        if self._commits % 2 and not self.written.aborted.intersection(places):
            producer.commit_transaction(LIMIT_S)
        else:
            producer.abort_transaction(LIMIT_S)
            self.written.aborted.update(places)

    def _count(self, number: int) -> int:
        """Return how many records a step writes: the tenth writes many, else few."""
        return self._chance.randint(200, 900) if number % 10 == 5 else self._chance.randint(1, 12)

    def _write(self, producer: Producer, partition: TopicPartition, count: int) -> None:
        if producer in self._transactional and producer not in self._open:
            producer.begin_transaction()
            self._open[producer] = []
        for number in range(count):
            row = self._row(partition, plain_size=number > 50)
            headers = row["headers"] and [(each["key"], each["value"]) for each in row["headers"]]

            def known(error: object, message: Message, row: Row = row) -> None:
                assert error is None
                self._keep(row, message, producer)

            producer.produce(
                partition.topic,
                row["value"],
                row["key"],
                partition=partition.partition,
                timestamp=row["timestamp"],
                headers=cast("Any", headers),
                on_delivery=known,
            )
        assert producer.flush(LIMIT_S) == 0

    def _keep(self, row: Row, message: Message, producer: Producer) -> None:
        partition = TopicPartition(row["topic"], row["partition"])
        offset = cast("int", message.offset())
        kind, timestamp_ms = message.timestamp()
        appended = self._kinds[partition.topic] == "LogAppendTime"
        assert appended == (kind == 2)
        assert appended or timestamp_ms == row["timestamp"]
        at = _1970 + timedelta(milliseconds=timestamp_ms)
        found = row | {"offset": offset, "timestamp": at, "timestampType": int(appended)}
        self.written.rows.setdefault(partition, {})[offset] = found
        if producer in self._open:
            self._open[producer].append((partition, offset))

    def _row(self, partition: TopicPartition, *, plain_size: bool) -> Row:
        """Return what to write; `timestamp` is in milliseconds."""
        chance, compacted = self._chance, partition.topic.endswith("compacted")
        size = 100 if plain_size else chance.choice([0, 1, 30, 500, 20_000])
        value = chance.randbytes(min(size, 20)) * (-(-size // 20))  # so that it can be compressed
        key = b"k%d" % chance.randrange(7) if compacted else chance.choice([None, b"", chance.randbytes(5)])
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "key": key,
            "value": None if chance.random() < 0.15 else value,
            "timestamp": _LONG_AGO_MS + chance.randrange(10**9),
            "headers": self._headers(),
        }

    def _headers(self) -> list[Row] | None:
        count = self._chance.choice([0, 0, 1, 3, 40])
        values = [None, b"", b"\xff\xfe\x00", b"text"]
        keys = ["", "a", "a", "trace", "ключ"]
        return [{"key": self._chance.choice(keys), "value": self._chance.choice(values)} for _ in range(count)] or None


def offsets_held(server: KafkaServer, bounds: dict[TopicPartition, Bounds]) -> dict[TopicPartition, list[int]]:
    """Return the offsets of all records in the partitions, aborted ones too, as a plain consumer finds them."""
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in bounds}
    settings: dict[str, Any] = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "plain",
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer(settings)
    consumer.assign([Theirs(*tp, here.beginning) for tp, here in bounds.items()])
    left = set(bounds)
    while left:
        for message in consumer.consume(1000, 0.02):
            tp = TopicPartition(cast("str", message.topic()), cast("int", message.partition()))
            if message.error() is None:
                found[tp].append(cast("int", message.offset()))
            else:
                assert cast("Any", message.error()).name() == "_PARTITION_EOF"
                left.discard(tp)
    consumer.close()
    return found


def _set(client: Any, kind: str, name: str, config: dict[str, str]) -> None:
    """Set some settings of a broker or topic, and leave the others."""
    names: Any = admin  # its stubs leave these out
    entries = [
        names.ConfigEntry(key, value, incremental_operation=names.AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = names.ConfigResource(names.ConfigResource.Type[kind], name, incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(LIMIT_S)
