"""What a store is: a place for ledgers, with compare-and-set.

To write a store, implement `Store`:

1. `load` returns the group's snapshot: `codec.load_control` makes it from the control record and the native rows.
   Without a control record it is `codec.empty` with whatever rows are there.
2. `apply` makes one `Change` durable, or nothing of it: the ledger is still `before` by version and change id (see
   `Change.builds_on` and `codec.control_mark`), every moved position is still at the offset in `Move.before` (None:
   no row), then control record, moved rows and history entry are written as one atomic step. A medium that changes one
   thing at a time keeps all in it as a `document`, and publishes the rows people know as a copy.
3. Errors are three: `VersionConflict` (the check failed), `StoreUnavailable` (surely not written),
   `OutcomeUnknown` (a request was sent and no answer came). When in doubt it is unknown.
4. Every wait has a limit. A connection is opened once, kept, and thrown away after any error on it.
5. Declare in `abilities` what the store can do, pass the conformance suite, and add a line to `stores.SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.errors import GuaranteeRefused, MissingExtra, VersionConflict


class Ability(StrEnum):
    """What a store can do beyond reading."""

    COMMIT = "commit"
    """It can be written at all."""
    FENCE = "fence"
    """A stale owner's write is refused by the store itself."""
    HISTORY = "history"
    """It keeps an entry for each change."""


@runtime_checkable
class Store(Protocol):
    """One place where ledgers of consumer groups are kept. Safe to use from several threads."""

    address: str
    """The URL without credentials, for messages."""
    abilities: frozenset[Ability]

    def load(self, group: str) -> Snapshot:
        """Return the group's ledger, of version 0 where the store knows none.

        Raises:
            StoreUnavailable: it could not be read.
            CorruptStore: what is stored is not a ledger.
        """

    def apply(self, change: Change) -> None:
        """Make the change durable, whole or not at all.

        Raises:
            VersionConflict: the ledger is not `change.before` any more; surely not written.
            StoreUnavailable: surely not written.
            OutcomeUnknown: may be written.
        """

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """Return the newest `limit` entries, newest first."""

    def groups(self) -> Sequence[str]:
        """Return the names of all groups with a ledger or positions, sorted."""

    def close(self) -> None:
        """Give connections back; a later call may open them again."""


@runtime_checkable
class TransactionalStore(Store, Protocol):
    """A store that lends its connection, so that output and offsets commit together."""

    def identity(self) -> str:
        """Return what tells this database from every other, however its URL is spelled.

        Raises:
            StoreUnavailable: the database could not be asked.
        """

    def transaction(self, change: Change) -> AbstractContextManager[Any]:
        """Open a transaction, yield its connection, and at the end apply `change` and commit, or roll all back.

        What the block raises comes out as it is, after the rollback.

        Raises:
            VersionConflict: found at the start or at the end; all is rolled back.
            StoreUnavailable: surely not committed.
            OutcomeUnknown: the reply to the commit was lost.
        """


def check_writable(store: Store) -> None:
    """Check that runs can keep their offsets in this store.

    Raises:
        GuaranteeRefused: it can only be read, or two runs could both commit in it.
    """
    missing = {Ability.COMMIT: "only be read", Ability.FENCE: "not keep a second run from committing too"}
    for ability, what in missing.items():
        if ability not in store.abilities:
            raise GuaranteeRefused(f"{store.address} can {what}, so no run keeps its offsets there: take another")


def version_conflict(address: str, change: Change, found: object) -> VersionConflict:
    """Return the error for a change that does not build on what a store has, which is at version `found`."""
    what = f"it is at version {found}, not {change.before.version}"
    if found == change.before.version:
        what = f"its version {found} is not the one that was read: a backup was restored, or it was made anew"
    return not_changed(address, change, what)


def not_changed(address: str, change: Change, why: str) -> VersionConflict:
    """Return the error for a change that another writer was ahead of."""
    return VersionConflict(f"{address}: group {change.after.group!r} was not changed: {why}")


@contextmanager
def needing_extra(scheme: str, extra: str) -> Iterator[None]:
    """Raise `MissingExtra` where the block loads a client library that is not installed.

    Args:
        scheme: of the URL that needs it.
        extra: of offsetkeeper, that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        raise MissingExtra(
            f"{scheme}:// needs the library {error.name!r}: pip install 'offsetkeeper[{extra}]'"
        ) from error
