"""A driver whose JVM is killed while it serves `collect()`: `python -m engines.cut_collect SETTINGS` in tests.

The JVM dies when the first row is read. What it has sent before is still read: the rows are so large that this is a
part of them. The last line is the number of rows, or the error.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from engines.orphan import COLUMNS, say, tell
from offsetkeeper import Pipeline
from offsetkeeper.engines.stop import telling_spark_gone
from offsetkeeper.sinks import Transaction
from offsetkeeper.sinks.staging import copied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch

ROWS = 40
_SIZE = 1 << 20


@contextmanager
def killed_at_the_first_row() -> Iterator[None]:
    """Kill the JVM when the first row of a `collect` in the block has been read."""
    gateway: Any = SparkContext._gateway
    read: Any = CPickleSerializer.loads

    def loads(self: Any, *words: Any) -> Any:
        row = read(self, *words)
        gateway.proc.kill()
        gateway.proc.wait()
        return row

    CPickleSerializer.loads = loads  # type: ignore[method-assign]
    yield
    CPickleSerializer.loads = read  # type: ignore[method-assign]


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows for the table `orders`, as far as the JVM lives."""
    with killed_at_the_first_row():
        found = frame.selectExpr(*COLUMNS, f"repeat('x', {_SIZE}) as ballast").collect()
    assert 0 < len(found) < ROWS, "the answer is not cut"
    return [tuple(row)[:-1] for row in found]


def insert(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    """Write rows into the table `orders`."""
    connection.executemany("insert into orders values (?, ?, ?)", rows)


def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Answer for each row of a task, as if it was an attempt."""
    for batch in batches:
        numbers = batch.column(0)
        yield pa.record_batch({"attempt": numbers, "answer": pa.array([b"x" * _SIZE] * len(numbers), pa.binary())})


def main() -> None:
    """Do as the settings say."""
    settings = json.loads(sys.argv[1])
    store = settings["pipeline"]["store"]
    session = SparkSession.builder.master("local[1]").config(map=settings["spark"]).getOrCreate()
    session.range(1).collect()

    def write(frame: DataFrame, _: Batch) -> None:
        with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as connection, connection:
            insert(connection, rows_of(frame))

    def stage() -> None:
        with killed_at_the_first_row(), telling_spark_gone():
            say(f"{len(copied(session.range(ROWS), answer, 'attempt bigint, answer binary'))} rows")

    pipeline = Pipeline(**settings["pipeline"])
    sink = Transaction(lambda frame, _, connection: insert(connection, rows_of(frame)))
    exact: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once"}
    ways = {
        "function": lambda: pipeline.run(session, write, until="caught_up"),
        "transaction": lambda: pipeline.run(session, until="caught_up", **exact),
        "copied": stage,
    }
    tell(ways[settings["how"]])


if __name__ == "__main__":
    main()
