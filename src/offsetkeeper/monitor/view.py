"""The result of one poll of store and Kafka, made from the one before. Pure.

Everything that is served comes from the newest view.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import Plan
from offsetkeeper.monitor.alerts import Alarm, Measured
from offsetkeeper.monitor.day import kept
from offsetkeeper.monitor.history import NO_HISTORY, History
from offsetkeeper.operate.audit import Discrepancy
from offsetkeeper.operate.lag import Lag, Sample, Speed, Total, speeds, total
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Point, Status, status, thinned

POINTS = 720  # kept of each group: an hour, at one every five seconds
_FAR_MS = 60_000
_NO_BOUNDS: Mapping[TopicPartition, Bounds] = MappingProxyType({})
_OF_KAFKA = ("lags", "speeds", "total", "plan", "ahead", "status")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the store, or Kafka, answered at the newest poll.

    Attributes:
        up: whether it did.
        since_ms: since when that is so, milliseconds since 1970.
        error: why it did not, in words.
    """

    up: bool
    since_ms: int
    error: str = ""

    def after(self, error: str, at_ms: int) -> Health:
        """Return how it is after a poll that found an error, or an empty one for none."""
        up = not error
        return Health(up, self.since_ms if up == self.up else at_ms, error)


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One group at a poll.

    Attributes:
        at_ms: when; a group that could not be read stays as it was at an earlier poll.
        snapshot: its ledger.
        history: its newest entries, and what does not follow on in them.
        lags: of its partitions; None where Kafka could not be asked, as are `total`, `plan`, `ahead` and `status`.
        speeds: of its partitions.
        total: of all of them.
        plan: where the next start begins, by the usual policies.
        ahead: what it does first with a pending batch, at least once.
        status: in a word.
        points: of this poll and the ones before, oldest first, for the chart.
        growth: those of them that show growth.
        anchors: earlier lags that speed is measured from.
        error: why the group, or its history, could not be read at the newest poll, in words.
        bounds: what Kafka holds of its topics.
        day: points of a day, oldest first, for the chart.
        past_known: whether they have what the history says of the time before the server began.
        newest: the highest version that its ledger had at any poll; the store went back where it is lower now.
        lags_at_ms: when the lags were measured; an earlier poll's where Kafka could not be asked since.
        kept: whether it is known that its topics keep their records for ever.
    """

    at_ms: int
    snapshot: Snapshot
    history: History = NO_HISTORY
    lags: Sequence[Lag] | None = None
    speeds: Mapping[TopicPartition, Speed] = field(default_factory=dict)
    total: Total | None = None
    plan: Plan | None = None
    ahead: Outlook | None = None
    status: Status | None = None
    points: Sequence[Point] = ()
    growth: Sequence[Point] = ()
    anchors: Sequence[Sample] = ()
    error: str = ""
    bounds: Mapping[TopicPartition, Bounds] = field(default_factory=lambda: _NO_BOUNDS)
    lags_at_ms: int = 0
    day: Sequence[Point] = ()
    past_known: bool = False
    newest: int = 0
    kept: bool = False

    def with_lags(
        self, lags: Sequence[Lag], planned: Plan, ahead: Outlook, bounds: Mapping[TopicPartition, Bounds] = _NO_BOUNDS
    ) -> GroupSample:
        """Return it with what Kafka answered."""
        now, newest = Sample(self.at_ms, lags), self.entries
        fast = speeds(now, newest, self.anchors[0] if self.anchors else None)
        every = total(lags, fast)
        point = Point(self.at_ms, every.waiting, every.seconds)
        return replace(
            self,
            lags=lags,
            speeds=fast,
            total=every,
            plan=planned,
            ahead=ahead,
            status=status(self.snapshot, lags, newest, self.at_ms, self.growth),
            points=(*self.points[-POINTS + 1 :], point),
            day=kept(self.day, point),
            growth=thinned(self.growth, point, newest),
            anchors=anchored(self.anchors, now),
            bounds=bounds,
            lags_at_ms=self.at_ms,
        )

    def without_lags(self, before: GroupSample | None) -> GroupSample:
        """Return it with the lags that were last known, and a gap in its picture, as Kafka could not be asked."""
        gap = Point(self.at_ms, None)
        points, day = (*self.points[-POINTS + 1 :], gap), kept(self.day, gap)
        if before is None:
            return replace(self, points=points, day=day)
        last = {name: getattr(before, name) for name in (*_OF_KAFKA, "bounds", "lags_at_ms")}
        return replace(self, points=points, day=day, **last)

    def of_the_poll(self) -> GroupSample:
        """Return it without lags that are of an earlier poll."""
        if self.lags_at_ms == self.at_ms:
            return self
        return replace(self, lags=None, speeds={}, total=None, plan=None, ahead=None, status=None, bounds={})

    def measured(self, at_ms: int) -> Measured:
        """Return what the rules of alarms ask.

        Of a group that was not measured at `at_ms` only a reason why it cannot be read is known, if there is one.
        """
        if self.total is None or self.lags_at_ms != at_ms:
            return Measured(None, None, None, None, self.error or None)
        of = self.total
        # Without a ledger they may be left out on purpose, and `forget` takes out no position of what is gone.
        ledger = bool(self.snapshot.version)
        waiting = None if of.waiting is None else of.waiting + of.without_commit * ledger
        partial = bool(of.beyond or (ledger and of.gone))
        undated = bool(of.undated or partial or (ledger and of.undated_new))
        retention = 0.0 if self.kept else of.retention_used
        return Measured(self.status, waiting, of.seconds, retention, self.error, undated, partial, self.kept)

    @property
    def went_back(self) -> str:
        """What the store has of its ledger and what it had, in words; empty where it did not go back."""
        here = self.snapshot.version
        return f"the store went back: it has version {here} of the ledger, and had {self.newest}" * (here < self.newest)

    @property
    def entries(self) -> Sequence[Entry]:
        """Its newest history, newest first."""
        return self.history.entries

    @property
    def findings(self) -> Sequence[Discrepancy]:
        """What does not follow on in it."""
        return self.history.findings

    @property
    def waiting(self) -> int | None:
        """Offsets unread, of all partitions; None where they are not known."""
        return None if self.total is None else self.total.waiting

    @property
    def catch_up_s(self) -> float | None:
        """Seconds until nothing waits; None where that is not known, or never."""
        return None if self.total is None else self.total.speed.catch_up_s(self.total.waiting)

    @property
    def time_to_catch_up_s(self) -> float | None:
        """Seconds until nothing waits, infinite where it is never; None where that is not known.

        If no run holds the group, its speed is of the past.
        """
        speed = None if self.total is None else self.total.speed
        if self.waiting is None or speed is None or (self.waiting and None in speed):
            return None
        seconds = speed.catch_up_s(self.waiting)
        if seconds and self.snapshot.version and self.snapshot.owner is None:
            return None
        return math.inf if seconds is None else seconds

    @property
    def committed_ms(self) -> int | None:
        """When the newest commit in the history was made."""
        return next((entry.at_ms for entry in self.entries if entry.event == "commit"), None)

    @property
    def never_committed(self) -> bool:
        """Whether the history reaches back to the group's first change, and has no commit."""
        return self.committed_ms is None and bool(self.entries) and self.entries[-1].version <= 1


