"""Batches of which Spark computes a stage again, on a cluster of two: `python recomputed_driver.py SETTINGS`.

The user's function gives each record a random number, and shuffles by it. So a record may come into another task when
it is computed again. The second task of the writing stage waits, and says who runs it. When the first one has written,
that executor is killed, which has half of what was shuffled.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LIMIT_S = 240
_NAMES = {"topic": "string", "partition": "int", "offset": "bigint"}
_PLACE = ", ".join(f"{name} {kind}" for name, kind in _NAMES.items())
SHARES = 4


def until(holds: Callable[[], Any], what: str) -> None:
    """Wait until it holds.

    Raises:
        TimeoutError: it did not.
    """
    end = time.monotonic() + _LIMIT_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.01)


def executor() -> int:
    """Return the process that runs the executor of this task: the parent of the parent of Python's worker."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def salted(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add a random number to each record, once both executors have begun to read."""
    (folder / f"reads-{executor()}").touch()
    until(lambda: (folder / "go").exists() or len([*folder.glob("reads-*")]) == 2, "both executors read")
    for batch in batches:
        salt = pa.array([secrets.randbelow(1000) for _ in range(batch.num_rows)], pa.int32())
        yield pa.RecordBatch.from_arrays([*batch.columns, salt], names=[*_NAMES, "salt"])


def held(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows on; the second task waits with its first ones, until an executor is killed."""
    from pyspark import TaskContext  # noqa: PLC0415 - runs on executors

    context: Any = TaskContext.get()
    number = context.partitionId()
    for batch in batches:
        if number == 1 and not (folder / "go").exists():
            (folder / "part").write_text(str(executor()), "ascii")
            (folder / "part").rename(folder / "waits")
            until((folder / "go").exists, "it may go on")
        yield batch.select([*_NAMES])
    (folder / f"wrote-{number}").touch()


def shuffled(folder: Path, records: DataFrame, _: object) -> DataFrame:
    """Return the places of the records, shuffled by a random number."""
    rows = records.select(*_NAMES).mapInArrow(partial(salted, folder), f"{_PLACE}, salt int")
    return rows.repartition(SHARES, "salt").mapInArrow(partial(held, folder), _PLACE)


def kill(folder: Path) -> None:
    """Kill the executor of the second task of the writing stage, when the first one has written."""
    until((folder / "waits").exists, "the second task waits")
    until((folder / "wrote-0").exists, "the first task has written")
    os.kill(int((folder / "waits").read_text("ascii")), signal.SIGKILL)
    (folder / "go").touch()


def main() -> None:
    """Do as the settings say."""
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.config(map=given["spark"]).getOrCreate()
    for name, store in given["stores"].items():
        folder = Path(given["folder"], name)
        folder.mkdir()
        until(lambda: len(spark.sparkContext.statusTracker().getExecutorInfos()) == 3, "both executors are there")
        killer = threading.Thread(target=kill, args=(folder,))
        killer.start()
        pipeline = Pipeline(group=name, store=store, attempts=1, **given["pipeline"])
        asked: dict[str, Any] = {"sink": Table(given["database"], name), "guarantee": "exactly_once"}
        if name == "query":
            trigger = {"availableNow": True}
            place = f"{folder}/checkpoint"
            pipeline.start(
                spark, partial(shuffled, folder), checkpoint=place, trigger=trigger, **asked
            ).awaitTermination()
        else:
            pipeline.run(spark, partial(shuffled, folder), until="caught_up", **asked)
        killer.join()
    spark.stop()


if __name__ == "__main__":
    main()
