"""The life of a ledger: batches, owners who follow and fence one another, operators."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot, latest
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import (
    CorruptStore,
    Fenced,
    NotAllowed,
    OutcomeUnknown,
    RangeMismatch,
    SettingsError,
    VersionConflict,
)
from offsetkeeper.operate.fence import fence
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.faults import Fault, faulty

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
START = {A: Position(10, "id"), B: Position(20, "id")}
RANGES = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 20, 22))
DONE = {A: Position(15, "id"), B: Position(22, "id")}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(f"memory://{secrets.token_hex(8)}")


@pytest.fixture
def ledger(store: MemoryStore) -> Ledger:
    """A ledger that was acquired and has positions."""
    ledger = Ledger(store, "g", retry_timeout_s=5, name="me")
    ledger.acquire()
    ledger.place(START)
    return ledger


def stored(store: Store) -> Snapshot:
    return store.load("g")


def events(store: Store) -> list[str]:
    return [entry.event for entry in reversed(store.history("g", 100))]


def test_a_batch_is_begun_committed_and_told_in_the_history(store: MemoryStore, ledger: Ledger) -> None:
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    assert stored(store).pending == batch
    ledger.commit(batch)
    ledger.release("done")
    assert dict(stored(store).positions) == DONE
    assert (stored(store).pending, stored(store).owner) == (None, None)
    assert events(store) == ["acquire", "place", "begin", "commit", "release"]
    assert ledger.history(1)[0].reason == "done"
    assert stored(store) == ledger.snapshot


def test_a_batch_has_its_ranges_sorted_and_the_next_sequence(ledger: Ledger) -> None:
    batch = ledger.batch(RANGES[::-1])
    assert batch.ranges == RANGES
    assert batch.sequence == ledger.snapshot.sequence + 1


def test_a_pending_batch_is_found_by_the_next_owner_with_the_same_identity(store: MemoryStore, ledger: Ledger) -> None:
    """The same ranges under the same name, so that an idempotent output knows the batch again."""
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    following = Ledger(store, "g")
    assert following.acquire().pending == batch
    following.commit(batch)
    assert dict(stored(store).positions) == DONE


def test_an_abandoned_batch_gives_way_to_another(store: MemoryStore, ledger: Ledger) -> None:
    ledger.begin(ledger.batch(RANGES))
    ledger.abandon("the topic was made again")
    ledger.commit(ledger.batch(RANGES[:1]))
    assert stored(store).sequence == 2
    assert dict(stored(store).positions) == DONE | {B: START[B]}


def test_placing_nothing_writes_nothing(store: MemoryStore, ledger: Ledger) -> None:
    ledger.place({})
    assert events(store) == ["acquire", "place"]


def test_offsets_that_were_given_last_are_not_placed_again_and_others_are(store: MemoryStore, ledger: Ledger) -> None:
    for given in ("one", "one", "two", "two", "three", "three", "one", "one"):
        ledger.place({}, given=given)
    assert stored(store).given == ("two", "three", "one")
    assert events(store) == ["acquire", "place", *["place"] * 4]


@pytest.mark.parametrize("group", ["", "a\0b", "x" * 250])
def test_a_wrong_group_name_is_refused_before_the_store_is_touched(store: MemoryStore, group: str) -> None:
    with pytest.raises(SettingsError):
        Ledger(store, group)


def test_the_repr_names_group_store_and_version(ledger: Ledger) -> None:
    assert repr(ledger) == f"Ledger('g' in {ledger.store.address}, version 2)"


def test_a_stale_run_stays_fenced_however_often_it_tries(store: MemoryStore, ledger: Ledger) -> None:
    newer = Ledger(store, "g")
    newer.acquire()
    for _ in range(3):
        with pytest.raises(Fenced):
            ledger.commit(ledger.batch(RANGES))
    ledger.load()
    with pytest.raises(Fenced, match="is held by"):
        ledger.commit(ledger.batch(RANGES))
    newer.commit(newer.batch(RANGES))
    assert dict(stored(store).positions) == DONE


def test_a_fence_names_the_run_that_it_has_fenced(
    store: MemoryStore, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was looked at may have ended, and a scheduler may have started the next."""
    ledger.acquire()
    operator, following = Ledger(store, ledger.group), Ledger(store, ledger.group, name="the next one")
    load = operator.load

    def start_another_afterwards() -> Snapshot:
        monkeypatch.setattr(operator, "load", load)
        found = load()
        ledger.release()
        following.acquire()
        return found

    monkeypatch.setattr(operator, "load", start_another_afterwards)
    fenced = fence(operator, "hangs")
    assert fenced is not None
    assert fenced.name == "the next one"
    assert fence(operator, "hangs") is None


