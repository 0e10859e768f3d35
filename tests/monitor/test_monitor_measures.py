"""What becomes of a group from look to look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Owner, Snapshot
from offsetkeeper.core.plan import Plan, Policies, plan
from offsetkeeper.kafka import Cluster
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.ledgers import Past
from offsetkeeper.monitor.measures import LOOKS, blind, with_lags
from offsetkeeper.monitor.metrics import exposition
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.view import GroupLook, Health, View
from offsetkeeper.operate.lag import measure
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Status

A = TopicPartition("orders", 0)
SNAPSHOT = Snapshot("shop", version=9, owner=Owner("me", 1), positions={A: Position(0)})
AHEAD = Outlook(None, None, "", SNAPSHOT.positions)
PLAN: Plan = plan("shop", {}, {}, Policies(), first={}, start="earliest")
INTERVAL_S, EVERY_S = 1_500, 5


class Idle:
    """A cluster with one partition, of which nothing is unread."""

    brokers = "fake:9092"
    options: Mapping[str, str] = {}
    isolation = "read_committed"

    with_open_transactions = Cluster.with_open_transactions
    record_timestamps = Cluster.record_timestamps

    def bounds_of_topics(self, topics: Iterable[str]) -> dict[TopicPartition, Bounds]:
        """Return where it begins and ends, of each topic."""
        return {TopicPartition(topic, 0): Bounds(0, 0) for topic in topics}

    def retentions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return none: records are kept for ever."""
        del topics
        return {}


def seen(before: GroupLook, at_s: int, waiting: int) -> GroupLook:
    """Return the group at a look; it commits once each interval."""
    times = [(at_s // INTERVAL_S - number) * INTERVAL_S for number in range(10)]
    past = Past([Entry(100 - number, "commit", "id", 1000 * at, "me") for number, at in enumerate(times)])
    look = GroupLook(1000 * at_s, SNAPSHOT, past, points=before.points, looks=before.looks)
    first_ms = 1000 * (at_s - 2 * INTERVAL_S)
    lags = measure(SNAPSHOT.positions, {A: Bounds(0, waiting)}, 1000 * at_s, {A: first_ms})
    return with_lags(look, lags, PLAN, AHEAD)


def test_growth_is_seen_of_a_group_that_commits_less_often_than_its_picture_reaches() -> None:
    """Three intervals of 25 minutes are more than the hour that is shown."""
    look = GroupLook(0, SNAPSHOT)
    for at_s in range(100_000, 100_000 + 4 * INTERVAL_S, EVERY_S):
        look = seen(look, at_s, at_s)
    assert (len(look.points), look.status) == (LOOKS, Status.GROWING)


def test_a_look_at_which_kafka_was_away_is_a_gap_in_the_picture_alone() -> None:
    look = blind(seen(GroupLook(0, SNAPSHOT), 100_000, 7))
    assert [point.waiting for point in look.points] == [7, None]
    assert [point.waiting for point in look.looks] == [7]


def test_the_collector_remembers_looks_from_one_to_the_next() -> None:
    store, cluster = open_store("memory://looks"), Idle()
    ledger = Ledger(store, "shop")
    ledger.acquire()
    ledger.place({A: Position(0)})
    as_cluster: Any = cluster
    collector = Collector(store, as_cluster)
    collector.look()
    first = collector.view.groups["shop"]
    collector.look()
    second = collector.view.groups["shop"]
    assert [point.at_ms for point in second.looks] == [first.at_ms]  # the second look is too near to be one more
    assert len(second.points) == 2


def test_of_topics_that_are_gone_no_number_is_made_up() -> None:
    """Nothing waits that could be counted: that is not known, and not caught up."""
    look = with_lags(GroupLook(0, SNAPSHOT), measure(SNAPSHOT.positions, {}, 0), PLAN, AHEAD)
    assert (look.waiting, look.catch_up_s) == (None, None)
    up = Health(up=True, since_ms=0)
    view = View(1, 0, 0.1, up, up, {"shop": look})
    told = exposition(view).decode()
    assert 'offsetkeeper_group_status{group="shop",status="refused"} 1.0' in told
    for name in ("offsetkeeper_group_catch_up_seconds", "kafka_consumergroup_group_sum_lag"):
        assert f"{name}{{" not in told
    page = Pages("memory://", "fake:9092", every_s=EVERY_S, changes=False).group(view, "shop", whole=False)
    assert "Retention used" in page
    assert "nothing is about to go" not in page
