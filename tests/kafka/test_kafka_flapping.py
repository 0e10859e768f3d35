"""A broker that flaps ends nothing: no question, no read, no commit, as long as it is back within their patience."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Theirs

from fixtures.flapping import QUICK, at_work, flap
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.testing.kafka import KafkaServer

RECORDS = 5_000
RETRY_TIMEOUT_S = 60
# So that one read takes many requests, and is cut again and again.
LITTLE_AHEAD = {
    "queued.max.messages.kbytes": "64",
    "fetch.max.bytes": "65536",
    "fetch.message.max.bytes": "16384",
    "message.max.bytes": "65536",
    "queued.min.messages": "100",
}


class Scene(NamedTuple):
    """A topic with records in its first partition, and a group that has committed offsets of both."""

    topic: str
    other: str

    @property
    def first(self) -> TopicPartition:
        """The partition with records."""
        return TopicPartition(self.topic, 0)

    @property
    def bounds(self) -> dict[TopicPartition, Bounds]:
        """What Kafka holds."""
        return {self.first: Bounds(0, RECORDS), TopicPartition(self.topic, 1): Bounds(0, 0)}


@pytest.fixture
def scene(kafka_server: KafkaServer, topic: Callable[..., str]) -> Scene:
    """One of this test's own."""
    scene = Scene(topic(2), f"other-{secrets.token_hex(6)}")
    with Producer({"bootstrap.servers": kafka_server.bootstrap, "log_level": 0}) as producer:
        for _ in range(RECORDS):
            producer.produce(scene.topic, b"v" * 100, partition=0)
        assert producer.flush(60) == 0
    settings = {"bootstrap.servers": kafka_server.bootstrap, "group.id": scene.other}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.commit(offsets=[Theirs(*tp, 7) for tp in scene.bounds], asynchronous=False)
    consumer.close()
    return scene


def held(bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Bounds]:
    """Return the bounds without ids, and without the number of elections: the broker restarts."""
    return {tp: Bounds(*here[:2]) for tp, here in bounds.items()}


def reading(brokers: str, scene: Scene, reads: list[list[int]]) -> list[Callable[[], object]]:
    """Return what asks and reads: with clients that are kept, and with new ones."""
    kept = KafkaCluster(brokers, QUICK, timeout_s=RETRY_TIMEOUT_S)
    source = Source(brokers, LITTLE_AHEAD | QUICK, "flapping", "read_committed", stall_s=RETRY_TIMEOUT_S)

    def ask() -> None:
        about = kept.describe([scene.topic], required=True)[scene.topic]
        assert held(kept.bounds(scene.bounds)) == scene.bounds
        assert kept.offsets_for_times(scene.bounds, 0) == dict.fromkeys(scene.bounds, 0)
        found = kept.bounds_of_topics([scene.topic])
        assert held(found) == scene.bounds
        assert {(at.topic_id, at.cluster_id) for at in found.values()} == {(about.topic_id, about.cluster_id)}
        assert kept.settings("topic", [scene.topic])[scene.topic]["cleanup.policy"] == "delete"
        assert len(kept.nodes()) == 1

    def ask_anew() -> None:
        with KafkaCluster(brokers, QUICK, timeout_s=RETRY_TIMEOUT_S) as cluster:
            assert held(cluster.bounds(scene.bounds)) == scene.bounds

    def read_all() -> None:
        batches = read(source, [(*scene.first, 0, RECORDS)])
        reads.append([*chain.from_iterable(batch.column("offset").to_pylist() for batch in batches)])

    return [ask, ask_anew, read_all]


def committing(brokers: str, scene: Scene, ledger: Ledger, commits: list[int]) -> list[Callable[[], object]]:
    """Return what commits into a store, and what looks at it through another."""
    looks = KafkaStore(store_url(brokers))

    def commit() -> None:
        start = len(commits)
        ledger.commit(ledger.batch([OffsetRange(*scene.first, start, start + 1)]))
        commits.append(start)

    def look() -> None:
        least = len(commits)
        with suppress(StoreUnavailable):  # a store has no patience; its ledger has
            assert looks.load(ledger.group).positions[scene.first].offset >= least
            assert looks.load(scene.other).positions == dict.fromkeys(scene.bounds, Position(7))
            assert {ledger.group, scene.other} <= {*looks.groups()}

    return [commit, look]


def store_url(brokers: str) -> str:
    return f"kafka://{brokers}?timeout=1&" + "&".join(f"{name}={value}" for name, value in QUICK.items())


@pytest.mark.parametrize("flaps", [60, pytest.param(200, marks=pytest.mark.soak)])
def test_a_broker_that_flaps_ends_nothing_and_loses_nothing(
    kafka_server: KafkaServer, scene: Scene, flaps: int
) -> None:
    reads: list[list[int]] = []
    commits: list[int] = []
    with kafka_server.proxy() as proxy:
        ledger = Ledger(
            KafkaStore(store_url(proxy.address)), f"group-{secrets.token_hex(6)}", retry_timeout_s=RETRY_TIMEOUT_S
        )
        ledger.acquire()
        ledger.place({scene.first: Position(0)})
        store_steps = committing(proxy.address, scene, ledger, commits)
        with at_work([*reading(proxy.address, scene, reads), *store_steps]) as (works, moved):
            ways = flap(proxy, flaps, 1, works, moved)
        assert {work.name: work.failed for work in works} == {work.name: None for work in works}
        assert (sum(ways.values()), len(ways)) == (flaps, 5)
        store_steps[0]()  # with it all of the group's offsets are published that could not be before
        ledger.store.close()

    assert [found for found in reads if found != list(range(RECORDS))] == []
    store = KafkaStore(f"kafka://{kafka_server.bootstrap}")
    assert store.load(ledger.group).positions == {scene.first: Position(len(commits))}
    counted = [entry.ranges[0].start for entry in store.history(ledger.group, 10_000) if entry.event == "commit"]
    assert counted == commits[::-1][: len(counted)]
    assert kafka_server.group_offsets(ledger.group, [scene.first]) == {scene.first: len(commits)}
    store.close()