def test_a_forced_rewind_fences_the_run_and_its_batch(store: MemoryStore, ledger: Ledger) -> None:
    """The operator wins: what the run has under way can no longer be committed."""
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    operator = Ledger(store, "g", name="operator")
    operator.load()
    operator.rewind({A: Position(3, "id")}, "bad records", force=True)
    with pytest.raises(Fenced, match="taken over by an operator"):
        ledger.commit(batch)
    assert dict(stored(store).positions) == START | {A: Position(3, "id")}
    assert stored(store).pending is None
    again = Ledger(store, "g")
    again.acquire()
    assert again.batch(RANGES).id not in {batch.id, ledger.batch(RANGES).id}


def test_an_operator_does_not_disturb_a_run_unless_forced(store: MemoryStore, ledger: Ledger) -> None:
    operator = Ledger(store, "g")
    operator.load()
    with pytest.raises(Fenced, match="is held by me"):
        operator.rewind({A: Position(3, "id")}, "bad records")
    ledger.commit(ledger.batch(RANGES))


def test_an_operator_whose_ledger_moved_on_is_told_so_and_nothing_is_moved(store: MemoryStore, ledger: Ledger) -> None:
    """The preview he decided upon is not true any more."""
    operator = Ledger(store, "g")
    operator.load()
    ledger.commit(ledger.batch(RANGES))
    with pytest.raises(VersionConflict, match="now the ledger is at version 3: load it and decide again"):
        operator.rewind({A: Position(3, "id")}, "bad records", force=True)
    assert dict(stored(store).positions) == DONE


def test_a_ledger_never_loaded_rewinds_nothing(store: MemoryStore, ledger: Ledger) -> None:
    with pytest.raises(VersionConflict):
        Ledger(store, "g").rewind({A: Position(3)}, "blind", force=True)
    assert stored(store) == ledger.snapshot


def test_a_run_that_never_acquired_cannot_change_anything(store: MemoryStore) -> None:
    ledger = Ledger(store, "g")
    ledger.load()
    acts: list[Callable[[], None]] = [ledger.release, lambda: ledger.place(START), lambda: ledger.abandon("")]
    for act in acts:
        with pytest.raises(NotAllowed, match="acquire it first"):
            act()
    assert stored(store) == Snapshot("g")


def test_ranges_that_do_not_fit_never_reach_the_store(store: MemoryStore, ledger: Ledger) -> None:
    for act in (ledger.begin, ledger.commit):
        with pytest.raises(RangeMismatch):
            act(ledger.batch([OffsetRange("t", 0, 11, 15)]))
    assert events(store) == ["acquire", "place"]


def test_a_row_changed_by_another_program_is_a_conflict_and_no_fence(store: MemoryStore, ledger: Ledger) -> None:
    store.memory.positions["g"][A] = Position(12)
    with pytest.raises(VersionConflict, match="load it and decide again"):
        ledger.commit(ledger.batch(RANGES))
    assert ledger.load().positions[A] == Position(12)


def test_a_corrupt_ledger_is_told_at_once(store: MemoryStore, ledger: Ledger) -> None:
    store.memory.controls["g"] = (2, "{}")
    with pytest.raises(CorruptStore):
        ledger.load()


def test_a_run_that_gave_the_group_back_was_not_fenced_by_the_next(store: MemoryStore, ledger: Ledger) -> None:
    """What it then does as anybody may comes too late, but nobody took anything from it."""
    ledger.release()
    Ledger(store, "g").acquire()
    with pytest.raises(VersionConflict):
        ledger.rewind({A: Position(3, "id")}, "bad records")


def test_an_owner_may_acquire_again(store: MemoryStore, ledger: Ledger) -> None:
    """As a run does that starts over within one process."""
    assert ledger.acquire().epoch == 2
    ledger.commit(ledger.batch(RANGES))
    assert dict(stored(store).positions) == DONE


def test_a_store_without_transactions_says_so(ledger: Ledger) -> None:
    with (
        pytest.raises(SettingsError, match="cannot share a transaction with an output"),
        ledger.transaction(ledger.batch(RANGES)),
    ):
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    "other",
    [
        lambda it: replace(it, group="other"),
        lambda it: replace(it, token="another"),
        lambda it: replace(it, sequence=it.sequence + 1),
    ],
    ids=["group", "token", "sequence"],
)
def test_a_batch_of_another_identity_is_refused(ledger: Ledger, other: Callable[[Batch], Batch]) -> None:
    """Its output was written under a name that this commit would not have."""
    before = ledger.load()
    batch = other(ledger.batch(RANGES))
    for act in (ledger.begin, ledger.commit):
        with pytest.raises(RangeMismatch, match="is not the next batch"):
            act(batch)
    assert ledger.load() == before


