"""A cluster is asked about topics, bounds and times, while brokers come and go."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Theirs

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import BrokerUnavailable, NotAuthorized, SettingsError, UnknownTopic
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port, wait_until

MakeTopic = Callable[..., str]

# The records of these tests are of 1970; the broker would delete them at once.
KEEP = {"retention.ms": "-1"}


@pytest.fixture
def cluster(kafka_server: KafkaServer) -> Iterator[KafkaCluster]:
    """The run's broker, asked."""
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def own_server() -> Iterator[KafkaServer]:
    """A broker that the test may kill."""
    with KafkaServer() as server:
        yield server


def produce(server: KafkaServer, topic: str, timestamps: list[int], *, transaction: str | None = None) -> Producer:
    """Write one record for each timestamp into partition 0; with `transaction`, leave it open."""
    config: dict[str, str | int | float | bool | None] = {"bootstrap.servers": server.bootstrap}
    producer = Producer(config | ({"transactional.id": transaction} if transaction else {}))
    if transaction:
        producer.init_transactions(30)
        producer.begin_transaction()
    for timestamp in timestamps:
        producer.produce(topic, b"x", partition=0, timestamp=timestamp)
    assert producer.flush(30) == 0
    return producer


def ask_on(cluster: KafkaCluster, topic: str) -> NoReturn:
    """Ask until it fails: a frozen broker may still answer while the signal is on its way."""
    while True:
        cluster.describe([topic])


