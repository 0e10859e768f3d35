"""Lag without the lies: no commit, compaction, retention, clocks that differ, topics made again."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.fake_cluster import Fake
from offsetkeeper.cli.limits import Limits
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.kafka.cluster import interpolate
from offsetkeeper.operate.lag import FirstUnread, Lag, Lags, aged, lag_within, measure, total
from offsetkeeper.operate.status import Status

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
NOW = 1_700_000_100_000


def lag(
    position: int | None,
    bounds: Bounds,
    *,
    next_ms: int | None = None,
    retention_ms: int | None = None,
    estimated: bool = False,
) -> Lag:
    positions = {} if position is None else {A: Position(position)}
    times = {} if next_ms is None else {A: next_ms}
    kept = {} if retention_ms is None else {A.topic: retention_ms}
    [found] = measure(positions, {A: bounds}, NOW, times, kept, {A} if estimated else ())
    return found


def test_a_partition_behind_has_the_age_of_its_first_unread_record() -> None:
    found = lag(5, Bounds(0, 20), next_ms=NOW - 30_000, retention_ms=120_000)
    assert (found.records, found.seconds, found.lost) == (15, 30.0, 0)
    assert (found.retention_used, found.seconds_left) == (0.25, 90.0)


def test_a_console_shows_each_lag_in_a_line() -> None:
    behind, lost = lag(5, Bounds(0, 20), next_ms=NOW - 30_000), lag(5, Bounds(8, 20))
    assert repr(behind) == "<a 0: position 5, end 20, 15 behind, age 30 s>"
    assert repr(lost) == "<a 0: position 5, end 20, 12 behind, age -, 3 lost, lost records>"
    assert repr(Lags([behind, lost])) == f"27 records behind\n  {behind!r}\n  {lost!r}"
    assert repr(lag(None, Bounds(0, 1))) == "<a 0: position -, end 1, - behind, age -, no commit>"


def test_a_partition_read_to_its_end_has_no_lag() -> None:
    """Nothing grows while nothing is produced."""
    found = lag(20, Bounds(0, 20), retention_ms=1000)
    assert (found.records, found.seconds, found.retention_used, found.seconds_left) == (0, 0.0, 0.0, None)


def test_no_commit_is_no_commit_and_not_minus_one() -> None:
    found = lag(None, Bounds(0, 20))
    assert (found.position, found.records, found.seconds, found.retention_used) == (None, None, None, None)


def test_a_timestamp_that_could_not_be_read_is_not_made_up() -> None:
    found = lag(5, Bounds(0, 20), retention_ms=1000)
    assert (found.records, found.seconds, found.seconds_left) == (15, None, None)


def test_what_retention_took_is_lost_and_no_lag() -> None:
    found = lag(5, Bounds(12, 20), next_ms=NOW - 1000)
    assert (found.records, found.lost) == (8, 7)


def test_a_position_past_the_end_is_no_negative_lag() -> None:
    found = lag(30, Bounds(0, 20))
    assert (found.records, found.lost, found.seconds) == (None, 0, None)


def test_a_clock_that_is_a_few_seconds_ahead_is_no_negative_lag() -> None:
    found = lag(5, Bounds(0, 20), next_ms=NOW + 5000)
    assert (found.seconds, found.ahead, found.remark) == (0.0, False, "")


def test_the_age_of_a_record_from_the_future_is_not_known() -> None:
    found = lag(5, Bounds(0, 20), next_ms=NOW + 60 * 86_400_000, retention_ms=1000)
    assert (found.seconds, found.retention_used, found.seconds_left) == (None, None, None)
    assert (found.ahead, found.remark) == (True, "the next record's time is in the future")


def test_how_long_a_transaction_is_open_is_not_known_by_a_time_in_the_future() -> None:
    [found] = measure({A: Position(5)}, {A: Bounds(0, 5, log_end=9)}, NOW, held_ms={A: NOW + 86_400_000})
    assert (found.held_back, found.held_back_s, found.ahead) == (4, None, False)


@pytest.mark.parametrize("ahead_s", [None, 86_400], ids=["no time", "the future"])
def test_a_partition_that_is_read_hides_no_age_that_is_not_known(ahead_s: int | None) -> None:
    times = {} if ahead_s is None else {A: NOW + 1000 * ahead_s}
    lags = measure({A: Position(5), B: Position(9)}, {A: Bounds(0, 20), B: Bounds(0, 9)}, NOW, times)
    found = total(lags, {})
    assert (found.seconds, found.undated, found.ahead) == (None, 1, int(ahead_s is not None))
    why = "" if ahead_s is None else ", as times are in the future"
    told = f"shop: the age of the oldest unread record is not known{why}; --max-age allows 5 min"
    assert [*Limits(max_age_s=300).problems("shop", Status.OK, found)] == [told]


def test_of_several_ages_the_known_ones_count_although_one_is_not_known() -> None:
    bounds = {A: Bounds(0, 20), B: Bounds(0, 10)}
    found = total(measure({A: Position(5), B: Position(9)}, bounds, NOW, {B: NOW - 200_000}), {})
    assert (found.seconds, found.undated) == (200.0, 1)
    older, younger = ([*Limits(max_age_s=most).problems("shop", Status.OK, found)] for most in (100, 300))
    assert "record is 3 min 20 s; --max-age" in older[0]
    assert "record is not known; --max-age" in younger[0]


def test_the_age_of_a_partition_without_a_commit_is_that_of_its_group_too() -> None:
    """Alarms and limits are by the group's numbers."""
    stored, bounds = {A: Position(20)}, {A: Bounds(0, 20), B: Bounds(4, 10)}
    found = total(measure(stored, bounds, NOW, {B: NOW - 90_000}, {B.topic: 100_000}), {})
    assert (found.records, found.seconds, found.retention_used, found.seconds_left) == (0, 90.0, 0.9, 10.0)
    assert [*Limits(max_age_s=100).problems("shop", Status.OK, found)] == []
    [told] = Limits(max_age_s=60).problems("shop", Status.OK, found)
    assert "record is 1 min 30 s" in told


