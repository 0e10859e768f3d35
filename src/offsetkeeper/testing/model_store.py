"""A store as a model: what each call of any store must answer, with nothing between it and the medium that can fail."""

from __future__ import annotations

from collections.abc import Sequence

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.store import Ability, not_changed, version_conflict


class ModelLedgerStore:
    """Ledgers in a dictionary, each as the last change left it. No I/O, no clock, no threads.

    Args:
        address: for messages.
        kept: number of history entries kept of each group.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, address: str = "model://store", *, kept: int = 1000) -> None:
        self.address = address
        self._kept = kept
        self._ledgers: dict[str, Snapshot] = {}
        self._entries: dict[str, tuple[Entry, ...]] = {}

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        return self._ledgers.get(group, Snapshot(group))

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        group = change.after.group
        check_change(change, self.load(group), self.address)
        self._ledgers[group] = change.after
        self._entries[group] = (change.entry, *self._entries.get(group, ()))[: self._kept]

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        return self._entries.get(group, ())[:limit]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return sorted(self._ledgers)

    def close(self) -> None:
        """See `Store.close`."""


def check_change(change: Change, found: Snapshot, address: str) -> None:
    """Check that a change builds on the ledger that a store has, and moves each position from where it is.

    Of a position the offset counts: other programs do not know topic ids.

    Raises:
        VersionConflict: it does not; nothing is to be written.
    """
    if not change.builds_on(found):
        raise version_conflict(address, change, found.version)
    for tp, move in change.moves.items():
        held = found.rows.get(tp)
        if (held and held.offset) != (move.before and move.before.offset):
            raise not_changed(address, change, f"{tp} was changed by another program")
