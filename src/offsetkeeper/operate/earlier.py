"""What the history says of an earlier version of a ledger: its positions, its queries, where runs began. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from offsetkeeper.core.batch import Queries
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.errors import Refused


def positions_before(
    entries: Iterable[Entry], positions: Positions, now: int, version: int
) -> dict[TopicPartition, Position]:
    """Return the positions at an earlier `version`; partitions that had none then are left out.

    Args:
        entries: the history, newest first, from `now` or later down to `version + 1`.
        positions: the positions at version `now`.
        now: the current version of the ledger.
        version: the earlier version.

    Raises:
        Refused: the entries do not reach back that far, or one between is missing.
    """
    then: dict[TopicPartition, Position | None] = dict(positions)
    reached = now
    for entry in entries:
        if entry.version > now:
            continue  # made since
        if entry.version <= version or entry.version != reached:
            break
        reached -= 1
        for r in reversed(entry.ranges) if entry.event == "commit" else ():
            later = then.get(r.topic_partition)
            then[r.topic_partition] = (later or Position(0))._replace(offset=r.start)
        then |= {tp: move.before for tp, move in entry.moves.items()}
        then |= entry.forgot
    if reached > version:
        back = f"goes back only to version {reached + 1}" if reached < now else f"lacks version {now}, the newest"
        raise Refused(
            f"the history {back}, so it is unknown what was at version {version}. Programs that open the store with "
            "different values of ?history= hide or delete entries of one another"
        )
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
