"""Several outputs of one batch: after a failure between them, those that have it are not written again."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import psycopg.rows
import pymysql
import pytest
from pymysql.cursors import DictCursor
from pyspark.sql import DataFrame

from engines.lab import Lab
from offsetkeeper import Batch, open_store
from offsetkeeper.core.store import TransactionalStore
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.sinks import Idempotent, Outputs, Table, Transaction
from offsetkeeper.testing.mariadb import MariaDBServer
from structured.dying import Died, DyingStore

NewTopic = Callable[..., str]
NAMES = ("first", "second", "third")
OUTPUTS = [f"{when} {name}" for name in NAMES for when in ("write", "written", "before mark", "after mark")]
STEPS = ["before begin", "after begin", *OUTPUTS[:-2], "before commit", "after commit"]
WINDOWS = {f"{when} {name}": name for name in NAMES for when in ("written", "before mark")} | {"before commit": "third"}
"""Steps at which an output has the batch and the ledger does not know."""


class Ends:
    """Outputs that note what they get, and die with a store.

    Attributes:
        got: values by output.
        batches: by output.
        again: values that a death makes an output get once more, by output.
    """

    def __init__(self) -> None:
        self.got: dict[str, list[str]] = {name: [] for name in NAMES}
        self.batches: dict[str, list[Batch]] = {name: [] for name in NAMES}
        self.again: Counter[tuple[str, str]] = Counter()
        self._last: dict[str, list[str]] = {}

    def output(self, name: str, store: DyingStore | None = None) -> Callable[[DataFrame, Batch], None]:
        """Return the function that notes for an output."""

        def note(frame: DataFrame, batch: Batch) -> None:
            self._at(store, f"write {name}")
            self._last[name] = sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())
            self.got[name] += self._last[name]
            self.batches[name].append(batch)
            self._at(store, f"written {name}")

        return note

    def outputs(self, store: DyingStore | None = None) -> Outputs:
        """Return all three."""
        return Outputs(**{name: self.output(name, store) for name in NAMES})

    def died(self, step: str) -> None:
        """Note what will come again after a death at this step."""
        if step in WINDOWS:
            self.again.update((WINDOWS[step], value) for value in self._last[WINDOWS[step]])

    def expected(self, values: list[str]) -> Counter[tuple[str, str]]:
        """Return how often each output gets each value."""
        return Counter((name, value) for name in NAMES for value in values) + self.again

    def counted(self) -> Counter[tuple[str, str]]:
        """Return how often each output got each value."""
        return Counter((name, value) for name, values in self.got.items() for value in values)

    @staticmethod
    def _at(store: DyingStore | None, step: str) -> None:
        if store is not None:
            store.at(step)


def dying(lab: Lab, step: str) -> DyingStore:
    """Return the lab's store, which dies at this step."""
    return DyingStore(cast("TransactionalStore", open_store(lab.store)), step)


def run(lab: Lab, name: str, sink: Any, process: Any = None, **how: Any) -> None:
    """Run a pipeline until it has caught up."""
    settings = {key: how.pop(key) for key in ("store", "attempts", "max_records") if key in how}
    lab.pipeline(name, **settings).run(lab.spark, process, sink=sink, until="caught_up", **how)


def test_a_driver_that_dies_at_any_step_repeats_at_most_the_output_it_died_at(lab: Lab, topic: NewTopic) -> None:
    """Each run dies at the next step, wherever the one before has left the batch."""
    name, ends, values = topic(), Ends(), [str(n) for n in range(8)]
    lab.produce(name, *values)
    deaths = 0
    for step in STEPS:
        store = dying(lab, step)
        with suppress(Died):
            run(lab, name, ends.outputs(store), store=store, attempts=1, max_records=2)
        deaths += store.dead
        ends.died(step) if store.dead else None
    run(lab, name, ends.outputs())
    assert ends.counted() == ends.expected(values)
    assert deaths == len(STEPS)
    assert lab.offsets() == {0: 8}


def test_a_batch_tried_again_writes_the_missing_outputs_and_tells_them_which_have_it(lab: Lab, topic: NewTopic) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a", "b")
    tries: list[Batch] = []

    def flaky(_: DataFrame, batch: Batch) -> None:
        tries.append(batch)
        if len(tries) < 2:
            raise RuntimeError("the second output is away")

    sink = Outputs(first=ends.output("first"), second=flaky, third=ends.output("third"))
    run(lab, name, sink, attempts=2)
    assert (ends.got["first"], ends.got["third"]) == (["a", "b"], ["a", "b"])
    assert [(batch.retry, batch.written) for batch in tries] == [(False, ()), (True, ("first",))]
    assert lab.events() == ["acquire", "place", "begin", "mark", "mark", "commit", "release"]
    assert lab.history()[3].reason == "output first is written"


