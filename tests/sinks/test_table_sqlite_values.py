"""What SQLite would merge or leave out in silence is refused, and what is meant can be said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import Refused, RowMismatch, SinkError, SinkMismatch
from offsetkeeper.sinks import Table
from offsetkeeper.sinks.sqlite import SQLiteTable, _statement
from offsetkeeper.sinks.table import Target
from offsetkeeper.stores.memory import MemoryStore

BATCH = Batch("shop", "token", 1, (OffsetRange("orders", 0, 0, 10),))
AT = "'t' as topic, 0 as partition"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["item"]}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """URL of a file of this test."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of its own to this file."""
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        yield connection


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        ("id int unique on conflict ignore, n int", 2),
        ("id int unique on conflict replace, n int", 2),
        ("id int, n int not null on conflict ignore", 2),
        ("id int, n int not null on conflict replace default 7", 3),
    ],
)
def test_a_clause_of_the_table_that_loses_rows_is_refused_unless_it_is_meant(
    spark: SparkSession, url: str, shop: sqlite3.Connection, columns: str, left: int
) -> None:
    shop.execute(f"create table orders ({columns})")
    frame = spark.sql(f"select * from values (1, 1), ({1 if 'unique' in columns else 2}, null), (3, 3) as (id, n)")  # noqa: S608
    with pytest.raises(SinkError, match=r"UNIQUE constraint failed|must have a value"):
        Table(url, "orders").rows.write(frame, BATCH)
    assert shop.execute("select count(*) from orders").fetchall() == [(0,)]
    if "unique" in columns:
        Table(url, "orders", fewer_rows="as the table").rows.write(frame, BATCH)
        assert shop.execute("select count(*) from orders").fetchall() == [(left,)]


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["id"]}], ids=["append", "upsert"])
def test_a_trigger_keeps_its_own_conflict_clauses(
    spark: SparkSession, url: str, shop: sqlite3.Connection, words: dict[str, Any]
) -> None:
    """A clause of the statement that fires a trigger counts in all of the trigger's statements."""
    shop.execute("create table orders (id integer primary key, item text)")
    shop.execute("create table items (name text primary key)")
    shop.execute("create table latest (item text primary key, id int)")
    shop.execute(
        "create trigger fill after insert on orders begin insert or ignore into items values (new.item); "
        "insert or replace into latest values (new.item, new.id); end"
    )
    frame = spark.sql("select explode(array(1, 2)) as id, 'tea' as item")
    Table(url, "orders", **words).rows.write(frame, BATCH)
    assert shop.execute("select * from orders").fetchall() == [(1, "tea"), (2, "tea")]
    assert shop.execute("select * from items").fetchall() == [("tea",)]
    assert shop.execute("select * from latest").fetchall() == [("tea", 2)]
    if not words:  # a duplicate is still refused
        with pytest.raises(SinkError, match="UNIQUE constraint failed"):
            Table(url, "orders").rows.write(frame, BATCH)
        assert shop.execute("select count(*) from orders").fetchall() == [(2,)]


INTO = "into seen values (new.item)"


ORDER = "select 1 as id, 'tea' as item"
BY_ID: dict[str, Any] = {"mode": "upsert", "key": ["id"]}