def test_an_estimated_age_is_asked_for_again() -> None:
    """One that stays as it is hides a run that hangs."""
    lags = measure({A: Position(20)}, {A: Bounds(0, 20), B: Bounds(4, 10)}, NOW, {B: NOW - 30_000}, {}, {B})
    assert aged(lags, {}, NOW + 60_000, {}) is None
    known = {B: FirstUnread(4, None, NOW - 30_000)}
    [_, later] = aged(lags, known, NOW + 60_000, {}) or []
    assert later.seconds == 90.0


def test_records_in_a_partition_without_a_commit_are_within_no_limit() -> None:
    """A partition that was added, or a topic that the pattern finds since: no run has begun to read it."""
    stored, bounds = {A: Position(20)}, {A: Bounds(0, 20), B: Bounds(4, 10)}
    found = total(measure(stored, bounds, NOW), {})
    assert (found.records, found.seconds, found.without_commit) == (0, 0.0, 6)
    age = (
        "shop: the age of the oldest unread record is not known, as partitions without a commit have records; --max-age"
    )
    assert [*Limits(max_records=5, max_age_s=300).problems("shop", Status.OK, found)] == [
        "shop is 6 records behind, 6 of them in partitions without a commit; --max-lag allows 5",
        f"{age} allows 5 min",
    ]
    assert [*Limits(max_records=6).problems("shop", Status.OK, found)] == []
    empty = total(measure(stored, bounds | {B: Bounds(4, 4)}, NOW), {})
    assert [*Limits(max_records=0, max_age_s=0).problems("shop", Status.OK, empty)] == []


