"""Reads a topic of a guarded broker in several ways, by Spark Connect or classic Spark.

In a process of its own, as not both kinds of sessions may be in one. It gets its settings as a line, logs everything at
DEBUG, prints as JSON what came of each way, and waits until its input ends: meanwhile the test looks at Spark's pages.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import Outputs, Table, Topic


def count(frame: DataFrame, _: Batch) -> None:
    """Read all records."""
    frame.count()


def number(frame: DataFrame, _: Batch) -> dict[str, DataFrame]:
    """Return for each table the number of each record, and for the topic the records."""
    rows = frame.selectExpr("offset as id")
    return {"one": rows, "other": rows, "copy": frame.selectExpr("key", "value")}


def outputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that write into two databases and a topic, exactly once; none without them."""
    if not given:
        return {"process": count}
    sink = Outputs(
        one=Table(given["one"], "shown"),
        other=Table(given["other"], "shown"),
        copy=Topic(*given["topic"], kafka=given["kafka"]),
    )
    return {"process": number, "sink": sink, "guarantee": "exactly_once"}


def run(spark: SparkSession, pipeline: Pipeline, _: str, words: dict[str, Any]) -> int:
    """Return how many records a run reads."""
    return pipeline.run(spark, **words, until="caught_up").offsets


def start(spark: SparkSession, pipeline: Pipeline, checkpoint: str, words: dict[str, Any]) -> int:
    """Return how many records a query reads."""
    told: list[int] = []
    trigger = {"availableNow": True}
    with pipeline.start(
        spark, **words, checkpoint=checkpoint, trigger=trigger, on_progress=lambda each: told.append(each.records)
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
            words = {"store": f"sqlite:///{settings['folder']}/offsets.db", "brokers": settings["brokers"], **given}
            how = outputs(words.pop("outputs", {}))
            pipeline = Pipeline(group=name, topics=["orders"], start="earliest", **words)
            try:
                found[name] = what(spark, pipeline, f"{settings['folder']}/{name}", how)
            except OffsetkeeperError as error:
                found[name] = str(error)
    print(json.dumps(found), flush=True)  # noqa: T201 - for the test
    sys.stdin.read()


if __name__ == "__main__":
    main()
