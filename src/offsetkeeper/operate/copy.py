"""Copies a group's ledger into another store: positions, generation, pending batch, and as much history as both hold.

The first change written to the target has the whole state, with the oldest history entry; each later change adds one
entry. So the positions are complete and correct whenever a copy dies, and the next copy continues after the last entry
it finds. A target whose history ends within that of the source gets what follows there: it has been copied from, or to,
and no position has changed since. Any other history stays as it is. The copy holds the group in the target until it is
done.

The content of the target decides whether it may be written, never its URL: a URL does not distinguish two tables of one
server, and one place can be spelled in two ways. A ledger at other positions is another ledger; a ledger that was made
by the same change is the source itself.

A source without a ledger has only positions. Over a ledger they count as a reset: all else of that ledger stays, so the
next batches are later than the marks of the outputs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.codec import FORMAT
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry, Move, Owner, Snapshot, unasked
from offsetkeeper.core.offsets import NO_POSITIONS, Position, Positions, TopicPartition
from offsetkeeper.core.older_format import as_rows, entry_in_format, in_format
from offsetkeeper.core.rules import Author, Rewind, decide
from offsetkeeper.core.store import Ability, Store, check_writable
from offsetkeeper.errors import CorruptStore, Fenced, NotAllowed, Refused, VersionConflict, listed
from offsetkeeper.operate.forget import forget_command
from offsetkeeper.operate.published import check_unedited

log = logging.getLogger(__name__)
_COPY = "copy"
_HOLDER = "copy of "
_NEWEST = 1000  # entries: those that change no position may be the newest
_IDLE = {_COPY, "acquire", "release"}
_OWN_HISTORY = (
    "the target keeps its own history, and gets one entry for the copy: the history of the source does not continue "
    "it. So verify finds gaps or overlaps there, explained by the copy, and undo takes back a reset of the target, "
    "from before the copy"
)


def copy(
    group: str,
    source: Store,
    target: Store,
    *,
    history: int = 1000,
    force: bool = False,
    overwrite: bool = False,
    format: int = FORMAT,  # noqa: A002 - the word of the docs
    retry_timeout_s: float = 60.0,
) -> Snapshot:
    """Copy a group's ledger; return it as the target holds it. Another copy continues an interrupted one.

    Copied once more, nothing is written, as long as the source has not moved; then it takes `overwrite`.

    The source is only read. What was copied is compared with it at the end.

    Args:
        group: the consumer group.
        source: the store to copy from; it may be read-only.
        target: the store to copy to.
        history: the most entries to copy; the newest are copied.
        force: copy although a run holds the group in the source, for a run that died without releasing the group; or
            although Kafka's offsets of the group differ from the ledger there, if no other program has gone on.
        overwrite: replace positions or a ledger that the target already has of the group. A position of a ledger
            there that the source does not have is taken out, as `forget` does.
        format: the format of the copy: an older one for an older release, see `core.older_format`.
        retry_timeout_s: seconds for which each store may be unavailable.

    Raises:
        Fenced: a run holds the group in the source or in the target.
        NotAllowed: there is nothing to copy, or the target has another ledger or other positions of the group; or
            another program has moved the group in the source, see `operate.published`.
        Refused: source and target are the same place; or the older format cannot hold what the ledger has.
        SettingsError: the format cannot be written.
        GuaranteeRefused: the target is read-only.
        VersionConflict: source or target was changed meanwhile: copy again, with `overwrite`.
        StoreUnavailable, OutcomeUnknown, CorruptStore: as for `Ledger`; copy again.
    """
    origin, ledger, wanted = _checked(
        group, source, target, retry_timeout_s, force=force, overwrite=overwrite, number=format
    )
    if ledger.snapshot.version and _same(ledger.snapshot, wanted):
        return _verified(origin, ledger, wanted)
    entries = [entry_in_format(entry, format) for entry in _entries(origin, target, history)]
    holder = Owner(f"{_HOLDER}{source.address}", wanted.epoch, _COPY)
    done = _entries_done(ledger, entries) or len(entries) * bool(ledger.snapshot.version)
    for entry in entries[done:]:
        ledger.record(_change(ledger.snapshot, replace(wanted, owner=holder), entry))
    if not _same(ledger.snapshot, wanted):
        reason = f"copied from {source.address}" + (f", version {wanted.version}" if wanted.version else "")
        last = Entry(0, _COPY, environment.token(), environment.now_ms(), origin.name, reason)
        ledger.record(_change(ledger.snapshot, wanted, last))
    return _verified(origin, ledger, wanted)


def preview(
    group: str,
    source: Store,
    target: Store,
    *,
    history: int = 1000,
    force: bool = False,
    overwrite: bool = False,
    format: int = FORMAT,  # noqa: A002 - as in `copy`
    retry_timeout_s: float = 60.0,
) -> CopyPlan:
    """Return what `copy` would write; nothing is written. Arguments and errors are those of `copy`."""
    origin, ledger, wanted = _checked(
        group, source, target, retry_timeout_s, force=force, overwrite=overwrite, number=format
    )
    found = ledger.snapshot
    other = bool(found.version) and not _is_copy(found.owner) and not _same(_rows(found, wanted), wanted)
    own = other and not _entries_done(ledger, _entries(origin, target, history))
    dropped = _given_up(found, wanted) if own else None  # else the source's history says what became of it
    begun = origin.snapshot.pending or origin.snapshot.unsettled
    return CopyPlan(wanted, found.positions, own, tuple(sorted(_taken_out(found, wanted))), dropped, begun)


class CopyPlan(NamedTuple):
    """A copy before it is made.

    Attributes:
        wanted: the ledger that the target will hold.
        positions: the positions that the target holds now.
        keeps_history: whether the target keeps a history of its own, which that of the source does not continue.
        takes_out: partitions of which only the target has a position; sorted.
        drops: a batch that the target has begun or has not settled, and the source does not have.
        begun: a batch that the source has begun or has not settled.
    """

    wanted: Snapshot
    positions: Positions
    keeps_history: bool = False
    takes_out: tuple[TopicPartition, ...] = ()
    drops: Batch | None = None
    begun: Batch | None = None

    @property
    def notes(self) -> list[str]:
        """Sentences on other effects of the copy."""
        notes = [_OWN_HISTORY] if self.keeps_history else []
        if self.begun is not None:
            notes.append(
                f"batch {self.begun.id} was begun and not committed: it is copied too, and the next run goes on with "
                "it. But an output may have it, and another program that starts at these positions writes it again. "
                "To go on with another program, start the job of the source, stop it by SIGTERM until offsetkeeper "
                "plan shows no such batch, and copy then"
            )
        if self.drops is not None:
            notes.append(
                f"batch {self.drops.id} of the target was begun and not committed: the copy drops it. Outputs may have "
                f"its records, and get them twice if they are read again: {listed(self.drops.ranges, ', ')}"
            )
        if self.takes_out:
            notes.append(
                "the source has no position of these partitions, so the copy takes those of the target out, as forget "
                f"does: {listed(self.takes_out, ', ')}"
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, with the old and the new offset of each partition."""
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "old": old and old.offset, "new": new.offset}
            for tp, new in sorted(self.wanted.positions.items())
            for old in [self.positions.get(tp)]
        ]
        return {"group": self.wanted.group, "version": self.wanted.version, "positions": rows, "notes": self.notes}


