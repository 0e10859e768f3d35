"""The lag of a day, and how long batches took: what the history says of the time before the server began."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from confluent_kafka import Producer

from monitor.gallery import NOW, group, view
from monitor.scene import LIMIT_S, Scene, Served
from offsetkeeper import OffsetRange, Position, TopicPartition
from offsetkeeper.core.environment import using
from offsetkeeper.core.model import Entry, Move
from offsetkeeper.monitor.choice import Choice
from offsetkeeper.monitor.day import DAY_MS, kept, past
from offsetkeeper.monitor.history import History, durations_s
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.operate.status import Point
from offsetkeeper.testing.clock import SetClock
from offsetkeeper.testing.server import wait_until

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
A = TopicPartition("orders", 0)


def commit(version: int, at_ms: int, start: int, end: int) -> Entry:
    """Of one range."""
    return Entry(version, "commit", str(version), at_ms, "host:1", ranges=(OffsetRange(*A, start, end),))


def values(page: str) -> list[tuple[int, str]]:
    """Time and words of each point of the chart of lag."""
    [found] = re.findall(r'aria-label="Lag over time".*?data-values="([^"]*)"', page, re.DOTALL)
    return [(at_ms, text) for at_ms, _, _, text in json.loads(html.unescape(found))]


def test_a_server_that_has_just_begun_shows_the_lag_of_the_hours_before(scene: Scene) -> None:
    """One record in ten minutes for five hours; a run read them up to the third hour, and then none."""
    topic, now_ms = scene.topic(1, 0), time.time_ns() // 1_000_000
    times = [now_ms - 5 * HOUR_MS + number * 10 * MINUTE_MS for number in range(30)]
    producer = Producer({"bootstrap.servers": scene.server.bootstrap})
    for at_ms in times:
        producer.produce(topic, b"x", partition=0, timestamp=at_ms)
    assert producer.flush(LIMIT_S) == 0
    moments = {number: times[number - 1] + 1 for number in (1, 4, 9, 12)}
    with using(SetClock(partial(moments.__getitem__, 1))):
        scene.group("shop", topic, [1], held=True)
    for end in (4, 9, 12):
        with using(SetClock(partial(moments.__getitem__, end))):
            scene.commit("shop", topic, [end])
    with Served(scene.store, scene.server.bootstrap) as server:
        wait_until(lambda: server.json("/api/health")["look"] > 1, "there were two looks", LIMIT_S)
        found = values(server.text("/groups/shop?lag=day"))
    hours = [now_ms // HOUR_MS * HOUR_MS - back * HOUR_MS for back in range(4, -1, -1)]
    hours = [hour for hour in hours if hour >= moments[1]]
    for hour in hours:
        written = sum(at_ms < hour for at_ms in times)
        read = max(end for end, at_ms in moments.items() if at_ms <= hour)
        [text] = [text for at_ms, text in found if at_ms == hour]
        assert f": {written - read} waiting" in text
    assert [at_ms for at_ms, _ in found][: len(hours)] == hours
    assert found[-1][1].startswith(time.strftime("%H:", time.gmtime(found[-1][0] / 1000)))
    assert ": 18 waiting" in found[-1][1]


def test_a_reset_a_new_partition_and_a_topic_made_again_are_taken_back() -> None:
    hour = NOW // HOUR_MS * HOUR_MS
    b = TopicPartition("orders", 1)
    entries = [
        Entry(5, "place", "p", hour - 1, "host:1", moves={b: Move(None, Position(7, "id"))}),
        Entry(4, "rewind", "r", hour - HOUR_MS - 1, "host:1", moves={A: Move(Position(90, "id"), Position(10, "id"))}),
        commit(3, hour - 2 * HOUR_MS - 1, 50, 90),
        Entry(2, "place", "q", hour - 3 * HOUR_MS - 1, "host:1", moves={A: Move(Position(5, "x"), Position(50, "id"))}),
        commit(1, hour - 4 * HOUR_MS - 1, 0, 5),
    ]
    stored = {A: Position(10, "id"), b: Position(7, "id")}
    found = past(stored, entries, {A: (0, 100), b: (0, 100)}, lambda times: dict.fromkeys(times, (95, 0)), NOW)
    waiting = [point.waiting for point in found]
    assert waiting == [95 - 50, 95 - 90, 95 - 10, 95 - 10 + 95 - 7]  # not before the topic was made again
    assert [other.at_ms - one.at_ms for one, other in pairwise(found)] == [HOUR_MS] * 3
    assert found[-1].at_ms == hour


def since(first: int, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
    """Return this as the first record since each time."""
    return dict.fromkeys(times, (first, 0))


def test_what_retention_hides_of_the_past_is_not_known() -> None:
    """The first record that is left is no sign of how many were there."""
    entries = [Entry(1, "acquire", "a", NOW - DAY_MS, "host:1")]
    for held, first, waiting in (
        ((49_000, 50_000), 49_000, None),
        ((49_000, 50_000), 49_500, 48_500),
        ((0, 50_000), 0, 0),
    ):
        found = past({A: Position(1000)}, entries, {A: held}, partial(since, first), NOW)
        assert {point.waiting for point in found} == {waiting}
    assert {point.waiting for point in past({A: Position(0)}, entries, {}, lambda _: {}, NOW)} == {None}


def test_a_commit_of_two_ranges_of_a_partition_is_taken_back_to_the_first() -> None:
    hour = NOW // HOUR_MS * HOUR_MS
    two = (OffsetRange(*A, 0, 10), OffsetRange(*A, 10, 20))
    entries = [Entry(2, "commit", "c", hour + 1, "host:1", ranges=two), Entry(1, "acquire", "a", hour - 1, "host:1")]
    [point] = past({A: Position(20)}, entries, {A: (0, 20)}, lambda _: {}, NOW)
    assert point.waiting == 20


def test_a_group_of_very_many_partitions_is_not_asked_about() -> None:
    stored = {TopicPartition("orders", number): Position(0) for number in range(1001)}
    entries = [Entry(1, "acquire", "a", NOW - DAY_MS, "host:1")]
    assert past(stored, entries, dict.fromkeys(stored, (0, 1)), lambda _: pytest.fail("it was asked"), NOW) == ()


def test_of_each_five_minutes_the_highest_point_is_kept_and_of_a_day_no_more() -> None:
    points: tuple[Point, ...] = ()
    start = NOW // 300_000 * 300_000
    for number in range(2 * DAY_MS // MINUTE_MS):
        points = (*kept(points, Point(start + number * MINUTE_MS, number % 5 if number % 10 else None)),)
    assert len(points) <= 289
    assert {point.waiting for point in points} == {4}
    assert points[-1].at_ms - points[0].at_ms <= DAY_MS
    assert [each.waiting for each in kept(points, Point(points[0].at_ms, 3))] == [4]  # a clock was set back
    assert kept((Point(0, 5),), Point(1000, None)) == (Point(0, 5),)


def test_the_time_of_a_batch_is_that_from_its_begin_to_its_commit() -> None:
    def of(version: int, event: str, at_s: int, token: str, sequence: int) -> Entry:
        return Entry(version, event, "c", 1000 * at_s, "h:1", token=token, sequence=sequence)

    entries = [
        of(1, "begin", 10, "t", 1),
        of(2, "mark", 12, "t", 1),
        of(3, "begin", 15, "t", 1),  # for an output that a redeploy has added
        of(4, "commit", 22, "t", 1),
        of(5, "commit", 30, "t", 2),  # in the store's own transaction: never begun
        of(6, "begin", 40, "u", 2),
        of(7, "abandon", 41, "u", 2),
        of(8, "begin", 60, "u", 3),
        of(9, "commit", 55, "u", 3),  # by a machine whose clock is late
    ]
    assert durations_s(entries[::-1]) == {4: 12.0}


def test_the_page_has_the_time_of_a_batch_beside_its_size() -> None:
    sample = group("shop", [3], commits=0)
    ranges = (OffsetRange(*A, 0, 300),)
    entries = [
        Entry(1, "begin", "b", NOW - 60_000, "host:1", token="t", sequence=1, ranges=ranges),
        Entry(2, "commit", "c", NOW - 15_000, "host:1", token="t", sequence=1, ranges=ranges),
    ]
    page = Pages("store", "kafka", every_s=5, changes=False).group(
        view(replace(sample, history=History(entries[::-1], (), (2, NOW)))), "shop", Choice()
    )
    assert '<td class="n" data-label="Offsets">300</td><td class="n" data-label="Took">45 s</td>' in page
    assert "commit, 300 offsets in 45 s, version 2" in page
