"""Finds the event of the table of rules that leads from one ledger to the next: `core.rules` as the specification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from offsetkeeper.core import rules
from offsetkeeper.core.batch import Batch, QueryBatch
from offsetkeeper.core.codec import entry_fields
from offsetkeeper.core.ledger_document import document_fields
from offsetkeeper.core.model import Entry, Landed, Snapshot
from offsetkeeper.core.offsets import Positions
from offsetkeeper.errors import OffsetkeeperError


def is_explained(before: Snapshot, after: Snapshot, entry: Entry, owner: str) -> bool:
    """Whether an event of the table, by this owner, makes the one ledger and its entry of the other."""
    author = rules.Author(owner, entry.actor, entry.at_ms, after.change_id, entry.reason)
    wanted = document_fields(after), entry_fields(entry)
    for event in _CANDIDATES.get(entry.event, _by_nothing)(before, after, entry):
        try:
            change = rules.decide(before, event, author)
        except OffsetkeeperError:
            continue
        if (document_fields(change.after), entry_fields(change.entry)) == wanted:
            return True
    return False


Events = Iterable[rules.Event]


def _by_nothing(_: Snapshot, __: Snapshot, ___: Entry) -> Events:
    return ()


def _by_acquire(_: Snapshot, after: Snapshot, __: Entry) -> Events:
    return () if after.owner is None else (rules.Acquire(after.owner, after.outputs, after.partly),)


def _by_place(before: Snapshot, after: Snapshot, entry: Entry) -> Events:
    placed, counted = _set(before, after), _counted(entry)
    return [rules.Place(placed, given, counted, entry.cuts, entry.mirror) for given in {*after.given[-1:], ""}]


def _by_begin(before: Snapshot, after: Snapshot, _: Entry) -> Events:
    pending = after.pending
    if pending is None:
        return ()
    landed = _changed(before.landed, after.landed)
    begun = rules.Begin(pending.ranges, pending.lands_in, landed, pending.program, pending.query, pending.watermark_ms)
    return (begun,)


def _by_mark(before: Snapshot, after: Snapshot, _: Entry) -> Events:
    old, new = (each.pending.written if each.pending else () for each in (before, after))
    return [rules.Written(name, after.landed_in(name).target) for name in {*new} - {*old}]


def _by_commit(before: Snapshot, after: Snapshot, entry: Entry) -> Events:
    pending = before.pending
    targets = {name: after.landed_in(name).target for name in (pending.lands_in if pending else ())}
    query = next((QueryBatch(name, count.after - 1) for name, count in entry.counts.items()), None)
    return (rules.Commit(entry.ranges, targets, query, after.watermark_ms),)


def _by_abandon(before: Snapshot, after: Snapshot, entry: Entry) -> Events:
    return [rules.Abandon(_marked_targets(before, after, each), entry.having) for each in (before.pending,) if each]


def _by_settle(before: Snapshot, after: Snapshot, entry: Entry) -> Events:
    return [rules.Settle(_marked_targets(before, after, each), entry.having) for each in (before.unsettled,) if each]


def _by_rewind(before: Snapshot, after: Snapshot, entry: Entry) -> Events:
    stays = after.unsettled.moved if after.unsettled else ()
    restores = before.unsettled is not None and after.pending is not None and after.unsettled is None
    placed, counted = _set(before, after), _counted(entry)
    return (rules.Rewind(placed, queries=counted, stays=stays, restores=restores, cuts=entry.cuts, force=True),)


def _by_forget(_: Snapshot, __: Snapshot, entry: Entry) -> Events:
    return (rules.Forget(tuple(entry.forgot), force=True),)


def _by_adopt(_: Snapshot, after: Snapshot, __: Entry) -> Events:
    return [rules.Adopt(name, at.sequence, force=True) for name, at in after.landed.items()]


_CANDIDATES: Mapping[str, Callable[[Snapshot, Snapshot, Entry], Events]] = {
    "acquire": _by_acquire,
    "release": lambda *_: (rules.Release(),),
    "place": _by_place,
    "begin": _by_begin,
    "mark": _by_mark,
    "wait": lambda *_: (rules.Wait(),),
    "commit": _by_commit,
    "abandon": _by_abandon,
    "settle": _by_settle,
    "rewind": _by_rewind,
    "forget": _by_forget,
    "adopt": _by_adopt,
}
"""What could have happened, by the event's name: the arguments follow from the two ledgers and the entry."""


def _set(before: Snapshot, after: Snapshot) -> Positions:
    """Return the positions that differ."""
    return {tp: at for tp, at in after.positions.items() if before.positions.get(tp) != at}


def _counted(entry: Entry) -> Mapping[str, int]:
    return {query: count.after for query, count in entry.counts.items()}


def _marked_targets(before: Snapshot, after: Snapshot, batch: Batch) -> Mapping[str, str]:
    """Return the outputs that got a mark of a batch, with their targets."""
    changed = _changed(before.landed, after.landed)
    return {name: at.target for name, at in changed.items() if at.sequence == batch.sequence}


def _changed(before: Mapping[str, Landed], after: Mapping[str, Landed]) -> dict[str, Any]:
    return {name: at for name, at in after.items() if before.get(name) != at}