def test_rows_and_offsets_are_one_transaction_that_the_other_outputs_come_before(lab: Lab, topic: NewTopic) -> None:
    """Two tables of the store's database get their rows once, whatever dies; the output apart is marked before."""
    name, ends = topic(), Ends()
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        connection.execute('create table orders ("offset" int, value text)')
        connection.execute("create table totals (records int)")
    lab.produce(name, *map(str, range(6)))

    def frames(records: DataFrame, _: Batch) -> dict[str, DataFrame]:
        rows = records.selectExpr("offset", "cast(value as string) as value")
        return {"orders": rows, "first": records, "totals": records.selectExpr("cast(count(*) as int) as records")}

    steps = ["write first", "written first", "before mark first", "after mark first"]
    for step in [*steps, "before transaction", "inside", "after transaction", ""]:
        store = dying(lab, step)
        tables = {table: Table(lab.store, table) for table in ("orders", "totals")}
        sink = Outputs(orders=tables["orders"], first=Idempotent(ends.output("first", store)), totals=tables["totals"])
        with suppress(Died):
            run(lab, name, sink, frames, store=store, attempts=1, max_records=3, guarantee="exactly_once")
        assert store.dead == bool(step)
        ends.died(step) if store.dead else None
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("select value from orders order by 1").fetchall() == [(str(n),) for n in range(6)]
        assert connection.execute("select records from totals").fetchall() == [(3,), (3,)]
    assert Counter(ends.got["first"]) == Counter(map(str, range(6))) + Counter(
        value for _, value in ends.again.elements()
    )


def test_kafka_is_read_once_for_all_outputs_and_nothing_stays_in_memory(lab: Lab, topic: NewTopic) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a", "b")
    kept: list[bool] = []

    def forget(frame: DataFrame, _: Batch) -> None:
        frame.count()
        kept.append(frame.storageLevel.useMemory)
        lab.delete_records(name, 2)

    run(lab, name, Outputs(first=forget, second=ends.output("second")))
    assert (kept, ends.got["second"]) == ([True], ["a", "b"])
    assert lab.spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


