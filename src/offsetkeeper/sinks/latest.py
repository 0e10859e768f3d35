"""The last row of each key in a frame, for outputs that cannot find it by themselves."""

from __future__ import annotations

from collections.abc import Container
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from offsetkeeper.sinks.limits import RANK
from offsetkeeper.sinks.table import FRACTIONS, ORDER, Target, ordered

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


def last_of_each_key(frame: DataFrame, target: Target) -> DataFrame:
    """Return the last row of each key by topic, partition and offset, and rows that tie, with `RANK`.

    Without these columns all rows are returned. A task calls `check_ranks`, which refuses rows that tie.
    """
    in_order = ordered(frame.schema.fields, target)
    missing = reduce(or_, [col(name).isNull() for name in ORDER]) if in_order else f.lit(0)
    order = [missing.desc(), *(col(name).desc() for name in ORDER)] if in_order else [missing]
    window = Window.partitionBy(*_parts(frame, target)).orderBy(*order)
    number = f.row_number().over(window)
    if not in_order:
        return frame.withColumn(RANK, number)
    ranked = frame.withColumns({RANK: f.when(missing, 0).otherwise(number), _PLACE: f.rank().over(window)})
    tied = f.col(_PLACE) != f.col(RANK)  # also of rows that are not the last
    return ranked.where((f.col(_PLACE) == 1) | tied).drop(_PLACE)


def ranked(frame: DataFrame, names: Container[str], target: Target) -> list[SparkColumn]:
    """Return what a task needs beside the table's columns: `RANK`, and of which record a row is.

    Args:
        frame: as `last_of_each_key` returns it, or the frame to append.
        names: the frame's columns that the table gets.
        target: the table.
    """
    if target.mode == "append":
        return []
    places = ORDER if ordered(frame.schema.fields, target) else ()
    return [*(col(name) for name in places if name not in names), col(RANK)]


_PLACE = "offsetkeeper_place"


def _parts(frame: DataFrame, target: Target) -> list[SparkColumn]:
    """Return what is equal in rows of the same key: of -0.0 and 0.0 the texts, as the numbers are equal for Spark."""
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    return [col(name).cast("string") if kinds[name] in FRACTIONS else col(name) for name in target.key]


def col(name: str) -> SparkColumn:
    """Return the column with exactly this name, whatever characters it has."""
    return f.col("`" + name.replace("`", "``") + "`")
