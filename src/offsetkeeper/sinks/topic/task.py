"""The work of a batch's single task on its executor: writes all rows and the mark in one transaction."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import MarkMoved, OffsetkeeperError, RowMismatch, SinkError, SinkMismatch, UnknownTopic
from offsetkeeper.kafka.transactions import Message, Saying, Slot, Turn
from offsetkeeper.sinks.limits import Limits, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

NO_TOPICS = Topics()
RESULT = "error string, message string"
_NOTHING = "nothing was written"
_BYTES = ("key", "value")
_LIMITS = {
    "topic": Limits(
        "topic",
        "string",
        form="[a-zA-Z0-9._-]{1,249}",
        bars=r"\A\.\.?\z",
        remedy="is not a topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -, or null for Topic's own",
    ),
    "timestamp": Limits("timestamp", "timestamp", digits=3),
    "headers": Limits("headers", "array"),
}


def answer(
    slot: Slot, saying: Saying | None, name: str | None, closed: Topics, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Land the batch, or rehearse it without a saying; and yield the type and the text of an error, or nulls.

    The task itself does not fail: the process with the ledger decides about another try.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    error, message = None, None
    try:
        if saying is None:
            rehearse(slot, name, batches, closed)
        else:
            land(slot, saying, name, batches, closed)
    except OffsetkeeperError as failure:
        error, message = type(failure).__name__, str(failure)
    for _ in batches:  # read the rest: Spark waits until it is read
        pass
    yield pa.record_batch({"error": pa.array([error], pa.string()), "message": pa.array([message], pa.string())})


def land(
    slot: Slot, saying: Saying, name: str | None, batches: Iterable[pa.RecordBatch], closed: Topics = NO_TOPICS
) -> None:
    """Write all rows and the mark, unless an earlier try or another copy of this task has written the mark.

    Args:
        slot: slot of the group and output.
        saying: the marks before and after, as texts.
        name: the topic for rows without one.
        batches: the rows.
        closed: topics that no row may go into.

    Raises:
        MarkMoved: the mark is a different one; nothing was written.
        RowMismatch: a row cannot be written; nothing was written.
        SinkMismatch: a row is for a topic that is closed; nothing was written.
        SinkError, OutcomeUnknown, Refused: see `Turn`.
    """
    turn = Turn(slot)
    found = turn.take()
    if found == saying.text:
        return
    if found != saying.before:
        raise MarkMoved(f"group {slot.name!r} at {slot.brokers} has the mark {found!r} instead of {saying.before!r}")
    turn.write(messages(batches, name, partitions_of(turn, closed)), saying)


def rehearse(slot: Slot, name: str | None, batches: Iterable[pa.RecordBatch], closed: Topics) -> None:
    """Write all rows in a transaction that is aborted; the arguments and errors are those of `land`."""
    turn = Turn(slot)
    turn.take()
    turn.rehearse(messages(batches, name, partitions_of(turn, closed)))


def partitions_of(turn: Turn, closed: Topics) -> Callable[[str], int]:
    """Return a function that returns the number of partitions of a topic, and asks once for each.

    Args:
        turn: asks.
        closed: topics for which it raises SinkMismatch: not the record is wrong, but the program.
    """

    @cache
    def count(topic: str) -> int:
        if topic in closed:
            raise SinkMismatch(f"column topic: {loop(topic)}; {_NOTHING}")
        return turn.partitions(topic)

    return count


def loop(topic: str | None) -> str:
    """Return what is wrong with a topic that the pipeline reads and writes."""
    return (
        f"topic {topic} is read by this pipeline, so each batch would write what the next one reads, for ever. Give "
        "another topic; or Topic(…, also_read=True) if it is meant"
    )


def messages(
    batches: Iterable[pa.RecordBatch], name: str | None, partitions: Callable[[str], int]
) -> Iterator[Message]:
    """Yield the messages of rows.

    Args:
        batches: the rows.
        name: the topic for rows without one.
        partitions: returns the number of partitions of a topic.

    Raises:
        RowMismatch: a row cannot be written.
    """
    for given in batches:
        batch = _as_bytes(given)
        check(batch, [_LIMITS.get(column, Limits(column)) for column in batch.schema.names])
        columns = {column: batch.column(column).to_pylist() for column in batch.schema.names if column != "timestamp"}
        times = _milliseconds(batch.column("timestamp")) if "timestamp" in batch.schema.names else None
        nothing = [None] * batch.num_rows
        rest = (columns.get(column, nothing) for column in ("topic", "key", "partition", "headers"))
        for value, topic, key, partition, headers, time in zip(columns["value"], *rest, times or nothing, strict=True):
            where = name if topic is None else topic
            if where is None:
                raise RowMismatch(f"column topic: a row has no topic, and Topic(…) has no name; {_NOTHING}")
            count = _count(partitions, where, of_row=topic is not None)
            if partition is not None and not 0 <= partition < count:
                raise RowMismatch(
                    f"column partition: a row has {partition}, but topic {where} has {count} partitions; {_NOTHING}"
                )
            yield Message(where, value, key, -1 if partition is None else partition, time or 0, _headers(headers))


def _count(partitions: Callable[[str], int], topic: str, *, of_row: bool) -> int:
    try:
        return partitions(topic)
    except UnknownTopic as error:
        if of_row:
            raise RowMismatch(f"column topic: {error}, which a row names; {_NOTHING}") from error
        raise SinkError(f"{error}; {_NOTHING}") from error


def _as_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with keys and values as bytes: a text may be a cast of bytes that are not UTF-8."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    for place, name in enumerate(batch.schema.names):
        if name in _BYTES:
            batch = batch.set_column(place, name, batch.column(place).cast(pa.binary()))
    return batch


def _milliseconds(column: Any) -> list[int | None]:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    found = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    if any(time is not None and time < 1 for time in found):
        raise RowMismatch(f"column timestamp: Kafka cannot store times before 1970; {_NOTHING}")
    return found  # type: ignore[no-any-return]  # pyarrow ships no types


def _headers(found: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    if not found:
        return None
    if any(header is None or header["key"] is None for header in found):
        raise RowMismatch(f"column headers: a header has no key; {_NOTHING}")
    if any("\0" in header["key"] for header in found):
        raise RowMismatch(
            f"column headers: a header's key has the character U+0000, and the client would cut it there; {_NOTHING}"
        )
    return [(header["key"], header["value"]) for header in found]
