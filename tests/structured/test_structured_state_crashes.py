"""Queries with state whose driver dies at each step, against a batch computation over all records."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from offsetkeeper import Batch, OffsetRange
from offsetkeeper.sinks import Table
from structured.dying import DyingStore
from structured.lab import StructuredLab
from structured.test_structured_crashes import COMMIT, TRANSACTION, run_dying
from structured.test_structured_state import FOR_EVER, SECONDS, expected, produce, same, windows

NewTopic = Callable[..., str]
Query = Callable[[DataFrame], DataFrame]
ITEMS = {"1": "late", "5": "five", "6": "six", "70": "seventy", "250": "much", "251": "more"}
TWICE = [*SECONDS, 1, 70, 900, 20]


def counted(records: DataFrame) -> DataFrame:
    """Return a text for each minute that is over."""
    return windows(records).selectExpr("concat_ws(' ', at div 60000, count) as value")


def distinct(records: DataFrame) -> DataFrame:
    """Return each value once."""
    return records.dropDuplicates(["value"]).selectExpr("cast(value as string) as value")


def enriched(records: DataFrame) -> DataFrame:
    """Return the names, in a table, of the values that it has."""
    items = records.sparkSession.createDataFrame(list(ITEMS.items()), "key string, name string")
    return records.join(items, f.col("value").cast("string") == items["key"]).selectExpr("name as value")


def batch_computation(lab: StructuredLab, name: str, query: Query, records: int) -> list[str]:
    """Return what the query gives of all records at once."""
    if query is counted:  # which of them came too late is known only to who reads them in order
        return sorted(f"{minute} {count}" for minute, count in expected(SECONDS))
    frame = query(lab.pipeline(name, reader="connector").read(lab.spark, [OffsetRange(name, 0, 0, records)]))
    return sorted(row.value for row in frame.collect())


def run_dying_and_on(lab: StructuredLab, name: str, steps: list[str], died: Callable[[str], None], **how: Any) -> None:
    """Run queries that die at these steps, each from where the one before died, and one that does not."""
    for step in steps:
        assert run_dying(lab, name, step, max_records=3, **how), f"it did not die {step}"
        died(step)
    assert not run_dying(lab, name, "", max_records=3, **how)


@pytest.mark.parametrize("query", [distinct, pytest.param(enriched, marks=pytest.mark.soak)])
def test_exactly_once(lab: StructuredLab, topic: NewTopic, query: Query) -> None:
    """For windows see the test of their own."""
    name, path = topic(1, FOR_EVER), lab.store.removeprefix("sqlite:///")
    produce(lab, name, TWICE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table found (value text)")
    how: dict[str, Any] = {"process": same, "query": query, "guarantee": "exactly_once"}
    run_dying_and_on(lab, name, 2 * TRANSACTION, lambda _: None, sink=lambda _: Table(lab.store, "found"), **how)
    with closing(sqlite3.connect(path)) as connection:
        found = [value for (value,) in connection.execute("select value from found order by 1")]
    assert found == batch_computation(lab, name, query, len(TWICE))


@pytest.mark.parametrize(
    "query", [counted, *(pytest.param(each, marks=pytest.mark.soak) for each in (distinct, enriched))]
)
def test_at_least_once(lab: StructuredLab, topic: NewTopic, query: Query) -> None:
    """What comes again is the batch whose output was written and not yet committed, and nothing else."""
    name, found, again, last = topic(1, FOR_EVER), Counter[str](), Counter[str](), Counter[str]()
    seconds = SECONDS if query is counted else TWICE
    produce(lab, name, seconds)

    def output(store: DyingStore) -> Callable[[DataFrame, Batch], None]:
        def write(frame: DataFrame, _: Batch) -> None:
            store.at("write")
            last.clear()
            last.update(row.value for row in frame.collect())
            found.update(last)
            store.at("written")

        return write

    def died(step: str) -> None:
        again.update(last if step in {"written", "before commit"} else {})

    run_dying_and_on(lab, name, COMMIT, died, sink=output, query=query)
    assert found == Counter(batch_computation(lab, name, query, len(seconds))) + again
