"""What does not follow on in a history, each with its offsets and its reason."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.batch import Program
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Having, Move, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.operate.audit import Discrepancy, Kind, audit, up_to
from offsetkeeper.stores.memory import MemoryStore

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(MemoryStore(f"memory://{secrets.token_hex(8)}"), "g", name="host:1")
    ledger.acquire()
    ledger.place({A: Position(0), B: Position(5)}, reason="plan")
    ledger.commit(ledger.batch([OffsetRange(*A, 0, 10)]))
    ledger.commit(ledger.batch([OffsetRange(*A, 10, 20), OffsetRange(*B, 5, 6)]))
    return ledger


def found(ledger: Ledger, entries: int = 1000) -> list[Discrepancy]:
    return audit(ledger.history(entries)[::-1], ledger.load())


def test_batches_that_follow_one_another_are_no_finding(ledger: Ledger) -> None:
    assert found(ledger) == []


def test_a_rewind_is_an_overlap_with_its_reason(ledger: Ledger) -> None:
    ledger.rewind({A: Position(15)}, "a bad release")
    assert found(ledger) == [Discrepancy(Kind.OVERLAP, A, 15, 20, 5, "rewind by host:1: a bad release")]
    assert found(ledger)[0].explained


def test_a_jump_forwards_is_a_gap(ledger: Ledger) -> None:
    ledger.rewind({B: Position(100)}, "skip")
    assert [str(each) for each in found(ledger)] == ["gap b 1 6 100: rewind by host:1: skip (version 5)"]


def test_a_rewind_that_was_undone_has_left_nothing(ledger: Ledger) -> None:
    """Each offset was committed once."""
    ledger.rewind({A: Position(15)}, "a bad release")
    ledger.rewind({A: Position(20)}, "undo of version 5")
    assert found(ledger) == []
    ledger.rewind({B: Position(100)}, "skip")
    ledger.rewind({B: Position(6)}, "undo of version 7")
    assert found(ledger) == []


def test_only_what_was_read_before_an_undo_was_committed_twice(ledger: Ledger) -> None:
    ledger.rewind({A: Position(5)}, "a bad release")
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*A, 5, 7)]))
    ledger.commit(ledger.batch([OffsetRange(*A, 7, 8)]))
    ledger.rewind({A: Position(20)}, "undo of version 5")
    assert found(ledger) == [Discrepancy(Kind.OVERLAP, A, 5, 8, 5, "rewind by host:1: a bad release")]
    ledger.rewind({A: Position(7)}, "once more")
    assert [str(each) for each in found(ledger)] == [
        "overlap a 0 5 8: rewind by host:1: a bad release (version 5)",
        "overlap a 0 7 20: rewind by host:1: once more (version 10)",
    ]


def test_a_gap_that_was_read_later_is_none(ledger: Ledger) -> None:
    ledger.rewind({A: Position(30)}, "skip")
    ledger.rewind({A: Position(20)}, "read them after all")
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*A, 20, 25)]))
    assert found(ledger) == []


@pytest.mark.parametrize(
    ("offset", "told"), [(0, []), (7, [Discrepancy(Kind.GAP, A, 0, 7, 6, "place by host:1: topic made again")])]
)
def test_a_topic_that_was_made_again_begins_a_new_chapter(ledger: Ledger, offset: int, told: list[Discrepancy]) -> None:
    """Its offsets are of other records."""
    ledger.rewind({A: Position(20, "first")}, "ids")
    ledger.acquire()
    ledger.place({A: Position(offset, "second")}, reason="topic made again")
    told = [replace(each, version=ledger.snapshot.version) for each in told]
    assert found(ledger) == told
    ledger.commit(ledger.batch([OffsetRange(*A, offset, 15)]))
    assert found(ledger) == told
    ledger.rewind({A: Position(10, "second")}, "again")
    assert found(ledger)[len(told) :] == [
        Discrepancy(Kind.OVERLAP, A, 10, 15, ledger.snapshot.version, "rewind by host:1: again")
    ]


@pytest.mark.parametrize(("offset", "kind"), [(25, Kind.GAP), (12, Kind.OVERLAP)])
def test_an_edit_from_outside_is_told_as_such(ledger: Ledger, offset: int, kind: Kind) -> None:
    """While nothing was committed since, and after it was built upon."""
    store = ledger.store
    assert isinstance(store, MemoryStore)
    store.memory.positions["g"][A] = Position(offset)
    low, high = sorted((20, offset))
    assert found(ledger) == [Discrepancy(kind, A, low, high, 4, "")]
    ledger.commit(ledger.batch([OffsetRange(*A, offset, 30)]))
    assert found(ledger) == [Discrepancy(kind, A, low, high, 5, "")]
    assert not found(ledger)[0].explained
    assert "nothing in the history explains it" in str(found(ledger)[0])


def test_what_was_pruned_raises_no_findings(ledger: Ledger) -> None:
    assert found(ledger, entries=1) == []


def test_a_batch_begun_and_abandoned_moved_nothing(ledger: Ledger) -> None:
    ledger.begin(ledger.batch([OffsetRange(*A, 20, 30)]))
    ledger.abandon("other ranges")
    assert found(ledger) == []


def drop(ledger: Ledger, to: dict[TopicPartition, Position], having: Having) -> list[str]:
    """Drop a batch that outputs have by a reset, settle it, read on; return the findings."""
    ledger.begin(ledger.batch([OffsetRange(*A, 20, 30), OffsetRange(*B, 6, 9)]), lands_in=["table"])
    ledger.rewind(to, "reset")
    ledger.acquire()
    ledger.settle("told", {"table": ""}, having)
    at = ledger.snapshot.positions
    ranges = [OffsetRange(*tp, at[tp].offset, end) for tp, end in ((A, 30), (B, 9)) if at[tp].offset < end]
    if ranges:
        ledger.commit(ledger.batch(ranges))
    return [str(each).partition(":")[0] for each in found(ledger)]


def test_what_all_outputs_have_of_a_dropped_batch_is_no_gap_and_comes_again_where_it_is_read_again(
    ledger: Ledger,
) -> None:
    assert drop(ledger, {B: Position(9)}, Having.ALL) == []
    assert ledger.snapshot.positions == {A: Position(30), B: Position(9)}


def test_what_is_read_again_of_a_dropped_batch_is_an_overlap(ledger: Ledger) -> None:
    assert drop(ledger, {B: Position(7)}, Having.ALL) == ["overlap b 1 7 9"]


def test_what_some_outputs_have_of_a_dropped_batch_is_an_overlap_or_a_gap(ledger: Ledger) -> None:
    assert drop(ledger, {B: Position(8)}, Having.SOME) == ["gap b 1 6 8", "overlap a 0 20 30", "overlap b 1 8 9"]


def test_what_no_output_has_of_a_dropped_batch_is_read_once(ledger: Ledger) -> None:
    assert drop(ledger, {B: Position(9)}, Having.NONE) == ["gap b 1 6 9"]


def test_what_was_read_again_and_dropped_once_it_had_landed_is_there_twice(ledger: Ledger) -> None:
    """A reset goes back over what was committed, and another one forwards, over the batch that has landed."""
    ledger.rewind({A: Position(10)}, "again")
    ledger.begin(ledger.batch([OffsetRange(*A, 10, 20)]), lands_in=["table"])
    ledger.rewind({A: Position(20)}, "no, not again")
    ledger.acquire()
    ledger.settle("told", {"table": ""}, Having.ALL)
    assert [str(each).partition(":")[0] for each in found(ledger)] == ["overlap a 0 10 20"]


def test_what_some_outputs_have_of_a_batch_comes_again_where_a_later_reset_goes_back(ledger: Ledger) -> None:
    assert drop(ledger, {A: Position(30), B: Position(9)}, Having.SOME) == ["gap a 0 20 30", "gap b 1 6 9"]
    ledger.rewind({A: Position(25)}, "back")
    ledger.commit(ledger.batch([OffsetRange(*A, 25, 30)]))
    told = [str(each).partition(":")[0] for each in found(ledger)]
    assert told == ["gap a 0 20 25", "gap b 1 6 9", "overlap a 0 25 30"]


def test_what_some_outputs_had_of_a_log_that_was_cut_is_no_overlap(ledger: Ledger) -> None:
    """Other records have these offsets since."""
    assert drop(ledger, {A: Position(30), B: Position(9)}, Having.SOME) == ["gap a 0 20 30", "gap b 1 6 9"]
    ledger.place({A: Position(15)}, reason="plan", cuts={A: 15})
    ledger.commit(ledger.batch([OffsetRange(*A, 15, 40)]))
    ledger.rewind({A: Position(20)}, "back")
    ledger.rewind({A: Position(40)}, "undo")
    told = [str(each).partition(":")[0] for each in found(ledger)]
    assert told == ["gap b 1 6 9", "cut a 0 15 20"]


def test_what_outputs_have_of_an_abandoned_batch_comes_again(ledger: Ledger) -> None:
    ledger.begin(ledger.batch([OffsetRange(*A, 20, 30)]))
    ledger.abandon("table has it", having=Having.SOME)
    assert [str(each) for each in found(ledger)] == ["overlap a 0 20 30: abandon by host:1: table has it (version 6)"]


def dropped(ledger: Ledger, to: dict[TopicPartition, Position]) -> list[str]:
    """Drop a batch by a reset, which an output without a mark may have; return the findings."""
    ledger.acquire()
    at = ledger.snapshot.positions[A].offset
    ledger.begin(ledger.batch([OffsetRange(*A, at, at + 10)]))
    ledger.rewind(to, "reset")
    return told(ledger)


def told(ledger: Ledger) -> list[str]:
    return [str(each).partition(":")[0] for each in found(ledger)]


def test_what_an_output_without_a_mark_may_have_of_a_dropped_batch_may_be_there_twice(ledger: Ledger) -> None:
    """`verify` was silent about it."""
    assert dropped(ledger, {A: Position(15)}) == ["overlap a 0 15 20", "maybe twice a 0 20 30"]
    assert found(ledger)[-1].explained
    ledger.acquire()
    ledger.commit(ledger.batch([OffsetRange(*A, 15, 25)]))
    ledger.rewind({A: Position(30)}, "the rest was there")
    assert told(ledger) == ["overlap a 0 15 20", "maybe twice a 0 20 25", "gap a 0 25 30"]


def test_a_batch_that_another_program_takes_over_may_be_in_the_outputs_of_both(ledger: Ledger) -> None:
    """If the other one drops it, the first program reads its records again, and is told nothing by its mark."""
    ledger.begin(batch := ledger.batch([OffsetRange(*A, 20, 30)]), ["table"])
    ledger.begin(batch, ["table"], program=Program(("a",), {"table": "Table x"}))
    ledger.abandon("other ranges", {"table": ""})
    assert told(ledger) == ["maybe twice a 0 20 30"]


def test_a_batch_that_an_adoption_passes_may_be_there_twice(ledger: Ledger) -> None:
    """It was dropped without a trace."""
    ledger.begin(ledger.batch([OffsetRange(*A, 20, 30)]))
    ledger.adopt("table", 9, "restored")
    assert told(ledger) == ["maybe twice a 0 20 30"]
    assert found(ledger)[-1].explained


def test_what_may_be_there_and_is_skipped_is_a_gap_until_a_later_reset_goes_back(ledger: Ledger) -> None:
    assert dropped(ledger, {A: Position(30)}) == ["gap a 0 20 30"]
    ledger.rewind({A: Position(24)}, "back")
    assert told(ledger) == ["gap a 0 20 24", "maybe twice a 0 24 30"]


def test_what_may_be_there_of_several_tries_may_be_there_more_often(ledger: Ledger) -> None:
    dropped(ledger, {A: Position(18)})
    assert dropped(ledger, {A: Position(17)}) == [
        "overlap a 0 18 20",
        "maybe twice a 0 20 30",
        "overlap a 0 17 18",
        "maybe twice a 0 18 28",
    ]


def test_what_an_output_has_that_is_written_before_others_comes_again(ledger: Ledger) -> None:
    batch = ledger.batch([OffsetRange(*A, 20, 30)])
    ledger.begin(batch)
    ledger.note_written(batch, "one")
    ledger.rewind({A: Position(15)}, "reset")
    assert told(ledger) == ["overlap a 0 15 30"]


def test_of_a_topic_that_was_made_again_nothing_may_be_there(ledger: Ledger) -> None:
    ledger.place({A: Position(20, "of then")})
    assert dropped(ledger, {A: Position(0, "of now")}) == []


def test_what_may_have_been_there_of_a_log_that_was_cut_is_gone(ledger: Ledger) -> None:
    assert dropped(ledger, {A: Position(30)}) == ["gap a 0 20 30"]
    ledger.acquire()
    ledger.place({A: Position(20)}, reason="plan", cuts={A: 20})
    assert told(ledger) == []


def test_a_finding_goes_to_json() -> None:
    assert Discrepancy(Kind.GAP, A, 1, 3, 7, "").as_dict() == {
        "kind": "gap",
        "topic": "a",
        "partition": 0,
        "start": 1,
        "end": 3,
        "version": 7,
        "why": "",
        "explained": False,
    }


def test_committed_records_that_were_cut_from_a_log_are_told_and_nothing_else(ledger: Ledger) -> None:
    """Reading goes on where the logs part: what is read there has never been read."""
    ledger.place({A: Position(12)}, reason="plan", cuts={A: 12})
    told = [Discrepancy(Kind.CUT, A, 12, 20, 5, "place by host:1: plan")]
    assert found(ledger) == told
    ledger.commit(ledger.batch([OffsetRange(*A, 12, 30)]))
    assert found(ledger) == told


@pytest.mark.parametrize(
    ("start", "lines"),
    [
        pytest.param(0, ["overlap a 0 0 12", "cut a 0 12 20"], id="beginning"),
        pytest.param(15, ["gap a 0 12 15", "cut a 0 12 20"], id="the end, before the old position"),
        pytest.param(40, ["gap a 0 12 40", "cut a 0 12 20"], id="the end, after it"),
    ],
)
def test_a_policy_for_a_cut_log_reads_again_or_skips_what_the_log_kept_or_got(
    ledger: Ledger, start: int, lines: list[str]
) -> None:
    """The records that are gone are counted apart: they are neither read again nor left out."""
    ledger.place({A: Position(start)}, reason="plan", cuts={A: 12})
    ledger.commit(ledger.batch([OffsetRange(*A, start, 50)]))
    assert [str(each).partition(":")[0] for each in found(ledger)] == lines


def test_where_nobody_knows_where_a_log_was_cut_all_that_is_read_anew_may_be_gone(ledger: Ledger) -> None:
    """The brokers do not tell how many of the committed records they kept."""
    ledger.place({A: Position(3)}, reason="plan", cuts={A: -1})
    assert [str(each).partition(":")[0] for each in found(ledger)] == ["cut a 0 3 20"]


def test_a_log_that_is_cut_twice_is_told_twice(ledger: Ledger) -> None:
    """The second cut takes records that came after the first."""
    ledger.place({A: Position(12)}, reason="plan", cuts={A: 12})
    ledger.commit(ledger.batch([OffsetRange(*A, 12, 18)]))
    ledger.place({A: Position(8)}, reason="plan", cuts={A: 8})
    assert [str(each).partition(":")[0] for each in found(ledger)] == ["cut a 0 12 20", "cut a 0 8 18"]


def memory_of(ledger: Ledger) -> Any:
    assert isinstance(ledger.store, MemoryStore)
    return ledger.store.memory


def test_a_position_that_is_gone_is_told_and_that_it_was_placed_again(ledger: Ledger) -> None:
    """The next run places the partition at its beginning, and would commit all of it once more."""
    del memory_of(ledger).positions["g"][A]
    assert found(ledger) == [Discrepancy(Kind.VANISHED, A, 20, 20, 4, "")]
    ledger.load()
    ledger.acquire()
    ledger.place({A: Position(3)}, reason="plan")
    assert found(ledger) == [Discrepancy(Kind.OVERLAP, A, 3, 20, 6, "")]
    ledger.commit(ledger.batch([OffsetRange(*A, 3, 30)]))
    assert found(ledger) == [Discrepancy(Kind.OVERLAP, A, 3, 20, 6, "")]


def test_all_positions_gone_and_a_start_at_the_latest_is_a_gap(ledger: Ledger) -> None:
    memory_of(ledger).positions["g"].clear()
    ledger.load()
    ledger.acquire()
    ledger.place({A: Position(50), B: Position(6)}, reason="plan")
    assert found(ledger) == [Discrepancy(Kind.GAP, A, 20, 50, 6, "")]


def test_changes_that_the_history_has_lost_are_told(ledger: Ledger) -> None:
    kept = ledger.history(1000)
    assert audit([kept[3], kept[2], kept[0]], ledger.load()) == [
        Discrepancy(Kind.MISSING, None, 3, 4, 4, ""),
        Discrepancy(Kind.GAP, A, 0, 10, 4, ""),
    ]
    newest_gone = audit(kept[:0:-1], ledger.load())
    assert newest_gone[0] == Discrepancy(Kind.MISSING, None, 4, 5, 5, "")


def test_a_history_that_is_gone_is_told(ledger: Ledger) -> None:
    """The newest change always has an entry, however few are kept."""
    assert audit([], ledger.load()) == [Discrepancy(Kind.MISSING, None, 4, 5, 5, "")]
    assert audit([], Snapshot("g", positions={A: Position(3)})) == []  # offsets that another program stored


def test_a_ledger_that_is_older_than_its_history_is_told(ledger: Ledger) -> None:
    """Its row was restored from a backup, or deleted."""
    entries, old = ledger.history(1000), Snapshot("g", version=2, positions={A: Position(20), B: Position(6)})
    assert audit(up_to(old, entries, lambda: old)[::-1], old) == [Discrepancy(Kind.MISSING, None, 3, 5, 2, "")]
    assert [entry.version for entry in up_to(old, entries, ledger.load)] == [2, 1]  # a run has committed since


def test_another_topic_id_is_told(ledger: Ledger) -> None:
    ledger.rewind({A: Position(20, "first")}, "ids")
    memory_of(ledger).positions["g"][A] = Position(20, "other")
    assert found(ledger) == [Discrepancy(Kind.TOPIC_ID, A, 20, 20, 5, "")]


def test_changes_that_are_missing_go_to_json() -> None:
    told = Discrepancy(Kind.MISSING, None, 3, 5, 7, "").as_dict()
    assert (told["kind"], told["topic"], told["partition"], told["start"]) == ("missing", None, None, 3)


steps = st.lists(st.tuples(st.sampled_from(["commit", "rewind", "edit"]), st.integers(0, 20), st.integers(1, 5)))


@given(steps)
def test_every_offset_is_told_as_often_as_it_was_missed_or_repeated(drawn: list[tuple[str, int, int]]) -> None:
    """Held against a count of every offset that was committed."""
    at, committed, entries = 0, [0] * 200, []
    first = True
    for version, (event, offset, size) in enumerate(drawn, 1):
        entry = Entry(version, event, "id", 0, "me")
        if event == "commit":
            entries.append(replace(entry, ranges=(OffsetRange(*A, at, at + size),)))
            for each in range(at, at + size):
                committed[each] += 1
            at += size
        elif event == "rewind":
            entries.append(replace(entry, moves={A: Move(Position(at), Position(offset))}))
            at = offset
        elif not first:
            at = offset
        first = first and event == "edit"
    entries = [replace(entry, version=version) for version, entry in enumerate(entries, 1)]  # an edit has none
    told = audit(entries, Snapshot("g", version=len(entries), positions={A: Position(at)}))
    start = entries[0].ranges[0].start if entries and entries[0].ranges else 0
    missed, repeated = [0] * 200, [0] * 200
    for one in told:
        for place in range(one.start, one.end):
            (missed if one.kind is Kind.GAP else repeated)[place] += 1
    times = [count + (offset < start) for offset, count in enumerate(committed)]
    assert missed == [int(offset < at and not count) for offset, count in enumerate(times)]
    assert repeated == [max(0, count - (offset < at)) for offset, count in enumerate(times)]
