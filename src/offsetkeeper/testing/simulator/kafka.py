"""Kafka as a model: topics with records, retention, topics made again, open transactions, partitions that are added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, Isolation, TopicDescription
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import BrokerUnavailable, RangeGone, ReadStalled, UnknownTopic
from offsetkeeper.kafka.topic_ids import check_cluster, recreated
from offsetkeeper.testing.simulator.schedule import GO, Schedule

GROUP, TOPIC = "billing", "orders"
FIRST = "A"  # the id of the cluster that the name leads to at first
AWAY = "no broker answers"
ELSEWHERE = "its client connects anew, where the name leads now"


@dataclass(slots=True)
class ModelTopic:
    """One topic.

    Attributes:
        topic_id: changes when it is made again. Brokers may be too old to tell it: see `ModelCluster.ids`.
        partitions: beginning, last stable offset and end of each.
    """

    topic_id: str
    partitions: list[tuple[int, int, int]]


@dataclass(slots=True)
class ModelPlace:
    """A cluster that brokers' addresses can lead to.

    Attributes:
        cluster_id: of the cluster.
        topics: by name; one that was deleted is absent.
    """

    cluster_id: str
    topics: dict[str, ModelTopic] = field(default_factory=dict)


@dataclass
class ModelCluster(Cluster):
    """A name of brokers, and the cluster that it leads to, whose topics are changed by events.

    Attributes:
        schedule: chooses whether brokers answer.
        place: where the name leads; for a client, where it is connected.
        name: for a client, the name that leads others to where they connect.
        moves: whether anything can change or fail in this history: only then is a question a point.
        ids: whether brokers tell the ids of topics.
    """

    schedule: Schedule
    place: ModelPlace
    name: ModelCluster | None = None
    moves: bool = False
    ids: bool = True
    brokers: str = "model:9092"

    @property
    def led(self) -> bool:
        """Whether the name leads elsewhere than at the beginning."""
        return self.place.cluster_id != FIRST

    @property
    def topics(self) -> dict[str, ModelTopic]:
        """The topics that are there."""
        return self.place.topics

    def client(self) -> ModelCluster:
        """Return a client that connects now, and stays where it is while the name leads elsewhere."""
        name = self.name or self
        if self.moves:
            self.schedule.saw(name.place.cluster_id)
        return replace(name, name=name)

    def anew(self) -> ModelCluster:
        """See `Cluster.anew`."""
        return self.client()

    def describe(self, topics: Iterable[str], *, required: bool = False) -> dict[str, TopicDescription]:
        """See `Cluster.describe`."""
        self._asked("describes topics")
        names = sorted(set(topics))
        missing = [name for name in names if name not in self.topics]
        if missing and required:
            raise UnknownTopic(missing[0])
        found = {name: self.topics[name] for name in names if name in self.topics}
        return {
            name: TopicDescription(
                name,
                topic.topic_id if self.ids else None,
                tuple(range(len(topic.partitions))),
                cluster_id=self.place.cluster_id,
            )
            for name, topic in found.items()
        }

    def topic_names(self) -> list[str]:
        """See `Cluster.topic_names`."""
        self._asked("lists topics")
        return sorted(self.topics)

    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, isolation: Isolation | None = None
    ) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds`."""
        self._asked("asks for offsets")
        found = {}
        for tp in topic_partitions:
            beginning, stable, end = self._partition(tp)
            found[tp] = Bounds(beginning, end if isolation == "read_uncommitted" else stable)
        return found

    def leader_epochs(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Cluster.leader_epochs`: the model has no elections."""
        return dict.fromkeys(topic_partitions)

    def offsets_for_times(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Cluster.offsets_for_times`: a record is written in the millisecond of its offset."""
        bounds = self.bounds(topic_partitions)
        return {tp: min(max(timestamp_ms, here.beginning), here.end) for tp, here in bounds.items()}

    def read(
        self, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str], cluster_id: str | None = None
    ) -> tuple[tuple[str, str, int, int], ...]:
        """Return the records of ranges, as (topic, its id, partition, offset).

        Raises:
            RangeGone: they are not all there, or a topic or the cluster has not the id that is known of it.
            ReadStalled: some are in a transaction that is open.
        """
        check_cluster(cluster_id, self.place.cluster_id, topic_ids)
        records = []
        for topic, partition, start, end in ranges:
            there = self.topics.get(topic)
            if there is None or partition >= len(there.partitions):
                raise RangeGone(f"{topic} {partition} is gone")
            if self.ids and topic_ids.get(topic, there.topic_id) != there.topic_id:
                raise recreated(topic)
            beginning, stable, log_end = there.partitions[partition]
            if start < beginning or end > log_end:
                raise RangeGone(f"{topic} {partition} has {beginning} to {log_end}, not {start} to {end}")
            if end > stable:
                raise ReadStalled(f"{topic} {partition} can be read to {stable}, not {start} to {end}")
            records += [(topic, there.topic_id, partition, offset) for offset in range(start, end)]
        return tuple(records)

    def holds(self, each: OffsetRange, known: Position) -> bool:
        """Whether a range can be read as it was once chosen, for checks."""
        there = self.topics.get(each.topic)
        if there is None or each.partition >= len(there.partitions):
            return False
        if known.topic_id not in {None, there.topic_id} or known.cluster_id not in {None, self.place.cluster_id}:
            return False
        beginning, _, end = there.partitions[each.partition]
        return beginning <= each.start and each.end <= end

    def records(self) -> set[tuple[str, str, int, int]]:
        """Return all records that can be read now."""
        return {
            (name, topic.topic_id, number, offset)
            for name, topic in self.topics.items()
            for number, (beginning, stable, _) in enumerate(topic.partitions)
            for offset in range(beginning, stable)
        }

    def digest(self) -> int:
        """Return a digest of its content."""
        topics = ((name, topic.topic_id, *topic.partitions) for name, topic in self.topics.items())
        return hash((self.place.cluster_id, *topics))

    def _asked(self, what: str) -> None:
        if self.moves:
            led = self.name is not None and self.name.place is not self.place
            mode = self.schedule.point(what, (AWAY, ELSEWHERE) if led else (AWAY,))
            if mode == ELSEWHERE and self.name is not None:
                self.place, mode = self.name.place, GO
            self.schedule.saw((mode, self.digest()))
            if mode != GO:
                raise BrokerUnavailable(mode)

    def _partition(self, tp: TopicPartition) -> tuple[int, int, int]:
        there = self.topics.get(tp.topic)
        if there is None or tp.partition >= len(there.partitions):
            raise UnknownTopic(str(tp))
        return there.partitions[tp.partition]
