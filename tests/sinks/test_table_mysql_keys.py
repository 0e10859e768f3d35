"""Keys of a real MariaDB: which texts are one key, which row of it stays; and what a server sets for all sessions."""

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pymysql
import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused, RowMismatch, SinkError
from offsetkeeper.sinks import Joiner, Table
from offsetkeeper.stores import open_store
from offsetkeeper.testing.mariadb import MariaDBServer

PARTITION = TopicPartition("orders", 0)
ONCE = Guarantee.EXACTLY_ONCE
Query = Callable[..., list[Any]]
BATCH = Batch("shop", "token", 1, (OffsetRange(*PARTITION, 0, 10),))
ORDERED = "topic string, partition int, offset long"
NOON = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - a wall clock
# Texts that many collations take for one another, each with the offset of its record.
TEXTS = ["A1", "a1", "e", "é", "b", "b ", "ss", "ß"]
# Each changes, cuts or refuses something that a session does without setting it.
WORST = {
    "sql_mode": "ANSI_QUOTES,ORACLE,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,NO_ZERO_DATE",
    "time_zone": "-07:00",
    "autocommit": 0,
    "completion_type": 2,
    "unique_checks": 0,
    "foreign_key_checks": 0,
    "check_constraint_checks": 0,
    "sql_select_limit": 0,
    "max_join_size": 1,
    "sql_big_selects": 0,
    "max_sort_length": 64,
    "group_concat_max_len": 4,
    "explicit_defaults_for_timestamp": 0,
    "character_set_server": "utf16",
    "default_storage_engine": "MyISAM",
    "transaction_isolation": "SERIALIZABLE",
}


@pytest.fixture
def database(mariadb_server: MariaDBServer) -> str:
    """URL of an empty MariaDB database for this test."""
    return mariadb_server.url(mariadb_server.create_database())


@pytest.fixture
def rows(database: str, mariadb_server: MariaDBServer) -> Iterator[Query]:
    """`rows(statement)` runs it in the database, and returns what it finds."""
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "autocommit": True}
    with pymysql.connect(**settings, database=database.rpartition("/")[2], init_command="set time_zone='+00:00'") as it:

        def query(text: str, values: Any = None) -> list[Any]:
            with it.cursor() as cursor:
                cursor.execute(text, values)
                return [*cursor.fetchall()]

        yield query


@pytest.fixture
def worst(rows: Query) -> Iterator[None]:
    """A server that sets the worst for all new sessions."""
    with ExitStack() as back:
        for name, value in WORST.items():
            [(before,)] = rows(f"select @@global.{name}")
            rows(f"set global {name} = %s", [value])
            back.callback(rows, f"set global {name} = %s", [before])
        yield


def upsert(database: str, **words: Any) -> Table:
    """Return the sink of table `stock` with key `item`."""
    return Table(database, "stock", mode="upsert", key=["item"], **words)


def of_texts(spark: SparkSession, texts: list[str]) -> DataFrame:
    """Return a frame with a row for each text, and its place as the offset of its record."""
    return spark.createDataFrame(
        [("t", 0, place, text, place) for place, text in enumerate(texts)], f"{ORDERED}, item string, amount int"
    ).repartition(3)


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_uca1400_as_cs", "latin1_swedish_ci"])
def test_a_key_that_takes_different_texts_for_one_is_refused_at_the_start(
    database: str, rows: Query, collation: str
) -> None:
    rows(f"create table stock (item varchar(9) collate {collation} unique, amount int)")
    with (
        closing(open_store("memory://")) as store,
        pytest.raises(Refused, match=rf"column item .*{collation}.*_bin.*same_keys=\"as the column\""),
    ):
        upsert(database).prepare(store, ONCE)


def test_where_the_column_decides_one_whole_row_of_the_last_record_stays(
    spark: SparkSession, database: str, rows: Query
) -> None:
    rows("create table stock (item varchar(9) collate utf8mb4_general_ci unique, amount int)")
    rows("insert into stock values ('B  ', -1)")
    upsert(database, same_keys="as the column").rows.write(of_texts(spark, TEXTS), BATCH)
    found = rows("select item, amount from stock order by amount")
    assert found == [("a1", 1), ("é", 3), ("b ", 5), ("ss", 6), ("ß", 7)]


@pytest.mark.parametrize(
    ("declared", "texts"),
    [
        ("varchar(9) collate utf8mb4_nopad_bin", TEXTS),
        ("varchar(9) collate utf8mb4_bin", [text for text in TEXTS if text != "b "]),
        ("char(9) collate utf8mb4_bin", [text for text in TEXTS if text != "b "]),
        ("tinytext collate utf8mb4_nopad_bin", TEXTS),
    ],
)
def test_where_equality_is_that_of_bytes_each_text_is_a_key(
    spark: SparkSession, database: str, rows: Query, declared: str, texts: list[str]
) -> None:
    rows(f"create table stock (item {declared}, amount int, unique (item))")
    for _ in range(2):
        upsert(database).rows.write(of_texts(spark, texts), BATCH)
    assert rows("select item, amount from stock order by amount") == [(text, n) for n, text in enumerate(texts)]


