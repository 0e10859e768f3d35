"""A group whose rows are in the ledger's own database is copied to another store, and the old program starts again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper import open_store
from offsetkeeper.core.batch import Batch
from offsetkeeper.errors import MarkAhead, MarkError, Refused
from offsetkeeper.operate.copy import copy
from offsetkeeper.sinks import Outputs, Table, Transaction

TABLE = "create table records (topic varchar(249), part int, place bigint)"


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database with a table of records."""
    found = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "postgresql":
        found = request.getfixturevalue("database")
    elif request.param == "mysql":
        server = request.getfixturevalue("mariadb_server")
        found = server.url(server.create_database())
    do(found, TABLE)
    return found


def counted(url: str, table: str = "records") -> Counter[Any]:
    """Return how often each record is in the table."""
    with closing(connect(url)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"select part, place from {table}")  # noqa: S608 - ours
        return Counter(cursor.fetchall())


def move(source: str, target: str, *, force: bool = False) -> None:
    with closing(open_store(source)) as old, closing(open_store(target)) as new:
        copy("group", old, new, overwrite=True, force=force)


def run(
    lab: Lab,
    name: str,
    store: str,
    url: str,
    meanwhile: Callable[[], object] = lambda: None,
    table: str = "records",
    output: str = "",
) -> None:
    """Run a program; `meanwhile` happens while each batch is under way, and `output` is the name of its output."""

    def process(frame: DataFrame, _: Batch) -> DataFrame:
        meanwhile()
        return frame.selectExpr("topic", "partition as part", "offset as place")

    sink = Outputs(**{output: Table(url, table)}) if output else Table(url, table)
    lab.pipeline(name, store=store).run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


@pytest.fixture
def new(tmp_path: Path) -> str:
    """URL of another store."""
    return f"sqlite:///{tmp_path / 'elsewhere.db'}"


@pytest.fixture
def name(lab: Lab, topic: Callable[..., str], url: str, new: str) -> str:
    """A topic of which the old program has written two records before the group was copied; two more have come."""
    name = topic(1)
    lab.produce(name, "a", "b")
    run(lab, name, url, url)
    move(url, new)
    lab.produce(name, "c", "d")
    return name


def each_once(records: int) -> Counter[Any]:
    return Counter({(0, offset): 1 for offset in range(records)})


def test_the_old_program_is_refused_once_the_new_one_has_run_until_the_group_is_copied_back(
    lab: Lab, name: str, url: str, new: str
) -> None:
    """Both count on their own ledger; the rows of the second batch would come twice."""
    run(lab, name, new, url)
    begun: list[str] = []
    with pytest.raises(MarkAhead, match="run with another store") as caught:
        run(lab, name, url, url, lambda: begun.append("a batch"))
    assert not begun  # the start is refused, before anything is read
    assert "copy --overwrite" in str(caught.value)
    assert counted(url) == each_once(4)
    move(new, url)
    lab.produce(name, "e")
    run(lab, name, url, url)
    assert counted(url) == each_once(5)


def test_the_old_program_is_refused_also_if_the_new_one_has_another_name_for_the_output(
    lab: Lab, name: str, url: str, new: str
) -> None:
    """It asked for the mark of its own name alone, and each row came twice."""
    run(lab, name, new, url, output="orders")
    with pytest.raises(MarkAhead, match=r"output 'orders' has batch 2 .*this ledger is at batch 1.*with another store"):
        run(lab, name, url, url)
    assert counted(url) == each_once(4)
    move(new, url)
    lab.produce(name, "e")
    run(lab, name, url, url)
    assert counted(url) == each_once(5)


def test_the_new_program_is_refused_if_the_old_one_has_run_on(lab: Lab, name: str, url: str, new: str) -> None:
    run(lab, name, url, url)
    with pytest.raises(MarkAhead):
        run(lab, name, new, url)
    assert counted(url) == each_once(4)


