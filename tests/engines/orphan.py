"""A driver that loses its Spark: `python orphan.py SETTINGS`.

It prints the process id of its JVM when it has the second batch in hand, and goes on with it at a line from stdin. Each
error that it then gets is a line of JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch

COLUMNS = ("partition", "offset", "cast(value as string) as value")


def say(line: object) -> None:
    """Print for the test."""
    print(line, flush=True)  # noqa: T201 - as above


def lose_spark(batch: Batch) -> None:
    """Wait in the second batch until the JVM has ended."""
    if batch.sequence > 1:
        gateway: Any = SparkContext._gateway
        jvm = gateway.proc
        say(jvm.pid)
        sys.stdin.readline()
        jvm.wait()


def parse(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return the table's columns."""
    lose_spark(batch)
    return frame.selectExpr(*COLUMNS)


def writing(store: str) -> Callable[[DataFrame, Batch], None]:
    """Return a function that writes the table by itself."""

    def write(frame: DataFrame, batch: Batch) -> None:
        lose_spark(batch)
        rows = [tuple(row) for row in frame.selectExpr(*COLUMNS).collect()]
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection, connection:
            connection.executemany("insert into orders values (?, ?, ?)", rows)

    return write


def tell(call: Callable[[], object]) -> None:
    """Print the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - told to the test
        notes = getattr(error, "__notes__", [])
        say(json.dumps({"error": type(error).__name__, "message": str(error), "notes": notes}))
    else:
        say("no error")


def main() -> None:
    """Do as the settings say."""
    settings = json.loads(sys.argv[1])
    store, checkpoint = settings["pipeline"]["store"], settings["checkpoint"]
    session = SparkSession.builder.master("local[1]").config(map=settings["spark"]).getOrCreate()
    pipeline = Pipeline(**settings["pipeline"])
    table: dict[str, Any] = {"process": parse, "sink": Table(store, "orders"), "guarantee": "exactly_once"}
    if settings["how"] == "run":
        tell(lambda: pipeline.run(session, until="caught_up", **table))
        tell(lambda: pipeline.start(session, checkpoint=checkpoint, on_progress=lambda _: None, **table))
        return
    query = pipeline.start(session, writing(store), checkpoint=checkpoint, on_progress=lambda _: None)
    tell(query.awaitTermination)
    tell(query.processAllAvailable)
    tell(query.stop)


if __name__ == "__main__":
    main()