def _checked(
    group: str, source: Store, target: Store, retry_timeout_s: float, *, force: bool, overwrite: bool, number: int
) -> tuple[Ledger, Ledger, Snapshot]:
    """Return both ledgers and the content for the target; raise the error that forbids the copy."""
    check_writable(target)
    origin, ledger = (Ledger(store, group, retry_timeout_s=retry_timeout_s, name=_COPY) for store in (source, target))
    _check_two_places(origin, ledger)
    wanted = in_format(_over(ledger.snapshot, _wanted(origin, force=force)), number)
    _check_target(ledger, wanted, overwrite=overwrite)
    return origin, ledger, wanted


def _check_two_places(origin: Ledger, ledger: Ledger) -> None:
    found = origin.load()
    one_change = found == ledger.load() and (found.version or found.positions)
    if one_change and (found.version or origin.store.address == ledger.store.address):
        raise Refused(
            f"{origin.store.address} cannot be copied onto itself: {ledger.store.address} has group {origin.group!r} "
            f"at the same change, version {found.version}. Give the URL of another place"
        )


def _wanted(origin: Ledger, *, force: bool) -> Snapshot:
    """Return the content for the target: the source's ledger without an owner."""
    found = origin.snapshot
    if not found.version and not found.positions:
        raise NotAllowed(f"{origin.store.address} has neither a ledger nor positions of group {origin.group!r}")
    if found.owner is not None and not force:
        raise Fenced(
            f"group {origin.group!r} in {origin.store.address} is held by {found.owner.name} (epoch "
            f"{found.owner.epoch}): stop that run first. If it has already died, copy with force"
        )
    if not force:
        check_unedited(origin)
    return replace(found, owner=None, forgotten=NO_POSITIONS)  # these rows stay where they are