@pytest.mark.parametrize("clause", ["insert or ignore", "INSERT OR\nREPLACE", "replace", "update or ignore"])
@pytest.mark.parametrize("nested", [False, True])
def test_no_record_is_blamed_for_a_conflict_clause_of_a_trigger_that_an_upsert_overrides(
    spark: SparkSession, url: str, shop: sqlite3.Connection, clause: str, *, nested: bool
) -> None:
    """SQLite makes it an error, and good records went to the dead letters. The clause at the end counts."""
    shop.execute("create table orders (id int unique, item text)")
    shop.execute("create table steps (item text)")
    shop.execute("create table seen (item text unique)")
    shop.execute("insert into seen values ('tea'), ('milk')")
    body = "update or ignore seen set item = new.item" if "update" in clause else f"{clause} {INTO}"
    if nested:
        shop.execute(f"create trigger noted after insert on steps begin {body}; end")
        body = "insert into steps values (new.item)"
    shop.execute(f"create trigger {'first' if nested else 'noted'} after update of item on orders begin {body}; end")
    table = Table(url, "orders", **BY_ID)
    frame = spark.sql(ORDER)
    table.rows.write(frame, BATCH)
    with pytest.raises(Refused, match=r"UNIQUE constraint failed: seen.item.*An upsert overrides.*of trigger noted"):
        table.rows.write(frame, BATCH)
    shop.execute("drop trigger noted")
    shop.execute("drop trigger if exists first")
    shop.execute(f"create trigger noted after update on orders begin insert {INTO} on conflict do nothing; end")
    shop.execute(f"create trigger new after insert on orders begin insert or ignore {INTO}; end")
    table.rows.write(frame, BATCH)
    assert shop.execute("select id, item from orders").fetchall() == [(1, "tea")]
    assert shop.execute("select item from seen order by 1").fetchall() == [("milk",), ("tea",)]


