"""A ledger from one store into another: whole, compared, gone on with after a crash, and nothing written over."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from offsetkeeper.core.batch import Batch, Output
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark, check_marks
from offsetkeeper.core.model import Change, Entry, Having, Landed, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Ability, Store
from offsetkeeper.errors import (
    CorruptStore,
    Fenced,
    GuaranteeRefused,
    MarkBehind,
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    VersionConflict,
)
from offsetkeeper.operate.audit import Kind, audit, what_was_read
from offsetkeeper.operate.copy import copy, preview
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.stores.sqlite import SQLiteStore
from offsetkeeper.testing.faults import Fault, faulty

A, B = TopicPartition("a", 0), TopicPartition("b", 7)


def fresh() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(8)}")


@pytest.fixture
def source() -> MemoryStore:
    """A store in which a run has committed twice, begun a third batch, and ended."""
    store = fresh()
    ledger = Ledger(store, "g", name="host:1")
    ledger.acquire("start")
    ledger.place({A: Position(0, "id"), B: Position(5)})
    ledger.commit(ledger.batch([OffsetRange(*A, 0, 3)]))
    ledger.commit(ledger.batch([OffsetRange(*A, 3, 4), OffsetRange(*B, 5, 6)]))
    ledger.begin(ledger.batch([OffsetRange(*A, 4, 9)]))
    ledger.release()
    return store


@pytest.fixture
def target() -> MemoryStore:
    return fresh()


def told(store: Store) -> list[Entry]:
    """The history, oldest first, without the versions, which count each store's own changes."""
    return [replace(entry, version=0) for entry in store.history("g", 1000)][::-1]


def essence(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, version=0, change_id="")


def test_everything_is_copied_and_the_history_says_so(source: MemoryStore, target: MemoryStore) -> None:
    found = copy("g", source, target)
    assert found == target.load("g")
    assert essence(found) == essence(source.load("g"))
    *copied, last = told(target)
    assert copied == told(source)
    assert (last.event, last.actor, last.reason) == ("copy", "copy", f"copied from {source.address}, version 6")
    assert [entry.version for entry in target.history("g", 100)] == [7, 6, 5, 4, 3, 2, 1]


def test_the_next_run_goes_on_with_the_same_batch_under_the_same_identity(
    source: MemoryStore, target: MemoryStore
) -> None:
    copy("g", source, target)
    ledger = Ledger(target, "g")
    pending = ledger.acquire().pending
    assert pending == source.load("g").pending
    assert pending is not None
    ledger.commit(pending)
    assert ledger.snapshot.positions[A] == Position(9, "id")


def test_the_newest_entries_are_copied_where_the_target_keeps_fewer(source: MemoryStore) -> None:
    target = MemoryStore(f"memory://{secrets.token_hex(8)}?history=3")
    copy("g", source, target)
    assert [entry.event for entry in told(target)] == ["begin", "release", "copy"]


def test_as_many_entries_as_asked_for_are_copied(source: MemoryStore, target: MemoryStore) -> None:
    copy("g", source, target, history=0)
    assert [entry.event for entry in told(target)] == ["copy"]
    assert essence(target.load("g")) == essence(source.load("g"))


def test_a_store_without_history_gets_the_state_in_one_step(source: MemoryStore, target: MemoryStore) -> None:
    target.abilities = MemoryStore.abilities - {Ability.HISTORY}
    assert copy("g", source, target).version == 1


def test_copied_again_nothing_changes(source: MemoryStore, target: MemoryStore) -> None:
    first = copy("g", source, target)
    assert copy("g", source, target) == first


def test_copied_again_after_the_source_moved_the_target_moves_only_when_asked(
    source: MemoryStore, target: MemoryStore
) -> None:
    before = copy("g", source, target)
    ledger = Ledger(source, "g")
    ledger.load()
    ledger.rewind({A: Position(0)}, "again")
    with pytest.raises(NotAllowed, match="at other positions: copy with overwrite"):
        copy("g", source, target)
    assert target.load("g") == before
    copy("g", source, target, overwrite=True)
    assert essence(target.load("g")) == essence(source.load("g"))
    assert [entry.event for entry in told(target)][-3:] == ["copy", "rewind", "copy"]


