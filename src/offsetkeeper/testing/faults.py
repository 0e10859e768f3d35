"""A store that fails on demand, around any other: before a call's effect, after it, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.retry import retry
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import AlreadyCommitted, OutcomeUnknown, StoreUnavailable


class Fault(Enum):
    """How a call to a store fails. Reads have no effect to lose: they are refused."""

    REFUSED = "StoreUnavailable, and nothing was written"
    REQUEST_LOST = "OutcomeUnknown, and nothing was written"
    REPLY_LOST = "OutcomeUnknown, and all was written"


class FaultyStore:
    """A store with at most one fault armed; `faulty` makes one.

    Attributes:
        armed: the fault that waits for its call, or None when it has fired.
        calls_left: calls that go through before it fires.
    """

    def __init__(self, store: Store) -> None:
        self.address = store.address
        self.abilities = store.abilities
        self.armed: Fault | None = None
        self.calls_left = 0
        self._store = store

    def arm(self, fault: Fault | None, nth: int = 1) -> None:
        """Let the `nth` call from now on fail, counted from 1."""
        self.armed = fault
        self.calls_left = nth - 1

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        self._read()
        return self._store.load(group)

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        fault = self._due()
        if fault is Fault.REFUSED:
            raise _refused()
        if fault is not Fault.REQUEST_LOST:
            self._store.apply(change)
        if fault is not None:
            raise _lost()

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        self._read()
        return self._store.history(group, limit)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        self._read()
        return self._store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    def _due(self) -> Fault | None:
        """Return the fault of this call, and disarm it."""
        if self.armed is None or self.calls_left:
            self.calls_left -= self.armed is not None
            return None
        fault, self.armed = self.armed, None
        return fault

    def _read(self) -> None:
        if self._due():
            raise _refused()


class FaultyTransactionalStore(FaultyStore):
    """The same around a store that lends its connection."""

    _store: TransactionalStore

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        self._read()
        return self._store.identity()

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """See `TransactionalStore.transaction`. A fault that loses something does so at the commit."""
        fault = self._due()
        if fault is Fault.REFUSED:
            raise _refused()
        with self._store.transaction(change) as connection:
            yield connection
            if fault is Fault.REQUEST_LOST:
                raise _lost()
        if fault is Fault.REPLY_LOST:
            raise _lost()


def faulty(store: Store) -> FaultyStore:
    """Return a store around `store` that fails on demand, and has the same abilities."""
    return FaultyTransactionalStore(store) if isinstance(store, TransactionalStore) else FaultyStore(store)


def transact(ledger: Ledger, batch: Batch, write: Callable[[Any], object]) -> None:
    """Commit a batch with a row, as an engine does: it is tried again until it is known to be committed."""

    def commit(_: float) -> None:
        with ledger.transaction(batch) as connection:
            write(connection)

    with suppress(AlreadyCommitted):
        retry((StoreUnavailable, OutcomeUnknown), 1, commit)


def _refused() -> StoreUnavailable:
    return StoreUnavailable("a fault was armed: the call was refused")


def _lost() -> OutcomeUnknown:
    return OutcomeUnknown("a fault was armed: the request or its reply was lost")
