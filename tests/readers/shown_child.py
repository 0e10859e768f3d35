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


def count(frame: DataFrame, _: Batch) -> None:
    """Read all records."""
    frame.count()


def run(spark: SparkSession, pipeline: Pipeline, _: str) -> int:
    """Return how many records a run reads."""
    return pipeline.run(spark, count, until="caught_up").offsets


def start(spark: SparkSession, pipeline: Pipeline, checkpoint: str) -> int:
    """Return how many records a query reads."""
    told: list[int] = []
    trigger = {"availableNow": True}
    with pipeline.start(
        spark, count, checkpoint=checkpoint, trigger=trigger, on_progress=lambda each: told.append(each.records)
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
            pipeline = Pipeline(
                group=name,
                topics=["orders"],
                brokers=settings["brokers"],
                store=f"sqlite:///{settings['folder']}/offsets.db",
                start="earliest",
                **given,
            )
            try:
                found[name] = what(spark, pipeline, f"{settings['folder']}/{name}")
            except OffsetkeeperError as error:
                found[name] = str(error)
    print(json.dumps(found), flush=True)  # noqa: T201 - for the test
    sys.stdin.read()


if __name__ == "__main__":
    main()
