"""The ledger against a batch, and against a brute-force count of every offset."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.plan import PlanRow, Verdict
from offsetkeeper.engines.checkpoint_match import Match, OnMismatch, batch_ranges, begins_after, reconcile
from offsetkeeper.errors import CheckpointMismatch, SettingsError

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in (0, 1, 10)]
offsets = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 12))


@pytest.mark.parametrize(
    ("position", "match", "rest"),
    [
        (None, Match.UNKNOWN, []),
        (4, Match.HOLE, []),
        (5, Match.SAME, [(5, 8)]),
        (6, Match.PARTLY, [(6, 8)]),
        (7, Match.PARTLY, [(7, 8)]),
        (8, Match.DONE, []),
        (9, Match.DONE, []),
    ],
)
def test_each_way_the_ledger_can_stand_to_a_range(
    position: int | None, match: Match, rest: list[tuple[int, int]]
) -> None:
    stored = {} if position is None else {TopicPartition("a", 0): Position(position)}
    found = reconcile(stored, [OffsetRange("a", 0, 5, 8)])
    assert [row.match for row in found.rows] == [match]
    assert [(r.start, r.end) for r in found.rest] == rest


@given(stored=offsets, starts=offsets, ends=offsets)
def test_what_is_left_is_what_a_count_of_every_offset_leaves(
    stored: dict[TopicPartition, int], starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> None:
    """Each offset of the batch is either processed now, was processed before, or is said to lie behind a hole."""
    positions = {tp: Position(offset) for tp, offset in stored.items()}
    wanted = {(tp, n) for tp, end in ends.items() for n in range(starts.get(tp, 0), end)}
    found = reconcile(positions, batch_ranges(starts, ends))
    now = [(r.topic_partition, n) for r in found.rest for n in range(r.start, r.end)]
    before = {(tp, n) for tp, n in wanted if n < found.done.get(tp, 0)}
    stopped = {(tp, n) for tp, n in wanted if tp in found.holes()}
    assert len(now) == len(set(now))
    assert set(now) | before | stopped == wanted
    assert len(wanted) == len(now) + len(before) + len(stopped)
    assert before == {(tp, n) for tp, n in wanted if n < stored.get(tp, 0)}
    for tp, start in found.holes().items():
        assert stored.get(tp, -1) < start or start == starts.get(tp, 0)
    for tp in {tp for tp, _ in now}:
        assert min(n for each, n in now if each == tp) == stored[tp]  # nothing is left out: a commit can follow
    assert list(found.rest) == sorted(found.rest)


def test_a_hole_names_where_the_ledger_would_have_to_stand() -> None:
    found = reconcile({TopicPartition("a", 0): Position(3)}, [OffsetRange("a", 0, 5, 8), OffsetRange("b", 0, 1, 2)])
    assert found.holes() == {TopicPartition("a", 0): 5, TopicPartition("b", 0): 1}


def test_the_error_shows_both_sides_of_up_to_twenty_partitions() -> None:
    found = reconcile({TopicPartition("a", 0): Position(3)}, [OffsetRange("a", n, 5, 8) for n in range(25)])
    error = found.mismatch("batch 7", found.of(Match.HOLE, Match.UNKNOWN), "Do this.")
    assert isinstance(error, CheckpointMismatch)
    assert "  a 0: the checkpoint has 5 to 8, the ledger is at 3: a hole\n" in str(error)
    assert "  a 1: the checkpoint has 5 to 8, the ledger has no position: not in the ledger\n" in str(error)
    assert str(error).endswith("\n  and 5 more\n  Do this.")


def test_a_partition_that_went_backwards_or_stands_still_has_no_range() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    assert batch_ranges({one: 5, two: 5}, {one: 5, two: 3}) == ()
    assert batch_ranges({}, {one: 5}) == (OffsetRange("a", 0, 0, 5),)


@pytest.mark.parametrize("wrong", [{"hole": "skip"}, {"state": "lost"}])
def test_a_word_that_is_no_policy_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        OnMismatch(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "partition", "goes_on", "after"),
    [
        (Verdict.FIRST_RUN, 0, {0: 4}, True),
        (Verdict.FIRST_RUN, 0, {0: 5}, False),
        (Verdict.FIRST_RUN, 0, {0: 6}, False),  # a hole, which is compared elsewhere
        (Verdict.NEW_TOPIC, 0, {0: 4}, True),
        (Verdict.FIRST_RUN, 1, {0: 5}, True),  # Spark reads it from its beginning
        (Verdict.FIRST_RUN, 1, {}, False),  # the topic is new for the query
        (Verdict.GIVEN, 0, {0: 4}, False),
        (Verdict.RESUME, 0, {0: 4}, False),
    ],
)
def test_a_first_position_after_the_checkpoint_is_found(
    verdict: Verdict, partition: int, goes_on: dict[int, int], *, after: bool
) -> None:
    tp = TopicPartition("a", partition)
    row = PlanRow(tp, verdict, None, Bounds(2, 9), 5, "start=latest")
    assert (tp in begins_after([row], {TopicPartition("a", p): at for p, at in goes_on.items()})) == after


@pytest.mark.parametrize("name", ["window_s", "ahead_s", "read_all", "unchanged"])
def test_what_a_rebuild_is_told_goes_with_a_rebuild_alone(name: str) -> None:
    told: dict[str, Any] = {name: True if name in {"read_all", "unchanged"} else 60.0}
    assert getattr(OnMismatch(state="rebuild", **told), name)
    with pytest.raises(SettingsError, match=f"{name} goes with state='rebuild'"):
        OnMismatch(state="empty", **told)