def test_a_copy_of_another_source_is_written_over_only_when_asked(source: MemoryStore, target: MemoryStore) -> None:
    other = fresh()
    Ledger(other, "g").rewind({A: Position(1), B: Position(1)}, "another")
    before = copy("g", source, target)
    with pytest.raises(NotAllowed, match="overwrite"):
        copy("g", other, target)
    assert target.load("g") == before
    copy("g", other, target, overwrite=True)
    assert target.load("g").positions == other.load("g").positions


def cut_off(source: MemoryStore, target: MemoryStore) -> None:
    """Copy, and die after two entries."""
    failing = faulty(target)
    failing.arm(Fault.REPLY_LOST, 3)
    with pytest.raises(OutcomeUnknown):
        copy("g", source, failing, retry_timeout_s=0)
    assert [entry.event for entry in told(target)] == ["acquire", "place"]


def test_a_copy_that_was_cut_off_goes_on_after_its_source_moved_only_when_asked(
    source: MemoryStore, target: MemoryStore
) -> None:
    cut_off(source, target)
    ledger = Ledger(source, "g")
    ledger.load()
    ledger.rewind({A: Position(0)}, "again")
    with pytest.raises(NotAllowed, match="overwrite"):
        copy("g", source, target)
    copy("g", source, target, overwrite=True)
    assert told(target)[:-1] == told(source)


def test_a_copy_that_was_cut_off_is_not_gone_on_with_from_another_source(
    source: MemoryStore, target: MemoryStore
) -> None:
    other = fresh()
    Ledger(other, "g").rewind({A: Position(1), B: Position(1)}, "another")
    cut_off(source, target)
    with pytest.raises(NotAllowed, match="overwrite"):
        copy("g", other, target)
    assert copy("g", other, target, overwrite=True).owner is None
    assert [entry.event for entry in told(target)] == ["acquire", "place", "copy"]


def test_what_another_program_wrote_after_a_copy_was_cut_off_is_written_over_only_when_asked(
    source: MemoryStore, target: MemoryStore
) -> None:
    cut_off(source, target)
    target.memory.positions["g"][A] = Position(77)
    with pytest.raises(NotAllowed, match="overwrite"):
        copy("g", source, target)
    copy("g", source, target, overwrite=True)
    assert target.load("g").positions == source.load("g").positions


@pytest.mark.parametrize("fault", Fault)
def test_cut_off_anywhere_it_never_leaves_wrong_positions_and_can_be_run_again(
    source: MemoryStore, fault: Fault
) -> None:
    """At each call, before or after its effect: the target is empty or stands where the source does."""
    wanted, nth, fired = source.load("g"), 1, True
    while fired:
        target = fresh()
        failing = faulty(target)
        failing.arm(fault, nth)
        try:
            copy("g", source, failing, retry_timeout_s=0)
        except OffsetkeeperError:
            found = target.load("g")
            assert (found.positions, found.pending) == (
                (wanted.positions, wanted.pending) if found.version else ({}, None)
            )
        fired, nth = failing.armed is None, nth + 1
        copy("g", source, target)
        assert essence(target.load("g")) == essence(wanted)
        assert [entry.change_id for entry in told(target)][:-1] == [entry.change_id for entry in told(source)]
    assert nth > 8


def test_a_run_that_takes_the_target_meanwhile_stops_the_copy(source: MemoryStore, target: MemoryStore) -> None:
    class Raced(MemoryStore):
        def apply(self, change: Change) -> None:
            if change.after.version == 3:
                Ledger(target, "g").acquire()
            super().apply(change)

    with pytest.raises(VersionConflict):
        copy("g", source, Raced(target.address))
    assert target.load("g").positions == source.load("g").positions


@pytest.mark.parametrize("held", ["source", "target"])
def test_it_is_refused_while_a_run_holds_the_group(source: MemoryStore, target: MemoryStore, held: str) -> None:
    Ledger({"source": source, "target": target}[held], "g", name="host:9").acquire()
    before = target.load("g")
    with pytest.raises(Fenced, match="held by host:9"):
        copy("g", source, target)
    assert target.load("g") == before


def test_with_force_a_source_that_died_is_copied_and_held_by_nobody(source: MemoryStore, target: MemoryStore) -> None:
    Ledger(source, "g").acquire()
    assert copy("g", source, target, force=True).owner is None
    assert source.load("g").owner is not None


