"""A table of marks that row-level security, or a trigger, keeps from what a start and a landing need of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper.core.batch import Batch
from offsetkeeper.errors import Refused
from offsetkeeper.sinks import Table

TABLE = "create table records (part int, place bigint)"
SHARED = "create policy own on {} using (owner = current_user)"
TRIGGER = "create constraint trigger t after insert or update on {} deferrable initially deferred for each row "


def counted(url: str) -> int:
    """Return how many rows a user counts."""
    with closing(connect(url)) as connection:
        cursor = connection.cursor()
        cursor.execute("select count(*) from records")
        return int(cursor.fetchall()[0][0])


@pytest.fixture
def go(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Callable[..., list[str]]:
    """`go(topic, store, url)` runs a program until it is caught up; it returns what it has read."""

    def run(name: str, store: str, url: str) -> list[str]:
        read: list[str] = []

        def process(frame: DataFrame, batch: Batch) -> DataFrame:
            read.append(batch.id)
            return frame.selectExpr("partition as part", "offset as place")

        how: dict[str, Any] = {"sink": Table(url, "records"), "guarantee": "exactly_once"}
        pipeline = lab.pipeline(name, store=store)
        try:
            if request.param == "run":
                pipeline.run(lab.spark, process, until="caught_up", **how)
            else:
                how |= {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}}
                pipeline.start(lab.spark, process, **how).awaitTermination()
        except Refused as error:
            raise Refused(f"{error}; read: {read}") from error
        return read

    return run


@pytest.mark.parametrize(("go", "joined"), [("run", True), ("start", False)], indirect=["go"])
def test_a_start_names_the_mark_that_another_user_has_written(
    go: Callable[..., list[str]], lab: Lab, topic: Callable[..., str], database: str, tmp_path: Path, *, joined: bool
) -> None:
    """As with a policy of a database that several share. The rows are there: it is no restored output."""
    store, name = database if joined else f"sqlite:///{tmp_path / 'offsets.db'}", topic(1)
    do(database, TABLE)
    lab.produce(name, "a", "b")
    go(name, store, database)
    role = "clerk_of_marks"
    do(database, f"do $$begin create role {role} login superuser; exception when duplicate_object then null; end$$")
    do(database, f"alter role {role} nosuperuser; grant all on all tables in schema public to {role}")
    do(database, f"grant all on schema public to {role}")
    marks = "offsetkeeper_marks"
    do(database, f"alter table {marks} add column owner text default current_user")
    do(database, f"alter table {marks} enable row level security")
    do(database, SHARED.format(marks))
    lab.produce(name, "c")
    mine = database.replace("postgres@", f"{role}@")
    with pytest.raises(Refused, match=r"cannot see or not write: row-level security of table .*; read: \[\]"):
        go(name, mine if joined else store, mine)
    assert counted(database) == 2
    go(name, store, database)
    assert counted(database) == 3


@pytest.mark.parametrize(("go", "joined"), [("run", False), ("start", True)], indirect=["go"])
def test_a_start_is_refused_where_a_trigger_takes_the_mark_at_the_commit(
    go: Callable[..., list[str]], lab: Lab, topic: Callable[..., str], database: str, tmp_path: Path, *, joined: bool
) -> None:
    """Rows would land without a mark."""
    store, name = database if joined else f"sqlite:///{tmp_path / 'offsets.db'}", topic(1)
    do(database, TABLE)
    lab.produce(name, "a", "b")
    go(name, store, database)
    do(
        database,
        "create function f() returns trigger language plpgsql as "
        "$$begin delete from offsetkeeper_marks; return null; end$$",
    )
    do(database, TRIGGER.format("offsetkeeper_marks") + "execute function f()")
    lab.produce(name, "c")
    with pytest.raises(Refused, match=r"trigger t of table offsetkeeper_marks is in the way.*; read: \[\]"):
        go(name, store, database)
    assert counted(database) == 2