@pytest.mark.parametrize("key", [["item"], ["item", "amount"]])
def test_a_trigger_that_makes_two_keys_one_is_refused_unless_it_is_meant(
    spark: SparkSession, database: str, rows: Query, key: list[str]
) -> None:
    """Of two rows one was left, and nothing told of it: MySQL counts an update as two rows."""
    rows(f"create table stock (item varchar(9) collate utf8mb4_bin, amount int, unique ({', '.join(key)}))")
    rows("create trigger small before insert on stock for each row set new.item = lower(new.item)")
    frame = spark.createDataFrame([("a", 1), ("A", 1), ("b", 2)], "item string, amount int")
    words: dict[str, Any] = {"mode": "upsert", "key": key}
    with pytest.raises(Refused, match=r"of 3 keys of a batch the table does not have 1; nothing was written.*as the t"):
        Table(database, "stock", **words).rows.write(frame, BATCH)
    assert rows("select * from stock") == []
    for _ in range(2):
        Table(database, "stock", **words).rows.write(frame.where("item <> 'A'"), BATCH)
    assert rows("select * from stock order by 1") == [("a", 1), ("b", 2)]
    Table(database, "stock", fewer_rows="as the table", **words).rows.write(frame, BATCH)
    assert rows("select * from stock order by 1") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("declared", "kind", "key"),
    [
        ("timestamp(6) not null default now(6) on update now(6)", "timestamp", ["at"]),
        ("datetime(6) on update now(6)", "timestamp_ntz", ["at"]),
        ("timestamp", "timestamp", ["item", "at"]),
    ],
    ids=["timestamp", "datetime", "not asked for"],
)
def test_a_key_that_the_table_would_set_to_the_time_of_an_update_stays(
    spark: SparkSession, database: str, rows: Query, declared: str, kind: str, key: list[str]
) -> None:
    """Of a row that was there, the key became the time of the batch. What the frame lacks is as the table says."""
    rows("set explicit_defaults_for_timestamp = 0")  # then the server itself adds ON UPDATE to a plain timestamp
    rows(
        f"create table stock (at {declared}, item varchar(9) collate utf8mb4_bin, amount int, "
        f"seen timestamp(6) null on update now(6), unique ({', '.join(key)}))"
    )
    at = f"{kind}'2024-07-01 12:00:00'"
    frame = spark.range(3).selectExpr(
        *("'t' as topic", "0 as partition", "id as offset", f"{at} as at", "'tea' as item", "int(id) as amount")
    )
    for ids in ("offset < 2", "offset = 2"):
        Table(database, "stock", mode="upsert", key=key).rows.write(frame.where(ids), BATCH)
    assert rows("select at, amount, seen is not null from stock") == [(NOON, 2, 1)]


@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_0900_bin", "utf16_bin", "swe7_bin"])
def test_blanks_at_the_end_of_a_key_are_refused_where_they_do_not_count(
    spark: SparkSession, database: str, rows: Query, collation: str
) -> None:
    """In the frame, and in a row of another program that a row of the frame would replace."""
    charset = collation.partition("_")[0]
    rows(f"create table stock (item varchar(9) character set {charset} collate {collation} unique, amount int)")
    kept = [text for text in TEXTS if text.isascii() or charset != "swe7"]  # else the server may refuse another first
    with pytest.raises(RowMismatch, match=r"column item .*'b ' ends with a blank"):
        upsert(database).rows.write(of_texts(spark, kept), BATCH)
    rows("insert into stock values ('ss  ', -1)")
    with pytest.raises(RowMismatch, match=r"key .item. of a row that is there differs .*only by blanks"):
        upsert(database).rows.write(of_texts(spark, ["b", "ss"]), BATCH)
    assert rows("select item, amount from stock") == [("ss  ", -1)]


@pytest.mark.parametrize("key", ["cast(null as string)", "null"])
def test_a_key_without_a_value_is_refused_in_mysql(spark: SparkSession, database: str, rows: Query, key: str) -> None:
    rows("create table stock (item varchar(9) collate utf8mb4_bin null unique, amount int)")
    with pytest.raises(RowMismatch, match=r"column item .* must have a value, but a row has none"):
        upsert(database).rows.write(spark.sql(f"select {key} as item, 1 as amount"), BATCH)
    assert rows("select * from stock") == []


@pytest.mark.usefixtures("worst")
@pytest.mark.parametrize("column", ["at", "made"])
def test_a_null_of_which_the_server_would_make_the_time_is_refused(
    spark: SparkSession, database: str, rows: Query, column: str
) -> None:
    rows("set explicit_defaults_for_timestamp = 0")
    rows("create table stock (at timestamp, made timestamp not null default '2024-07-01', amount int) engine = InnoDB")
    with pytest.raises(RowMismatch, match=rf"column {column} .* must have a value, but a row has none"):
        Table(database, "stock").rows.write(
            spark.sql(f"select cast(null as timestamp) as {column}, 1 as amount"), BATCH
        )
    assert rows("select count(*) from stock limit 9") == [(0,)]


