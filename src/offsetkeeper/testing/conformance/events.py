"""What holds for every store with a ledger over it: each event, fencing, and a fault at every call."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import OffsetRange, Position, Snapshot, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import Fenced
from offsetkeeper.testing.clock import no_waiting
from offsetkeeper.testing.conformance.medium import THOROUGH, Medium, ledger_of
from offsetkeeper.testing.conformance.transactions import TransactionConformance
from offsetkeeper.testing.faults import Fault, faulty
from offsetkeeper.testing.machine import World, run_machine

A, B = TopicPartition("a", 0), TopicPartition("b", 7)
FIRST = (OffsetRange(*A, 0, 10), OffsetRange(*B, 5, 6))
SECOND = (OffsetRange(*A, 10, 20),)
THIRD = (OffsetRange(*B, 6, 9),)
SHORT = (OffsetRange(*A, 0, 5),)


def commit(ledger: Ledger, ranges: tuple[OffsetRange, ...]) -> None:
    """Commit the ranges."""
    ledger.commit(ledger.batch(ranges))


STEPS: dict[str, Callable[[Ledger], object]] = {
    "acquire": lambda it: it.acquire(),
    "place": lambda it: it.place({A: Position(0, "id a"), B: Position(5)}),
    "begin what will be abandoned": lambda it: it.begin(it.batch((OffsetRange(*A, 0, 3),))),
    "abandon": lambda it: it.abandon("other ranges"),
    "begin": lambda it: it.begin(it.batch(FIRST)),
    "mark": lambda it: it.mark(it.batch(FIRST), "audit"),
    "commit what was begun": lambda it: commit(it, FIRST),
    "commit at once": lambda it: commit(it, SECOND),
    "rewind": lambda it: it.rewind({A: Position(2, "id a")}, "again"),
    "acquire again": lambda it: it.acquire(),
    "commit after the rewind": lambda it: commit(it, (OffsetRange(*A, 2, 4), *THIRD)),
    "release": lambda it: it.release(),
}
END = {A: Position(4, "id a"), B: Position(9)}


class EventConformance(Medium):
    """Part of `StoreConformance`.

    Attributes:
        examples: runs of 50 steps that hypothesis tries; fewer where a step is slow.
    """

    examples: ClassVar[int] = 10

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

    @pytest.mark.parametrize("event", ["place", "begin", "mark", "commit", "release", "abandon"])
    def test_the_older_of_two_owners_is_fenced(self, store: Store, event: str) -> None:
        """Whatever it tries next is refused and changes nothing; the newer one goes on."""
        older, newer = ledger_of(store), ledger_of(store)
        older.acquire()
        older.place({A: Position(0)})
        older.begin(older.batch(SHORT)) if event in {"mark", "abandon"} else None
        newer.acquire()
        acts: dict[str, Callable[[], object]] = {
            "place": lambda: older.place({B: Position(1)}),
            "begin": lambda: older.begin(older.batch(SHORT)),
            "commit": lambda: commit(older, SHORT),
            "release": older.release,
            "abandon": lambda: older.abandon("late"),
            "mark": lambda: older.mark(older.batch(SHORT), "audit"),
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