def test_a_conflict_clause_of_a_trigger_that_an_upsert_never_meets_is_no_hindrance(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    """Such a table was refused at the start: of a column that no upsert sets, or where nothing is in conflict."""
    shop.execute("create table orders (id int unique, item text, status text)")
    shop.execute("create table seen (item text unique)")
    shop.execute("create table log (item text)")
    shop.execute(f"create trigger noted after update of status on orders begin insert or ignore {INTO}; end")
    shop.execute("create trigger logged after update on orders begin insert or replace into log values (new.item); end")
    shop.execute("insert into seen values ('tea')")
    table = Table(url, "orders", **BY_ID)
    table.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    for _ in range(2):
        table.rows.write(spark.sql(ORDER), BATCH)
    assert shop.execute("select id, orders.item, log.item from orders, log").fetchall() == [(1, "tea", "tea")]


def test_a_trigger_s_own_refusal_is_still_the_record_s_in_an_upsert(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table orders (id int unique, item text)")
    shop.execute("create table seen (item text unique)")
    shop.execute("create table others (item text unique)")
    shop.execute(f"create trigger noted after insert on orders begin insert {INTO}; end")
    shop.execute("create trigger more after insert on orders begin insert or ignore into others values (new.item); end")
    shop.execute("insert into seen values ('tea')")
    with pytest.raises(RowMismatch, match=r"UNIQUE constraint failed: seen.item; nothing was written$"):
        Table(url, "orders", **BY_ID).rows.write(spark.sql(ORDER), BATCH)


def upsert(url: str, shop: sqlite3.Connection, *row: object) -> None:
    """Upsert a row into `orders` by its key `id`, as a batch does when its rows are with the driver."""
    sink = SQLiteTable(url, Target("", "orders", "upsert", ("id",)))
    sink._finish(shop, _statement(sink._target, ["id", "item"], aborts=False), [row])


def test_a_trigger_that_an_upsert_does_not_fire_is_not_named_for_a_record_s_conflict(
    url: str, shop: sqlite3.Connection
) -> None:
    """The run stopped, and the advice was on the trigger of another table."""
    shop.executescript("""
        create table orders (id int unique, item text);
        create table seen (item text unique);
        create table x (item text);
        create trigger noted after update on orders begin insert into seen values (new.item); end;
        create trigger other after insert on x begin insert or ignore into seen values (new.item); end;
        insert into seen values ('tea'); insert into orders values (1, 'milk');
    """)
    with pytest.raises(RowMismatch, match=r"UNIQUE constraint failed: seen.item; nothing was written$"):
        upsert(url, shop, 1, "tea")
    shop.execute("create trigger more after update on orders begin insert into X values (new.item); end")
    with pytest.raises(Refused, match=r"UNIQUE constraint failed: seen.item.* of trigger other"):
        upsert(url, shop, 1, "tea")


@pytest.mark.parametrize("name", ["orders", '"orders"', "`orders`", "[orders]", "ORDERS"])
def test_a_clause_of_a_trigger_for_its_own_table_is_no_fault_of_a_record(
    url: str, shop: sqlite3.Connection, name: str
) -> None:
    """Its good records went to the dead letters. Without such a clause, the conflict is the record's."""
    shop.executescript(f"""
        create table orders (id int unique, item text, key text unique);
        create trigger again after update on orders when new.item <> 'x'
        begin insert or ignore into {name} values (100 + new.id, 'x', new.item); end;
        insert into orders values (5, 'x', 'tea'), (1, 'milk', null);
    """)  # noqa: S608 - the test's own
    with pytest.raises(Refused, match=r"UNIQUE constraint failed: orders.key.* of trigger again"):
        upsert(url, shop, 1, "tea")
    shop.executescript("""
        drop trigger again; create trigger again after update on orders when new.item <> 'x'
        begin insert into orders values (100 + new.id, 'x', new.item); end;
    """)
    with pytest.raises(RowMismatch, match=r"UNIQUE constraint failed: orders.key; nothing was written$"):
        upsert(url, shop, 1, "tea")
    assert shop.execute("select count(*) from orders").fetchall() == [(2,)]


def test_words_in_comments_and_texts_are_no_conflict_clauses(url: str, shop: sqlite3.Connection) -> None:
    told = (
        "create table orders (id int unique, /* on conflict, we log it */ why text default 'on conflict' -- on conflict"
    )
    shop.execute(f"{told}\n)")
    shop.execute("create table log (id int)")
    shop.execute("create trigger noted after insert on orders begin insert into log values (new.id); end")
    Table(url, "orders").prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


@pytest.mark.parametrize("clause", ["On  Conflict", "on/**/conflict"])
def test_conflict_clauses_of_a_table_with_a_trigger_are_refused_at_the_start(
    spark: SparkSession, url: str, shop: sqlite3.Connection, clause: str
) -> None:
    """Those of the table would lose rows, and without them those of the trigger would not count."""
    shop.execute(f"create table orders (id int unique {clause} replace, item text)")
    shop.execute("create table log (id int)")
    shop.execute("create trigger noted after insert on orders begin insert into log values (new.id); end")
    store = MemoryStore("memory://")
    with pytest.raises(Refused, match="table orders has a conflict clause"):
        Table(url, "orders").prepare(store, Guarantee.EXACTLY_ONCE)
    meant = Table(url, "orders", fewer_rows="as the table")
    meant.prepare(store, Guarantee.EXACTLY_ONCE)
    meant.rows.write(spark.sql("select 1 as id, explode(array('a', 'b')) as item"), BATCH)
    assert shop.execute("select id, count(*) from orders group by id").fetchall() == [(1, 1)]


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["id"]}], ids=["append", "upsert"])
def test_a_trigger_that_leaves_rows_out_is_refused_unless_it_is_meant_in_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection, words: dict[str, Any]
) -> None:
    shop.execute("create table orders (id int unique, n int)")
    shop.execute("create trigger t before insert on orders when new.id = 1 begin select raise(ignore); end")
    frame = spark.sql("select int(id) as id, 1 as n from range(3)")
    with pytest.raises(Refused, match="of 3 rows of a batch the database has inserted 2; nothing was written"):
        Table(url, "orders", **words).rows.write(frame, BATCH)
    assert shop.execute("select * from orders").fetchall() == []
    Table(url, "orders", fewer_rows="as the table", **words).rows.write(frame, BATCH)
    assert shop.execute("select id from orders order by 1").fetchall() == [(0,), (2,)]