@dataclass(frozen=True, slots=True)
class View:
    """Store and Kafka at one moment.

    Attributes:
        number: one more with each poll; 0 is before the first.
        at_ms: when the poll began, milliseconds since 1970; of an overdue view when that was noticed.
        took_s: how long it took.
        store, kafka: whether they answered.
        groups: by name; of a store that is away, those of the last poll that could be had.
        alarms: of all rules, those that fire now.
        gone: names of groups that had a ledger at an earlier poll, and are not in the store any more.
        looked_at_ms: of an overdue view when its poll began.
    """

    number: int
    at_ms: int
    took_s: float
    store: Health
    kafka: Health
    groups: Mapping[str, GroupSample] = field(default_factory=lambda: MappingProxyType({}))
    alarms: Sequence[Alarm] = ()
    looked_at_ms: int | None = None
    gone: Sequence[str] = ()

    @property
    def looked_ms(self) -> int:
        """When the newest poll began that has ended, milliseconds since 1970."""
        return self.at_ms if self.looked_at_ms is None else self.looked_at_ms

    def overdue(self, error: str, at_ms: int) -> View:
        """Return the view after a poll that reached neither store nor Kafka: its values are too old."""
        store, kafka = self.store.after(error, at_ms), self.kafka.after(error, at_ms)
        return replace(self, at_ms=at_ms, store=store, kafka=kafka, looked_at_ms=self.looked_ms)

    def gone_from(self, groups: Collection[str]) -> tuple[str, ...]:
        """Return the groups that had a ledger up to this poll, and are not among those of the next one."""
        had = {name for name, sample in self.groups.items() if sample.snapshot.version}
        return tuple(sorted({*had, *self.gone}.difference(groups)))

    def fresh(self) -> dict[str, GroupSample]:
        """Return the groups that were read at this very poll, with nothing that is older."""
        return {name: sample.of_the_poll() for name, sample in self.groups.items() if sample.at_ms == self.at_ms}


def anchored(anchors: Sequence[Sample], newest: Sample) -> tuple[Sample, ...]:
    """Return the lags that speed will be measured from: two, a minute or more apart, as lags are many.

    Speed over two polls in a row would be that of the batch which happened to end between them.

    Args:
        anchors: so far, oldest first.
        newest: the lags now.
    """
    if anchors and newest.at_ms - anchors[-1].at_ms < _FAR_MS:
        return tuple(anchors)
    return (*anchors[-1:], newest)
