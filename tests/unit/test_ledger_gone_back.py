"""A store that has lost changes which it acknowledged, as after a failover: the run is told so, and not of a rival."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Fenced, OutcomeUnknown, StoreError, VersionConflict
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting

AT = TopicPartition("t", 0)


class Followed(MemoryStore):
    """A store with a standby that has each change, until it is held."""

    def __init__(self) -> None:
        self._standby = MemoryStore(f"memory://{secrets.token_hex(8)}")
        super().__init__(f"memory://{secrets.token_hex(8)}")
        self.held = self.promoted = self.lost = False

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        return self._standby.load(group) if self.promoted else super().load(group)

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        if self.lost:
            self.lost = False
            raise OutcomeUnknown("the connection broke")
        if not self.promoted:
            super().apply(change)
        if self.promoted or not self.held:
            self._standby.apply(change)


def move(ledger: Ledger) -> None:
    at = ledger.snapshot.positions[AT].offset
    ledger.commit(ledger.batch([OffsetRange("t", 0, at, at + 1)]))


def begin(ledger: Ledger) -> Batch:
    at = ledger.snapshot.positions[AT].offset
    batch = ledger.batch([OffsetRange("t", 0, at, at + 1)])
    ledger.begin(batch)
    return batch


TOLD = "This run has seen version 4 of the ledger, and the store has version {}"
Ask = Callable[[Ledger], object]


@pytest.mark.parametrize(
    ("ask", "lost", "kind"),
    [
        (move, False, VersionConflict),
        (begin, False, VersionConflict),
        (begin, True, OutcomeUnknown),
        (lambda ledger: ledger.confirm(ledger.batch([OffsetRange("t", 0, 2, 3)])), False, VersionConflict),
        (Ledger.check_held, False, VersionConflict),
    ],
    ids=["commit", "begin", "reply lost", "confirm", "check"],
)
def test_a_run_is_told_that_its_store_has_lost_changes(ask: Ask, lost: bool, kind: type[StoreError]) -> None:  # noqa: FBT001 - a case
    store = Followed()
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({AT: Position(0)})
    move(ledger)
    store.held = True
    move(ledger)
    store.promoted, store.lost = True, lost
    with no_waiting(), pytest.raises(kind, match=TOLD.format(3)):
        ask(ledger)
    assert store.load("g").positions[AT].offset == 1


def test_a_run_whose_start_was_lost_is_told_so_and_of_no_other_run() -> None:
    store = Followed()
    older = Ledger(store, "g", name="older")
    older.acquire()
    older.place({AT: Position(0)})
    store.held = True
    newer = Ledger(store, "g")
    newer.acquire()
    move(newer)
    store.promoted = True
    with pytest.raises(Fenced, match=re.escape(TOLD.format(2))):
        move(newer)