def test_a_trigger_that_leaves_keys_out_is_refused_also_where_a_row_is_nothing_but_its_key_in_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    """Rows that are there already are not written again, so the rows that are written say nothing."""
    shop.execute("create table seen (id int, item text, primary key (item, id))")
    shop.execute("insert into seen values (1, 'a'), (4, 'a')")
    shop.execute("create trigger t before insert on seen when new.id % 2 = 0 begin select raise(ignore); end")
    words: dict[str, Any] = {"mode": "upsert", "key": ["id", "item"]}
    frame = spark.sql("select int(id) as id, 'a' as item from range(6)")
    with pytest.raises(Refused, match="of 6 rows of a batch the database has inserted 4; nothing was written"):
        Table(url, "seen", **words).rows.write(frame, BATCH)
    assert shop.execute("select id from seen order by id").fetchall() == [(1,), (4,)]
    Table(url, "seen", **words).rows.write(frame.where("id in (1, 3, 4, 5)"), BATCH)
    Table(url, "seen", fewer_rows="as the table", **words).rows.write(frame, BATCH)
    assert shop.execute("select id from seen order by id").fetchall() == [(1,), (3,), (4,), (5,)]


@pytest.mark.parametrize("columns", [["item"], ["item", "n"]])
def test_a_trigger_that_changes_keys_is_refused_unless_it_is_meant_in_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection, columns: list[str]
) -> None:
    """Of two keys one row was left, and nothing told of it."""
    shop.execute(f"create table Seen (item text primary key{', n int' * (len(columns) - 1)})")
    shop.execute(
        "create trigger t after insert on seen begin "
        "delete from seen where item = lower(new.item) and item <> new.item; "
        "update seen set item = lower(item) where item = new.item; end"
    )
    words: dict[str, Any] = {"mode": "upsert", "key": ["item"]}
    frame = spark.sql("select explode(array('a', 'A', 'b')) as item, 1 as n").select(*columns)
    with pytest.raises(Refused, match=r"of 3 keys of a batch the table does not have 1; nothing was written.*as the t"):
        Table(url, "Seen", **words).rows.write(frame, BATCH)
    assert shop.execute("select * from seen").fetchall() == []
    for _ in range(2):
        Table(url, "Seen", **words).rows.write(frame.where("item <> 'A'"), BATCH)
    Table(url, "Seen", fewer_rows="as the table", **words).rows.write(frame, BATCH)
    assert shop.execute("select item from seen order by 1").fetchall() == [("a",), ("b",)]


def test_a_virtual_table_is_refused_at_the_start(url: str, shop: sqlite3.Connection) -> None:
    """Its module decides what it keeps: this one made other numbers of some."""
    shop.execute("create virtual table boxes using rtree (id, least, most)")
    with pytest.raises(Refused, match="boxes is a virtual table, which may change values"):
        Table(url, "boxes").prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


@pytest.mark.parametrize("collation", ["nocase", "rtrim"])
@pytest.mark.parametrize("where", ["column", "index", "second index", "primary key"])
def test_a_key_that_takes_other_texts_for_the_same_is_refused_at_the_start_in_sqlite(
    url: str, shop: sqlite3.Connection, collation: str, where: str
) -> None:
    declared = {
        "column": f"text collate {collation} unique",
        "index": "text",
        "second index": "text unique",
        "primary key": f"text collate {collation} primary key",
    }[where]
    shop.execute(f"create table stock (item {declared}, n int)")
    if "index" in where:
        shop.execute(f"create unique index i on stock (item collate {collation})")
    table = Table(url, "stock", **UPSERT)
    why = rf"column item \(TEXT\) of the key is compared by the collation {collation}.*make the table again without"
    with pytest.raises(Refused, match=why):
        table.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    shop.execute("drop table stock")
    shop.execute(f"create table stock (item {declared.replace(f'collate {collation}', '')}, n int)")
    shop.execute("create unique index i on stock (item)")
    table.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)


FRACTIONS = ("cast(1.5 as decimal(5,2))", "cast(1.5 as decimal(6,3))")
WHOLE = ("cast(7 as decimal(5,0))", "cast(7 as decimal(15,0))")


