"""A driver that dies at every step of every batch, and is started again each time; then every record is counted."""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S
from offsetkeeper import Batch, open_store
from offsetkeeper.core.store import TransactionalStore
from offsetkeeper.sinks import Idempotent, Table
from structured.dying import Died, DyingStore
from structured.lab import StructuredLab, started

NewTopic = Callable[..., str]
COMMIT = ["before begin", "after begin", "write", "written", "before commit", "after commit"]
TRANSACTION = ["before transaction", "inside", "after transaction"]
STEPS = {
    "at_least_once": COMMIT,
    "idempotent": COMMIT,
    "at_most_once": ["before commit", "after commit", "write", "written"],
}
RECORDS = [(n % 2, str(n)) for n in range(4)]


def run_dying(lab: StructuredLab, name: str, step: str, **how: Any) -> bool:
    """Run a query that dies at a step; return whether it did."""
    store = DyingStore(cast("TransactionalStore", open_store(lab.store)), step)
    sink = how.pop("sink")(store) if "sink" in how else None
    how = {"process": None, "max_records": 2, "attempts": 1, **how, "store": store, "sink": sink}
    with suppress(Died):
        assert started(lambda: lab.start(name, **how).awaitTermination(LIMIT_S)), "the query did not end"
    return store.dead


def run_dying_at_each(lab: StructuredLab, name: str, steps: list[str], then: Callable[[int], None], **how: Any) -> int:
    """Run queries that die at these steps in turn, each from where the one before died, until one has all done."""
    for runs, step in enumerate(itertools.cycle(steps)):
        if not run_dying(lab, name, step, **how):
            return runs
        assert runs < 20 * len(steps), "it does not get on"
        then(runs)
    raise AssertionError


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        pytest.param("at_least_once", True, marks=pytest.mark.soak),
        ("idempotent", False),
        ("at_most_once", True),
        pytest.param("at_most_once", False, marks=pytest.mark.soak),
    ],
)
def test_each_step_of_each_batch(lab: StructuredLab, topic: NewTopic, mode: str, kept: bool) -> None:  # noqa: FBT001 - a parameter
    """The checkpoint is kept, or lost at every other death."""
    name = topic(2)
    # At most once each death but one takes a batch with it, so there must be more of them.
    records = [(n % 2, str(n)) for n in range(8)] if mode == "at_most_once" else RECORDS
    lab.produce_all(name, records)
    written: list[str] = []
    at: dict[str, str] = {}

    def output(store: DyingStore) -> Any:
        def write(frame: DataFrame, batch: Batch) -> None:
            rows = frame.selectExpr("partition", "offset", "cast(value as string) as value").collect()
            store.at("write")
            for row in rows:
                at[f"{row.partition} {row.offset}"] = row.value
                written.append(row.value)
            assert {(r.partition, n) for r in batch.ranges for n in range(r.start, r.end)} == {r[:2] for r in rows}
            store.at("written")

        return Idempotent(write) if mode == "idempotent" else write

    def lose(run: int) -> None:
        if not kept and run % 2:
            lab.delete_checkpoint()

    guarantee = "exactly_once" if mode == "idempotent" else mode
    runs = run_dying_at_each(lab, name, STEPS[mode], lose, sink=output, guarantee=guarantee)
    assert runs >= len(STEPS[mode])
    counted = Counter(written)
    every = {value for _, value in records}
    if mode == "at_most_once":
        assert set(counted.values()) <= {1}
        assert counted.keys() < every  # those of a batch that died after its commit
    else:
        assert counted.keys() == every
        assert sorted(at.values()) == sorted(every)
    assert lab.offsets() == dict.fromkeys((0, 1), len(records) // 2)


@pytest.mark.parametrize(
    ("reader", "kept"), [pytest.param("packed", False, marks=pytest.mark.soak), ("connector", True)]
)
def test_each_step_of_each_transaction(lab: StructuredLab, topic: NewTopic, reader: str, kept: bool) -> None:  # noqa: FBT001 - as above
    lab.settings["reader"] = reader
    name = topic(2)
    lab.produce_all(name, RECORDS)
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        connection.execute('create table orders (partition int, "offset" int, value text)')

    def lose(run: int) -> None:
        if not kept and run % 2:
            lab.delete_checkpoint()

    how = {"sink": lambda _: Table(lab.store, "orders"), "process": parse, "guarantee": "exactly_once"}
    runs = run_dying_at_each(lab, name, TRANSACTION, lose, **how)
    assert runs >= 2 * len(TRANSACTION)
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute("select value from orders order by value").fetchall()
    assert [value for (value,) in rows] == sorted(value for _, value in RECORDS)


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("partition", "offset", "cast(value as string) as value")
