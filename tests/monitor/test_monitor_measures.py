"""What becomes of a group from poll to poll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fixtures.fake_cluster import Fake
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.model import Entry, Owner, Snapshot
from offsetkeeper.core.plan import FirstOffsets, Plan, Policies, plan
from offsetkeeper.errors import BrokerUnavailable
from offsetkeeper.kafka.cluster import Retentions, Timestamps
from offsetkeeper.monitor.alerts import Rule
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.history import History
from offsetkeeper.monitor.kafka_poll import KafkaPoll
from offsetkeeper.monitor.metrics import exposition
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.view import POINTS, GroupSample, Health, View
from offsetkeeper.operate.lag import measure
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Status

A = TopicPartition("orders", 0)
SNAPSHOT = Snapshot("shop", version=9, owner=Owner("me", 1), positions={A: Position(0)})
AHEAD = Outlook(None, None, "", SNAPSHOT.positions)
PLAN: Plan = plan("shop", {}, {}, Policies(), FirstOffsets())
INTERVAL_S, EVERY_S = 1_500, 5


class Later(environment.Environment):
    """The machine's clock, some seconds ahead."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        """See `Environment.monotonic`."""
        return super().monotonic() + self.ahead_s


class Idle(Fake):
    """A cluster with one partition, of which nothing is unread."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Return topics of one partition."""
        return {topic: TopicDescription(topic, None, (0,)) for topic in topics}

    def bounds_quickly(self, topic: TopicDescription) -> dict[TopicPartition, Bounds] | None:
        """Return where it begins and ends."""
        return {TopicPartition(topic.topic, 0): Bounds(0, 0, None, 0)}


