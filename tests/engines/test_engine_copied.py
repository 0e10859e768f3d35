"""A group whose rows are in the ledger's own database is copied to another store, and the old program starts again."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from engines.lab import Lab
from offsetkeeper import open_store
from offsetkeeper.errors import MarkAhead
from offsetkeeper.operate.copy import copy
from offsetkeeper.sinks import Table

TABLE = "create table records (topic varchar(249), part int, place bigint)"


def connect(url: str) -> Any:
    """Return a connection to the database of a store's URL."""
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    if url.startswith("postgresql"):
        return psycopg.connect(url)
    _, _, address = url.partition("@")
    place, _, name = address.partition("/")
    host, _, port = place.partition(":")
    return pymysql.connect(host=host, port=int(port), user="root", database=name.partition("?")[0])


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database with a table of records."""
    found = f"sqlite:///{tmp_path / 'shop.db'}"
    if request.param == "postgresql":
        found = request.getfixturevalue("database")
    elif request.param == "mysql":
        server = request.getfixturevalue("mariadb_server")
        found = server.url(server.create_database())
    with closing(connect(found)) as connection:
        connection.cursor().execute(TABLE)
        connection.commit()
    return found


def counted(url: str) -> Counter[Any]:
    """Return how often each record is in the table."""
    with closing(connect(url)) as connection:
        cursor = connection.cursor()
        cursor.execute("select part, place from records")
        return Counter(cursor.fetchall())


def move(source: str, target: str) -> None:
    with closing(open_store(source)) as old, closing(open_store(target)) as new:
        copy("group", old, new, overwrite=True)


def run(lab: Lab, name: str, store: str, url: str) -> None:
    lab.pipeline(name, store=store).run(
        lab.spark,
        lambda frame, _: frame.selectExpr("topic", "partition as part", "offset as place"),
        sink=Table(url, "records"),
        guarantee="exactly_once",
        until="caught_up",
    )


def test_the_old_program_is_refused_once_the_new_one_has_run_until_the_group_is_copied_back(
    lab: Lab, topic: Callable[..., str], url: str, tmp_path: Path
) -> None:
    """Both count on their own ledger; the rows of the second batch would come twice."""
    name, new = topic(1), f"sqlite:///{tmp_path / 'elsewhere.db'}"
    lab.produce(name, "a", "b")
    run(lab, name, url, url)
    move(url, new)
    run(lab, name, url, url)  # the new one has not run: nothing is wrong yet
    lab.produce(name, "c", "d")
    run(lab, name, new, url)
    with pytest.raises(MarkAhead, match="copied to another store") as caught:
        run(lab, name, url, url)
    assert "copy --overwrite" in str(caught.value)
    assert counted(url) == Counter({(0, offset): 1 for offset in range(4)})
    move(new, url)
    lab.produce(name, "e")
    run(lab, name, url, url)
    assert counted(url) == Counter({(0, offset): 1 for offset in range(5)})