def test_a_topic_is_described_with_kafkas_own_form_of_its_id(
    cluster: KafkaCluster, kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    """The broker writes the id beside the partition's data."""
    topics = [topic(partitions=2) for _ in range(5)]
    described = cluster.describe(topics)
    assert set(described) == set(topics)
    for name, about in described.items():
        assert about.topic == name
        assert about.partitions == (0, 1)
        beside = (kafka_server.folder / "data" / f"{name}-0" / "partition.metadata").read_text()
        assert f"topic_id: {about.topic_id}\n" in f"{beside}\n"


def test_a_topic_that_does_not_exist_is_absent(cluster: KafkaCluster, topic: MakeTopic) -> None:
    name = topic()
    assert set(cluster.describe([name, "no-such-topic"])) == {name}
    assert cluster.describe([]) == {}


def test_a_topic_that_is_required_must_exist(cluster: KafkaCluster) -> None:
    with pytest.raises(UnknownTopic, match="topic no-such-topic"):
        cluster.describe(["no-such-topic"], required=True)


def test_a_name_that_cannot_be_a_topics_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(SettingsError, match="'no topic'"):
        cluster.describe(["no topic"])


def held(bounds: dict[TopicPartition, Bounds]) -> dict[TopicPartition, tuple[int, int]]:
    """Return beginning and end of each partition."""
    return {tp: here[:2] for tp, here in bounds.items()}


def test_bounds_are_those_of_the_log(cluster: KafkaCluster, kafka_server: KafkaServer, topic: MakeTopic) -> None:
    name = topic(partitions=2, config=KEEP)
    produce(kafka_server, name, [1] * 10)
    admin = kafka_server.admin()
    admin.delete_records([Theirs(name, 0, 4)])[Theirs(name, 0)].result(30)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    assert held(cluster.bounds([first, second, first])) == {first: (4, 10), second: (0, 0)}
    assert cluster.bounds([]) == {}


def test_many_partitions_are_asked_for_at_once(cluster: KafkaCluster, topic: MakeTopic) -> None:
    name = topic(partitions=300)
    partitions = [TopicPartition(name, number) for number in range(300)]
    assert held(cluster.bounds(partitions)) == dict.fromkeys(partitions, (0, 0))


def test_the_end_is_where_an_open_transaction_begins_unless_uncommitted_records_count(
    cluster: KafkaCluster, kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    name = topic(config=KEEP)
    partition = TopicPartition(name, 0)
    produce(kafka_server, name, [1, 2])
    producer = produce(kafka_server, name, [3, 4, 5], transaction=name)
    with KafkaCluster(kafka_server.bootstrap, isolation="read_uncommitted") as uncommitted:
        assert cluster.bounds([partition])[partition][:2] == (0, 2)
        assert uncommitted.bounds([partition])[partition][:2] == (0, 5)
    producer.abort_transaction(30)


def test_a_partition_that_does_not_exist_is_named(cluster: KafkaCluster, topic: MakeTopic) -> None:
    name = topic()
    with pytest.raises(UnknownTopic, match=f"partition {name} 1"):
        cluster.bounds([TopicPartition(name, 0), TopicPartition(name, 1)])
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        cluster.bounds([TopicPartition("no-such-topic", 0)])


def test_a_time_leads_to_the_first_record_at_or_after_it(
    cluster: KafkaCluster, kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    name = topic(partitions=2, config=KEEP)
    produce(kafka_server, name, [1000, 2000, 2000, 3000])
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    for timestamp, offset in [(0, 0), (1000, 0), (1001, 1), (2000, 1), (3000, 3), (3001, 4)]:
        assert cluster.offsets_for_times([first, second], timestamp) == {first: offset, second: 0}


def test_a_negative_time_is_refused(cluster: KafkaCluster) -> None:
    with pytest.raises(SettingsError, match="-1 is negative"):
        cluster.offsets_for_times([], -1)


def test_a_broker_that_is_away_is_named_with_the_reason_and_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """Each time, though librdkafka does not try to connect each time. What it says goes to Python's logging too."""
    address = f"127.0.0.1:{free_port()}"
    seldom = {"reconnect.backoff.ms": "20000", "reconnect.backoff.max.ms": "20000"}
    before = time.monotonic()
    with KafkaCluster(address, seldom, timeout_s=3) as cluster:
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match=f"{address}.*Connection refused"):
                cluster.bounds([TopicPartition("orders", 0)])
    assert time.monotonic() - before < 50
    assert any(
        record.name == "offsetkeeper.kafka.clients"
        and record.levelno == logging.ERROR
        and "refused" in record.getMessage()
        for record in caplog.records
    )


def test_wrong_credentials_are_no_reason_to_wait(kafka_server: KafkaServer) -> None:
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sesame-user",
        "sasl.password": "sesame-password",
    }
    before = time.monotonic()
    with (
        KafkaCluster(kafka_server.bootstrap, options, timeout_s=100) as cluster,
        pytest.raises(NotAuthorized) as refused,
    ):
        cluster.describe(["orders"])
    assert time.monotonic() - before < 50
    assert "sesame" not in str(refused.value)


def test_a_question_outlives_the_brokers_restart(own_server: KafkaServer) -> None:
    own_server.create_topic("orders", config=KEEP)
    produce(own_server, "orders", [1, 2, 3])
    partition = TopicPartition("orders", 0)
    asking = threading.Event()
    with KafkaCluster(own_server.bootstrap, timeout_s=120) as cluster, ThreadPoolExecutor() as pool:
        assert cluster.bounds([partition])[partition][:2] == (0, 3)
        own_server.kill()

        def ask() -> Bounds:
            asking.set()
            return cluster.bounds([partition])[partition]

        answer = pool.submit(ask)
        assert asking.wait(10)
        own_server.restart()
        assert answer.result(120)[:2] == (0, 3)


def test_a_broker_that_is_frozen_ends_in_time_and_is_asked_again(own_server: KafkaServer) -> None:
    own_server.create_topic("orders")
    with KafkaCluster(own_server.bootstrap, timeout_s=2) as cluster:

        def answered() -> bool:
            with suppress(BrokerUnavailable):  # one that wakes up may be slow at first
                return set(cluster.describe(["orders"])) == {"orders"}
            return False

        wait_until(answered, "the broker answered", 60)
        own_server.pause()
        with pytest.raises(BrokerUnavailable):
            ask_on(cluster, "orders")
        own_server.resume()
        wait_until(answered, "it answered again", 60)
