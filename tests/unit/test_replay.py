"""What a replay would read: cut to what Kafka holds, and refused where it would read something else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused
from offsetkeeper.operate.replay import _between
from offsetkeeper.operate.replay_plan import make_replay, record_fields

A = TopicPartition("a", 0)
FOUND = {A: Bounds(10, 100, "id")}


def a(start: int, end: int) -> OffsetRange:
    return OffsetRange(*A, start, end)


@pytest.mark.parametrize(
    ("wanted", "left", "lost"),
    [
        (a(10, 100), a(10, 100), 0),
        (a(50, 60), a(50, 60), 0),
        (a(5, 20), a(10, 20), 5),
        (a(2, 10), a(10, 10), 8),
        (a(2, 7), a(7, 7), 5),
    ],
)
def test_what_is_lost_to_retention_is_counted_and_the_rest_is_read(
    wanted: OffsetRange, left: OffsetRange, lost: int
) -> None:
    made = make_replay("g", [wanted], {}, FOUND)
    [stretch] = made.stretches
    assert (stretch.wanted, stretch.left, stretch.lost, made.lost) == (wanted, left, lost, lost)
    assert made.ranges == ((left,) if left.size else ())
    assert made.size == left.size
    assert made.as_dict()["stretches"][0]["wanted"] == [wanted.start, wanted.end]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ([a(50, 101)], "offsets up to 101 are requested, but the partition ends at 100"),
        ([OffsetRange("b", 0, 0, 1)], "b 0 does not exist"),
        ([a(50, 50)], "the requested ranges are empty"),
        ([a(60, 50)], "the requested ranges are empty"),
        ([], "the requested ranges are empty"),
    ],
)
def test_what_is_not_there_is_refused(wanted: list[OffsetRange], told: str) -> None:
    with pytest.raises(Refused, match=told):
        make_replay("g", wanted, {}, FOUND)


def test_offsets_of_a_topic_that_was_made_again_are_refused() -> None:
    assert make_replay("g", [a(50, 60)], {A: Position(60, "id")}, FOUND).size == 10
    assert make_replay("g", [a(50, 60)], {A: Position(60)}, FOUND).size == 10
    with pytest.raises(Refused, match="created again since"):
        make_replay("g", [a(50, 60)], {A: Position(60, "old")}, FOUND)


def test_a_record_is_told_without_loss() -> None:
    row: dict[str, Any] = {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC),
        "key": None,
        "value": "tea \u2615".encode(),
        "headers": [{"key": "h", "value": b"\xff\x00"}],
    }
    assert record_fields(row) == {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": "2026-01-31T12:00:00.250+00:00",
        "key": None,
        "value": "tea \u2615",
        "headers": [["h", {"base64": "/wA="}]],
    }
    assert record_fields({**row, "headers": None, "value": b"", "timestamp": None}) == {
        "topic": "a",
        "partition": 0,
        "offset": 7,
        "timestamp": None,
        "key": None,
        "value": "",
        "headers": [],
    }


def test_a_record_of_a_time_that_python_does_not_know_is_left_out() -> None:
    """A producer gave microseconds as milliseconds: the year 55840."""
    start, end = (datetime(2026, 1, 31, hour, tzinfo=UTC) for hour in (12, 13))
    times = [start, end - timedelta(microseconds=1), end, None]
    at = [int(each.timestamp() * 1_000_000) if each else None for each in times]
    column = pa.array([*at, 1_700_000_000_000_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"offset": [*range(5)], "timestamp": column})
    replay = replace(make_replay("g", [a(50, 60)], {}, FOUND), since=start, before=end)
    assert [row["offset"] for row in _between(replay, batch).to_pylist()] == [0, 1]
    assert _between(replace(replay, since=None, before=None), batch) is batch