def test_a_topic_that_is_deleted_is_within_no_limit() -> None:
    """Nobody knows how much of it was unread. Without a ledger no command takes it out of the group."""
    found = total(measure({A: Position(5), B: Position(9)}, {A: Bounds(0, 9)}, NOW, {A: NOW - 1000}), {})
    gone = ", as 1 partition is not in Kafka any more: `offsetkeeper forget` takes out what is gone for good"
    assert [*Limits(max_records=5, max_age_s=300).problems("shop", Status.OK, found)] == [
        f"shop is at least 4 records behind{gone}; --max-lag allows 5",
        f"shop: the age of the oldest unread record is not known{gone}; --max-age allows 5 min",
    ]
    assert [*Limits(max_records=5, max_age_s=300).problems("shop", Status.OK, found, ledger=False)] == []


def test_what_retention_took_of_a_partition_that_was_added_is_lost() -> None:
    """No run has read any of it: nothing waits, and the group looked well."""
    found = total(measure({A: Position(20)}, {A: Bounds(0, 20), B: Bounds(70, 70)}, NOW, added={B}), {})
    assert (found.lost, found.without_commit) == (70, 0)
    assert total(measure({A: Position(20)}, {A: Bounds(0, 20), B: Bounds(70, 70)}, NOW), {}).lost == 0


ADDED = TopicPartition("a", 1)
GROUP = Snapshot("shop", version=9, positions={A: Position(20, "id")})


@pytest.mark.parametrize(
    ("group", "lost"),
    [
        (GROUP, 70),
        (replace(GROUP, version=0), 0),  # another program may leave it out on purpose
        (replace(GROUP, partly=("a",)), 0),  # and so may a run
        (replace(GROUP, forgotten={ADDED: Position(70)}), 0),  # it was read
        (replace(GROUP, missing=frozenset({ADDED})), 0),
        (replace(GROUP, positions={A: Position(20, "other")}), 0),  # of the topic that was made again nothing was read
        (replace(GROUP, positions={B: Position(20)}), 0),  # a topic that the group does not read
    ],
    ids=["added", "no ledger", "chosen", "forgotten", "missing", "recreated", "other topic"],
)
def test_a_partition_counts_as_added_where_a_start_reads_it_for_the_first_time(group: Snapshot, lost: int) -> None:
    cluster: Any = Fake()
    bounds = {A: Bounds(20, 20, "id"), ADDED: Bounds(70, 70, "id"), B: Bounds(0, 20)}
    assert total(lag_within(group, cluster, bounds, {}), {}).lost == lost


def test_an_overdue_record_has_used_all_of_its_time() -> None:
    """Kafka deletes whole segments, so records outlive their retention."""
    found = lag(5, Bounds(0, 20), next_ms=NOW - 5000, retention_ms=1000)
    assert (found.retention_used, found.seconds_left) == (1.0, 0.0)


def test_records_kept_for_ever_are_never_about_to_go() -> None:
    found = lag(5, Bounds(0, 20), next_ms=NOW - 5000)
    assert (found.retention_used, found.seconds_left) == (None, None)


def test_every_partition_that_kafka_has_or_that_has_a_position_has_its_lag_sorted() -> None:
    stored = {A: Position(1), TopicPartition("gone", 0): Position(3)}
    found = measure(stored, {B: Bounds(0, 1), A: Bounds(0, 2)}, NOW)
    assert [each.topic_partition.topic for each in found] == ["a", "b", "gone"]
    assert found[2].as_dict() == {
        **dict.fromkeys(found[2].as_dict()),
        "topic": "gone",
        "partition": 0,
        "position": 3,
    } | {
        "lost": 0,
        "estimated": False,
        "remark": "gone",
        "held_back": 0,
        "unchecked": False,
        "ahead": False,
    }
    assert found[0].as_dict() == {
        "topic": "a",
        "partition": 0,
        "position": 1,
        "beginning": 0,
        "end": 2,
        "records": 1,
        "lost": 0,
        "seconds": None,
        "estimated": False,
        "retention_used": None,
        "seconds_left": None,
        "remark": "",
        "held_back": 0,
        "unchecked": False,
        "ahead": False,
        "held_back_s": None,
    }


