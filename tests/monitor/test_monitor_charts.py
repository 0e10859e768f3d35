"""What the pictures are made of, and the words beside them."""

from __future__ import annotations

import re

import pytest

from offsetkeeper import TopicPartition
from offsetkeeper.core.model import Entry, OffsetRange
from offsetkeeper.monitor import charts, formatting
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


def lag(partition: int, records: int | None, lost: int = 0) -> Lag:
    """Of one partition."""
    return Lag(TopicPartition("orders", partition), 0, 0, 100, records, lost, 1.0, None)


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
    found = charts.time_line(history)
    assert found is not None
    assert [(mark.kind, mark.x, mark.height) for mark in found.marks] == [
        ("commit", 4, 100),
        ("commit", 500, 200),
        ("rewind", 996, 200),
    ]
    assert found.top == 20
    assert "20 offsets, version 2" in found.marks[1].text


def test_what_a_batch_begins_with_is_not_drawn_twice() -> None:
    found = charts.time_line([entry(2, 2000), entry(1, 1000, "begin")])
    assert found is not None
    assert [mark.kind for mark in found.marks] == ["commit"]


def test_no_time_line_without_a_history() -> None:
    assert charts.time_line([]) is None


def test_partitions_are_shaded_by_what_waits() -> None:
    row = charts.cells([lag(0, 0), lag(1, 1), lag(2, 50), lag(3, 100), lag(4, None), lag(5, 100, lost=1)])["orders"]
    assert [cell.shade for cell in row] == ["0", "1", "4", "5", "none", "lost"]


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
