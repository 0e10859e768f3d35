"""What Spark has shuffled is lost between two jobs, as if an executor had died."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def lose_shuffled(frame: DataFrame) -> None:
    """Fetch a frame's first partition, lose what was shuffled for it, and fetch the second."""
    context: Any = frame.sparkSession.sparkContext
    rdd = frame.rdd
    context.runJob(rdd, list, [0])
    tracker = context._jsc.sc().env().mapOutputTracker()
    newest = max(int(each) for each in tracker.shuffleStatuses().keys().mkString(" ").split())
    tracker.unregisterAllMapAndMergeOutput(newest)
    context.runJob(rdd, list, [1])
