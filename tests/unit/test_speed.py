"""Speeds and the time to catch up: from two samples, from history, and where neither tells."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.operate.lag import Lag, Sample, Speed, measure, speeds, total

A, B, C, D = (TopicPartition(*each) for each in (("a", 0), ("a", 1), ("b", 0), ("c", 0)))
NOW = 1_700_000_100_000


def sample(*offsets: tuple[int | None, int], at_ms: int = NOW, age_s: int = 10) -> Sample:
    """Return a sample of partitions A, B, … whose position and end these are."""
    pairs = dict(zip((A, B, C), offsets, strict=False))
    bounds = {tp: Bounds(0, end) for tp, (_, end) in pairs.items()}
    positions = {tp: Position(at) for tp, (at, _) in pairs.items() if at is not None}
    return Sample(at_ms, measure(positions, bounds, NOW, dict.fromkeys(pairs, NOW - age_s * 1000)))


def commit(ago_s: int, *ranges: OffsetRange) -> Entry:
    return Entry(1, "commit", "id", NOW - ago_s * 1000, "me", ranges=ranges)


def a(start: int, end: int) -> OffsetRange:
    return OffsetRange(*A, start, end)


def test_two_looks_tell_both_speeds() -> None:
    found = speeds(sample((300, 400)), [], sample((100, 350), at_ms=NOW - 10_000))
    assert found == {A: Speed(20.0, 5.0)}
    assert found[A].catch_up_s(100) == pytest.approx(100 / 15)


def test_a_reset_or_a_topic_made_again_between_two_looks_is_no_negative_speed() -> None:
    assert speeds(sample((50, 400)), [], sample((100, 350), at_ms=NOW - 10_000))[A].processed is None
    assert speeds(sample((50, 40)), [], sample((10, 350), at_ms=NOW - 10_000))[A].produced is None
    assert speeds(sample((None, 40)), [], sample((10, 30), at_ms=NOW - 10_000))[A] == Speed(None, 1.0)


def test_two_looks_at_one_moment_tell_nothing() -> None:
    assert speeds(sample((300, 400)), [], sample((100, 350), at_ms=NOW)) == {A: Speed(None, 10.0)}


def test_one_look_tells_the_speed_of_the_run_under_way_since_its_first_commit() -> None:
    entries = [commit(2, a(200, 300)), commit(6, a(100, 200)), commit(20, a(0, 100))]
    [speed] = speeds(sample((300, 500)), entries).values()
    assert speed == Speed(10.0, 20.0)


def test_a_run_that_has_ended_or_only_begun_has_no_speed() -> None:
    commits = [commit(2, a(200, 300)), commit(6, a(100, 200))]
    for event in ("release", "acquire", "rewind"):
        assert speeds(sample((300, 500)), [Entry(3, event, "id", NOW, "me"), *commits])[A].processed is None
    assert speeds(sample((300, 500)), commits[:1])[A].processed is None
    assert (
        speeds(sample((300, 500)), [commits[0], Entry(3, "acquire", "id", NOW, "me"), commits[1]])[A].processed is None
    )


def test_a_run_that_fell_silent_gets_slower_and_never_catches_up() -> None:
    entries = [commit(990, a(100, 300)), commit(1000, a(0, 100))]
    [speed] = speeds(sample((300, 500)), entries).values()
    assert speed.processed == 0.2
    assert speed.catch_up_s(200) is None


def test_where_all_is_read_the_group_keeps_up_with_what_comes() -> None:
    """Else its speed would count as spare, and another partition be caught up too soon."""
    entries = [commit(2, a(200, 300), OffsetRange(*B, 0, 100)), commit(10, a(0, 200))]
    found = speeds(sample((300, 300), (100, 150)), entries)
    assert found == {A: Speed(10.0, 10.0), B: Speed(10.0, 5.0)}
    assert total(sample((300, 300), (100, 150)).lags, found).speed == Speed(20.0, 15.0)


@pytest.mark.parametrize(
    ("speed", "records", "expected"),
    [
        (Speed(20, 10), 100, 10.0),
        (Speed(20, 10), 0, 0.0),
        (Speed(), 0, 0.0),
        (Speed(20, 10), None, None),
        (Speed(10, 10), 100, None),
        (Speed(5, 10), 100, None),
        (Speed(None, 10), 100, None),
        (Speed(10, None), 100, None),
        (Speed(1.000001, 1), 100_000, None),
    ],
)
def test_the_time_to_catch_up_is_told_only_where_it_ends(
    speed: Speed, records: int | None, expected: float | None
) -> None:
    """Not negative, not infinite, and not 54 years."""
    assert speed.catch_up_s(records) == expected


def test_partitions_without_a_commit_count_in_no_sum() -> None:
    """Some exporters add -1 for each of them, others take them to be at offset 0."""
    found = total(sample((5, 20), (None, 1000), (7, 10)).lags, {A: Speed(4, 1), B: Speed(9, 9)})
    assert (found.partitions, found.uncommitted, found.records, found.speed) == (3, 1, 18, Speed(4, 1))


def test_partitions_that_are_gone_count_in_no_sum() -> None:
    found = total(measure({A: Position(2), B: Position(7)}, {A: Bounds(0, 9)}, NOW), {A: Speed(4, 1)})
    assert (found.partitions, found.uncommitted, found.gone, found.records, found.waiting) == (2, 0, 1, 7, 7)
    gone = total(measure({B: Position(7)}, {}, NOW), {})
    assert (gone.gone, gone.records, gone.waiting, total([], {}).waiting) == (1, 0, None, 0)
    assert (gone.as_dict()["records"], gone.as_dict()["catch_up_s"]) == (None, None)


def test_the_sum_has_the_oldest_age_and_the_nearest_loss() -> None:
    bounds = {A: Bounds(3, 9), C: Bounds(0, 9), D: Bounds(0, 9)}
    times_ms, kept = {A: NOW - 1000, C: NOW - 3000}, {A.topic: 4000, C.topic: 20_000}
    found = total(measure(dict.fromkeys(bounds, Position(2)), bounds, NOW, times_ms, kept, {C}), {})
    assert (found.records, found.lost, found.seconds, found.estimated) == (20, 1, 3.0, True)
    assert (found.retention_used, found.seconds_left) == (0.25, 3.0)
    assert total([], {}).as_dict() == {
        "partitions": 0,
        "uncommitted": 0,
        "gone": 0,
        "beyond": 0,
        "records": 0,
        "lost": 0,
        "seconds": None,
        "undated": 0,
        "ahead": 0,
        "estimated": False,
        "retention_used": None,
        "seconds_left": None,
        "processed_per_s": None,
        "produced_per_s": None,
        "catch_up_s": 0.0,
        "held_back": 0,
        "held_back_s": None,
        "without_commit": 0,
        "undated_new": 0,
    }


offsets = st.integers(0, 2**63 - 1)
samples = st.tuples(st.none() | offsets, offsets)


@given(samples, samples, st.integers(-5000, 5000), st.integers(-5000, 5000))
@pytest.mark.filterwarnings("error")
def test_no_speed_is_negative_infinite_or_none_at_all(
    one: tuple[int | None, int], other: tuple[int | None, int], apart_ms: int, ago_ms: int
) -> None:
    entries = [
        Entry(2, "commit", "id", NOW - ago_ms, "me", ranges=(a(0, 7),)),
        Entry(1, "commit", "id", NOW, "me", ranges=(a(0, 7),)),
    ]
    for before in (None, sample(one, at_ms=NOW - apart_ms)):
        found = speeds(sample(other), entries, before)
        every: list[Lag] = [*sample(other).lags]
        for speed in (*found.values(), total(every, found).speed):
            for number in (*speed, speed.catch_up_s(every[0].records)):
                assert number is None or (number >= 0 and math.isfinite(number))