@pytest.mark.parametrize(
    ("declared", "values", "found"),
    [
        ("text", FRACTIONS, []),
        ("blob", FRACTIONS, []),
        ("numeric", FRACTIONS, [(1.5, 1)]),
        ("text", WHOLE, [("7", 1)]),
        ("blob", WHOLE, [("7", 1)]),
    ],
)
def test_a_decimal_is_one_key_whatever_its_digits_are_or_is_refused(
    spark: SparkSession, url: str, shop: sqlite3.Connection, declared: str, values: tuple[str, str], found: list[Any]
) -> None:
    """As a text, 1.50 is another key than 1.500; a release that has another type for the column made a second row."""
    shop.execute(f"create table stock (item {declared} unique, n int)")
    for number, value in enumerate(values):
        frame = spark.sql(f"select {value} as item, {number} as n")
        refused = pytest.raises(SinkMismatch, match=r"column item: decimal.* has two keys for 1\.5 and 1\.50: use NUM")
        with nullcontext() if found else refused:
            Table(url, "stock", **UPSERT).rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == found


def test_a_decimal_is_a_key_as_the_column_has_it_if_that_is_meant(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table stock (item text unique, n int)")
    for number in range(2):
        frame = spark.sql(f"select {FRACTIONS[0]} as item, {number} as n")
        Table(url, "stock", same_keys="as the column", **UPSERT).rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == [("1.50", 1)]


def test_keys_that_are_one_for_the_column_are_one_whole_row_if_that_is_meant_in_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table stock (item text collate nocase primary key, n int, note text)")
    table = Table(url, "stock", same_keys="as the column", **UPSERT)
    frame = spark.sql(
        f"select {AT}, 1L as offset, 'A1' as item, 1 as n, 'x' as note union all select {AT}, 2L, 'a1', 2, null"
    )
    table.rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == [("a1", 2, None)]
    with pytest.raises(RowMismatch, match="same key"):
        table.rows.write(spark.sql("select 'A1' as item, 3 as n union all select 'a1', 4"), BATCH)


def test_rows_of_one_record_with_one_key_are_refused_in_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table stock (item text primary key, n int)")
    frame = spark.sql(f"select {AT}, 5L as offset, 'tea' as item, explode(array(1, 2, 3)) as n")
    with pytest.raises(RowMismatch, match=r"several rows of one record \(topic, partition, offset\) have the same key"):
        Table(url, "stock", **UPSERT).rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == []


@pytest.mark.parametrize("null", ["item", "offset"])
def test_a_key_and_its_order_must_have_values(
    spark: SparkSession, url: str, shop: sqlite3.Connection, null: str
) -> None:
    shop.execute("create table stock (item text unique, n int)")
    values = {"offset": "id", "item": "'tea'"} | {null: f"cast(null as {'string' if null == 'item' else 'bigint'})"}
    frame = spark.range(3).selectExpr(
        "'t' as topic", "0 as partition", f"{values['offset']} as offset", f"{values['item']} as item"
    )
    record = "t 0 offset 0: " if null == "item" else ""
    with pytest.raises(RowMismatch, match=rf"^{record}column {null} .* must have a value"):
        Table(url, "stock", **UPSERT).rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == []


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["item"]}], ids=["append", "upsert"])
def test_a_text_that_is_not_utf8_is_refused(
    spark: SparkSession, url: str, shop: sqlite3.Connection, words: dict[str, Any]
) -> None:
    shop.execute("create table stock (item text unique, n int)")
    frame = spark.sql("select cast(unhex('FF') as string) as item, 1 as n")
    with pytest.raises(RowMismatch, match="column item: has a text that is not UTF-8"):
        Table(url, "stock", **words).rows.write(frame, BATCH)
    assert shop.execute("select * from stock").fetchall() == []