def _over(found: Snapshot, wanted: Snapshot) -> Snapshot:
    """Return the content for a target: that of the source; or its own, reset, if the source has no ledger."""
    if wanted.version or not found.version:
        return wanted
    own = replace(found, owner=None, version=0, missing=frozenset())
    if found.positions == wanted.positions and wanted.queries.items() <= found.queries.items():
        return own
    kept = {tp: at for tp, at in found.positions.items() if tp in wanted.positions}
    every = {**found.positions, **wanted.positions}  # a position that is taken out moves too: its batch is dropped
    event = Rewind(every, queries=wanted.queries)
    after = decide(replace(own, positions=kept), event, Author("", _COPY, 0, "")).after
    return replace(after, version=0, positions=wanted.positions, watermark_ms=None)


def _entries(origin: Ledger, target: Store, limit: int) -> Sequence[Entry]:
    if limit < 1 or not all(Ability.HISTORY in store.abilities for store in (origin.store, target)):
        return []
    return origin.history(limit)[::-1]


def _check_target(ledger: Ledger, wanted: Snapshot, *, overwrite: bool) -> None:
    """Refuse a target that a run holds, or that has other content which may not be replaced."""
    found, where, group = _rows(ledger.snapshot, wanted), f"{ledger.store.address} has", repr(ledger.group)
    if lost := sorted(wanted.missing & found.rows.keys()):
        raise NotAllowed(
            f"{where} a position of {lost[0]}, which the source has lost. First put it back there (offsetkeeper "
            "reset), or take it out, both with --store of the source (with all its settings): "
            f"{forget_command(ledger.group, lost[0])}"
        )
    if found.owner is not None and not _is_copy(found.owner):
        raise Fenced(f"{where} group {group} held by {found.owner.name}: stop that run first")
    if found.version and not overwrite and not _same(replace(found, owner=None), wanted):
        raise NotAllowed(f"{where} a ledger of group {group} already, at other positions: copy with overwrite")
    if not found.version and not overwrite and found.positions.items() - wanted.positions.items():
        raise NotAllowed(f"{where} other positions of group {group} already: copy with overwrite")
    extra = sorted(found.positions.keys() - wanted.positions.keys())
    if extra and not found.version:
        raise NotAllowed(
            f"{where} a position of {extra[0]}, which the source does not have: take it out of the target "
            f"first, with --store of the target (with all its settings): {forget_command(ledger.group, extra[0])}"
        )
    if 0 < wanted.format < FORMAT and (left := extra or sorted(found.forgotten.keys() - wanted.positions.keys())):
        why = "which the source does not have" if extra else "which was forgotten"
        raise NotAllowed(f"{where} a row of {left[0]}, {why}, and format {wanted.format} cannot say so: delete it")


