"""How older releases count a query's batches: as a position in a topic that Kafka does not have. Pure.

Up to format 3, and in early ledgers of format 4, the number of a query's next batch is the offset of partition 0 of the
topic `spark-query-<id>`, and each batch of the query has the range from its number to the next one there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from offsetkeeper.core.batch import QueryBatch
from offsetkeeper.core.model import Count, Counts, Move, Moves
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import SettingsError

_QUERY = "spark-query-"
_TOPIC = re.compile(rf"{_QUERY}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


def check_kept(tp: TopicPartition) -> TopicPartition:
    """Return `tp` if the position of such a partition is found again when the ledger is read.

    Raises:
        SettingsError: its topic has the name of a row that counts a query's batches, and such rows are no positions.
    """
    if _counts(tp.topic):
        raise SettingsError(
            f"topic {tp.topic} cannot be read: ledgers of older releases count the batches of a query under such a "
            "name, so its position would be lost. Copy its records to a topic of another name, or exclude it"
        )
    return tp


def split_positions(rows: Positions) -> tuple[Positions, dict[str, int]]:
    """Return the positions of partitions in Kafka, and the number of the next batch of each query."""
    queries = {_query(tp): at.offset for tp, at in rows.items() if _counts(tp.topic)}
    return ({tp: at for tp, at in rows.items() if not _counts(tp.topic)} if queries else rows), queries


def split_ranges(ranges: tuple[OffsetRange, ...]) -> tuple[tuple[OffsetRange, ...], QueryBatch | None]:
    """Return the ranges of partitions in Kafka, and the query's batch that they belong to."""
    found = [QueryBatch(_query(r.topic_partition), r.start) for r in ranges if _counts(r.topic)]
    return tuple(r for r in ranges if not _counts(r.topic)), found[0] if found else None


def split_moves(moves: Moves) -> tuple[Moves, Counts]:
    """Return the moves of partitions in Kafka, and the steps of queries."""
    counts = {
        _query(tp): Count(move.before and move.before.offset, move.after.offset)
        for tp, move in moves.items()
        if _counts(tp.topic)
    }
    return {tp: move for tp, move in moves.items() if not _counts(tp.topic)}, counts


def join_positions(positions: Positions, queries: Mapping[str, int]) -> Positions:
    """Return what `split_positions` splits."""
    return {**positions, **{_partition(query): Position(number) for query, number in queries.items()}}


def join_ranges(ranges: tuple[OffsetRange, ...], query: QueryBatch | None) -> tuple[OffsetRange, ...]:
    """Return what `split_ranges` splits."""
    if query is None:
        return ranges
    return tuple(sorted((*ranges, OffsetRange(*_partition(query.query), query.number, query.number + 1))))


def join_moves(moves: Moves, counts: Counts) -> Moves:
    """Return what `split_moves` splits."""
    joined = {
        _partition(query): Move(None if count.before is None else Position(count.before), Position(count.after))
        for query, count in counts.items()
    }
    return {**moves, **joined}


def _counts(topic: str) -> bool:
    return _TOPIC.fullmatch(topic) is not None


def _query(tp: TopicPartition) -> str:
    return tp.topic.removeprefix(_QUERY)


def _partition(query: str) -> TopicPartition:
    return TopicPartition(f"{_QUERY}{query}", 0)
