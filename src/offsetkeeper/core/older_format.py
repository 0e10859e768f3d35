"""What an older release keeps of a ledger: a copy for it has no more. Pure.

Format 3 is that of release 0.2. It has no identity of targets, clusters, leader epochs, lost positions and given
offsets, and a pending batch does not name its program. It counts the batches of queries as positions.
"""

from __future__ import annotations

from dataclasses import replace

from offsetkeeper.core.batch import Batch, QueryBatch
from offsetkeeper.core.codec import FORMAT
from offsetkeeper.core.model import Entry, Having, Landed, Move, Snapshot
from offsetkeeper.core.offsets import NO_POSITIONS, Position
from offsetkeeper.core.query_rows import join_moves, join_positions, join_ranges
from offsetkeeper.errors import Refused, SettingsError, listed

OLDEST = 3
"""The oldest format that is written."""


def in_format(snapshot: Snapshot, number: int) -> Snapshot:
    """Return a ledger as a release of that format keeps it. Stores write it in that format.

    Raises:
        SettingsError: the number is not that of a format that can be written.
        Refused: the store has lost positions: an older release would read these partitions from elsewhere. Or records
            of a dropped batch may count as done, which an older release reads again.
    """
    if not OLDEST <= number <= FORMAT:
        raise SettingsError(f"format {number} cannot be written: use {OLDEST} for release 0.2, or {FORMAT}")
    if number == FORMAT:
        return snapshot
    if snapshot.missing:
        raise Refused(
            f"group {snapshot.group!r} has lost the positions of {listed(sorted(snapshot.missing), ', ')}, and format "
            f"{number} cannot say so: put them back, or reset or forget these partitions first"
        )
    done = snapshot.unsettled.counts(snapshot.positions) if snapshot.unsettled is not None else ()
    if done:
        raise Refused(
            f"group {snapshot.group!r} has a batch that a reset dropped, and these records of it count as done if all "
            f"outputs have it: {listed(done, ', ')}. Format {number} cannot say so, and they would come twice. Start "
            "this release once more, until offsetkeeper show has no such batch, and copy then"
        )
    found = as_rows(snapshot)
    return replace(
        found,
        positions={tp: _older(at) for tp, at in found.positions.items()},
        landed={name: Landed(found.sequence) for name, found in snapshot.landed.items()},
        pending=found.pending and replace(found.pending, program=None),
        unsettled=found.unsettled
        and snapshot.unsettled  # that release does not say which partitions were moved, so it may be all
        and replace(found.unsettled, program=None, moved=tuple(sorted(snapshot.unsettled.partitions))),
        given=(),
        outputs={},
        partly=(),
        forgotten=NO_POSITIONS,
        format=number,
    )


def as_rows(snapshot: Snapshot) -> Snapshot:
    """Return a ledger that counts the batches of queries as positions; see `query_rows`."""
    return replace(
        snapshot,
        positions=join_positions(snapshot.positions, snapshot.queries),
        queries={},
        watermark_ms=None,
        pending=snapshot.pending and _joined(snapshot.pending),
        unsettled=snapshot.unsettled and _joined(snapshot.unsettled),
    )


def entry_in_format(entry: Entry, number: int) -> Entry:
    """Return a history entry as a release of that format reads it."""
    if number == FORMAT:
        return entry
    entry = replace(entry, having=Having.NONE, forgot={}, mirror=False)
    moves = {tp: Move(move.before and _older(move.before), _older(move.after)) for tp, move in entry.moves.items()}
    if entry.event != "commit":
        return replace(entry, moves=join_moves(moves, entry.counts), counts={}, cuts={})
    query = next((QueryBatch(query, count.before or 0) for query, count in entry.counts.items()), None)
    return replace(entry, ranges=join_ranges(entry.ranges, query), counts={}, cuts={})


def _joined(batch: Batch) -> Batch:
    return replace(batch, ranges=join_ranges(batch.ranges, batch.query), query=None, watermark_ms=None)


def _older(at: Position) -> Position:
    return Position(at.offset, at.topic_id)
