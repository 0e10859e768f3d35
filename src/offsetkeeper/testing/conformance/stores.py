"""What holds for every store: what is written comes back as it was, and only the newest writer writes.

With a ledger over it: each event, fencing, a fault at every call, and a group that moves in and out.
"""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Ability, Store, TransactionalStore
from offsetkeeper.errors import Fenced, SettingsError, VersionConflict
from offsetkeeper.operate.copy import copy
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing import strategies
from offsetkeeper.testing.clock import no_waiting
from offsetkeeper.testing.conformance.answers import AnswerConformance
from offsetkeeper.testing.conformance.concurrent import ConcurrentConformance
from offsetkeeper.testing.conformance.histories import HistoryConformance
from offsetkeeper.testing.conformance.medium import THOROUGH, ledger_of
from offsetkeeper.testing.conformance.transactions import TransactionConformance
from offsetkeeper.testing.faults import Fault, faulty
from offsetkeeper.testing.machine import World, run_machine
from offsetkeeper.testing.rivals import PARTITION, race

A, B, C, D = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 7)
_NO_FRESH_STORE = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)  # a fresh group does
_QUICK = settings(max_examples=15 * THOROUGH, deadline=None, suppress_health_check=_NO_FRESH_STORE)
FIRST = (OffsetRange(*A, 0, 10), OffsetRange(*D, 5, 6))
SECOND = (OffsetRange(*A, 10, 20),)
THIRD = (OffsetRange(*D, 6, 9),)
SHORT = (OffsetRange(*A, 0, 5),)


def commit(ledger: Ledger, ranges: tuple[OffsetRange, ...]) -> None:
    """Commit the ranges."""
    ledger.commit(ledger.batch(ranges))


STEPS: dict[str, Callable[[Ledger], object]] = {
    "acquire": lambda it: it.acquire(),
    "place": lambda it: it.place({A: Position(0, "id a"), D: Position(5)}),
    "begin what will be abandoned": lambda it: it.begin(it.batch((OffsetRange(*A, 0, 3),))),
    "abandon": lambda it: it.abandon("other ranges"),
    "begin": lambda it: it.begin(it.batch(FIRST)),
    "mark": lambda it: it.note_written(it.batch(FIRST), "audit"),
    "wait": lambda it: it.note_waiting("the output is away"),
    "commit what was begun": lambda it: commit(it, FIRST),
    "commit at once": lambda it: commit(it, SECOND),
    "rewind": lambda it: it.rewind({A: Position(2, "id a")}, "again"),
    "acquire again": lambda it: it.acquire(),
    "commit after the rewind": lambda it: commit(it, (OffsetRange(*A, 2, 4), *THIRD)),
    "release": lambda it: it.release(),
}
END = {A: Position(4, "id a"), D: Position(9)}


def rewind(snapshot: Snapshot, offsets: dict[TopicPartition, int]) -> Change:
    """Return the change that sets these positions."""
    positions = {tp: Position(offset) for tp, offset in offsets.items()}
    return rules.decide(snapshot, rules.Rewind(positions, force=True), rules.Author("me", "me", 0, "id"))


