"""A group's ledger from one store into another: positions, generation, pending batch, and as much history as both hold.

The first change that is written to the target has the whole state, with the oldest entry of the history; each one after
it adds an entry. So whatever moment a copy dies at, the positions are right and whole, and the next one goes on from
the last entry it finds. Until it is done the target is held by the copy.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from offsetkeeper.errors import CorruptStore, Fenced, NotAllowed, SettingsError, VersionConflict
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Change, Entry, Move, Owner, Snapshot
from offsetkeeper.store import Ability, Store, check_writable

_COPY = "copy"


def copy(
    group: str,
    source: Store,
    target: Store,
    *,
    history: int = 1000,
    force: bool = False,
    overwrite: bool = False,
    patience_s: float = 60.0,
) -> Snapshot:
    """Copy a group's ledger; return it as the target holds it. A copy that was cut off is gone on with by another.

    The source is only read. What was copied is compared with it at the end.

    Args:
        group: the consumer group.
        source: the store to copy from; may be one that can only be read.
        target: the store to copy to.
        history: the most entries to copy, the newest of those the source has.
        force: copy although the source is held: for a run that died without giving it back.
        overwrite: write over positions or a ledger that the target has of the group already.
        patience_s: seconds for which each of the stores may be away.

    Raises:
        Fenced: a run holds the group in the source or in the target.
        NotAllowed: there is nothing to copy, or the target has a ledger or positions of its own.
        GuaranteeRefused: the target can only be read.
        VersionConflict: somebody changed one of them meanwhile: copy again.
        StoreUnavailable, OutcomeUnknown, CorruptStore: as for `Ledger`; copy again.
    """
    check_writable(target)
    if source.address == target.address:
        raise SettingsError(f"{source.address} cannot be copied onto itself")
    origin, ledger = (Ledger(store, group, patience_s=patience_s, name=_COPY) for store in (source, target))
    wanted = _wanted(origin, force=force)
    entries = _entries(origin, target, history)
    holder = Owner(f"{_COPY} of {source.address}", wanted.epoch, _COPY)
    done = _entries_done(ledger, wanted, holder, entries, overwrite=overwrite)
    for entry in entries[done:]:
        ledger.record(_change(ledger.snapshot, replace(wanted, owner=holder), entry))
    if not _same(ledger.snapshot, wanted):
        reason = f"copied from {source.address}, version {wanted.version}"
        last = Entry(0, _COPY, secrets.token_hex(8), _now_ms(), origin.name, reason)
        ledger.record(_change(ledger.snapshot, wanted, last))
    return _verified(origin, ledger, wanted)


def _wanted(origin: Ledger, *, force: bool) -> Snapshot:
    """Return what the target shall hold: the source's ledger, held by nobody."""
    found = origin.load()
    if not found.version and not found.positions:
        raise NotAllowed(f"{origin.store.address} has neither ledger nor positions of group {origin.group!r}")
    if found.owner is not None and not force:
        raise Fenced(
            f"group {origin.group!r} in {origin.store.address} is held by {found.owner.name} (epoch "
            f"{found.owner.epoch}): stop that run first. If it has died already, copy with force"
        )
    return replace(found, owner=None)


def _entries(origin: Ledger, target: Store, limit: int) -> Sequence[Entry]:
    if limit < 1 or not all(Ability.HISTORY in store.abilities for store in (origin.store, target)):
        return []
    return origin.history(limit)[::-1]


def _entries_done(ledger: Ledger, wanted: Snapshot, holder: Owner, entries: Sequence[Entry], *, overwrite: bool) -> int:
    """Return how many entries an earlier copy has written; refuse a target that is none and not empty."""
    found, where = ledger.load(), f"{ledger.store.address} has"
    newest = ledger.history(2) if Ability.HISTORY in ledger.store.abilities else ()
    own = found.owner is not None and found.owner.id == holder.id
    copied = own or (found.owner is None and newest and newest[0].event == _COPY)
    if found.owner is not None and not copied:
        raise Fenced(f"{where} group {ledger.group!r} held by {found.owner.name}: stop that run first")
    if found.version and not (copied or overwrite or _same(found, wanted)):
        raise NotAllowed(f"{where} a ledger of group {ledger.group!r} already: copy with overwrite, or under no ledger")
    if not found.version and not overwrite and found.positions.items() - wanted.positions.items():
        raise NotAllowed(f"{where} other positions of group {ledger.group!r} already: copy with overwrite")
    if extra := sorted(found.positions.keys() - wanted.positions.keys()):
        raise NotAllowed(f"{where} a position of {extra[0]}, which the source has not: delete it there first")
    if found.version and not copied:
        return len(entries)  # its history is another: none is mixed into it
    numbers = {entry.change_id: number for number, entry in enumerate(entries, 1)}
    return max((numbers.get(entry.change_id, 0) for entry in newest), default=0)


def _change(before: Snapshot, wanted: Snapshot, entry: Entry) -> Change:
    after = replace(
        wanted,
        version=before.version + 1,
        epoch=max(before.epoch, wanted.epoch),
        generation=wanted.generation or _now_ms() // 1000,  # of positions that had no ledger yet; see `rules`
        change_id=entry.change_id,
    )
    moves = {
        tp: Move(before.positions.get(tp), at) for tp, at in wanted.positions.items() if before.positions.get(tp) != at
    }
    made = replace(entry, version=after.version)
    if entry.event == _COPY:
        made = replace(made, epoch=after.epoch, generation=after.generation, sequence=after.sequence, moves=moves)
    return Change(before, after, moves, made)


def _same(one: Snapshot, other: Snapshot) -> bool:
    """Whether both stand at the same place; versions count the changes of each store and say nothing."""
    return _essence(one) == _essence(other)


def _essence(snapshot: Snapshot) -> Snapshot:
    generation = snapshot.generation if snapshot.sequence or snapshot.epoch else 0
    return replace(snapshot, version=0, epoch=0, change_id="", generation=generation)


def _verified(origin: Ledger, ledger: Ledger, wanted: Snapshot) -> Snapshot:
    copied = ledger.load()
    if not _same(copied, wanted):
        raise CorruptStore(f"{ledger.store.address} does not hold what was copied to it: {copied}. Copy again")
    if not _same(replace(origin.load(), owner=None), wanted):
        raise VersionConflict(f"{origin.store.address} was changed while it was copied: copy again")
    return copied


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
