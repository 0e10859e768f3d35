"""Whatever lies in a log, readers deliver exactly the records of the ranges, as a plain consumer sees them."""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as Theirs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.ranges import split, tidy
from offsetkeeper.testing.kafka import KafkaServer

Headers = tuple[tuple[str, bytes | None], ...] | None
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
LONG_AGO = 1_600_000_000_000
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


class Record(NamedTuple):
    """A record as the frames show it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: Headers


class Content(NamedTuple):
    """What is written as one record."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    age_ms: int


class Step(NamedTuple):
    """Some records for one partition: written plainly, or by a transaction that commits or aborts."""

    how: str
    codec: str
    partition: int
    contents: list[Content]


@dataclass(frozen=True)
class Log:
    """A topic and what is written to it; at the end some of its beginning is deleted, and a transaction left open."""

    name: str
    partitions: int
    timestamps: str
    steps: list[Step]
    deleted: int
    left_open: bool


class Writer:
    """Writes logs, through producers that are kept."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._admin = server.admin()
        self._cluster = KafkaCluster(server.bootstrap)
        self._plain = {codec: self._producer({"compression.type": codec}) for codec in CODECS}
        self._transactions = self._producer({"transactional.id": "logs"})
        self._transactions.init_transactions(30)

    @contextmanager
    def written(self, logs: list[Log]) -> Iterator[None]:
        """Write the logs; at the end, abort what was left open, and delete the topics."""
        for log in logs:
            config = {"message.timestamp.type": log.timestamps, "retention.ms": "-1"}
            self._server.create_topic(log.name, log.partitions, config)
            for step in log.steps:
                self._step(log.name, step.partition % log.partitions, step)
            self._delete_before(TopicPartition(log.name, 0), log.deleted)
        self._transactions.begin_transaction()
        for log in logs:
            if log.left_open:
                put(self._transactions, log.name, 0, [Content(None, b"left open", None, 0)] * 3)
        try:
            yield
        finally:
            self._transactions.abort_transaction(30)
            for log in logs:
                self._server.delete_topic(log.name)

    def close(self) -> None:
        """Close the producers."""
        for producer in (*self._plain.values(), self._transactions):
            producer.close()

    def _delete_before(self, partition: TopicPartition, offset: int) -> None:
        """Delete the records before `offset`, as far as the partition has them."""
        end = self._cluster.bounds([partition])[partition].end
        request = Theirs(*partition, min(offset, end))
        self._admin.delete_records([request])[request].result(30)

    def _producer(self, config: dict[str, str]) -> Producer:
        return Producer({"bootstrap.servers": self._server.bootstrap, "linger.ms": 1, **config})

    def _step(self, topic: str, partition: int, step: Step) -> None:
        if step.how == "plain":
            put(self._plain[step.codec], topic, partition, step.contents)
            return
        self._transactions.begin_transaction()
        put(self._transactions, topic, partition, step.contents)
        if step.how == "commit":
            self._transactions.commit_transaction(30)
        else:
            self._transactions.abort_transaction(30)


class Wanted(NamedTuple):
    """Ranges of one partition: between points of its log, in percent, the first, third, fifth… stretch."""

    points: list[int]

    def ranges(self, partition: TopicPartition, bounds: Bounds) -> Iterator[OffsetRange]:
        """Yield them."""
        size = bounds.end - bounds.beginning
        places = [bounds.beginning + size * point // 100 for point in sorted(self.points)]
        for start, end in zip(places[::2], places[1::2], strict=False):
            yield OffsetRange(*partition, start, end)


some_bytes = st.none() | st.binary(max_size=20)
headers = st.none() | st.lists(st.tuples(st.text(max_size=3), some_bytes), min_size=1, max_size=3).map(tuple)
contents = st.lists(st.builds(Content, some_bytes, some_bytes, headers, st.integers(0, 10**6)), min_size=1, max_size=12)
codecs = st.sampled_from(CODECS)
steps = st.lists(
    st.builds(Step, st.sampled_from(["plain", "commit", "abort"]), codecs, st.integers(0, 2), contents),
    min_size=3,
    max_size=10,
)
names = st.sampled_from(["x", "-", "__", "0", "Odd.name_with-all", "l" * 200]).map(lambda n: n + secrets.token_hex(6))
logs = st.builds(
    Log,
    names,
    st.integers(1, 3),
    st.sampled_from(["CreateTime", "LogAppendTime"]),
    steps,
    st.integers(0, 10),
    st.booleans(),
)
wanted = st.builds(Wanted, st.lists(st.integers(0, 100), min_size=2, max_size=6) | st.just([0, 100]))


@pytest.fixture(scope="module")
def writer(kafka_server: KafkaServer) -> Iterator[Writer]:
    """Writes logs to the run's broker."""
    writer = Writer(kafka_server)
    yield writer
    writer.close()