def test_the_pending_batch_is_found_by_its_ranges(ledger: Ledger) -> None:
    begun = ledger.batch(RANGES)
    ledger.begin(begun)
    assert ledger.batch(RANGES).id == begun.id
    assert ledger.batch(RANGES[:1]).sequence == begun.sequence + 1


def test_a_mark_whose_reply_was_lost_is_found_again_with_the_batch(store: MemoryStore) -> None:
    faults = faulty(store)
    ledger = Ledger(faults, "g", retry_timeout_s=0)
    ledger.acquire()
    ledger.place(START)
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    faults.arm(Fault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        ledger.note_written(batch, "first")
    ledger.confirm(batch)
    assert ledger.snapshot.pending is not None
    assert ledger.snapshot.pending.written == ("first",)
    ledger.commit(batch)
    ledger.confirm(batch)  # nothing of it is pending any more
    assert ledger.snapshot == store.load("g")


@pytest.mark.parametrize("act", [lambda it: it.acquire("why"), lambda it: it.rewind({A: Position(3)}, "why")])
def test_the_first_change_says_what_it_takes_over_of_another_program(
    act: Callable[[Ledger], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    store.memory.positions["g"] = {A: Position(10), B: Position(20)}
    ledger = Ledger(store, "g")
    ledger.load()
    act(ledger)
    ledger.rewind({A: Position(4)}, "later", force=True)
    told = f"2 positions that another program has stored are taken over, of {A.topic}"
    assert [entry.reason for entry in store.history("g")] == ["later", f"why; {told}"]
    said = [record.getMessage() for record in caplog.records if record.name == "offsetkeeper.core.ledger"]
    assert said == [f"group 'g' in {store.address}: {told}"]


def test_a_mark_is_made_once_though_its_first_try_lands_late(store: MemoryStore) -> None:
    faults = faulty(store)
    ledger = Ledger(faults, "g", retry_timeout_s=0)
    ledger.acquire()
    ledger.place(START)
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    faults.arm(Fault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown):
        ledger.note_written(batch, "first")
    ledger.note_written(batch, "first")
    assert [entry.event for entry in store.history("g")][:2] == ["mark", "begin"]


def test_what_another_run_did_to_the_batch_is_not_taken_over(store: MemoryStore, ledger: Ledger) -> None:
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    rival = Ledger(store, "g")
    rival.acquire()
    rival.note_written(rival.batch(RANGES), "first")
    before = ledger.snapshot
    with pytest.raises(Fenced, match=f"batch {batch.id} of this run must not be written again"):
        ledger.confirm(batch)
    assert ledger.snapshot == before
    with pytest.raises(Fenced):
        ledger.note_written(batch, "second")


_COMMIT = """
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import (OffsetRange, Position, TopicPartition)
from offsetkeeper.stores.memory import MemoryStore

ledger = Ledger(MemoryStore("memory://ids"), "orders")
ledger.acquire()
ledger.place({TopicPartition("orders", 0): Position(0)})
batch = ledger.batch([OffsetRange("orders", 0, 0, 5)])
for step in (lambda: ledger.begin(batch), lambda: ledger.note_written(batch, "table"), lambda: ledger.commit(batch)):
    step()
    print(ledger.snapshot.change_id.removeprefix(ledger.owner_id))
"""


def test_a_step_of_a_batch_has_the_same_id_in_every_process_of_its_owner() -> None:
    """With Spark Connect another process goes on as the owner, and Python's `hash` differs there."""
    told = [
        subprocess.run(
            [sys.executable, "-c", _COMMIT],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len({*told[0]}) == 3


def test_a_second_look_counts_only_where_runs_went_on() -> None:
    """A ledger that was restored, or whose positions were set, between the two looks does not explain a newer mark."""
    first = Snapshot("g", version=5, epoch=2, generation=1, sequence=3)
    on = replace(first, version=7, epoch=3, sequence=4)
    assert latest(first, on) is on
    assert latest(first, first) is first
    for other in (replace(on, generation=2), replace(on, version=4), replace(on, sequence=2), replace(on, epoch=1)):
        assert latest(first, other) is first