def other_ledger(target: MemoryStore) -> None:
    ledger = Ledger(target, "g")
    ledger.acquire()
    ledger.place({A: Position(77)})
    ledger.release()


def other_positions(target: MemoryStore) -> None:
    target.memory.positions["g"] = {A: Position(77)}


@pytest.mark.parametrize("occupy", [other_ledger, other_positions])
def test_a_target_that_is_not_empty_is_written_over_only_when_asked(
    source: MemoryStore, target: MemoryStore, occupy: Callable[[MemoryStore], None]
) -> None:
    occupy(target)
    before = target.load("g")
    with pytest.raises(NotAllowed, match="overwrite"):
        copy("g", source, target)
    assert target.load("g") == before
    copy("g", source, target, overwrite=True)
    assert target.load("g").positions == source.load("g").positions
    assert target.load("g").version > before.version


def test_a_position_that_only_the_target_has_is_never_left_beside_the_others(
    source: MemoryStore, target: MemoryStore
) -> None:
    target.memory.positions["g"] = {TopicPartition("old", 1): Position(3)}
    with pytest.raises(NotAllowed, match="old 1"):
        copy("g", source, target, overwrite=True)
    assert target.load("g").version == 0


def test_positions_without_a_ledger_are_copied_and_begin_one(target: MemoryStore) -> None:
    source = fresh()
    source.memory.positions["g"] = {A: Position(3)}
    found = copy("g", source, target)
    assert (found.positions, found.version) == ({A: Position(3)}, 1)
    assert source.load("g").version == 0


def test_what_cannot_be_copied_is_told(source: MemoryStore, target: MemoryStore) -> None:
    with pytest.raises(NotAllowed, match="neither a ledger nor positions"):
        copy("g", target, source)
    target.abilities = frozenset()
    with pytest.raises(GuaranteeRefused, match="only be read"):
        copy("g", source, target)


def test_a_target_that_keeps_its_own_history_is_told(source: MemoryStore, target: MemoryStore) -> None:
    """The help said that the history is copied; over one that has gone on it is not."""
    [begun] = preview("g", source, target).notes  # of the batch under way
    copy("g", source, target)
    assert preview("g", source, target).notes == [begun]
    for store in (source, target):
        ledger = Ledger(store, "g")
        ledger.load()
        ledger.rewind({A: Position(1, "id")}, f"a reset in {store.address}")
    ledger.rewind({A: Position(2, "id")}, "and one more")
    [note] = preview("g", target, source, overwrite=True).notes
    assert note.startswith("the target keeps its own history, and gets one entry for the copy: ")
    copy("g", target, source, overwrite=True)
    newest = source.history("g", 1)[0]
    assert (newest.event, [entry.event for entry in source.history("g", 100)].count("rewind")) == ("copy", 1)


def test_a_batch_that_only_the_target_has_begun_is_dropped_in_the_history_too(
    source: MemoryStore, target: MemoryStore
) -> None:
    """It was dropped without a word, and what outputs have of it came twice."""
    copy("g", source, target)
    read_on(source, 2)
    there = Ledger(target, "g")
    there.acquire()
    there.abandon("to begin anew")
    there.begin(batch := there.batch([OffsetRange(*A, 4, 7)]))
    there.release()
    plan = preview("g", source, target, overwrite=True)
    assert plan.drops == batch
    assert plan.notes[-1].endswith("may have its records, and get them twice if they are read again: a 0 4 7")
    copied = copy("g", source, target, overwrite=True)
    newest = target.history("g", 1)[0]
    assert (newest.event, newest.ranges, newest.having) == ("copy", batch.ranges, Having.MAYBE)
    read_on(target, 9)
    found = audit(target.history("g", 1000)[::-1], target.load("g"))
    assert [(each.kind, each.start, each.end) for each in found if each.kind is Kind.MAYBE_TWICE] == [
        (Kind.MAYBE_TWICE, copied.positions[A].offset, 7)
    ]


def read_on(store: Store, by: int) -> None:
    """Let a run read on and end."""
    ledger = Ledger(store, "g")
    pending = ledger.acquire().pending
    if pending is not None:
        ledger.abandon("to begin anew")
    at = ledger.snapshot.positions[A].offset
    ledger.commit(ledger.batch([OffsetRange(*A, at, at + by)]))
    ledger.release()


