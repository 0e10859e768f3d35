"""The last row of each key in a frame, for outputs that cannot find it by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from offsetkeeper.sinks.table import ORDER, Target, ordered

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

RANK = "offsetkeeper_rank"
"""An extra last column if the order of rows is unknown: above 1 in the second row of a key."""


def last_of_each_key(frame: DataFrame, target: Target) -> DataFrame:
    """Return the last row of each key by topic, partition and offset; without these columns all rows, with `RANK`."""
    in_order = ordered(frame.schema.fields, target)
    order = [col(name).desc() for name in ORDER] if in_order else [f.lit(0)]
    rank = f.row_number().over(Window.partitionBy(*map(col, target.key)).orderBy(*order))
    ranked = frame.withColumn(RANK, rank)
    return ranked.where(f.col(RANK) == 1).drop(RANK) if in_order else ranked


def col(name: str) -> SparkColumn:
    """Return the column with exactly this name, whatever characters it has."""
    return f.col("`" + name.replace("`", "``") + "`")
