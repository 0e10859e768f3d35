"""Finds offsets that another tool has changed, in stores that write offsets for other programs."""

from __future__ import annotations

from collections.abc import Sequence

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.published import Difference, Publishing, differences, refused
from offsetkeeper.errors import NotAllowed


def edited(ledger: Ledger) -> Sequence[Difference]:
    """Return the partitions whose published offset differs from the ledger; empty if the store publishes no offsets.

    A run publishes right after it commits. So a difference is read twice, and counts only if neither side has changed.

    Raises:
        StoreUnavailable, CorruptStore, Refused: see `Ledger.load`.
    """
    store = ledger.store
    if not isinstance(store, Publishing):
        return []
    first = _differing(ledger, store)
    return [each for each in _differing(ledger, store) if each in first] if first else []


def check_unedited(ledger: Ledger) -> None:
    """Check that no other program has moved the offsets of a group, before its positions are taken elsewhere.

    Raises:
        NotAllowed: published offsets differ from the ledger: another program may have gone on from them.
        StoreUnavailable, CorruptStore, Refused: see `Ledger.load`.
    """
    if found := edited(ledger):
        raise NotAllowed(refused(ledger.group, found))


def _differing(ledger: Ledger, store: Publishing) -> Sequence[Difference]:
    snapshot = ledger.load()
    return differences(snapshot.positions, store.published_offsets(ledger.group)) if snapshot.version else []
