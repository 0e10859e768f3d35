"""Rows of a real Spark into a SQLite file, in one transaction with their offsets."""

import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import Refused, RowMismatch, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks import Joiner, Lander, Table
from offsetkeeper.sinks.sqlite.columns import affinity
from offsetkeeper.stores import open_store

PARTITION = TopicPartition("orders", 0)
ONCE, AT_LEAST = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE
Query = Callable[[str], list[Any]]
TYPES = """
select * from values
    (1Y, 1S, 1, 1L, 0.5F, 0.1D, 1.50BD, 'a', X'00FF', true, date'2024-02-29', timestamp'2024-07-01 12:00:00.000001 UTC',
     timestamp_ntz'2024-07-01 12:00:00', 12345678901234567890.123456789BD, null),
    (-128Y, -32768S, -2147483648, -9223372036854775808L, -0.5F, double('Infinity'), -0.01BD, '', X'', false,
     date'0001-01-01', timestamp'2024-01-01 00:00:00 UTC', timestamp_ntz'9999-12-31 23:59:59.5', 0.000000001BD, null),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
as (b, s, i, l, f, d, n, t, x, y, day, at, wall, exact, gone)"""
COLUMNS = """b integer, s smallint, i int, l bigint, f real, d double, n decimal(4, 2), t text, x blob, y boolean,
    day date, at timestamp, wall datetime, exact text, gone int"""
EXPECTED = [
    (
        *(1, 1, 1, 1, 0.5, 0.1, 1.5, "a", b"\x00\xff", 1, "2024-02-29", "2024-07-01 12:00:00.000001+00:00"),
        *("2024-07-01 12:00:00", "12345678901234567890.123456789", None),
    ),
    (
        *(-128, -(2**15), -(2**31), -(2**63), -0.5, math.inf, -0.01, "", b"", 0, "0001-01-01"),
        *("2024-01-01 00:00:00+00:00", "9999-12-31 23:59:59.5", "0.000000001", None),
    ),
    (None,) * 15,
]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """URL of a file with no table yet."""
    sqlite3.connect(tmp_path / "shop.db").close()
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def execute(tmp_path: Path) -> Iterator[Query]:
    """`execute(statement)` runs it in the file, and returns what it finds."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        yield lambda statement: connection.execute(statement).fetchall()


def write_once(ledger: Ledger, table: Table, frame: DataFrame) -> None:
    """Do what the engine does for exactly once."""
    batch = ledger.batch([OffsetRange(*PARTITION, 0, 10)])
    table.prepare(ledger.store, ONCE)
    finish = table.rows.stage(frame, batch)
    with ledger.transaction(batch) as connection:
        finish(connection)


def committed(ledger: Ledger) -> int:
    """Return the position as it is in the store."""
    return ledger.store.load(ledger.group).positions[PARTITION].offset


def live_objects(spark: SparkSession, name: str) -> int:
    """Return how many objects of a class are alive in Spark's driver."""
    java: Any = spark.sparkContext._jvm
    name_of_diagnosis = java.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    server = java.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    [invoke] = [
        each for each in java.Class.forName("javax.management.MBeanServer").getMethods() if each.getName() == "invoke"
    ]
    gateway: Any = spark.sparkContext._gateway
    options, signature = gateway.new_array(java.Object, 1), gateway.new_array(java.String, 1)
    options[0], signature[0] = gateway.new_array(java.String, 0), "[Ljava.lang.String;"
    arguments = gateway.new_array(java.Object, 4)
    arguments[0], arguments[1], arguments[2], arguments[3] = name_of_diagnosis, "gcClassHistogram", options, signature
    found = invoke.invoke(server, arguments)
    return sum(int(line.split()[1]) for line in found.splitlines() if line.split()[-1:] == [name])


