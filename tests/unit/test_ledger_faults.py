"""The ledger over a store that fails: every change is made once, and whoever is told that it failed can believe it.

The faults are made by a wrapper around a real store. No server can be made to lose exactly the third reply, or to
carry out a request after the next one was answered; this one can.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Ability, Store
from offsetkeeper.errors import (
    AlreadyCommitted,
    Fenced,
    NotAllowed,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
START = {A: Position(10, "id"), B: Position(20, "id")}
RANGES = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 20, 22))
DONE = {A: Position(15, "id"), B: Position(22, "id")}
Fault = Callable[["Faulty", Change], None]


class Faulty:
    """A store with a list of faults: each write takes the next one, and is carried out where the list is empty.

    Attributes:
        faults: of the next writes.
        away: number of reads that fail before one is answered.
        under_way: changes that were sent, and arrive when `land` is called.
        writes: number of writes tried.
    """

    address = "memory://faulty"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.abilities = store.abilities
        self.faults: list[Fault] = []
        self.away = 0
        self.under_way: list[Change] = []
        self.writes = 0

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        self._be_away()
        return self.store.load(group)

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        self.writes += 1
        if self.faults:
            self.faults.pop(0)(self, change)
        else:
            self.store.apply(change)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        self._be_away()
        return self.store.history(group, limit)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return self.store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self.store.close()

    def land(self) -> None:
        """Carry out what was under way, as a server does that has long been given up on."""
        while self.under_way:
            try:
                self.store.apply(self.under_way.pop())
            except VersionConflict:
                continue  # as it must be: the sender has been told something else by now

    def _be_away(self) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("the store is away")


class Lending(Faulty):
    """One that lends its connection too, on which nothing is written here."""

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return "memory"

    @contextmanager
    def transaction(self, change: Change) -> Iterator[None]:
        """See `TransactionalStore.transaction`."""
        if self.store.load(change.after.group).version != change.before.version:
            raise VersionConflict("another version")
        yield
        self.apply(change)


def away(_: Faulty, __: Change) -> None:
    raise StoreUnavailable("the store is away")


def request_lost(_: Faulty, __: Change) -> None:
    raise OutcomeUnknown("the connection broke")


def reply_lost(faulty: Faulty, change: Change) -> None:
    faulty.store.apply(change)
    raise OutcomeUnknown("the connection broke")


def delayed(faulty: Faulty, change: Change) -> None:
    """Keep the request on its way."""
    faulty.under_way.append(change)
    raise OutcomeUnknown("no answer in time")


def overtaken(faulty: Faulty, change: Change) -> None:
    """Write the change, lose the reply, and let somebody else take the group."""
    faulty.store.apply(change)
    Ledger(faulty.store, change.after.group, name="rival").acquire()
    raise OutcomeUnknown("the connection broke")


def overtaken_first(faulty: Faulty, change: Change) -> None:
    """Let somebody else take the group, so that the change comes too late."""
    Ledger(faulty.store, change.after.group, name="rival").acquire()
    faulty.store.apply(change)


def late_success(faulty: Faulty, change: Change) -> None:
    """Let an earlier request arrive just before this one."""
    faulty.land()
    faulty.store.apply(change)


@pytest.fixture
def hurried() -> Iterator[None]:
    """As many tries as patience would allow, and no time between them."""
    with no_waiting():
        yield


@pytest.fixture
def store() -> Faulty:
    return Faulty(MemoryStore(f"memory://{secrets.token_hex(8)}"))


@pytest.fixture
def ledger(store: Faulty) -> Ledger:
    """A ledger that was acquired and has positions."""
    ledger = Ledger(store, "g", retry_timeout_s=5, name="me")
    ledger.acquire()
    ledger.place(START)
    store.writes = 0
    return ledger


def stored(store: Store) -> Snapshot:
    return store.load("g")


def events(store: Store) -> list[str]:
    return [entry.event for entry in reversed(store.history("g", 100))]


EACH = pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda it: it.acquire(), id="acquire"),
        pytest.param(lambda it: it.release(), id="release"),
        pytest.param(lambda it: it.place({A: Position(3, "id")}), id="place"),
        pytest.param(lambda it: it.begin(it.batch(RANGES)), id="begin"),
        pytest.param(lambda it: it.commit(it.batch(RANGES)), id="commit"),
        pytest.param(lambda it: it.rewind({A: Position(3, "id")}, "again"), id="rewind"),
    ],
)
FAULTS = {
    "away": [away, away],
    "the request is lost": [request_lost],
    "the reply is lost": [reply_lost],
    "the request is lost, then the reply": [request_lost, reply_lost],
    "away between": [request_lost, away, reply_lost],
    "the request arrives before the next try": [delayed, late_success],
    "the request arrives before the next try, whose reply is lost too": [delayed, delayed, late_success],
}


def impatient(ledger: Ledger) -> None:
    ledger._retry_timeout_s = 0


def always(fault: Fault) -> list[Fault]:
    return [fault] * 1000


@EACH
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
def test_every_change_is_made_exactly_once_whatever_is_lost(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger], None], faults: list[Fault]
) -> None:
    before = stored(store).version
    store.faults = list(faults)
    act(ledger)
    assert store.faults == []
    assert stored(store).version == before + 1
    assert stored(store) == ledger.snapshot
    store.land()
    assert stored(store) == ledger.snapshot


@EACH
@pytest.mark.usefixtures("hurried")
def test_a_request_that_arrives_after_all_is_settled_changes_nothing(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger], None]
) -> None:
    store.faults = [delayed]
    act(ledger)
    assert len(store.under_way) == 1
    store.land()
    assert stored(store) == ledger.snapshot


@EACH
@pytest.mark.usefixtures("hurried")
def test_a_lost_reply_is_settled_while_reads_fail_too(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger], None]
) -> None:
    store.faults, store.away = [reply_lost], 3
    act(ledger)
    assert stored(store) == ledger.snapshot


@EACH
@pytest.mark.usefixtures("hurried")
def test_what_was_done_before_another_took_over_is_not_called_refused(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger], None], request: pytest.FixtureRequest
) -> None:
    """The reply is lost, and when the store is asked the next owner's change lies on top: the history tells.

    Of a commit and a release that is the end; all else would let this run write an output, so it is fenced at once.
    """
    store.faults = [overtaken]
    if {"commit", "release"} & set(request.node.name.replace("]", "[").split("[")):
        act(ledger)
    else:
        with pytest.raises(Fenced, match=r"was taken over by .*; the \w+ of this run is stored"):
            act(ledger)
    assert store.writes == 2
    assert events(store)[-1] == "acquire"
    assert stored(store).owner == Ledger(store, "g").load().owner
    with pytest.raises((Fenced, NotAllowed)):
        ledger.place({A: Position(0)})


def test_a_commit_that_landed_counts_and_the_next_event_is_fenced_without_asking(store: Faulty, ledger: Ledger) -> None:
    store.faults = [overtaken]
    ledger.commit(ledger.batch(RANGES))
    assert dict(ledger.snapshot.positions) == DONE
    with pytest.raises(Fenced, match="the commit of this run is stored"):
        ledger.check_owner()
    writes = store.writes
    acts: list[Callable[[], object]] = [ledger.release, lambda: ledger.confirm(next_one), lambda: ledger.place(START)]
    next_one = ledger.batch([OffsetRange("t", 0, 15, 16)])
    for act in acts:
        with pytest.raises(Fenced):
            act()
    assert store.writes == writes
    ledger.acquire()
    ledger.check_owner()


def test_a_batch_is_written_again_only_by_a_run_that_still_owns_the_group(store: Faulty, ledger: Ledger) -> None:
    batch = ledger.batch(RANGES)
    ledger.begin(batch)
    ledger.confirm(batch)
    rival = Ledger(store, "g", name="rival")
    rival.acquire()
    rival.release()
    with pytest.raises(Fenced, match=rf"by a newer run that has ended since; batch {batch.id} of this run must not"):
        ledger.confirm(batch)


def test_batches_of_a_ledger_made_anew_share_no_identity_with_those_before() -> None:
    """Also in the same second, and with the same ranges; the same holds after a backup is put back."""
    ids = set()
    for _ in range(3):
        store = Faulty(MemoryStore(f"memory://{secrets.token_hex(8)}"))
        ledger = Ledger(store, "g")
        ledger.acquire()
        ledger.place(START)
        batch = ledger.batch(RANGES)
        ledger.begin(batch)
        ids.add(batch.id)
    assert len(ids) == 3


def test_without_a_history_the_one_taken_over_is_told_to_stop(store: Faulty, ledger: Ledger) -> None:
    store.abilities = frozenset({Ability.COMMIT, Ability.FENCE})
    store.faults = [overtaken]
    with pytest.raises(Fenced, match="it is unknown whether the commit of this run is stored"):
        ledger.commit(ledger.batch(RANGES))


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("keeps", [True, False])
def test_a_change_of_an_operator_is_not_called_unwritten_where_no_entry_tells_of_it(*, keeps: bool) -> None:
    """The rewind lands, its reply is lost, and a run lays two changes on it; the history has only the newest."""

    def buried(faulty: Faulty, change: Change) -> None:
        faulty.store.apply(change)
        run = Ledger(faulty.store, "g")
        run.acquire()
        run.release()
        raise OutcomeUnknown("the connection broke")

    store = Faulty(MemoryStore(f"memory://{secrets.token_hex(8)}?history=1"))
    store.abilities = store.store.abilities if keeps else frozenset({Ability.COMMIT, Ability.FENCE})
    operator = Ledger(store, "g")
    store.faults = [buried]
    with pytest.raises(
        OutcomeUnknown, match=r"at version 3\. It is unknown whether its rewind is or will be version 1"
    ):
        operator.rewind(START, "again")
    assert dict(stored(store).positions) == START


def test_a_change_that_was_never_in_doubt_and_lost_is_called_unwritten(store: Faulty) -> None:
    store.abilities = frozenset({Ability.COMMIT, Ability.FENCE})
    operator = Ledger(store, "g")
    store.faults = [overtaken_first]
    with pytest.raises(VersionConflict, match="load it and decide again"):
        operator.rewind(START, "again")
    assert dict(stored(store).positions) == {}


def test_what_an_earlier_call_left_in_doubt_is_not_called_unwritten_by_the_next(store: Faulty, ledger: Ledger) -> None:
    """The second try is surely not sent, but the first may still land."""
    impatient(ledger)
    batch = ledger.batch(RANGES)
    for fault in (delayed, away):
        store.faults = [fault]
        with pytest.raises(OutcomeUnknown):
            ledger.commit(batch)
    store.land()
    ledger.commit(batch)
    assert stored(store) == ledger.snapshot


def test_a_transaction_that_an_earlier_try_left_in_doubt_is_not_called_unwritten(store: Faulty, ledger: Ledger) -> None:
    """As above, where the connection is lent."""
    impatient(ledger)
    lending = ledger.store = Lending(store.store)
    batch = ledger.batch(RANGES)
    for fault in (delayed, away):
        lending.faults = [fault]
        with pytest.raises(OutcomeUnknown), ledger.transaction(batch):
            pass
    lending.land()
    with pytest.raises(AlreadyCommitted), ledger.transaction(batch):
        pass
    assert stored(store) == ledger.snapshot


def test_whoever_acquires_does_so_again_where_it_cannot_tell_whether_it_was_the_owner(store: Faulty) -> None:
    store.abilities = frozenset({Ability.COMMIT, Ability.FENCE})
    store.faults = [overtaken]
    ledger = Ledger(store, "g")
    ledger.acquire()
    assert stored(store) == ledger.snapshot


@pytest.mark.parametrize("act", [Ledger.begin, Ledger.commit])
def test_what_is_tried_again_after_it_landed_unseen_is_not_made_twice(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger, Batch], None]
) -> None:
    """The first try was given up on; only when the batch is tried again the first request arrives."""
    impatient(ledger)
    batch = ledger.batch(RANGES)
    store.faults = [delayed]
    with pytest.raises(OutcomeUnknown):
        act(ledger, batch)
    store.land()
    act(ledger, batch)
    assert stored(store) == ledger.snapshot
    assert len(events(store)) == 3


def test_a_commit_of_other_ranges_is_never_taken_for_the_one_that_landed(store: Faulty, ledger: Ledger) -> None:
    """Both are the sixth batch of this run, but only what was written may be called committed."""
    impatient(ledger)
    store.faults = [delayed]
    with pytest.raises(OutcomeUnknown):
        ledger.commit(ledger.batch(RANGES))
    store.land()
    with pytest.raises(VersionConflict):
        ledger.commit(ledger.batch([OffsetRange("t", 0, 10, 99)]))
    assert dict(stored(store).positions) == DONE


def test_a_store_that_stays_away_is_waited_for_no_longer_than_the_patience(store: Faulty) -> None:
    ledger = Ledger(store, "g", retry_timeout_s=0.3)
    store.away = 1000
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="the store is away"):
        ledger.acquire()
    assert time.monotonic() - began < 50
    assert 1000 - store.away > 1


def test_a_change_that_was_surely_not_sent_is_called_so(store: Faulty, ledger: Ledger) -> None:
    impatient(ledger)
    store.faults = always(away)
    with pytest.raises(StoreUnavailable, match="the store is away"):
        ledger.commit(ledger.batch(RANGES))
    assert stored(store) == ledger.snapshot


@pytest.mark.parametrize("faults", [always(request_lost), [request_lost, *always(away)], [delayed, *always(away)]])
def test_a_change_that_may_still_arrive_is_never_called_unwritten(
    store: Faulty, ledger: Ledger, faults: list[Fault]
) -> None:
    """Even though the last tries surely did not: it was sent once, and nobody knows what became of that."""
    ledger._retry_timeout_s = 0.2
    store.faults = faults
    with pytest.raises(OutcomeUnknown) as caught:
        ledger.commit(ledger.batch(RANGES))
    message = str(caught.value)
    assert "group 'g': it is unknown whether its commit is written" in message
    assert "load the ledger before anything else" in message


def test_a_conflict_that_cannot_be_looked_into_is_not_called_unwritten(store: Faulty, ledger: Ledger) -> None:
    impatient(ledger)

    def conflict(faulty: Faulty, change: Change) -> None:
        faulty.away = 1000
        overtaken_first(faulty, change)

    store.faults = [conflict]
    with pytest.raises(OutcomeUnknown, match="it is unknown whether its commit is written"):
        ledger.commit(ledger.batch(RANGES))


def test_after_an_unknown_outcome_a_load_tells(store: Faulty, ledger: Ledger) -> None:
    impatient(ledger)
    store.faults = [reply_lost]
    with pytest.raises(OutcomeUnknown):
        ledger.begin(ledger.batch(RANGES))
    assert ledger.load().pending == ledger.snapshot.pending is not None


@EACH
@pytest.mark.usefixtures("hurried")
def test_a_run_that_was_taken_over_is_fenced_at_the_store(
    store: Faulty, ledger: Ledger, act: Callable[[Ledger], None], request: pytest.FixtureRequest
) -> None:
    """All but acquire, by which it takes the group back."""
    store.faults = [overtaken_first]
    if "acquire" in request.node.name.split("[")[1]:
        act(ledger)
        assert stored(store).owner == ledger.snapshot.owner
        assert stored(store).epoch == 3
        return
    with pytest.raises(Fenced, match=r"was taken over by rival \(epoch 2\); the \w+ of this run was refused"):
        act(ledger)
    assert dict(stored(store).positions) == START
    assert events(store) == ["acquire", "place", "acquire"]


def test_two_rivals_for_the_same_epoch_get_different_ones(store: Faulty) -> None:
    one, two = Ledger(store, "g", name="one"), Ledger(store, "g", name="two")

    def two_is_faster(faulty: Faulty, change: Change) -> None:
        two.acquire()
        faulty.store.apply(change)

    store.faults = [two_is_faster]
    one.acquire()
    assert [entry.epoch for entry in store.history("g")] == [2, 1]
    assert stored(store).owner == one.snapshot.owner
    with pytest.raises(Fenced, match="taken over by one"):
        two.place(START)


def test_a_run_that_always_loses_the_race_gives_up(store: Faulty) -> None:
    store.faults = always(overtaken_first)
    with pytest.raises(VersionConflict, match="could not be acquired in 20 tries"):
        Ledger(store, "g").acquire()
