"""The history of a group, read on from where the look before had come to, and what the audit finds in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from offsetkeeper.audit import Finding, audit
from offsetkeeper.model import Entry, Snapshot
from offsetkeeper.monitor.view import GroupLook
from offsetkeeper.store import Store

KEPT = 1_000  # entries of a group; as many as stores keep unless set otherwise
_MARGIN = 20  # changes made between reading a ledger and reading its history


def read_on(store: Store, snapshot: Snapshot, before: GroupLook | None) -> tuple[Sequence[Entry], Sequence[Finding]]:
    """Return the newest history of a ledger, newest first, and its findings; only what is new is asked for.

    Raises:
        StoreError: it could not be read.
    """
    if before is not None and _same(before.snapshot, snapshot):
        return before.entries, before.findings
    known = [] if before is None else before.entries
    step = snapshot.version - (known[0].version if known else 0)
    entries = None
    if known and 0 < step < KEPT - _MARGIN:
        entries = joined(_until(store.history(snapshot.group, step + _MARGIN), snapshot.version), known)
    if entries is None:
        entries = _until(store.history(snapshot.group, KEPT), snapshot.version)
    return entries, audit(entries[::-1], snapshot.positions)


def joined(fresh: Sequence[Entry], known: Sequence[Entry]) -> Sequence[Entry] | None:
    """Return both as one history, newest first, or None where they are not of the same one, or lie apart.

    Args:
        fresh: just read.
        known: read before; a ledger that was deleted and made again has other changes at the same versions.
    """
    by_version = {entry.version: entry for entry in fresh}
    here = by_version.get(known[0].version)
    if here is None or here.change_id != known[0].change_id:
        return None
    whole = [*(entry for entry in fresh if entry.version > known[0].version), *known][:KEPT]
    return whole if all(one.version == other.version + 1 for one, other in pairwise(whole)) else None


def _same(before: Snapshot, now: Snapshot) -> bool:
    """Whether nothing has changed; an edit from outside moves positions without a version."""
    return (before.version, before.change_id, before.positions) == (now.version, now.change_id, now.positions)


def _until(entries: Sequence[Entry], version: int) -> list[Entry]:
    return [entry for entry in entries if entry.version <= version]
