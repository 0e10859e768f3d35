"""The work of a batch's single task on its executor: writes all rows and the mark in one transaction."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import MarkMoved, OffsetkeeperError, RowMismatch, SinkError, SinkMismatch, UnknownTopic
from offsetkeeper.kafka.producers import Rows, columns
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks.limits import Limits, check
from offsetkeeper.sinks.topic.ends import whole

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
            rehearse(slot, name, whole(batches), closed)
        else:
            land(slot, saying, name, whole(batches), closed)
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
    turn = Turn(slot, writes=batches != ())
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


def messages(batches: Iterable[pa.RecordBatch], name: str | None, partitions: Callable[[str], int]) -> Iterator[Rows]:
    """Yield the messages of rows.

    Args:
        batches: the rows.
        name: the topic for rows without one.
        partitions: returns the number of partitions of a topic.

    Raises:
        RowMismatch: a row cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    for given in batches:
        batch = _as_bytes(given)
        check(batch, [_LIMITS.get(column, Limits(column)) for column in batch.schema.names])
        kinds = {
            **dict(zip(columns().names, columns().types, strict=True)),
            "topic": pa.string(),
            "timestamp": pa.timestamp("us", "UTC"),
        }
        nothing = {column: pa.nulls(batch.num_rows, kind) for column, kind in kinds.items()}
        rows = {**nothing, **dict(zip(batch.schema.names, batch.columns, strict=True))}
        topics, rows["topic"] = _topics(rows["topic"], name)
        counts = [_count(partitions, topic, of_row=of_row) for topic, of_row in topics]
        rows["partition"] = _partitions(rows["partition"], topics, rows["topic"], counts)
        rows["timestamp"], rows["headers"] = _milliseconds(rows["timestamp"]), _headers(rows["headers"])
        made = [rows[column] for column in columns().names]
        yield Rows([topic for topic, _ in topics], pa.record_batch(made, schema=columns()))


def _topics(column: pa.Array, name: str | None) -> tuple[list[tuple[str, bool]], pa.Array]:
    """Return the topics, each with whether rows name it; and the number of each row's topic among them."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    if name is None and column.null_count:
        raise RowMismatch(f"column topic: a row has no topic, and Topic(…) has no name; {_NOTHING}")
    coded = column.dictionary_encode(null_encoding="encode")
    topics = [(name or "", False) if topic is None else (topic, True) for topic in coded.dictionary.to_pylist()]
    return topics, coded.indices.cast(pa.int32())


def _partitions(column: pa.Array, topics: list[tuple[str, bool]], numbers: pa.Array, counts: list[int]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    of_row = pa.array(counts, pa.int32()).take(numbers)
    wrong = pc.or_(pc.less(column, 0), pc.greater_equal(column, of_row))
    row = pc.index(wrong, value=True).as_py()
    if row >= 0:
        number = numbers[row].as_py()
        raise RowMismatch(
            f"column partition: a row has {column[row]}, but topic {topics[number][0]} has {counts[number]} "
            f"partitions; {_NOTHING}"
        )
    return column.fill_null(-1)


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


def _milliseconds(column: pa.Array) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    import pyarrow.compute as pc  # noqa: PLC0415 - as above

    found = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    least = pc.min(found).as_py()
    if least is not None and least < 1:  # the client takes 0 for the current time
        raise RowMismatch(f"column timestamp: times up to 1970-01-01T00:00:00Z cannot be written to Kafka; {_NOTHING}")
    return found.fill_null(0)


def _headers(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    pairs = column.flatten()
    keys = pairs.field("key") if not pairs.null_count else None
    if keys is None or keys.null_count:
        raise RowMismatch(f"column headers: a header has no key; {_NOTHING}")
    if pc.any(pc.match_substring(keys, "\0")).as_py():
        raise RowMismatch(
            f"column headers: a header's key has the character U+0000, and the client would cut it there; {_NOTHING}"
        )
    return column.cast(columns().field("headers").type)
