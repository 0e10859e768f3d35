"""The part of a frame's rows that comes from records not processed before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from offsetkeeper.core.offsets import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_from(frame: DataFrame, offsets: Mapping[TopicPartition, int]) -> DataFrame:
    """Return the rows at or after these offsets, and all rows of other partitions.

    Args:
        frame: has the columns topic, partition and offset.
        offsets: at least one.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - `import offsetkeeper` must not load it

    pairs = [f.lit(value) for tp, offset in offsets.items() for value in (str(tp), offset)]
    keys, values = f.array(*pairs[::2]), f.array(*(value.cast("long") for value in pairs[1::2]))
    done = f.map_from_arrays(keys, values)[f.concat_ws(" ", "topic", f.col("partition").cast("string"))]
    return frame.where(f.coalesce(done, f.lit(0)) <= f.col("offset"))
