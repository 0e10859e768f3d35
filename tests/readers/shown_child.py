"""Reads a topic of a guarded broker in several ways, by Spark Connect or classic Spark.

In a process of its own, as not both kinds of sessions may be in one. It gets its settings as a line, logs everything at
DEBUG, prints as JSON what came of each way, and waits until its input ends: meanwhile the test looks at Spark's pages.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import Table


def count(frame: DataFrame, _: Batch) -> None:
    """Read all records."""
    frame.count()


def numbers(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the rows of a table."""
    return frame.select(frame.offset.alias("n"))


def _work(table: str) -> dict[str, Any]:
    return {"process": numbers, "sink": Table(table, "shown")} if table else {"process": count}


def run(spark: SparkSession, pipeline: Pipeline, _: str, table: str) -> int:
    """Return how many records a run reads."""
    return pipeline.run(spark, until="caught_up", **_work(table)).offsets


def start(spark: SparkSession, pipeline: Pipeline, checkpoint: str, table: str) -> int:
    """Return how many records a query reads."""
    told: list[int] = []
    trigger = {"availableNow": True}
    with pipeline.start(
        spark,
        checkpoint=checkpoint,
        trigger=trigger,
        on_progress=lambda each: told.append(each.records),
        **_work(table),
    ) as query:
        query.awaitTermination()
    return sum(told)


def main() -> None:
    """Read in each way."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    logging.basicConfig(level=logging.DEBUG)
    builder: Any = SparkSession.builder
    builder = builder.remote(settings["connect"]) if settings["connect"] else builder.master("local[2]")
    spark = builder.config(map=settings["spark"]).getOrCreate()
    found: dict[str, object] = {}
    for way, given in settings["ways"].items():
        for what in (run, start):
            name = f"{what.__name__} {way}"
            usual = {"brokers": settings["brokers"], "store": f"sqlite:///{settings['folder']}/offsets.db"}
            own = {**usual, **given}
            table = own.pop("table", "")
            pipeline = Pipeline(group=name, topics=["orders"], start="earliest", **own)
            try:
                found[name] = what(spark, pipeline, f"{settings['folder']}/{name}", table)
            except OffsetkeeperError as error:
                found[name] = str(error)
    print(json.dumps(found), flush=True)  # noqa: T201 - for the test
    sys.stdin.read()


if __name__ == "__main__":
    main()
