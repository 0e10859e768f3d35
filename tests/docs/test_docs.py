"""Every Python block of README and docs runs, in the order written, against real servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from docs.pages import PAGES, ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetkeeper.testing.cassandra import CassandraServer
    from offsetkeeper.testing.kafka import KafkaServer
    from offsetkeeper.testing.postgresql import PostgreSQLServer

pytestmark = pytest.mark.xdist_group("test_cassandra")  # where that server is

LINK = re.compile(r"\]\(([^)#:]+)\)")
NODES = "cassandra://localhost/shop"
HASH = "redis://localhost:6379/0"
TABLES = """
create table orders (topic text, partition integer, "offset" bigint, item text);
create table archive (topic text, partition integer, "offset" bigint, item text);
create unique index archived on archive (topic, partition, "offset");
create table totals (topic text, orders bigint);
insert into totals values ('orders', 0);
create table prices (item text, price double precision);
insert into prices values ('tea', 2.5), ('milk', 1.25);
create table payments (id bigint, amount numeric(12,2), paid_at timestamptz);
"""
PAYMENTS = (
    '{"id": 1, "amount": 12.50, "paid_at": "2026-01-31T12:00:00.123456+01:00"}',
    '{"id": 2, "amount": 12.345, "paid_at": "2026-01-31 12:00:00"}',
    '{"id": 3, "amount": "much"}',
)


@pytest.fixture(scope="module")
def orders(kafka_server: KafkaServer) -> str:
    """The topic `orders` with three records; returns the broker's address."""
    for name in (
        "orders",
        "orders.louder",
        "orders.priced",
        "orders.bad",
        "orders.parsed",
        "orders.dead",
        "orders.letters",
        "payments",
    ):
        kafka_server.create_topic(name, 1)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for item in ("tea", "milk", "sugar"):
        producer.produce("orders", item)
    for payment in PAYMENTS:
        producer.produce("payments", payment)
    assert producer.flush(30) == 0
    return kafka_server.bootstrap


@pytest.fixture(scope="module")
def databases() -> dict[str, str]:
    """URL of the database that a page had, by its name."""
    return {}


@pytest.fixture(scope="module")
def nodes(cassandra_server: CassandraServer) -> str:
    """URL of a keyspace with the table `stock`."""
    keyspace = cassandra_server.create_keyspace()
    with cassandra_server.session() as session:
        session.execute(f"CREATE TABLE {keyspace}.stock (item text PRIMARY KEY, seen timestamp)")
        session.execute(f"INSERT INTO {keyspace}.stock (item) VALUES ('tea')")  # noqa: S608 - a word
    return cassandra_server.url(keyspace)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_block_of_a_page_runs(
    page: Path,
    orders: str,
    spark: SparkSession,
    postgresql_server: PostgreSQLServer,
    databases: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks of a page share their names, as a reader would type them."""
    databases[page.name] = shop = postgresql_server.url(postgresql_server.create_database())
    with psycopg.connect(shop) as connection:
        connection.execute(TABLES)
    monkeypatch.chdir(tmp_path)
    Path("back.csv").write_text("orders,0,1\n", "utf-8")  # as a command of a page writes it
    names = {"spark": spark}
    places = {"localhost:9092": orders, "postgresql://localhost/shop": shop}
    if NODES in page.read_text("utf-8"):
        places[NODES] = request.getfixturevalue("nodes")
    if any(HASH in block for block in blocks(page)):
        places[HASH] = request.getfixturevalue("redis_server").url()
    places |= {f'"{folder}/': f'"{tmp_path}/{folder.strip("/")}/' for folder in ("orders", "/data")}
    for number, block in enumerate(blocks(page)):
        code = block
        for place, real in places.items():
            code = code.replace(place, real)
        exec(compile(code, f"{page.name}, block {number + 1}", "exec"), names)  # noqa: S102 - what is under test


def test_the_store_of_the_page_on_stores_passes_the_suite(tmp_path: Path) -> None:
    """As its reader would run it; and without its check of what a change builds on it does not."""
    code = "\n\n".join(blocks(ROOT / "docs" / "write-a-store.md"))
    broken = code.replace(
        "if not change.builds_on(found) or found.positions != change.before.positions or moved:", "if False:"
    )
    assert broken != code
    for text, expected in ((code, 0), (broken, 1)):
        path = tmp_path / "test_dict_store.py"
        path.write_text(text, "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    """A link within the project leads somewhere."""
    for link in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


def test_the_readme_is_short() -> None:
    """At most 500 words."""
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 500


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders.louder", ["MILK", "SUGAR", "TEA"]),
        ("orders.priced", [{"item": "milk", "price": 1.25}, {"item": "sugar"}, {"item": "tea", "price": 2.5}]),
        ("orders.parsed", [{"offset": 1}, {"offset": 2}]),
        ("orders.dead", ["tea"]),
        ("orders.bad", [{"item": "tea", "offset": 0, "partition": 0, "topic": "orders", "why": "too short"}]),
    ],
)
def test_what_the_pages_on_outputs_write_is_there_once(orders: str, topic: str, expected: list[object]) -> None:
    """After its blocks have run, in the test above: counted as a consumer does."""
    consumer = Consumer({"bootstrap.servers": orders, "group.id": "count", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        text = (message.value() or b"").decode()
        found.append(json.loads(text) if text.startswith("{") else text)
    consumer.close()
    assert sorted(found, key=str) == expected


def test_what_the_recipes_write_is_there_once(databases: dict[str, str]) -> None:
    """After their blocks have run: amounts and times of JSON as PostgreSQL keeps them, and each dead letter mended."""
    with psycopg.connect(databases["recipes.md"], options="-c TimeZone=UTC") as connection:
        paid = connection.execute("select id, amount::text, paid_at::text from payments order by id").fetchall()
        mended = connection.execute('select partition, "offset", item from orders order by 2').fetchall()
    assert paid == [
        (1, "12.50", "2026-01-31 11:00:00.123456+00"),
        (2, "12.35", "2026-01-31 12:00:00+00"),
        (3, None, None),
    ]
    assert mended == [(0, 0, "tea"), (0, 1, "milk"), (0, 2, "sugar")]


def test_what_the_page_on_sinks_upserts_is_there(nodes: str, cassandra_server: CassandraServer) -> None:
    """After its blocks have run: a short item is deleted, also where somebody else had put it there."""
    with cassandra_server.session() as session:
        rows = session.execute(f"SELECT item FROM {nodes.rpartition('/')[2]}.stock")  # noqa: S608 - a word
        assert sorted(row.item for row in rows) == ["milk", "sugar"]


def test_the_recipe_takes_values_apart(spark: SparkSession) -> None:
    """A schema id of more than one byte; and what has no five bytes, or no value."""
    names: dict[str, Any] = {}
    [block] = [block for block in blocks(ROOT / "docs" / "recipes.md") if "def unframed" in block]
    exec(block, names)  # noqa: S102 - what is under test
    values = [b'\0\0\0\1\2{"item": "tea"}', b"\0\0\0\0\7{", b'{"item": "tea"}', b"\0\0\0\0\7", None]
    found = names["items"](spark.createDataFrame([(value,) for value in values], "value binary"))
    rows = found.selectExpr("framed", "schema_id", "order.item", "order is null").collect()
    assert [tuple(row) for row in rows] == [
        (True, 258, "tea", False),
        (True, 7, None, False),
        (False, None, None, True),
        (False, None, None, True),
        (False, None, None, True),
    ]