def check_is_whole(store: Store) -> None:
    """Check that the history has all that was read, and no jump."""
    found = store.load("g")
    entries = store.history("g", 1000)
    assert audit(entries[::-1], found) == []
    assert what_was_read(entries, found, found.positions)[A].between(0, 1000) == found.positions[A].offset


def test_copied_back_the_history_has_what_was_read_meanwhile(source: MemoryStore, target: MemoryStore) -> None:
    """`verify` found a gap, and a preview said that the records were not read."""
    check_is_whole(source)
    for here, there in ((source, target), (target, source), (source, target)):
        read_on(here, 10)
        overwrite = bool(there.load("g").version)
        assert preview("g", here, there, overwrite=overwrite).notes == []
        copy("g", here, there, overwrite=overwrite)
        check_is_whole(there)
        assert [replace(entry, version=0) for entry in there.history("g", 1000)][1:] == told(here)[::-1]


def test_copied_once_more_the_history_has_what_was_read_meanwhile(source: MemoryStore, target: MemoryStore) -> None:
    for _ in range(3):
        copy("g", source, target, overwrite=True)
        check_is_whole(target)
        read_on(source, 10)


def test_after_a_copy_that_moved_positions_the_history_of_the_source_does_not_follow(
    source: MemoryStore, target: MemoryStore
) -> None:
    copy("g", source, target)
    other = fresh()
    Ledger(other, "g").rewind({A: Position(50), B: Position(6)}, "another")
    copy("g", other, target, overwrite=True)
    read_on(source, 10)
    [note] = preview("g", source, target, overwrite=True).notes
    assert note.startswith("the target keeps its own history")
    copy("g", source, target, overwrite=True)
    assert [entry.event for entry in told(target)][-2:] == ["copy", "copy"]
    assert all(each.explained for each in audit(target.history("g", 1000)[::-1], target.load("g")))


def test_a_copy_back_that_is_cut_off_is_gone_on_with(source: MemoryStore, target: MemoryStore) -> None:
    copy("g", source, target)
    read_on(target, 10)
    failing = faulty(source)
    failing.arm(Fault.REPLY_LOST, 4)
    with pytest.raises(OutcomeUnknown):
        copy("g", target, failing, overwrite=True, retry_timeout_s=0)
    assert source.load("g").owner is not None
    copy("g", target, source, overwrite=True)
    check_is_whole(source)


