"""What a cluster, its topics and a group in it are like, for the doctor's `rules`: asked, and never changed."""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from offsetkeeper.core.bounds import Found, is_recreated
from offsetkeeper.core.model import Positions, TopicPartition
from offsetkeeper.errors import BrokerError, NotAuthorized
from offsetkeeper.kafka.cluster import Cluster, TopicDescription
from offsetkeeper.kafka.facts import KafkaFacts, Refusal, TopicFacts
from offsetkeeper.kafka.timestamps import record_timestamps

_CONNECT_S = 3.0
_READ_S = 5.0
_OFFSETS_S = 3.0  # without permission for the group nobody answers at all
_FUTURE_MS = 5_000


def cluster_facts(cluster: Cluster, group: str, positions: Positions, topics: Collection[str] = ()) -> KafkaFacts:
    """Return what is known of a cluster and of the topics a group reads there.

    Args:
        cluster: Kafka.
        group: the consumer group.
        positions: its positions in Kafka's topics.
        topics: more topics that it reads.
    """
    known = KafkaFacts(cluster.brokers, options=cluster.options)
    try:
        nodes = cluster.nodes()
        known = replace(known, nodes={f"{host}:{port}": _reach(host, port) for host, port in nodes.values()})
        if all(known.nodes.values()):
            return known  # every other question would wait in vain
        return _facts(cluster, known, list(nodes), group, positions, {*topics, *(tp.topic for tp in positions)})
    except BrokerError as error:
        return replace(known, error=str(error))


def _facts(
    cluster: Cluster, known: KafkaFacts, nodes: list[str], group: str, positions: Positions, names: Collection[str]
) -> KafkaFacts:
    refused: list[Refusal] = []
    described = _describe(cluster, sorted(names), refused)
    there = [about for about in described.values() if about is not None]
    held = cluster.held_of(there)
    refused += [Refusal(f"read topic {topic} (READ)", needed=True) for topic in _unreadable(cluster, held)]
    broker = cluster.settings("broker", nodes[:1])
    settings = cluster.settings("topic", [about.topic for about in there])
    hidden = [f"topic {about.topic}" for about in there if about.topic not in settings] + ["brokers"] * (not broker)
    refused += [Refusal(f"see the settings of {what} (DESCRIBE_CONFIGS)", needed=False) for what in hidden]
    minutes = next(iter(broker.values()), {}).get("offsets.retention.minutes")
    topics = [
        _topic(cluster, about, positions, held, settings.get(name, {}))
        if about
        else TopicFacts(name, exists=False, partitions=0)
        for name, about in described.items()
    ]
    return replace(
        known,
        topics=topics,
        offsets_retention_s=None if minutes is None else float(minutes) * 60,
        published=_published(cluster, group, held),
        refused=refused,
    )


def _describe(cluster: Cluster, names: Iterable[str], refused: list[Refusal]) -> dict[str, TopicDescription | None]:
    """Return what is known of each topic, None where it does not exist; one that may not be seen is absent."""
    found = {}
    for name in names:
        try:
            found[name] = cluster.describe([name]).get(name)
        except NotAuthorized:
            refused.append(Refusal(f"see topic {name} (DESCRIBE)", needed=True))
    return found


def _unreadable(cluster: Cluster, held: Mapping[TopicPartition, Found]) -> list[str]:
    """Return the topics whose records may not be read: one record of each is tried."""
    first = {tp.topic: (tp, at.beginning) for tp, at in held.items() if at.beginning < at.end}
    found = record_timestamps(
        cluster.brokers, cluster.options, dict(first.values()), isolation=cluster.isolation, timeout_s=_READ_S
    )
    return sorted(found.refused)


def _topic(
    cluster: Cluster,
    about: TopicDescription,
    positions: Positions,
    held: Mapping[TopicPartition, Found],
    settings: Mapping[str, str],
) -> TopicFacts:
    now_ms = time.time_ns() // 1_000_000
    own = [tp for tp in held if tp.topic == about.topic]
    future = cluster.first_since(dict.fromkeys(own, now_ms + _FUTURE_MS))
    # A run that reads uncommitted records may be ahead of the last stable offset.
    ends = cluster.bounds(own, isolation="read_uncommitted")
    return TopicFacts(
        about.topic,
        recreated=any(is_recreated(at, about.topic_id) for tp, at in positions.items() if tp.topic == about.topic),
        beyond=sum(at.offset > ends[tp].end for tp, at in positions.items() if tp in ends),
        partitions=len(about.partitions),
        replicas=about.replicas,
        in_sync=about.in_sync,
        settings=settings,
        ahead_s=max(((at_ms - now_ms) / 1000 for _, at_ms in future.values()), default=0.0),
    )


def _published(cluster: Cluster, group: str, held: Iterable[TopicPartition]) -> bool:
    """Whether the group has offsets in Kafka; it is not joined for that. Where that may not be asked, it has none."""
    import confluent_kafka  # noqa: PLC0415 - `import offsetkeeper` must not load it

    config = {**cluster.options, "bootstrap.servers": cluster.brokers, "group.id": group, "log_level": "0"}
    consumer: Any = confluent_kafka.Consumer({**config, "enable.auto.commit": "false"})
    try:
        asked = [confluent_kafka.TopicPartition(*tp) for tp in held]
        with suppress(confluent_kafka.KafkaException):
            return any(each.offset >= 0 for each in consumer.committed(asked, _OFFSETS_S))
        return False
    finally:
        consumer.close()


def _reach(host: str, port: int) -> str:
    """Try to connect; return why that failed, or nothing."""
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        return str(error)
    return ""
