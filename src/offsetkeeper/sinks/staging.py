"""Code shared by the staging tables of all databases: names, the job that fills them, and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.core.executors import our_error
from offsetkeeper.core.spark_session import map_in_arrow
from offsetkeeper.errors import SinkError, StoreUnavailable
from offsetkeeper.sinks.table import Target, fewer_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


def staging_prefix(group: str, schema: str, table: str) -> str:
    """Return the common prefix of all staging tables that the group's runs create for a table."""
    digest = hashlib.sha256(repr((group, schema, table)).encode())
    return f"offsetkeeper_{digest.hexdigest()[:16]}_"


def asked(call: Callable[[], T]) -> T:
    """Return the result of `call`; it is called twice if a kept connection turns out to be lost.

    Raises:
        SinkError: the database could not be reached.
    """
    try:
        return call()
    except StoreUnavailable:
        pass
    try:
        return call()
    except StoreUnavailable as error:
        raise SinkError(str(error)) from error


def check_attempts(target: Target, staged: Mapping[int, int], found: Mapping[int, int]) -> None:
    """Check that all rows of each attempt are there when they are merged.

    Args:
        target: the table.
        staged: number of rows that each attempt has reported.
        found: number of rows of each attempt in the staging table.

    Raises:
        SinkError: an attempt has other rows, as after a crash of the server.
    """
    for attempt, rows in staged.items():
        if found.get(attempt, 0) != rows:
            raise SinkError(
                f"table {target}: {sum(staged.values())} rows were staged; of {rows} rows of one task "
                f"{found.get(attempt, 0)} are left, as after a crash of the server; nothing was written"
            )


def check_inserted(target: Target, staged: int, inserted: int) -> None:
    """Hold the rows of a batch that the database has inserted against those that were staged.

    Raises:
        Refused: it has inserted fewer, and that is not meant.
    """
    if inserted < staged and not target.fewer_rows:
        raise fewer_rows(target, staged, inserted)


def copied(frame: DataFrame, copy: Callable[[Iterator[Any]], Iterator[Any]], result: str) -> dict[int, int]:
    """Let the executors copy a frame's rows; return the number of rows of each attempt.

    Args:
        frame: the rows.
        copy: the work of a task on its rows, given as Arrow batches; it returns its attempt and its number of rows.
        result: the schema of this result.

    Raises:
        SinkError, SinkMismatch, RowMismatch, Refused, SettingsError: raised on an executor.
        SinkError: two tasks have made the same number; another try makes others.
    """
    try:
        done = map_in_arrow(frame, copy, result).collect()
    except Exception as error:
        ours = our_error(error)
        if ours is None:
            raise
        raise ours from error
    attempts = dict(map(tuple, done))
    if len(attempts) < len(done):
        raise SinkError("two tasks have the same attempt number; nothing was written")
    return attempts