@pytest.mark.parametrize("words", [{}, {"same_keys": "as the column"}])
def test_two_rows_of_one_record_with_one_key_are_refused(
    spark: SparkSession, database: str, rows: Query, words: Any
) -> None:
    rows("create table stock (item varchar(9) collate utf8mb4_bin unique, amount int)")
    same = spark.createDataFrame(
        [("t", 0, 1, "a", 1), ("t", 0, 1, "a", 2), ("t", 0, 2, "a", 3)], f"{ORDERED}, item string, amount int"
    )
    with pytest.raises(RowMismatch, match=r"several rows of one record \(topic, partition, offset\) have the same key"):
        upsert(database, **words).rows.write(same, BATCH)
    other = spark.createDataFrame(
        [("t", 0, 1, "a", 1), ("t", 0, 1, "b", 2), ("T", 0, 1, "a", 3)], f"{ORDERED}, item string, amount int"
    )
    upsert(database, **words).rows.write(other, BATCH)
    assert rows("select * from stock order by item") == [("a", 1), ("b", 2)]


def test_topics_are_in_the_order_of_their_bytes_whatever_the_table_says(
    spark: SparkSession, database: str, rows: Query
) -> None:
    """And rows of topics that differ only by capitals are of different records."""
    rows(
        "create table stock (item varchar(9) collate utf8mb4_bin unique, topic varchar(200) collate utf8mb4_general_ci)"
    )
    topics = ["x" * 150 + "b", "x" * 150 + "B", "x" * 150 + "a"]
    frame = spark.createDataFrame([(topic, 0, 1, "a") for topic in topics], f"{ORDERED}, item string")
    upsert(database).rows.write(frame, BATCH)
    assert rows("select topic from stock") == [(topics[0],)]


def test_keys_that_agree_in_their_first_1024_bytes_are_not_the_same(
    spark: SparkSession, database: str, rows: Query
) -> None:
    rows("create table stock (item text collate utf8mb4_nopad_bin, amount int, unique (item))")
    long = spark.createDataFrame([("x" * 2000 + str(n), n) for n in range(50)], "item string, amount int")
    upsert(database).rows.write(long, BATCH)
    assert rows("select count(*), count(distinct right(item, 2)) from stock") == [(50, 50)]
    with pytest.raises(RowMismatch, match="same key"):
        upsert(database).rows.write(long.union(long), BATCH)


@pytest.mark.usefixtures("worst")
def test_a_null_is_refused_where_the_server_would_write_the_time(
    spark: SparkSession, database: str, rows: Query
) -> None:
    rows("set explicit_defaults_for_timestamp = 0")
    rows("create table orders (id int, at timestamp(6)) engine = InnoDB")
    frame = spark.sql("select 1 as id, cast(null as timestamp) as at")
    with pytest.raises(RowMismatch, match=r"column at \(timestamp\(6\)\) must have a value"):
        Table(database, "orders").rows.write(frame, BATCH)
    assert rows("select * from orders") == []


@pytest.mark.usefixtures("worst")
def test_rows_and_positions_are_right_where_the_server_sets_the_worst_for_all_sessions(
    spark: SparkSession, database: str, rows: Query
) -> None:
    rows("create table shops (name varchar(9) primary key) engine = InnoDB")
    rows(
        "create table stock (item varchar(9) character set utf8mb4 collate utf8mb4_bin unique, code char(5), "
        "at timestamp(6), shop varchar(9), amount int check (amount < 9), foreign key (shop) references shops (name)) "
        "engine = InnoDB"
    )
    topics = ["t" * 100 + "1", "t" * 100 + "2"]
    at = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)
    first = [(topics[1], 0, 1, "", "\\'", at, None, 1), (topics[0], 0, 9, "", "b", at, None, 2)]
    schema = f"{ORDERED}, item string, code string, at timestamp, shop string, amount int"
    for place in range(2):
        with closing(open_store(database)) as store:
            ledger = Ledger(store, "shop")
            ledger.acquire()
            if not place:
                ledger.place({TopicPartition("orders", n): Position(0) for n in range(20)})
            ranges = [OffsetRange("orders", n, place, place + 1) for n in range(20)]
            batch = ledger.batch(ranges)
            way = upsert(database).prepare(store, ONCE)
            assert isinstance(way, Joiner)
            finish = way.stage(spark.createDataFrame(first, schema), batch)
            with ledger.transaction(batch) as connection:
                finish(connection)
            found = store.load("shop").positions
            assert {partition: position.offset for partition, position in found.items()} == {
                TopicPartition("orders", n): place + 1 for n in range(20)
            }
    wall = at.replace(tzinfo=None)
    assert rows("select item, code, at, shop, amount from stock limit 9") == [("", "\\'", wall, None, 1)]
    for wrong, why in (("amount", "CONSTRAINT"), ("shop", "foreign key")):
        frame = spark.createDataFrame(first[:1], schema).selectExpr(
            *("topic", "partition", "offset", "'x' as item"), "9 as amount" if wrong == "amount" else "'no' as shop"
        )
        with pytest.raises((RowMismatch, SinkError), match=why):
            upsert(database).rows.write(frame, BATCH)
    assert rows("select count(*) from stock limit 9") == [(1,)]
