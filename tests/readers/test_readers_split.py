"""Ranges are split among tasks: each offset once, a partition to one task, loads about even."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import SettingsError
from offsetkeeper.readers.consume import rounds
from offsetkeeper.readers.ranges import split, tidy


@st.composite
def disjoint_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of a few partitions that do not overlap, some empty, some touching, in any order."""
    ranges = []
    for topic in ("a", "b"):
        for partition in range(draw(st.integers(0, 4))):
            places = sorted(draw(st.lists(st.integers(0, 1000), max_size=6)))
            ranges += [OffsetRange(topic, partition, start, end) for start, end in pairwise(places)]
    wanted = draw(st.lists(st.booleans(), min_size=len(ranges), max_size=len(ranges)))
    return draw(st.permutations([each for each, keep in zip(ranges, wanted, strict=True) if keep]))


def offsets(ranges: list[OffsetRange]) -> Counter[tuple[str, int, int]]:
    """Count each offset that the ranges name."""
    return Counter((r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end))


@given(ranges=disjoint_ranges())
def test_tidying_keeps_every_offset_and_joins_what_touches(ranges: list[OffsetRange]) -> None:
    tidied = tidy(ranges)
    assert offsets(tidied) == offsets(ranges)
    assert all(one.topic_partition != other.topic_partition or one.end < other.start for one, other in pairwise(tidied))
    assert all(each.size for each in tidied)


@given(ranges=disjoint_ranges(), tasks=st.integers(1, 6))
def test_each_partition_goes_to_one_task_whole(ranges: list[OffsetRange], tasks: int) -> None:
    tidied = tidy(ranges)
    found = split(tidied, tasks)
    assert len(found) == min(tasks, len({each.topic_partition for each in tidied}))
    assert all(found)
    assert sorted(each for task in found for each in task) == tidied
    of_task = [{each.topic_partition for each in task} for task in found]
    assert sum(map(len, of_task)) == len(set().union(*of_task))


@given(ranges=disjoint_ranges(), tasks=st.integers(1, 6), most=st.integers(1, 300))
def test_a_limit_on_each_task_keeps_every_offset(ranges: list[OffsetRange], tasks: int, most: int) -> None:
    tidied = tidy(ranges)
    found = split(tidied, tasks, most)
    assert offsets([each for task in found for each in task]) == offsets(ranges)
    assert all(0 < sum(each.size for each in task) <= most for task in found)
    total = sum(each.size for each in tidied)
    assert len(found) <= max(tasks, -(-total // most))


def test_one_large_partition_and_many_small_ones_are_split_evenly() -> None:
    ranges = [OffsetRange("a", 0, 0, 9000)] + [OffsetRange("a", n, 0, 900) for n in range(1, 11)]
    large, small = split(ranges, 2)
    assert [large, small] == [(ranges[0],), tuple(ranges[1:])]


def test_a_thousand_tiny_ranges_are_split_evenly_by_their_number() -> None:
    ranges = [OffsetRange("a", n, 0, 1 + n % 3) for n in range(1000)]
    assert {len(task) for task in split(ranges, 4)} == {250}


@given(
    ranges=disjoint_ranges(), tasks=st.integers(1, 6), skewed=st.lists(st.integers(0, 10**6), min_size=1, max_size=9)
)
def test_even_shares_keep_every_offset_and_cut_only_what_is_skewed(
    ranges: list[OffsetRange], tasks: int, skewed: list[int]
) -> None:
    """A partition that has far more than the share of a task is cut; else each stays whole."""
    small = tidy(ranges)
    assert split(small, tasks, "evenly") == split(small, tasks)
    large = tidy([OffsetRange("a", n, 5, 5 + size) for n, size in enumerate(skewed)])
    found = split(large, tasks, "evenly")
    assert tidy([each for task in found for each in task]) == large
    assert len(found) <= tasks
    share, most = sum(r.size for r in large) / tasks, max((sum(r.size for r in task) for task in found), default=0)
    assert most <= max(share + 20_001, share * 1.25 + 1)
    assert found == split(large, tasks) or most <= share + 1


def test_no_ranges_are_no_tasks() -> None:
    assert split(tidy([OffsetRange("a", 0, 5, 5)]), 4) == []
    assert split([], 4, 10) == []


@pytest.mark.parametrize("wrong", [(-1, 5), (5, 4)])
def test_what_is_no_range_is_not_split(wrong: tuple[int, int]) -> None:
    with pytest.raises(SettingsError, match="0 <= start <= end"):
        tidy([OffsetRange("a", 0, *wrong)])


@pytest.mark.parametrize("other", [(0, 10), (9, 12), (0, 1), (3, 4)])
def test_ranges_that_overlap_are_refused(other: tuple[int, int]) -> None:
    with pytest.raises(SettingsError, match="overlap"):
        tidy([OffsetRange("a", 0, 0, 10), OffsetRange("a", 0, *other)])


@given(ranges=disjoint_ranges())
def test_a_round_has_each_partition_once_and_rounds_go_forward(ranges: list[OffsetRange]) -> None:
    tidied = tidy(ranges)
    parts = rounds(tidied)
    assert sorted(each for part in parts for each in part) == tidied
    assert all(len({each.topic_partition for each in part}) == len(part) for part in parts)
    reached: dict[tuple[str, int], int] = {}
    for part in parts:
        for each in part:
            assert reached.get(each.topic_partition, -1) < each.start
            reached[each.topic_partition] = each.end
