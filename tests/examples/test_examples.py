"""Each program of the examples runs twice; what it leaves is counted. A reader sees at most 60 lines."""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyarrow import dataset

from docs.pages import ROOT
from offsetkeeper import open_store
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import values

pytestmark = pytest.mark.usefixtures("spark")
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
GOOD = sorted((number,) for number in range(30) if number % 15 for _ in range(2))
"""The orders that are not broken, produced twice."""
COUNTS = {"tea": 16, "milk": 20, "sugar": 20}
"""How many of them are of each item."""
Example = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def orders(kafka_server: KafkaServer) -> str:
    """The topic of the orders."""
    name = f"orders-{secrets.token_hex(4)}"
    program = load("make_orders", kafka_server.bootstrap, name)
    program.main()
    program.main()  # its topics are there: said, and no error
    return name


def load(name: str, brokers: str, orders: str) -> ModuleType:
    """Import a program, as if its reader had put these into it."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__dict__.update(BROKERS=brokers, ORDERS=orders)
    return module


@pytest.fixture
def example(kafka_server: KafkaServer, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """`example(name)` runs a program twice in an empty folder, and returns it."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> ModuleType:
        program = load(name, kafka_server.bootstrap, orders)
        for _ in range(2):
            program.main()
        return program

    return run


def ask(query: str) -> list[Any]:
    """Return what a query finds in the programs' database."""
    with closing(sqlite3.connect("shop.db")) as database:
        return database.execute(query).fetchall()


def test_orders_go_into_a_table_and_are_read_once_more_beside_the_job(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    example("orders_to_table")
    assert ask("select id from orders order by id") == GOOD
    assert "0 batches, 0 orders" in capsys.readouterr().out
    with closing(open_store("sqlite:///shop.db")) as store:
        before = store.load("orders")
        example("replay_beside_the_job")
        assert store.load("orders") == before
    shown = dict(re.findall(r"\| *(tea|milk|sugar)\| *(\d+)\|", capsys.readouterr().out))
    assert shown == {item: str(count) for item, count in COUNTS.items()}


def test_orders_get_their_price_on_their_way_to_another_topic(
    example: Example, kafka_server: KafkaServer, orders: str
) -> None:
    example("enrich_to_topic")
    priced = [json.loads(value) for value in values(kafka_server.bootstrap, f"{orders}.priced")]
    assert sorted((each["id"],) for each in priced) == GOOD
    assert {(each["item"], each.get("total", 0) / each["count"]) for each in priced} == {
        ("tea", 2.5),
        ("milk", 1.25),
        ("sugar", 0),
    }


def test_orders_are_counted_by_the_minute(example: Example) -> None:
    example("windows")
    assert dict(ask("select item, sum(orders) from minutes group by item")) == COUNTS


def test_orders_become_files(example: Example, tmp_path: Path) -> None:
    example("to_files")
    rows = dataset.dataset(tmp_path / "data" / "orders", format="parquet").to_table().to_pylist()
    places = {(row["partition"], row["offset"]) for row in rows}
    assert places == {(partition, offset) for partition in range(2) for offset in range(30)}
    assert sorted((row["id"],) for row in rows if row["id"] is not None) == GOOD


def test_each_output_has_its_orders_once(
    example: Example, kafka_server: KafkaServer, orders: str, tmp_path: Path
) -> None:
    example("several_outputs")
    assert ask("select id from good_orders order by id") == GOOD
    bad = [json.loads(value) for value in values(kafka_server.bootstrap, f"{orders}.bad")]
    assert [each["text"] for each in bad] == ["broken"] * 4
    assert dataset.dataset(tmp_path / "data" / "all-orders", format="parquet").count_rows() == 60


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short_and_the_page_names_it(program: Path) -> None:
    assert len(program.read_text("utf-8").splitlines()) <= 60
    assert program.name in (ROOT / "examples" / "README.md").read_text("utf-8")
