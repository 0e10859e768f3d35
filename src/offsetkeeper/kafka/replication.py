"""Facts about a cluster and its topics, and whether their replicas survive the loss of a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from offsetkeeper.core.plain import plain


class Severity(StrEnum):
    """The severity of a finding, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ERROR, WARNING, NOTE = Severity
_REPLICAS = 3
_REASSIGN = " (kafka-reassign-partitions)"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, its place and its remedy.

    Attributes:
        rule: name of the rule; it stays the same in all releases.
        severity: how bad it is.
        where: topic, broker, store.
        what: the problem.
        remedy: what to do.
    """

    rule: str
    severity: Severity
    where: str
    what: str
    remedy: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return plain(self)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic.

    Attributes:
        topic: its name.
        exists: whether it exists in Kafka.
        recreated: whether positions belong to an earlier topic with this name.
        elsewhere: whether positions belong to another Kafka cluster.
        beyond: number of positions beyond the end of their partition.
        cut: number of positions before which the log was cut by an election.
        partitions: number of partitions.
        replicas, in_sync: number of replicas and in-sync replicas of the partition with the fewest.
        settings: retention.ms, retention.bytes, cleanup.policy, min.insync.replicas, unclean.leader.election.enable.
        ahead_s: how far its newest record is ahead of this machine's clock.
        open: the oldest open transaction: its partition, its first offset, and its age in seconds.
        read: whether the group has positions of it.
        span_s: with retention.bytes, the lowest age of the oldest record, over the partitions; None if nothing was
            deleted yet.
    """

    topic: str
    exists: bool = True
    recreated: bool = False
    elsewhere: bool = False
    beyond: int = 0
    cut: int = 0
    partitions: int = 1
    replicas: int | None = None
    in_sync: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    ahead_s: float = 0.0
    open: tuple[int, int, float] | None = None
    read: bool = True
    span_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A missing permission; `needed` if every run needs it."""

    what: str
    needed: bool


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """A cluster.

    Attributes:
        brokers: the given addresses.
        error: why the cluster could not be asked; empty if it could.
        nodes: the advertised addresses, each with the error if it cannot be reached, else empty.
        topics: topics of the group.
        offsets_retention_s: how long the cluster keeps offsets of groups without members, in seconds.
        published: whether the group has offsets in Kafka.
        refused: missing permissions.
        options: the given settings of librdkafka.
        unverified: the brokers that do not verify transactions, each with the setting that tells; see `verification`.
    """

    brokers: str
    error: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    topics: Sequence[TopicFacts] = ()
    offsets_retention_s: float | None = None
    published: bool = False
    refused: Sequence[Refusal] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    unverified: Mapping[str, str] = field(default_factory=dict)


def replication(kafka: KafkaFacts) -> Iterator[Finding]:
    """Return the problems that lose records, or refuse new ones, when a broker is lost."""
    brokers = len(kafka.nodes)
    for topic in kafka.topics:
        if topic.replicas is None:
            continue
        where, least = f"topic {topic.topic}", int(topic.settings.get("min.insync.replicas", "0"))
        if topic.replicas == 1:
            what = "has only one replica: if its broker is lost, its records are lost"
            remedy = f"raise its replication factor to {min(_REPLICAS, brokers) if brokers > 1 else _REPLICAS}"
            yield Finding("one-replica", NOTE if brokers == 1 else WARNING, where, what, remedy + _REASSIGN)
        elif least >= topic.replicas:
            what = f"has min.insync.replicas {least} of {topic.replicas}: with one broker down, nothing can be written"
            yield Finding("min-insync-high", WARNING, where, what, "set min.insync.replicas one below the replicas")
        elif least == 1 and topic.replicas >= _REPLICAS:
            what = "has min.insync.replicas 1: the loss of one broker may lose acknowledged records"
            yield Finding("min-insync-low", WARNING, where, what, "set min.insync.replicas=2, and acks=all")
        elif topic.replicas < min(_REPLICAS, brokers):
            what = f"has {topic.replicas} replicas on {brokers} brokers: with one down, only the other has new records"
            remedy = f"raise its replication factor to {_REPLICAS}{_REASSIGN}, and set min.insync.replicas=2"
            yield Finding("few-replicas", WARNING, where, what, remedy)
        asked = min(least, topic.replicas)  # as in Kafka 4: a single replica can be written
        if topic.in_sync is not None and topic.in_sync < asked:
            what = f"has {topic.in_sync} replicas in sync, but min.insync.replicas requires {asked}: writes are refused"
            yield Finding("below-min-insync", ERROR, where, what, "start the missing brokers")
        if topic.settings.get("unclean.leader.election.enable") == "true":
            what = "a replica that is behind may become leader; then other records replace records that were read"
            yield Finding("unclean-election", WARNING, where, what, "set unclean.leader.election.enable=false")
