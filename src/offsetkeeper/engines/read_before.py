"""Which partitions were read before a query with state begins with empty state. Pure.

Spark keeps the state of a query in its checkpoint. With an empty checkpoint the query starts with empty state, and is
right only if nothing was read before its positions. Only the first start of a partition proves that: the history has
the `place` of that start, and the position is still there. All other positions count as read before: those of commits,
resets, copies, an export of a checkpoint and other programs, and those whose origin the history no longer shows. So
does a partition that was forgotten, whether it has a position again or not yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import Plan, PlanRow, Verdict

_FROM_ELSEWHERE = {"rewind", "copy"}


def read_before(plan: Plan, history: Iterable[Entry], *, counted: bool = False) -> list[PlanRow]:
    """Return the partitions that were read before and for which the user gives no offset.

    Args:
        plan: the plan of the start.
        history: the ledger's history, newest first.
        counted: whether the ledger counts batches of another checkpoint; then no position is that of a first start.
    """
    history = [*history]
    forgotten = {tp for entry in history for tp in entry.forgot}  # read before, and then begun anew
    began = {} if counted else _first_starts(history)
    return [
        row
        for row in plan.rows
        if row.start is not None  # a partition that is gone is not read
        and row.verdict is not Verdict.GIVEN
        and (
            row.topic_partition in forgotten  # also while it has no position: the start that is planned gives it one
            or (row.stored is not None and row.stored.offset != began.get(row.topic_partition))
        )
    ]


def _first_starts(history: Iterable[Entry]) -> dict[TopicPartition, int]:
    """Return where starts began to read partitions without a position, since the last reset or copy."""
    since = takewhile(lambda entry: entry.event not in _FROM_ELSEWHERE, history)
    moves = ((tp, move) for entry in since if entry.event == "place" for tp, move in entry.moves.items())
    return {tp: move.after.offset for tp, move in moves if move.before is None}
