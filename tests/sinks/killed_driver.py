"""A driver that writes batches into outputs and kills itself at a landing: `killed_driver.py SETTINGS`, as JSON.

Settings: `outputs`, a place by kind; `batches`, how many; `kill`, the output, batch and seconds after it began.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from offsetkeeper.core.model import Guarantee
from offsetkeeper.sinks import DeltaTable, Files, Lander, Sink, Table, Topic, few
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import SCHEMA, batch_of, records
from sinks.icebergs import Lake

GROUP = "billing"
SOURCED = "to_json(struct(*)) as value", "topic as source_topic", "partition as source_partition"


def sink_of(kind: str, place: str) -> Sink:
    """Return the sink of a kind: "files", "delta", "iceberg", "topic" or "table", with anything behind it."""
    if kind.startswith("topic"):
        brokers, name = place.split("/")
        return Topic(brokers, name, slots=2, timeout_s=60)
    if kind.startswith("table"):
        return Table(place, "records")
    if kind == "iceberg":
        return Lake.at(Path(place)).sink("records")
    return DeltaTable(place) if kind == "delta" else Files(place)


def lander_of(kind: str, place: str) -> Lander:
    """Return the lander of an output."""
    way = sink_of(kind, place).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    assert isinstance(way, Lander)
    return way


def write(spark: SparkSession, kind: str, lander: Lander, sequence: int) -> None:
    """Write the batch of a sequence, as a run does that finds it pending. Tables stage each second one."""
    usual = few.LIMIT
    batch = batch_of(sequence)
    frame = spark.createDataFrame(records(batch), SCHEMA).withColumnRenamed("batch", "id")
    if kind.startswith("topic"):
        frame = frame.selectExpr(*SOURCED)
    few.LIMIT = few.NONE if sequence % 2 else usual
    try:
        Once(lander, "").write(frame, batch)
    finally:
        few.LIMIT = usual


def dying(lander: Lander, sequence: int, seconds: float) -> Lander:
    """Return the lander; its process dies seconds after it began. after the landing of a batch began."""

    def land(*arguments: Any) -> None:
        if arguments[2].sequence == sequence:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        lander.land(*arguments)
        if arguments[2].sequence == sequence:
            threading.Event().wait()  # it is there, and the process dies before it can say so

    return replace(lander, land=land)


def main(settings: Mapping[str, Any]) -> None:
    """Write the batches that lack in each output."""
    builder: SparkSession.Builder = SparkSession.builder
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = builder.config("spark.ui.enabled", "false").master("local[2]").getOrCreate()
    for kind, place in settings["outputs"].items():
        lander = lander_of(kind, place)
        mark = Once(lander, "").mark(GROUP)
        if settings["kill"] and settings["kill"][0] == kind:
            lander = dying(lander, *settings["kill"][1:])
        for sequence in range(mark.sequence if mark else 1, settings["batches"] + 1):
            write(spark, kind, lander, sequence)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
