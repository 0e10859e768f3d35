"""Each guarantee with each sink, through Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from engines import databases
from engines.databases import do
from engines.lab import Lab
from offsetkeeper import Batch
from offsetkeeper.errors import NotAllowed, SinkMismatch
from offsetkeeper.sinks import Table, Transaction

NewTopic = Callable[..., str]
CREATE = 'create table orders (topic text not null, partition int not null, "offset" bigint not null, value text)'


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, lab: Lab) -> Lab:
    """A lab whose store's database has the table `orders`."""
    if request.param == "postgresql":
        lab.store = request.getfixturevalue("database")
    with closing(connect(lab)) as connection:
        connection.execute(CREATE)
        connection.commit()
    return lab


def connect(lab: Lab) -> Any:
    """Return a connection to the lab's store."""
    if lab.store.startswith("sqlite:///"):
        return sqlite3.connect(lab.store.removeprefix("sqlite:///"))
    return psycopg.connect(lab.store)


def orders(lab: Lab) -> list[tuple[int, str]]:
    """Return offset and value of each row."""
    with closing(connect(lab)) as connection:
        rows: list[tuple[int, str]] = connection.execute('select "offset", value from orders order by 1').fetchall()
    return rows


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_table_in_the_stores_database_gets_rows_and_offsets_in_one_transaction(
    shop: Lab, topic: NewTopic, guarantee: str
) -> None:
    """Whatever is asked for: a sink that keeps more does so. A step for the intent is not needed."""
    name = topic()
    shop.produce(name, "a", "b")
    sink = Table(shop.store, "orders")
    shop.pipeline(name).run(shop.spark, parse, sink=sink, guarantee=guarantee, until="caught_up")
    shop.produce(name, "c")
    shop.pipeline(name).run(shop.spark, parse, sink=sink, guarantee=guarantee, until="caught_up")
    assert orders(shop) == [(0, "a"), (1, "b"), (2, "c")]
    assert "begin" not in shop.events()


def test_a_transaction_that_fails_leaves_neither_rows_nor_offsets(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a", "b")
    calls: list[int] = []

    def insert(frame: DataFrame, batch: Batch, connection: Any) -> None:
        calls.append(batch.sequence)
        for row in parse(frame, batch).collect():
            values = ", ".join(f"'{value}'" for value in row)
            connection.execute(f"insert into orders values ({values})")  # noqa: S608 - the test's own values
        if len(calls) == 1:
            raise RuntimeError("after the rows")

    with pytest.raises(RuntimeError):
        shop.pipeline(name, attempts=1).run(shop.spark, sink=Transaction(insert), guarantee="exactly_once")
    assert orders(shop) == []
    assert shop.offsets() == {0: 0}
    shop.pipeline(name).run(shop.spark, sink=Transaction(insert), guarantee="exactly_once", until="caught_up")
    assert orders(shop) == [(0, "a"), (1, "b")]
    assert shop.offsets() == {0: 2}


def test_a_transaction_whose_function_fails_is_tried_again(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a")
    retries: list[bool] = []

    def insert(frame: DataFrame, batch: Batch, connection: Any) -> None:
        retries.append(batch.retry)
        [row] = parse(frame, batch).collect()
        connection.execute(f"insert into orders values ('{name}', 0, {row.offset}, '{row.value}')")  # noqa: S608 - as above
        if not batch.retry:
            raise RuntimeError("after the rows")

    shop.pipeline(name).run(shop.spark, sink=Transaction(insert), guarantee="exactly_once", until="caught_up")
    assert retries == [False, True]
    assert orders(shop) == [(0, "a")]


ENDS = {
    "SQLite": "insert into orders values (-1)",  # which is there: the table rolls back by itself
    "PostgreSQL": "commit",
    "MariaDB": "create or replace table made_by_function (n int)",
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_transaction_that_its_database_has_ended_stores_no_further_row_however_often_it_is_started(
    lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, kind: str
) -> None:
    """The function swallows what it is told and goes on. Mended, it stores each row once."""
    if kind == "PostgreSQL":
        lab.store = request.getfixturevalue("database")
    elif kind == "MariaDB":
        server = request.getfixturevalue("mariadb_server")
        lab.store = server.url(server.create_database())
    clause = " on conflict rollback" if kind == "SQLite" else ""
    do(lab.store, f"create table orders (n int primary key{clause})", "insert into orders values (-1)")
    name = topic()
    lab.produce(name, "a", "b", "c")
    ends = [ENDS[kind]]

    def insert(frame: DataFrame, _: Batch, connection: Any) -> None:
        for statement in (*ends, *(f"insert into orders values ({row.offset})" for row in frame.collect())):  # noqa: S608 - the test's own values
            with suppress(Exception):
                connection.execute(statement)

    def found() -> list[tuple[int]]:
        with closing(databases.connect(lab.store)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("select n from orders order by n")
            return [tuple(row) for row in cursor.fetchall()]

    for _ in range(3):
        with pytest.raises(NotAllowed, match="ended"):
            lab.pipeline(name, attempts=1).run(lab.spark, sink=Transaction(insert), guarantee="exactly_once")
        assert (found(), lab.offsets()) == ([(-1,)], {0: 0})
    ends.clear()
    lab.pipeline(name).run(lab.spark, sink=Transaction(insert), guarantee="exactly_once", until="caught_up")
    assert (found(), lab.offsets()) == ([(-1,), (0,), (1,), (2,)], {0: 3})


def test_a_frame_that_does_not_fit_the_table_is_not_tried_again(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a")
    calls: list[Batch] = []

    def wrong(frame: DataFrame, batch: Batch) -> DataFrame:
        calls.append(batch)
        return frame.selectExpr("topic", "partition", "offset", "'x' as no_such_column")

    with pytest.raises(SinkMismatch, match="no_such_column"):
        shop.pipeline(name).run(shop.spark, wrong, sink=Table(shop.store, "orders"), guarantee="exactly_once")
    assert len(calls) == 1
    assert (shop.offsets(), shop.snapshot().owner) == ({0: 0}, None)


def test_a_batch_begun_by_a_function_is_finished_by_a_table_under_the_same_id(shop: Lab, topic: NewTopic) -> None:
    name = topic()
    shop.produce(name, "a", "b")

    def fail(_: DataFrame, __: Batch) -> None:
        raise RuntimeError("before the output")

    with pytest.raises(RuntimeError):
        shop.pipeline(name, attempts=1, max_records=1).run(shop.spark, fail)
    sink = Table(shop.store, "orders")
    shop.pipeline(name).run(shop.spark, parse, sink=sink, guarantee="exactly_once", until="caught_up")
    assert orders(shop) == [(0, "a"), (1, "b")]
    assert [(e.sequence, e.ranges[0].end) for e in shop.history() if e.event == "commit"] == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("guarantee", "steps"),
    [("at_least_once", ["begin", "output", "commit"]), ("at_most_once", ["commit", "output"])],
)
def test_a_function_is_called_before_or_after_the_offsets_are_stored_as_the_guarantee_asks(
    lab: Lab, topic: NewTopic, guarantee: str, steps: list[str]
) -> None:
    name = topic()
    lab.produce(name, "a")
    seen: list[list[str]] = []

    def look(_: DataFrame, __: Batch) -> None:
        seen.append(lab.events())

    lab.pipeline(name).run(lab.spark, look, guarantee=guarantee, until="caught_up")
    [before] = seen
    events = lab.events()
    assert events[: len(before)] == before
    assert ["acquire", "place", *steps, "release"] == [*before, "output", *events[len(before) :]]
