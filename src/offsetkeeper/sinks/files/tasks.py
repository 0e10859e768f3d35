"""Which tasks of a write had rows, as Spark tells it: each of them has written at least one file.

A task on another machine may write on a disk of its own. Its commit succeeds, and nothing of it is in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.observation import Observation

from offsetkeeper.core import environment
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD_S = 60.0
_TOLD = "tasks"
_PLACE_BITS = 33  # of the number that Spark gives each row: its place in its task; the rest is the task's number
_FILE = re.compile(r"part-([0-9]+)-")


def watched(frame: DataFrame) -> tuple[DataFrame, Callable[[], frozenset[int]]]:
    """Return the frame, and a function that returns the numbers of the tasks that had rows, once it is written.

    The function raises `SinkError` if Spark does not tell them.
    """
    observation = _observation(frame)
    name = f"task-{environment.token()}"  # of no column of the frame
    is_first = f.monotonically_increasing_id().bitwiseAND((1 << _PLACE_BITS) - 1) == 0
    # As a text: Spark 3.5 gives Python no list. As a column: an observation takes no number of a row.
    numbered = frame.withColumn(name, f.when(is_first, f.spark_partition_id().cast("string")))
    told = f.concat_ws(" ", f.collect_set(f.col(f"`{name}`"))).alias(_TOLD)
    return numbered.observe(observation, told).drop(name), lambda: _told(observation)


def unseen(tasks: frozenset[int], files: Iterable[str]) -> list[int]:
    """Return the tasks that have none of these files, by their names."""
    return sorted(tasks - {int(match[1]) for name in files if (match := _FILE.match(name))})


def _observation(frame: DataFrame) -> Any:
    if is_connect(frame.sparkSession):
        from pyspark.sql.connect.observation import Observation as Connects  # noqa: PLC0415 - loaded with Spark Connect

        return Connects()
    return Observation()


def _told(observation: Any) -> frozenset[int]:
    """Return what Spark tells. An event of Spark that it dropped would be waited for without end."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(observation.get[_TOLD])
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            found.set_exception(error)

    Thread(target=run, name="offsetkeeper-observed", daemon=True).start()
    try:
        return frozenset(map(int, found.result(_TOLD_S).split()))
    except (TimeoutError, KeyError) as error:
        raise SinkError(
            f"Spark has not told within {_TOLD_S:g} s which tasks had rows ({error!r}); nothing was written. A "
            "listener of yours may be slow, or spark.scheduler.listenerbus.eventqueue.capacity too small"
        ) from error
