"""Kafka as a model: topics with records, retention, topics made again, open transactions, partitions that are added.

Leaders are elected, and may lack records: then others get their offsets (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from offsetkeeper.core.bounds import NO_LEADER_EPOCHS, Bounds
from offsetkeeper.core.cluster import Cluster, Isolation, TopicDescription
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
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
        leaders: of a partition that had elections, the offset at which each leader epoch begins.
        lost: whether a leader lacked records.
    """

    topic_id: str
    partitions: list[tuple[int, int, int]]
    leaders: dict[int, tuple[int, ...]] = field(default_factory=dict)
    lost: bool = False

    def elect(self, partition: int, lost: int) -> None:
        """Elect a leader without the last `lost` records of a partition; older epochs end there at the latest."""
        beginning, stable, end = self.partitions[partition]
        common = max(beginning, stable - lost) if lost else end
        self.lost |= common < end
        self.leaders[partition] = (*(min(start, common) for start in self._starts(partition)), common)
        self.partitions[partition] = (beginning, min(stable, common), common)

    def epoch(self, partition: int) -> int:
        """Return the leader epoch of a partition."""
        return len(self._starts(partition)) - 1

    def end_of(self, epoch: int, partition: int) -> int:
        """Return the offset up to which a partition has records of an epoch and those before it."""
        following = self._starts(partition)[epoch + 1 :]
        return following[0] if following else self.partitions[partition][2]

    def common(self, epoch: int, partition: int) -> int:
        """Return what the leader answers for `end_of`: -1 if its log has no record of that epoch."""
        end = self.end_of(epoch, partition)
        return -1 if epoch and self._starts(partition)[epoch] == end else end

    def record_epoch(self, partition: int, offset: int) -> int:
        """Return the leader epoch in which a record was written."""
        return max(epoch for epoch, start in enumerate(self._starts(partition)) if start <= offset or not epoch)

    def record_id(self, partition: int, offset: int) -> str:
        """Return what tells a record from another one at its offset: the topic's id, with each epoch but the first."""
        epoch = self.record_epoch(partition, offset)
        return f"{self.topic_id} epoch {epoch}" if epoch else self.topic_id

    def _starts(self, partition: int) -> tuple[int, ...]:
        return self.leaders.get(partition, (0,))


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
        epochs: whether brokers tell the leader epochs of partitions.
    """

    schedule: Schedule
    place: ModelPlace
    name: ModelCluster | None = None
    moves: bool = False
    ids: bool = True
    epochs: bool = False
    brokers: str = "model:9092"

    @property
    def led(self) -> bool:
        """Whether the name leads elsewhere than at the beginning."""
        return self.place.cluster_id != FIRST

    @property
    def cut(self) -> bool:
        """Whether a leader was elected that lacked records."""
        return any(topic.lost for topic in self.topics.values())

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
            epoch = self.topics[tp.topic].epoch(tp.partition) if self.epochs else None
            found[tp] = Bounds(beginning, end if isolation == "read_uncommitted" else stable, leader_epoch=epoch)
        return found

    def leader_epochs(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Cluster.leader_epochs`."""
        return super().leader_epochs(topic_partitions) if self.epochs else dict.fromkeys(topic_partitions)

    def cuts(self, positions: Positions) -> dict[TopicPartition, int]:
        """See `Cluster.cuts`."""
        self._asked("asks where epochs end")
        for tp in positions:
            self._partition(tp)
        return self.cut_before(positions)

    def cut_before(self, positions: Positions) -> dict[TopicPartition, int]:
        """Return the answer of `cuts`, for checks."""
        found = {}
        for tp, at in positions.items():
            there, epoch = self.topics.get(tp.topic), at.leader_epoch if self.epochs else None
            if there is None or epoch is None or epoch >= there.epoch(tp.partition):
                continue
            if there.end_of(epoch, tp.partition) < at.offset:
                found[tp] = there.common(epoch, tp.partition)
        return found

    def offsets_for_times(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Cluster.offsets_for_times`: a record is written in the millisecond of its offset."""
        bounds = self.bounds(topic_partitions)
        return {tp: min(max(timestamp_ms, here.beginning), here.end) for tp, here in bounds.items()}

    def read(
        self,
        ranges: Iterable[OffsetRange],
        topic_ids: Mapping[str, str],
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,
    ) -> tuple[tuple[str, str, int, int], ...]:
        """Return the records of ranges, as (topic, its id, partition, offset).

        Raises:
            RangeGone: they are not all there, or a topic or the cluster has not the id that is known of it, or records
                are of a later epoch than one in which all of the range was there.
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
            most = leader_epochs.get(TopicPartition(topic, partition))
            if most is not None and start < end and there.record_epoch(partition, end - 1) > most:
                raise RangeGone(f"{topic} {partition} has records of a later epoch than {most}")
            records += [(topic, there.record_id(partition, n), partition, n) for n in range(start, end)]
        return tuple(records)

    def holds(self, each: OffsetRange, known: Position) -> bool:
        """Whether a range can be read as it was once chosen, for checks."""
        there = self.topics.get(each.topic)
        if there is None or each.partition >= len(there.partitions):
            return False
        if known.topic_id not in {None, there.topic_id} or known.cluster_id not in {None, self.place.cluster_id}:
            return False
        beginning, _, end = there.partitions[each.partition]
        if known.leader_epoch is not None:
            end = there.end_of(known.leader_epoch, each.partition)
        return beginning <= each.start and each.end <= end

    def records(self) -> set[tuple[str, str, int, int]]:
        """Return all records that can be read now."""
        return {
            (name, topic.record_id(number, offset), number, offset)
            for name, topic in self.topics.items()
            for number, (beginning, stable, _) in enumerate(topic.partitions)
            for offset in range(beginning, stable)
        }

    def digest(self) -> int:
        """Return a digest of its content."""
        topics = (
            (name, topic.topic_id, *topic.partitions, *sorted(topic.leaders.items()))
            for name, topic in self.topics.items()
        )
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
