"""A limit on a batch is kept, used up, shared fairly, and starves nobody."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import SettingsError
from offsetkeeper.readers.ranges import fair_share

PARTITIONS = [TopicPartition(topic, p) for topic in ("a", "b") for p in range(4)]
# Negative ones occur: a partition may end before its position, where the end is pinned or the isolation differs.
backlogs = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(-3, 12))
limits = st.integers(1, 60)
turns = st.integers(0, 1000)


@given(backlogs, limits, turns)
def test_the_limit_is_used_up_and_never_exceeded(sizes: dict[TopicPartition, int], limit: int, turn: int) -> None:
    waiting = sum(size for size in sizes.values() if size > 0)
    assert sum(fair_share(sizes, limit, turn).values()) == min(limit, waiting)


@given(backlogs, limits, turns)
def test_no_partition_gives_more_than_it_has_or_is_named_for_nothing(
    sizes: dict[TopicPartition, int], limit: int, turn: int
) -> None:
    assert all(0 < size <= sizes[tp] for tp, size in fair_share(sizes, limit, turn).items())


@given(backlogs, turns)
def test_without_a_limit_all_is_taken(sizes: dict[TopicPartition, int], turn: int) -> None:
    assert fair_share(sizes, None, turn) == {tp: size for tp, size in sizes.items() if size > 0}


@given(backlogs, limits, turns)
def test_the_shares_are_those_of_dealing_one_offset_at_a_time_to_whoever_has_least(
    sizes: dict[TopicPartition, int], limit: int, turn: int
) -> None:
    """Max-min fairness by brute force: nobody can get more without taking from one who has no more than he."""
    dealt = {tp: 0 for tp, size in sizes.items() if size > 0}
    for _ in range(limit):
        open_ = [tp for tp in dealt if dealt[tp] < sizes[tp]]
        if open_:
            dealt[min(open_, key=lambda tp: dealt[tp])] += 1
    assert sorted(fair_share(sizes, limit, turn).values()) == sorted(size for size in dealt.values() if size)


def test_every_small_case_is_within_backlogs_and_limit() -> None:
    """All backlogs of up to four offsets in three partitions, each limit, each turn."""
    for *waiting, limit, turn in itertools.product(range(5), range(5), range(5), range(1, 13), range(3)):
        sizes = dict(zip(PARTITIONS[:3], waiting, strict=True))
        shares = fair_share(sizes, limit, turn)
        assert all(0 < size <= sizes[tp] for tp, size in shares.items())
        assert sum(shares.values()) == min(limit, sum(waiting))


@given(
    st.lists(st.tuples(*[st.integers(0, 1)] * 8), min_size=8, max_size=8),
    st.integers(1, 8),
    st.integers(0, 7),
    turns,
)
def test_a_waiting_partition_is_served_within_a_round_however_the_others_come_and_go(
    rounds: list[list[int]], limit: int, patient: int, turn: int
) -> None:
    """Where the limit is below the number of partitions each still has its turn: at the latest after all others."""
    served = 0
    for i in range(-(-len(PARTITIONS) // limit)):
        sizes = dict(zip(PARTITIONS, rounds[i], strict=True)) | {PARTITIONS[patient]: 5}
        served += fair_share(sizes, limit, turn + i).get(PARTITIONS[patient], 0)
    assert served > 0


def test_successive_turns_go_round() -> None:
    sizes = dict.fromkeys(PARTITIONS, 100)
    taken = [tp for turn in range(8) for tp in fair_share(sizes, 3, turn)]
    assert {taken.count(tp) for tp in PARTITIONS} == {3}


@pytest.mark.parametrize("limit", [1, 3, 5, 7])
@pytest.mark.parametrize("busy", [range(90, 100), range(10), range(0, 100, 10)], ids=["last", "first", "every tenth"])
def test_idle_partitions_give_nobody_more_turns_than_others(busy: range, limit: int) -> None:
    """The busy partitions behind many idle ones had all the turns of these: 91 times the offsets of the others."""
    sizes = {TopicPartition("t", p): 1_000_000 * (p in busy) for p in range(100)}
    taken = Counter({tp: 0 for tp in sizes if sizes[tp]})
    for turn in range(400):
        taken.update(fair_share(sizes, limit, turn))
    equal = 400 * limit / len(busy)
    assert all(0.85 * equal <= size <= 1.15 * equal for size in taken.values())


@pytest.mark.parametrize("limit", [0, -1, -100])
def test_a_limit_under_one_is_refused(limit: Any) -> None:
    """It could only stop the pipeline for ever, or make ranges that run backwards."""
    with pytest.raises(SettingsError, match="use a number of 1 or more"):
        fair_share({PARTITIONS[0]: 5, PARTITIONS[1]: 7}, limit)


def test_ten_thousand_partitions_are_shared_among() -> None:
    sizes = {TopicPartition("t", p): p for p in range(10_000)}
    assert sum(fair_share(sizes, 1_000_000, 77).values()) == 1_000_000
    assert len(fair_share(sizes, 1_000, 77)) == 1_000
