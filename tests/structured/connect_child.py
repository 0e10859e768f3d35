"""Queries on Spark Connect, in a process of its own since no classic session may be beside theirs: `python … SETTINGS`.

It obeys a line of stdin at a time, and answers each with a line: of JSON, or `ended ERROR`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy

import offsetkeeper
from offsetkeeper import OnMismatch, Pipeline, TopicPartition
from offsetkeeper.core.retry import retry
from offsetkeeper.sinks import Files, Idempotent, Outputs, Table, Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from offsetkeeper import Batch
    from offsetkeeper.engines.query import Query


RELEASE = offsetkeeper.__version__
ANSWERS = os.dup(1)
os.dup2(2, 1)  # whatever else is printed


def say(*words: object) -> None:
    """Answer the test."""
    os.write(ANSWERS, (" ".join(map(str, words)).replace("\n", " ")[:3000] + "\n").encode())


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


def parse_values(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the values."""
    return frame.select("value")


def fail(_: DataFrame, __: Batch) -> None:
    """Fail."""
    raise RuntimeError("the output is away")


def noting(path: str) -> Callable[[DataFrame, Batch], None]:
    """Return a function that notes what it gets in a file: it runs in another process."""

    def note(frame: DataFrame, batch: Batch) -> None:
        values = sorted(row.value for row in frame.selectExpr("cast(value as string) as value").collect())
        line = json.dumps({"values": values, "lines": batch.lines(), "retry": batch.retry})
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return note


def distinct(records: DataFrame) -> DataFrame:
    """Drop records whose value has come before."""
    return records.dropDuplicates(["value"])


def once(records: DataFrame) -> DataFrame:
    """Drop records that have come before, as long as a watermark lets them come late."""
    return records.withWatermark("timestamp", "1 minute").dropDuplicates(["value", "timestamp"])


def how(order: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what an order says about the query."""
    store = settings["pipeline"]["store"]
    known: dict[str, dict[str, Any]] = {
        "table": {"process": parse, "sink": Table(store, "orders"), "guarantee": "exactly_once"},
        "mysql": {"process": parse, "sink": Table(settings["shop"], "orders"), "guarantee": "exactly_once"},
        "mysql-store": {
            "pipeline": {"store": settings["shop"], "group": "all"},  # the other group's mark is beside these rows
            "process": parse,
            "sink": Table(settings["shop"], "all_orders"),
            "guarantee": "exactly_once",
        },
        "files": {
            "process": parse,
            "sink": Files(f"{settings['notes']}-files", shared=True),
            "guarantee": "exactly_once",
        },
        "topic": {
            "process": parse_values,
            "sink": Topic(settings["pipeline"]["brokers"], settings["out"]),
            "guarantee": "exactly_once",
        },
        "hdfs": {"sink": Files("hdfs://namenode:8020/orders"), "guarantee": "exactly_once"},
        "note": {"process": noting(settings["notes"])},
        "other-release": {"process": noting(settings["notes"])},
        "given": {
            "process": noting(settings["notes"]),
            "offsets": {TopicPartition(settings["pipeline"]["topics"][0], 0): 1},
        },
        "follow": {"process": noting(settings["notes"]), "trigger": {"processingTime": "100 milliseconds"}},
        "await": {"process": noting(settings["notes"]), "trigger": {"processingTime": "100 milliseconds"}},
        "fail": {"process": fail},
        "several": {"sink": Outputs(first=noting(settings["notes"]), second=Idempotent(noting(settings["notes"])))},
        "distinct": {"process": noting(settings["notes"]), "query": distinct},
        "once": {
            "pipeline": {"group": "once"},
            "process": noting(settings["notes"]),
            "query": once,
            "on_mismatch": OnMismatch(state="rebuild", unchanged=True),
        },
    }
    return {"trigger": {"availableNow": True}} | known[order]


def came_late(error: Exception) -> bool:
    """Whether the server's Python was not there within Spark's ten seconds."""
    return "worker failed to connect back" in str(error)


def pipeline(settings: dict[str, Any], given: dict[str, Any]) -> Pipeline:
    """Return the pipeline, with what the order changes of it."""
    return Pipeline(**{**settings["pipeline"], **given.pop("pipeline", {})})


def start(settings: dict[str, Any], session: SparkSession, **given: Any) -> Query:
    """Start a query, again if the server's Python came too late, as it may on a busy machine: it loads pandas first."""
    made = pipeline(settings, given)
    return retry(came_late, 120, lambda _: made.start(session, **given))


def run(settings: dict[str, Any], session: SparkSession, given: dict[str, Any]) -> tuple[str, str, int]:
    """Run the pipeline without a query until it has caught up."""
    del given["trigger"]
    made = pipeline(settings, given)
    done = retry(came_late, 120, lambda _: made.run(session, **given, until="caught_up"))
    return "ended", done.ended, done.offsets


def main() -> None:
    """Obey."""
    settings = json.loads(sys.argv[1])
    session = SparkSession.builder.remote(settings["spark"]).getOrCreate()
    say("ready")
    told: list[int] = []
    for line in sys.stdin:
        order, checkpoint = line.split()
        offsetkeeper.__version__ = "0.0.1" if order == "other-release" else RELEASE
        given = how(order, settings)
        told.clear()
        try:
            if checkpoint == "none":
                say(*run(settings, session, given))
                continue
            query = start(
                settings,
                session,
                checkpoint=checkpoint,
                on_progress=lambda progress: told.append(progress.records),
                **given,
            )
            if order == "follow":
                say("started")
                continue
            if order == "await":
                say("started")
                session.client.set_retry_policies([DefaultPolicy(max_retries=2)])  # its own take ten minutes
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - told to the test
            say("ended", type(error).__name__, error)
        else:
            say("ended well after", sum(told))
    session.stop()


if __name__ == "__main__":
    main()
