"""A cluster of three brokers: what it tells of topics, and one that dies while clients are connected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, its library says so elsewhere

from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.server import wait_until

LIMIT_S = 60.0
CLIENTS = 10  # each takes one of the three brokers for the controller, by chance


@pytest.fixture(scope="module")
def servers() -> Iterator[KafkaServers]:
    with KafkaServers() as started:
        yield started


def test_a_topic_that_a_broker_does_not_know_yet_has_no_leader(servers: KafkaServers) -> None:
    """Tests wait for it: it ended them with a KeyError."""
    assert (servers.leader("later"), servers.in_sync("later")) == (-1, set())


def test_every_client_gets_answers_from_the_brokers_that_are_left(servers: KafkaServers) -> None:
    """One that took the dead broker for the controller waited for five minutes: its run ended before."""
    with ExitStack() as stack:
        admin = servers.admin()
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(LIMIT_S)
        clients = [stack.enter_context(KafkaCluster(servers.bootstrap)) for _ in range(CLIENTS)]
        wait_until(lambda: all(client.describe(["t"]) for client in clients), "all know the topic", LIMIT_S)
        servers.kill(3)
        wait_until(lambda: servers.alive() == {1, 2}, "the others know that it is dead", LIMIT_S)
        assert [client.describe(["t"])["t"].partitions for client in clients] == [(0,)] * CLIENTS
