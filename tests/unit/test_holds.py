"""Which offsets an output holds: gaps and overlaps are those that counting each offset finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.batch import QUARANTINED
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused
from offsetkeeper.operate.holds import Finding, Kind, compare, compare_with, ends_for_reset, spreads
from offsetkeeper.sinks.held import Held, HeldBatch, parse_ranges, told
from offsetkeeper.sinks.sink import MarkKey
from offsetkeeper.testing.conformance.landers import batch_of

ORDERS = TopicPartition("orders", 0)
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8)


def held(number: int, *spans: tuple[int, int]) -> HeldBatch:
    ranges = tuple(OffsetRange(*ORDERS, start, start + size) for start, size in spans)
    return HeldBatch(f"version {number}", "shop", "", f"shop/t/{number}", ranges)


def counted(findings: list[Finding], kind: Kind) -> set[int]:
    """Return each offset of the findings of a kind; none may be there twice."""
    found = [at for each in findings if each.kind is kind for at in range(each.start, each.end)]
    assert len(found) == len({*found})
    return {*found}


@given(SPANS, st.lists(st.integers(0, 40), max_size=3), st.integers(0, 45))
def test_each_offset_is_told_once_as_counting_tells_it(
    spans: list[tuple[int, int]], letters: list[int], position: int
) -> None:
    batches = [held(number, span) for number, span in enumerate(spans)]
    count = Counter(at for start, size in spans for at in range(start, start + size))
    there = {*count, *(letters if count else ())}
    ledger = Snapshot("shop", positions={ORDERS: Position(position)})
    history = [entry("commit", OffsetRange(*ORDERS, at, at + 1), f"{QUARANTINED}: x") for at in letters]
    findings = compare_with(ledger, ledger, history, Held(tuple(batches)))
    assert counted(findings, Kind.OVERLAP) == {at for at, times in count.items() if times > 1}
    assert counted(findings, Kind.GAP) == {*range(min(there, default=0), max(there, default=0))} - there
    ahead = {at for each in findings if each.kind is Kind.AHEAD for at in range(each.start, each.end)}
    assert ahead == {at for at in count if at >= position}
    if count:
        end = [start + size for start, size in spans if size][-1]
        while end in letters:
            end += 1
        assert counted(findings, Kind.LACKS) == {*range(end, position)}


def entry(event: str, r: OffsetRange, reason: str = "") -> Entry:
    return Entry(1, event, "id", 0, "me", reason=reason, ranges=(r,))


def commits(*numbers: int) -> list[Entry]:
    """Return the history of batches of ten offsets of two partitions each, the newest first; complete from 1 on."""
    both = [ORDERS, TopicPartition("orders", 1)]
    found = [entry("acquire", OffsetRange(*ORDERS, 0, 0))]
    for n in numbers:
        ranges = tuple(OffsetRange(*tp, 10 * n - 10, 10 * n) for tp in both)
        found.append(replace(entry("commit", ranges[0]), version=n + 1, ranges=ranges, token="t", sequence=n))
    return found[::-1]


def ledger_at(offset: int) -> Snapshot:
    return Snapshot("shop", positions={TopicPartition("orders", number): Position(offset) for number in (0, 1)})


def test_a_batch_of_the_history_that_the_output_has_not_is_lacking() -> None:
    """Also where the partition has none, and where a later batch of the output goes past it."""
    ledger, history = ledger_at(30), commits(1, 2, 3)
    told = [str(each) for each in compare_with(ledger, ledger, history, Held(()))]
    assert told == ["lacks orders 0 0 30", "lacks orders 1 0 30"]
    some = Held((held(1, (0, 10)), held(3, (20, 10))))
    assert "lacks orders 1 10 20" in [str(each) for each in compare_with(ledger, ledger, history, some)]
    later = Held((held(3, (20, 10)),))  # the output was added to the program, or made again
    assert compare_with(ledger, ledger, history, later) == []


def test_a_run_that_goes_on_meanwhile_is_no_finding() -> None:
    there = Held((HeldBatch("1", "shop", "", "shop/t/1", commits(1)[0].ranges),))
    assert compare_with(ledger_at(0), ledger_at(10), [], there) == []
    assert {each.kind for each in compare_with(ledger_at(0), ledger_at(0), [], there)} == {Kind.AHEAD}


def test_a_batch_that_is_under_way_is_not_ahead() -> None:
    batch = batch_of(7)
    there = HeldBatch("version 1", batch.group, "", batch.id, batch.ranges)
    positions = {r.topic_partition: Position(r.start) for r in batch.ranges}
    ledger = Snapshot(batch.group, positions=positions, pending=batch)
    assert compare_with(ledger, ledger, [], Held((there,))) == []
    found = compare_with(ledger, ledger, [], Held((there._replace(batch="shop/another/7"),)))
    assert [OffsetRange(*each.topic_partition, each.start, each.end) for each in found] == [*batch.ranges]
    assert {each.kind for each in found} == {Kind.AHEAD}


def test_a_reset_goes_behind_the_last_batch_of_each_partition_and_leaves_none_out() -> None:
    """Not to the largest end: a topic that was made again has other records there."""
    other = TopicPartition("orders", 1)
    again = Held((held(1, (0, 1000)), held(2, (0, 50))))
    assert ends_for_reset(ledger_at(30), commits(1), again) == {ORDERS: 50, other: 0}
    for unknown, history in (
        (again._replace(lacks="the log begins with version 7"), commits(1)),
        (Held((*again.batches, HeldBatch("3", "shop", "", "shop/t/3", None))), commits(1)),
        (again, commits(1, 2)[:1]),
    ):
        with pytest.raises(Refused, match="the output tells no offset of orders 1"):
            ends_for_reset(ledger_at(30), history, unknown)


P0, P1 = ORDERS, TopicPartition("orders", 1)
T = "t"


def committed(*batches: tuple[int, dict[int, tuple[int, int]]], token: str = T) -> list[Entry]:
    """Return the whole history of these batches, a sequence and a range by partition each; the newest first."""
    found = [entry("acquire", OffsetRange(*P0, 0, 0))]
    for number, spans in batches:
        ranges = tuple(OffsetRange("orders", p, *span) for p, span in spans.items())
        made = replace(entry("commit", ranges[0]), version=len(found) + 1, ranges=ranges, token=token, sequence=number)
        found.append(made)
    return found[::-1]


def landed(output: str, number: int, *, token: str = T, **spans: tuple[int, int]) -> HeldBatch:
    """Return a batch of an output, with a range for each of the partitions p0 and p1."""
    ranges = tuple(OffsetRange("orders", int(p[1:]), *span) for p, span in spans.items())
    return HeldBatch(f"version {number}", "shop", output, f"shop/{token}/{number}", ranges)


def at(p0: int, p1: int, sequence: int = 2) -> Snapshot:
    return Snapshot("shop", sequence=sequence, positions={P0: Position(p0), P1: Position(p1)})


BEFORE = (1, {0: (0, 60), 1: (0, 60)})
SINCE = (2, {0: (60, 90)})
OLD = landed("", 1, p0=(0, 60), p1=(0, 60))
NEW = landed("orders", 2, p0=(60, 90))


def test_a_partition_whose_rows_are_there_under_the_old_name_of_an_output_is_not_read_again() -> None:
    """Also where the ledger is older than the output."""
    there = Held((OLD, NEW))
    assert ends_for_reset(at(90, 60), committed(BEFORE, SINCE), there, "orders") == {P0: 90, P1: 60}
    assert ends_for_reset(at(0, 0, 0), committed(), there, "orders") == {P0: 90, P1: 60}
    part = (1, {0: (0, 30), 1: (0, 30)})
    assert ends_for_reset(at(30, 30, 1), committed(part, token="older"), there, "orders") == {P0: 90, P1: 60}


def test_a_partition_with_records_from_before_an_output_was_added_stays_where_it_is() -> None:
    """Elsewhere there is no old name to tell of it. What was committed since, the output has lost."""
    there = Held((NEW,))
    assert ends_for_reset(at(90, 60), committed(BEFORE, SINCE), there, "orders") == {P0: 90}
    lost = committed(BEFORE, SINCE, (3, {1: (60, 70)}), (4, {1: (70, 80)}))
    assert ends_for_reset(at(90, 80, 4), lost, there, "orders") == {P0: 90, P1: 60}
    assert ends_for_reset(at(90, 80, 4), lost, Held((OLD, NEW)), "orders") == {P0: 90, P1: 60}


def test_a_position_that_the_store_has_lost_is_told_by_the_output_or_by_nobody() -> None:
    """An export without it would look whole."""
    lost = replace(at(90, 60), positions={P0: Position(90)}, missing=frozenset({P1}))
    assert ends_for_reset(lost, committed(BEFORE, SINCE), Held((OLD, NEW)), "orders") == {P0: 90, P1: 60}
    with pytest.raises(Refused, match="the store has lost the positions of orders 1, and the output tells no offset"):
        ends_for_reset(lost, committed(BEFORE, SINCE), Held((NEW,)), "orders")


def test_an_output_that_has_no_batch_gets_all_from_the_beginning() -> None:
    assert ends_for_reset(at(90, 60), committed(BEFORE, SINCE), Held(())) == {P0: 0, P1: 0}


def test_an_output_that_began_under_another_ledger_tells_nothing_of_a_silent_partition() -> None:
    """It may be the one before this ledger, or one that a backup has set back: then the first commit may be there."""
    foreign = Held((landed("", 2, token="other", p0=(60, 90)),))
    with pytest.raises(Refused, match=r"no offset of orders 1: .*of another ledger"):
        ends_for_reset(at(90, 60), committed(BEFORE, SINCE), foreign)
    assert ends_for_reset(at(90, 60), committed((1, {0: (0, 60)})), foreign) == {P0: 90}


def test_the_ends_of_an_output_are_not_those_of_its_old_name() -> None:
    there = Held((OLD, landed("orders", 2, p0=(60, 90), p1=(60, 70))))
    history = committed(BEFORE, (2, {0: (60, 90), 1: (60, 70)}))
    with pytest.raises(Refused, match="the last batches of the place are of output orders: give --output orders"):
        ends_for_reset(at(90, 70), history, there, "")
    with pytest.raises(Refused, match="no batch of output copy, only of the output, output orders"):
        ends_for_reset(at(90, 70), history, there, "copy")
    assert ends_for_reset(at(90, 70), history, there, "orders") == {P0: 90, P1: 70}


def test_two_outputs_of_one_place_are_no_old_names_of_each_other() -> None:
    """Each has its own end: of the last batch only one has landed."""
    both = tuple(landed(name, 1, p0=(0, 60), p1=(0, 60)) for name in ("a", "b"))
    letters = landed("dead_letters", 3, p0=(90, 91))
    for last in ((), (landed("a", 2, p0=(60, 90)),)):
        there, history = Held((*both, *last, letters)), committed(BEFORE, SINCE)
        assert ends_for_reset(at(90, 60), history, there, "b") == {P0: 60, P1: 60}
        assert ends_for_reset(at(90, 60), history, there, "a") == {P0: 90 if last else 60, P1: 60}


def test_neighbours_of_one_kind_are_one_finding_and_others_are_not() -> None:
    found = compare([held(1, (0, 10), (20, 5)), held(2, (0, 5)), held(3, (5, 5))])
    assert [str(each) for each in found] == [
        "overlap orders 0 0 5 in shop/t/1, shop/t/2",
        "overlap orders 0 5 10 in shop/t/1, shop/t/3",
        "gap orders 0 10 20",
    ]
    assert spreads([held(1, (5, 3)), held(2, (0, 2), (9, 0))])[ORDERS] == (0, 8, 2)


@pytest.mark.parametrize("output", ["", "copy"])
def test_what_is_told_of_a_batch_is_read_back(output: str) -> None:
    batch = batch_of(3)
    key, mark = MarkKey(batch.group, output), OutputMark.of(batch)
    found = HeldBatch.of("here", told(key, mark, batch.lines()))
    assert found == HeldBatch("here", batch.group, output, batch.id, batch.ranges)
    assert found.as_dict()["ranges"] == [[*r] for r in batch.ranges]
    assert HeldBatch.of("here", told(key, mark, None)) == HeldBatch(
        "here", batch.group, output, batch.id, (), dropped=True
    )


@pytest.mark.parametrize(
    "lines", [None, 3, "orders 0 1", "orders 0 1 x", "orders -1 1 2", "a/b 0 1 2", "orders 0 -1 2"]
)
def test_lines_that_others_have_changed_are_unknown_offsets(lines: Any) -> None:
    assert parse_ranges(lines) is None


@pytest.mark.parametrize("about", [{}, {"offsetkeeper.batch": "shop/t/1"}, {"offsetkeeper.group": "shop"}])
def test_metadata_of_others_tells_of_no_batch(about: dict[str, str]) -> None:
    assert HeldBatch.of("here", about) is None
