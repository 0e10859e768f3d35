"""A store around another one that dies at a step, with the process in whose place it stands: nothing works after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.store import TransactionalStore


class Died(Exception):
    """What is raised at the step, and at all that is tried afterwards."""


class DyingStore:
    """Dies at one of the steps "before begin", "after begin", "before commit" … or when told.

    A mark's are "before mark NAME" and "after mark NAME".
    For a transaction that commits a batch, the steps are "before transaction", "inside" and "after transaction".

    Attributes:
        dead: whether it has died.
    """

    def __init__(self, store: TransactionalStore, step: str) -> None:
        self.address, self.abilities = store.address, store.abilities
        self.dead = False
        self._store, self._step = store, step

    def at(self, step: str) -> None:
        """Die if this is the step, or if that has happened."""
        if self.dead or step == self._step:
            self.dead = True
            raise Died(step)

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        self.at("load")
        return self._store.load(group)

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        event, pending = change.entry.event, change.after.pending
        step = f"mark {pending.written[-1]}" if event == "mark" and pending is not None else event
        self.at(f"before {step}")
        self._store.apply(change)
        self.at(f"after {step}")

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        return self._store.history(group, limit)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return self._store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return self._store.identity()

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """See `TransactionalStore.transaction`."""
        self.at("before transaction")
        with self._store.transaction(change) as connection:
            yield connection
            self.at("inside")
        self.at("after transaction")
