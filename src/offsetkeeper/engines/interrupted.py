"""Finds out whether an attempt at a batch was only interrupted: then it may cost no attempt.

Spark runs a lost task again, so most outputs do not fail if an executor is lost. But Spark does not run a lost task
of a barrier stage again: the job fails. `Topic` writes by such a stage. An older run can interrupt a try too: it
wakes up, and takes the place of this run in an output.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from offsetkeeper.errors import MarkMoved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BARRIER = "Could not recover from a failed barrier ResultStage"
_RAISED = "Traceback (most recent call last):"  # by Python code in the task, not by its death
_SETTING, _AS_SPARK_COMES = "spark.task.maxFailures", 4


def interrupted(error: Exception) -> bool:
    """Whether Spark has lost a task that it does not run again, or another run has moved the mark or taken its place.

    A mark that forbids the batch is a `MarkError`, and no interruption.
    """
    if isinstance(error, MarkMoved) or isinstance(error.__cause__, MarkMoved):
        return True
    return _BARRIER in str(error) and _RAISED not in str(error)


def tries_of_a_task(frame: DataFrame | None) -> int:
    """Return how often Spark tries a task of another stage, before it takes the task for the cause.

    Args:
        frame: a frame of the session; None or without a setting, it is as Spark comes.
    """
    with suppress(Exception):  # Spark may have died, or hide its settings
        return int(str(frame.sparkSession.conf.get(_SETTING, None)))  # type: ignore[union-attr]  # None raises
    return _AS_SPARK_COMES
