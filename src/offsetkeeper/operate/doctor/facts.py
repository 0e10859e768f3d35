"""The facts about a pipeline's set-up that the doctor's `rules` judge, and their findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from offsetkeeper.core.store import Store
from offsetkeeper.kafka.replication import KafkaFacts
from offsetkeeper.operate.lag import Total
from offsetkeeper.operate.status import Status

ReaderKind = Literal["auto", "packed", "connector", "spark"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server of an output.

    Attributes:
        address: its address, for people.
        error: why it could not be asked; empty if it could.
        settings: what was asked of it; see `durability.ASKED`.
        hidden: names of settings that it does not show to this user.
    """

    address: str
    error: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    hidden: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store.

    Attributes:
        address: its address, for people.
        abilities: what the store can do.
        error: why the store could not be read; empty if it could.
        settings: what was asked of its server, see `durability.ASKED`; and ttl (seconds).
        hidden: names of settings that its server does not show to this user.
        ahead_s: the least seconds by which its clock is ahead of this machine's; negative if it is behind.
        kafka: the cluster of a store in Kafka, with the topic of the ledgers.
        edited: a sentence on offsets that other programs see differently; empty if all are the same.
    """

    address: str
    abilities: frozenset[str] = frozenset({"commit", "fence", "history"})
    error: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    hidden: Sequence[str] = ()
    ahead_s: float | None = None
    kafka: KafkaFacts | None = None
    edited: str = ""


@dataclass(frozen=True, slots=True)
class Runs:
    """What the history says about a group's runs, in seconds; None if unknown.

    Attributes:
        gap_s: the longest pause between two runs, or since the last one.
        silence_s: the time since the newest change.
        pending_s: the time since the pending batch was begun.
    """

    gap_s: float | None = None
    silence_s: float | None = None
    pending_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What `offsetkeeper lag` says: the group, its status, and the sum of its lags."""

    group: str
    status: Status
    total: Total


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """An installed Spark.

    Attributes:
        version: version of Spark.
        connectors: versions of the Kafka connectors that Spark would load.
        settings: settings of Spark, and options of its Kafka source.
    """

    version: str
    connectors: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a pipeline's set-up; None for a part that is unknown or not used.

    Attributes:
        store, runs, kafka, spark, reader: see their types.
        outputs: servers that the pipeline's outputs are in.
        standing: what `offsetkeeper lag` says of the group.
        topics_out: the cluster, with the topics that the pipeline writes and Kafka's own that their marks need.
    """

    store: StoreFacts
    runs: Runs = Runs()
    kafka: KafkaFacts | None = None
    spark: SparkFacts | None = None
    reader: ReaderKind = "auto"
    outputs: Sequence[ServerFacts] = ()
    topics_out: KafkaFacts | None = None
    standing: GroupStanding | None = None


@runtime_checkable
class Examined(Store, Protocol):
    """A store that reports the settings of its server to `offsetkeeper doctor`."""

    def server_settings(self) -> dict[str, str | None]:
        """Return the server settings that decide what our data survives; None if this user may not see one.

        Raises:
            StoreUnavailable: the server could not be asked.
        """


@runtime_checkable
class Clocked(Store, Protocol):
    """A store that reports the clock of its server to `offsetkeeper doctor`."""

    def clock_ms(self) -> int:
        """Return the server's time, milliseconds since 1970.

        Raises:
            StoreUnavailable: the server could not be asked.
        """
