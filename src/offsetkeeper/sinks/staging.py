"""Code shared by the staging of all databases: names, the job that does it, and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offsetkeeper.core.executors import our_error
from offsetkeeper.core.spark_session import collected, map_in_arrow
from offsetkeeper.errors import SinkError, StoreUnavailable
from offsetkeeper.sinks.table import Target, fewer_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


class Copied(NamedTuple):
    """Where the rows of a frame are, when all tasks have answered.

    Attributes:
        staged: number of rows of each attempt that has staged them.
        few: number of rows of each attempt whose rows came with its answer.
        answers: these rows, for each such attempt.
    """

    staged: Mapping[int, int]
    few: Mapping[int, int]
    answers: Sequence[Sequence[bytes]]

    @classmethod
    def of(cls, done: Iterable[tuple[int, int, Sequence[bytes]]]) -> Copied:
        """Return where they are by the answers of all tasks; see `few.RESULT`."""
        all_ = list(done)
        few = [each for each in all_ if each[2]]
        return cls(
            {attempt: rows for attempt, rows, parts in all_ if not parts},
            {attempt: rows for attempt, rows, _ in few},
            [list(map(bytes, parts)) for *_, parts in few],
        )

    @property
    def attempts(self) -> dict[int, int]:
        """Number of rows of each attempt."""
        return {**self.staged, **self.few}


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


def copied(frame: DataFrame, copy: Callable[[Iterator[Any]], Iterator[Any]], result: str) -> list[tuple[Any, ...]]:
    """Let the executors copy a frame's rows; return what each attempt answers, its number first.

    Args:
        frame: the rows.
        copy: the work of a task on its rows, given as Arrow batches; it returns its attempt's number and more.
        result: the schema of this result.

    Raises:
        SinkError, SinkMismatch, RowMismatch, Refused, SettingsError: raised on an executor.
        SinkError: two tasks have made the same number; another try makes others.
    """
    try:
        done = collected(map_in_arrow(frame, copy, result))
    except Exception as error:
        ours = our_error(error)
        if ours is None:
            raise
        raise ours from error
    answers = list(map(tuple, done))
    if len({attempt for attempt, *_ in answers}) < len(answers):
        raise SinkError("two tasks have the same attempt number; nothing was written")
    return answers
