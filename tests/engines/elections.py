"""Elections that cut logs: a replica leads that lacks records, and others get their offsets."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, its library says so elsewhere

from engines.lab import LIMIT_S
from offsetkeeper.testing.kafka import KafkaServers
from offsetkeeper.testing.server import wait_until

LEADER, FOLLOWER = 1, 2
SETTINGS = {"min.insync.replicas": "1"}
"""Of the brokers."""


def make_topics(servers: KafkaServers, topics: Sequence[str], **settings: str) -> None:
    """Make topics with one partition and two replicas; those that are out of sync may lead.

    Args:
        servers: the brokers.
        topics: their names.
        settings: more of their settings, with _ in place of dots.
    """
    more = {name.replace("_", "."): value for name, value in settings.items()}
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", **more}
    made = [NewTopic(name, replica_assignment=[[LEADER, FOLLOWER]], config=config, num_partitions=1) for name in topics]
    admin = servers.admin()  # kept until it has answered
    for future in admin.create_topics(made).values():
        future.result(LIMIT_S)
    wait_until(lambda: _in_sync(servers, topics, {LEADER, FOLLOWER}), "both are in sync", LIMIT_S)


def lose_follower(servers: KafkaServers, topics: Sequence[str]) -> None:
    """Kill the follower, which lacks what is produced from now on."""
    servers.kill(FOLLOWER)
    wait_until(lambda: _in_sync(servers, topics, {LEADER}), "it is out of sync", LIMIT_S)


def elect_follower(servers: KafkaServers, topics: Sequence[str]) -> None:
    """Kill the leader, and let the follower lead: the logs are cut."""
    servers.kill(LEADER)
    servers.restart(FOLLOWER)
    wait_until(lambda: all(servers.leader(each) == FOLLOWER for each in topics), "it leads", LIMIT_S)


def _in_sync(servers: KafkaServers, topics: Sequence[str], brokers: set[int]) -> bool:
    return all(servers.in_sync(each) == brokers for each in topics)
