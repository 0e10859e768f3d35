"""What an older release keeps of a ledger: a copy for it has no more. Pure.

Format 3 is that of release 0.2. It has no identity of targets, clusters, leader epochs, lost positions and given
offsets, and a pending batch does not name its program.
"""

from __future__ import annotations

from dataclasses import replace

from offsetkeeper.core.codec import FORMAT
from offsetkeeper.core.model import Entry, Landed, Move, Position, Snapshot
from offsetkeeper.errors import Refused, SettingsError, listed

OLDEST = 3
"""The oldest format that is written."""


def in_format(snapshot: Snapshot, number: int) -> Snapshot:
    """Return a ledger as a release of that format keeps it. Stores write it in that format.

    Raises:
        SettingsError: the number is not that of a format that can be written.
        Refused: the store has lost positions: an older release would read these partitions from elsewhere.
    """
    if not OLDEST <= number <= FORMAT:
        raise SettingsError(f"format {number} cannot be written: use {OLDEST} for release 0.2, or {FORMAT}")
    if number == FORMAT:
        return snapshot
    if snapshot.missing:
        raise Refused(
            f"group {snapshot.group!r} has lost the positions of {listed(sorted(snapshot.missing), ', ')}, and format "
            f"{number} cannot say so: put them back, or reset these partitions first"
        )
    return replace(
        snapshot,
        positions={tp: _older(at) for tp, at in snapshot.positions.items()},
        landed={name: Landed(found.sequence) for name, found in snapshot.landed.items()},
        pending=snapshot.pending and replace(snapshot.pending, program=None),
        unsettled=snapshot.unsettled and replace(snapshot.unsettled, program=None),
        given="",
        format=number,
    )


def entry_in_format(entry: Entry, number: int) -> Entry:
    """Return a history entry as a release of that format reads it."""
    if number == FORMAT:
        return entry
    moves = {tp: Move(move.before and _older(move.before), _older(move.after)) for tp, move in entry.moves.items()}
    return replace(entry, moves=moves)


def _older(at: Position) -> Position:
    return Position(at.offset, at.topic_id)