def test_rows_and_offsets_are_there_together(
    spark: SparkSession, database: str, ledger: Ledger, execute: Query
) -> None:
    execute("create table orders (id integer primary key not null, name text, note text default 'none')")
    write_once(
        ledger, Table(database, "orders"), spark.sql("select id, concat('n', id) as name from range(0, 3000, 1, 5)")
    )
    assert execute("select count(*), sum(id), max(name), min(note) from orders") == [(3000, 4498500, "n999", "none")]
    assert committed(ledger) == 10


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_type_arrives_as_it_is_whatever_the_time_zone(
    spark: SparkSession, database: str, ledger: Ledger, execute: Query, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(f"create table kinds ({COLUMNS})")
    monkeypatch.setenv("TZ", zone)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        write_once(ledger, Table(database, "kinds"), spark.sql(TYPES).repartition(2))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert execute("select * from kinds order by b is null, b desc") == EXPECTED


def test_nothing_is_there_where_the_transaction_fails_in_sqlite(
    spark: SparkSession, database: str, ledger: Ledger, batch: Batch, execute: Query
) -> None:
    """And the next try writes all of it, once."""
    execute("create table orders (id int check (id < 99))")
    table = Table(database, "orders")
    finish = table.rows.stage(spark.range(100).toDF("id"), batch)
    refused = pytest.raises(SinkError, match=r"table orders: CHECK constraint failed.*nothing was written")
    with refused, ledger.transaction(batch) as connection:
        finish(connection)
    assert (execute("select count(*) from orders"), committed(ledger)) == ([(0,)], 0)
    write_once(ledger, table, spark.range(99).toDF("id"))
    assert (execute("select count(*) from orders"), committed(ledger)) == ([(99,)], 10)


def test_the_file_is_not_locked_while_rows_are_staged(
    spark: SparkSession, database: str, batch: Batch, execute: Query
) -> None:
    execute("create table orders (id int)")
    finish = Table(database, "orders").rows.stage(spark.range(10).toDF("id"), batch)
    execute("insert into orders values (-1)")
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as connection:
        finish(connection)
        connection.commit()
    assert execute("select count(*) from orders") == [(11,)]


def test_upsert_replaces_what_is_there_and_the_last_row_of_a_key_stays_in_sqlite(
    spark: SparkSession, database: str, ledger: Ledger, execute: Query
) -> None:
    execute("create table stock (shop text, item text, amount int, note text default 'new', primary key (item, shop))")
    execute("insert into stock values ('a', 'tea', 1, 'old'), ('b', 'tea', 2, 'kept')")
    frame = spark.sql(
        """select * from values ('a', 'tea', 5, 't', 0, 10L), ('a', 'tea', 7, 't', 0, 11L), ('a', 'tea', 6, 't', 0, 9L),
        ('a', 'milk', 1, 't', 1, 5L), ('a', 'milk', 2, 't', 0, 99L) as (shop, item, amount, topic, partition, offset)"""
    ).repartition(3)
    write_once(ledger, Table(database, "stock", mode="upsert", key=("shop", "item")), frame)
    expected = [("a", "milk", 1, "new"), ("a", "tea", 7, "old"), ("b", "tea", 2, "kept")]
    assert execute("select * from stock order by shop, item") == expected


def test_rows_with_one_key_and_no_order_are_refused_in_sqlite(
    spark: SparkSession, database: str, batch: Batch, execute: Query
) -> None:
    execute("create table stock (item text, amount int)")
    execute("create unique index stock_key on stock (item)")
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(RowMismatch, match=r"same key \(item\).*topic, partition, offset"):
        table.rows.stage(spark.sql("select 'tea' as item, 1 as amount union all select 'tea', 2"), batch)
    table.rows.write(spark.sql("select 'tea' as item"), batch)
    table.rows.write(spark.sql("select 'tea' as item"), batch)
    assert execute("select * from stock order by amount") == [("tea", None)]


def test_a_batch_leaves_no_job_in_the_drivers_heap(
    spark: SparkSession, database: str, batch: Batch, execute: Query
) -> None:
    """Spark 4.2 keeps each job of a `DataFrame.toLocalIterator` for ever."""
    execute("create table orders (id int)")
    table = Table(database, "orders")

    def write(batches: int) -> int:
        for _ in range(batches):
            table.rows.write(spark.range(8, numPartitions=2).toDF("id"), batch)
        return live_objects(spark, "org.apache.spark.scheduler.ActiveJob")

    before = write(2)
    assert write(10) < before + 10
    assert execute("select count(*), sum(id) from orders") == [(12 * 8, 12 * 28)]


@pytest.mark.parametrize("columns", ["id int primary key, note text", "id int primary key, topic text, note text"])
def test_each_partition_is_computed_once_and_each_row_arrives_once(
    spark: SparkSession, tmp_path: Path, database: str, batch: Batch, execute: Query, columns: str
) -> None:
    """Also where the rows must be put in order, and are different each time they are computed."""
    execute(f"create table orders ({columns})")
    computed = tmp_path / "computed"

    def noted(batches: Iterator[Any]) -> Iterator[Any]:
        with computed.open("a") as file:
            file.write("once\n")
        yield from batches

    frame = spark.range(5000, numPartitions=4).selectExpr(
        "int(id) as id", "uuid() as note", "'t' as topic", "int(rand() * 9) as partition", "id as offset"
    )
    Table(database, "orders", mode="upsert", key=["id"]).rows.write(frame.mapInArrow(noted, frame.schema), batch)
    assert computed.read_text() == "once\n" * 4
    assert execute("select count(*), count(distinct id), count(distinct note) from orders") == [(5000,) * 3]


def test_the_last_row_of_a_key_stays_wherever_it_was_computed(
    spark: SparkSession, database: str, batch: Batch, execute: Query
) -> None:
    execute("create table stock (item text collate nocase primary key, amount int)")
    frame = spark.range(6000, numPartitions=1).selectExpr(
        "concat(if(id % 2 = 0, 'tea', 'TEA'), id % 3) as item", "int(id) as amount", "'t' as topic", "0 as partition",
        "id as offset",
    )  # fmt: skip
    table = Table(database, "stock", mode="upsert", key=["item"], same_keys="as the column")
    table.rows.write(frame.repartition(4, "item").sortWithinPartitions("amount"), batch)
    assert execute("select item, amount from stock order by 2") == [("TEA0", 5997), ("tea1", 5998), ("TEA2", 5999)]


def test_a_missing_file_or_table_is_told_and_not_made(
    tmp_path: Path, database: str, ledger: Ledger, execute: Query
) -> None:
    with pytest.raises(Refused, match=r"nowhere.db: unable to open.*create the database"):
        Table(f"sqlite:///{tmp_path}/nowhere.db", "orders").prepare(ledger.store, AT_LEAST)
    assert not (tmp_path / "nowhere.db").exists()
    execute("create table orders (id int)")
    execute("create view some as select * from orders")
    for name in ("Orders", "some"):
        with pytest.raises(Refused, match=f"has no table {name}"):
            Table(database, name).prepare(ledger.store, AT_LEAST)
    with pytest.raises(SettingsError, match="no schema 'sales'"):
        Table(database, "sales.orders")
    Table(database, "main.orders").prepare(ledger.store, ONCE)


@pytest.mark.parametrize("index", ["", "(id, name)", "(id) where id > 0"])
def test_an_upsert_needs_a_unique_index_on_its_key_in_sqlite(
    database: str, ledger: Ledger, execute: Query, index: str
) -> None:
    execute("create table orders (id int, name text primary key)")
    if index:
        execute(f"create unique index one on orders {index}")
    with pytest.raises(Refused, match=r'create unique index "orders_key" on "orders" \("id"\)'):
        Table(database, "orders", mode="upsert", key=["id"]).prepare(ledger.store, ONCE)
    Table(database, "orders", mode="upsert", key=["name"]).prepare(ledger.store, ONCE)


def test_the_statement_for_a_unique_index_is_one_that_works_in_sqlite(
    database: str, ledger: Ledger, execute: Query
) -> None:
    execute('create table "Order" ("Group By" int)')
    table = Table(database, "main.Order", mode="upsert", key=["Group By"])
    with pytest.raises(Refused) as told:
        table.prepare(ledger.store, ONCE)
    execute(str(told.value).rpartition(": ")[2])
    table.prepare(ledger.store, ONCE)


def test_rows_join_the_offsets_in_the_same_file_however_its_path_is_written(
    tmp_path: Path, database: str, ledger: Ledger, execute: Query
) -> None:
    execute("create table orders (id int)")
    (tmp_path / "link.db").symlink_to(tmp_path / "shop.db")
    relative = os.path.relpath(tmp_path / "shop.db")
    for same in (f"sqlite:///{tmp_path}/link.db", f"sqlite:///{relative}", f"sqlite:///{tmp_path}/./shop.db?timeout=5"):
        assert isinstance(Table(same, "orders").prepare(ledger.store, ONCE), Joiner)
    for other in (f"sqlite:///{tmp_path}/other.db", "memory://x"):
        with closing(open_store(other)) as store:
            store.load("shop")
            assert isinstance(Table(database, "orders").prepare(store, ONCE), Lander)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("'1' as id", "string into INT does not fit: SQLite stores INTEGER there"),
        ("1 as id, 1 as name", "int into TEXT does not fit"),
        ("1 as id, 1.5D as id2", "the table has no column id2"),
        ("'a' as name", "column id .INT. must have a value"),
        ("1 as id, array(1) as name", "use to_json"),
        ("1 as id, 1 as twice", "generated by the database"),
        ("1 as id, 1234567890.1234567890BD as price", "does not fit"),
        ("1 as id, X'00' as name", "binary into TEXT"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_a_task_runs_in_sqlite(
    spark: SparkSession, database: str, batch: Batch, execute: Query, columns: str, message: str
) -> None:
    execute("create table orders (id INT not null, name TEXT, price NUMERIC, twice INT generated always as (id * 2))")
    frame = spark.sql(f"select {columns}, raise_error('a task ran') as ran").drop("ran")
    with pytest.raises(SinkMismatch, match=message):
        Table(database, "orders").rows.stage(frame, batch)


def test_nan_is_refused_as_sqlite_would_make_it_null(
    spark: SparkSession, database: str, batch: Batch, execute: Query
) -> None:
    execute("create table orders (amount real)")
    with pytest.raises(RowMismatch, match="column amount: SQLite has no NaN"):
        Table(database, "orders").rows.write(spark.sql("select double('NaN') as amount"), batch)


def test_a_locked_file_fails_the_batch(
    spark: SparkSession, database: str, batch: Batch, execute: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute("create table orders (id int)")
    monkeypatch.setattr("offsetkeeper.sinks.sqlite.TIMEOUT_S", 0.05)
    execute("begin immediate")
    with pytest.raises(SinkError, match="database is locked; nothing was written"):
        Table(database, "orders").rows.write(spark.range(3).toDF("id"), batch)
    execute("rollback")
    Table(database, "orders").rows.write(spark.range(3).toDF("id"), batch)
    assert execute("select count(*) from orders") == [(3,)]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("", "BLOB"),
        ("any", "NUMERIC"),
        ("blob", "BLOB"),
        ("Varchar(9)", "TEXT"),
        ("CHARINT", "INTEGER"),
        ("FLOATING POINT", "INTEGER"),
        ("double", "REAL"),
        ("decimal(9, 2)", "NUMERIC"),
        ("datetime", "NUMERIC"),
    ],
)
def test_affinity_follows_sqlites_rules(declared: str, expected: str) -> None:
    assert affinity(declared) == expected


def test_a_table_that_is_made_again_under_its_staged_rows_gets_none_of_them(
    spark: SparkSession, ledger: Ledger, batch: Batch, database: str, execute: Query
) -> None:
    """Its new type would take the long text of digits for a number, and round it."""
    execute("create table orders (code text)")
    table, frame = Table(database, "orders"), spark.sql("select '12345678901234567890' as code")
    finish = table.rows.stage(frame, batch)
    execute("drop table orders")
    execute("create table orders (code numeric)")
    with pytest.raises(SinkError, match="altered while rows were staged"), ledger.transaction(batch) as connection:
        finish(connection)
    assert execute("select count(*) from orders") == [(0,)]
