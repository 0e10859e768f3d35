"""The history of a group, read on from the end of the poll before, and the findings of the audit in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import MARGIN
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.store import Store
from offsetkeeper.operate.audit import Discrepancy, audit, up_to
from offsetkeeper.operate.status import entries_to_read

_MORE = 8  # times as many entries, where the ones before are small
_MOST_RANGES, _FOR_EACH = 250_000, 20  # in all entries; as many for each partition, as there are at least 20 entries
_AUDIT_EVERY_MS = 60_000
_PLAIN = frozenset({"begin", "commit"})  # what a run does all the time


class History(NamedTuple):
    """The history of a group as far as it is kept.

    Attributes:
        entries: newest first.
        findings: of the newest audit.
        audited: version of the ledger, and time in milliseconds since 1970, of that audit.
        problem: why it could not be read at the newest poll, in words; the entries are older then.
    """

    entries: Sequence[Entry] = ()
    findings: Sequence[Discrepancy] = ()
    audited: tuple[int, int] = (0, 0)
    problem: str = ""


NO_HISTORY = History()


def read_on(store: Store, snapshot: Snapshot, before: Snapshot, known: History, now_ms: int) -> History:
    """Return the history of a ledger; only what is new is asked for.

    A run that commits all the time is audited once a minute, as the audit walks all entries; whatever else happens is
    audited at once.

    Args:
        store: the ledgers.
        snapshot: the ledger as it is now.
        before: as it was at the poll before.
        known: the history as that poll had it.
        now_ms: milliseconds since 1970.

    Raises:
        StoreError: it could not be read.
    """
    unchanged = _same(before, snapshot) and not known.problem
    entries = known.entries if unchanged else _entries(store, snapshot, known.entries)
    version, at_ms = known.audited
    done = entries is known.entries and version == snapshot.version
    new = entries[: max(0, snapshot.version - version)]
    if done or (version and now_ms - at_ms < _AUDIT_EVERY_MS and new and _PLAIN.issuperset(e.event for e in new)):
        return known._replace(entries=entries, problem="")
    return History(entries, audit(entries[::-1], snapshot), (snapshot.version, now_ms))


def durations_s(entries: Sequence[Entry]) -> Mapping[int, float]:
    """Return the seconds from the begin of each batch to its commit, by the version of the commit.

    A batch that goes into the store's own transaction is not begun before, so nothing says how long it took.

    Args:
        entries: of the history, newest first.
    """
    begun, found = _begun(entries), {}
    for entry in entries:
        at_ms = begun.get((entry.token, entry.sequence)) if entry.event == "commit" else None
        if at_ms is not None and at_ms <= entry.at_ms:  # clocks differ
            found[entry.version] = (entry.at_ms - at_ms) / 1000
    return found


def began_ms(batch: Batch | None, entries: Sequence[Entry]) -> int | None:
    """Return when a batch was begun, milliseconds since 1970; None if the history does not say it."""
    return None if batch is None else _begun(entries).get((batch.token, batch.sequence))


def _begun(entries: Sequence[Entry]) -> Mapping[tuple[str, int], int]:
    return {(entry.token, entry.sequence): entry.at_ms for entry in entries if entry.event == "begin"}


def _entries(store: Store, snapshot: Snapshot, known: Sequence[Entry]) -> Sequence[Entry]:
    again = partial(store.load, snapshot.group)
    limit = entries_to_read(len(snapshot.positions))
    step = snapshot.version - (known[0].version if known else 0)
    most = max(_MOST_RANGES, _FOR_EACH * len(snapshot.positions))
    if known and 0 < step < limit - MARGIN:
        fresh = up_to(snapshot, store.history(snapshot.group, step + MARGIN), again)
        if whole := joined(fresh, known):
            return _bounded(whole[:limit], most)
    return up_to(snapshot, _newest(store, snapshot.group, limit, most), again)


def _newest(store: Store, group: str, limit: int, most: int) -> Sequence[Entry]:
    """Return the newest entries. More are asked for only after it is seen what some of them take of memory."""
    count = min(MARGIN, limit)
    while True:
        found = store.history(group, count)
        entries = _bounded(found, most)
        if len(entries) < len(found) or len(found) < count or count == limit:
            return entries
        count = min(limit, count * _MORE)


def _bounded(entries: Sequence[Entry], most: int) -> Sequence[Entry]:
    """Return the newest entries, up to so many ranges and moves together: those of a stranger may have any number."""
    together = accumulate(entry.partitions for entry in entries)
    return entries[: sum(size <= most for size in together)]


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
    whole = [*(entry for entry in fresh if entry.version > known[0].version), *known]
    return whole if all(one.version == other.version + 1 for one, other in pairwise(whole)) else None


def _same(before: Snapshot, now: Snapshot) -> bool:
    """Whether nothing has changed; an edit from outside moves positions without a version."""
    return (before.version, before.change_id, before.positions) == (now.version, now.change_id, now.positions)
