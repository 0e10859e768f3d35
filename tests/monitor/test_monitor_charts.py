"""What the pictures are made of, and the words beside them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from offsetkeeper import TopicPartition
from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.monitor import cells, charts, formatting
from offsetkeeper.monitor.view import anchored
from offsetkeeper.operate.lag import Lag, Sample
from offsetkeeper.operate.status import Point

A = TopicPartition("orders", 0)


def points(*waiting: int | None) -> list[Point]:
    """Polls a second apart."""
    return [Point(1000 * index, value) for index, value in enumerate(waiting)]


def entry(version: int, at_ms: int, event: str = "commit", size: int = 10) -> Entry:
    """A line of the history."""
    ranges = (OffsetRange("orders", 0, 0, size),) if event in {"begin", "commit"} else ()
    return Entry(version, event, str(version), at_ms, "host:1", ranges=ranges)


def lag(
    partition: int, records: int | None, seconds: float | None = 1.0, used: float | None = None, **more: Any
) -> Lag:
    """Of one partition."""
    found = Lag(TopicPartition("orders", partition), 0, 0, 100, records, 0, seconds, used)
    return replace(found, **more)


def shades(*lags: Lag, by: str = "age") -> list[str]:
    """Those of the cells of the only topic."""
    [strip] = cells.strips(lags, by)
    return [cell.shade for cell in strip.cells]


def numbers(path: str) -> list[float]:
    """The numbers of an SVG path."""
    return [float(each) for each in re.findall(r"[\d.]+", path)]


def test_a_curve_goes_from_edge_to_edge_and_stays_in_its_box() -> None:
    found = charts.curve(points(0, 50, 100))
    assert found is not None
    assert (found.top, found.first_ms, found.last_ms) == (100, 0, 2000)
    assert numbers(found.lines) == [4, 199, 500, 100, 996, 1]


def test_a_poll_without_an_answer_leaves_a_gap() -> None:
    found = charts.curve(points(5, 5, None, 5, 5))
    assert found is not None
    assert found.lines.count("M") == 2
    assert not set("nan") & set(found.lines.lower())


def test_no_curve_before_there_are_two_polls() -> None:
    assert charts.curve(points(5)) is None
    assert charts.curve(points(5, None, None)) is None


def test_many_points_are_thinned_and_their_peak_stays() -> None:
    many = [Point(1000 * index, 900 if index == 777 else 1) for index in range(2000)]
    found = charts.curve(many)
    assert found is not None
    assert len(numbers(found.lines)) <= 2 * 400
    assert min(numbers(found.lines)[1::2]) < 25


def test_batches_stand_where_they_were_and_as_high_as_they_were_large() -> None:
    history = [entry(3, 3000, "rewind"), entry(2, 2000, size=20), entry(1, 1000, size=10)]
    found = charts.time_line(history, 3000)
    assert found is not None
    assert [(mark.kind, mark.x, mark.height) for mark in found.marks] == [
        ("commit", 4, 100),
        ("commit", 500, 200),
        ("rewind", 996, 200),
    ]
    assert found.top == 20
    assert found.values[1].text == "1970-01-01 00:00:02: commit, 20 offsets, version 2"
    assert found.values[1][:3] == (2000, 500, (0,))


def test_batches_of_long_ago_stand_far_from_now() -> None:
    found = charts.time_line([entry(2, 2000), entry(1, 1000)], 11_000)
    assert found is not None
    assert (found.first_ms, found.last_ms) == (1000, 11_000)
    assert [mark.x for mark in found.marks] == [4, pytest.approx(4 + 99.2)]
    ahead = charts.time_line([entry(2, 2000), entry(1, 1000)], 500)  # of a clock that is ahead
    assert ahead is not None
    assert ahead.last_ms == 2000


def test_the_age_of_the_oldest_is_a_second_line_with_a_scale_of_its_own() -> None:
    found = charts.curve([Point(0, 50, 30.0), Point(1000, 100, 60.0), Point(2000, 0, 0.0)])
    assert found is not None
    assert numbers(found.ages) == [4, 100, 500, 1, 996, 199]
    assert (found.top, found.top_s) == (100, 60)
    assert [value.text for value in found.values] == [
        "00:00:00: 50 waiting, oldest 30 s",
        "00:00:01: 100 waiting, oldest 1 min",
        "00:00:02: 0 waiting",
    ]
    assert found.values[1] == (1000, 500, (1, 1), "00:00:01: 100 waiting, oldest 1 min")


def test_what_is_not_known_at_a_moment_is_said_and_not_drawn() -> None:
    found = charts.curve([Point(0, 5), Point(1000, None), Point(2000, 5)])
    assert found is not None
    assert found.ages == ""
    assert [value.text for value in found.values] == [
        "00:00:00: 5 waiting, age not known",
        "00:00:01: not known",
        "00:00:02: 5 waiting, age not known",
    ]
    assert [len(value.heights) for value in found.values] == [1, 0, 1]


@pytest.mark.parametrize(
    ("seconds", "top_s"), [(0, 2), (11, 20), (61, 120), (3600, 3600), (86_401, 172_800), (86_400 * 11, 86_400 * 20)]
)
def test_the_upper_edge_of_ages_is_a_round_time(seconds: float, top_s: int) -> None:
    assert charts.nice_span(seconds) == top_s


def test_what_a_batch_begins_with_is_not_drawn_twice() -> None:
    found = charts.time_line([entry(2, 2000), entry(1, 1000, "begin")], 2000)
    assert found is not None
    assert [mark.kind for mark in found.marks] == ["commit"]


def test_no_time_line_without_a_history() -> None:
    assert charts.time_line([], 0) is None


def test_partitions_are_shaded_by_the_age_of_what_waits() -> None:
    ages = (1, 60, 599, 600, 3600, 86_400)
    found = shades(lag(0, 0, 0.0), *(lag(number, 1, age) for number, age in enumerate(ages, 1)))
    assert found == ["0", "1", "2", "2", "3", "4", "5"]
    assert shades(lag(0, 9, None)) == ["unknown"]


def test_partitions_are_shaded_by_the_share_of_retention() -> None:
    used = (0.0, 0.1, 0.3, 0.5, 0.9, None)
    found = shades(*(lag(number, 1, 5.0, share) for number, share in enumerate(used)), by="retention")
    assert found == ["1", "2", "3", "4", "5", "unknown"]


def test_what_is_wrong_with_a_position_is_marked_however_it_is_shaded() -> None:
    odd = [lag(number, None, standing=each) for number, each in enumerate(Standing) if each is not Standing.WITHIN]
    marks = ["lost", "beyond", "elsewhere", "recreated", "gone", "none"]
    assert shades(*odd) == shades(*odd, by="retention") == ["lost", *marks]
    assert [mark for mark, _ in cells.marks(cells.strips(odd, "age"))] == marks


def test_of_more_partitions_than_can_be_seen_the_worst_are_shown() -> None:
    many = [lag(number, 1, float(number)) for number in range(1500)]
    many[3] = lag(3, None, None, standing=Standing.BEYOND_END)
    [strip] = cells.strips(many, "age")
    assert (len(strip.cells), strip.every) == (1000, 1500)
    assert [cell.partition for cell in strip.cells[:3]] == [3, 501, 502]


def test_of_many_topics_those_with_the_worst_partitions_are_shown() -> None:
    few, old, wrong = (TopicPartition(name, 0) for name in ("few", "old", "wrong"))
    lags = [lag(0, 9, age, topic_partition=tp) for tp, age in ((few, 1.0), (old, 99.0))]
    lags.append(lag(0, None, None, topic_partition=wrong, standing=Standing.RECREATED))
    assert [strip.topic for strip in cells.strips(lags, "age", 2)] == ["old", "wrong"]
    assert [strip.topic for strip in cells.strips(lags, "age")] == ["few", "old", "wrong"]


def test_a_cell_says_what_its_shade_means() -> None:
    [strip] = cells.strips([lag(7, 1200, 90.0, 0.25, estimated=True)], "age")
    assert strip.cells[0].text == "orders 7: 1,200 waiting, ~ 1 min 30 s, 25 % of retention"


@pytest.mark.parametrize(("value", "top"), [(0, 2), (1, 2), (3, 4), (10, 10), (11, 20), (41, 100), (6183, 10_000)])
def test_the_upper_edge_is_a_round_number(value: int, top: int) -> None:
    assert charts.nice(value) == top


def test_speed_is_measured_over_one_to_two_minutes() -> None:
    anchors: tuple[Sample, ...] = ()
    for at_s in range(0, 241, 5):
        anchors = anchored(anchors, Sample(at_s * 1000, []))
        assert len(anchors) <= 2
        if at_s > 120:
            assert 60 <= at_s - anchors[0].at_ms / 1000 <= 125


def test_a_time_span_that_is_not_known_is_a_dash() -> None:
    assert (formatting.span(None), formatting.span(3725)) == (formatting.UNKNOWN, "1 h 2 min")


def test_numbers_are_told_with_their_thousands_apart() -> None:
    told = [formatting.number(each) for each in (None, 0, 0.04, 9.96, 10.4, 1234567)]
    assert told == [formatting.UNKNOWN, "0", "<0.1", "10.0", "10", "1,234,567"]
    assert [formatting.share(each) for each in (None, 0.0, 0.001, 0.5, 1.0)] == [
        formatting.UNKNOWN,
        "0 %",
        "<1 %",
        "50 %",
        "100 %",
    ]


def test_never_now_and_unknown_are_told_apart() -> None:
    told = [formatting.catch_up(each) for each in (None, 0.0, 90.0, math.inf)]
    assert told == [formatting.UNKNOWN, "now", "1 min 30 s", "never"]
    assert [formatting.told(each) for each in told] == ["unknown", "now", "1 min 30 s", "never"]
    assert [formatting.ago(None, 0), formatting.ago(None, 0, never=True)] == [formatting.UNKNOWN, "never"]