def test_what_spark_keeps_in_memory_does_not_make_a_batch_fail(
    lab: Lab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a")

    def refuse(_: DataFrame) -> None:
        raise RuntimeError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(type(lab.spark.range(1)), "unpersist", refuse)
        run(lab, name, ends.outputs())
    lab.spark.catalog.clearCache()
    assert ends.counted() == ends.expected(["a"])
    assert lab.offsets() == {0: 1}


def test_at_most_once_stores_the_offsets_before_any_output(lab: Lab, topic: NewTopic) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a", "b")
    store = dying(lab, "write second")
    with suppress(Died):
        run(lab, name, ends.outputs(store), store=store, guarantee="at_most_once")
    run(lab, name, ends.outputs(), guarantee="at_most_once")
    assert ends.got == {"first": ["a", "b"], "second": [], "third": []}


def test_an_output_that_was_taken_away_is_not_waited_for(lab: Lab, topic: NewTopic) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a")
    store = dying(lab, "write second")
    with suppress(Died):
        run(lab, name, ends.outputs(store), store=store, attempts=1)
    run(lab, name, Outputs(first=ends.output("first")))
    assert ends.got == {"first": ["a"], "second": [], "third": []}
    assert lab.offsets() == {0: 1}


def test_what_one_of_them_cannot_keep_is_refused_before_the_group_is_taken(lab: Lab, topic: NewTopic) -> None:
    with pytest.raises(GuaranteeRefused, match=r"Function\(.*cannot be exactly once"):
        run(lab, topic(), Outputs(first=Idempotent(lab.keep), second=lab.keep), guarantee="exactly_once")
    assert lab.events() == []


@pytest.mark.parametrize("wrong", [{}, {"first": None}, {"x" * 101: print}, {"": print}])
def test_outputs_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Outputs(**wrong)


def test_outputs_are_not_put_into_outputs() -> None:
    with pytest.raises(SettingsError, match="is not a sink"):
        Outputs(all=Outputs(first=print))  # type: ignore[arg-type]  # what is under test


@pytest.mark.parametrize("names", [("first",), ("first", "second", "other")])
def test_frames_must_have_the_names_of_the_outputs(lab: Lab, topic: NewTopic, names: tuple[str, ...]) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a")
    sink = Outputs(first=ends.output("first"), second=ends.output("second"))
    with pytest.raises(SettingsError, match="a frame for each of"):
        run(lab, name, sink, lambda records, _: dict.fromkeys(names, records))
    assert "begin" not in lab.events()


@pytest.fixture
def of_postgresql(database: str) -> tuple[str, Callable[[str], list[Any]]]:
    """A URL, and a function that runs a statement and returns what it finds."""

    def ask(statement: str) -> list[Any]:
        with psycopg.connect(database) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    return database, ask


@pytest.fixture
def of_mysql(mariadb_server: MariaDBServer) -> tuple[str, Callable[[str], list[Any]]]:
    """The same."""
    name, port = mariadb_server.create_database(), mariadb_server.port

    def ask(statement: str) -> list[Any]:
        settings: dict[str, Any] = {"host": "127.0.0.1", "port": port, "user": "root", "autocommit": True}
        with pymysql.connect(**settings, database=name) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    return mariadb_server.url(name), ask


LEFT = {
    "of_postgresql": "select 1 from pg_class where relkind = 'r' and relname ~ '^offsetkeeper_[0-9a-f]{16}_'",
    "of_mysql": "show tables where tables_in_{} regexp '^offsetkeeper_[0-9a-f]{{16}}_'",
}


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("shared", [False, True], ids=["two sinks", "one sink"])
def test_two_outputs_of_one_batch_may_be_one_table(
    lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, kind: str, *, shared: bool
) -> None:
    """Each stages its rows in a table of its own, and neither takes that of the other for left over."""
    database, ask = request.getfixturevalue(kind)
    calls: list[Batch] = []

    def many(frame: DataFrame, batch: Batch) -> DataFrame:
        calls.append(batch)
        return frame.selectExpr("explode(sequence(1, 1500)) as n")  # a task gives fewer along with its answer

    lab.store = database
    ask("create table orders (n int)")
    lab.produce(name := topic(), "a")
    one = Table(database, "orders")
    sink = Outputs(one=one, two=one if shared else Table(database, "orders"))
    run(lab, name, sink, many, guarantee="exactly_once")
    lab.produce(name, "b")
    run(lab, name, sink, many, guarantee="exactly_once")
    assert ask("select count(*), count(distinct n) from orders") == [(6000, 1500)]
    assert ask(LEFT[kind].format(database.rpartition("/")[2]) if kind == "of_mysql" else LEFT[kind]) == []
    assert [batch.retry for batch in calls] == [False, False]


@pytest.fixture
def of_sqlite(tmp_path: Path) -> tuple[str, Callable[[str], list[Any]]]:
    """As `of_postgresql`."""
    path = tmp_path / "shop.db"

    def ask(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return f"sqlite:///{path}", ask


def _as_dicts(connection: Any) -> None:
    """Let a connection give its rows as dicts, as functions like them."""
    if isinstance(connection, psycopg.Connection):
        connection.row_factory, connection.cursor_factory = psycopg.rows.dict_row, psycopg.ClientCursor
    elif isinstance(connection, sqlite3.Connection):
        connection.row_factory = lambda cursor, row: dict(
            zip([name for name, *_ in cursor.description], row, strict=True)
        )
        connection.text_factory = bytes
    else:
        connection.cursorclass = DictCursor


@pytest.mark.parametrize("rows", [1, 1500], ids=["few", "staged"])
@pytest.mark.parametrize("kind", ["of_postgresql", "of_mysql", "of_sqlite"])
def test_a_table_after_a_function_that_asks_for_dicts_gets_its_rows(
    lab: Lab, topic: NewTopic, request: pytest.FixtureRequest, kind: str, rows: int
) -> None:
    """Both have the connection of one transaction; each has it as it was before the other."""
    lab.store, ask = request.getfixturevalue(kind)
    ask("create table orders (n int primary key, item varchar(20))")
    ask("create table sums (item varchar(20))")
    found: list[Any] = []

    def note(frame: DataFrame, batch: Batch, connection: Any) -> None:  # noqa: ARG001 - the protocol's signature
        _as_dicts(connection)
        cursor = connection.cursor()
        cursor.execute("insert into sums values ('tea')")
        cursor.execute("select item from sums")
        found.append(cursor.fetchall())

    def many(frame: DataFrame, batch: Batch) -> DataFrame:  # noqa: ARG001 - the protocol's signature
        return frame.selectExpr(f"explode(sequence(1, {rows})) as n", "'tea' as item")

    lab.produce(name := topic(), "a")
    table = Table(lab.store, "orders", mode="upsert", key=["n"], same_keys="as the column")
    sink = Outputs(before=table, sums=Transaction(note), rows=table, again=Transaction(note))
    run(lab, name, sink, many, guarantee="exactly_once")
    item = b"tea" if kind == "of_sqlite" else "tea"
    assert found == [[{"item": item}], [{"item": item}] * 2]
    assert ask("select count(*), count(distinct n) from orders") == [(rows, rows)]
    assert ask("select count(*) from sums") == [(2,)]
