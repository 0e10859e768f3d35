"""Decides the fate of a pending batch (begun, not committed) by Kafka's bounds, topic ids and marks. Pure.

the pending batch                          at least once, exactly once             at most once
can be read, begun without state           FINISH: the same ranges and identity    COUNT
can be read, begun by a query with state   WAIT: its own checkpoint runs it again  COUNT
can no longer be read                      DROP; exactly once: StartRefused        COUNT
marks: all outputs have it; no state       COUNT                                   -
marks: no output has it; unreadable        DROP                                    -
an output's mark says it was dropped       DROP; exactly once: StartRefused if     -
                                           another output has it or may have it
a batch for the dead letters               DROP; COUNT if their mark says that     -
                                           they have it
has an output that the program lacks       StartRefused                            StartRefused
another program has moved its positions    StartRefused                            StartRefused
any, with the policy pending="drop"        DROP                                    DROP

The subscription and the policies for positions do not apply to it: the pending batch is finished before they do.
Only the query with state that began a batch can finish it: all others get CheckpointMismatch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType

from offsetkeeper.core.bounds import Bounds, Standing, standing_of
from offsetkeeper.core.mark import Landing, named
from offsetkeeper.core.model import (
    DEAD_LETTERS,
    Batch,
    Guarantee,
    OffsetRange,
    Position,
    Positions,
    TopicPartition,
    in_kafka,
    is_dead_letters,
    query_topic,
)
from offsetkeeper.core.plan import Policies
from offsetkeeper.errors import CheckpointMismatch, StartRefused, listed

_NO_MARKS: Mapping[str, Landing] = MappingProxyType({})
_NOWHERE = Position(0)
HAVING = frozenset({Landing.LANDED, Landing.PARTLY, Landing.CUT})
"""The landings that mean that an output has a batch or a part of it."""
_DROP = "Policies(pending='drop') drops the batch: its records are read again as other batches"


class Fate(Enum):
    """What a start does with a pending batch."""

    FINISH = auto()
    """The batch is processed with the same ranges and the same id."""
    WAIT = auto()
    """The query that began the batch runs it again, from its own checkpoint."""
    COUNT = auto()
    """The batch counts as done: it may have been written and must not be written twice."""
    DROP = auto()
    """The batch is abandoned; outputs that have it keep it."""


def fate(
    batch: Batch,
    positions: Positions,
    problems: Sequence[str],
    guarantee: Guarantee,
    policies: Policies,
    outputs: Collection[str],
    query: str | None = None,
    landings: Mapping[str, Landing] = _NO_MARKS,
) -> Fate:
    """Return what a start does with the pending batch of an earlier run.

    Args:
        batch: the pending batch.
        positions: the ledger's positions.
        problems: the result of `unreadable`.
        guarantee: the guarantee of this start.
        policies: the policies of this start.
        outputs: names of the program's outputs.
        query: id of the query with state that starts, empty if its checkpoint is empty; None for a run without state.
        landings: what the marks of the program's outputs say about the batch.

    Raises:
        StartRefused: the batch cannot be finished exactly once, or not at all: one of its outputs has another name now,
            or another program has moved its positions.
        CheckpointMismatch: a query with state began the batch and this is another run; or a run without state began it
            and this is a query with state.
    """
    if policies.pending == "drop":
        return Fate.DROP
    unknown = sorted({*batch.written, *batch.lands_in} - set(outputs))
    if unknown:
        may = "has" if unknown[0] in batch.written else "may have"
        raise StartRefused(
            f"batch {batch.id} is pending, and output {unknown[0]!r} {may} it, but the program has no output "
            f"with that name, only {', '.join(map(repr, outputs))}. Rename the output back. {_DROP}, and "
            "outputs that have it get its records twice"
        )
    moved = _moved(batch, positions)
    if moved:
        raise StartRefused(
            f"batch {batch.id} is pending and cannot be committed, because another program has changed positions in "
            f"the store:\n  {listed(moved)}\nSet them back to the start of the batch. {_DROP}"
        )
    if guarantee is Guarantee.AT_MOST_ONCE:
        return Fate.COUNT
    outputs = _outputs_of(batch, outputs)
    had, exactly = has(batch, outputs, landings), guarantee is Guarantee.EXACTLY_ONCE
    if is_dead_letters(batch):  # its record is read again, and fails again or not
        return Fate.COUNT if had else Fate.DROP
    if had and all(in_kafka(r.topic) for r in batch.ranges):
        return Fate.COUNT
    void = [f"output {name!r} has the mark of a run that dropped it" for name in outputs if _is_void(name, landings)]
    if problems or void:
        if exactly and had is not False:
            raise refused(batch, [*problems, *void])
        return Fate.DROP
    return _finisher(batch, query)


def has(batch: Batch, outputs: Collection[str], landings: Mapping[str, Landing]) -> bool | None:
    """Return whether the outputs have a batch: True if all have it, False if surely none has, else None.

    Args:
        batch: the batch that was begun.
        outputs: names of the program's outputs.
        landings: what the marks of outputs say about the batch; without marks the answer is None.
    """
    if not landings:
        return None
    says = [Landing.LANDED if name in batch.written else landings.get(name) for name in outputs]
    if all(each is Landing.LANDED for each in says):
        return True
    return None if any(each is None or each in HAVING for each in says) else False


def settled(batch: Batch, landings: Mapping[str, Landing]) -> str:
    """Return which outputs have a dropped batch, as text for the log and the history."""
    told = {
        Landing.LANDED: "has it",
        Landing.VOID: "does not have it",
        Landing.CUT: "has a part of it, and will not get the rest",
    }
    return "; ".join(
        f"{named(name)} {told.get(landings[name], 'may have it')}"
        if name in landings
        else f"whether output {name!r} has it is unknown: the program has no such output"
        for name in batch.lands_in
    )


def _outputs_of(batch: Batch, outputs: Collection[str]) -> list[str]:
    """Return the outputs that a batch goes into: the dead letters, or all other outputs of the program."""
    return [name for name in outputs if (name == DEAD_LETTERS) == is_dead_letters(batch)]


def _is_void(name: str, landings: Mapping[str, Landing]) -> bool:
    return landings.get(name) in {Landing.VOID, Landing.CUT}


def unreadable(
    ranges: Sequence[OffsetRange], positions: Positions, bounds: Mapping[TopicPartition, Bounds]
) -> list[str]:
    """Return a reason for each range that Kafka no longer holds completely. Query counters are ignored.

    Args:
        ranges: ranges of the batch.
        positions: the ledger's positions, for the topic ids.
        bounds: the offsets that Kafka holds of the topics in the ranges.
    """
    wanted = ((r, positions.get(r.topic_partition), bounds.get(r.topic_partition)) for r in ranges if in_kafka(r.topic))
    return [f"'{r}' cannot be read: {why}" for r, at, here in wanted if (why := _missing(r, at, here))]


def refused(batch: Batch, problems: Sequence[str]) -> StartRefused:
    """Return the error for a batch that may be in outputs and cannot be written again with its id."""
    had = f"; output {', '.join(batch.written)} has it" if batch.written else ""
    return StartRefused(
        f"batch {batch.id} was begun, may be in its outputs{had}, and cannot be finished exactly once:\n"
        f"  {listed(problems)}\n"
        f"These ranges may come twice:\n  {listed(r for r in batch.ranges if in_kafka(r.topic))}\n"
        f"If you can, remove the batch's rows from the outputs first. {_DROP}"
    )


def dropped(batch: Batch, problems: Sequence[str], landings: Mapping[str, Landing] = _NO_MARKS) -> str:
    """Return why a batch is dropped and which outputs have it, as text for the log and the history."""
    why = listed(problems, "; ") or "by policy pending='drop'"
    if landings:
        return f"{why}; {settled(batch, landings)}"
    had = f"its outputs {', '.join(batch.written)} have it" if batch.written else "no output is marked to have it"
    return f"{why}; {had}, one that was being written may have it too"


def after(batch: Batch, positions: Positions) -> dict[TopicPartition, Position]:
    """Return the positions after a commit of the batch."""
    ends = {r.topic_partition: r.end for r in batch.ranges}
    return {**positions, **{tp: positions.get(tp, _NOWHERE)._replace(offset=end) for tp, end in ends.items()}}


def _moved(batch: Batch, positions: Positions) -> list[str]:
    """Return the partitions whose position is not at the start of the batch; only an edit from outside causes this."""
    starts = {r.topic_partition: r.start for r in reversed(batch.ranges)}
    stored = {tp: positions[tp].offset if tp in positions else None for tp in starts}
    return [
        f"{tp}: the batch starts at {start}, the store has {'no position' if stored[tp] is None else stored[tp]}"
        for tp, start in sorted(starts.items())
        if stored[tp] != start
    ]


def _missing(wanted: OffsetRange, position: Position | None, here: Bounds | None) -> str:
    known = position or _NOWHERE
    start, end = (standing_of(known._replace(offset=offset), here) for offset in (wanted.start, wanted.end))
    if here is None:
        return "the partition no longer exists in Kafka"
    if start is Standing.ELSEWHERE:
        return f"it is of the Kafka cluster {known.cluster_id}, and the brokers are of {here.cluster_id} now"
    if start is Standing.RECREATED:
        return "the topic was deleted and created again"
    return "" if start is end is Standing.WITHIN else f"Kafka holds {here.beginning} to {here.end}"


def _finisher(batch: Batch, query: str | None) -> Fate:
    marks = [r for r in batch.ranges if not in_kafka(r.topic)]
    if not marks and query is None:
        return Fate.FINISH
    if marks and query is not None and query and marks[0].topic == query_topic(query):
        return Fate.WAIT
    began = f"batch {marks[0].start} of query {marks[0].topic}" if marks else "a run without state"
    raise CheckpointMismatch(
        f"batch {batch.id} is pending. Only {began}, which began it, can finish it:\n"
        f"  {listed(batch.ranges)}\n"
        f"Start the program that began it, with its own checkpoint. {_DROP}"
    )
