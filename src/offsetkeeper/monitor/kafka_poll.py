"""What Kafka holds of the topics of all groups: asked once for every poll, and as little as can be.

Offsets are asked for at each poll. Numbers of partitions, ids of topics and their retention change rarely: they are
asked for twice a minute, and at once where an offset goes back or cannot be told.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import TopicPartition
from offsetkeeper.errors import BrokerError, BrokerUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.many_offsets import ManyOffsets

_AT_ONCE = 8
_WHOLE_S = 30.0  # between two polls that ask for all
_MOST = 500  # partitions of a topic; of more the admin client is asked

OfTopic = Mapping[TopicPartition, Bounds]


@dataclass(frozen=True, slots=True)
class KafkaSample:
    """What Kafka holds.

    Attributes:
        bounds: of the partitions of each topic that exists. Those of a topic where nothing changed are the very same
            mapping as at the poll before.
        retentions_ms: for how long each topic keeps its records.
        refused: topics that Kafka refuses to tell of, each with the reason.
    """

    bounds: Mapping[str, OfTopic]
    retentions_ms: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, topics: Collection[str]) -> OfTopic:
        """Return the bounds of the partitions of some topics."""
        found = [self.bounds[topic] for topic in sorted(topics) if topic in self.bounds]
        return found[0] if len(found) == 1 else {tp: each for some in found for tp, each in some.items()}


class KafkaPoll:
    """Asks a cluster again and again. One thread at a time.

    Args:
        cluster: Kafka.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._offsets = ManyOffsets(cluster.brokers, cluster.options, cluster.isolation)
        self._last = KafkaSample({}, {})
        self._topics: frozenset[str] = frozenset()
        self._whole_s: float | None = None  # when all was asked

    def ask(self, topics: Collection[str]) -> KafkaSample:
        """Return what Kafka holds of topics; one that does not exist is absent.

        Raises:
            BrokerUnavailable, NotAuthorized: Kafka could not be asked.
        """
        now_s, wanted = environment.monotonic(), frozenset(topics)
        fresh = self._whole_s is not None and now_s - self._whole_s < _WHOLE_S and wanted == self._topics
        bounds = self._offsets_only() if fresh else None
        if bounds is not None:
            found = KafkaSample(bounds, self._last.retentions_ms, self._last.refused)
        else:
            self._whole_s = None
            found = self._whole(wanted)
            self._topics = wanted
            self._whole_s = now_s
        self._last = KafkaSample(_kept(self._last.bounds, found.bounds), found.retentions_ms, found.refused)
        return self._last

    def close(self) -> None:
        """Close the clients."""
        self._offsets.close()

    def _offsets_only(self) -> Mapping[str, OfTopic] | None:
        """Return the bounds of the topics that are known; None where one of them may have changed more than that."""
        if any(len(known) > _MOST for known in self._last.bounds.values()):
            return None
        self._offsets.open()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(self._last.bounds, pool.map(self._of_topic, self._last.bounds), strict=True))
        whole = {topic: each for topic, each in found.items() if each is not None}
        return whole if len(whole) == len(found) else None

    def _of_topic(self, topic: str) -> OfTopic | None:
        known = self._last.bounds[topic]
        answer = self._offsets.of_topic(topic, [tp.partition for tp in known])
        if answer is None:
            return None
        now: dict[TopicPartition, Bounds] = {}
        for (tp, before), beginning, end, log_end in zip(known.items(), *answer, strict=True):
            if beginning < before.beginning or log_end < (before.log_end or 0):
                return None  # the topic may be another of that name
            now[tp] = Bounds(beginning, end, before.topic_id, log_end)
        return now

    def _whole(self, topics: Collection[str]) -> KafkaSample:
        try:
            return KafkaSample(self._ask(topics), self._cluster.retentions(topics))
        except BrokerUnavailable:
            raise
        except BrokerError:
            return self._ask_singly(topics)

    def _ask(self, topics: Collection[str]) -> dict[str, OfTopic]:
        found: dict[str, dict[TopicPartition, Bounds]] = {}
        for tp, here in self._cluster.with_log_ends(self._cluster.bounds_of_topics(topics)).items():
            found.setdefault(tp.topic, {})[tp] = here
        return {**found}

    def _ask_singly(self, topics: Collection[str]) -> KafkaSample:
        """Ask for one topic after the other: one that is refused, or deleted just now, must not hide the others."""
        bounds: dict[str, OfTopic] = {}
        refused: dict[str, str] = {}
        for topic in topics:
            try:
                bounds |= self._ask([topic])
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                refused[topic] = str(error)
        return KafkaSample(bounds, self._cluster.retentions(set(topics) - refused.keys()), refused)


def _kept(before: Mapping[str, OfTopic], now: Mapping[str, OfTopic]) -> dict[str, OfTopic]:
    return {topic: before[topic] if before.get(topic) == each else each for topic, each in now.items()}
