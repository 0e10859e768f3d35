"""The one place that asks: all groups of the store, and Kafka about their topics, once for every poll.

Store and Kafka are asked equally often for any number of browsers and scrapers. The view says which of them is away;
nothing is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

from offsetkeeper.core import environment
from offsetkeeper.core.batch import after
from offsetkeeper.core.bounds import unreadable
from offsetkeeper.core.model import Guarantee, Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import FirstOffsets, Policies, plan
from offsetkeeper.core.store import Store
from offsetkeeper.errors import BrokerError, OffsetkeeperError, StoreUnavailable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.alerts import Alarm, Key, Notice, Rule, step, unmatched, untold, vanished, went_back
from offsetkeeper.monitor.day import past
from offsetkeeper.monitor.history import read_on
from offsetkeeper.monitor.kafka_poll import KafkaPoll, KafkaSample, OfTopic
from offsetkeeper.monitor.view import GroupSample, Health, View
from offsetkeeper.operate.lag import FirstUnread, aged, lag_within, topics_read
from offsetkeeper.operate.outlook import outlook
from offsetkeeper.operate.words import WENT_BACK

log = logging.getLogger(__name__)
_AT_ONCE = 8
_AGAIN_MS = 60_000
_NAMED = 5  # topics in a line of the log
_PASTS = 8  # groups at a poll whose past is asked for, so that the first one does not take long


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
        self._kafka = KafkaPoll(cluster)
        self._known: dict[str, dict[TopicPartition, FirstUnread]] = {}
        self._rules = rules
        self._alarms: dict[Key, Alarm] = {}
        self._rules_told = False
        self._dropped: SimpleQueue[Notice] = SimpleQueue()
        self._waiting: list[Notice] = []
        self._unjudged: set[str] = set()
        self._newest: dict[str, int] = {}
        self._told_back: set[str] = set()
        now_ms = environment.now_ms()
        unknown = Health(up=False, since_ms=now_ms, error="not looked yet")
        self.view = View(0, now_ms, 0.0, unknown, unknown)

    def poll(self) -> list[Notice]:
        """Poll once, replace the view, and return the notices of alarms to send."""
        start, at_ms, before = environment.monotonic(), environment.now_ms(), self.view
        groups, store_error, gone = dict(before.groups), "", before.gone
        kafka_error = "" if before.kafka.up else before.kafka.error
        try:
            read = [self._read_group(name, at_ms) for name in self._store.groups()]
            groups, kafka_error = self._measured(read, at_ms)
        except OffsetkeeperError as error:
            store_error = str(error)
        except Exception as error:
            log.exception("the look failed")
            store_error = f"the look failed, and the log says more: {type(error).__name__}"
        notices: list[Notice] = []
        if not store_error:
            self._tell_rules(groups)
            gone, dropped = before.gone_from(groups), self._due(at_ms)
            measured = {name: sample.measured(at_ms) for name, sample in groups.items()}
            self._alarms, notices = step(untold(self._alarms, dropped), self._rules, measured, at_ms, gone)
            told = {*before.gone}.difference(each.key.group for each in dropped if each.state == "gone")
            notices += self._tell_gone([name for name in gone if name not in told], at_ms)
            self._told_back -= {each.key.group for each in dropped if each.state == "back"}
            notices += self._tell_back(groups, at_ms)
            self._newest = {name: newest for name, newest in self._newest.items() if name in groups}
        self.view = View(
            before.number + 1,
            at_ms,
            environment.monotonic() - start,
            before.store.after(store_error, at_ms),
            before.kafka.after(kafka_error, at_ms),
            groups,
            tuple(alarm for _, alarm in sorted(self._alarms.items()) if alarm.firing),
            gone=gone,
        )
        _say_changes(before, self.view)
        return notices

    def _tell_rules(self, groups: Collection[str]) -> None:
        """Log once which rules of alarms are for groups that are not there: their names may be mistyped."""
        for rule, pattern in () if self._rules_told else unmatched(self._rules, groups):
            log.warning("rule %r of the alarms is for %r: the store has no such group yet", rule, pattern)
        self._rules_told = True

    def _tell_unjudged(self, topics: Mapping[str, str]) -> None:
        """Log once of each topic that a rule on retention cannot judge in full: its alarm may come too late."""
        rules = ", ".join(repr(rule.name) for rule in self._rules if rule.what == "retention")
        for why in sorted({*topics.values()}) if rules else ():
            new = [topic for topic in sorted(topics) if topics[topic] == why and topic not in self._unjudged]
            self._unjudged.update(new)
            if new:
                log.warning("%s of the alarms may miss deleted records of %s: %s", rules, _named(new), why)

    def not_told(self, notice: Notice) -> None:
        """Take back a notice that was dropped on its way: it is made again while it holds. Any thread may call it."""
        self._dropped.put(notice)

    def _due(self, at_ms: int) -> list[Notice]:
        """Return the dropped notices that are a minute old: a webhook that refuses all is not asked at each poll."""
        waiting = [*self._waiting, *(self._dropped.get() for _ in range(self._dropped.qsize()))]
        self._waiting = [each for each in waiting if at_ms - each.at_ms < _AGAIN_MS]
        return [each for each in waiting if at_ms - each.at_ms >= _AGAIN_MS]

    def _tell_gone(self, groups: Sequence[str], at_ms: int) -> list[Notice]:
        """Log which groups are gone, and return the notices: an emptied store looks like one where all is well."""
        for name in groups:
            log.error("the store has the ledger of group %r no more", name)
        return vanished(self._rules, groups, at_ms)

    def _tell_back(self, groups: Mapping[str, GroupSample], at_ms: int) -> list[Notice]:
        """Log which ledgers went back, and return the notices. One poll may have had an old answer: two have not."""
        back = {name: sample.went_back for name, sample in groups.items() if sample.went_back}
        again = [name for name in back if name in self.view.groups and self.view.groups[name].went_back]
        new = {name: back[name] for name in again if name not in self._told_back}
        self._told_back = (self._told_back & back.keys()) | new.keys()
        for name, what in new.items():
            log.error("group %r: %s. %s", name, what, WENT_BACK)
        return went_back(self._rules, new, at_ms)

    def _read_group(self, name: str, at_ms: int) -> GroupSample:
        before = self.view.groups.get(name) or GroupSample(0, Snapshot(name))
        try:
            found = self._store.load(name)
        except Exception as error:  # noqa: BLE001 - see `_alone`
            return replace(before, error=_alone(before, error))
        snapshot = before.snapshot if before.snapshot == found else found  # the same one, where nothing changed
        self._newest[name] = newest = self._newest_of(before.snapshot, snapshot)
        try:
            history = read_on(self._store, snapshot, before.snapshot, before.history, at_ms)
        except Exception as error:  # noqa: BLE001 - see `_alone`
            history = before.history._replace(problem=_alone(before, error))
        moved = snapshot.generation != before.snapshot.generation  # a reset: these records were not read
        anchors = () if moved else before.anchors
        sample = GroupSample(at_ms, snapshot, history, points=before.points, growth=before.growth, anchors=anchors)
        return replace(sample, error=history.problem, day=before.day, past_known=before.past_known, newest=newest)

    def _newest_of(self, before: Snapshot, now: Snapshot) -> int:
        """Return the newest version of a ledger; if it went back, only since a run has begun again, which settles that.

        An operator who fences a run raises the epoch too, but holds nothing and commits nothing.
        """
        runs = now.owner is not None or now.sequence > before.sequence
        settled = now.group in self._told_back and now.epoch > before.epoch and runs
        return now.version if settled else max(self._newest.get(now.group, 0), now.version)

    def _measured(self, read: Collection[GroupSample], at_ms: int) -> tuple[dict[str, GroupSample], str]:
        """Return the groups with their lags, and why Kafka could not be asked, if it could not."""
        every = {sample.snapshot.group: sample for sample in read}
        fresh = {name: sample for name, sample in every.items() if sample.at_ms == at_ms}
        topics = {topic for sample in fresh.values() for topic in topics_read(sample.snapshot)}
        try:
            kafka = self._kafka.ask(topics)
        except BrokerError as error:
            last = {name: sample.without_lags(self.view.groups.get(name)) for name, sample in fresh.items()}
            return every | last, str(error)
        self._tell_unjudged(kafka.retentions.unjudged)
        self._known = {name: self._known.get(name, {}) for name in every}
        fresh = {name: replace(each, kept=kafka.keeps_all(topics_read(each.snapshot))) for name, each in fresh.items()}
        every |= (unmoved := self._unmoved(fresh, kafka))
        moved = {name: sample for name, sample in fresh.items() if name not in unmoved}
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of the time of each is waiting for Kafka
            found = pool.map(lambda sample: self._measure(sample, kafka), moved.values())
            every |= dict(zip(moved, found, strict=True))
            lacking = [sample for sample in every.values() if sample.lags is not None and not sample.past_known]
            found = pool.map(self._with_past, lacking[:_PASTS])
            return every | {sample.snapshot.group: sample for sample in found}, ""

    def _unmoved(self, fresh: Mapping[str, GroupSample], kafka: KafkaSample) -> dict[str, GroupSample]:
        """Return the groups with their lags where nothing has changed but the time, and nothing is to be asked."""
        found = {}
        for name, sample in fresh.items():
            before = self.view.groups.get(name)
            if before is None or not before.lags or before.plan is None or before.ahead is None:
                continue
            bounds = kafka.of(topics_read(sample.snapshot))
            same = before.snapshot is sample.snapshot and before.bounds == bounds and not before.error
            lags = aged(before.lags, self._known[name], sample.at_ms, kafka.retentions.ms) if same else None
            if lags is not None:
                found[name] = sample.with_lags(lags, before.plan, before.ahead, bounds)
        return found

    def _measure(self, sample: GroupSample, kafka: KafkaSample) -> GroupSample:
        topics = topics_read(sample.snapshot)
        if refused := sorted(topics & kafka.refused.keys()):
            return replace(sample, error=kafka.refused[refused[0]])
        try:
            return self._measure_anew(sample, kafka.of(topics), kafka.retentions.ms)
        except BrokerError as error:
            return replace(sample, error=str(error))
        except Exception as error:  # noqa: BLE001 - as above
            return replace(sample, error=_unforeseen(self.view.groups.get(sample.snapshot.group) or sample, error))

    def _with_past(self, sample: GroupSample) -> GroupSample:
        """Return a group with its lag before the server began; without it where Kafka does not say."""
        held = {tp: (bounds.beginning, bounds.end) for tp, bounds in sample.bounds.items()}
        positions = {tp: at for tp, at in sample.snapshot.positions.items() if tp in held}
        try:
            found = past(positions, sample.entries, held, self._cluster.first_since, sample.at_ms)
        except Exception as error:  # noqa: BLE001 - no picture is worth a poll
            log.warning("the lag of group %r before the start is not known: %s", sample.snapshot.group, error)
            found = ()
        earlier = [point for point in found if not sample.day or point.at_ms < sample.day[0].at_ms]
        return replace(sample, day=(*earlier, *sample.day), past_known=True)

    def _measure_anew(self, sample: GroupSample, held: OfTopic, retentions_ms: Mapping[str, int]) -> GroupSample:
        snapshot, pending = sample.snapshot, sample.snapshot.pending
        positions = snapshot.positions
        begun = after(pending, {}) if pending else {}
        bounds = self._cluster.with_open_transactions({**positions, **begun}, held)
        lags = lag_within(snapshot, self._cluster, bounds, retentions_ms, self._known[snapshot.group])
        problems = unreadable(pending.ranges, positions, bounds) if pending else []
        ahead = outlook(snapshot, problems, Guarantee.AT_LEAST_ONCE, Policies())
        stored = ahead.positions
        missing = snapshot.missing
        planned = plan(snapshot.group, stored, bounds, Policies(), FirstOffsets(), missing=missing)
        return sample.with_lags(lags, planned, ahead, held)


def _named(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _NAMED:,} more" if len(topics) > _NAMED else ""
    return f"{', '.join(topics[:_NAMED])}{more}"


def _alone(before: GroupSample, error: Exception) -> str:
    """Return in words what is wrong with one group; it hides no other.

    Raises:
        StoreUnavailable: the store is away, for all of them.
    """
    if isinstance(error, StoreUnavailable):
        raise error
    return str(error) if isinstance(error, OffsetkeeperError) else _unforeseen(before, error)


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
