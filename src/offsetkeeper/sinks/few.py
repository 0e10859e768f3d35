"""Few rows of a task go to the driver with its answer, and more are staged: the one place that decides.

Executors get the code of this module together with the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "attempt long, rows long, few array<binary>"
"""What a task answers: its attempt's number, its number of rows, and the rows if they are few, else nothing."""


class Few(NamedTuple):
    """The most that is few: rows of a task, and their bytes in memory."""

    rows: int
    bytes: int


LIMIT = Few(1_000, 64 * 2**10)
"""Measured (docs/figures.md). Answers of all tasks of a batch are in the driver's memory at once."""

NONE = Few(0, 0)
"""Each row is staged."""


def take(batches: Iterable[pa.RecordBatch], limit: Few) -> tuple[list[pa.RecordBatch], bool]:
    """Return the first batches of a task, and whether they are all of it, and few."""
    taken, rows, size = [], 0, 0
    for batch in batches:
        taken.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > limit.rows or size > limit.bytes:
            return taken, False
    return taken, True


def answer(attempt: int, rows: int, few: Sequence[bytes] = ()) -> pa.RecordBatch:
    """Return the answer of a task; see `RESULT`."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    kinds = {"attempt": pa.int64(), "rows": pa.int64(), "few": pa.list_(pa.binary())}
    return pa.record_batch([[attempt], [rows], [list(few)]], pa.schema(kinds))
