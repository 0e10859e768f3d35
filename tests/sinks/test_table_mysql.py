"""Rows of a real Spark into a real MariaDB, in one transaction with their offsets; and what is refused."""

import datetime as dt
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from typing import Any

import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import Fenced, Refused, RowMismatch, SinkError, SinkMismatch
from offsetkeeper.sinks import Joiner, Lander, Table
from offsetkeeper.sinks.mysql.columns import find_table
from offsetkeeper.sinks.mysql.staging import drop
from offsetkeeper.sinks.table import parse_target
from offsetkeeper.stores import open_store
from offsetkeeper.testing.mariadb import MariaDBServer

PARTITION = TopicPartition("orders", 0)
ONCE = Guarantee.EXACTLY_ONCE
Query = Callable[..., list[Any]]
SECRET = "hunter2"
# Each type with an ordinary value, one at the edge, and null.
TYPES = """
select * from values
    (1Y, 1S, 1, 1L, 0.1F, 0.1D, 1.50BD, 'a', X'00FF275C', true, date'2024-02-29',
     timestamp'2024-07-01 12:00:00.000001 UTC', timestamp_ntz'2024-07-01 12:00:00', '{"a": [1]}', null),
    (-128Y, -32768S, -2147483648, -9223372036854775808L, -3.4028234E38F, 1.7976931348623157E308D, -99999999.99BD,
     'it\\'s \\\\ a \U0001f600%s \\n', X'', false, date'0001-01-01',
     timestamp'2038-01-19 03:14:07 UTC', timestamp_ntz'9999-12-31 23:59:59.999999', '[]', null),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
as (b, s, i, l, f, d, n, t, x, y, day, at, wall, j, gone)"""
COLUMNS = """b tinyint, s smallint, i int, l bigint, f float, d double, n decimal(10, 2), t text, x blob, y boolean,
    day date, at timestamp(6) null, wall datetime(6), j json, gone int"""
UTF8 = "character set utf8mb4"
EXPECTED = [
    (
        *(1, 1, 1, 1, 0.1, 0.1, Decimal("1.50"), "a", b"\x00\xff'\\", 1, dt.date(2024, 2, 29)),
        *(dt.datetime(2024, 7, 1, 12, microsecond=1), dt.datetime(2024, 7, 1, 12), '{"a": [1]}', None),  # noqa: DTZ001 - as the client has it
    ),
    (
        *(-128, -(2**15), -(2**31), -(2**63), -3.40282e38, math.nextafter(math.inf, 0), Decimal("-99999999.99")),
        *("it's \\ a \U0001f600%s \n", b"", 0, dt.date(1, 1, 1), dt.datetime(2038, 1, 19, 3, 14, 7)),  # noqa: DTZ001
        *(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), "[]", None),  # noqa: DTZ001
    ),
    (None,) * 15,
]


@pytest.fixture
def database(mariadb_server: MariaDBServer) -> str:
    """URL of an empty MariaDB database for this test."""
    return mariadb_server.url(mariadb_server.create_database())


@pytest.fixture
def rows(database: str, mariadb_server: MariaDBServer) -> Iterator[Query]:
    """`rows(statement)` runs it in the database, and returns what it finds."""
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "autocommit": True}
    with pymysql.connect(**settings, database=database.rpartition("/")[2], init_command="set time_zone='+00:00'") as it:

        def query(text: str) -> list[Any]:
            with it.cursor() as cursor:
                cursor.execute(text)
                return [*cursor.fetchall()]

        yield query


@pytest.fixture
def staging_tables(rows: Query) -> Callable[[], list[str]]:
    """`staging_tables()` returns the names of those that are there."""
    return lambda: [name for (name,) in rows("show tables like 'offsetkeeper\\_%\\_%'")]


