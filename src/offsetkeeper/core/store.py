"""The contract of a store: a place for ledgers, with compare-and-set.

To write a store, implement `Store`:

1. `load` returns the group's snapshot: `codec.load_control` makes it from the control record and the native rows.
   Without a control record it is `codec.empty` with the rows that exist.
2. `apply` makes one `Change` durable, or no part of it. It checks that the ledger is still `before`, by version and
   change id (see `Change.builds_on` and `codec.control_mark`), and that every moved position is still at the offset in
   `Move.before` (None: no row). Then it writes control record, moved rows and history entry in one atomic step. A
   medium that changes only one thing atomically keeps the whole ledger as a `document`, and publishes the rows as a
   copy.
3. Errors are three: `VersionConflict` (the check failed), `StoreUnavailable` (surely not written),
   `OutcomeUnknown` (a request was sent, and no answer came). When in doubt, raise `OutcomeUnknown`.
4. Every wait has a limit. A connection is opened once, reused, and closed after any error on it.
5. Declare the store's `abilities`, pass the conformance suite, and add a line to `stores.SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.errors import GuaranteeRefused, MissingExtra, VersionConflict


class Ability(StrEnum):
    """What a store can do in addition to reading."""

    COMMIT = "commit"
    """The store can be written."""
    FENCE = "fence"
    """The store itself refuses the write of a stale owner."""
    HISTORY = "history"
    """The store keeps a history entry for each change."""


@runtime_checkable
class Store(Protocol):
    """A place that keeps the ledgers of consumer groups. Safe to use from several threads."""

    address: str
    """The URL without credentials, for messages."""
    abilities: frozenset[Ability]

    def load(self, group: str) -> Snapshot:
        """Return the group's ledger; its version is 0 if the store has no ledger of the group.

        Raises:
            StoreUnavailable: the store could not be read.
            CorruptStore: the stored data is not a ledger.
        """

    def apply(self, change: Change) -> None:
        """Make the change durable, completely or not at all.

        Raises:
            VersionConflict: the ledger is no longer `change.before`; surely not written.
            StoreUnavailable: surely not written.
            OutcomeUnknown: may be written.
        """

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """Return the newest `limit` entries, newest first."""

    def groups(self) -> Sequence[str]:
        """Return the names of all groups with a ledger or positions, sorted."""

    def close(self) -> None:
        """Close connections; a later call may open them again."""


@runtime_checkable
class TransactionalStore(Store, Protocol):
    """A store that lends its connection, so that output and offsets are committed together."""

    def identity(self) -> str:
        """Return a text that identifies this database, however its URL is spelled.

        Raises:
            StoreUnavailable: the database could not be asked.
        """

    def transaction(self, change: Change) -> AbstractContextManager[Any]:
        """Open a transaction, yield its connection, and at the end apply `change` and commit, or roll all back.

        An error of the block is raised unchanged, after the rollback.

        Raises:
            VersionConflict: found at the start or at the end; everything is rolled back.
            StoreUnavailable: surely not committed.
            OutcomeUnknown: the reply to the commit was lost.
        """


def check_writable(store: Store) -> None:
    """Check that runs can keep their offsets in this store.

    Raises:
        GuaranteeRefused: the store is read-only, or two runs could both commit in it.
    """
    missing = {Ability.COMMIT: "only be read", Ability.FENCE: "not prevent a second run from committing too"}
    for ability, what in missing.items():
        if ability not in store.abilities:
            raise GuaranteeRefused(
                f"{store.address} can {what}, so a run cannot keep its offsets there: use another store"
            )


def version_conflict(address: str, change: Change, found: object) -> VersionConflict:
    """Return the error for a change that does not build on the stored ledger, which is at version `found`."""
    what = f"it is at version {found}, not {change.before.version}"
    if found == change.before.version:
        what = f"its version {found} is not the one that was read: a backup was restored, or it was created again"
    return not_changed(address, change, what)


def not_changed(address: str, change: Change, why: str) -> VersionConflict:
    """Return the error for a change that came after the change of another writer."""
    return VersionConflict(f"{address}: group {change.after.group!r} was not changed: {why}")


EVERY_ENTRY = 1_000_000
"""More entries than any store keeps of a history."""


@contextmanager
def needing_extra(needs: str, extra: str) -> Iterator[None]:
    """Raise `MissingExtra` if the block loads a library that is not installed.

    Args:
        needs: what needs it, in words that its name follows, as "redis:// needs the library".
        extra: the extra of offsetkeeper that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        raise MissingExtra(f"{needs} {error.name!r}: pip install 'offsetkeeper[{extra}]'") from error
