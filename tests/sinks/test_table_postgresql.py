"""Rows of a real Spark into a real PostgreSQL, in one transaction with their offsets."""

import datetime as dt
import math
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import RowMismatch
from offsetkeeper.sinks import Joiner, Lander, Table
from offsetkeeper.stores import open_store

UTC = dt.UTC
Connection = psycopg.Connection[Any]
Query = Callable[..., list[Any]]

# Each type with an ordinary value, one at the edge, and null.
TYPES = """
select * from values
    (1Y, 1S, 1, 1L, 0.5F, 0.1D, 1.50BD, 'a', X'00FF', true, date'2024-02-29', timestamp'2024-07-01 12:00:00.000001 UTC',
     timestamp_ntz'2024-07-01 12:00:00', array('x', null, ''), array(1, 2)),
    (-128Y, -32768S, -2147483648, -9223372036854775808L, float('NaN'), double('-Infinity'), -99999999.99BD, '', X'',
     false, date'0001-01-01', timestamp'0001-01-02 00:00:00 UTC', timestamp_ntz'9999-12-31 23:59:59.999999',
     array(), array(null)),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
as (b, s, i, l, f, d, n, t, x, y, day, at, wall, texts, ints)"""
COLUMNS = """b int2, s int2, i int4, l int8, f float4, d float8, n numeric(10, 2), t text, x bytea, y boolean, day date,
    at timestamptz, wall timestamp, texts text[], ints int4[]"""
NOON, LAST = dt.datetime(2024, 7, 1, 12), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - wall clocks
EXPECTED = [
    (
        *(1, 1, 1, 1, 0.5, 0.1, Decimal("1.50"), "a", b"\x00\xff", True, dt.date(2024, 2, 29)),
        *(NOON.replace(microsecond=1, tzinfo=UTC), NOON, ["x", None, ""], [1, 2]),
    ),
    (
        *(-128, -(2**15), -(2**31), -(2**63), "nan", -math.inf, Decimal("-99999999.99"), "", b"", False),
        *(dt.date(1, 1, 1), dt.datetime(1, 1, 2, tzinfo=UTC), LAST, [], [None]),
    ),
    (None,) * 15,
]


def write_once(ledger: Ledger, table: Table, frame: DataFrame) -> None:
    """Do what the engine does for exactly once."""
    start = ledger.snapshot.positions[TopicPartition("orders", 0)].offset
    batch = ledger.batch([OffsetRange("orders", 0, start, start + 10)])
    table.prepare(ledger.store, Guarantee.EXACTLY_ONCE)
    finish = table.rows.stage(frame, batch)
    with ledger.transaction(batch) as connection:
        finish(connection)


def without_nan(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row with a word in the place of what equals nothing."""
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in row)


def test_rows_and_offsets_are_there_together_and_nothing_else_in_postgresql(
    spark: SparkSession,
    database: str,
    ledger: Ledger,
    connection: Connection,
    rows: Query,
    committed: Callable[[], int],
    staging_tables: Callable[[], list[str]],
) -> None:
    connection.execute("create table orders (id bigint, name text)")
    write_once(
        ledger, Table(database, "orders"), spark.sql("select id, concat('n', id) as name from range(0, 1000, 1, 5)")
    )
    assert rows("select count(*), count(distinct id), min(name), max(name) from orders") == [(1000, 1000, "n0", "n999")]
    assert committed() == 10
    assert staging_tables() == []


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_every_type_arrives_as_it_is_whatever_sparks_time_zone(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query, zone: str
) -> None:
    connection.execute(f"create table kinds ({COLUMNS})".encode())
    connection.execute("set timezone = 'UTC'")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        write_once(ledger, Table(database, "kinds"), spark.sql(TYPES).repartition(2))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = rows("select * from kinds order by b desc nulls last")
    assert [without_nan(row) for row in found] == EXPECTED


def test_columns_of_other_types_take_what_they_can_hold(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute("create domain positive as bigint check (value > 0); create type colour as enum ('red', 'blue')")
    connection.execute(
        "create table kinds (small int2, big numeric, wide float8, j jsonb, u uuid, c colour, v varchar(3), "
        "p positive not null, i interval, host inet, nothing int4, names varchar(3)[])"
    )
    frame = spark.sql(
        """select 7L as small, 7L as big, 0.5F as wide, '{"a": [1]}' as j, '00000000-0000-0000-0000-000000000001' as u,
        'blue' as c, 'abc' as v, 5 as p, '2 days' as i, '10.0.0.1' as host, null as nothing, array('a') as names"""
    )
    write_once(ledger, Table(database, "kinds"), frame)
    [row] = rows("select small, big, wide, j, u::text, c, v, p, i, host::text, nothing, names from kinds")
    assert row == (
        *(7, 7, 0.5, {"a": [1]}, "00000000-0000-0000-0000-000000000001", "blue", "abc", 5),
        *(dt.timedelta(days=2), "10.0.0.1/32", None, ["a"]),
    )


def test_names_are_taken_as_they_are_and_the_database_fills_the_rest_in_postgresql(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute(
        'create schema "My Shop"; create table "My Shop"."Orders.2024" (place int generated always as identity, '
        '"Item % ""x""" text, item text default \'none\', '
        "twice text generated always as (item || item) stored, note text)"
    )
    frame = spark.createDataFrame([("tea",)], 'struct<`Item % "x"`: string>')
    write_once(ledger, Table(database, '"My Shop"."Orders.2024"'), frame)
    assert rows('select * from "My Shop"."Orders.2024"') == [(1, "tea", "none", "nonenone", None)]


