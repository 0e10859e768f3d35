"""A driver with a task that fails twice, and is tried again: `retrying_driver.py URL MARK ROWS`.

First the rows themselves fail half-way; then all are copied and committed, or ready to be given to the driver, and the
worker fails before Spark hears of it. A session of the tests' process retries nothing, so this is a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.sinks import Table
from offsetkeeper.sinks.postgresql import task

Batches = Iterator[Any]


def first_time(mark: str) -> bool:
    """Whether this is the first call for the mark, in any process."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def failing_rows(mark: str) -> Callable[[Batches], Batches]:
    """Return the rows as they are, but for the end of the first try."""

    def rows(batches: Batches) -> Batches:
        yield from batches
        if first_time(mark):
            raise RuntimeError("an attempt fails half-way")

    return rows


def failing_copy(mark: str) -> Callable[..., Batches]:
    """Return the task with a failure after its work."""
    copy = task.copy_rows

    def copy_and_fail(*arguments: Any) -> Batches:
        done = list(copy(*arguments))
        if first_time(mark):
            raise RuntimeError("an attempt fails after its commit")
        yield from done

    return copy_and_fail


def main(url: str, mark: str, rows: str) -> None:
    """Write so many numbers into the table orders."""
    builder: SparkSession.Builder = SparkSession.builder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = builder.config("spark.ui.enabled", "false").master("local[2,4]").getOrCreate()
    frame = spark.range(int(rows), numPartitions=2).toDF("id").mapInArrow(failing_rows(f"{mark}-before"), "id long")
    task.copy_rows = failing_copy(f"{mark}-after")
    Table(url, "orders").rows.write(frame, Batch("shop", "token", 1, ()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
