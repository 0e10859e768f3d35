"""The one place that asks: all groups of the store, and Kafka about their topics, once for every poll.

However many browsers and scrapers there are, store and Kafka are asked no more often. What is away is told in the view;
nothing is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Guarantee, Snapshot, TopicPartition, kafka_positions, kafka_topics
from offsetkeeper.core.pending import after, unreadable
from offsetkeeper.core.plan import Policies, plan
from offsetkeeper.core.store import Store
from offsetkeeper.errors import BrokerError, BrokerUnavailable, CorruptStore, OffsetkeeperError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.alerts import Alarm, Key, Notice, Rule, step, unmatched
from offsetkeeper.monitor.history import read_on
from offsetkeeper.monitor.view import GroupSample, Health, View
from offsetkeeper.operate.lag import lag_within
from offsetkeeper.operate.outlook import outlook

log = logging.getLogger(__name__)
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Kafka:
    """What Kafka holds of all topics of all groups; topics it refused to tell of, each with the reason."""

    bounds: Mapping[TopicPartition, Bounds]
    retentions_ms: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)


class Collector:
    """Polls a store and Kafka. One thread at a time may poll; any may read the view.

    Args:
        store: the ledgers.
        cluster: Kafka.
        rules: when to raise alarms.

    Attributes:
        view: what the newest poll found.
    """

    def __init__(self, store: Store, cluster: KafkaCluster, rules: Sequence[Rule] = ()) -> None:
        self._store = store
        self._cluster = cluster
        self._rules = rules
        self._alarms: dict[Key, Alarm] = {}
        self._rules_told = False
        now_ms = environment.now_ms()
        unknown = Health(up=False, since_ms=now_ms, error="not looked yet")
        self.view = View(0, now_ms, 0.0, unknown, unknown)

    def poll(self) -> list[Notice]:
        """Poll once, replace the view, and return what is to be told of alarms."""
        start, at_ms, before = environment.monotonic(), environment.now_ms(), self.view
        groups, store_error = dict(before.groups), ""
        kafka_error = "" if before.kafka.up else before.kafka.error
        try:
            groups, kafka_error = self._measured([self._read_group(name, at_ms) for name in self._store.groups()])
        except OffsetkeeperError as error:
            store_error = str(error)
        except Exception as error:
            log.exception("the look failed")
            store_error = f"the look failed, and the log says more: {type(error).__name__}"
        notices: list[Notice] = []
        if not store_error:
            self._tell_rules(groups)
            measured = {name: sample.measured(at_ms) for name, sample in groups.items()}
            self._alarms, notices = step(self._alarms, self._rules, measured, at_ms)
        self.view = View(
            before.number + 1,
            at_ms,
            environment.monotonic() - start,
            before.store.after(store_error, at_ms),
            before.kafka.after(kafka_error, at_ms),
            groups,
            tuple(alarm for _, alarm in sorted(self._alarms.items()) if alarm.firing),
        )
        _say_changes(before, self.view)
        return notices

    def _tell_rules(self, groups: Collection[str]) -> None:
        """Log once which rules of alarms are for groups that are not there: their names may be mistyped."""
        for rule, pattern in () if self._rules_told else unmatched(self._rules, groups):
            log.warning("rule %r of the alarms is for %r: the store has no such group yet", rule, pattern)
        self._rules_told = True

    def _read_group(self, name: str, at_ms: int) -> GroupSample:
        before = self.view.groups.get(name) or GroupSample(0, Snapshot(name))
        try:
            snapshot = self._store.load(name)
            history = read_on(self._store, snapshot, before.snapshot, before.history, at_ms)
        except CorruptStore as error:
            return replace(before, error=str(error))
        except OffsetkeeperError:
            raise  # the store is away, for all of them
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this group's alone, and it is logged
            return replace(before, error=_unforeseen(before, error))
        moved = snapshot.generation != before.snapshot.generation  # by a reset, which is no reading
        anchors = () if moved else before.anchors
        return GroupSample(at_ms, snapshot, history, points=before.points, growth=before.growth, anchors=anchors)

    def _measured(self, read: Collection[GroupSample]) -> tuple[dict[str, GroupSample], str]:
        """Return the groups with their lags, and why Kafka could not be asked, if it could not."""
        topics = {topic for sample in read for topic in kafka_topics(sample.snapshot.positions)}
        try:
            kafka = self._ask(topics)
        except BrokerError as error:
            return {sample.snapshot.group: sample.without_lags() for sample in read}, str(error)
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of the time of each is waiting for Kafka
            measured = pool.map(lambda sample: sample if sample.error else self._measure(sample, kafka), read)
            return {sample.snapshot.group: sample for sample in measured}, ""

    def _ask(self, topics: Collection[str]) -> _Kafka:
        try:
            bounds = self._cluster.with_log_ends(self._cluster.bounds_of_topics(topics))
            return _Kafka(bounds, self._cluster.retentions(topics))
        except BrokerUnavailable:
            raise
        except BrokerError:
            return self._ask_singly(topics)

    def _ask_singly(self, topics: Collection[str]) -> _Kafka:
        """Ask for one topic after the other: one that is refused, or deleted just now, must not hide the others."""
        bounds: dict[TopicPartition, Bounds] = {}
        refused: dict[str, str] = {}
        for topic in topics:
            try:
                bounds |= self._cluster.with_log_ends(self._cluster.bounds_of_topics([topic]))
            except BrokerUnavailable:
                raise
            except BrokerError as error:
                refused[topic] = str(error)
        return _Kafka(bounds, self._cluster.retentions(topics - refused.keys() if refused else topics), refused)

    def _measure(self, sample: GroupSample, kafka: _Kafka) -> GroupSample:
        topics = kafka_topics(sample.snapshot.positions)
        if refused := sorted(topics & kafka.refused.keys()):
            return replace(sample, error=kafka.refused[refused[0]])
        positions = kafka_positions(sample.snapshot.positions)
        pending = sample.snapshot.pending
        begun = after(pending, {}) if pending else {}
        bounds = {tp: each for tp, each in kafka.bounds.items() if tp.topic in topics}
        try:
            bounds = self._cluster.with_open_transactions({**positions, **kafka_positions(begun)}, bounds)
            lags = lag_within(sample.snapshot, self._cluster, bounds, kafka.retentions_ms)
        except BrokerError as error:
            return replace(sample, error=str(error))
        except Exception as error:  # noqa: BLE001 - as above
            return replace(sample, error=_unforeseen(self.view.groups.get(sample.snapshot.group) or sample, error))
        problems = unreadable(pending.ranges, positions, bounds) if pending else []
        ahead = outlook(sample.snapshot, problems, Guarantee.AT_LEAST_ONCE, Policies())
        stored = kafka_positions(ahead.positions)
        planned = plan(sample.snapshot.group, stored, bounds, Policies(), first={}, start="earliest")
        return sample.with_lags(lags, planned, ahead)


def _unforeseen(before: GroupSample, error: Exception) -> str:
    """Return an error that is not ours in words, and log it once."""
    found = f"it cannot be read, and the log says more: {type(error).__name__}"
    if found != before.error:
        log.error("group %r cannot be read", before.snapshot.group, exc_info=error)
    return found


def _say_changes(before: View, view: View) -> None:
    """Log once that store or Kafka went away, or came back."""
    for what, was, now in (("the store", before.store, view.store), ("Kafka", before.kafka, view.kafka)):
        if now.up is not (was.up or before.number == 0):
            log.warning("%s", f"{what} answers again" if now.up else f"{what} is away: {now.error}")
