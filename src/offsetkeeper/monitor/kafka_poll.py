"""The bounds of all groups' topics in Kafka: asked for once in each poll, with few requests.

Offsets are asked for at each poll. Numbers of partitions, ids of topics and their retention change rarely: they are
asked for twice a minute, and at once where an offset goes back or is unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import BrokerError, BrokerUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.cluster import Retentions

_AT_ONCE = 8
_DESCRIBED_S = 30.0  # between two polls that ask for all
_PATIENCE_S = 30.0  # for all topics together whose partitions do not answer
_MOST = 500  # partitions of a topic in a question: librdkafka's time grows with their square

OfTopic = Mapping[TopicPartition, Bounds]


@dataclass(frozen=True, slots=True)
class KafkaSample:
    """What Kafka holds.

    Attributes:
        bounds: of the partitions of each topic that exists. Those of a topic where nothing changed are the very same
            mapping as at the poll before.
        retentions: for how long each topic keeps its records.
        refused: topics that Kafka refuses to describe, or a partition of which does not answer, each with the reason.
    """

    bounds: Mapping[str, OfTopic]
    retentions: Retentions
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, topics: Collection[str]) -> OfTopic:
        """Return the bounds of the partitions of some topics."""
        found = [self.bounds[topic] for topic in sorted(topics) if topic in self.bounds]
        return found[0] if len(found) == 1 else {tp: each for some in found for tp, each in some.items()}

    def keeps_all(self, topics: Collection[str]) -> bool:
        """Return whether it is known that some topics keep their records for ever."""
        deleted = self.retentions.ms.keys() | self.retentions.unjudged.keys()
        return all(topic in self.bounds and topic not in deleted for topic in topics)


class KafkaPoll:
    """Asks a cluster again and again. One thread at a time.

    Args:
        cluster: Kafka.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._last = KafkaSample({}, Retentions({}))
        self._topics: Mapping[str, TopicDescription] = {}
        self._wanted: frozenset[str] = frozenset()
        self._described_s: float | None = None  # when

    def ask(self, topics: Collection[str]) -> KafkaSample:
        """Return what Kafka holds of topics; one that does not exist is absent.

        Raises:
            BrokerUnavailable, NotAuthorized: Kafka could not be asked.
        """
        now_s, wanted = environment.monotonic(), frozenset(topics)
        known = self._described_s is not None and now_s - self._described_s < _DESCRIBED_S and wanted == self._wanted
        bounds = self._quickly(self._last.bounds) if known else None
        if bounds is not None:
            found = KafkaSample(bounds, self._last.retentions, self._last.refused)
        else:
            self._described_s = None
            found = self._whole(wanted)
            self._wanted, self._described_s = wanted, environment.monotonic()
        self._last = KafkaSample(_kept(self._last.bounds, found.bounds), found.retentions, found.refused)
        return self._last

    def _quickly(self, before: Mapping[str, OfTopic]) -> dict[str, OfTopic] | None:
        """Return the bounds of the topics that are described; None where one of them may have changed more than that.

        Args:
            before: bounds of the last poll. An offset that goes back means a new topic of the same name.
        """
        topics = self._topics
        failed = threading.Event()  # after which no more are asked: each may wait for its answer

        def ask(topic: TopicDescription) -> OfTopic | None:
            found = None if failed.is_set() else self._of_topic(topic)
            if found is None:
                failed.set()
            return found

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(ask, topics.values()))
        found = {name: each for name, each in zip(topics, answers, strict=True) if each is not None}
        went_on = all(_went_on(before.get(name, {}), each) for name, each in found.items())
        return {**found} if len(found) == len(topics) and went_on else None

    def _of_topic(self, topic: TopicDescription) -> OfTopic | None:
        found: dict[TopicPartition, Bounds] = {}
        for at in range(0, len(topic.partitions), _MOST):
            some = self._cluster.bounds_quickly(replace(topic, partitions=topic.partitions[at : at + _MOST]))
            if some is None:
                return None
            found |= some
        return found

    def _whole(self, topics: Collection[str]) -> KafkaSample:
        described, refused = self._described(topics)
        bounds, away = self._bounds(described)
        self._topics = {name: topic for name, topic in described.items() if name in bounds}
        return KafkaSample(bounds, self._cluster.retentions(self._topics), refused | away)

    def _described(self, topics: Collection[str]) -> tuple[dict[str, TopicDescription], dict[str, str]]:
        """Return the topics there are, and why others are not described: one that is refused hides no other."""
        try:
            return self._cluster.describe(topics), {}
        except BrokerUnavailable:
            raise
        except BrokerError:
            found: dict[str, TopicDescription] = {}
        refused: dict[str, str] = {}
        for topic in topics:
            try:
                found |= self._cluster.describe([topic])
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                refused[topic] = str(error)
        return found, refused

    def _bounds(self, topics: Mapping[str, TopicDescription]) -> tuple[dict[str, OfTopic], dict[str, str]]:
        """Return the bounds of topics, and why others have none: a partition without a leader hides no other topic.

        Raises:
            BrokerUnavailable: no topic has an answer.
        """
        found, why = self._at_once(topics), {}
        end_s = environment.monotonic() + _PATIENCE_S
        for name in sorted(topics.keys() - found.keys()):
            try:
                if environment.monotonic() > end_s:
                    raise BrokerUnavailable(f"topic {name}: no answer, and no time was left to ask again")
                found |= self._slowly(topics[name])
            except BrokerError as error:
                if not found and isinstance(error, BrokerUnavailable):
                    raise
                why[name] = str(error)
        return found, why

    def _at_once(self, topics: Mapping[str, TopicDescription]) -> dict[str, OfTopic]:
        """Return the bounds of the topics that answer in time, each of its own."""
        end_s = environment.monotonic() + _PATIENCE_S

        def ask(topic: TopicDescription) -> OfTopic | None:
            return self._of_topic(topic) if environment.monotonic() < end_s else None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(ask, topics.values()))
        return {name: each for name, each in zip(topics, answers, strict=True) if each is not None}

    def _slowly(self, topic: TopicDescription) -> dict[str, OfTopic]:
        return {topic.topic: self._cluster.with_log_ends(self._cluster.bounds_of([topic]))}


def _went_on(before: OfTopic, now: OfTopic) -> bool:
    """Whether no offset is less than it was."""
    pairs = ((before[tp], here) for tp, here in now.items() if tp in before)
    return all(was.beginning <= here.beginning and (was.log_end or 0) <= (here.log_end or 0) for was, here in pairs)


def _kept(before: Mapping[str, OfTopic], now: Mapping[str, OfTopic]) -> dict[str, OfTopic]:
    return {topic: before[topic] if before.get(topic) == each else each for topic, each in now.items()}
