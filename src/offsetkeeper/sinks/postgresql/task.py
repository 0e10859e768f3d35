"""The work of a task on an executor: gives few rows to the driver as arrays, and copies more into the staging table.

Values are sent in PostgreSQL's binary format, which is half the work of text on both sides. Sources:
https://www.postgresql.org/docs/current/sql-copy.html ("Binary Format"), and for the bytes of each type, arrays too, its
receive function in PostgreSQL's src/backend/utils/adt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offsetkeeper.clients.postgresql_tls import check_files, objection
from offsetkeeper.core.environment import bigint
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.errors import MissingExtra, Refused, RowMismatch
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.few import Few, answer, take
from offsetkeeper.sinks.limits import Limits, checked

HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER = b"\xff\xff"

_NULL = pa.scalar(b"\xff\xff\xff\xff", pa.binary())
_EMPTY = pa.scalar(b"", pa.binary())
_MOST_BYTES = 64 * 2**20  # Arrow's binary arrays end at 2 GiB, and the bytes of a piece exist several times
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = 946_684_800_000_000
_NEGATIVE = 0x4000
_INT64_DIGITS = 18
_STAGED = re.compile(r"\bcolumn \"?c(\d+)\"?")
_NUMBERS = {
    pa.bool_(): ">i1",
    pa.int8(): ">i2",
    pa.int16(): ">i2",
    pa.int32(): ">i4",
    pa.int64(): ">i8",
    pa.float32(): ">f4",
    pa.float64(): ">f8",
}
# PostgreSQL's fixed ids of its types (src/include/catalog/pg_type.dat).
_OIDS = {
    pa.null().id: 25,
    pa.bool_().id: 16,
    pa.binary().id: 17,
    pa.large_binary().id: 17,
    pa.int64().id: 20,
    pa.int8().id: 21,
    pa.int16().id: 21,
    pa.int32().id: 23,
    pa.string().id: 25,
    pa.large_string().id: 25,
    pa.float32().id: 700,
    pa.float64().id: 701,
    pa.date32().id: 1082,
    pa.decimal128(1).id: 1700,
}
_TIMESTAMP, _TIMESTAMPTZ = 1114, 1184


class Statements(NamedTuple):
    """The statements that make the staging table, if it is not there, and copy into it."""

    make: str
    copy: str


def copy_rows(
    settings: Mapping[str, Any],
    address: str,
    statements: Statements,
    limits: Sequence[Limits],
    few: Few,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Return few rows as arrays, or copy all in one transaction of one connection; see `few.RESULT`.

    A task may run more than once, completely or in part. Each row has the number of the attempt that copied it, so
    that the rows of the attempt that Spark reports as done can be selected. The number is random and made here: a
    server that crashed gives the numbers of its transactions again.

    Args:
        settings: psycopg's settings for the connection.
        address: address of the database, for messages.
        statements: statements for the staging table.
        limits: limits of the values in each column.
        few: the most rows that are not staged.
        batches: the task's rows. Without more than few, no connection is opened.

    Raises:
        MissingExtra: psycopg is not installed on this executor.
        RowMismatch: a value does not fit.
        SettingsError: a file for TLS is missing on this executor, or wrong.
        Refused: the server's certificate is not accepted here, or it does not accept ours.
        SinkMismatch, SinkError: the rows could not be copied.
    """
    rows_left = checked(batches, limits)
    taken, all_ = take(rows_left, few)
    if not taken:
        return
    psycopg = _psycopg()  # also for few rows: the first batch tells what is missing, not the first large one
    attempt, made = bigint(), False
    check_files(settings)
    if all_:
        [whole] = pa.Table.from_batches(taken).combine_chunks().to_batches()
        yield answer(attempt, whole.num_rows, arrays(whole))
        return
    try:
        with psycopg.connect(**settings, autocommit=True) as connection:
            connection.execute(statements.make)
            made = True
            rows = _copy(connection, statements.copy, attempt, chain(taken, rows_left))
    except psycopg.Error as error:
        if may_be_objection(str(error)) and (objected := objection(settings)):
            raise Refused(f"{address}: nothing was written: {objected}") from error
        why = _STAGED.sub(lambda found: f"column {limits[int(found[1])].name}", words(error))
        text = f"{address}: rows could not be copied to the staging table; nothing was written: {why}"
        raise judged(error, text, of_rows=made) from error
    yield answer(attempt, rows)


def _copy(connection: Any, statement: str, attempt: int, batches: Iterator[pa.RecordBatch]) -> int:
    rows = 0
    with connection.cursor().copy(statement) as copy:
        copy.write(HEADER)
        for batch in batches:
            rows += batch.num_rows
            for data in encode(batch, attempt):
                copy.write(data)
        copy.write(TRAILER)
    return rows


def _psycopg() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - a client library, loaded on use
    except ImportError as error:
        raise MissingExtra("the executors lack psycopg: install 'psycopg[binary]' there too") from error
    return psycopg


def encode(batch: pa.RecordBatch, attempt: int) -> Iterator[memoryview]:
    """Return the rows of a batch in binary COPY format, without header and trailer.

    Args:
        batch: the rows.
        attempt: the first column of each row.

    Raises:
        RowMismatch: PostgreSQL cannot hold a value.
    """
    head = pa.scalar(struct.pack(">hiq", batch.num_columns + 1, 8, attempt), pa.binary())
    for piece in _pieces(batch):
        fields = [
            part
            for name, column in zip(piece.schema.names, piece.columns, strict=True)
            for part in _named(name, column, _field)
        ]
        yield _bytes_of(_join(head, *fields))