def write_once(ledger: Ledger, table: Table, frame: DataFrame) -> None:
    """Do what the engine does for exactly once."""
    start = ledger.snapshot.positions[PARTITION].offset
    batch = ledger.batch([OffsetRange(*PARTITION, start, start + 10)])
    way = table.prepare(ledger.store, ONCE)
    assert isinstance(way, Joiner)
    finish = way.stage(frame, batch)
    with ledger.transaction(batch) as connection:
        finish(connection)


def committed(ledger: Ledger) -> int:
    """Return the position as it is in the store."""
    return ledger.store.load(ledger.group).positions[PARTITION].offset


def test_rows_and_offsets_are_there_together_and_nothing_else_in_mysql(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query, staging_tables: Callable[[], list[str]]
) -> None:
    rows("create table orders (id bigint, name text)")
    table = Table(database, "orders")
    for _ in range(2):
        write_once(ledger, table, spark.sql("select id, concat('n', id) as name from range(0, 1000, 1, 3)"))
    assert rows("select count(*), count(distinct id), min(name), max(name) from orders") == [(2000, 1000, "n0", "n999")]
    assert (committed(ledger), staging_tables()) == (20, [])


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_every_type_arrives_as_it_is_whatever_the_time_zones(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query, zone: str
) -> None:
    rows(f"create table kinds ({COLUMNS}) {UTF8}")
    spark.conf.set("spark.sql.session.timeZone", zone)
    rows("set global time_zone = '-07:00'")
    try:
        write_once(ledger, Table(database, "kinds"), spark.sql(TYPES).repartition(2))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        rows("set global time_zone = 'SYSTEM'")
    assert rows("select * from kinds order by b is null, b desc") == EXPECTED
    assert rows("select count(*) from kinds where f = cast(0.1 as float) or f < -3.402823e38") == [(2,)]


def test_exact_numbers_stay_exact(spark: SparkSession, database: str, ledger: Ledger, rows: Query) -> None:
    rows("create table kinds (n decimal(38, 9), d double, wide bigint unsigned)")
    frame = spark.sql(
        "select 0.000000001BD as n, double(id) / 3 as d, id as wide from range(50) "
        "union all select 12345678901234567890123456789.123456789BD, 5e-324D, 9223372036854775807L"
    )
    write_once(ledger, Table(database, "kinds"), frame)
    expected = [(Decimal("0.000000001"), n / 3, n) for n in range(50)]
    expected += [(Decimal("12345678901234567890123456789.123456789"), 5e-324, 2**63 - 1)]
    assert rows("select * from kinds order by wide") == expected


