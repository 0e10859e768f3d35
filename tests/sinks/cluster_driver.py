"""A pipeline into four outputs at once, on a cluster whose executors get lost: `python cluster_driver.py SETTINGS`.

Its user's function runs in Python on executors. There each task says who runs it, in a file that the test follows; and
the first attempt of one task in each batch waits until Spark has begun a copy of it, or the time for that is over. The
time is short once a task has run twice at once.
That task also holds its executor at the start of a run until another executor has begun a task.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import DeltaTable, Files, Outputs, Table, Topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch

_COLUMNS = "topic string, partition int, offset bigint, value string"
_COPY_S, _LATER_COPY_S = 60.0, 2.0
_COME_S = 120.0


def pass_on(folder: str, batch: int, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say who runs this task, wait for its copy where it is the one that is slow, and give the records on."""
    from pyspark import TaskContext  # noqa: PLC0415 - runs on executors

    context: Any = TaskContext.get()
    attempt, number = context.attemptNumber(), context.partitionId()
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text("ascii").rpartition(")")[2].split()[1])
    line = json.dumps({"batch": batch, "task": number, "worker": os.getpid(), "executor": executor})
    with Path(folder, "tasks").open("a", encoding="ascii") as tasks:
        tasks.write(f"{line}\n")
    if number == 0:
        wait_for_a_copy(Path(folder), Path(folder, f"copy-{batch}"), attempt)
        wait_for_another(Path(folder), executor)
    yield from records


def wait_for_a_copy(folder: Path, copy: Path, attempt: int) -> None:
    """Hold the first attempt until a later one says that it is there: Spark copies only what is slow."""
    if attempt:
        copy.touch()
        return
    twice = folder / "twice"
    until = time.monotonic() + (_LATER_COPY_S if twice.exists() else _COPY_S)
    while not copy.exists() and time.monotonic() < until:
        time.sleep(0.02)
    if copy.exists():
        twice.touch()


def wait_for_another(folder: Path, executor: int) -> None:
    """Hold this executor until another one has said something: Spark asks for it only while tasks wait."""
    came, until = folder / "came", time.monotonic() + _COME_S
    while not came.exists() and time.monotonic() < until:
        lines = (folder / "tasks").read_text("ascii").splitlines()
        if any(json.loads(line)["executor"] != executor for line in lines):
            came.touch()
        time.sleep(0.02)


def process(folder: str, frame: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Return what goes into each output."""
    rows = frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    rows = rows.mapInArrow(partial(pass_on, folder, batch.sequence), _COLUMNS)
    place = "concat(topic, ' ', partition, ' ', offset, ' ', value) as value"
    return {"table": rows, "lake": rows, "files": rows, "topic": rows.selectExpr(place)}


def main() -> None:
    """Run as the settings say, and say how many batches were committed."""
    given = json.loads(sys.argv[1])
    folder = given["folder"]
    spark = SparkSession.builder.config(map=given["spark"]).getOrCreate()
    pipeline = Pipeline(**given["pipeline"])
    outputs = Outputs(
        table=Table(given["table"], "orders"),
        lake=DeltaTable(f"{folder}/lake"),
        files=Files(f"{folder}/files", shared=True),
        topic=Topic(given["pipeline"]["brokers"], given["topic"]),
    )
    work = partial(process, folder)
    if given["engine"] == "run":
        summary = pipeline.run(spark, work, sink=outputs, guarantee="exactly_once", until="caught_up")
        print(summary.batches, flush=True)  # noqa: T201 - for the test
    else:
        trigger = {"availableNow": True}
        query = pipeline.start(
            spark, work, sink=outputs, guarantee="exactly_once", checkpoint=f"{folder}/checkpoint", trigger=trigger
        )
        query.awaitTermination()
        print(query.lastProgress["batchId"], flush=True)  # noqa: T201 - as above
    spark.stop()


if __name__ == "__main__":
    main()
