"""What is known of a cluster and its topics, and whether their replicas outlive the loss of a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from offsetkeeper.core.plain import plain


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


ERROR, WARNING, NOTE = Severity
_REPLICAS = 3
_REASSIGN = " (kafka-reassign-partitions)"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, where it is, and its remedy.

    Attributes:
        rule: name of the rule, which stays the same from release to release.
        severity: how bad it is.
        where: topic, broker, store.
        what: what was found.
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
        exists: whether Kafka has it.
        recreated: whether positions belong to an earlier topic of this name.
        beyond: how many positions lie beyond the end of their partition.
        partitions: how many it has.
        replicas, in_sync: of the partition that has the fewest.
        settings: retention.ms, retention.bytes, cleanup.policy, min.insync.replicas, unclean.leader.election.enable.
        ahead_s: how far its newest record is ahead of this machine's clock.
        open: the partition whose open transaction is the oldest, the offset where that begins, and its age in seconds.
        read: whether the group has positions of it.
        span_s: with retention.bytes, the age of the oldest record left, of the partition where it is the least; None
            where nothing was deleted yet.
    """

    topic: str
    exists: bool = True
    recreated: bool = False
    beyond: int = 0
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
    """Something the credentials may not do; `needed` if no run can do without it."""

    what: str
    needed: bool


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """A cluster.

    Attributes:
        brokers: as given.
        error: why it could not be asked; empty where it could.
        nodes: the addresses it tells its clients, each with why it cannot be reached, empty where it can.
        topics: those of the group.
        offsets_retention_s: for how long it keeps the offsets of groups without members.
        published: whether the group has offsets in Kafka.
        refused: what the credentials may not do.
        options: settings of librdkafka that were given.
    """

    brokers: str
    error: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    topics: Sequence[TopicFacts] = ()
    offsets_retention_s: float | None = None
    published: bool = False
    refused: Sequence[Refusal] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


def replication(kafka: KafkaFacts) -> Iterator[Finding]:
    """Return what may lose records of a cluster's topics, or refuse new ones, when a broker is lost."""
    brokers = len(kafka.nodes)
    for topic in kafka.topics:
        if topic.replicas is None:
            continue
        where, least = f"topic {topic.topic}", int(topic.settings.get("min.insync.replicas", "0"))
        if topic.replicas == 1:
            what = "has one replica only: when its broker is lost, so are its records"
            remedy = f"raise its replication factor to {min(_REPLICAS, brokers) if brokers > 1 else _REPLICAS}"
            yield Finding("one-replica", NOTE if brokers == 1 else WARNING, where, what, remedy + _REASSIGN)
        elif least >= topic.replicas:
            what = f"has min.insync.replicas {least} of {topic.replicas}: with one broker away nothing can be written"
            yield Finding("min-insync-high", WARNING, where, what, "set min.insync.replicas one below the replicas")
        elif least == 1 and topic.replicas >= _REPLICAS:
            what = "has min.insync.replicas 1: what was acknowledged may be lost with one broker"
            yield Finding("min-insync-low", WARNING, where, what, "set min.insync.replicas=2, and acks=all")
        elif topic.replicas < min(_REPLICAS, brokers):
            what = f"has {topic.replicas} replicas on {brokers} brokers: with one away, the other alone has what is new"
            remedy = f"raise its replication factor to {_REPLICAS}{_REASSIGN}, and set min.insync.replicas=2"
            yield Finding("few-replicas", WARNING, where, what, remedy)
        asked = min(least, topic.replicas)  # as Kafka 4 has it: one replica alone is written to
        if topic.in_sync is not None and topic.in_sync < asked:
            what = (
                f"has {topic.in_sync} replicas in sync of {asked} that min.insync.replicas asks for: writes are refused"
            )
            yield Finding("below-min-insync", ERROR, where, what, "bring the missing brokers back")
        if topic.settings.get("unclean.leader.election.enable") == "true":
            what = "a replica that is behind may become its leader, and records that were read are replaced by others"
            yield Finding("unclean-election", WARNING, where, what, "set unclean.leader.election.enable=false")
