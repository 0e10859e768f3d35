"""Where a position stands against what Kafka holds: one table, and against a set of the offsets that can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds, Standing, cut_text, led_anew, standing_of
from offsetkeeper.core.identity import is_recreated
from offsetkeeper.core.offsets import Position, TopicPartition


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


@pytest.mark.parametrize(
    ("at", "common", "expected"),
    [
        (15, 15, Standing.WITHIN),
        (15, 14, Standing.CUT),
        (25, 14, Standing.CUT),
        (25, None, Standing.BEYOND_END),
        (15, -1, Standing.CUT),
        (10, 0, Standing.CUT),
    ],
)
def test_a_position_after_the_common_offset_is_cut(at: int, common: int | None, expected: Standing) -> None:
    assert standing_of(Position(at), Bounds(10, 20, common=common)) is expected


@pytest.mark.parametrize(
    ("position", "bounds", "asked"),
    [
        (Position(15, leader_epoch=1), Bounds(10, 20, leader_epoch=2), True),
        (Position(25, leader_epoch=1), Bounds(10, 20, leader_epoch=2), True),
        (Position(15, leader_epoch=2), Bounds(10, 20, leader_epoch=1), True),
        (Position(15, leader_epoch=0), Bounds(10, 20, leader_epoch=0), False),
        (Position(15, leader_epoch=1), Bounds(10, 20), False),
        (Position(15), Bounds(10, 20, leader_epoch=1), False),
        (Position(9, leader_epoch=1), Bounds(10, 20, leader_epoch=2), False),
        (Position(15, "old", leader_epoch=1), Bounds(10, 20, "new", leader_epoch=2), False),
        (Position(15, "id", "A", 1), Bounds(10, 20, "id", cluster_id="B", leader_epoch=2), False),
    ],
)
def test_what_is_asked_after_an_election(position: Position, bounds: Bounds, asked: bool) -> None:  # noqa: FBT001
    tp = TopicPartition("t", 0)
    assert led_anew({tp: position, TopicPartition("gone", 0): position}, {tp: bounds}) == (
        {tp: position} if asked else {}
    )


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


@pytest.mark.parametrize(("common", "where"), [(None, ""), (-1, ""), (0, " at offset 0"), (7, " at offset 7")])
def test_a_cut_names_its_offset_where_kafka_knows_it(common: int | None, where: str) -> None:
    text = cut_text(Bounds(0, 9, common=common))
    assert text == f"was cut{where} by the election of a leader that lacked records"
