"""The requests to a Kafka cluster for planning and reading; `kafka.cluster.KafkaCluster` asks a real cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

from offsetkeeper.core.bounds import Bounds, Standing, led_anew, standing_of
from offsetkeeper.core.identity import is_elsewhere
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import BrokerUnavailable

Isolation = Literal["read_committed", "read_uncommitted"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def first_ms(at: datetime) -> int:
    """Return the first millisecond since 1970 that is not before a time: the times of Kafka have no more digits."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it is now.

    Attributes:
        topic: name of the topic.
        topic_id: Kafka's id of the topic, in Kafka's own form (22 characters of url-safe base64); None if it has none.
        partitions: numbers of its partitions, ascending.
        replicas, in_sync: number of replicas, and of in-sync replicas, of the partition with the fewest.
        cluster_id: Kafka's id of the cluster; None if it has none.
    """

    topic: str
    topic_id: str | None
    partitions: tuple[int, ...]
    replicas: int = 0
    in_sync: int = 0
    cluster_id: str | None = None


def topic_ids_of(found: Mapping[str, TopicDescription], cluster_id: str | None = None) -> dict[str, str]:
    """Return the ids of described topics by name, as far as they are known.

    Args:
        found: the topics.
        cluster_id: the expected id of the cluster, if it is known: ids of another one say nothing, and are left out.
    """
    if is_elsewhere(cluster_id, cluster_id_of(found)):
        return {}
    return {name: topic.topic_id for name, topic in found.items() if topic.topic_id is not None}


def cluster_id_of(found: Mapping[str, TopicDescription]) -> str | None:
    """Return the id of the cluster that has described topics; None if it is unknown, or there is no topic."""
    return next((topic.cluster_id for topic in found.values()), None)


class Cluster(Protocol):
    """A cluster that knows topics, offsets and times.

    Every request may raise:

        UnknownTopic         a topic or partition does not exist
        BrokerUnavailable    no answer came in time
        NotAuthorized        the credentials are wrong or lack a permission

    Attributes:
        brokers: `host:port,host:port,…` of some brokers of the cluster.
    """

    brokers: str

    @abstractmethod
    def describe(self, topics: Iterable[str], *, required: bool = False) -> dict[str, TopicDescription]:
        """Return the description of each topic; a topic that does not exist is left out.

        Args:
            topics: names of topics.
            required: whether to raise UnknownTopic for a topic that does not exist.

        Raises:
            SettingsError: a name is not a valid topic name.
            UnknownTopic (where `required`), BrokerUnavailable, NotAuthorized: see above.
        """
        ...

    @abstractmethod
    def topic_names(self) -> list[str]:
        """Return the names of all topics that these credentials may see.

        Raises:
            BrokerUnavailable, NotAuthorized: see above.
        """
        ...

    @abstractmethod
    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, isolation: Isolation | None = None
    ) -> dict[TopicPartition, Bounds]:
        """Return the beginning and end offsets of each partition; one request may have thousands of partitions.

        Args:
            topic_partitions: the partitions to ask for.
            isolation: the isolation level of the end, if it differs from the cluster's own.

        Raises:
            SettingsError: the isolation level is unknown.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see above.
        """
        ...

    @abstractmethod
    def offsets_for_times(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return for each partition the first offset whose record has a timestamp at or after `timestamp_ms`.

        If no record is that new, it is the end offset.

        Args:
            topic_partitions: the partitions to ask for.
            timestamp_ms: milliseconds since 1970.

        Raises:
            SettingsError: the timestamp is negative.
            UnknownTopic, BrokerUnavailable, NotAuthorized: see above.
        """
        ...

    def find(self, topics: Topics, known: Iterable[str] = ()) -> dict[str, TopicDescription]:
        """Return the topics to read, each with its partitions to read; a topic that does not exist is left out.

        Args:
            topics: the topics to read.
            known: names that were found before. The topics of a pattern are also asked for by name, because the broker
                that lists all topics may not know one of them yet.

        Raises:
            BrokerUnavailable, NotAuthorized: see above.
        """
        names: Iterable[str] = topics.names
        if topics.pattern is not None:
            names = {name for name in (*self.topic_names(), *known) if name in topics}
        found = self.describe(names) if names else {}
        return {
            name: replace(topic, partitions=topics.partitions_of(name, topic.partitions))
            for name, topic in found.items()
        }

    def bounds_of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
        """Return the bounds, with topic ids, of every partition of `topics`; a topic that does not exist is left out.

        Raises:
            SettingsError, BrokerUnavailable, NotAuthorized: see `describe`.
        """
        return self.bounds_of(self.describe(topics).values())

    def bounds_of(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, Bounds]:
        """Return the bounds, with topic ids, of every partition of described topics.

        Raises:
            BrokerUnavailable, NotAuthorized: see above.
        """
        about = {TopicPartition(topic.topic, p): topic for topic in topics for p in topic.partitions}
        return {
            tp: here._replace(topic_id=about[tp].topic_id, cluster_id=about[tp].cluster_id)
            for tp, here in self.bounds(about).items()
        }

    def leader_epochs(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the leader epoch of each partition; None if it is unknown.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see above.
        """
        return {tp: here.leader_epoch for tp, here in self.bounds(topic_partitions).items()}

    def cuts(self, positions: Positions) -> dict[TopicPartition, int]:  # noqa: ARG002 - for subclasses
        """Return `Bounds.common` of each partition whose log was cut before the position, since its leader epoch.

        Args:
            positions: positions with leader epochs; others are not checked.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see above.
        """
        return {}

    def with_cuts(self, positions: Positions, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Bounds]:
        """Return `bounds`, with `Bounds.common` of logs that were cut before positions.

        Args:
            positions: the positions to check; other partitions are ignored.
            bounds: the offsets that Kafka holds. Kafka is asked again only where the leader epoch is another one.

        Raises:
            BrokerUnavailable: see above; or a broker answered that is no longer the leader.
            UnknownTopic, NotAuthorized: see above.
        """
        anew = led_anew(positions, bounds)
        cut = self.cuts(anew) if anew else {}
        for tp in anew.keys() - cut.keys():
            if (bounds[tp].leader_epoch or 0) < (anew[tp].leader_epoch or 0):
                raise BrokerUnavailable(f"{tp}: a broker at {self.brokers} answered that is no longer its leader")
        return {**bounds, **{tp: bounds[tp]._replace(common=common) for tp, common in cut.items()}}

    def anew(self) -> Cluster:
        """Return the cluster as clients find it that connect now: its name may lead elsewhere than before."""
        return self

    def with_open_transactions(
        self, positions: Positions, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, Bounds]:
        """Return `bounds`, but with the end moved to positions that are in open transactions.

        A run that reads uncommitted records gets to such a position: it is after the last stable offset, but not after
        the last written record. The position is right; there is nothing to read until the transactions end.

        Args:
            positions: the positions to check; other partitions are ignored.
            bounds: the offsets that Kafka holds. Kafka is asked again only if a position is after the end.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see above.
        """
        beyond = {tp: at for tp, at in positions.items() if standing_of(at, bounds.get(tp)) is Standing.BEYOND_END}
        written = self.bounds(beyond, isolation="read_uncommitted") if beyond else {}
        reached = {tp: at.offset for tp, at in beyond.items() if at.offset <= written[tp].end}
        return {**bounds, **{tp: bounds[tp]._replace(end=end) for tp, end in reached.items()}}
