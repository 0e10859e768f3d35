"""What is known of a pipeline's set-up, as the doctor's `rules` take it, and what they find. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from offsetkeeper.core.store import Store
from offsetkeeper.kafka.replication import KafkaFacts

ReaderKind = Literal["auto", "packed", "connector", "spark"]


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store.

    Attributes:
        address: for people.
        abilities: what it can do.
        error: why it could not be read; empty where it could.
        settings: of its server: appendonly, appendfsync, maxmemory, maxmemory-policy, ttl (seconds).
        ahead_s: how far its clock is ahead of this machine's, at least; negative where it is behind.
        kafka: the cluster that it lies in, with the topic of the ledgers.
        edited: what other programs see that is not the ledger's, in a sentence; empty where it is the same.
    """

    address: str
    abilities: frozenset[str] = frozenset({"commit", "fence", "history"})
    error: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    ahead_s: float | None = None
    kafka: KafkaFacts | None = None
    edited: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """What the history says about a group's runs, in seconds; None where it does not say.

    Attributes:
        gap_s: the longest pause between two runs, or since the last one.
        silence_s: since the newest change.
        pending_s: since the pending batch was begun.
    """

    gap_s: float | None = None
    silence_s: float | None = None
    pending_s: float | None = None


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """An installed Spark.

    Attributes:
        version: of Spark.
        connectors: versions of the Kafka connectors it would load.
        settings: of Spark, and options of its Kafka source.
    """

    version: str
    connectors: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a pipeline's set-up; None where nothing is, or where it is no part of it."""

    store: StoreFacts
    runs: Runs = Runs()
    kafka: KafkaFacts | None = None
    spark: SparkFacts | None = None
    reader: ReaderKind = "auto"


@runtime_checkable
class Examined(Store, Protocol):
    """A store that tells of its server what `offsetkeeper doctor` judges."""

    def server_settings(self) -> dict[str, str]:
        """Return those that decide how long what is stored stays; none that may not be seen.

        Raises:
            StoreUnavailable: the server could not be asked.
        """

    def clock_ms(self) -> int:
        """Return the server's time, milliseconds since 1970.

        Raises:
            StoreUnavailable: the server could not be asked.
        """
