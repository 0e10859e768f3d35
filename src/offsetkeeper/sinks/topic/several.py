"""The work of the tasks of a batch with several slots, on executors: each has a producer; the first one commits first.

The hash of a row's source selects its slot, so a row is always in the same slot, however often the batch is tried. All
slots write, and tell each other that they have written. Then the first slot commits, and then the others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import (
    MarkMoved,
    MissingExtra,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    RowMismatch,
    SettingsError,
    SinkError,
    SinkMismatch,
)
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks.topic.ends import whole, with_ends
from offsetkeeper.sinks.topic.task import NO_TOPICS, messages, partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

SOURCE = ("source_topic", "source_partition")
PLACE = "slot"
_ENDS_OF_SLOT = 16  # about so many: some slots get more of them, and others fewer
_KINDS = (MarkMoved, MissingExtra, OutcomeUnknown, Refused, RowMismatch, SettingsError, SinkMismatch)
_ERRORS = {each.__name__: each for each in _KINDS}
RESULT = "slot int, error string, message string"


class Share(NamedTuple):
    """The data that the slots of a batch write.

    Attributes:
        slots: the slots in their order.
        saying: the mark that each slot writes, and the mark that the first slot must have before.
        name: the topic for rows without one.
        sources: topics and partitions whose records are in the batch.
        closed: topics that no row may go into.
    """

    slots: list[Slot]
    saying: Saying
    name: str | None
    sources: frozenset[tuple[str, int]]
    closed: Topics = NO_TOPICS


def with_ends_of_slots(frame: DataFrame, slots: int) -> DataFrame:
    """Return the rows, and ends with sources of their own, whose hashes are in all slots."""
    topic, partition = SOURCE
    return with_ends(frame, _ENDS_OF_SLOT * slots, {topic: "''", partition: "cast(id as int)"})


def placed(frame: DataFrame, slots: int) -> DataFrame:
    """Return the frame with the slot of each row, partitioned by it."""
    from pyspark.sql.functions import hash as hash_of  # noqa: PLC0415 - executors need no Spark SQL
    from pyspark.sql.functions import lit, pmod  # noqa: PLC0415 - as above

    return frame.withColumn(PLACE, pmod(hash_of(*SOURCE), lit(slots)))


def answer(share: Share, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Land the slot of this task, and yield its number, and the type and the text of an error, or nulls."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - as above

    context = BarrierTaskContext.get()
    number, found = context.partitionId(), Accord(context.allGather)
    try:
        land(share, number, whole(batches), found)
    except OffsetkeeperError as failure:
        found.failed(failure)
    for _ in batches:  # read the rest: Spark waits until it is read
        pass
    error, text = found.error or (None, None)
    columns = {"slot": pa.array([number], pa.int32()), "error": pa.array([error], pa.string())}
    yield pa.record_batch({**columns, "message": pa.array([text], pa.string())})


def land(share: Share, number: int, batches: Iterable[pa.RecordBatch], accord: Accord) -> None:
    """Write the rows of one slot and its mark, unless the slot already has the mark.

    Args:
        share: the data of all slots.
        number: number of the slot.
        batches: the rows.
        accord: the agreement with the tasks of the other slots.

    Raises:
        MarkMoved: the slot has the mark of another batch.
        RowMismatch: a row cannot be written.
        SinkMismatch: the function has given a row a source that the batch does not have, or it is in the wrong slot.
        SinkError, OutcomeUnknown, Refused: see `Turn`; or the task of another slot has raised it.
    """
    slot, saying = share.slots[number], share.saying
    turn = Turn(slot)
    found = turn.take()
    if found == saying.text:
        accord.written(first=number == 0)
    elif found == saying.before if number == 0 else may_follow(found, saying.offset):
        rows = messages(_traced(batches, share, number), share.name, partitions_of(turn, share.closed))
        about = saying.about if number == 0 else ""
        turn.write(rows, saying._replace(before=found, about=about), lambda: accord.written(first=number == 0))
    else:
        raise MarkMoved(f"group {slot.name!r} at {slot.brokers} has the mark {found!r}; nothing was written there")
    if number == 0:
        accord.landed()


def may_follow(found: str | None, sequence: int) -> bool:
    """Whether a slot may get the mark of a batch that the first slot has.

    Args:
        found: the text of the slot's mark, or None if it has none.
        sequence: sequence of the batch.
    """
    return found is None or int(found.partition(" ")[0]) < sequence


def void(slot: Slot, saying: Saying) -> None:
    """Write a void mark into a slot that lacks its part of a batch, while the first slot has landed.

    Raises:
        MarkMoved: the slot now has the batch or a later one.
        SinkError, OutcomeUnknown, Refused: see `Turn`.
    """
    turn = Turn(slot, writes=False)
    found = turn.take()
    if found == saying.text:
        return
    if not may_follow(found, saying.offset):
        raise MarkMoved(f"group {slot.name!r} at {slot.brokers} has the mark {found!r}; nothing was written")
    turn.write((), saying._replace(before=found))


class Accord:
    """The agreement of a batch's tasks: an error of one task before the first slot has landed is raised in all.

    Args:
        gather: sends its text to all tasks, waits for theirs, and returns all texts in the order of the slots.
    """

    def __init__(self, gather: Callable[[str], list[str]]) -> None:
        self._gather, self._rounds = gather, 2
        self.error: tuple[str, str] | None = None

    def written(self, *, first: bool) -> None:
        """Wait until all slots have written; slots other than the first also wait until the first has landed."""
        self._tell("")
        if not first:
            self._tell("")

    def landed(self) -> None:
        """Tell the other tasks that the first slot has landed."""
        self._tell("")

    def failed(self, failure: OffsetkeeperError) -> None:
        """Note the error of this task, and tell the other tasks if they still wait for it."""
        self.error = type(failure).__name__, str(failure)
        if self._rounds:
            self._rounds = 0
            self._gather(json.dumps(self.error))

    def _tell(self, said: str) -> None:
        self._rounds -= 1
        for each in self._gather(said):
            if each:
                self._rounds = 0
                kind, text = json.loads(each)
                raise _ERRORS.get(kind, SinkError)(text)


def _traced(batches: Iterable[pa.RecordBatch], share: Share, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows without their source columns; check that the source is in the batch and in this slot."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    for batch in batches:
        asked = pa.Table.from_batches([batch]).group_by([*SOURCE, PLACE]).aggregate([])
        for row in asked.to_pylist():
            source = row[SOURCE[0]], row[SOURCE[1]]
            if source not in share.sources:
                raise SinkMismatch(
                    f"the source of a row is partition {source[1]} of topic {source[0]}, but the batch has no record "
                    "of it: give each row the topic and partition of its record; nothing was written"
                )
            if row[PLACE] != number:
                raise SinkMismatch(f"Spark sent a row of slot {row[PLACE]} to slot {number}; nothing was written")
        yield batch.drop_columns([*SOURCE, PLACE])
