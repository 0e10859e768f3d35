"""The clients whose answers are held against a register: a store that breaks a promise is found by them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from offsetkeeper.core.model import Change, Move, Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.concurrent import PARTITIONS, Plan, run_clients, violations


class Broken(MemoryStore):
    """Every fifth call does what a store must not do."""

    calls = 0
    old: Snapshot
    late: Change | None = None

    def due(self) -> bool:
        """Whether this call is one of them."""
        self.calls += 1
        return self.calls % 5 == 0


class StaleRead(Broken):
    """Answer what was there some calls before."""

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        if self.due() and self.old.group == group:
            return self.old
        self.old = super().load(group)
        return self.old

    old = Snapshot("")


class TornRead(Broken):
    """Answer with a row of another change."""

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        found = super().load(group)
        return replace(found, positions={**found.positions, PARTITIONS[1]: Position(0)}) if self.due() else found


class LostUpdate(Broken):
    """Write over what it does not build on."""

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        try:
            super().apply(change)
        except VersionConflict:
            if not self.due():
                raise
            super().apply(on_top_of(super().load(change.after.group), change))


class LostWrite(Broken):
    """Say that it is done, and do nothing."""

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        if not self.due():
            super().apply(change)


class SaidUnwritten(Broken):
    """Do it, and say that it is surely not done."""

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        super().apply(change)
        if self.due():
            raise StoreUnavailable("away")


class AppliedTwice(Broken):
    """Say that it is unknown, do it, and do it again before the next but one."""

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        late, self.late = self.late, None  # in one step, as other clients are here too
        if late is not None and late.after.group == change.after.group:
            super().apply(on_top_of(super().load(change.after.group), late))
        super().apply(change)
        if self.due():
            self.late = change
            raise OutcomeUnknown("no answer")


def on_top_of(found: Snapshot, change: Change) -> Change:
    """Return the change as if it had been made for the ledger `found`."""
    moves = {tp: Move(found.positions.get(tp), move.after) for tp, move in change.moves.items()}
    after = replace(change.after, version=found.version + 1)
    return replace(change, before=found, after=after, moves=moves, entry=replace(change.entry, version=after.version))


def found_with(opener: Callable[[str], MemoryStore]) -> list[str]:
    """Return what is wrong in thirty histories."""
    store, plan = opener(f"memory://{secrets.token_hex(8)}"), Plan(secrets.token_hex(4), 30, 1)
    histories = run_clients(lambda _: store, store.address, plan)
    return list(violations(partial(MemoryStore, store.address)(), plan, histories))


@pytest.mark.parametrize("broken", [StaleRead, TornRead, LostUpdate, LostWrite, SaidUnwritten, AppliedTwice])
def test_a_store_that_breaks_a_promise_is_found(broken: type[MemoryStore]) -> None:
    assert found_with(broken)


def test_a_store_that_keeps_all_promises_is_not() -> None:
    assert found_with(MemoryStore) == []
