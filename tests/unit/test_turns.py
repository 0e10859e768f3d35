"""The order of a task's records follows from its ranges alone, and what it takes to keep it stays small."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.readers import flow
from offsetkeeper.readers.flow import Flow
from offsetkeeper.readers.turns import LANES, Range, largest_first, turns

SOME = 10**6
sizes = st.integers(1, 200) | st.integers(1, 20_000) | st.sampled_from([1, 8, 9, 128, SOME])


def ranges_of(some: list[tuple[int, int]]) -> list[Range]:
    """Return ranges of so many offsets, from so many on; topics have five partitions each."""
    return [(f"t{number // 5:02}", number % 5, start, start + size) for number, (start, size) in enumerate(some)]


many_ranges = st.lists(st.tuples(st.integers(0, 10**9), sizes), min_size=1, max_size=40).map(ranges_of)


@given(many_ranges)
def test_every_offset_has_one_turn_and_a_partition_keeps_its_order(ranges: list[Range]) -> None:
    given = [*turns(ranges)]
    for number, (_, _, start, end) in enumerate(ranges):
        ends = [start, *(until for whose, until in given if whose == number)]
        assert ends[-1] == end
        assert all(one < other for one, other in pairwise(ends))


@given(many_ranges)
def test_turns_are_short_while_others_wait_and_few_take_them(ranges: list[Range]) -> None:
    places = [start for _, _, start, _ in ranges]
    left = {*range(len(ranges))}
    for number, until in turns(ranges):
        if len(left) > 1:
            assert until - places[number] <= 128
        places[number] = until
        left -= {number} if until == ranges[number][3] else set()
        begun = {other for other in left if places[other] > ranges[other][2]}
        assert len(begun) <= LANES


def test_the_order_does_not_depend_on_how_ranges_are_listed() -> None:
    listed = ranges_of([(5, 40), (0, 40), (7, 1000), (0, 3)])
    orders = {
        tuple((some[number][:2], until) for number, until in turns(some)) for some in map(list, permutations(listed))
    }
    assert len(orders) == 1


def test_a_range_of_a_thousand_million_offsets_is_a_matter_of_few_turns() -> None:
    """As those of a compacted topic, of which few records are left."""
    assert sum(1 for _ in turns(ranges_of([(0, 10**9)]))) == 1
    assert sum(1 for _ in turns(ranges_of([(0, 5 * 10**8)] * 2))) <= 2**21 + 2


@given(many_ranges, st.data())
def test_who_is_awaited_is_always_fetched_and_what_waits_is_bounded(ranges: list[Range], data: Any) -> None:
    """Whichever of those that are fetched sends next, all is given in the end; records are of any size."""
    fetch, weights = Fetch(ranges), [data.draw(st.sampled_from([1, 1000, 10**6, 5 * 10**6])) for _ in ranges]
    chance = data.draw(st.randoms(use_true_random=False))
    while fetch.awaited is not None:
        fetching = [*fetch.fetching]
        if fetch.places[fetch.awaited] < fetch.until:
            assert fetch.awaited in fetching
        number = chance.choice(fetching) if chance.random() < 0.9 else min(fetching)
        fetch.arrives(number, 1 + 10**6 // weights[number], weights[number])
    assert fetch.places == [end for *_, end in ranges]
    assert not fetch.held.total()


class Fetch:
    """A client without Kafka: what was told to it, and what has come."""

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges, self.flow, self._turns = ranges, Flow(ranges), turns(ranges)
        self.places = [start for _, _, start, _ in ranges]
        self.given = [*self.places]
        self.held = Counter[int]()
        self.fetching: dict[int, None] = {}
        self.paused = set[int]()
        self.weights: dict[int, int] = {}
        self.awaited: int | None
        self.awaited, self.until = next(self._turns)
        self.steer([])

    def arrives(self, number: int, count: int, weight: int) -> None:
        """So many offsets of a range come, each of so many bytes."""
        self.weights[number] = weight
        end = self.ranges[number][3]
        came = min(count, end - self.places[number])
        self.places[number] += came
        self.held[number] += came * weight
        while self.awaited is not None:
            upto = min(self.until, self.places[self.awaited])
            self.held[self.awaited] -= (upto - self.given[self.awaited]) * self.weights.get(self.awaited, 0)
            self.given[self.awaited] = upto
            if upto < self.until:
                break
            self.awaited, self.until = next(self._turns, (None, 0))
        self.steer([number] if self.places[number] == end else [])

    def steer(self, arrived: list[int]) -> None:
        """Do what the flow says."""
        change = self.flow.change(self.awaited, arrived, self.held.__getitem__, self.held.total())
        assert not self.fetching.keys() & {*change.begin}
        assert self.paused >= {*change.resume}
        assert {*self.fetching} | self.paused >= {*arrived, *change.pause}
        for number in (*arrived, *change.pause):
            self.fetching.pop(number, None)
        self.paused = (self.paused | {*change.pause}) - {*arrived, *change.resume}
        self.fetching |= dict.fromkeys([*change.begin, *change.resume])
        if self.held.total() > flow.LIMIT:
            assert self.fetching.keys() <= {self.awaited}


def test_small_partitions_are_fetched_together_and_large_ones_by_lanes() -> None:
    def begun(count: int, size: int) -> int:
        return len(Flow(ranges_of([(0, size)] * count)).change(0, [], lambda _: 0, 0).begin)

    assert begun(1000, 20) == 1000
    assert begun(1000, 1000) == 20
    assert begun(1000, 100_000) == LANES
    assert begun(3, 100_000) == 3


def test_the_largest_come_first() -> None:
    assert largest_first(ranges_of([(0, 2), (9, 7), (0, 7), (0, 1)])) == [1, 2, 0, 3]
