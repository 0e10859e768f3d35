"""What the pictures are made of, and the words beside them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from offsetkeeper import TopicPartition
from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.model import Entry, OffsetRange, Snapshot
from offsetkeeper.monitor import charts, formatting
from offsetkeeper.monitor.history import History
from offsetkeeper.monitor.view import GroupSample, anchored
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
    found = charts.time_line(history, 3000)
    assert found is not None
    assert [(mark.kind, mark.x, mark.height) for mark in found.marks] == [
        ("commit", 4, 100),
        ("commit", 500, 200),
        ("rewind", 996, 200),
    ]
    assert found.top == 20
    assert "20 offsets, version 2" in found.marks[1].text


def test_what_a_batch_begins_with_is_not_drawn_twice() -> None:
    found = charts.time_line([entry(2, 2000), entry(1, 1000, "begin")], 2000)
    assert found is not None
    assert [mark.kind for mark in found.marks] == ["commit"]


def test_no_time_line_without_a_history() -> None:
    assert charts.time_line([], 1000) is None


def test_the_time_line_ends_now() -> None:
    """A group that has been silent for long shows it."""
    found = charts.time_line([entry(2, 2000), entry(1, 1000)], 11_000)
    assert found is not None
    assert [round(mark.x) for mark in found.marks] == [4, 103]
    assert found.last_ms == 11_000


def test_partitions_are_shaded_by_what_waits_where_no_age_is_known() -> None:
    lags = [lag(0, 0), lag(1, 1), lag(2, 50), lag(3, 100), lag(4, None), lag(5, 100, lost=1)]
    row = charts.cells([replace(each, seconds=None) for each in lags])["orders"]
    assert [cell.shade for cell in row] == ["0", "1", "4", "5", "none", "lost"]


def test_partitions_are_shaded_by_age_and_by_retention_where_it_is_known() -> None:
    """One old record is worse than many new ones."""
    old, new = replace(lag(0, 1), seconds=3600.0), replace(lag(1, 1000), seconds=36.0)
    assert [cell.shade for cell in charts.cells([old, new])["orders"]] == ["5", "1"]
    near, far = replace(lag(0, 10), retention_used=0.9), replace(lag(1, 10), retention_used=0.1)
    assert [cell.shade for cell in charts.cells([far, near, lag(2, 0)])["orders"]] == ["2", "5", "0"]


def test_positions_past_the_end_and_of_a_topic_that_was_made_again_are_marked() -> None:
    wrong = [replace(lag(0, 0), standing=Standing.BEYOND_END), replace(lag(1, 5), standing=Standing.RECREATED)]
    assert [cell.shade for cell in charts.cells(wrong)["orders"]] == ["wrong", "wrong"]


def test_the_age_of_the_oldest_record_is_a_line_of_its_own_and_each_part_says_its_values() -> None:
    polls = [Point(1000 * index, 10, float(index)) for index in range(3)]
    found = charts.curve([*polls, Point(3000, None)])
    assert found is not None
    assert (found.top_s, numbers(found.ages)[1::2]) == (2.0, [199, 100, 1])
    assert [part.text for part in found.slices] == [
        "00:00:00: 10 waiting, oldest unread 0 s",
        "00:00:01: 10 waiting, oldest unread 1 s",
        "00:00:02: 10 waiting, oldest unread 2 s",
        "00:00:03: Kafka could not be asked",
    ]
    assert sum(part.width for part in found.slices) == pytest.approx(1000)
    assert len(charts.curve([Point(n, 1, 1.0) for n in range(700)]).slices) == 120  # type: ignore[union-attr]
    assert charts.curve(points(1, 1)).ages == ""  # type: ignore[union-attr]


def test_never_and_unknown_are_told_apart() -> None:
    assert [formatting.ago(None, 0), formatting.ago(None, 0, never=True)] == ["\N{EN DASH}", "never"]
    began = GroupSample(0, Snapshot("g"), History((entry(1, 0, "acquire"),)))
    cut = GroupSample(0, Snapshot("g"), History((entry(1001, 0, "acquire"),)))
    assert [began.never_committed, cut.never_committed, GroupSample(0, Snapshot("g")).never_committed] == [
        True,
        False,
        False,
    ]


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