def arrays(rows: pa.RecordBatch) -> list[bytes]:
    """Return each column as one array in PostgreSQL's binary format. A column of lists has none.

    Raises:
        RowMismatch: PostgreSQL cannot hold a value.
    """
    return [_named(name, column, _array) for name, column in zip(rows.schema.names, rows.columns, strict=True)]


def _array(column: pa.Array) -> bytes:
    """Return the values as a one-dimensional array with the lower bound 1."""
    head = struct.pack(">iiiii", 1, 0, _oid(column.type), len(column), 1)
    return head + bytes(_bytes_of(_join(*_field(column))))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= _MOST_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _named(name: str, array: pa.Array, encoded: Callable[[pa.Array], Any]) -> Any:
    try:
        return encoded(array)
    except pa.ArrowException as error:
        raise RowMismatch(f"column {name}: PostgreSQL cannot hold a value ({error}); nothing was written") from error


def _field(array: pa.Array) -> list[pa.Array]:
    """Return byte arrays that, joined row by row, are the field: its length (-1 for null) and its value."""
    values = _fixed_values(array)
    if values is None:
        return _sized(_list(array) if pa.types.is_list(array.type) else array.cast(pa.binary()))
    size = values.dtype.itemsize
    field = np.empty(len(array), [("size", ">i4"), ("value", values.dtype)])
    field["size"], field["value"] = size, values
    fields = _fixed_size_bytes(field)
    return [pc.if_else(array.is_null(), _NULL, fields) if array.null_count else fields]


def _sized(payload: pa.Array) -> list[pa.Array]:
    sizes = pc.fill_null(pc.binary_length(payload), -1).to_numpy(zero_copy_only=False)
    return [_fixed_size_bytes(sizes.astype(">i4")), pc.fill_null(payload, _EMPTY)]


def _fixed_values(array: pa.Array) -> np.ndarray[Any, Any] | None:
    """Return the values of a fixed-size type, with arbitrary values for nulls; None for other types."""
    kind = array.type
    if pa.types.is_decimal128(kind):
        return _numeric(array)
    if pa.types.is_date32(kind):
        return _numbers(_since_2000(array.cast(pa.int32()), _DAYS_TO_2000), ">i4")
    if pa.types.is_timestamp(kind):
        return _numbers(_since_2000(array.cast(pa.int64()), _MICROSECONDS_TO_2000), ">i8")
    return _numbers(array, _NUMBERS[kind]) if kind in _NUMBERS else None


def _since_2000(numbers: pa.Array, zero: int) -> pa.Array:
    found = pc.subtract_checked(numbers, pa.scalar(zero, numbers.type))
    most = 2 ** (numbers.type.bit_width - 1) - 1
    ends = pc.min_max(found).as_py()
    if ends["min"] == -most - 1 or ends["max"] == most:
        raise pa.ArrowInvalid("it is PostgreSQL's infinity")
    return found


def _numbers(array: pa.Array, dtype: str) -> np.ndarray[Any, Any]:
    filled = pc.fill_null(array, pa.scalar(0).cast(array.type)) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(dtype)


def _numeric(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return decimals as PostgreSQL's numeric: base-10000 digits, aligned at the decimal point."""
    precision, scale = array.type.precision, array.type.scale
    integer, fraction = -((scale - precision) // 4), -(-scale // 4)
    unscaled = _unscaled(array, fits=precision + 4 * fraction - scale <= _INT64_DIGITS)
    left = abs(unscaled) * 10 ** (4 * fraction - scale)
    count = integer + fraction
    names = [("count", ">i2"), ("weight", ">i2"), ("sign", ">i2"), ("scale", ">i2"), ("digits", ">i2", (count,))]
    values = np.empty(len(array), names)
    values["count"], values["weight"], values["scale"] = count, integer - 1, scale
    values["sign"] = np.where(unscaled < 0, _NEGATIVE, 0)
    for place in reversed(range(count)):
        left, digit = left // 10_000, left % 10_000
        values["digits"][:, place] = digit
    return values


def _unscaled(array: pa.Array, *, fits: bool) -> np.ndarray[Any, Any]:
    words = np.frombuffer(array.buffers()[1], "<i8").reshape(-1, 2)[array.offset : array.offset + len(array)]
    low, high = words[:, 0], words[:, 1]
    return low if fits else high.astype(object) * 2**64 + low.view("<u8").astype(object)


def _list(array: pa.Array) -> pa.Array:
    """Return lists as one-dimensional PostgreSQL arrays with the lower bound 1."""
    sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    elements = array.flatten()
    bodies = pc.binary_join(pa.ListArray.from_arrays(offsets, _join(*_field(elements))), _EMPTY)
    oid = _oid(elements.type)
    heads = np.empty(len(array), [(name, ">i4") for name in ("dimensions", "flags", "element", "size", "lower")])
    heads["dimensions"], heads["flags"], heads["element"], heads["size"], heads["lower"] = 1, 0, oid, sizes, 1
    empty = pa.scalar(struct.pack(">iii", 0, 0, oid), pa.binary())
    values = _join(pc.if_else(pa.array(sizes == 0), empty, _fixed_size_bytes(heads)), bodies)
    return pc.if_else(array.is_null(), pa.scalar(None, pa.binary()), values)


def _join(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _fixed_size_bytes(values: np.ndarray[Any, Any]) -> pa.Array:
    kind = pa.binary(values.dtype.itemsize)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(pa.binary())


def _bytes_of(array: pa.Array) -> memoryview:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, "<i4")
    return memoryview(data)[ends[array.offset] : ends[array.offset + len(array)]]


def _oid(kind: pa.DataType) -> int:
    if pa.types.is_timestamp(kind):
        return _TIMESTAMPTZ if kind.tz else _TIMESTAMP
    return _OIDS[kind.id]
