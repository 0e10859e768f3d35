"""Where a position stands against what Kafka holds: one table, and against a set of the offsets that can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds, Standing, standing_of
from offsetkeeper.core.identity import is_recreated
from offsetkeeper.core.model import Position


@pytest.mark.parametrize(
    ("position", "bounds", "expected"),
    [
        (Position(9), Bounds(10, 20), Standing.BELOW_BEGINNING),
        (Position(10), Bounds(10, 20), Standing.WITHIN),
        (Position(15), Bounds(10, 20), Standing.WITHIN),
        (Position(20), Bounds(10, 20), Standing.WITHIN),
        (Position(21), Bounds(10, 20), Standing.BEYOND_END),
        (Position(0), Bounds(0, 0), Standing.WITHIN),
        (Position(1), Bounds(0, 0), Standing.BEYOND_END),
        (Position(15, "old"), Bounds(10, 20, "new"), Standing.RECREATED),
        (Position(9, "old"), Bounds(10, 20, "new"), Standing.RECREATED),
        (Position(21, "old"), Bounds(10, 20, "new"), Standing.RECREATED),
        (Position(15, "same"), Bounds(10, 20, "same"), Standing.WITHIN),
        (Position(15, "old"), Bounds(10, 20), Standing.WITHIN),
        (Position(15), Bounds(10, 20, "new"), Standing.WITHIN),
        (Position(9), Bounds(10, 8), Standing.BELOW_BEGINNING),
        (Position(15, "old"), None, Standing.GONE),
        (None, None, Standing.GONE),
        (None, Bounds(10, 20, "new"), Standing.UNKNOWN),
    ],
)
def test_a_position_stands_in_one_place(position: Position | None, bounds: Bounds | None, expected: Standing) -> None:
    assert standing_of(position, bounds) is expected


ids = st.none() | st.sampled_from(["one", "other"])
offsets = st.integers(0, 30)


@given(offsets, offsets, offsets, ids, ids)
def test_it_is_within_where_every_offset_up_to_the_end_can_be_read(
    at: int, one: int, other: int, known: str | None, now: str | None
) -> None:
    beginning, end = sorted((one, other))
    found = standing_of(Position(at, known), Bounds(beginning, end, now))
    assert (found is Standing.RECREATED) is is_recreated(known, now) is is_recreated(now, known)
    if found is not Standing.RECREATED:
        readable = set(range(at, end)) <= set(range(beginning, end))
        assert (found is Standing.WITHIN) is (readable and at <= end)
        assert (found is Standing.BELOW_BEGINNING) is (at < beginning)


@given(ids, ids)
def test_only_two_ids_that_differ_tell_of_another_topic(known: str | None, now: str | None) -> None:
    assert is_recreated(known, now) is ({known, now} == {"one", "other"})
