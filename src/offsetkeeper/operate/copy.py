"""A group's ledger from one store into another: positions, generation, pending batch, and as much history as both hold.

The first change that is written to the target has the whole state, with the oldest entry of the history; each one after
it adds an entry. So whatever moment a copy dies at, the positions are right and whole, and the next one goes on from
the last entry it finds. Until it is done the target is held by the copy.

Whether the target may be written is asked of what is in it, never of its URL, which tells neither two tables of one
server apart nor one place spelled in two ways: a ledger that stands elsewhere is another, and one that was made by the
very same change is the source itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry, Move, Owner, Positions, Snapshot
from offsetkeeper.core.store import Ability, Store, check_writable
from offsetkeeper.errors import CorruptStore, Fenced, NotAllowed, Refused, VersionConflict

_COPY = "copy"
_HOLDER = "copy of "


def copy(
    group: str,
    source: Store,
    target: Store,
    *,
    history: int = 1000,
    force: bool = False,
    overwrite: bool = False,
    retry_timeout_s: float = 60.0,
) -> Snapshot:
    """Copy a group's ledger; return it as the target holds it. A copy that was cut off is gone on with by another.

    Copied once more, nothing is written, as long as the source has not moved; then it takes `overwrite`.

    The source is only read. What was copied is compared with it at the end.

    Args:
        group: the consumer group.
        source: the store to copy from; may be one that can only be read.
        target: the store to copy to.
        history: the most entries to copy, the newest of those the source has.
        force: copy although the source is held: for a run that died without giving it back.
        overwrite: write over positions or a ledger that the target has of the group already.
        retry_timeout_s: seconds for which each of the stores may be away.

    Raises:
        Fenced: a run holds the group in the source or in the target.
        NotAllowed: there is nothing to copy, or the target has a ledger or positions that are not the source's.
        Refused: source and target are one place.
        GuaranteeRefused: the target can only be read.
        VersionConflict: somebody changed one of them meanwhile: copy again, with `overwrite`.
        StoreUnavailable, OutcomeUnknown, CorruptStore: as for `Ledger`; copy again.
    """
    origin, ledger, wanted = _checked(group, source, target, retry_timeout_s, force=force, overwrite=overwrite)
    entries = _entries(origin, target, history)
    holder = Owner(f"{_HOLDER}{source.address}", wanted.epoch, _COPY)
    done = _entries_done(ledger, entries)
    for entry in entries[done:]:
        ledger.record(_change(ledger.snapshot, replace(wanted, owner=holder), entry))
    if not _same(ledger.snapshot, wanted):
        reason = f"copied from {source.address}, version {wanted.version}"
        last = Entry(0, _COPY, environment.token(), environment.now_ms(), origin.name, reason)
        ledger.record(_change(ledger.snapshot, wanted, last))
    return _verified(origin, ledger, wanted)


def preview(
    group: str,
    source: Store,
    target: Store,
    *,
    force: bool = False,
    overwrite: bool = False,
    retry_timeout_s: float = 60.0,
) -> CopyPlan:
    """Return what `copy` would write now; nothing is written. Arguments and errors are those of `copy`."""
    _, ledger, wanted = _checked(group, source, target, retry_timeout_s, force=force, overwrite=overwrite)
    return CopyPlan(wanted, ledger.snapshot.positions)


class CopyPlan(NamedTuple):
    """A copy before it is made.

    Attributes:
        wanted: the ledger that the target will hold.
        positions: that the target holds now.
    """

    wanted: Snapshot
    positions: Positions

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the old and the new offset of each partition."""
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "old": old and old.offset, "new": new.offset}
            for tp, new in sorted(self.wanted.positions.items())
            for old in [self.positions.get(tp)]
        ]
        return {"group": self.wanted.group, "version": self.wanted.version, "positions": rows}


def _checked(
    group: str, source: Store, target: Store, retry_timeout_s: float, *, force: bool, overwrite: bool
) -> tuple[Ledger, Ledger, Snapshot]:
    """Return both ledgers and what the target shall hold; raise what forbids the copy."""
    check_writable(target)
    origin, ledger = (Ledger(store, group, retry_timeout_s=retry_timeout_s, name=_COPY) for store in (source, target))
    _check_two_places(origin, ledger)
    wanted = _wanted(origin, force=force)
    _check_target(ledger, wanted, overwrite=overwrite)
    return origin, ledger, wanted


def _check_two_places(origin: Ledger, ledger: Ledger) -> None:
    found = origin.load()
    one_change = found == ledger.load() and (found.version or found.positions)
    if one_change and (found.version or origin.store.address == ledger.store.address):
        raise Refused(
            f"{origin.store.address} cannot be copied onto itself: {ledger.store.address} has group {origin.group!r} "
            f"at the very same change, version {found.version}. Give the URL of another place"
        )


def _wanted(origin: Ledger, *, force: bool) -> Snapshot:
    """Return what the target shall hold: the source's ledger, held by nobody."""
    found = origin.snapshot
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


def _check_target(ledger: Ledger, wanted: Snapshot, *, overwrite: bool) -> None:
    """Refuse a target that is held, or that has what is not the source's and may not be written over."""
    found, where, group = ledger.snapshot, f"{ledger.store.address} has", repr(ledger.group)
    if found.owner is not None and not _is_copy(found.owner):
        raise Fenced(f"{where} group {group} held by {found.owner.name}: stop that run first")
    if found.version and not overwrite and not _same(replace(found, owner=None), wanted):
        raise NotAllowed(f"{where} a ledger of group {group} already, which stands elsewhere: copy with overwrite")
    if not found.version and not overwrite and found.positions.items() - wanted.positions.items():
        raise NotAllowed(f"{where} other positions of group {group} already: copy with overwrite")
    if extra := sorted(found.positions.keys() - wanted.positions.keys()):
        raise NotAllowed(f"{where} a position of {extra[0]}, which the source has not: delete it there first")


def _entries_done(ledger: Ledger, entries: Sequence[Entry]) -> int:
    """Return how many entries a copy that was cut off has written; all, where the target's history is another."""
    found = ledger.snapshot
    if not found.version:
        return 0
    newest = ledger.history(1) if entries and _is_copy(found.owner) else ()
    numbers = {entry.change_id: number for number, entry in enumerate(entries, 1)}
    return max((numbers.get(entry.change_id, 0) for entry in newest), default=0) or len(entries)


def _is_copy(owner: Owner | None) -> bool:
    return owner is not None and owner.id.startswith(_HOLDER)


def _change(before: Snapshot, wanted: Snapshot, entry: Entry) -> Change:
    after = replace(
        wanted,
        version=before.version + 1,
        epoch=max(before.epoch, wanted.epoch),
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
    return replace(snapshot, version=0, epoch=0, change_id="")


def _verified(origin: Ledger, ledger: Ledger, wanted: Snapshot) -> Snapshot:
    """Return what the target holds; it is asked last, so that no other copy has come between that and the answer."""
    if not _same(replace(origin.load(), owner=None), wanted):
        raise VersionConflict(f"{origin.store.address} was changed while it was copied: copy again, with overwrite")
    written, copied = ledger.snapshot.change_id, ledger.load()
    if _same(copied, wanted):
        return copied
    if copied.change_id != written:
        raise VersionConflict(f"{ledger.store.address} was changed after it was copied to: copy again, with overwrite")
    raise CorruptStore(f"{ledger.store.address} does not hold what was copied to it: {copied}. Copy again")
