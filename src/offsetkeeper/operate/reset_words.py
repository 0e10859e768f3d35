"""What a preview says of a reset, in sentences: what becomes of batches, outputs, queries and names."""

from __future__ import annotations

from collections.abc import Collection

from offsetkeeper.core.batch import DEAD_LETTERS
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import listed
from offsetkeeper.operate.reset_plan import Dropped, ResetPlan

_AGAIN = {
    "append": "the results of up to {} records come twice into what the last run appends to",
    "upsert": "the results of up to {} records come again, over the rows with the same key",
}
_UNKNOWN = "the results of up to {} records come again, and whether they are twice is up to the output"


def notes_of(plan: ResetPlan) -> list[str]:
    """Sentences on other effects of the reset, and on partitions that it does not move."""
    notes = []
    if plan.clusters:
        old, new = plan.clusters
        notes.append(
            f"the positions are of the Kafka cluster {old}; the brokers, and the new ones, are of {new}. What the "
            "group has read there before comes again too, and is not counted if the history does not reach back so "
            "far. If it is a mirror, with each record at the same offset, start there with "
            "Policies(elsewhere='keep') first, and reset then: else its records count as others"
        )
    if others := sorted({step.topic_partition.topic for step in plan.steps if step.another}):
        notes.append(
            f"deleted and created again since the group read them, or of another cluster: {', '.join(others)}. The "
            "old offsets are of other records: what was not read before the new offsets is skipped"
        )
    if plan.cuts:
        told = listed((f"{tp} {offset}" for tp, offset in plan.cuts.items()), ", ")
        notes.append(
            "a leader was elected that lacked records, and others get the offsets of some that were read. What is "
            f"there from these offsets on counts as not read: {told}"
        )
    notes += _batches(plan)
    if perhaps := [each for step in plan.steps for each in step.perhaps_again]:
        notes.append(
            "some outputs have, or may have, these records of batches that were dropped. They are read again, and "
            f"may come twice: {listed(perhaps, ', ')}"
        )
    notes += _effects(plan)
    if plan.steps and not plan.direct:
        notes.append(_of_state(plan.states, back=_goes_back(plan)) if plan.states else _queries(plan))
    notes += [
        f"the next batch of streaming query {query} was {count.before}, and is {count.after} then"
        for query, count in plan.queries
    ]
    notes += _new_names(plan)
    if plan.left:
        told = "not moved, because they have no position in the topic, and a start reads them from their beginning"
        notes += [f"{told}: {listed(plan.left, ', ')}"]
    if plan.gone:
        notes += [f"not moved, because they are no longer in Kafka: {listed(plan.gone, ', ')}"]
    return notes + clips_of(plan)


def clips_of(plan: ResetPlan) -> list[str]:
    """Sentences on the offsets that Kafka does not hold, and on the offsets used instead."""
    return [_clip(plan, tp, offset) for tp, offset in plan.clipped]


def _new_names(plan: ResetPlan) -> list[str]:
    notes = []
    if not plan.version:
        notes.append(f"the store has no group {plan.group!r} yet, so check the name: this reset makes it")
    if first := sorted({s.topic_partition.topic for s in plan.steps if s.old is None} - _moved_topics(plan)):
        notes.append(
            f"without a position until now, so check the names: {listed(first, ', ')}. If no program of this group "
            "reads them, these positions stay behind for ever, and undo does not take them out: offsetkeeper "
            "forget does"
        )
    return notes


def _batches(plan: ResetPlan) -> list[str]:
    """Return what becomes of batches that were begun and not committed."""
    notes: list[str] = []
    if plan.drops is not None:
        notes += _of_dropped(plan.drops)
    if plan.keeps:
        notes.append(
            f"batch {plan.keeps} was begun and not committed: none of its partitions moves, so it stays. The next "
            "start writes it, counts it as done if all outputs have it, or drops it by policy. To read its records "
            "anew, reset past it first, and then back by reset, or by rewind to a commit before it; undo would make it "
            "pending again"
        )
    if plan.restores:
        notes.append(f"batch {plan.restores}, which was dropped, is pending again: the next start deals with it")
    elif plan.unsettled:
        notes.append(
            f"batch {plan.unsettled} was dropped by an earlier reset: the next start asks its outputs whether they "
            "have it; what they have and is read again comes twice"
        )
        if plan.once_more:
            notes.append(
                "of that batch these records are read again, also if all outputs have them: "
                + listed(plan.once_more, ", ")
            )
    return notes


