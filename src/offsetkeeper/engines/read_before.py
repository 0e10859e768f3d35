"""Which partitions were read before a query with state begins with empty state. Pure.

Spark keeps the state of a query in its checkpoint. With an empty checkpoint the query starts with empty state, and is
right only if nothing was read before its positions. Only the first start of a partition proves that: the history has
the `place` of that start, and the position is still there. All other positions count as read before: those of commits,
resets, copies, an export of a checkpoint and other programs, and those whose origin the history no longer shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import Plan, PlanRow, Verdict

_FROM_ELSEWHERE = {"rewind", "copy"}


def read_before(plan: Plan, history: Iterable[Entry]) -> list[PlanRow]:
    """Return the partitions that were read before and for which the user gives no offset.

    Args:
        plan: the plan of the start.
        history: the ledger's history, newest first.
    """
    history = [*history]
    forgotten = {tp for entry in history for tp in entry.forgot}  # read before, and then begun anew
    began = _first_starts(history)
    return [
        row
        for row in plan.rows
        if row.stored is not None
        and row.start is not None  # a partition that is gone is not read
        and row.verdict is not Verdict.GIVEN
        and (row.stored.offset != began.get(row.topic_partition) or row.topic_partition in forgotten)
    ]


def _first_starts(history: Iterable[Entry]) -> dict[TopicPartition, int]:
    """Return where starts began to read partitions without a position, since the last reset or copy."""
    since = takewhile(lambda entry: entry.event not in _FROM_ELSEWHERE, history)
    moves = ((tp, move) for entry in since if entry.event == "place" for tp, move in entry.moves.items())
    return {tp: move.after.offset for tp, move in moves if move.before is None}
