"""What an executor's task does: copy its rows into the staging table, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import pyarrow as pa

from offsetkeeper.errors import MissingExtra, SinkError
from offsetkeeper.sinks.copy_format import HEADER, TRAILER, encode

RESULT = "transaction long, rows long"

_TRANSACTION = "select pg_current_xact_id()::xid::text::bigint"


def copy_rows(
    settings: Mapping[str, Any], address: str, statement: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Copy all rows in one transaction of one connection, and return its number and how many they were.

    A task may run more than once, wholly or to some point. PostgreSQL keeps with each row the number of the transaction
    that wrote it (xmin), so that the rows of the attempt which Spark reports as done are told from those of others.

    Args:
        settings: psycopg's for the connection.
        address: of the database, to be shown.
        statement: the COPY.
        batches: the task's rows. Where there are none, nothing is connected.

    Raises:
        MissingExtra: psycopg is not installed on this executor.
        SinkError: the rows could not be copied.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    psycopg = _psycopg()
    try:
        transaction, rows = _copy(psycopg.connect(**settings), statement, chain([first], filled))
    except (psycopg.Error, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise SinkError(f"{address}: rows could not be copied to the staging table, none was written: {why}") from error
    yield pa.record_batch({"transaction": pa.array([transaction], pa.int64()), "rows": pa.array([rows], pa.int64())})


def _copy(connection: Any, statement: str, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    rows = 0
    with connection:
        [[transaction]] = connection.execute(_TRANSACTION).fetchall()
        with connection.cursor().copy(statement) as copy:
            copy.write(HEADER)
            for batch in batches:
                rows += batch.num_rows
                for data in encode(batch):
                    copy.write(data)
            copy.write(TRAILER)
    return transaction, rows


def _psycopg() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - a client library, loaded on use
    except ImportError as error:
        raise MissingExtra("psycopg is not on the executors: install 'psycopg[binary]' there too") from error
    return psycopg