def test_over_a_damaged_history_none_follows(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy("g", source, target)
    read_on(target, 10)

    def damaged(group: str, limit: int = 100) -> list[Entry]:
        raise CorruptStore(f"entry {limit} of {group} is damaged")

    with monkeypatch.context() as patched:
        patched.setattr(source, "history", damaged)
        copy("g", target, source, overwrite=True)
    assert [entry.event for entry in told(source)].count("copy") == 1


def test_a_forgotten_row_stays_in_its_store_and_counts_in_no_copy(source: MemoryStore, target: MemoryStore) -> None:
    """The copy has the positions; the row of the target is checked and written over if the source has a position."""
    there = Ledger(target, "g")
    there.acquire()
    there.place({A: Position(1), TopicPartition("c", 0): Position(8)})
    there.forget([A, TopicPartition("c", 0)], "to be replaced")
    there.release()
    copied = copy("g", source, target, overwrite=True)
    assert target.load("g") == copied
    assert (copied.positions, [*copied.forgotten]) == (source.load("g").positions, [TopicPartition("c", 0)])
    with pytest.raises(NotAllowed, match="a row of c 0, which was forgotten, and format 3 cannot say so"):
        copy("g", source, target, overwrite=True, format=3)
    ledger = Ledger(source, "g")
    ledger.load()
    ledger.forget([B], "never read")
    elsewhere = fresh()
    assert copy("g", source, elsewhere).positions.keys() == {A}
    assert [entry.forgot for entry in elsewhere.history("g", 2)] == [{}, {B: Position(6)}]


def test_what_the_source_has_forgotten_is_taken_out_of_a_target_that_has_it_in_a_batch_under_way(
    source: MemoryStore, target: MemoryStore
) -> None:
    """`forget` is refused there, and a start would deal with a batch that the source has dealt with already."""
    copy("g", source, target)
    there, here = Ledger(target, "g"), Ledger(source, "g")
    assert (there.load().pending or Batch("", "", 0, ())).partitions == {A}
    here.acquire()
    here.commit(here.batch([OffsetRange(*A, 4, 9)]))
    here.release()
    here.forget([A], "reads it no more")
    with pytest.raises(NotAllowed, match="pending"):
        there.forget([A], "reads it no more")
    with pytest.raises(NotAllowed, match="a row of a 0, which the source does not have, and format 3 cannot say so"):
        copy("g", source, target, overwrite=True, format=3)
    plan = preview("g", source, target, overwrite=True)
    assert plan.takes_out == (A,)
    assert plan.notes[-1].endswith("so the copy takes those of the target out, as forget does: a 0")
    copied = copy("g", source, target, overwrite=True)
    assert (copied.positions, copied.pending) == ({B: Position(6)}, None)
    assert copied.forgotten == {A: Position(4, "id")}
    assert [[*entry.forgot] for entry in target.history("g", 2)] == [[], [A]]  # as the source says it
    assert [each for each in audit(target.history("g", 1000)[::-1], copied) if each.kind is Kind.VANISHED] == []
    assert preview("g", source, target, overwrite=True).takes_out == ()


def test_a_position_that_the_source_has_lost_takes_out_none_of_the_target(
    source: MemoryStore, target: MemoryStore
) -> None:
    """The copy forgot the one that was left, and failed only then."""
    copy("g", source, target)
    del source.memory.positions["g"][B]
    before = target.load("g")
    for refused in (copy, preview):
        with pytest.raises(NotAllowed, match=r"has a position of b 7, which the source has lost") as raised:
            refused("g", source, target, overwrite=True)
        assert str(raised.value).endswith(
            "both with --store of the source (with all its settings): offsetkeeper forget g b:7"
        )
    assert target.load("g") == before
    ledger = Ledger(source, "g")
    ledger.load()
    ledger.forget([B], "lost", force=True)
    copy("g", source, target, overwrite=True)
    assert B not in target.load("g").positions


def test_a_position_that_only_a_target_without_a_ledger_has_is_taken_out_of_the_target(
    source: MemoryStore, target: MemoryStore
) -> None:
    other = TopicPartition("c", 1)
    target.memory.positions["g"] = {other: Position(3)}
    with pytest.raises(NotAllowed, match="which the source does not have: take it out of the target") as raised:
        copy("g", source, target, overwrite=True)
    assert str(raised.value).endswith(
        "first, with --store of the target (with all its settings): offsetkeeper forget g c:1"
    )


def test_a_refused_copy_between_two_tables_of_a_file_prints_no_command_for_the_other_one(tmp_path: Path) -> None:
    """Their addresses are the same: the printed command led from the table of the source to that of the target."""
    url = f"sqlite:///{tmp_path}/offsets.db"
    source, target = SQLiteStore(f"{url}?table=new"), SQLiteStore(url)
    for store, group in ((source, "g"), (target, "other")):
        ledger = Ledger(store, group)
        ledger.acquire()
        ledger.place({A: Position(5)})
        ledger.release()
    with closing(sqlite3.connect(tmp_path / "offsets.db")) as rows, rows:
        rows.execute("insert into kafka_offsets (topic, group_id, partition, offset) values ('c', 'g', 1, 3)")
    with pytest.raises(NotAllowed, match="take it out of the target first, with --store of the target") as raised:
        copy("g", source, target, overwrite=True)
    assert f"--store {target.address}" not in str(raised.value)


def test_a_copy_that_is_made_again_writes_nothing(source: MemoryStore, target: MemoryStore) -> None:
    """Also if what is copied is a copy itself: its entry came once more with each one."""
    third = fresh()
    copy("g", source, target)
    for _ in range(3):
        copy("g", target, third, overwrite=True)
        copy("g", third, source, overwrite=True)
        copy("g", source, target, overwrite=True)
    for store in (source, target, third):
        changes = [entry.change_id for entry in store.history("g", 100)]
        assert len(changes) == len({*changes})
    versions = [store.load("g").version for store in (source, target, third)]
    copy("g", target, third, overwrite=True)
    assert [store.load("g").version for store in (source, target, third)] == versions


def test_nothing_is_copied_onto_itself_however_it_is_spelled(tmp_path: Path) -> None:
    one, same = (SQLiteStore(f"sqlite:///{tmp_path}/{path}") for path in ("offsets.db", "./offsets.db?history=5"))
    Ledger(one, "g").rewind({A: Position(3)}, "to have one")
    before = one.load("g")
    with pytest.raises(Refused, match="onto itself"):
        copy("g", one, same, overwrite=True)
    foreign = fresh()
    foreign.memory.positions["g"] = {A: Position(3)}
    with pytest.raises(Refused, match="onto itself"):
        copy("g", foreign, MemoryStore(foreign.address))
    assert (one.load("g"), foreign.load("g").version) == (before, 0)


def test_two_tables_of_one_database_are_two_places(tmp_path: Path) -> None:
    one, other = (SQLiteStore(f"sqlite:///{tmp_path}/offsets.db{query}") for query in ("", "?table=other"))
    Ledger(one, "g").rewind({A: Position(3)}, "to have one")
    copy("g", one, other)
    assert other.load("g").positions == {A: Position(3)}


def test_a_source_that_moves_while_it_is_copied_is_told(source: MemoryStore, target: MemoryStore) -> None:
    class Moving(MemoryStore):
        def apply(self, change: Change) -> None:
            super().apply(change)
            if change.entry.event == "copy":
                ledger = Ledger(source, "g")
                ledger.load()
                ledger.rewind({A: Position(0)}, "meanwhile", force=True)

    with pytest.raises(VersionConflict, match="changed while it was copied"):
        copy("g", source, Moving(target.address))


def test_a_copy_of_an_older_state_that_comes_between_is_told(source: MemoryStore, target: MemoryStore) -> None:
    """The random search found it: the copy was told as done, and the other store held the older state."""
    older = fresh()
    Ledger(older, "g").rewind({A: Position(1), B: Position(5)}, "to have an older one")

    class Late(MemoryStore):
        """The source; when it is asked after the copy, an older state is copied over that."""

        def load(self, group: str) -> Snapshot:
            if target.load("g").version and target.load("g").owner is None:
                copy("g", older, target, overwrite=True)
            return super().load(group)

    with pytest.raises(VersionConflict, match="was changed after it was copied to"):
        copy("g", Late(source.address), target)


class Publishes(MemoryStore):
    """Keeps offsets of the group beside the ledger, as Kafka does; they count until there is a ledger."""

    def __init__(self, published: dict[TopicPartition, int]) -> None:
        super().__init__(f"memory://{secrets.token_hex(8)}")
        self.published = published

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        if not super().load(group).version:
            self.memory.positions[group] = {tp: Position(offset) for tp, offset in self.published.items()}
        return super().load(group)

    def published_offsets(self, group: str) -> dict[TopicPartition, int]:  # noqa: ARG002 - as `Publishing`
        """See `Publishing`."""
        return self.published


def test_positions_that_another_program_has_passed_are_not_copied(target: MemoryStore) -> None:
    """After a copy back the old program went on in Kafka. A second copy took the ledger there: all came twice."""
    kafka = Publishes({A: 5})
    copy("g", kafka, target)
    read_on(target, 57)
    copy("g", target, kafka, overwrite=True)
    kafka.published = {A: 1000}
    before = target.load("g")
    for ask in (preview, copy):
        with pytest.raises(NotAllowed) as refused:
            ask("g", kafka, target, overwrite=True)
        assert "a 0: 1000 in Kafka, 62 in the ledger" in str(refused.value)
        assert "offsetkeeper reset g --from-file FILE, with the lines a,0,1000" in str(refused.value)
    assert target.load("g") == before
    there = Ledger(kafka, "g")
    there.load()
    there.rewind({A: Position(1000)}, "what the error says")
    assert copy("g", kafka, target, overwrite=True).positions == {A: Position(1000)}


def test_with_force_offsets_that_a_run_has_not_published_do_not_count(source: MemoryStore) -> None:
    kafka, target = Publishes({}), fresh()
    copy("g", source, kafka)
    kafka.published = {A: 3}  # the ledger is at 4
    with pytest.raises(NotAllowed, match="give --force"):
        copy("g", kafka, target)
    assert copy("g", kafka, target, force=True).positions[A].offset == 4


def test_a_batch_under_way_is_told(source: MemoryStore, target: MemoryStore) -> None:
    """The old program starts at the positions of the copy, and wrote again what the output had of the batch."""
    pending = source.load("g").pending
    assert pending is not None
    [note] = preview("g", source, target).notes
    assert note.startswith(f"batch {pending.id} was begun and not committed: it is copied too")
    assert "another program that starts at these positions writes it again" in note
    settled = Ledger(source, "g")
    settled.acquire()
    settled.commit(pending)
    settled.release()
    assert preview("g", source, target).notes == []


def marked(target: MemoryStore, *, pending: bool = False) -> Ledger:
    """A ledger whose output has three batches and their mark, of a program that was given offsets."""
    ledger = Ledger(target, "g")
    ledger.acquire(outputs={"shop": Output("table")})
    ledger.place({A: Position(0), B: Position(0)}, given="digest")
    for at in range(3):
        ledger.begin(batch := ledger.batch([OffsetRange(*A, at, at + 1)]), lands_in=("shop",))
        ledger.commit(batch)
    if pending:
        ledger.begin(ledger.batch([OffsetRange(*A, 3, 9)]), lands_in=("shop",))
    ledger.release()
    return ledger


@pytest.mark.parametrize("pending", [False, True])
def test_positions_without_a_ledger_over_a_ledger_are_a_reset_of_it(target: MemoryStore, *, pending: bool) -> None:
    """The sequence went to 0: a start found the marks ahead, or a later batch was taken for one that had landed."""
    before = marked(target, pending=pending).snapshot
    foreign, same = fresh(), fresh()
    foreign.memory.positions["g"] = {A: Position(1000), B: Position(0)}
    copy("g", target, same)
    reset = Ledger(same, "g")
    reset.load()
    reset.rewind({A: Position(1000)}, "as the other program has it")
    with pytest.raises(NotAllowed, match="copy with overwrite"):
        copy("g", foreign, target)
    found = copy("g", foreign, target, overwrite=True)
    assert essence(found) == essence(reset.snapshot)
    assert found.positions == foreign.load("g").positions
    assert (found.sequence, found.given, found.landed) == (before.sequence, ("digest",), {"shop": Landed(3)})
    assert (found.pending, found.unsettled and found.unsettled.id) == (None, before.pending and before.pending.id)
    for sequence in range(3, 4 + pending):  # without a commit, the batch under way may have landed
        check_marks(found, {"shop": OutputMark(sequence, "token", "digest")})
    with pytest.raises(MarkBehind):
        check_marks(found, {"shop": OutputMark(2, "token", "digest")})
    assert copy("g", foreign, target) == found  # nothing more to copy
    run = Ledger(target, "g")
    run.acquire()
    if pending:
        run.settle("the output has it", {"shop": ""}, Having.ALL)
    assert run.snapshot.positions[A] == Position(1000)
    assert run.batch([OffsetRange(*A, 1000, 1001)]).sequence == before.sequence + 1


def test_a_position_that_a_source_without_a_ledger_lacks_is_taken_out_with_its_batch(target: MemoryStore) -> None:
    before = marked(target, pending=True).snapshot
    foreign = fresh()
    foreign.memory.positions["g"] = {B: Position(0)}
    found = copy("g", foreign, target, overwrite=True)
    assert (found.positions, found.pending) == ({B: Position(0)}, None)
    assert found.unsettled is not None
    assert before.pending is not None
    assert (found.unsettled.id, found.unsettled.counts(found.positions)) == (before.pending.id, ())
    assert target.history("g", 1)[0].forgot == {A: Position(3)}


def test_a_batch_that_the_positions_of_another_program_leave_alone_stays(target: MemoryStore) -> None:
    before = marked(target, pending=True).snapshot
    foreign = fresh()
    foreign.memory.positions["g"] = {A: Position(3), B: Position(8)}
    found = copy("g", foreign, target, overwrite=True)
    assert found.pending == before.pending
    assert found.generation == before.generation + 1
    assert preview("g", foreign, target).notes == []


def test_a_source_without_a_ledger_that_moves_meanwhile_is_told(target: MemoryStore) -> None:
    marked(target)
    looks = iter(range(1000, 1010))

    class Moving(MemoryStore):
        def load(self, group: str) -> Snapshot:
            """See `Store.load`."""
            self.memory.positions[group] = {A: Position(next(looks)), B: Position(0)}
            return super().load(group)

    with pytest.raises(VersionConflict, match="was changed while it was copied"):
        copy("g", Moving(f"memory://{secrets.token_hex(8)}"), target, overwrite=True)
