"""A start against a run that lives and commits while the start looks: it takes the group over, and no rows are lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch, open_store
from offsetkeeper.errors import Fenced, MarkAhead
from offsetkeeper.sinks import Table
from offsetkeeper.testing.server import wait_until

NewTopic = Callable[..., str]
LOOKS = 2  # before the group is taken: the ledger, and once more where an output or a checkpoint is ahead

BATCHES = 10  # that a run commits during one look of many


class Slow:
    """A store whose first answers are old when they arrive: the other run has committed batches since.

    Attributes:
        store: the store.
    """

    def __init__(self, url: str, goes_on: Callable[[], object]) -> None:
        store: Any = open_store(url)
        self._load, self._goes_on, self._left = store.load, goes_on, LOOKS
        store.load = self.load
        self.store = store

    def looked(self) -> bool:
        """Whether no more answers will be old."""
        return not self._left

    def load(self, group: str) -> Any:
        """See `Store.load`."""
        found = self._load(group)
        if self._left:
            self._goes_on()
            self._left -= 1
        return found


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A database with a table, beside the store: it keeps a mark."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table orders (topic text, partition int, offset int, value text)")
    return path


def values(shop: Path) -> list[str]:
    """Return the values in the table."""
    with closing(sqlite3.connect(shop)) as connection:
        return [value for (value,) in connection.execute("select value from orders order by offset").fetchall()]


def test_a_start_takes_over_from_a_run_that_lands_batches_while_it_looks(lab: Lab, topic: NewTopic, shop: Path) -> None:
    """The mark was ahead of the ledger as it was loaded: `MarkAhead`, with the advice to adopt it."""
    name, sink = topic(), Table(f"sqlite:///{shop}", "orders")
    words: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once"}
    lab.produce(name, "1")
    older = Running(lab.pipeline(name), lab.spark, parse, **words)

    def goes_on() -> None:
        lab.produce(name, str(len(older.batches) + 1))
        older.next_batch()

    with older:
        older.next_batch()
        slow = Slow(lab.store, goes_on)
        lab.pipeline(name, store=slow.store).run(lab.spark, parse, until="caught_up", **words)
        lab.produce(name, "4")
        with pytest.raises(Fenced):
            older.end()
    lab.pipeline(name).run(lab.spark, parse, until="caught_up", **words)
    assert values(shop) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("starts", [4, 200])
def test_starts_whose_looks_take_as_long_as_ten_batches_take_over_one_after_another(
    lab: Lab, topic: NewTopic, shop: Path, starts: int
) -> None:
    name, sink = topic(), Table(f"sqlite:///{shop}", "orders")
    words: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once"}
    with ExitStack() as ending:
        living = [ending.enter_context(Running(lab.pipeline(name, max_records=1), lab.spark, parse, **words))]

        def goes_on() -> None:
            older = living[-1]
            landed = len(older.batches) + BATCHES
            lab.produce(name, *["looked"] * BATCHES)
            wait_until(lambda: len(older.batches) >= landed, "it lands batches", LIMIT_S)

        for _ in range(starts):
            slow = Slow(lab.store, goes_on)
            newer = Running(lab.pipeline(name, store=slow.store, max_records=1), lab.spark, parse, **words)
            ending.enter_context(newer)
            wait_until(slow.looked, "it has looked", LIMIT_S)
            lab.produce(name, "both")
            newer.next_batch()
            with pytest.raises(Fenced):
                living[-1].end()
            living.append(newer)
    assert values(shop) == ([*["looked"] * BATCHES * LOOKS, "both"] * starts)


def test_a_store_that_was_restored_is_refused_also_where_it_is_looked_at_twice(
    lab: Lab, topic: NewTopic, shop: Path, tmp_path: Path
) -> None:
    name, sink = topic(), Table(f"sqlite:///{shop}", "orders")
    words: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once", "until": "caught_up"}
    lab.produce(name, "1")
    lab.pipeline(name).run(lab.spark, parse, **words)
    store = Path(lab.store.removeprefix("sqlite:///"))
    backup = store.read_bytes()
    lab.produce(name, "2")
    lab.pipeline(name).run(lab.spark, parse, **words)
    for each in tmp_path.glob(f"{store.name}-*"):
        each.unlink()
    store.write_bytes(backup)
    with pytest.raises(MarkAhead, match=r"has batch 2 .*but the ledger is at batch 1"):
        lab.pipeline(name).run(lab.spark, parse, **words)


def test_a_query_takes_over_from_one_that_lives(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """Its checkpoint was ahead of the ledger as it was loaded: `CheckpointMismatch`, with the advice to give it up."""
    name, checkpoint, seen = topic(), f"{tmp_path}/checkpoint", list[str]()
    trigger = {"processingTime": "50 milliseconds"}

    def keep(frame: DataFrame, _: Batch) -> None:
        seen.extend(row["value"] for row in frame.selectExpr("cast(value as string) as value").collect())

    def goes_on() -> None:
        lab.produce(name, str(len(seen) + 1))
        older.processAllAvailable()

    lab.produce(name, "1")
    older = lab.pipeline(name).start(lab.spark, keep, checkpoint=checkpoint, trigger=trigger)
    older.processAllAvailable()
    slow = Slow(lab.store, goes_on)
    with lab.pipeline(name, store=slow.store).start(lab.spark, keep, checkpoint=checkpoint, trigger=trigger) as newer:
        lab.produce(name, "4")
        wait_until(lambda: "4" in seen, "the newer query reads on", LIMIT_S)
        newer.processAllAvailable()
    assert sorted(set(seen)) == ["1", "2", "3", "4"]