def _entries_done(ledger: Ledger, entries: Sequence[Entry]) -> int:
    """Return how many entries of the source the target has, up to its newest one; 0 if that one is not among them."""
    if not entries or not ledger.snapshot.version:
        return 0
    try:
        found = ledger.history(_NEWEST)
    except CorruptStore as error:
        log.warning("the history of the source does not follow that of the target: %s", error)
        return 0
    numbers, known = [entry.change_id for entry in entries], {entry.change_id for entry in found}
    moving = (entry for entry in found if entry.event not in _IDLE or entry.moves or entry.forgot)
    newest = next(moving, None) or next((entry for entry in found if entry.change_id in numbers), None)
    if newest is None or newest.change_id not in numbers:
        return 0
    done = numbers.index(newest.change_id) + 1
    return done + sum(1 for _ in takewhile(known.__contains__, numbers[done:]))  # those that changed no position


def _is_copy(owner: Owner | None) -> bool:
    return owner is not None and owner.id.startswith(_HOLDER)


def _change(before: Snapshot, wanted: Snapshot, entry: Entry) -> Change:
    after = replace(
        wanted,
        version=before.version + 1,
        epoch=max(before.epoch, wanted.epoch),
        change_id=entry.change_id,
        forgotten={
            **{tp: at for tp, at in before.forgotten.items() if tp not in wanted.positions},
            **{tp: Position(at.offset, at.topic_id) for tp, at in _taken_out(before, wanted).items()},
        },
    )
    stored = _rows(before, wanted).rows
    moves = {tp: Move(stored.get(tp), at) for tp, at in wanted.positions.items() if stored.get(tp) != at}
    made = replace(entry, version=after.version)
    if not entry.version:  # that of this copy
        made = replace(made, epoch=after.epoch, generation=after.generation, sequence=after.sequence, moves=moves)
        made = replace(made, forgot=_taken_out(before, wanted))
        dropped = None if 0 < wanted.format < FORMAT else _given_up(before, wanted)
        if dropped is not None:
            made = replace(made, ranges=dropped.ranges, token=dropped.token, having=unasked(dropped))
    return Change(before, after, moves, made)


def _taken_out(before: Snapshot, wanted: Snapshot) -> Positions:
    """Return the positions of a target that the source does not have; their rows stay, as with `forget`."""
    if 0 < wanted.format < FORMAT:
        return NO_POSITIONS  # the copy was refused if there is one, but for the batches of queries
    return {tp: at for tp, at in before.positions.items() if tp not in wanted.positions}


def _given_up(before: Snapshot, wanted: Snapshot) -> Batch | None:
    """Return the batch of a target that the copy drops."""
    batch, kept = before.pending or before.unsettled, wanted.pending or wanted.unsettled
    return None if batch is None or (kept is not None and kept.id == batch.id) else batch


def _same(one: Snapshot, other: Snapshot) -> bool:
    """Whether both have the same content; versions are not compared, each store counts its own changes."""
    return _essence(one) == _essence(other)


def _essence(snapshot: Snapshot) -> Snapshot:
    return replace(as_rows(snapshot), version=0, epoch=0, change_id="", forgotten=NO_POSITIONS)


def _rows(found: Snapshot, wanted: Snapshot) -> Snapshot:
    """Return what the target holds in the form in which the copy is written."""
    return as_rows(found) if 0 < wanted.format < FORMAT else found


def _verified(origin: Ledger, ledger: Ledger, wanted: Snapshot) -> Snapshot:
    """Return what the target holds. It is read last, so that the answer is right even if other copies ran."""
    copied_from, number = origin.snapshot, wanted.format or FORMAT
    if not _same(*(in_format(replace(each, owner=None), number) for each in (copied_from, origin.load()))):
        raise VersionConflict(f"{origin.store.address} was changed while it was copied: copy again, with overwrite")
    written, copied = ledger.snapshot.change_id, ledger.load()
    if _same(copied, wanted):
        return copied
    if copied.change_id != written:
        raise VersionConflict(f"{ledger.store.address} was changed after it was copied to: copy again, with overwrite")
    raise CorruptStore(f"{ledger.store.address} does not hold the copy: {copied}. Copy again")
