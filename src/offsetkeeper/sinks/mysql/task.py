"""The work of a task on an executor: gives few rows to the driver as SQL, and inserts more into the staging table.

It inserts many rows per statement, in one transaction. The statements are built from Arrow's columns, not row by row.
LOAD DATA LOCAL INFILE takes half the server's time (measured on MariaDB 11.4). But it changes values that do not fit,
with only a warning, needs a file on the executor's disk, and MySQL 8 refuses it by default, so a second way would be
needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsetkeeper.clients.mysql_tls import connectable, objection
from offsetkeeper.core.environment import bigint
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.errors import MissingExtra, Refused
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.few import Few, answer, take
from offsetkeeper.sinks.limits import Limits, checked

# Without unique and foreign key checks MariaDB locks an empty table for a bulk insert, and two tasks may deadlock.
_SETUP = (
    "SET NAMES utf8mb4, sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION', "
    "time_zone = '+00:00', unique_checks = 1, foreign_key_checks = 1, completion_type = 0, "
    "sql_select_limit = 18446744073709551615"
)
_PACKET = "SELECT @@max_allowed_packet"
_MARGIN = 64  # bytes of a packet without its statement
MOST_BYTES = 1 << 20  # of a statement
_MOST_OF_A_BATCH = 64 << 20  # Arrow's binary arrays end at 2 GiB, and the bytes of a piece exist several times
_STAGED = re.compile(r"(?:`[^`]*`\.){0,2}[`']c(\d+)[`']")
_EMPTY = pa.scalar(b"", pa.binary())
_NULL = pa.scalar(b"NULL", pa.binary())
_QUOTE = pa.scalar(b"'", pa.binary())
_BYTES = pa.scalar(b"_binary'", pa.binary())
_BEGIN, _COMMA, _END = (pa.scalar(sign, pa.binary()) for sign in (b"(", b",", b"),"))


class Statements(NamedTuple):
    """The statement that makes the staging table, if it is not there, and how one begins that inserts into it."""

    make: str
    insert: str


def insert_rows(
    settings: Mapping[str, Any],
    address: str,
    table: Statements,
    limits: Sequence[Limits],
    few: Few,
    batches: Iterator[Any],
) -> Iterator[pa.RecordBatch]:
    """Return few rows as SQL, or insert all in one transaction of one connection; see `few.RESULT`.

    A task may run more than once, completely or in part. Each row has the number of the attempt that inserted it, so
    that the rows of the attempt that Spark reports as done can be selected. The number is random and made here: two
    servers with one server_id, as in a cluster, give the same UUID_SHORT().

    Args:
        settings: PyMySQL's settings for the connection; see `connectable`.
        address: address of the database, for messages.
        table: statements for the staging table.
        limits: what the values of each column must be.
        few: the most rows that are not staged.
        batches: the task's rows. Without more than few, no connection is opened.

    Raises:
        MissingExtra: PyMySQL is not installed on this executor.
        RowMismatch: the column of a value does not keep it as it is.
        SettingsError: a file for TLS is missing on this executor, or wrong.
        Refused: the server's certificate is not accepted here, or it does not accept ours.
        SinkError: the rows could not be inserted.
    """
    rows_left = checked(batches, limits)
    taken, all_ = take(rows_left, few)
    if not taken:
        return
    pymysql = _pymysql()  # also for few rows: the first batch tells what is missing, not the first large one
    attempt, rows, sent = bigint(), 0, all_
    parts: list[bytes] = []
    try:
        if all_:
            rows = sum(batch.num_rows for batch in taken)
            parts = [part for batch in taken for part in statements(batch, attempt, few.bytes)]
        else:
            with pymysql.connect(**connectable(settings)) as connection, connection.cursor() as cursor:
                cursor.execute(_SETUP)
                cursor.execute(table.make)
                sent = True
                rows = _insert(connection, cursor, table.insert.encode(), attempt, chain(taken, rows_left))
    except (pymysql.Error, pa.ArrowException, OSError) as error:
        if may_be_objection(str(error)) and (objected := objection(settings)):
            raise Refused(f"{address}: nothing was written: {objected}") from error
        why = named(words(error), [each.name for each in limits])
        text = f"{address}: rows could not be staged; nothing was written: {why}"
        raise judged(error, text, of_rows=sent) from error
    yield answer(attempt, rows, parts)


def _insert(connection: Any, cursor: Any, head: bytes, attempt: int, batches: Iterator[pa.RecordBatch]) -> int:
    cursor.execute(_PACKET)
    [(packet,)] = cursor.fetchall()
    most, rows = min(packet - _MARGIN, MOST_BYTES) - len(head), 0
    connection.begin()
    for batch in batches:
        rows += batch.num_rows
        for statement in statements(batch, attempt, most):
            cursor.execute(head + statement)
    connection.commit()
    return rows


def named(text: str, names: Sequence[str]) -> str:
    """Return the words of an error with the names of the frame's columns, instead of those of the staging table."""
    return _STAGED.sub(lambda found: names[int(found[1])], text)


def statements(batch: pa.RecordBatch, attempt: int, most: int) -> Iterator[bytes]:
    """Return the rows of a batch as SQL, in pieces of at most `most` bytes unless a single row is larger."""
    if batch.nbytes > _MOST_OF_A_BATCH and batch.num_rows > 1:
        half = batch.num_rows // 2
        for piece in (batch.slice(0, half), batch.slice(half)):
            yield from statements(piece, attempt, most)
        return
    values = [value for column in batch.columns for value in (_COMMA, _values(column))]
    number = pa.scalar(str(attempt).encode(), pa.binary())
    rows = pc.binary_join_element_wise(_BEGIN, number, *values, _END, _EMPTY)
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, "<i4")[rows.offset : rows.offset + len(rows) + 1]
    start = 0
    while start < len(rows):
        last = int(np.searchsorted(ends, ends[start] + most, side="right")) - 1
        last = max(last, start + 1)
        yield bytes(memoryview(data)[ends[start] : ends[last] - 1])
        start = last


def _values(column: pa.Array) -> pa.Array:
    """Return the values of a column as SQL."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.array([b"NULL"] * len(column), pa.binary())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pc.fill_null(column.cast(pa.string()).cast(pa.binary()), _NULL)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _quoted(column.cast(pa.binary()), _BYTES)
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64()).cast(pa.timestamp("us"))
    return _quoted(column.cast(pa.string()).cast(pa.binary()), _QUOTE)


def _quoted(column: pa.Array, quote: pa.Scalar) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(column, b"\\", b"\\\\"), b"'", b"''")
    return pc.fill_null(pc.binary_join_element_wise(quote, escaped, _QUOTE, _EMPTY), _NULL)


def _pymysql() -> Any:
    try:
        import pymysql  # noqa: PLC0415 - a client library, loaded on use
    except ImportError as error:
        raise MissingExtra("the executors lack PyMySQL: install it there too") from error
    return pymysql
