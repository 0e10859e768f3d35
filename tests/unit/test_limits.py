"""How much of what waits a batch takes: at most, at least, by topic, and by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper import TopicPartition
from offsetkeeper.core.environment import Environment, using
from offsetkeeper.errors import SettingsError
from offsetkeeper.readers.limits import BatchSize, Limits

SIZES = {"a": 1000, "b": 10}
PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 40))
BACKLOGS = st.dictionaries(PARTITIONS, st.integers(-3, 500), max_size=60)


class Clock(Environment):
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        """Return what was set."""
        return self.now


def sampled(starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
    """Return four records of each partition whose topic has a size."""
    return {tp: (4, 4 * SIZES[tp.topic]) for tp in starts if tp.topic in SIZES}


@given(BACKLOGS, st.integers(1, 2000), st.integers(1, 100_000), st.integers(1, 300), st.integers(0, 1000))
def test_all_limits_hold_and_something_is_read(
    backlogs: dict[TopicPartition, int], records: int, size: int, of_a: int, turn: int
) -> None:
    limits = Limits(records, {"a": of_a}, size)
    shares = BatchSize(limits, sampled).shares(backlogs, dict.fromkeys(backlogs, 0), turn)
    total = sum(shares.values())
    assert all(0 < share <= backlogs[tp] for tp, share in shares.items())
    assert total <= records
    assert sum(share for tp, share in shares.items() if tp.topic == "a") <= of_a
    assert total == 1 or sum(share * SIZES.get(tp.topic, 0) for tp, share in shares.items()) <= size
    assert bool(shares) is any(waiting > 0 for waiting in backlogs.values())


def test_a_batch_has_about_as_many_bytes_as_it_may() -> None:
    backlogs = {TopicPartition("a", n): 50 for n in range(10)}
    shares = BatchSize(Limits(max_bytes=100_000), sampled).shares(backlogs, dict.fromkeys(backlogs, 0), 1)
    assert sum(shares.values()) == 100
    assert set(shares.values()) == {10}


def test_a_batch_is_bounded_where_no_record_could_be_sampled() -> None:
    backlogs = {TopicPartition("a", n): 50 for n in range(10)}
    shares = BatchSize(Limits(max_bytes=100_000), lambda _: {}).shares(backlogs, dict.fromkeys(backlogs, 0), 1)
    assert sum(shares.values()) == 100


def test_of_a_thousand_partitions_a_few_are_looked_into_and_others_the_next_time() -> None:
    looked: list[set[TopicPartition]] = []

    def sample(starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        looked.append(set(starts))
        return sampled(starts)

    backlogs = {TopicPartition(topic, n): 9 for topic, count in (("a", 1000), ("b", 3)) for n in range(count)}
    size = BatchSize(Limits(max_bytes=2000), sample)
    for turn in (1, 100):
        size.shares(backlogs, dict.fromkeys(backlogs, 0), turn)
    assert [len(each) for each in looked] == [32, 32]
    assert [sum(tp.topic == "b" for tp in each) for each in looked] == [3, 3]
    assert not {tp for tp in looked[0] & looked[1] if tp.topic == "a"}


def test_of_a_hundred_topics_all_are_looked_into_in_turn_and_the_first_batch_keeps_to_its_bytes() -> None:
    looked: list[set[TopicPartition]] = []

    def sample(starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        looked.append(set(starts))
        return {tp: (1, 10 + int(tp.topic[1:])) for tp in starts}

    backlogs = {TopicPartition(f"t{number}", 0): 50 for number in range(100)}
    size = BatchSize(Limits(max_bytes=2000), sample)
    batches = [size.shares(backlogs, dict.fromkeys(backlogs, 0), turn) for turn in range(1, 5)]
    assert all(sum(share * (10 + int(tp.topic[1:])) for tp, share in each.items()) <= 4000 for each in batches)
    assert set.union(*looked) == set(backlogs)


def test_a_small_batch_waits_for_more_but_not_for_ever() -> None:
    tp, clock = TopicPartition("a", 0), Clock()
    size = BatchSize(Limits(min_records=10, max_delay_s=60), sampled)

    def shares(waiting: int, now: float, **more: Any) -> int:
        clock.now = now
        with using(clock):
            return sum(size.shares({tp: waiting}, {tp: 0}, 1, **more).values())

    assert shares(0, 0) == 0
    assert shares(3, 100) == 0  # the records wait since now
    assert shares(5, 159) == 0
    assert shares(6, 160) == 6
    assert shares(2, 161) == 0  # what comes after them waits anew
    assert shares(10, 162) == 10
    assert shares(9, 200) == 0
    assert shares(9, 201, last=True) == 9


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_records": 0}, "max_records=0: use a whole number from 1 on"),
        ({"max_bytes": 1.5}, "max_bytes=1.5: use a whole number from 1 on"),
        ({"max_bytes": True}, "max_bytes=True: use a whole number from 1 on"),
        ({"min_records": -1, "max_delay_s": 1}, "min_records=-1: use a whole number from 1 on"),
        ({"min_records": 1, "max_delay_s": 0}, "max_delay_s=0: use a number above 0"),
        ({"min_records": 1}, "min_records and max_delay_s go together"),
        ({"max_delay_s": 1}, "min_records and max_delay_s go together"),
        ({"max_records_per_topic": {"a": 0}}, r"max_records_per_topic\['a'\]=0: use a whole number from 1 on"),
        ({"max_records_per_topic": {"a": None}}, r"max_records_per_topic\['a'\]=0: use a whole number"),
        ({"max_records_per_topic": {"no spaces": 1}}, "is not a topic name"),
        ({"max_records_per_topic": 100}, "write {'orders': 1000}"),
    ],
)
def test_limits_of_a_batch_that_make_no_sense_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Limits(**limits)
