"""The work of a task on an executor: inserts its rows into the staging table, many per statement, in one transaction.

The statements are built from Arrow's columns, not row by row. LOAD DATA LOCAL INFILE takes half the server's time
(measured on MariaDB 11.4). But it changes values that do not fit, with only a warning, needs a file on the executor's
disk, and MySQL 8 refuses it by default, so a second way would be needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsetkeeper.clients.mysql_tls import connectable, objection
from offsetkeeper.core.environment import bigint
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.errors import MissingExtra, Refused
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.limits import Limits, check

# Without unique and foreign key checks MariaDB locks an empty table for a bulk insert, and two tasks may deadlock.
_SETUP = (
    "SET NAMES utf8mb4, sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00', "
    "unique_checks = 1, foreign_key_checks = 1, completion_type = 0, sql_select_limit = 18446744073709551615"
)
_PACKET = "SELECT @@max_allowed_packet"
_MARGIN = 64  # bytes of a packet without its statement
_MOST_BYTES = 1 << 20  # of a statement
_MOST_OF_A_BATCH = 64 << 20  # Arrow's binary arrays end at 2 GiB, and the bytes of a piece exist several times
_STAGED = re.compile(r"(?:`[^`]*`\.){0,2}[`']c(\d+)[`']")
_EMPTY = pa.scalar(b"", pa.binary())
_NULL = pa.scalar(b"NULL", pa.binary())
_QUOTE = pa.scalar(b"'", pa.binary())
_BYTES = pa.scalar(b"_binary'", pa.binary())
_BEGIN, _COMMA, _END = (pa.scalar(sign, pa.binary()) for sign in (b"(", b",", b"),"))


def insert_rows(
    settings: Mapping[str, Any], address: str, table: str, limits: Sequence[Limits], batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    """Insert all rows in one transaction of one connection; return the number of this attempt and of its rows.

    A task may run more than once, completely or in part. Each row has the number of the attempt that inserted it, so
    that the rows of the attempt that Spark reports as done can be selected. The number is random and made here: two
    servers with one server_id, as in a cluster, give the same UUID_SHORT().

    Args:
        settings: PyMySQL's settings for the connection; see `connectable`.
        address: address of the database, for messages.
        table: the staging table, quoted for SQL.
        limits: what the values of each column must be.
        batches: the task's rows. Without rows, no connection is opened.

    Raises:
        MissingExtra: PyMySQL is not installed on this executor.
        RowMismatch: the column of a value does not keep it as it is.
        SettingsError: a file for TLS is missing on this executor, or wrong.
        Refused: the server's certificate is not accepted here, or it does not accept ours.
        SinkError: the rows could not be inserted.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    pymysql = _pymysql()
    attempt, rows = bigint(), 0
    try:
        with pymysql.connect(**connectable(settings)) as connection, connection.cursor() as cursor:
            cursor.execute(_SETUP)
            cursor.execute(_PACKET)
            [(packet,)] = cursor.fetchall()
            head = f"INSERT INTO {table} VALUES ".encode()  # noqa: S608 - it is quoted
            most = min(packet - _MARGIN, _MOST_BYTES) - len(head)
            connection.begin()
            for batch in (first, *filled):
                check(batch, limits)
                rows += batch.num_rows
                for statement in statements(batch, attempt, most):
                    cursor.execute(head + statement)
            connection.commit()
    except (pymysql.Error, pa.ArrowException, OSError) as error:
        if may_be_objection(str(error)) and (objected := objection(settings)):
            raise Refused(f"{address}: nothing was written: {objected}") from error
        why = _STAGED.sub(lambda found: limits[int(found[1])].name, words(error))
        raise judged(error, f"{address}: rows could not be staged; nothing was written: {why}") from error
    yield pa.record_batch({"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64())})


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
