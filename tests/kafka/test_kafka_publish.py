"""Offsets are put into Kafka's own group, by whatever coordinator it has."""

import time

import pytest

from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.kafka import KafkaCluster, consumers
from offsetkeeper.kafka.consumers import Publisher
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

PARTITION = TopicPartition("orders", 0)
LIBRDKAFKAS_OWN_S = 45


def test_the_first_group_of_a_cluster_waits_for_its_coordinator() -> None:
    """Its topic is made only then; a query that ends with its first batch has no other try."""
    with KafkaServer() as server:
        server.create_topic(PARTITION.topic)
        with KafkaCluster(server.bootstrap) as cluster:
            publisher = Publisher(cluster, "first")
            assert publisher.publish(lambda: {PARTITION: Position(5)})
            publisher.close()
        assert server.group_offsets("first", [PARTITION]) == {PARTITION: 5}


def test_a_coordinator_that_stays_away_does_not_hold_up_each_batch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the end of the program, also when it comes. One broker cannot hold three replicas of the groups' topic."""
    monkeypatch.setattr(consumers, "_WAIT_S", 3.0)
    with (
        KafkaServer(settings={"offsets.topic.replication.factor": "3"}) as server,
        KafkaCluster(server.bootstrap) as cluster,
    ):
        server.create_topic(PARTITION.topic)
        publisher = Publisher(cluster, "first")
        for wait_s in (consumers._WAIT_S, consumers._WAIT_AGAIN_S):
            began = time.monotonic()
            assert not publisher.publish(lambda: {PARTITION: Position(5)})
            assert time.monotonic() - began < LIBRDKAFKAS_OWN_S
            assert publisher._consumers is not None
            assert publisher._consumers.timeout == wait_s
        assert caplog.text.count("could not be committed to Kafka's group") == 2
        server.create_topic("__consumer_offsets", 50, {"cleanup.policy": "compact"})
        wait_until(lambda: publisher.publish(lambda: {PARTITION: Position(7)}), "there is a coordinator", 60)
        publisher.close()
        assert server.group_offsets("first", [PARTITION]) == {PARTITION: 7}


def test_nothing_is_published_for_another_group(kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    """Librdkafka drops white space at the beginning of a name, so it would commit for the group without it."""
    kafka_server.create_topic("published-apart")
    partition = TopicPartition("published-apart", 0)
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        for group, done in (("apart", True), (" apart", False), (" ", False)):
            publisher = Publisher(cluster, group)
            assert publisher.publish(lambda: {partition: Position(5 if done else 7)}) is done  # noqa: B023 - called at once
            publisher.close()
    assert "' apart' begins with white space, which Kafka's client library drops" in caplog.text
    assert kafka_server.group_offsets("apart", [partition]) == {partition: 5}
