"""What the tasks of a batch with several slots do on executors: each has a producer, and commits after the first.

Rows are in the slot that the hash of their source gives them, so a row can come in no other one's transaction, however
often the batch is tried. All slots write, and agree that they could. Then the first commits, and then the others.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper.errors import MarkMoved, OffsetkeeperError, OutcomeUnknown, Refused, SinkError, SinkMismatch
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks.topic.task import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

SOURCE = ("source_topic", "source_partition")
PLACE = "slot"
_ERRORS = {each.__name__: each for each in (MarkMoved, OutcomeUnknown, Refused, SinkMismatch)}
RESULT = "slot int, error string, message string"


class Share(NamedTuple):
    """What the slots of a batch write.

    Attributes:
        slots: in their order.
        saying: what each leaves, and what the first must find.
        name: of the topic for rows that name none.
        sources: topics and partitions whose records are in the batch.
    """

    slots: list[Slot]
    saying: Saying
    name: str | None
    sources: frozenset[tuple[str, int]]


def placed(frame: DataFrame, slots: int) -> DataFrame:
    """Return the frame with the slot of each row, as Spark's partitioning by its source has it."""
    from pyspark.sql.functions import hash as hash_of  # noqa: PLC0415 - executors need no Spark SQL
    from pyspark.sql.functions import lit, pmod  # noqa: PLC0415 - as above

    return frame.withColumn(PLACE, pmod(hash_of(*SOURCE), lit(slots)))


def answer(share: Share, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Land the slot of this task, and yield its number, and the kind and the text of what went wrong, or nulls."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - as above

    context = BarrierTaskContext.get()
    number, found = context.partitionId(), Accord(context.allGather)
    try:
        land(share, number, batches, found)
    except OffsetkeeperError as failure:
        found.failed(failure)
    for _ in batches:  # what is left, as Spark waits for somebody to read it
        pass
    error, text = found.error or (None, None)
    columns = {"slot": pa.array([number], pa.int32()), "error": pa.array([error], pa.string())}
    yield pa.record_batch({**columns, "message": pa.array([text], pa.string())})


def land(share: Share, number: int, batches: Iterable[pa.RecordBatch], accord: Accord | None = None) -> None:
    """Write the rows of one slot and its mark, unless it has that already.

    Args:
        share: what is written.
        number: of the slot.
        batches: the rows.
        accord: with the tasks of the other slots; None where the slots before this one have landed.

    Raises:
        MarkMoved: the slot has the mark of another batch.
        SinkMismatch: a row cannot be written, or is in a slot that it does not belong to.
        SinkError, OutcomeUnknown, Refused: see `Turn`; or another slot's task has raised it.
    """
    accord = accord or Accord(lambda said: [said])
    slot, saying = share.slots[number], share.saying
    turn = Turn(slot)
    found = turn.take()
    if found == saying.text:
        accord.written(first=number == 0)
    elif found == saying.before if number == 0 else may_follow(found, saying.offset):
        rows = messages(_traced(batches, share, number), share.name, cache(turn.partitions))
        turn.write(rows, saying._replace(before=found), lambda: accord.written(first=number == 0))
    else:
        raise MarkMoved(f"group {slot.name!r} at {slot.brokers} has the mark {found!r}; nothing was written there")
    if number == 0:
        accord.landed()


def may_follow(found: str | None, sequence: int) -> bool:
    """Whether a slot may change to the mark of a batch that the first slot has.

    Args:
        found: the text of the slot's mark, or None where it has none.
        sequence: of the batch.
    """
    return found is None or int(found.partition(" ")[0]) < sequence


def void(slot: Slot, saying: Saying) -> None:
    """Make the part of a batch void that the first slot has and this one lacks.

    Raises:
        MarkMoved: the slot has the batch by now, or a later one.
        SinkError, OutcomeUnknown, Refused: see `Turn`.
    """
    turn = Turn(slot)
    found = turn.take()
    if found == saying.text:
        return
    if not may_follow(found, saying.offset):
        raise MarkMoved(f"group {slot.name!r} at {slot.brokers} has the mark {found!r}; nothing was written")
    turn.write((), saying._replace(before=found))


class Accord:
    """The tasks of a batch: what one raises before the first slot has landed, all raise.

    Args:
        gather: gives its text to all tasks, waits for theirs, and returns all, in the order of their slots.
    """

    def __init__(self, gather: Callable[[str], list[str]]) -> None:
        self._gather, self._rounds = gather, 2
        self.error: tuple[str, str] | None = None

    def written(self, *, first: bool) -> None:
        """Wait until all slots have written, and for those but the first, until that one has landed."""
        self._tell("")
        if not first:
            self._tell("")

    def landed(self) -> None:
        """Tell that the first slot has landed."""
        self._tell("")

    def failed(self, failure: OffsetkeeperError) -> None:
        """Note what this task has raised, and tell the others where they still wait for it."""
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
    """Yield the rows without their sources, which must be in the batch and belong to this slot."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    for batch in batches:
        asked = pa.Table.from_batches([batch]).group_by([*SOURCE, PLACE]).aggregate([])
        for row in asked.to_pylist():
            source = row[SOURCE[0]], row[SOURCE[1]]
            if source not in share.sources:
                raise SinkMismatch(
                    f"a row says that it comes from partition {source[1]} of topic {source[0]}, of which the batch has "
                    "no record: give each row the topic and partition of its record; nothing was written"
                )
            if row[PLACE] != number:
                raise SinkMismatch(
                    f"Spark has brought a row of slot {row[PLACE]} to slot {number}; nothing was written"
                )
        yield batch.drop_columns([*SOURCE, PLACE])