def test_a_column_of_any_reads_numbers_in_texts_unless_the_table_is_strict(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table loose (kept any)")
    shop.execute("create table kept (kept any) strict")
    frame = spark.sql("select '01' as kept")
    with pytest.raises(SinkMismatch, match="column kept: string into ANY does not fit"):
        Table(url, "loose").rows.write(frame, BATCH)
    Table(url, "kept").rows.write(frame, BATCH)
    assert shop.execute("select kept from kept").fetchall() == [("01",)]


def test_a_collation_that_only_the_users_program_has_is_refused(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.create_collation("mine", lambda one, other: (one > other) - (one < other))
    shop.execute("create table stock (item text collate mine unique, n int)")
    with pytest.raises(Refused, match="no such collation sequence: mine"):
        Table(url, "stock", same_keys="as the column", **UPSERT).rows.write(
            spark.sql("select 'tea' as item, 1 as n"), BATCH
        )


@pytest.mark.parametrize("words", [{}, UPSERT])
def test_a_text_that_a_file_in_utf_16_would_change_is_refused(
    spark: SparkSession, url: str, shop: sqlite3.Connection, words: dict[str, Any]
) -> None:
    """SQLite changes U+FFFE and U+FFFF to U+FFFD there, so three keys became one."""
    shop.execute("pragma encoding = 'UTF-16'")
    shop.execute("create table orders (item text primary key, n int)")
    frame = spark.sql(r"select * from values ('\ufffe', 1), ('\ufffd', 2), ('\uffff', 3) as (item, n)")
    with pytest.raises(RowMismatch, match=r"column item: .* U\+FFFE or U\+FFFF.* UTF-16"):
        Table(url, "orders", **words).rows.write(frame, BATCH)
    assert shop.execute("select count(*) from orders").fetchall() == [(0,)]
    others = spark.sql(r"select * from values ('\ufffd', 1), ('\ufeffa', 2), ('\ud83d\ude00', 3) as (item, n)")
    Table(url, "orders", **words).rows.write(others, BATCH)
    assert shop.execute("select item from orders order by n").fetchall() == [("\ufffd",), ("\ufeffa",), ("😀",)]


def test_a_generated_column_that_must_have_a_value_is_left_to_the_database(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table orders (id int, twice int generated always as (id * 2) not null)")
    Table(url, "orders").rows.write(spark.sql("select 4 as id"), BATCH)
    assert shop.execute("select * from orders").fetchall() == [(4, 8)]


@pytest.mark.parametrize("rowid", ["", "without rowid"])
def test_a_part_of_a_key_is_not_numbered_by_sqlite(
    spark: SparkSession, url: str, shop: sqlite3.Connection, rowid: str
) -> None:
    """Only the rowid is: without it, the frame would fail as if a record were at fault."""
    shop.execute(f"create table orders (id integer not null, n integer, primary key (id, n)) {rowid}")
    with pytest.raises(SinkMismatch, match=r"column id \(INTEGER\) must have a value, but is not in the frame"):
        Table(url, "orders").rows.write(spark.sql("select 1 as n"), BATCH)
    with nullcontext() if not rowid else pytest.raises(RowMismatch, match=r"column n .* must have a value"):
        Table(url, "orders").rows.write(spark.sql("select 1 as id, cast(null as int) as n"), BATCH)
    assert shop.execute("select * from orders").fetchall() == ([] if rowid else [(1, None)])


def test_the_rowid_is_numbered_by_sqlite_or_has_the_value_of_the_frame(
    spark: SparkSession, url: str, shop: sqlite3.Connection
) -> None:
    shop.execute("create table orders (id integer not null primary key, n int unique)")
    Table(url, "orders").rows.write(spark.sql("select 1 as n"), BATCH)
    Table(url, "orders").rows.write(spark.sql("select 7 as id, 2 as n"), BATCH)
    with pytest.raises(RowMismatch, match=r"column id .* must have a value"):
        Table(url, "orders").rows.write(spark.sql("select cast(null as int) as id, 3 as n"), BATCH)
    assert shop.execute("select * from orders").fetchall() == [(1, 1), (7, 2)]