def test_rows_go_into_the_partitions_of_a_table(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute(
        "create table orders (id bigint) partition by range (id); "
        "create table low partition of orders for values from (0) to (10); "
        "create table high partition of orders for values from (10) to (100)"
    )
    write_once(ledger, Table(database, "orders"), spark.range(100).toDF("id"))
    assert rows("select (select count(*) from low), (select count(*) from high)") == [(10, 90)]


def test_no_rows_are_a_batch_too(
    spark: SparkSession,
    database: str,
    ledger: Ledger,
    connection: Connection,
    rows: Query,
    committed: Callable[[], int],
) -> None:
    connection.execute("create table orders (id bigint)")
    write_once(ledger, Table(database, "orders"), spark.range(10).toDF("id").where("id < 0"))
    assert rows("select count(*) from orders") == [(0,)]
    assert committed() == 10


def test_upsert_replaces_what_is_there_and_leaves_other_columns(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute(
        "create table stock (shop text, item text, amount int, note text, primary key (item, shop)); "
        "insert into stock values ('a', 'tea', 1, 'old'), ('b', 'tea', 2, 'kept')"
    )
    frame = spark.sql("select 'tea' as item, 5 as amount, 'a' as shop union all select 'milk', 7, 'a'")
    write_once(ledger, Table(database, "stock", mode="upsert", key=("shop", "item")), frame)
    expected = [("a", "milk", 7, None), ("a", "tea", 5, "old"), ("b", "tea", 2, "kept")]
    assert rows("select * from stock order by shop, item") == expected


def test_of_rows_with_one_key_the_last_by_topic_partition_and_offset_stays(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute("create table stock (item text primary key, amount int)")
    frame = spark.sql(
        """select * from values ('tea', 1, 'a', 0, 10L), ('tea', 2, 'a', 0, 9L), ('tea', 3, 'a', 0, 11L),
        ('milk', 1, 'a', 0, 99L), ('milk', 2, 'a', 1, 5L), ('oats', 1, 'b', 0, 1L), ('oats', 2, 'a', 7, 100L)
        as (item, amount, topic, partition, offset)"""
    ).repartition(4)
    write_once(ledger, Table(database, "stock", mode="upsert", key=["item"]), frame)
    assert rows("select * from stock order by item") == [("milk", 2), ("oats", 1), ("tea", 3)]


def test_rows_with_one_key_and_no_order_are_refused_in_postgresql(
    spark: SparkSession,
    database: str,
    ledger: Ledger,
    connection: Connection,
    rows: Query,
    committed: Callable[[], int],
) -> None:
    connection.execute("create table stock (item text primary key, amount int)")
    frame = spark.sql("select 'tea' as item, 1 as amount union all select 'tea', 2")
    with pytest.raises(RowMismatch, match=r"same key \(item\).*topic, partition, offset"):
        write_once(ledger, Table(database, "stock", mode="upsert", key=["item"]), frame)
    assert rows("select * from stock") == []
    assert committed() == 0


def test_an_upsert_of_the_key_alone_adds_what_is_new(
    spark: SparkSession, database: str, ledger: Ledger, connection: Connection, rows: Query
) -> None:
    connection.execute("create table seen (id bigint primary key); insert into seen values (1)")
    write_once(ledger, Table(database, "seen", mode="upsert", key=["id"]), spark.range(3).toDF("id"))
    assert rows("select count(*) from seen") == [(3,)]


def test_it_writes_by_itself_where_the_offsets_are_elsewhere(
    spark: SparkSession,
    database: str,
    batch: Batch,
    connection: Connection,
    rows: Query,
    staging_tables: Callable[[], list[str]],
) -> None:
    connection.execute("create table orders (id bigint)")
    with closing(open_store("memory://elsewhere")) as store:
        table = Table(database, "orders")
        table.prepare(store, Guarantee.AT_LEAST_ONCE)
        for _ in range(2):
            table.rows.write(spark.range(10).toDF("id"), batch)
    assert rows("select count(*) from orders") == [(20,)]
    assert staging_tables() == []


def test_the_same_database_is_known_however_its_url_is_written(
    database: str, ledger: Ledger, connection: Connection
) -> None:
    connection.execute("create table orders (id bigint)")
    spelled = database.replace("127.0.0.1", "localhost").replace("postgresql:", "postgres:") + "?application_name=x"
    assert isinstance(Table(spelled, "orders").prepare(ledger.store, Guarantee.AT_LEAST_ONCE), Joiner)
    with closing(open_store(database.rpartition("/")[0] + "/postgres")) as other:
        assert isinstance(Table(database, "orders").prepare(other, Guarantee.EXACTLY_ONCE), Lander)
