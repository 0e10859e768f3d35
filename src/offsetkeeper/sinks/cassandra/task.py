"""The work of a task on an executor: writes its rows, all with the write time of this attempt of the task.

Two attempts of a task may have different values for a row: Spark computes a lost stage again, and a function may give
other rows then. Cassandra settles each value by itself, so with one write time a row would have values of both.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from offsetkeeper.errors import Refused, RowMismatch, SinkError
from offsetkeeper.sinks.blame import judged
from offsetkeeper.sinks.cassandra.connection import Place, translated
from offsetkeeper.sinks.limits import Limits, check, check_ranks, record_of

RESULT = "attempt long, rows long"
NUMBER = "attempt long"
WIDTH = 1_000_000
"""Attempts in a window, and its microseconds: a second."""

_AT_ONCE = 128  # requests of one task
_EPOCH = 1 << 31  # Cassandra's number for the day 1970-01-01
_MILLISECOND = 1000


class Window(NamedTuple):
    """The write times of a landing, in microseconds since 1970: one for each attempt that Spark may start.

    Attributes:
        after: number of an attempt that began earlier.
        start: the write time below the first.
        last: a time that no attempt's is above.
    """

    after: int
    start: int
    last: int

    def time(self, attempt: int) -> int:
        """Return the write time of an attempt.

        Raises:
            SinkError: it has none.
        """
        if not self.after < attempt <= self.after + WIDTH:
            raise SinkError(
                f"attempt {attempt} of a task has no write time in the landing that began after attempt {self.after}: "
                f"Spark has started more than {WIDTH} attempts since, or was started again. Make batches smaller if "
                "this happens again"
            )
        return self.start + attempt - self.after


class RowPlan(NamedTuple):
    """How rows are written.

    Attributes:
        table: name of the table, for messages.
        insert, delete: the statements.
        limits: what the values of the table's columns must be, one for each of the frame's first columns.
        key: indexes of the columns in the primary key.
        deletes: whether the next column says which rows are deleted. Columns of `limits.PLACE` may follow, and `RANK`.
        same_key: the message for a second row of a key.
    """

    table: str
    insert: str
    delete: str
    limits: tuple[Limits, ...]
    key: tuple[int, ...]
    deletes: bool
    same_key: str


def write_rows(
    place: Place, plan: RowPlan, window: Window, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write all rows, and return their number when they are durable.

    Raises:
        MissingExtra: cassandra-driver is not installed on this executor.
        RowMismatch: a value does not fit; rows before it may be written.
        Refused: Cassandra refuses the statements or the user, whatever the values are; some rows may be written.
        SinkError: the rows could not be written, or not all of them; or this attempt has no write time.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    rows, attempt = 0, _attempt()
    write_time = window.time(attempt)
    with place.session() as session:
        statements = _prepared(place, plan, session)
        with _told(plan), translated(place):
            waiting: deque[Any] = deque()
            for batch in chain([first], filled):
                rows += batch.num_rows
                for gone, values in changes(plan, batch):
                    if len(waiting) == _AT_ONCE:
                        waiting.popleft().result()
                    waiting.append(session.execute_async(statements[gone], _timed(gone, values, write_time)))
            for answer in waiting:
                answer.result()
    yield pa.record_batch({"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64())})


def try_rows(place: Place, plan: RowPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Let the server check all rows, and write none; it raises the same errors as `write_rows`.

    Each row is sent with one that lacks its key, in a batch, and a server applies a batch as a whole or not at all. It
    checks the rows in their order: so the row is good if the server complains of the missing key.
    """
    with place.session() as session:
        statements = _prepared(place, plan, session)
        never = statements[False].bind((*(None for _ in plan.limits), 0))
        with _told(plan), translated(place):
            good = str(_refusal(session, never))
            for batch in batches:
                for gone, values in changes(plan, batch):
                    refusal = _refusal(session, _both(statements[gone].bind(_timed(gone, values, 0)), never))
                    if str(refusal) != good:
                        raise refusal
    yield from ()