def seen(before: GroupSample, at_s: int, waiting: int) -> GroupSample:
    """Return the group at a poll; it commits once each interval."""
    times = [(at_s // INTERVAL_S - number) * INTERVAL_S for number in range(10)]
    history = History([Entry(100 - number, "commit", "id", 1000 * at, "me") for number, at in enumerate(times)])
    sample = GroupSample(1000 * at_s, SNAPSHOT, history, points=before.points, growth=before.growth)
    first_ms = 1000 * (at_s - 2 * INTERVAL_S)
    lags = measure(SNAPSHOT.positions, {A: Bounds(0, waiting)}, 1000 * at_s, {A: first_ms})
    return sample.with_lags(lags, PLAN, AHEAD)


def test_growth_is_seen_of_a_group_that_commits_less_often_than_its_picture_reaches() -> None:
    """Three intervals of 25 minutes are more than the hour that is shown."""
    sample = GroupSample(0, SNAPSHOT)
    for at_s in range(100_000, 100_000 + 4 * INTERVAL_S, EVERY_S):
        sample = seen(sample, at_s, at_s)
    assert (len(sample.points), sample.status) == (POINTS, Status.GROWING)


def test_a_poll_at_which_kafka_was_away_is_a_gap_in_the_picture_alone() -> None:
    sample = seen(GroupSample(0, SNAPSHOT), 100_000, 7)
    sample = sample.without_lags(sample)
    assert [point.waiting for point in sample.points] == [7, None]
    assert [point.waiting for point in sample.growth] == [7]


def test_the_collector_remembers_from_one_poll_to_the_next() -> None:
    store, cluster = open_store("memory://looks"), Idle()
    ledger = Ledger(store, "shop")
    ledger.acquire()
    ledger.place({A: Position(0)})
    as_cluster: Any = cluster
    collector = Collector(store, as_cluster)
    collector.poll()
    first = collector.view.groups["shop"]
    collector.poll()
    second = collector.view.groups["shop"]
    assert [point.at_ms for point in second.growth] == [first.at_ms]  # the second poll is too near to be one more
    assert len(second.points) == 2


class Large(Idle):
    """A cluster whose topic has more partitions than are asked for at once."""

    most = 0

    def describe(self, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Return topics of 1,200 partitions."""
        return {topic: TopicDescription(topic, None, (*range(1200),)) for topic in topics}

    def bounds_quickly(self, topic: TopicDescription) -> dict[TopicPartition, Bounds]:
        """Return that each partition ends at its own number."""
        self.most = max(self.most, len(topic.partitions))
        return {TopicPartition(topic.topic, n): Bounds(n, n, None, n) for n in topic.partitions}

    def bounds_of(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, Bounds]:
        """Refuse: it takes six times the CPU."""
        raise AssertionError(topics)


def test_a_topic_of_many_partitions_is_asked_for_in_parts() -> None:
    cluster: Any = Large()
    poll = KafkaPoll(cluster)
    for _ in range(2):
        found = poll.ask({"orders"}).of(["orders"])
        assert {tp.partition: here.end for tp, here in found.items()} == {n: n for n in range(1200)}
    assert cluster.most <= 500


class Led(Idle):
    """A cluster of which some topics have a partition without a leader."""

    def __init__(self, *away: str) -> None:
        super().__init__()
        self.away = set(away)
        self.asked: list[str] = []
        self.later = Later()

    def bounds_quickly(self, topic: TopicDescription) -> dict[TopicPartition, Bounds] | None:
        """Return the bounds, or None, as the real one does."""
        self.asked.append(topic.topic)
        return None if topic.topic in self.away else {TopicPartition(topic.topic, 0): Bounds(0, 7, None, 7)}

    def bounds_of(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, Bounds]:
        """Refuse after half a minute."""
        for topic in topics:
            self.later.ahead_s += 31
            raise BrokerUnavailable(f"partition {topic.topic} 0: no leader")
        return {}

    def record_timestamps(self, offsets: dict[TopicPartition, int], **more: object) -> Timestamps:  # type: ignore[override]
        """Return none."""
        del offsets, more
        return Timestamps({}, frozenset(), 1)

    def estimate_timestamps(self, offsets: dict[TopicPartition, int], before_ms: int) -> dict[TopicPartition, int]:
        """Return none."""
        del offsets, before_ms
        return {}

    def first_since(self, times_ms: dict[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return none."""
        del times_ms
        return {}


def test_a_partition_without_a_leader_hides_its_own_groups_alone() -> None:
    """All groups of a server were blind, and no alarm was told."""
    store, cluster = open_store("memory://led"), Led("clicks", "views")
    for name in ("clicks", "orders", "views"):
        ledger = Ledger(store, name)
        ledger.acquire()
        ledger.place({TopicPartition(name, 0): Position(0)})
    as_cluster: Any = cluster
    collector = Collector(store, as_cluster, [Rule("spoilt", "unreadable")])
    with environment.using(cluster.later):
        told = [(each.state, each.key.group, each.value) for each in collector.poll()]
        groups = collector.view.groups
        assert told == [
            ("fired", "clicks", "partition clicks 0: no leader"),
            ("fired", "views", "topic views: no answer, and no time was left to ask again"),
        ]
        assert (collector.view.kafka.up, groups["orders"].waiting, groups["orders"].error) == (True, 7, "")
        assert (groups["clicks"].waiting, groups["clicks"].error) == (None, "partition clicks 0: no leader")
        cluster.asked.clear()
        assert collector.poll() == []
        assert cluster.asked == ["orders"]  # each question to the other takes seconds
        cluster.away.clear()
        cluster.later.ahead_s += 31
        assert [(each.state, each.key.group) for each in collector.poll()] == [
            ("resolved", "clicks"),
            ("resolved", "views"),
        ]
        assert collector.view.groups["views"].waiting == 7


class Keeping(Led):
    """A cluster whose first record is 95 seconds old."""

    kept_ms: Mapping[str, int]

    def retentions(self, topics: Iterable[str]) -> Retentions:
        """Return for how long it keeps them."""
        del topics
        return Retentions(self.kept_ms)

    def record_timestamps(self, offsets: dict[TopicPartition, int], **more: object) -> Timestamps:  # type: ignore[override]
        """Return the same for all."""
        del more
        now_ms = environment.now_ms()
        return Timestamps(dict.fromkeys(offsets, now_ms - 95_000), frozenset(), now_ms)


def test_no_record_is_at_risk_once_its_topic_keeps_all_for_ever() -> None:
    """Whoever is told so raises retention.ms, and the alarm stayed."""
    store, cluster = open_store("memory://keeping"), Keeping()
    ledger = Ledger(store, "shop")
    ledger.acquire()
    ledger.place({A: Position(0)})
    as_cluster: Any = cluster
    collector = Collector(store, as_cluster, [Rule("old", "retention", limit=0.8)])
    told = []
    with environment.using(cluster.later):
        for kept_ms in ({"orders": 100_000}, {"orders": 100_000}, {}):
            cluster.kept_ms = kept_ms
            told.append([each.state for each in collector.poll()])
            cluster.later.ahead_s += 31
    assert told == [["fired"], [], ["resolved"]]


def test_a_cluster_of_which_no_topic_answers_is_away() -> None:
    cluster = Led("clicks", "views")
    as_cluster: Any = cluster
    with environment.using(cluster.later), pytest.raises(BrokerUnavailable, match="no leader"):
        KafkaPoll(as_cluster).ask(["clicks", "views"])


def test_of_topics_that_are_gone_no_number_is_made_up() -> None:
    """Nothing waits that could be counted: that is not known, and not caught up."""
    sample = GroupSample(0, SNAPSHOT).with_lags(measure(SNAPSHOT.positions, {}, 0), PLAN, AHEAD)
    assert (sample.waiting, sample.catch_up_s) == (None, None)
    up = Health(up=True, since_ms=0)
    view = View(1, 0, 0.1, up, up, {"shop": sample})
    told = exposition(view).decode()
    assert 'offsetkeeper_group_status{group="shop",status="refused"} 1.0' in told
    for name in ("offsetkeeper_group_catch_up_seconds", "kafka_consumergroup_group_sum_lag"):
        assert f"{name}{{" not in told
    page = Pages("memory://", "fake:9092", every_s=EVERY_S, changes=False).group(view, "shop")
    assert "Retention used" in page
    assert "nothing is about to go" not in page


@pytest.mark.parametrize(("version", "undated"), [(9, True), (0, False)])
def test_a_partition_that_was_added_may_be_the_oldest_where_its_age_is_not_known(version: int, undated: bool) -> None:  # noqa: FBT001
    """The alarm was resolved as soon as the others were read. Without a ledger it may be left out on purpose."""
    snapshot = replace(SNAPSHOT, version=version)
    lags = measure(snapshot.positions, {A: Bounds(0, 0), TopicPartition("orders", 1): Bounds(0, 7)}, 0)
    measured = GroupSample(0, snapshot).with_lags(lags, PLAN, AHEAD).measured(0)
    assert (measured.seconds, measured.undated) == (0.0, undated)


@pytest.mark.parametrize(("version", "known"), [(9, False), (0, True)])
def test_the_rest_of_a_group_says_nothing_of_a_partition_that_is_gone(version: int, known: bool) -> None:  # noqa: FBT001
    """Without a ledger no command takes it out of the group."""
    stored = {A: Position(0), TopicPartition("gone", 0): Position(5)}
    snapshot = replace(SNAPSHOT, version=version, positions=stored)
    lags = measure(stored, {A: Bounds(0, 0)}, 0)
    measured = GroupSample(0, snapshot).with_lags(lags, PLAN, AHEAD).measured(0)
    assert (measured.records, measured.undated, measured.partial) == (0, not known, not known)


def test_page_metrics_and_alarms_agree_that_an_age_is_not_known() -> None:
    """One partition is read to its end; of the other, the next record is 60 days ahead."""
    snapshot = replace(SNAPSHOT, positions={A: Position(0), TopicPartition("orders", 1): Position(5)})
    bounds = dict.fromkeys(snapshot.positions, Bounds(0, 5))
    lags = measure(snapshot.positions, bounds, 0, {A: 60 * 86_400_000})
    sample = GroupSample(0, snapshot).with_lags(lags, PLAN, AHEAD)
    measured = sample.measured(0)
    assert (measured.seconds, measured.undated) == (None, True)
    up = Health(up=True, since_ms=0)
    view = View(1, 0, 0.1, up, up, {"shop": sample})
    told = exposition(view).decode()
    assert 'offsetkeeper_group_undated_partitions{group="shop"} 1.0' in told
    assert "kafka_consumergroup_group_max_lag_seconds{" not in told
    page = Pages("memory://", "fake:9092", every_s=EVERY_S, changes=False).group(view, "shop")
    assert "not known in 1 partition<" in page
    assert "the next record&#39;s time is in the future" in page
