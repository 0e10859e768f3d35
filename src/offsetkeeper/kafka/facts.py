"""What is known of a cluster and its topics, and what is found wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


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
        """Return it as plain values."""
        return asdict(self)


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
        settings: retention.ms, cleanup.policy, min.insync.replicas, unclean.leader.election.enable.
        ahead_s: how far its newest record is ahead of this machine's clock.
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
    options: Mapping[str, str] = field(default_factory=dict)