def _both(first: Any, second: Any) -> Any:
    """Return two statements as a batch."""
    from cassandra.query import BatchStatement, BatchType  # noqa: PLC0415 - a client library, loaded on use

    batch = BatchStatement(BatchType.UNLOGGED)
    batch.add(first)
    batch.add(second)
    return batch


def _refusal(session: Any, statement: Any) -> Exception:
    """Return why the server refuses a statement that lacks a key."""
    from cassandra import InvalidRequest  # noqa: PLC0415 - as above

    try:
        session.execute(statement)
    except InvalidRequest as error:
        return error  # type: ignore[no-any-return]  # the library has no types
    raise SinkError("Cassandra has taken a row without a key, which was sent to be refused")


def _prepared(place: Place, plan: RowPlan, session: Any) -> tuple[Any, Any]:
    """Return the statements that write a row and delete one."""
    with translated(place):
        return session.prepare(plan.insert), session.prepare(plan.delete)


def _timed(gone: bool, values: tuple[Any, ...], write_time: int) -> tuple[Any, ...]:  # noqa: FBT001 - as `changes` tells it
    """Return the values of a statement with the write time."""
    return (write_time, *values) if gone else (*values, write_time)


def own_number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the number of this attempt, by which the numbers of all later ones are higher."""
    for _ in batches:
        yield pa.record_batch({"attempt": pa.array([_attempt()], pa.int64())})


_PART = "The batch is not committed; some of its rows may be written, and the next try replaces them"


@contextmanager
def _told(plan: RowPlan) -> Iterator[None]:
    """Tell a value that Cassandra refuses from a refusal of the user: the statements themselves were prepared."""
    try:
        yield
    except Refused as error:
        raise judged(error.__cause__ or error, f"table {plan.table}: {error}. {_PART}") from error


def changes(plan: RowPlan, batch: pa.RecordBatch) -> Iterator[tuple[bool, tuple[Any, ...]]]:
    """Return for each row whether it is deleted, and the values of its statement without the write time.

    Raises:
        RowMismatch: a value does not fit.
    """
    try:
        check(batch, plan.limits)
        check_ranks(batch, plan.limits, plan.same_key)
    except RowMismatch as error:
        told = str(error).replace("; nothing was written", f". {_PART}").replace(f"table {plan.table}: ", "", 1)
        raise RowMismatch(f"table {plan.table}: {told}") from None
    columns = [_values(kind.type, column) for kind, column in zip(plan.limits, batch.columns, strict=False)]
    gone = _gone(plan, batch) if plan.deletes else [False] * batch.num_rows
    for deleted, values in zip(gone, zip(*columns, strict=True), strict=True):
        yield deleted, tuple(values[place] for place in plan.key) if deleted else values


def _values(kind: str, column: pa.Array) -> list[Any]:
    """Return the values of a column for the client library."""
    if kind == "timestamp":
        return pc.divide(column.cast(pa.int64()), _MILLISECOND).to_pylist()  # type: ignore[no-any-return]  # pyarrow ships no types
    if kind == "date":
        return [None if day is None else day + _EPOCH for day in column.cast(pa.int32()).to_pylist()]
    values: list[Any] = column.to_pylist()
    if kind in {"uuid", "timeuuid"}:
        return [None if text is None else uuid.UUID(text) for text in values]
    return values


def _gone(plan: RowPlan, batch: pa.RecordBatch) -> list[bool]:
    column = batch.column(len(plan.limits))
    if column.null_count:
        row = pc.index(column.is_null(), value=True).as_py()
        record = record_of(batch, row, [each.name for each in plan.limits])
        raise RowMismatch(
            f"table {plan.table}: {record}the column of deletes has no value in a row: make it true or false. {_PART}"
        )
    return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow ships no types


def _attempt() -> int:
    from pyspark import TaskContext  # noqa: PLC0415 - available in a task

    context = TaskContext.get()
    return context.taskAttemptId() if context else 0
