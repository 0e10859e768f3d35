"""Timestamps of the next records, by one consumer for all partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka import Producer

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port

LIMIT_S = 60
NOW = time.time_ns() // 1_000_000  # old ones would be deleted by retention
ANY_TIME = {"message.timestamp.after.max.ms": str(2**62)}  # Kafka 4 refuses those that are an hour ahead by default


def produce(server: KafkaServer, topic: str, partitions: int, each: int = 3) -> None:
    """Put records with timestamps `NOW + 1000 * partition + offset` into every partition."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 50})
    for partition in range(partitions):
        for offset in range(each):
            producer.produce(topic, b"x" * 2000, partition=partition, timestamp=NOW + 1000 * partition + offset)
        producer.poll(0)
    assert producer.flush(LIMIT_S) == 0


def times(
    brokers: str,
    offsets: Mapping[TopicPartition, int],
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = LIMIT_S,
) -> dict[TopicPartition, int]:
    with KafkaCluster(brokers, options or {}) as cluster:
        return cluster.record_timestamps(offsets, timeout_s=timeout_s).times_ms


def test_each_partition_tells_the_time_of_its_next_record(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    name = topic(4)
    produce(kafka_server, name, 3)
    offsets = {TopicPartition(name, 0): 0, TopicPartition(name, 1): 2, TopicPartition(name, 2): 3}
    offsets[TopicPartition(name, 3)] = 0
    found = times(kafka_server.bootstrap, offsets)
    assert found == {TopicPartition(name, 0): NOW, TopicPartition(name, 1): NOW + 1002}


def test_an_offset_that_is_gone_has_none_and_holds_nobody_up(
    kafka_server: KafkaServer, topic: Callable[..., str]
) -> None:
    name = topic(2)
    produce(kafka_server, name, 2)
    offsets = {TopicPartition(name, 0): 1000, TopicPartition(name, 1): 0}
    began = time.monotonic()
    found = times(kafka_server.bootstrap, offsets)
    assert found == {TopicPartition(name, 1): NOW + 1000}
    assert time.monotonic() - began < LIMIT_S


def test_a_thousand_partitions_are_asked_at_once(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    name = topic(1000)
    produce(kafka_server, name, 1000, each=1)
    offsets = {TopicPartition(name, partition): 0 for partition in range(1000)}
    found = times(kafka_server.bootstrap, offsets)
    assert found == {tp: NOW + 1000 * tp.partition for tp in offsets}


def test_a_broker_that_is_away_is_waited_for_no_longer_than_said() -> None:
    offsets = {TopicPartition("t", 0): 0}
    assert times(f"127.0.0.1:{free_port()}", offsets, timeout_s=0.3) == {}


def test_nothing_is_asked_for_nothing_and_wrong_settings_are_told() -> None:
    assert times("127.0.0.1:1", {}) == {}
    with pytest.raises(SettingsError):
        times("127.0.0.1:1", {TopicPartition("t", 0): 0}, options={"group.id": "x"})


def test_times_are_estimated_from_those_of_other_records(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    """Half of the records are a day older than the rest: a line from the first to the last would be hours off."""
    name = topic(2)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    times = [NOW - 90_000_000 + 1000 * n for n in range(50)] + [NOW - 100_000 + 1000 * n for n in range(50)]
    for at in times:
        producer.produce(name, b"x", partition=0, timestamp=at)
    assert producer.flush(LIMIT_S) == 0
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        for offset in (0, 20, 49, 50, 60, 99):
            found = cluster.estimate_timestamps({TopicPartition(name, 0): offset, TopicPartition(name, 1): 0}, NOW)
            assert list(found) == [TopicPartition(name, 0)]
            assert abs(found[TopicPartition(name, 0)] - times[offset]) <= 90_000_000 / 2**6


def test_records_from_the_future_are_passed_over(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    """One reads on to a record that is not in the future, but not for ever. If all are, the lowest time counts."""
    name, day = topic(3, ANY_TIME), 86_400_000
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    ages = {0: [60 * day, 50 * day, -7_200_000, 0], 1: [60 * day, 50 * day], 2: [60 * day] * 1_000 + [0]}
    for partition, each in ages.items():
        for ahead in each:
            producer.produce(name, b"x", partition=partition, timestamp=NOW + ahead)
    assert producer.flush(LIMIT_S) == 0
    asked = {TopicPartition(name, partition): 0 for partition in ages}
    found = times(kafka_server.bootstrap, asked)
    assert [found[tp] - NOW for tp in asked] == [-7_200_000, 50 * day, 60 * day]


def test_no_time_is_estimated_by_a_record_from_the_future(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    """Between 60 days ahead and now lies each time, and also the present."""
    name = topic(1, ANY_TIME)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for at in [NOW + 60 * 86_400_000, *(NOW - 7_200_000 + n for n in range(999))]:
        producer.produce(name, b"x", partition=0, timestamp=at)
    assert producer.flush(LIMIT_S) == 0
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        assert cluster.estimate_timestamps({TopicPartition(name, 0): 998}, NOW) == {}