def test_an_old_program_that_runs_on_during_the_copy_writes_nothing_twice(
    lab: Lab, topic: Callable[..., str], url: str, new: str
) -> None:
    """The new program writes the batch while the old one has read it and not committed it."""
    name = topic(1)
    copied: list[str] = []

    def take_over() -> None:
        if not copied and counted(url):
            copied.append(new)
            move(url, new, force=True)
            run(lab, name, new, url)

    lab.produce(name, "a", "b")
    run(lab, name, url, url)
    lab.produce(name, "c", "d")
    with pytest.raises(MarkAhead, match="run with another store"):
        run(lab, name, url, url, take_over)
    assert (copied, counted(url)) == ([new], each_once(4))


def test_a_new_program_writes_nothing_twice_if_the_old_one_still_runs(lab: Lab, name: str, url: str, new: str) -> None:
    """The old program commits the batch while the new one has begun it."""
    with pytest.raises(MarkError):
        run(lab, name, new, url, lambda: run(lab, name, url, url))
    assert counted(url) == each_once(4)


def test_a_ledger_that_was_deleted_is_not_taken_for_a_new_one(lab: Lab, topic: Callable[..., str], url: str) -> None:
    """Its positions are gone, its rows are there: from the earliest offset all of them would come twice."""
    name = topic(1)
    lab.produce(name, "a", "b")
    run(lab, name, url, url)
    do(url, "delete from kafka_offsets", "delete from offsetkeeper_groups")
    with pytest.raises(MarkAhead, match="restored or deleted"):
        run(lab, name, url, url)
    assert counted(url) == each_once(2)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_name_that_leads_to_another_schema_at_the_next_start_is_told(
    lab: Lab, topic: Callable[..., str], url: str
) -> None:
    """As `"$user", public` does once a schema has the user's name: the rows of a group would be in two tables."""
    name, store = topic(1), f"{url}?schema=public"
    lab.produce(name, "a", "b")
    run(lab, name, store, url)
    do(url, "create schema postgres")
    do(url, f"{TABLE.replace('table records', 'table postgres.records')}")
    lab.produce(name, "c", "d")
    with pytest.raises(Refused, match=r"leads to schema postgres now.*in schema public.*give the name with its"):
        run(lab, name, store, url)
    assert (counted(url), counted(url, "public.records")) == (Counter(), each_once(2))
    run(lab, name, store, url, table="public.records")
    assert (counted(url), counted(url, "public.records")) == (Counter(), each_once(4))
    lab.produce(name, "e")
    run(lab, name, store, url, table="postgres.records")
    assert counted(url) == Counter({(0, 4): 1})


@pytest.mark.untraced("two ledgers process the same records, and a trace shows it")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_two_ledgers_of_a_transaction_write_its_rows_twice(lab: Lab, topic: Callable[..., str], url: str) -> None:
    """It keeps no mark, so the old program must be stopped for good: docs/guarantees.md."""
    name, moved = topic(1), f"{url}?table=moved"

    def insert(frame: DataFrame, _: Batch, connection: Any) -> None:
        for row in frame.select("partition", "offset").collect():
            connection.execute("insert into records values ('', ?, ?)", (row["partition"], row["offset"]))

    def run_on(store: str) -> None:
        lab.pipeline(name, store=store).run(
            lab.spark, sink=Transaction(insert), guarantee="exactly_once", until="caught_up"
        )

    lab.produce(name, "a", "b")
    run_on(url)
    move(url, moved)
    lab.produce(name, "c", "d")
    run_on(moved)
    assert counted(url) == each_once(4)
    run_on(url)
    assert counted(url) == {(0, 0): 1, (0, 1): 1, (0, 2): 2, (0, 3): 2}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_two_ledgers_elsewhere_write_twice_under_two_names_of_an_output(
    lab: Lab, topic: Callable[..., str], url: str, new: str, tmp_path: Path
) -> None:
    """Each name has a mark of its own, and no ledger is in the database of the rows: docs/guarantees.md."""
    name, old = topic(1), f"sqlite:///{tmp_path / 'old.db'}"
    lab.produce(name, "a", "b")
    run(lab, name, old, url)
    move(old, new)
    lab.produce(name, "c")
    run(lab, name, new, url, output="orders")
    run(lab, name, old, url)
    assert counted(url) == {(0, 0): 1, (0, 1): 1, (0, 2): 2}
