"""A pipeline with a Spark session of its own, for tests that need a process of its own: `python child.py SETTINGS`.

It prints `batch` when it has one in hand, and goes on with it at a line from stdin.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch


def say(*words: object) -> None:
    """Print for the test."""
    print(*words, flush=True)  # noqa: T201 - as above


def wait(frame: DataFrame, _: Batch) -> DataFrame:
    """Wait for a line, and return the table's columns."""
    say("batch")
    sys.stdin.readline()
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


def has_offsetkeeper(_: int) -> bool:
    """Whether the Python this runs in can import offsetkeeper."""
    import importlib.util  # noqa: PLC0415 - runs on executors

    return importlib.util.find_spec("offsetkeeper") is not None


def main() -> None:
    """Run as the settings say."""
    settings = json.loads(sys.argv[1])
    session = SparkSession.builder.config(map=settings["spark"]).getOrCreate()
    if settings["ask_executors"]:
        executors = session.sparkContext.parallelize(range(8), 8).map(has_offsetkeeper).collect()
        say("executors", "with offsetkeeper" if any(executors) else "without offsetkeeper")
    summary = Pipeline(**settings["pipeline"]).run(
        session,
        wait,
        sink=Table(settings["pipeline"]["store"], "orders"),
        guarantee="exactly_once",
        until=settings["until"],
    )
    say("ended", summary.ended)
    session.stop()


if __name__ == "__main__":
    main()
