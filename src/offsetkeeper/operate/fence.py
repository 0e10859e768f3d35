"""Fences the run that holds a group, and moves nothing."""

from __future__ import annotations

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Owner


def fence(ledger: Ledger, reason: str) -> Owner | None:
    """Fence the run that holds the group: it can commit nothing more. Return its owner; None if no run holds the group.

    No position moves, and a pending batch stays for the next start. Without an owner nothing changes.

    Args:
        ledger: ledger of the group.
        reason: reason for the history.

    Raises:
        Fenced: another run took the group at the same time.
        VersionConflict: other runs kept acquiring the group at the same time.
        StoreUnavailable, CorruptStore: see `Ledger.load`.
    """
    if ledger.load().owner is None:
        return None
    ledger.acquire(reason)
    ledger.release()
    return ledger.replaced
