"""Whether a query has read every record from an offset on: what the history must show."""

from __future__ import annotations

from typing import Any

import pytest

from offsetkeeper.core.model import Count, Entry, Move
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.engines.unbroken import REBUILDS, unbroken

A, B = (TopicPartition("t", number) for number in range(2))
ENDS = {A: 30, B: 20}


def entry(event: str, *ranges: tuple[int, int, int], **how: Any) -> Entry:
    """Return an entry with ranges of partition, start and end."""
    return Entry(1, event, "id", 0, "me", ranges=tuple(OffsetRange("t", *each) for each in ranges), **how)


def commit(query: str, number: int, *ranges: tuple[int, int, int]) -> Entry:
    """Return the commit of a query's batch, or of a run without state."""
    return entry("commit", *ranges, counts={query: Count(number, number + 1)} if query else {})


def placed(partition: TopicPartition, before: int | None, after: int) -> Entry:
    """Return an entry that sets a position."""
    return entry("place", moves={partition: Move(None if before is None else Position(before), Position(after))})


LAST = (commit("q", 2), entry("begin", (0, 20, 30)), commit("q", 1, (0, 20, 30), (1, 10, 20)))
FIRST = commit("q", 0, (0, 5, 20), (1, 4, 10))


def test_it_goes_back_through_commits_to_what_is_wanted() -> None:
    assert unbroken(LAST, {A: 22, B: 20}, ENDS).starts == {A: 22, B: 20}
    assert unbroken((*LAST, FIRST), {A: 6, B: 12}, ENDS) == ({A: 6, B: 12}, "", False)


def test_no_record_counts_before_the_query_or_the_partition_began() -> None:
    began = entry("place", counts={"q": Count(None, 0)})
    assert unbroken((*LAST, FIRST, began), {A: 1, B: 12}, ENDS).starts == {A: 5, B: 12}
    assert unbroken((*LAST, FIRST, commit("older", 9, (0, 1, 5))), {A: 1, B: 1}, ENDS).starts == {A: 5, B: 4}
    latest = (*LAST, FIRST, placed(A, None, 5), placed(B, None, 4))
    assert unbroken(latest, {A: 0, B: 0}, ENDS) == ({A: 5, B: 4}, "", False)


def test_it_goes_on_where_a_state_was_built_again() -> None:
    begun = entry("place", counts={"new": Count(None, 1)}, reason=f"{REBUILDS} at the watermark of then")
    again = (commit("new", 1, (0, 20, 30), (1, 10, 20)), begun)
    assert unbroken((*again, FIRST), {A: 7, B: 4}, ENDS).starts == {A: 7, B: 4}


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (commit("", 0, (0, 5, 20)), "a run without state has read t 0"),
        (placed(A, 12, 20), "the position of t 0 was set to 20"),
        (placed(A, None, 19), "the position of t 0 was set to 19"),
        (entry("rewind", moves={A: Move(Position(9), Position(20))}), "the position of t 0 was set to 20"),
        (entry("forget", forgot={A: Position(20)}), "t 0 was forgotten"),
        (entry("copy"), "was copied"),
        (entry("rewind", moves={A: Move(None, Position(20))}), "the position of t 0 was set to 20"),
        (entry("place", counts={"q": Count(None, 1)}, reason="follows checkpoint"), "q was taken over at its batch 1"),
        (entry("place", counts={"q": Count(None, 7)}, reason="follows checkpoint"), "q was taken over at its batch 7"),
        (commit("q", 0, (0, 5, 19)), "was read up to 19, and not up to 20"),
    ],
)
def test_what_breaks_it_is_named(broken: Entry, why: str) -> None:
    found = unbroken((*LAST, broken, FIRST), {A: 6, B: 12}, ENDS)
    assert why in found.why
    assert not found.short


def test_queries_that_take_turns_break_it() -> None:
    """The watermark is of the one that committed last, and the partition was read by the other one."""
    why = "another query than other, which committed last, has read t 0"
    turns = (commit("other", 4, (1, 10, 20)), commit("q", 1, (0, 20, 30)))
    assert why in unbroken(turns, {A: 21, B: 12}, ENDS).why
    begun = (commit("other", 0, (1, 10, 20)), entry("place", counts={"other": Count(None, 0)}), FIRST)
    assert why in unbroken(begun, {A: 21, B: 20}, ENDS).why


def test_a_history_that_is_too_short_says_so() -> None:
    found = unbroken(LAST, {A: 6, B: 12}, ENDS)
    assert (found.short, found.why) == (True, "the history is too short to show who read t 0 from 6")


def test_epochs_and_other_partitions_change_nothing() -> None:
    other = TopicPartition("u", 0)
    noise = (placed(A, 20, 20), placed(other, 3, 9), entry("forget", forgot={other: None}), entry("wait"))
    assert unbroken((*LAST, *noise, FIRST), {A: 6, B: 12}, ENDS).why == ""