def test_names_are_taken_as_they_are_and_the_database_fills_the_rest_in_mysql(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    rows(
        'create table `Orders.%s 2024` (place int auto_increment primary key, `Item % "x"` text, '
        "item text default 'none', twice text as (concat(item, item)), note text)"
    )
    frame = spark.createDataFrame([("tea",)], 'struct<`Item % "x"`: string>')
    write_once(ledger, Table(database, '"Orders.%s 2024"'), frame)
    assert rows("select * from `Orders.%s 2024`") == [(1, "tea", "none", "nonenone", None)]


def test_a_number_that_the_database_would_give_is_kept_as_it_is(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    """MySQL takes 0 for a request of the next one."""
    rows("create table orders (id int auto_increment primary key)")
    write_once(ledger, Table(database, "orders"), spark.range(3).selectExpr("int(id) as id"))
    assert rows("select id from orders order by id") == [(0,), (1,), (2,)]


def test_upsert_replaces_what_is_there_and_the_last_row_of_a_key_stays_in_mysql(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    rows(
        "create table stock (id int auto_increment primary key, shop varchar(9), item varchar(9), amount int, "
        "note text, "
        "unique key (item, shop)) collate utf8mb4_bin"
    )
    rows("insert into stock (shop, item, amount, note) values ('a', 'tea', 1, 'old'), ('b', 'tea', 2, 'kept')")
    frame = spark.sql(
        """select * from values ('a', 'tea', 5, 't', 0, 10L), ('a', 'TEA', 7, 't', 0, 11L), ('a', 'tea', 6, 't', 0, 9L),
        ('a', 'milk', 1, 't', 1, 5L), ('a', 'milk', 2, 't', 0, 99L) as (shop, item, amount, topic, partition, offset)"""
    ).repartition(3)
    write_once(ledger, Table(database, "stock", mode="upsert", key=("shop", "item")), frame)
    expected = [("a", "TEA", 7, None), ("a", "milk", 1, None), ("a", "tea", 5, "old"), ("b", "tea", 2, "kept")]
    assert rows("select shop, item, amount, note from stock order by 1, 2") == expected


def test_of_many_rows_with_one_key_the_last_stays(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    rows("create table stock (item int primary key, amount bigint)")
    frame = spark.range(20000, numPartitions=1).selectExpr(
        "int(id % 3) as item", "id as amount", "'t' as topic", "0 as partition", "id as offset"
    )
    write_once(ledger, Table(database, "stock", mode="upsert", key=["item"]), frame.repartition(4))
    assert rows("select * from stock order by item") == [(0, 19998), (1, 19999), (2, 19997)]


@pytest.mark.usefixtures("all_staged")
def test_rows_with_one_key_and_no_order_are_refused_in_mysql(
    spark: SparkSession, database: str, batch: Batch, rows: Query, staging_tables: Callable[[], list[str]]
) -> None:
    """Equal is what the table's collation says, where that is meant."""
    rows("create table stock (item varchar(9) unique, amount int)")
    table = Table(database, "stock", mode="upsert", key=["item"], same_keys="as the column")
    with pytest.raises(RowMismatch, match=r"same key \(item\).*topic, partition, offset"):
        table.rows.stage(spark.sql("select 'tea' as item, 1 as amount union all select 'TEA', 2"), batch)
    assert staging_tables() == []
    table.rows.write(spark.sql("select 'tea' as item, 1 as amount"), batch)
    for _ in range(2):
        table.rows.write(spark.sql("select 'TEA' as item"), batch)
    assert rows("select * from stock order by amount") == [("TEA", 1)]


def test_the_statement_for_a_unique_index_is_one_that_works_in_mysql(
    database: str, ledger: Ledger, rows: Query
) -> None:
    rows("create table `Order` (`Group By` int not null)")
    table = Table(database, "Order", mode="upsert", key=["Group By"])
    with pytest.raises(Refused) as told:
        table.prepare(ledger.store, ONCE)
    rows(str(told.value).rpartition(": ")[2])
    table.prepare(ledger.store, ONCE)


@pytest.mark.parametrize("staged", [False, True])
def test_rows_land_on_a_server_that_makes_no_table_without_a_primary_key(
    request: pytest.FixtureRequest, spark: SparkSession, database: str, ledger: Ledger, rows: Query, *, staged: bool
) -> None:
    """As sql_require_primary_key of MySQL asks for, for temporary tables too."""
    if staged:
        request.getfixturevalue("all_staged")
    rows("create table orders (id bigint primary key)")
    rows("set global innodb_force_primary_key = on")
    try:
        with pytest.raises(pymysql.Error, match="requires a primary key"):
            rows("create table other (id bigint)")
        write_once(ledger, Table(database, "orders"), spark.range(100, numPartitions=2).toDF("id"))
    finally:
        rows("set global innodb_force_primary_key = off")
    assert (rows("select count(*) from orders"), committed(ledger)) == ([(100,)], 10)


def test_an_upsert_that_could_take_another_index_for_its_key_is_refused(
    spark: SparkSession, database: str, ledger: Ledger, batch: Batch, rows: Query
) -> None:
    rows(
        "create table stock (id int auto_increment primary key, item varchar(9) collate utf8mb4_bin not null, code int)"
    )
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(Refused, match=r"create unique index `stock_key` on `stock` \(`item`\)"):
        table.prepare(ledger.store, ONCE)
    rows("create unique index stock_key on stock (item)")
    table.prepare(ledger.store, ONCE)
    with pytest.raises(Refused, match="other unique indexes than the one on its key: PRIMARY"):
        table.rows.stage(spark.sql("select 1 as id, 'tea' as item"), batch)
    rows("create unique index code on stock (code)")
    with pytest.raises(Refused, match="other unique indexes than the one on its key: code"):
        table.prepare(ledger.store, ONCE)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1L as id, 2 as nope", "the table has no column nope"),
        ("1.5BD as amount", r"column id \(bigint\(20\)\) must have a value"),
        ("'1' as id", "column id: string into bigint.* does not fit: cast"),
        ("1L as id, 1.555BD as amount", r"decimal\(4,3\) into decimal\(10,2\) would be rounded"),
        ("1L as id, 1.5D as amount", r"double into decimal\(10,2\) would be rounded: cast to decimal"),
        ("1L as id, timestamp_ntz'2024-01-01 00:00:00' as at", "has no time zone: make the column datetime"),
        ("1L as id, timestamp'2024-01-01 00:00:00' as wall", "would lose its time zone"),
        ("1L as id, 'red' as colour", "make the column varchar"),
        ("1L as id, 'red' as colours", "make the column varchar"),
        ("1L as id, X'00' as fixed", "make the column varbinary"),
        ("1L as id, 1.5F as short", "its digits are limited"),
        ("1L as id, array(1) as colour", "to_json"),
        ("1L as id, 1 as twice", "generated by the database"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_before_a_task_runs_in_mysql(
    spark: SparkSession, database: str, batch: Batch, rows: Query, columns: str, message: str
) -> None:
    rows(
        "create table orders (id bigint not null, amount decimal(10, 2), at timestamp null, wall datetime, "
        "fixed binary(3), "
        "colour enum('red'), colours set('red'), short float(5, 2), twice int as (id * 2))"
    )
    frame = spark.sql(f"select {columns}, raise_error('a task ran') as ran").drop("ran")
    with pytest.raises(SinkMismatch, match=message):
        Table(database, "orders").rows.stage(frame, batch)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("null as id, null as small", r"column id \(bigint\(20\)\) must have a value"),
        ("1L as id, 200 as small", r"column small \(tinyint\(4\)\): 200 is more than 127"),
        ("1L as id, -1 as plus", r"column plus \(int\(10\) unsigned\): -1 is less than 0"),
        ("1L as id, 'abcd' as name", r"column name \(varchar\(3\)\): 'abcd' is longer than 3 characters"),
        ("1L as id, 'abc ' as name", r"column name \(varchar\(3\)\): 'abc ' is longer than 3 characters"),
        ("1L as id, 'a ' as code", r"column code \(char\(3\)\): 'a ' ends with a blank"),
        ("1L as id, repeat(' ', 256) as tiny", r"column tiny \(tinytext\): ' .* is longer than 255 bytes"),
        ("1L as id, concat(repeat('é', 127), '  ') as tiny", r"column tiny .*is longer than 255 bytes"),
        ("1L as id, concat(repeat('é', 254), '  ') as old", r"column old .*is longer than 255 characters"),
        ("1L as id, 'ab\u20acd\u011f' as old", "Incorrect string value.* column old"),
        ("1L as id, '{' as j", "CONSTRAINT `orders.j` failed"),
        ("1L as id, 10000000.00BD as amount", r"column amount .*: 10000000.00 is more than 9999999.99"),
        ("1L as id, -10000000L as amount", r"column amount .*: -10000000 is less than -9999999.99"),
        ("1L as id, double('NaN') as d", r"column d \(double\): nan cannot be stored there: .*nanvl"),
        ("1L as id, float('-Infinity') as d", r"column d \(double\): -inf cannot be stored"),
        ("1L as id, timestamp'2024-01-01 00:00:00.5 UTC' as at", "column at .*has more digits of a second than 0"),
        ("1L as id, timestamp'1901-01-01 00:00:00 UTC' as at", "Incorrect datetime value.* column at"),
        ("1L as id, timestamp_ntz'2024-01-01 00:00:00.1234' as wall", "column wall .*more digits of a second than 3"),
        ("1L as id, date'-0044-03-15' as wall", "Incorrect datetime value.* column wall"),
        ("1L as id, '{6ccd780c-baba-1026-9564-5b8c656024db}' as u", "column u .*is not written as"),
        ("1L as id, '6CCD780C-BABA-1026-9564-5B8C656024DB' as u", "column u .*is not written as"),
        ("1L as id, '01.2.3.4' as four", "column four .*without leading zeros"),
        ("1L as id, '\u6661' as kanji", "column kanji .*has a character that cp932 would change"),
        ("1L as id, '\U0002000e' as thai", "column thai .*has a character that tis620 would change"),
    ],
)
def test_values_that_do_not_fit_fail_the_whole_batch_in_mysql(
    spark: SparkSession, database: str, batch: Batch, rows: Query, columns: str, message: str
) -> None:
    """Also for a user who takes whatever MySQL makes of them."""
    rows(
        "create table orders (id bigint not null, small tinyint, plus int unsigned, name varchar(3), j json, d double, "
        "at timestamp null, wall datetime(3), amount decimal(9, 2), code char(3), tiny tinytext character set utf8mb4, "
        "old tinytext character set latin1, u uuid, four inet4, kanji text character set cp932, "
        "thai text character set tis620) character set utf8mb4"
    )
    frame = spark.range(3).toDF("id").unionByName(spark.sql(f"select {columns}"), allowMissingColumns=True)
    rows("set global sql_mode = ''")
    try:
        with pytest.raises(RowMismatch, match=message):
            Table(database, "orders").rows.write(frame, batch)
    finally:
        rows("set global sql_mode = default")
    assert rows("select count(*) from orders") == [(0,)]


def test_a_view_a_table_without_transactions_and_one_that_is_not_there_are_refused(
    database: str, ledger: Ledger, rows: Query
) -> None:
    rows("create table old (id int) engine = MyISAM")
    rows("create view seen as select * from old")
    for name, said in (
        ("old", "kept by MyISAM, which .*: ALTER TABLE"),
        ("seen", "is a view"),
        ("Old", "has no table Old"),
    ):
        with pytest.raises(Refused, match=said):
            Table(database, name).prepare(ledger.store, ONCE)


@pytest.mark.parametrize("engine", ["SPIDER", "ROCKSDB", "ndbcluster", "SEQUENCE", None])
def test_an_engine_that_commits_apart_from_innodb_is_refused(engine: str | None) -> None:
    """Made up, as this server has none of them that a table could be made by; all of them have transactions."""

    class Server:
        def execute(self, *_: object) -> "Server":
            return self

        def fetchall(self) -> list[object]:
            return [("orders", 0, engine)]

    connection: Any = Server()
    with pytest.raises(Refused, match=f"kept by {engine}, which does not commit together with InnoDB: ALTER TABLE"):
        find_table(connection, parse_target("orders", "append", ()), "shop", "mysql://host/shop")


@pytest.mark.parametrize(
    ("grants", "said"),
    [
        ("select on {}.*", "DROP command denied"),
        ("drop, select on {}.*", "CREATE command denied"),
        ("create, drop, insert on {}.*", "SELECT command denied"),
        ("create, drop, select on {}.*", "INSERT command denied"),
        ("create, drop, select, insert on {}.*", "UPDATE command denied"),
        ("create, drop, select, insert, update on {}.*", ""),
    ],
)
def test_a_user_without_permissions_is_told_at_the_start(database: str, rows: Query, grants: str, said: str) -> None:
    rows("create table orders (id int primary key)")
    rows("drop user if exists clerk@'127.0.0.1'")
    rows(f"create user clerk@'127.0.0.1' identified by '{SECRET}'")
    rows(f"grant {grants.format(database.rpartition('/')[2])} to clerk@'127.0.0.1'")
    table = Table(database.replace("root@", f"clerk:{SECRET}@"), "orders", mode="upsert", key=["id"])
    with closing(open_store("memory://")) as store:
        if not said:
            assert isinstance(table.prepare(store, ONCE), Lander)
            return
        with pytest.raises(Refused, match=said) as refused:
            table.prepare(store, ONCE)
    assert SECRET not in str(refused.value) + repr(table)


def test_nothing_is_there_where_the_transaction_fails_or_is_fenced(
    spark: SparkSession,
    database: str,
    ledger: Ledger,
    batch: Batch,
    rows: Query,
    staging_tables: Callable[[], list[str]],
) -> None:
    """And the next try writes all of it, once."""
    rows("create table orders (id bigint)")
    table, frame = Table(database, "orders"), spark.range(100, numPartitions=2).toDF("id")
    finish = table.rows.stage(frame, batch)
    with suppress(ZeroDivisionError), ledger.transaction(batch) as connection:
        finish(connection)
        raise ZeroDivisionError
    assert (rows("select count(*) from orders"), committed(ledger)) == ([(0,)], 0)
    write_once(ledger, table, frame)
    assert (rows("select count(*) from orders"), staging_tables()) == ([(100,)], [])
    later = ledger.batch([OffsetRange(*PARTITION, 10, 20)])
    finish = table.rows.stage(frame, later)
    with closing(open_store(database)) as store:
        Ledger(store, ledger.group).acquire()
        with pytest.raises(Fenced), ledger.transaction(later) as connection:
            finish(connection)
    assert rows("select count(*) from orders") == [(100,)]


@pytest.mark.usefixtures("all_staged")
def test_rows_of_attempts_that_spark_knows_nothing_of_are_left_out_in_mysql(
    spark: SparkSession,
    database: str,
    ledger: Ledger,
    batch: Batch,
    rows: Query,
    staging_tables: Callable[[], list[str]],
) -> None:
    """As a speculative or abandoned task leaves them; and rows that are lost are missed."""
    rows("create table orders (id bigint)")
    table = Table(database, "orders")
    finish = table.rows.stage(spark.range(100).toDF("id"), batch)
    [staging] = staging_tables()
    rows(f"insert into {staging} (attempt, c0) select attempt + 1000, c0 from {staging} where c0 = 7")  # noqa: S608 - ours
    with ledger.transaction(batch) as connection:
        finish(connection)
    assert rows("select count(*), count(distinct id) from orders") == [(100, 100)]
    finish = table.rows.stage(spark.range(100).toDF("id"), batch)
    [staging] = staging_tables()
    rows(f"delete from {staging} where c0 = 7")  # noqa: S608 - ours
    with pytest.raises(SinkError, match="100 rows were staged; of 50 rows of one task 49 are left"):
        table.rows._database.transaction(finish)  # type: ignore[attr-defined]


def test_what_the_block_of_another_output_has_set_is_as_it_was(
    spark: SparkSession, database: str, ledger: Ledger, batch: Batch, rows: Query
) -> None:
    """And changes nothing of what is written and committed."""
    rows("create table orders (id bigint check (id < 10))")
    names = "@@time_zone, @@sql_mode, @@sql_select_limit, @@check_constraint_checks, @@max_sort_length"
    table = Table(database, "orders")
    finish = table.rows.stage(spark.range(10).toDF("id"), batch)
    with ledger.transaction(batch) as connection:
        connection.execute(
            "set time_zone = '+05:00', sql_mode = 'ANSI_QUOTES', sql_select_limit = 1, check_constraint_checks = 0, "
            "max_sort_length = 64"
        )
        finish(connection)
        found = connection.execute(f"select {names}").fetchall()
        connection.execute("set sql_select_limit = 0")
    assert [*found] == [("+05:00", "ANSI_QUOTES", 1, 0, 64)]
    assert (rows("select count(*) from orders"), committed(ledger)) == ([(10,)], 10)


def test_a_table_that_another_session_has_locked_is_waited_for_no_longer_than_the_timeout(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    """In the ledger's transaction too, where the server would wait a day."""
    rows("create table orders (id bigint)")
    table, frame = Table(database, "orders"), spark.range(10).toDF("id")
    with closing(open_store(f"{database}?timeout=1")) as store:
        hasty = Ledger(store, ledger.group)
        hasty.acquire()
        batch = hasty.batch([OffsetRange(*PARTITION, 0, 10)])
        finish = table.rows.stage(frame, batch)
        rows("lock tables orders write")
        watch = threading.Timer(60, rows, ["unlock tables"])
        watch.start()
        with pytest.raises(SinkError, match="Lock wait timeout"), hasty.transaction(batch) as connection:
            finish(connection)
        watch.cancel()
        rows("unlock tables")
        write_once(hasty, table, frame)
    assert (rows("select count(*) from orders"), committed(ledger)) == ([(10,)], 10)


def test_a_driver_that_stalls_in_the_ledgers_transaction_is_limited_but_for_blocks_in_mysql(
    spark: SparkSession, database: str, ledger: Ledger, rows: Query
) -> None:
    """The server ends a session that sends nothing while it merges, or once the blocks are done."""
    rows("create table orders (id bigint)")
    rows("create table seen (id int auto_increment primary key, value int)")
    note = "for each row insert into seen (value) values (@@wait_timeout)"
    rows(f"create trigger merged after insert on orders {note}")
    rows(f"create trigger moved after update on kafka_offsets {note}")
    ranges = [OffsetRange(*PARTITION, 0, 10)]
    [(usual,)] = rows("select @@global.wait_timeout")
    finish = Table(database, "orders").rows.stage(spark.range(1).toDF("id"), ledger.batch(ranges))
    with closing(open_store(f"{database}?timeout=20")) as store:
        other = Ledger(store, ledger.group)
        other.acquire()
        with other.transaction(other.batch(ranges)) as connection:
            assert [*connection.execute("select @@wait_timeout").fetchall()] == [(usual,)]
            finish(connection)
            assert [*connection.execute("select @@wait_timeout").fetchall()] == [(usual,)]
        with other.transaction(other.batch([OffsetRange(*PARTITION, 10, 20)])) as connection:
            assert [*connection.execute("select @@wait_timeout").fetchall()] == [(usual,)]
    assert rows("select value from seen order by id") == [(20,), (20,), (20,)]


def test_a_session_that_has_dropped_staging_tables_waits_for_others_as_before(database: str, rows: Query) -> None:
    """It waits for no task that still writes to one; a merge after it waits."""
    rows("create table orders (id bigint)")
    rows("create table busy (id bigint)")
    rows("lock tables busy read")

    def look(connection: Any) -> list[Any]:
        drop(connection, ["busy"])
        return [*connection.execute("select @@lock_wait_timeout").fetchall()]

    began = time.monotonic()
    sink: Any = Table(database, "orders").rows
    assert sink._database.run(look) == [(30,)]
    assert time.monotonic() - began < 25
    rows("unlock tables")
    assert rows("select count(*) from busy") == [(0,)]


def test_the_password_is_in_no_plan(spark: SparkSession, database: str, rows: Query, batch: Batch) -> None:
    rows("create table orders (id bigint)")
    rows("drop user if exists root@'127.0.0.2'")
    seen: list[str] = []
    frame = spark.range(3).toDF("id")
    kind: Any = type(frame)
    original = kind.mapInArrow

    def watched(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        seen.append(result._jdf.queryExecution().toString())
        return result

    rows("drop user if exists till@'127.0.0.1'")
    rows(f"create user till@'127.0.0.1' identified by '{SECRET}'")
    rows(f"grant all on {database.rpartition('/')[2]}.* to till@'127.0.0.1'")
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # there is no other way to see the plan of a frame that is not given out
        patch.setattr(kind, "mapInArrow", watched)
        Table(database.replace("root@", f"till:{SECRET}@"), "orders").rows.write(frame, batch)
    assert "MapInArrow" in seen[0]
    assert SECRET not in seen[0]