def put(producer: Producer, topic: str, partition: int, contents: list[Content]) -> None:
    """Write the contents, and wait until the broker has them."""
    for each in contents:
        some = cast("Any", None if each.headers is None else list(each.headers))
        producer.produce(
            topic, each.value, each.key, partition=partition, timestamp=LONG_AGO + each.age_ms, headers=some
        )
    assert producer.flush(30) == 0


def record(message: Message) -> Record:
    """Return a message of the plain consumer as a record."""
    kind, timestamp_ms = message.timestamp()
    some: Any = message.headers()
    return Record(
        cast("str", message.topic()),
        cast("int", message.partition()),
        cast("int", message.offset()),
        message.key(),
        message.value(),
        timestamp_ms,
        kind - 1,
        tuple(some) if some else None,
    )


def read_plainly(server: KafkaServer, isolation: Isolation, bounds: dict[TopicPartition, Bounds]) -> list[Record]:
    """Return all records of the partitions, polled one by one until each one's end."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "plain",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
    )
    left = set(bounds)
    records = []
    consumer.assign([Theirs(*partition, bounds[partition].beginning) for partition in left])
    while left:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            records.append(record(message))
        else:
            assert cast("Any", message.error()).name() == "_PARTITION_EOF"
            left.discard(TopicPartition(cast("str", message.topic()), cast("int", message.partition())))
    consumer.close()
    return sorted(records, key=place)


def place(record: Record) -> tuple[str, int, int]:
    """Return where the record lies."""
    return record[:3]


def check_sizes(batches: Iterable[Any], batch_rows: int, batch_bytes: int) -> None:
    """Assert that no batch is larger than it may be."""
    for batch in batches:
        assert batch.num_rows == 1 or (batch.num_rows <= batch_rows and batch.nbytes <= batch_bytes)


def inside(ranges: list[OffsetRange], records: list[Record]) -> list[Record]:
    """Return the records that lie in one of the ranges."""
    return [
        each
        for each in records
        if any(r.topic_partition == each[:2] and r.start <= each.offset < r.end for r in ranges)
    ]


def prepare(
    server: KafkaServer, some: list[Log], wanted: Wanted, isolation: Isolation
) -> tuple[list[OffsetRange], list[Record]]:
    """Return the ranges wanted of logs already written, and the records in them."""
    partitions = [TopicPartition(log.name, number) for log in some for number in range(log.partitions)]
    with KafkaCluster(server.bootstrap, isolation=isolation) as cluster:
        bounds = cluster.bounds(partitions)
    ranges = [r for partition in partitions for r in wanted.ranges(partition, bounds[partition])]
    return ranges, inside(ranges, read_plainly(server, isolation, bounds))


def rows(batch: Any) -> Iterator[Record]:
    """Yield the rows of a record batch as records."""
    for row in batch.to_pylist():
        some = row["headers"] and tuple((each["key"], each["value"]) for each in row["headers"])
        timestamp_ms = round(row["timestamp"].timestamp() * 1000)
        place = (row["topic"], row["partition"], row["offset"])
        yield Record(*place, row["key"], row["value"], timestamp_ms, row["timestampType"], some)


@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    some=st.lists(logs, min_size=1, max_size=2),
    wanted=wanted,
    tasks=st.integers(1, 3),
    most=st.none() | st.integers(1, 20),
    limits=st.tuples(st.integers(1, 50), st.integers(1, 2000)),
)
def test_tasks_read_exactly_the_records_of_their_ranges_in_order(
    kafka_server: KafkaServer,
    writer: Writer,
    implementation: dict[str, str],
    some: list[Log],
    wanted: Wanted,
    tasks: int,
    most: int | None,
    limits: tuple[int, int],
) -> None:
    """And no record batch is larger than it may be."""
    with writer.written(some):
        for isolation in ISOLATIONS:
            ranges, expected = prepare(kafka_server, some, wanted, isolation)
            source = Source(
                kafka_server.bootstrap,
                implementation,
                "test",
                isolation,
                headers=True,
                batch_rows=limits[0],
                batch_bytes=limits[1],
            )
            batches = [[*read(source, task)] for task in split(tidy(ranges), tasks, most)]
            check_sizes(chain.from_iterable(batches), *limits)
            of_tasks = [[row for batch in task for row in rows(batch)] for task in batches]
            assert sorted(chain.from_iterable(of_tasks), key=place) == expected
            for task in of_tasks:
                # Sorting keeps the order of equal ones: so a partition's rows came in their order.
                assert sorted(task, key=lambda row: row[:2]) == sorted(task, key=place)
