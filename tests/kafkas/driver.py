"""A run into a table or a topic: `driver.py SETTINGS`, as JSON. With `dies_in` it kills itself in this batch."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import Sink, Table, Topic


def sink_of(given: dict[str, Any]) -> Sink:
    """Return the output."""
    return Topic(given["writes_to"], given["topic"]) if "topic" in given else Table(given["table"], "orders")


def main(given: dict[str, Any]) -> None:
    """Run until all is read."""
    builder: SparkSession.Builder = SparkSession.builder
    builder = builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.jars", given["jars"])
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def rows(frame: DataFrame, batch: Batch) -> DataFrame:
        if batch.sequence == given["dies_in"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return frame.selectExpr("cast(value as string) as value")

    pipeline = Pipeline(
        group=given["group"],
        store=given["store"],
        brokers=given["brokers"],
        topics=["orders-in"],
        reader=given["reader"],
        max_records=40,
    )
    pipeline.run(spark, rows, sink=sink_of(given), guarantee="exactly_once", until="caught_up")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