def test_a_time_that_no_clock_has_told_is_no_age_of_54_years() -> None:
    """Clients that know no time write 0 or -1."""
    for next_ms in (0, -1):
        assert lag(5, Bounds(0, 20), next_ms=next_ms, retention_ms=1000).seconds is None


def test_an_age_is_not_capped_by_how_long_somebody_has_been_looking() -> None:
    assert lag(5, Bounds(0, 20), next_ms=NOW - 3 * 86_400_000).seconds == 3 * 86_400


def test_an_estimate_is_marked_as_one() -> None:
    assert lag(5, Bounds(0, 20), next_ms=NOW - 1000, estimated=True).as_dict()["estimated"] is True
    assert not lag(5, Bounds(0, 20), next_ms=NOW - 1000).estimated
    assert not lag(20, Bounds(0, 20), estimated=True).estimated


def test_all_of_a_topic_that_was_made_again_is_unread_whatever_its_end() -> None:
    """By its offset alone the position looks healthy, or past the end."""
    for offset in (5, 50):
        [found] = measure({A: Position(offset, "old")}, {A: Bounds(2, 20, "new")}, NOW, {A: NOW - 1000})
        assert (found.records, found.lost, found.seconds, found.remark) == (18, 0, 1.0, "recreated")
    [found] = measure({A: Position(5, "same", "A")}, {A: Bounds(2, 20, "same", cluster_id="B")}, NOW)
    assert (found.records, found.remark) == (18, "another cluster")
    [found] = measure({A: Position(5, "same")}, {A: Bounds(2, 20, "same")}, NOW)
    assert (found.records, found.remark) == (15, "")
    [found] = measure({A: Position(5)}, {A: Bounds(2, 20, "new")}, NOW)
    assert (found.records, found.remark) == (15, "")


@pytest.mark.parametrize(
    ("position", "remark"), [(None, "no commit"), (21, "beyond the end"), (20, ""), (10, ""), (9, "lost records")]
)
def test_what_is_odd_about_a_position_is_said(position: int | None, remark: str) -> None:
    """A lag of 0 or more hides a position past the end, and records that were lost."""
    assert lag(position, Bounds(10, 20)).remark == remark


POINTS = [(10, 1000), (20, 2000), (30, 2000)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(10, 1000), (15, 1500), (11, 1100), (20, 2000), (25, 2000), (30, 2000), (9, None), (31, None)],
)
def test_a_time_is_interpolated_between_records_and_never_extrapolated(offset: int, expected: int | None) -> None:
    """Extrapolation makes 3 years of 45 minutes."""
    assert interpolate(POINTS, offset) == expected
    assert interpolate([], offset) is None


offsets = st.integers(0, 2**63 - 1)
times = st.none() | st.integers(0, 2**45)


@given(st.none() | offsets, offsets, offsets, times, times)
@pytest.mark.filterwarnings("error")
def test_no_number_is_negative_infinite_or_none_at_all(
    position: int | None, one: int, other: int, next_ms: int | None, retention_ms: int | None
) -> None:
    found = lag(position, Bounds(min(one, other), max(one, other)), next_ms=next_ms, retention_ms=retention_ms)
    for number in (found.records, found.lost, found.seconds, found.retention_used, found.seconds_left):
        assert number is None or (number >= 0 and math.isfinite(number))
    assert found.retention_used is None or found.retention_used <= 1


def test_a_partition_with_a_new_leader_says_that_nobody_has_checked_its_log() -> None:
    stored, found = {A: Position(5, "id", leader_epoch=3)}, Bounds(0, 20, "id", leader_epoch=4)
    [lag_] = measure(stored, {A: found}, NOW)
    assert (lag_.remark, lag_.records, lag_.as_dict()["unchecked"]) == ("leader changed, not checked", 15, True)
    [same] = measure(stored, {A: found._replace(leader_epoch=3)}, NOW)
    assert (same.remark, same.unchecked) == ("", False)