def _of_dropped(dropped: Dropped) -> list[str]:
    """Sentences on what becomes of the batch, and of its records in the outputs."""
    undo = "an undo before the next start brings it back" if dropped.lands_in else "undo does not restore it"
    notes = [f"batch {dropped.batch} was begun and not committed: it is dropped, and {undo}"]
    if dropped.again:
        notes.append(
            "these records of that batch are read again, and may come twice into outputs that have it: "
            + listed(dropped.again, ", ")
        )
    if dropped.stays:
        notes.append(
            "that batch has records of partitions that do not move. They count as done if all outputs have the "
            "batch. Otherwise they are read again, and come twice into outputs that have it: "
            + listed(dropped.stays, ", ")
        )
    notes += [f"{listed_name(name)} already has that batch" for name in dropped.written]
    left = [name for name in dropped.lands_in if name not in dropped.written]
    notes += [
        f"{listed_name(name)} may have that batch: the next start asks the output and writes the answer to the history"
        for name in left
    ]
    if not dropped.lands_in:
        return [*notes, "an output without a mark may have that batch, and cannot be asked"]
    return notes + [
        f"{listed_name(name)} keeps no mark: it may have that batch, unless it is in the store's own transaction"
        for name in dropped.unasked
    ]


def _clip(plan: ResetPlan, tp: TopicPartition, asked: int) -> str:
    used = plan.offsets[tp]
    if asked > used == plan.cuts.get(tp):
        return f"{tp}: offset {asked} was of a log that was cut; {used} is the offset from which on it has others"
    lost = f". {plan.lost[tp]} offsets in between are lost" if tp in plan.lost else ""
    return f"{tp}: Kafka does not hold offset {asked}; {used} is the nearest one that it holds{lost}"


def _effects(plan: ResetPlan) -> list[str]:
    """Return what each output gets twice or never."""
    again, never = (sum(getattr(step, name) for step in plan.steps) for name in ("replayed", "skipped"))
    names: dict[str, list[str]] = {}
    for name, (target, mode) in sorted(plan.outputs.items()):
        if name != DEAD_LETTERS:
            names.setdefault(_AGAIN.get(mode, _UNKNOWN), []).append(f"{listed_name(name)} ({target})")
    notes = [f"{text.format(again)}: {listed(some, ', ')}" for text, some in names.items() if again]
    if passed := [each for step in plan.steps for each in step.never_read]:
        notes.append(
            "before the new positions there are offsets that were never read, as an earlier reset or start went "
            f"over them: {listed(passed, ', ')}. No batch will read them, unless you set the positions before them"
        )
    every = [each for some in names.values() for each in some]
    if never and every:
        notes.append(f"the results of up to {never} records that are skipped may not be in {listed(every, ', ')}")
    return notes


def _moved_topics(plan: ResetPlan) -> set[str]:
    """Topics of which this reset moves a position that was there."""
    return {step.topic_partition.topic for step in plan.steps if step.old is not None}


def _goes_back(plan: ResetPlan) -> bool:
    return any(step.old is not None and step.new.offset < step.old for step in plan.steps)


def _queries(plan: ResetPlan) -> str:
    """Return what streaming queries need in order to follow the reset; the ledger does not know of it."""
    if _goes_back(plan):
        return (
            "streaming queries of this group need a new checkpoint to follow this reset; queries with state also "
            "need offsets=. With the old checkpoint their start is refused"
        )
    return (
        "streaming queries of this group skip the records in between; the start of queries with state is refused: "
        "they need a new checkpoint and offsets= to follow this reset"
    )


def _of_state(queries: Collection[str], *, back: bool) -> str:
    """Return what a reset means for the state of queries, and for their output."""
    query = "streaming query" if len(queries) == 1 else "each of the streaming queries"
    query = f"{query} {listed(queries, ', ')}"
    if back:
        return (
            f"{query} keeps state, and the state does not go back: a start with its checkpoint is "
            "refused. To follow, give it a new checkpoint, and offsets= that begin before the oldest window that is "
            "open at the new positions. The output then gets the results of these records again: delete them there "
            "first, or let a key replace them"
        )
    return (
        f"{query} keeps state, and the state gets none of the records in between: a start with its "
        "checkpoint is refused. To follow, give it a new checkpoint, and offsets= or OnMismatch(state='empty'). "
        "Windows that are open lack these records in the output"
    )
