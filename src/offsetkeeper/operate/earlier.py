"""What the history says of an earlier version of a ledger: its positions, its queries, where runs began. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from offsetkeeper.core.batch import Queries
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.errors import Refused


def positions_before(entries: Iterable[Entry], positions: Positions, version: int) -> dict[TopicPartition, Position]:
    """Return the positions at an earlier `version`; partitions that had none then are left out.

    Args:
        entries: the history, newest first, at least down to `version + 1`.
        positions: the current positions.
        version: version of the ledger.

    Raises:
        Refused: the entries do not reach back that far.
    """
    then: dict[TopicPartition, Position | None] = dict(positions)
    reached = None
    for entry in entries:
        if entry.version <= version:
            break
        reached = entry.version
        for r in reversed(entry.ranges) if entry.event == "commit" else ():
            later = then.get(r.topic_partition)
            then[r.topic_partition] = (later or Position(0))._replace(offset=r.start)
        then |= {tp: move.before for tp, move in entry.moves.items()}
        then |= entry.forgot
    if reached is not None and reached > version + 1:
        raise Refused(f"the history goes back only to version {reached}, not to {version}")
    return {tp: position for tp, position in then.items() if position is not None}


def numbers_before(entries: Iterable[Entry], queries: Queries, version: int) -> Queries:
    """Return the numbers of queries at an earlier `version`; those of queries that began since are where they began.

    Args:
        entries: the history, newest first, at least down to `version + 1`.
        queries: the current numbers.
        version: version of the ledger.
    """
    then = dict(queries)
    for entry in entries:
        if entry.version > version:
            then |= {q: count.after if count.before is None else count.before for q, count in entry.counts.items()}
    return then


def starts_since(entries: Iterable[Entry], version: int) -> dict[TopicPartition, Position]:
    """Return where runs have started to read partitions that had no position at `version`.

    Args:
        entries: the history, at least down to `version + 1`.
        version: version of the ledger.
    """
    places = [entry for entry in entries if entry.event == "place" and entry.version > version]
    return {tp: move.after for entry in places for tp, move in entry.moves.items() if move.before is None}
