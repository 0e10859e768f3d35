"""The end of a task's input. A task that commits by itself has to know that it has all rows.

PySpark takes a socket that is closed for the end of the rows, and so does a task in Python. Spark closes it if the
job is cancelled, if another copy of the task has won, or if a part of the shuffle is gone. So each task's rows are
followed by a row of ours, the end. It is the last one in the order by which Spark sorts the rows, so a task that has
it has all rows before it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from offsetkeeper.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

ORDER = "row_order"
END = "is_end"
_LAST = 2**63 - 1
_NOTHING: Mapping[str, str] = {}


def with_ends(frame: DataFrame, count: int = 1, given: Mapping[str, str] = _NOTHING) -> DataFrame:
    """Return the rows with their order, and ends after them.

    Args:
        frame: the rows.
        count: number of ends.
        given: expressions for columns of the ends, in which `id` is the number of an end; the others are null.
    """
    from pyspark.sql.functions import monotonically_increasing_id  # noqa: PLC0415 - executors need no Spark SQL

    nothing = {field.name: f"cast(null as {field.dataType.simpleString()})" for field in frame.schema.fields}
    columns = {**nothing, **given, ORDER: f"{_LAST}L"}
    ends = frame.sparkSession.range(0, count, 1, 1)
    ends = ends.selectExpr(*(f"{value} as {name}" for name, value in columns.items()))
    return frame.withColumn(ORDER, monotonically_increasing_id()).union(ends)


def in_order(frame: DataFrame) -> DataFrame:
    """Return the frame, already partitioned, with the rows of each partition in order, and whether each is an end."""
    return frame.sortWithinPartitions(ORDER).selectExpr("*", f"{ORDER} = {_LAST} as {END}").drop(ORDER)


def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows without their end.

    Raises:
        SinkError: the rows have no end, so some are missing.
    """
    ended = False
    for batch in batches:
        ends = batch.column(END).true_count
        ended = ended or ends > 0
        yield batch.drop_columns([END]).slice(0, batch.num_rows - ends)
    if not ended:
        raise SinkError(
            "the task did not get all rows of the batch: Spark has ended it, or a part of its input is gone. Nothing "
            "was written; another try writes the batch"
        )
