"""What a table in PostgreSQL refuses, when, and with which words."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import OffsetkeeperError, Refused, RowMismatch, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks import Table
from offsetkeeper.testing.server import free_port

ONCE, AT_LEAST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
Connection = psycopg.Connection[Any]
SECRET = "hunter2"


@pytest.fixture
def orders(connection: Connection) -> Connection:
    """A connection to a database with a table of orders."""
    connection.execute("create table orders (id bigint not null, amount numeric(10, 2), at timestamptz, raw bytea)")
    return connection


def refusal(table: Table, ledger: Ledger, guarantee: Guarantee = ONCE) -> str:
    """Return why the table is refused at the start of a run."""
    with pytest.raises(Refused) as refused:
        table.prepare(ledger.store, guarantee)
    return str(refused.value)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("name", ["Orders", "nowhere.orders", "order", '"public.orders"', "public"])
def test_a_table_that_is_not_there_is_told_at_the_start(database: str, ledger: Ledger, name: str) -> None:
    assert "create it first, or correct the name" in refusal(Table(database, name), ledger)


def test_a_view_is_refused(database: str, ledger: Ledger, orders: Connection) -> None:
    orders.execute("create view big as select * from orders")
    assert "is a view or a foreign table" in refusal(Table(database, "big"), ledger)


@pytest.mark.parametrize(
    "index",
    ["", "unique index on orders (id, amount)", "unique index on orders (id) where amount > 0", "index on orders (id)"],
)
def test_an_upsert_needs_a_unique_index_on_its_key_in_postgresql(
    database: str, ledger: Ledger, orders: Connection, index: str
) -> None:
    if index:
        orders.execute(f"create {index}".encode())
    table = Table(database, "orders", mode="upsert", key=["id"])
    assert "create unique index orders_key on orders (id)" in refusal(table, ledger)
    orders.execute("create unique index on orders (id) include (amount)")
    table.prepare(ledger.store, ONCE)


def test_statements_that_are_told_are_such_that_work(database: str, ledger: Ledger, orders: Connection) -> None:
    """Whatever characters and words names have."""
    orders.execute('create table "Order" ("group" int); drop role if exists novice; create role novice login')
    table = Table(database, "Order", mode="upsert", key=["group"])
    orders.execute(refusal(table, ledger).rpartition(": ")[2].encode())
    table.prepare(ledger.store, ONCE)
    why = refusal(Table(database.replace("postgres@", "novice@"), "Order"), ledger, AT_LEAST)
    assert 'grant insert on "Order"' in why
    assert "grant create on schema public (" in why


def test_an_upsert_into_a_table_with_heirs_is_refused(
    spark: SparkSession, database: str, ledger: Ledger, batch: Batch, orders: Connection
) -> None:
    """Of a key that an heir had, there were two rows. An heir has its own index, and a trigger may know better."""
    orders.execute("create unique index on orders (id)")
    frame = spark.sql("select 1L as id, 2BD as amount")
    words: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
    table, trusted = (Table(database, "orders", **words, fewer_rows=each) for each in ("refuse", "as the table"))
    table.prepare(ledger.store, ONCE)
    orders.execute("create table heir (unique (id)) inherits (orders); insert into heir values (1)")
    for each in (table, trusted):
        assert "orders has the heir heir" in refusal(each, ledger)
        with pytest.raises(Refused, match=r"the unique index on \(id\) does not know, .*give the heir itself"):
            each.rows.write(frame, batch)
    assert orders.execute("select id, amount from orders").fetchall() == [(1, None)]
    Table(database, "heir", **words).rows.write(frame, batch)
    assert orders.execute("select id, amount from orders").fetchall() == [(1, 2)]
    orders.execute(
        "create function sent() returns trigger language plpgsql as 'begin "
        "insert into heir select new.* on conflict (id) do update set amount = excluded.amount + 1; return null; end'; "
        "create trigger sent before insert on orders for each row execute function sent()"
    )
    trusted.rows.write(frame, batch)
    assert orders.execute("select id, amount from orders").fetchall() == [(1, 3)]
    Table(database, "orders").prepare(ledger.store, ONCE)


def test_a_user_without_permissions_is_told_each_one(database: str, ledger: Ledger, orders: Connection) -> None:
    orders.execute("drop role if exists novice; create role novice login; create unique index on orders (id)")
    url = database.replace("postgres@", "novice@")
    why = refusal(Table(url, "orders", mode="upsert", key=["id"]), ledger, AT_LEAST)
    assert "user novice lacks" in why
    for remedy in ("insert on orders", "update on orders", "select on orders", "create on schema public"):
        assert f"grant {remedy}" in why
    orders.execute("grant insert on orders to novice; grant create on schema public to novice")
    Table(url, "orders").prepare(ledger.store, AT_LEAST)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1L as id, 1.5BD as amount, 2 as nope", "the table has no column nope"),
        ("1.5BD as amount", r"column id \(bigint\) must have a value"),
        ("'1' as id", "column id: string into bigint does not fit: cast"),
        ("1L as id, 1.555BD as amount", r"decimal\(4,3\) into numeric\(10,2\) would be rounded"),
        ("1L as id, 1.5D as amount", r"double into numeric\(10,2\) would be rounded: cast to decimal"),
        ("1L as id, timestamp_ntz'2024-01-01 00:00:00' as at", "has no time zone: make the column timestamp, or cast"),
        ("1L as id, array(1) as at", "only one of both is an array"),
        ("1L as id, map('a', 1) as raw", "to_json"),
        ("1L as id, struct(1) as raw", "to_json"),
        ("1L as id, 'a' as raw", "string into bytea does not fit"),
        ("1L as id, array(array(1)) as raw", "to_json"),
        ("1L as id, interval '1' day as at", "to_json"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_a_task_runs_in_postgresql(
    spark: SparkSession,
    database: str,
    batch: Batch,
    orders: Connection,
    staging_tables: Callable[[], list[str]],
    columns: str,
    message: str,
) -> None:
    frame = spark.sql(f"select {columns}, raise_error('a task ran') as ran").drop("ran")
    with pytest.raises(SinkMismatch, match=message):
        Table(database, "orders").rows.stage(frame, batch)
    assert orders.execute("select count(*) from orders").fetchall() == [(0,)]
    assert staging_tables() == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("cast(null as bigint) as id, 1BD as amount", r"column id \(bigint\) must have a value"),
        (
            "1L as id, 1e9BD as amount",
            r"column amount \(numeric\(10,2\)\): 1000000000 is more than 99999999.99",
        ),
    ],
)
def test_values_that_do_not_fit_fail_the_whole_batch_in_postgresql(
    spark: SparkSession,
    database: str,
    batch: Batch,
    orders: Connection,
    columns: str,
    message: str,
) -> None:
    frame = spark.sql(f"select 1L as id, cast(null as decimal(10, 0)) as amount union all select {columns}")
    with pytest.raises(RowMismatch, match=f"{message}.*nothing was written"):
        Table(database, "orders").rows.stage(frame, batch)
    assert orders.execute("select count(*) from orders").fetchall() == [(0,)]


@pytest.mark.parametrize(
    "url", ["postgresql://clerk:{}@127.0.0.1:{port}/shop", "postgresql://clerk:{}@nowhere.invalid/x"]
)
def test_a_server_that_is_not_there_is_told_without_the_password(ledger: Ledger, url: str) -> None:
    table = Table(url.format(SECRET, port=free_port()), "orders")
    with pytest.raises(OffsetkeeperError) as refused:
        table.prepare(ledger.store, AT_LEAST)
    assert isinstance(refused.value, SinkError | Refused)
    assert SECRET not in repr(table) + str(refused.value) + repr(refused.value)


@pytest.mark.parametrize(
    "url", ["postgresql://u:{}/x@host/shop", "postgresql://u:{}@host:no/shop", "postgresql://h/d?x={}"]
)
def test_a_wrong_url_is_refused_at_once_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Table(url.format(SECRET), "orders")
    assert SECRET not in str(refused.value)


@pytest.mark.usefixtures("orders")
def test_plans_do_not_show_the_password(spark: SparkSession, database: str, batch: Batch) -> None:
    """Nor do the texts that Spark's page and event log show."""
    seen: list[str] = []
    frame = spark.range(3).toDF("id")
    kind: Any = type(frame)
    original = kind.mapInArrow

    def watched(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        seen.append(result._jdf.queryExecution().toString())
        return result

    with (
        pytest.MonkeyPatch.context() as patch
    ):  # there is no other way to see the plan of a frame that is not given out
        patch.setattr(kind, "mapInArrow", watched)
        Table(database.replace("postgres@", f"postgres:{SECRET}@"), "orders").rows.write(frame, batch)
    assert "MapInArrow" in seen[0]
    assert SECRET not in seen[0]