class StoreConformance(AnswerConformance, ConcurrentConformance):
    """For every store that can be written and fences."""

    def test_its_abilities_are_what_it_declares(self, store: Store) -> None:
        """The suites of a store's optional abilities are run, and only those."""
        assert {Ability.COMMIT, Ability.FENCE} <= store.abilities
        assert (Ability.HISTORY in store.abilities) == isinstance(self, HistoryConformance)
        assert isinstance(store, TransactionalStore) == isinstance(self, TransactionConformance)

    def test_a_store_without_transactions_refuses_one_before_anything_is_written(self, store: Store) -> None:
        """The refusal is an error of settings; a `TransactionalStore` commits the batch."""
        ledger = ledger_of(store)
        ledger.acquire()
        ledger.place({A: Position(0)})
        batch = ledger.batch([OffsetRange(*A, 0, 5)])
        transactional = isinstance(store, TransactionalStore)
        if transactional:
            with ledger.transaction(batch):
                pass
        else:
            with pytest.raises(SettingsError), ledger.transaction(batch):
                pass
        assert store.load("orders").positions[A].offset == (5 if transactional else 0)

    def test_a_group_nobody_knows_is_empty(self, store: Store) -> None:
        """Reading makes no group."""
        assert store.load("nobody") == Snapshot("nobody")
        assert list(store.history("nobody")) == []
        assert list(store.groups()) == []

    @_QUICK
    @given(history=strategies.histories())
    def test_whatever_is_written_comes_back_as_it_was(self, store: Store, history: list[Change]) -> None:
        """Every field of every snapshot survives."""
        for change in history:
            store.apply(change)
            assert store.load(change.after.group) == change.after

    @_QUICK
    @given(names=st.sets(strategies.groups, min_size=1, max_size=3))
    @example(names={"a", "A", "\u00e4", "a\u0308"})
    @example(names={"\u212b", "\u00c5", "\uf900", "\u8c48", "\u00df", "ss"})
    @example(names={"a b", "a  b", "a+b", "a%20b", "a_b", "a\\b"})
    @example(names={".a", "%2Ea", "%252Ea"})
    @example(names={".", "..", "%2E", ":%2E", ":."})
    @example(names={"a", " a", "a ", "a  ", "a%20", ":a%20", ":%20a"})
    @example(names={" ", "\t", "\t ", ":", "%", "%%", ":%20", "-x", "\\"})
    @example(names={"team/orders:v2", "team%2Forders%3Av2", ":team%2Forders%3Av2", "%3Ateam%2Forders%3Av2"})
    @example(names={"team", "team/orders", "team/offsets", "team/orders/0", "team/", "/team", "//"})
    @example(names={"a", "a:5", "a:1", "a:5:1", "a:b", ":a", "a:", "::", "control:*:a", "*:a", "*"})
    @example(names={"a\nb", "a%0Ab", ":a%0Ab", "a\x85b", "a\x7f", "a\u2028b", "a\u200bb", "a\ufffeb", "a\ufeffb"})
    @example(names={"\U0001f986", "%F0%9F%A6%86", ":%F0%9F%A6%86", ":%25F0%259F%25A6%2586", "%25F0%259F%25A6%2586"})
    def test_groups_of_any_name_are_kept_apart(self, store: Store, url: str, names: set[str]) -> None:
        """Quotes, unicode and whatever else is a group name."""
        for number, name in enumerate(sorted(names)):
            store.apply(rewind(store.load(name), {A: number}))
        for number, name in enumerate(sorted(names)):
            assert store.load(name).positions == {A: Position(number)}
            assert self.read_positions(url, name) == {A: number}
        listed = store.groups()
        assert names <= set(listed)
        assert len(listed) == len(set(listed))

    def test_groups_are_listed_sorted_each_once(self, store: Store, url: str) -> None:
        """Those with a ledger, those with nothing but positions of another program, and those with both."""
        for name in ("c", "a"):
            store.apply(rewind(Snapshot(name), {A: 1, B: 2}))
        self.write_position(url, "b", A, 3)
        self.write_position(url, "a", C, 3)
        store.apply(rules.decide(Snapshot("d"), rules.Rewind({}), rules.Author("me", "me", 0, "id")))
        assert list(store.groups()) == ["a", "b", "c", "d"]

    @pytest.mark.parametrize("count", [1, 2, 100, 10_000])
    def test_any_number_of_partitions_changes_in_one_step(self, store: Store, url: str, count: int) -> None:
        """First all are new, then all move, then a few move and a few are new."""
        topics = ("orders", "payments")
        first = {TopicPartition(topics[i % 2], i // 2): i for i in range(count)}
        second = {tp: offset + 1_000_000_000_000 for tp, offset in first.items()}
        third = dict.fromkeys(list(first)[:3], 0) | {TopicPartition("new", i): i for i in range(3)}
        for offsets in (first, second, third):
            store.apply(rewind(store.load("orders"), offsets))
        expected = second | third
        assert store.load("orders").positions == {tp: Position(offset) for tp, offset in expected.items()}
        assert self.read_positions(url, "orders") == expected

    @pytest.mark.parametrize("back", [1, 2], ids=["one behind", "from the start"])
    def test_a_stale_writer_changes_nothing(self, store: Store, url: str, back: int) -> None:
        """Its version is not the stored one, whatever else it has right."""
        seen = [store.load("orders")]
        for offset in (1, 1):
            store.apply(rewind(seen[-1], {A: offset, B: 5}))
            seen.append(store.load("orders"))
        self._refused(store, url, rewind(seen[-1 - back], {C: 7}))

    def test_a_writer_from_the_future_changes_nothing(self, store: Store, url: str) -> None:
        """A restored backup of the store must not be written over by a run that saw more."""
        store.apply(rewind(Snapshot("orders"), {A: 1}))
        self._refused(store, url, rewind(Snapshot("orders", version=5, positions={A: Position(1)}), {A: 2}))

    @pytest.mark.parametrize("offsets", [{}, {C: 7}], ids=["nothing moves", "a new partition"])
    def test_a_writer_that_read_another_ledger_of_the_same_version_changes_nothing(
        self, store: Store, url: str, offsets: dict[TopicPartition, int]
    ) -> None:
        """Versions repeat where a backup was restored, or the ledger was deleted and made anew."""
        for offset in (1, 2):
            store.apply(rewind(store.load("orders"), {A: offset, B: 5}))
        other = replace(store.load("orders"), change_id="of the ledger before")
        self._refused(store, url, rewind(other, offsets))

    @pytest.mark.parametrize(("tp", "offset"), [(B, 99), (C, 99), (B, None)], ids=["changed", "added", "deleted"])
    def test_an_edit_by_another_program_is_a_conflict_where_rows_are_the_positions(
        self, store: Store, url: str, tp: TopicPartition, offset: int | None
    ) -> None:
        """A row was changed, added or deleted after load: nothing is written. A copy is published anew."""
        store.apply(rewind(Snapshot("orders"), {A: 1, B: 2}))
        seen = store.load("orders")
        self.write_position(url, "orders", tp, offset)
        change = rewind(seen, {A: 10, B: 20, C: 30})
        if self.rows_are_positions:
            self._refused(store, url, change)
            return
        assert store.load("orders") == seen
        store.apply(change)
        assert store.load("orders") == change.after
        assert self.read_positions(url, "orders") == {A: 10, B: 20, C: 30}

    @pytest.mark.parametrize("group", ["orders", "50%off", "team/orders:v2"])
    def test_positions_of_another_program_are_taken_over(self, store: Store, url: str, group: str) -> None:
        """They are there before any ledger, and go on from where they are."""
        for tp, offset in ((A, 10), (C, 30)):
            self.write_position(url, group, tp, offset)
        found = store.load(group)
        assert found == Snapshot(group, positions={A: Position(10), C: Position(30)})
        ledger = ledger_of(store, group)
        ledger.acquire("start")
        if Ability.HISTORY in store.abilities:
            told = "start; 2 positions that another program has stored are taken over, of a, b"
            assert store.history(group)[0].reason == told
        ledger.commit(ledger.batch([OffsetRange(*A, 10, 15)]))
        assert store.load(group) == ledger.snapshot
        assert self.read_positions(url, group) == {A: 15, C: 30}

    @pytest.mark.parametrize("shared", [True, False], ids=["one store", "a store each"])
    def test_of_racing_threads_exactly_one_wins_each_version(self, url: str, *, shared: bool) -> None:
        """Each win adds one to the position, so a lost or doubled one would show."""
        threads, rounds = 4, 40
        stores = [self.opener()(url)] * threads if shared else [self.opener()(url) for _ in range(threads)]
        start = Barrier(threads)

        def run(store: Store) -> list[int]:
            start.wait(30)
            return race(store, "orders", rounds)

        with ThreadPoolExecutor(threads) as pool:
            won = sorted(version for wins in pool.map(run, stores) for version in wins)
        assert won == list(range(1, rounds + 1))
        assert self.read_positions(url, "orders") == {PARTITION: rounds}
        for store in stores:
            store.close()

    def test_after_every_event_the_store_holds_what_the_ledger_says(self, store: Store, url: str) -> None:
        """Another store on the same medium sees it too."""
        ledger, witness = ledger_of(store), self.opener()(url)
        for step in STEPS.values():
            step(ledger)
            assert store.load("orders") == witness.load("orders") == ledger.snapshot
            assert self.read_positions(url, "orders") == {tp: p.offset for tp, p in ledger.snapshot.positions.items()}
        witness.close()
        assert ledger.snapshot.positions == END
        assert (ledger.snapshot.owner, ledger.snapshot.pending, ledger.snapshot.generation) == (None, None, 1)

    @pytest.mark.parametrize("event", ["place", "begin", "mark", "wait", "commit", "release", "abandon"])
    def test_the_older_of_two_owners_is_fenced(self, store: Store, event: str) -> None:
        """Whatever it tries next is refused and changes nothing; the newer one goes on."""
        older, newer = ledger_of(store), ledger_of(store)
        older.acquire()
        older.place({A: Position(0)})
        older.begin(older.batch(SHORT)) if event in {"mark", "abandon"} else None
        newer.acquire()
        acts: dict[str, Callable[[], object]] = {
            "place": lambda: older.place({D: Position(1)}),
            "begin": lambda: older.begin(older.batch(SHORT)),
            "commit": lambda: commit(older, SHORT),
            "wait": lambda: older.note_waiting("the output is away"),
            "release": older.release,
            "abandon": lambda: older.abandon("late"),
            "mark": lambda: older.note_written(older.batch(SHORT), "audit"),
        }
        with pytest.raises(Fenced, match="epoch 2"):
            acts[event]()
        assert store.load("orders") == newer.snapshot
        commit(newer, SHORT)
        assert store.load("orders").positions == {A: Position(5)}

    @pytest.mark.parametrize("fault", Fault)
    def test_a_fault_at_any_call_neither_loses_nor_doubles_anything(self, store: Store, fault: Fault) -> None:
        """The same run with its first call failing, then its second, and so on until none fails."""
        clean, _ = run_steps(store, "clean", None, 1)
        nth, fired = 1, True
        while fired:
            found, fired = run_steps(store, f"fault-{nth}", fault, nth)
            assert found == clean
            nth += 1
        assert nth > len(STEPS)

    def test_owners_that_crash_and_lose_replies_agree_with_a_simple_model(self, store: Store, url: str) -> None:
        """See `machine`: hypothesis looks for a run in which something is lost or doubled."""
        world = World(store, partial(self.read_positions, url))
        if isinstance(self, TransactionConformance):
            writer = self.row_writer
            world = replace(
                world, write_row=lambda lent, row: writer(row)(lent), read_rows=partial(self.read_rows, url)
            )
        run_machine(world, self.examples * THOROUGH)

    def test_a_group_moves_in_and_out_whole(self, store: Store, url: str) -> None:
        """Positions with their topic ids, the batch under way, generation and history are the same at the end."""
        first, last = (MemoryStore(f"memory://{secrets.token_hex(8)}") for _ in range(2))
        ledger = ledger_of(first)
        ledger.acquire("start")
        ledger.place({A: Position(0, "id a"), C: Position(7)})
        ledger.commit(ledger.batch([OffsetRange(*A, 0, 5)]))
        batch = ledger.batch([OffsetRange(*A, 5, 9), OffsetRange(*C, 7, 8)])
        ledger.begin(batch)
        ledger.note_written(batch, "audit")
        ledger.release()
        copy("orders", first, store)
        assert self.read_positions(url, "orders") == {A: 5, C: 7}
        copy("orders", store, last)
        began, ended = (replace(each.load("orders"), version=0, change_id="") for each in (first, last))
        assert began == ended
        events = [entry.event for entry in last.history("orders", 100)][::-1]
        told = ["acquire", "place", "commit", "begin", "mark", "release", "copy"]
        assert events == ([*told, "copy"] if Ability.HISTORY in store.abilities else ["copy"])

    def test_a_forgotten_position_stays_forgotten_until_it_is_set_again(self, store: Store, url: str) -> None:
        """One partition of a topic, and a whole topic; a commit in between keeps it so."""
        ledger = ledger_of(store)
        ledger.acquire()
        ledger.place({A: Position(5, "id a"), B: Position(7, "id a"), D: Position(9, "id b")})
        ledger.forget([A, D], "never read")
        commit(ledger, (OffsetRange(*B, 7, 8),))
        reader = self.opener()(url)
        assert reader.load("orders") == ledger.snapshot
        reader.close()
        assert dict(ledger.snapshot.positions) == {B: Position(8, "id a")}
        ledger.place({A: Position(0, "id a"), C: Position(1, "id b")})
        ledger.rewind({D: Position(2, "another")}, "back", force=True)
        commit(ledger, (OffsetRange(*A, 0, 3), OffsetRange(*D, 2, 4)))
        found = store.load("orders")
        assert found == ledger.snapshot
        assert {tp: at.offset for tp, at in found.positions.items()} == {A: 3, B: 8, C: 1, D: 4}
        assert not found.forgotten

    def test_a_forgotten_row_that_another_program_moves_counts_again_and_one_that_it_deletes_is_gone(
        self, store: Store, url: str
    ) -> None:
        """Only where rows are the positions."""
        ledger = ledger_of(store)
        ledger.acquire()
        ledger.place({A: Position(5), B: Position(7), C: Position(9)})
        ledger.forget([A, C], "never read")
        if not self.rows_are_positions:
            return
        self.write_position(url, "orders", A, 6)
        self.write_position(url, "orders", C, None)
        found = ledger.load()
        assert {tp: at.offset for tp, at in found.positions.items()} == {A: 6, B: 7}
        assert not found.forgotten
        assert not found.missing
        ledger.place({C: Position(1)})
        assert store.load("orders") == ledger.snapshot

    def _refused(self, store: Store, url: str, change: Change) -> None:
        before = store.load("orders"), self.read_positions(url, "orders"), list(store.history("orders"))
        with pytest.raises(VersionConflict):
            store.apply(change)
        assert (store.load("orders"), self.read_positions(url, "orders"), list(store.history("orders"))) == before


def run_steps(store: Store, group: str, fault: Fault | None, nth: int) -> tuple[Snapshot, bool]:
    """Take every step; return what is stored at the end, less what differs by chance, and whether a fault fired."""
    failing = faulty(store)
    failing.arm(fault, nth)
    ledger = ledger_of(failing, group)
    with no_waiting():
        for step in STEPS.values():
            step(ledger)
    assert store.load(group) == ledger.snapshot
    return replace(ledger.snapshot, group="", change_id="", generation=0), failing.armed is None
