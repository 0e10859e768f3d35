"""Two runs of one group: the older is fenced, at whatever step it is."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import Fenced, GuaranteeRefused, SettingsError, StartRefused, UnknownTopic
from offsetkeeper.sinks import Table
from offsetkeeper.testing.server import wait_until

NewTopic = Callable[..., str]
CREATE = "create table orders (topic text, partition int, offset int, value text)"


class Paused:
    """A function that waits in its first batch until it is told to go on, and then calls another.

    Attributes:
        reached: set when it waits.
        go: to be set.
    """

    def __init__(self, function: Callable[[DataFrame, Batch], object]) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._function = function

    def __call__(self, frame: DataFrame, batch: Batch) -> object:
        """Wait, and call."""
        self.reached.set()
        assert self.go.wait(LIMIT_S)
        return self._function(frame, batch)


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


@pytest.fixture
def shop(lab: Lab) -> Lab:
    """A lab whose store's database has the table `orders`."""
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        connection.execute(CREATE)
    return lab


def orders(shop: Lab) -> list[str]:
    """Return the values in the table."""
    with closing(sqlite3.connect(shop.store.removeprefix("sqlite:///"))) as connection:
        return [value for (value,) in connection.execute("select value from orders order by offset").fetchall()]


def test_an_older_run_is_fenced_when_it_begins_a_batch(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name), lab.spark, lab.keep) as older:
        older.next_batch()
        with lab.ledger() as newer:  # which reads nothing itself, however late the older one finds out
            newer.acquire()
            lab.produce(name, "b")
            with pytest.raises(Fenced, match=r"was taken over by .* the begin of this run was refused"):
                older.end()
    assert lab.values == ["a"]
    assert lab.read(name) == ["b"]


def test_an_older_run_is_fenced_when_it_commits_and_its_batch_is_done_by_the_newer(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    paused = Paused(lab.keep)
    with Running(lab.pipeline(name), lab.spark, paused) as older:
        assert paused.reached.wait(LIMIT_S)
        assert lab.read(name) == ["a"]
        assert lab.batches[0].retry
        paused.go.set()
        with pytest.raises(Fenced, match=r"taken over by .*; the commit of this run was refused"):
            older.end()
    assert lab.offsets() == {0: 1}
    assert lab.events()[-1] == "release"


def test_an_older_run_is_fenced_in_its_transaction_and_its_rows_are_rolled_back(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a")
    paused = Paused(parse)
    how = {"sink": Table(shop.store, "orders"), "guarantee": "exactly_once"}
    with Running(shop.pipeline(name), shop.spark, paused, **how) as older:
        assert paused.reached.wait(LIMIT_S)
        shop.pipeline(name).run(shop.spark, parse, sink=how["sink"], until="caught_up")  # type: ignore[arg-type]
        paused.go.set()
        with pytest.raises(Fenced):
            older.end()
    assert orders(shop) == ["a"]


def test_an_older_run_is_fenced_when_it_finds_a_new_partition(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name), lab.spark, lab.keep) as older:
        older.next_batch()
        assert lab.read(name) == []
        lab.grow(name, 2)
        with pytest.raises(Fenced):
            older.end()
    assert lab.offsets() == {0: 1}


def test_a_start_that_must_be_refused_fences_nobody(lab: Lab, topic: NewTopic) -> None:
    name, gone = topic(), topic()
    lab.produce(name, "a")
    lab.read(name, gone)
    lab.kafka.delete_topic(gone)
    with Running(lab.pipeline(name), lab.spark, lab.keep) as run:
        with pytest.raises(StartRefused):
            lab.read(name, gone, policies=Policies(removed="stop"))
        with pytest.raises(UnknownTopic):
            lab.read(name, "no-such-topic")
        with pytest.raises(SettingsError):
            lab.read(name, offsets={(name, 0): 99})  # type: ignore[dict-item]  # a plain pair will do
        with pytest.raises(GuaranteeRefused):
            lab.pipeline(name).run(lab.spark, lab.keep, guarantee="exactly_once")
        lab.produce(name, "b")
        run.next_batch()
    assert lab.values == ["a", "b"]


def test_of_four_runs_started_at_once_one_goes_on_and_every_record_is_there_once(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, *map(str, range(10)))
    how = {"sink": Table(shop.store, "orders"), "guarantee": "exactly_once"}
    runs = [Running(shop.pipeline(name, max_records=3), shop.spark, parse, **how) for _ in range(4)]
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run)
        wait_until(lambda: len(orders(shop)) == 10, "all records were in the table", LIMIT_S)
        shop.produce(name, "10")
        wait_until(lambda: sum(run.error is not None for run in runs) == 3, "three runs had ended", LIMIT_S)
        wait_until(lambda: len(orders(shop)) == 11, "the last record was in the table", LIMIT_S)
        for run in runs:
            if run.error is not None:
                with pytest.raises(Fenced):
                    run.end()
    assert orders(shop) == list(map(str, range(11)))
