"""What PostgreSQL would change, merge or leave out in silence is refused, and what is meant can be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import Refused, RowMismatch, SinkError, SinkMismatch
from offsetkeeper.sinks import Table
from offsetkeeper.sinks.limits import check
from offsetkeeper.sinks.postgresql.columns import columns_of, find_table, limits
from offsetkeeper.sinks.table import Target
from offsetkeeper.stores import open_store

Connection = psycopg.Connection[Any]
Query = Callable[..., list[Any]]
PARTITION = TopicPartition("orders", 0)
ONCE = Guarantee.EXACTLY_ONCE
AT = "'t' as topic, 0 as partition"
HALF = "timestamp'2024-07-01 10:00:00.7 UTC'"
ROLE = """
    do $$ begin create role settled login; exception when duplicate_object then null; end $$;
    alter role settled set search_path = shop, decoy; alter role settled set timezone = 'Europe/Berlin';
    alter role settled set datestyle = 'German, DMY'; alter role settled set intervalstyle = 'sql_standard';
    alter role settled set bytea_output = 'escape'; alter role settled set extra_float_digits = -15;
    alter role settled set synchronous_commit = off"""
REPLICA = """do $$ begin
    execute format('alter database %I set session_replication_role = replica', current_database()); end $$"""
LOWER = "update stock set item = lower(item) where item <> lower(item)"
NOCASE = "create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("timestamptz(0)", HALF, "has more digits of a second than 0: use date_trunc"),
        ("timestamptz(0)", "timestamp'12345-07-01 10:00:00.7 UTC'", "after 9999 has more digits of a second than 0"),
        ("timestamp(3)", "timestamp_ntz'2024-07-01 10:00:00.123987'", "than 3"),
        ("timestamptz(0)[]", f"array({HALF})", "than 0"),
        ("time(0)", "'10:00:00.7'", "is not a time like 09:30:00"),
        ("time", "'now'", "is not a time like 09:30:00"),
        ("time", "'10:00+02'", "is not a time like 09:30:00"),
        ("timetz", "'10:00'", r"is not a time like 09:30:00\+01"),
        ("interval", "'0.0000001 s'", "has more than 6 digits of a second"),
        ("interval", "'-1 day 02:03:04'", "a sign of which the session decides"),
        ("interval", "'-1-2 3 4:05:06'", "a sign of which the session decides"),
        ("interval[]", "array('1 day', '-1d2h')", "a sign of which the session decides"),
        ("interval", "'0.1 us'", "has more than 6 digits of a second"),
        ("interval", "'0.1234 ms'", "has more than 6 digits of a second"),
        ("interval", "'PT1E-7S'", "has more than 6 digits of a second"),
        ("interval", "'0.00001 y'", "a part of a year"),
        ("interval", "'P0.3Y'", "a part of a year"),
        ("interval", "'0.3,mil'", "a part of a year"),
        ("interval", "'P0.3'", "a part of a year"),
        ("interval", "'P0.3-0-0T1:00'", "a part of a year"),
        ("interval", "'PT010203.5'", "has more than 6 digits of a second"),
        ("tstzrange", "'[2024-07-01 10:00,)'", "is not a range like"),
        ("tsrange", "'[2024-07-01 10:00+02,)'", "is not a range like .* without a zone"),
        ("daterange", "'[01/02/2024,)'", "is not a range like"),
        ("varchar(3)", "'ab  '", "is longer than 3 characters"),
        ("varchar(3)[]", "array('abc', 'äöüß')", "'äöüß' is longer than 3 characters"),
        ("char(3)", "'ab '", "ends with a blank"),
        ("bit(3)", "'1011'", "is not 3 digits 0 or 1"),
        ("macaddr8", "'08:00:2b:01:02:03'", "is not an address of 8 bytes"),
        ("smallint", "40000", "40000 is more than 32767"),
        ("numeric(4,2)", "123.45BD", "123.45 is more than 99.99"),
        ("numeric(3,0)", "-1000", "-1000 is less than -999"),
        ("gtsvector", "'a'", "cannot accept a value of type gtsvector"),
        ("uuid", "'no'", 'invalid input syntax for type uuid: "no"'),
        ("jsonb", "'{'", "invalid input syntax for type json"),
        ("text", "'a\\u0000'", ""),
        ("int not null", "cast(null as int)", "must have a value, but a row has none"),
        ("int not null default 7", "cast(null as int)", "must have a value, but a row has none"),
    ],
)
def test_a_value_that_its_column_does_not_keep_is_refused_by_the_name_of_the_column(
    spark: SparkSession,
    database: str,
    batch: Batch,
    connection: Connection,
    rows: Query,
    declared: str,
    value: str,
    why: str,
) -> None:
    connection.execute(f"create table shop (id int, kept {declared})".encode())
    frame = spark.sql(f"select 1 as id, {value} as kept")
    with pytest.raises(RowMismatch, match=rf"(?s)column kept\b.*{why}"):
        Table(database, "shop").rows.write(frame, batch)
    assert rows("select * from shop") == []


def test_types_of_extensions_that_keep_what_a_text_stands_for_are_taken(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query
) -> None:
    for name in ("hstore", "ltree", "cube", "citext"):
        connection.execute(f"create extension {name}".encode())
    connection.execute(b"create type colour as enum ('red')")
    connection.execute(b"create table shop (h hstore, l ltree, q lquery, c cube, t citext, e colour, es colour[])")
    frame = spark.sql(
        "select 'a=>1' as h, 'a.b' as l, 'a.*' as q, '(0.1, 2)' as c, 'Tea' as t, 'red' as e, array('red') as es"
    )
    Table(database, "shop").rows.write(frame, batch)
    kept = "select h->'a', l::text, q::text, c::text, t::text, e::text, es::text from shop"
    assert rows(kept) == [("1", "a.b", "a.*", "(0.1, 2)", "Tea", "red", "{red}")]


# A type as extensions make them, such as pgvector: it reads text, and has fewer digits.
HALF = """
    create type half;
    create function half_in(cstring) returns half language internal immutable strict as 'float4in';
    create function half_out(half) returns cstring language internal immutable strict as 'float4out';
    create type half (input = half_in, output = half_out, internallength = 4, passedbyvalue, alignment = int4);
    create domain rounded as half"""


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("numeric(5,-2)", "12345"),
        ("interval(0)", "'1 s'"),
        ("interval day", "'1 day 05:00'"),
        ("tsvector", "'a:20000'"),
        ("seg", "'1.23456789'"),
        ("half", "'1.23456789'"),
        ("half[]", "array('1.23456789')"),
        ("rounded", "'1.23456789'"),
        ("xid8", "'010'"),
    ],
)
def test_a_column_that_rounds_is_refused_before_a_task_runs(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, declared: str, value: str
) -> None:
    connection.execute(b"create extension if not exists seg")
    connection.execute(HALF.encode())
    connection.execute(f"create table shop (id int, kept {declared})".encode())
    with pytest.raises(SinkMismatch, match=r"column kept: .* (would be (rounded|cut|octal)|may be changed by type)"):
        Table(database, "shop").rows.write(spark.sql(f"select 1 as id, {value} as kept"), batch)
    assert rows("select * from shop") == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("1.5 mon", "1 mon 15 days"),
        ("0.5 milliseconds", "00:00:00.0005"),
        ("1.0 year 0.5 d", "1 year 12:00:00"),
        ("1 millennium 2.000001 days", "1000 years 2 days 00:00:00.0864"),
        ("P1Y0.5D", "1 year 12:00:00"),
        ("P1.5W", "10 days 12:00:00"),
    ],
)
def test_parts_of_what_is_no_year_are_exact(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, value: str, kept: str
) -> None:
    connection.execute("create table shop (kept interval)")
    Table(database, "shop").rows.write(spark.sql(f"select '{value}' as kept"), batch)
    assert rows("select kept::text from shop") == [(kept,)]


@pytest.fixture
def encoded(database: str, batch: Batch, connection: Connection) -> Iterator[Callable[[str], str]]:
    """Make a database of another encoding, with a table; return its URL."""
    made = []

    def make(encoding: str) -> str:
        made.append(f"{encoding}_{batch.group}".lower())
        how = "lc_collate 'C' lc_ctype 'C' template template0"
        connection.execute(f"create database \"{made[-1]}\" encoding '{encoding}' {how}".encode())
        url = f"{database.rpartition('/')[0]}/{made[-1]}"
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("create table shop (item varchar(9), padded char(1), many text[], few varchar(3)[])")
        return url

    yield make
    for name in made:
        connection.execute(f'drop database "{name}" with (force)'.encode())


@pytest.mark.parametrize("encoding", ["EUC_JP", "SQL_ASCII"])
def test_texts_come_out_of_a_database_of_another_encoding(
    spark: SparkSession, encoded: Callable[[str], str], batch: Batch, encoding: str
) -> None:
    url = encoded(encoding)
    Table(url, "shop").rows.write(spark.sql("select 'ｱ日本' as item, array('é') as many"), batch)
    with psycopg.connect(url, client_encoding="utf8") as other:
        assert other.execute("select item, many from shop").fetchall() == [("ｱ日本", ["é"])]


@pytest.mark.parametrize("column", ["'éééé  ' as item", "array('é  ') as few", "'é' as padded"])
def test_a_database_in_sql_ascii_counts_bytes_and_would_cut_blanks_after_them(
    spark: SparkSession, encoded: Callable[[str], str], batch: Batch, column: str
) -> None:
    """Two keys became one row."""
    url = encoded("SQL_ASCII")
    with pytest.raises(RowMismatch, match=r"column (item|few|padded)\b.* is longer than \d bytes"):
        Table(url, "shop").rows.write(spark.sql(f"select {column}"), batch)
    with psycopg.connect(url) as other:
        assert other.execute("select count(*) from shop").fetchall() == [(0,)]


@pytest.mark.parametrize("column", ["'\u00a6' as item", "'\u00a6' as padded", "array('\u00a6') as many"])
def test_a_character_that_the_encoding_of_the_database_changes_is_refused(
    spark: SparkSession, encoded: Callable[[str], str], batch: Batch, column: str
) -> None:
    with pytest.raises(RowMismatch, match=r"column (item|padded|many) .*has U\+00A6"):
        Table(encoded("EUC_JP"), "shop").rows.write(spark.sql(f"select {column}"), batch)


UNSURE = "-1d2h;-1y2d;@ -1y2d;-1.5d2h;-1y2mon3d;-1y2:03;-1_d_2h;-1,d,2h;-1,2:03;-1/2:03;_-1d2h;,-1 d 2 h;-1 d 2 h ago"
SURE = "1d2h;1 day -2 h;-1 day +02:03;-1 -2:03;-1-2;-1-2 +3 -4:05:06;- 1.5 day;@ -1 mon;-1 day ago;P-1Y2D;-02:03:04.5"


def test_an_interval_whose_meaning_the_style_of_a_session_decides_is_refused(connection: Connection) -> None:
    """And no other of these: PostgreSQL itself tells which mean the same in each style."""
    connection.execute("create table shop (kept interval)")
    table: Any = connection
    [column] = columns_of(table, find_table(table, Target("", "shop", "append", ()), ""))
    kept = limits(StringType(), column)
    for text in [*UNSURE.split(";"), *SURE.split(";")]:
        read = set[str]()
        for style in ("postgres", "sql_standard"):
            connection.execute(f"set intervalstyle = {style}".encode())
            read |= {str(found) for (found,) in connection.execute("select interval_send(%s::interval)", [text])}
        assert (len(read) == 1) is (text in SURE.split(";")), (text, read)
        with nullcontext() if len(read) == 1 else pytest.raises(RowMismatch, match="a sign of which the session"):
            check(pa.record_batch({"kept": [text]}), [kept])


def test_texts_mean_the_same_whatever_the_role_has_set(
    spark: SparkSession, database: str, batch: Batch, connection: Connection
) -> None:
    connection.execute(
        "do $$ begin execute format('alter database %I set timezone = ''Europe/Berlin''', current_database()); "
        "execute format('alter database %I set datestyle = ''German, DMY''', current_database()); "
        "execute format('alter database %I set intervalstyle = ''sql_standard''', current_database()); end $$"
    )
    connection.execute(
        "create table shop (a tstzrange, b tsrange, c daterange, d interval, e timetz, f timestamptz, g timestamp, "
        "h date, i text default current_setting('timezone'))"
    )
    frame = spark.sql(
        "select '[2024-07-01 10:00+00,2024-03-04 00:00Z]' as a where false union all select '[2024-03-04 10:00+00,)'"
    ).selectExpr(
        "a", "'[2024-03-04 10:00,)' as b", "'[2024-03-04,)' as c", "'-1 day' as d", "'10:00:00.5-05' as e",
        "timestamp'2024-03-31 00:30:00 UTC' as f", "timestamp_ntz'2024-03-31 02:30:00' as g", "date'2024-03-04' as h",
    )  # fmt: skip
    Table(database, "shop").rows.write(frame, batch)
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set intervalstyle = 'postgres'")
        [row] = other.execute(
            "select a::text, b::text, c::text, d::text, e::text, f::text, g::text, h::text, i from shop"
        )
    assert row == (
        '["2024-03-04 10:00:00+00",)', '["2024-03-04 10:00:00",)', "[2024-03-04,)", "-1 days", "10:00:00.5-05",
        "2024-03-31 00:30:00+00", "2024-03-31 02:30:00", "2024-03-04", "Europe/Berlin",
    )  # fmt: skip


@pytest.fixture
def settled(database: str, connection: Connection) -> Iterator[str]:
    """URL of the database for a role that has set what a session decides, and has the table `orders` in a schema."""
    connection.execute(ROLE)
    connection.execute(
        "create schema shop authorization settled; create schema decoy authorization settled; create table shop.orders "
        "(id int primary key, a interval, b tstzrange, c daterange, d timetz, e timestamptz, f timestamp, g date, "
        "h bytea, i double precision, j text); alter table shop.orders owner to settled"
    )
    yield database.replace("postgres@", "settled@")
    connection.execute("drop schema shop cascade; drop schema decoy cascade")
    connection.execute("do $$ begin drop role settled; exception when dependent_objects_still_exist then null; end $$")


@pytest.mark.parametrize("way", ["apart", "joined"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_are_the_same_whatever_the_role_of_all_our_sessions_has_set(
    spark: SparkSession, settled: str, connection: Connection, rows: Query, mode: Any, way: str
) -> None:
    """Those of the executors too, which stage the rows."""
    table = Table(settled, "orders", mode=mode, key=["id"] if mode == "upsert" else ())
    connection.execute("set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set intervalstyle = 'postgres'")
    with closing(open_store(settled)) as store:
        ledger = Ledger(store, "settled")
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        for number in (1, 2):
            first = 0 if mode == "upsert" else number * 10
            frame = spark.range(first, first + 3).selectExpr(
                "int(id) as id", "'-1 day +02:03:04' as a", "'[2024-03-04 10:00+00,)' as b", "'[2024-03-04,)' as c",
                "'10:00:00.5-05' as d", "timestamp'2024-03-31 00:30:00 UTC' as e",
                "timestamp_ntz'2024-03-31 02:30:00' as f", "date'2024-03-04' as g", "x'00ff5c' as h",
                "double(0.1) + double(0.2) as i", f"'{number}' as j",
            ).repartition(2)  # fmt: skip
            batch = ledger.batch([OffsetRange(*PARTITION, number * 10 - 10, number * 10)])
            if way == "apart":
                table.rows.write(frame, batch)
                ledger.commit(batch)
            else:
                finish = table.rows.stage(frame, batch)
                with ledger.transaction(batch) as transaction:
                    finish(transaction)
        ledger.release(reason="end")
    found = rows("select id, a::text, b::text, c::text, d::text, e::text, f::text, g::text, h, i, j from shop.orders")
    cells = (
        "-1 days +02:03:04", '["2024-03-04 10:00:00+00",)', "[2024-03-04,)", "10:00:00.5-05", "2024-03-31 00:30:00+00",
        "2024-03-31 02:30:00", "2024-03-04", b"\x00\xff\\", 0.1 + 0.2,
    )  # fmt: skip
    ids = [(n, "2") for n in range(3)] if mode == "upsert" else [(n * 10 + m, str(n)) for n in (1, 2) for m in range(3)]
    assert sorted(found) == [(n, *cells, text) for n, text in ids]
    assert rows("select relname from pg_class where relnamespace = 'decoy'::regnamespace and relkind = 'r'") == []


def test_an_error_of_a_trigger_is_not_taken_for_a_value_of_a_row(
    spark: SparkSession, database: str, batch: Batch, connection: Connection
) -> None:
    """A quarantine would take each record for a bad one."""
    connection.execute(
        "create table orders (id bigint, j jsonb); create function broken() returns trigger language plpgsql as "
        "'begin execute ''no sql''; return new; end'; "
        "create trigger broken before insert on orders for each row execute function broken()"
    )
    with pytest.raises(SinkError, match="syntax error") as failed:
        Table(database, "orders").rows.write(spark.sql("select 1L as id, '{}' as j"), batch)
    assert type(failed.value) is SinkMismatch


@pytest.mark.parametrize("left_out", ["insert", "update"])
def test_a_trigger_that_leaves_rows_out_is_refused_unless_it_is_meant_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, left_out: str
) -> None:
    connection.execute(
        "create table orders (id bigint primary key, n int); create function odd() returns trigger language plpgsql as "
        "'begin if new.id % 2 = 0 then return null; end if; return new; end'; "
        f"create trigger odd before {left_out} on orders for each row execute function odd()".encode()
    )
    if left_out == "update":
        connection.execute("insert into orders select id, 0 from generate_series(0, 9) id")
    frame = spark.range(10).selectExpr("id", "1 as n")
    words: dict[str, Any] = {"mode": "upsert", "key": ["id"]} if left_out == "update" else {}
    with pytest.raises(Refused, match=r"of 10 rows of a batch the database has inserted 5; nothing was written.*meant"):
        Table(database, "orders", **words).rows.write(frame, batch)
    assert rows("select count(*) from orders where n = 1") == [(0,)]
    Table(database, "orders", fewer_rows="as the table", **words).rows.write(frame, batch)
    assert rows("select count(*) from orders where n = 1") == [(5,)]


@pytest.mark.parametrize("what", ["nothing", "insert into seen values (new.id)"])
def test_a_rule_that_takes_the_rows_is_refused_at_the_start_unless_it_is_meant(
    spark: SparkSession, database: str, ledger: Ledger, batch: Batch, connection: Connection, rows: Query, what: str
) -> None:
    connection.execute("create table orders (id bigint); create table seen (id bigint)")
    connection.execute(f"create rule away as on insert to orders do instead {what}".encode())
    with pytest.raises(Refused, match=r"rule away of table orders does something else.*fewer_rows"):
        Table(database, "orders").prepare(ledger.store, ONCE)
    Table(database, "orders", fewer_rows="as the table").rows.write(spark.range(10).toDF("id"), batch)
    assert rows("select count(*) from orders") == [(0,)]


def test_a_trigger_that_leaves_keys_out_is_refused_also_where_a_row_is_nothing_but_its_key_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query
) -> None:
    """Rows that are there already are not written again, so the rows that are written say nothing."""
    connection.execute(
        "create table seen (id bigint, item text, primary key (item, id)); insert into seen values (1, 'a'), (4, 'a'); "
        "create function odd() returns trigger language plpgsql as "
        "'begin if new.id % 2 = 0 then return null; end if; return new; end'; "
        "create trigger odd before insert on seen for each row execute function odd()"
    )
    words: dict[str, Any] = {"mode": "upsert", "key": ["id", "item"]}
    frame = spark.range(6).selectExpr("id", "'a' as item")
    with pytest.raises(Refused, match=r"of 6 rows of a batch the database has inserted 4; nothing was written.*meant"):
        Table(database, "seen", **words).rows.write(frame, batch)
    assert rows("select id from seen order by id") == [(1,), (4,)]
    Table(database, "seen", **words).rows.write(frame.where("id in (1, 3, 4, 5)"), batch)
    Table(database, "seen", fewer_rows="as the table", **words).rows.write(frame, batch)
    assert rows("select id from seen order by id") == [(1,), (3,), (4,), (5,)]


@pytest.mark.parametrize("more", ["", ", n int"])
def test_a_trigger_that_changes_keys_is_refused_unless_it_is_meant_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, more: str
) -> None:
    """Two keys of two batches became one row. Nor is a domain of an enum compared with it, which PostgreSQL refuses."""
    connection.execute(
        "create type colour as enum ('red', 'blue'); create domain shade as colour; "
        f"create table seen (item text, c shade{more}, primary key (item, c)); "
        "create function lowered() returns trigger language plpgsql as "
        "'begin new.item := lower(new.item); return new; end'; "
        "create trigger lowered before insert on seen for each row execute function lowered()".encode()
    )
    words: dict[str, Any] = {"mode": "upsert", "key": ["item", "c"]}
    number = ", 1 as n" if more else ""
    first = spark.sql(f"select 'Tea' as item, 'red' as c{number} union all select 'milk', 'blue'{number}")
    with pytest.raises(Refused, match=r"of 2 keys of a batch the table does not have 1; nothing was written.*as the t"):
        Table(database, "seen", **words).rows.write(first, batch)
    assert rows("select * from seen") == []
    for _ in range(2):
        Table(database, "seen", **words).rows.write(first.where("item = 'milk'"), batch)
        Table(database, "seen", fewer_rows="as the table", **words).rows.write(first, batch)
    assert rows("select item, c from seen order by 1") == [("milk", "blue"), ("tea", "red")]


@pytest.mark.parametrize(
    ("when", "does", "gone", "left"),
    [
        ("create trigger odd after insert on stock for each row", LOWER, 1, [("a", 1), ("b", 1)]),
        ("create trigger odd after insert on stock for each statement", LOWER, 1, [("a", 1), ("b", 1)]),
        ("create trigger odd after update on stock for each row", LOWER, 1, [("a", 1), ("b", 1)]),
        ("create trigger odd after insert on stock for each row", "delete from stock", 2, []),
        ("create trigger odd after insert on part for each row", LOWER, 1, [("a", 1), ("b", 1)]),
        ("create constraint trigger odd after insert on stock for each row", LOWER, 1, [("a", 1), ("b", 1)]),
        (f"{REPLICA}; create trigger odd after insert on part for each row", LOWER, 1, [("a", 1), ("b", 1)]),
    ],
)
def test_a_trigger_that_changes_or_deletes_keys_once_they_are_there_is_refused_unless_it_is_meant(
    spark: SparkSession,
    database: str,
    batch: Batch,
    connection: Connection,
    rows: Query,
    when: str,
    does: str,
    gone: int,
    left: list[Any],
) -> None:
    connection.execute(
        "create table stock (item text primary key, n int) partition by hash (item); "
        "create table part partition of stock for values with (modulus 1, remainder 0); "
        "create function odd() returns trigger language plpgsql as "
        f"'begin if pg_trigger_depth() < 2 then {does}; end if; return null; end'; "
        f"{when} execute function odd()".encode()
    )
    if REPLICA in when:
        connection.execute("alter table part enable replica trigger odd")
    there = [("A", 0), ("b", 0)] if "after update" in when else []
    connection.cursor().executemany("insert into stock values (%s, %s)", there)
    frame = spark.sql("select 'A' as item, 1 as n union all select 'b', 1")
    words: dict[str, Any] = {"mode": "upsert", "key": ["item"]}
    with pytest.raises(Refused, match=rf"of 2 keys of a batch the table does not have {gone}; nothing was written"):
        Table(database, "stock", **words).rows.write(frame, batch)
    assert rows("select * from stock order by 1") == there
    Table(database, "stock", fewer_rows="as the table", **words).rows.write(frame, batch)
    assert rows("select * from stock order by 1") == left


@pytest.mark.parametrize("when", ["before insert", "after insert or update"])
def test_an_upsert_through_a_trigger_that_leaves_all_rows_counts_its_keys(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, when: str
) -> None:
    connection.execute(
        "create table stock (item text primary key, n int); create function kept() returns trigger language plpgsql as "
        f"'begin return new; end'; create trigger kept {when} on stock for each row execute function kept()".encode()
    )
    frame = spark.range(9).selectExpr(
        "'t' as topic", "0 as partition", "id as offset", "string(id % 3) as item", "int(id) as n"
    )
    Table(database, "stock", mode="upsert", key=["item"]).rows.write(frame, batch)
    assert rows("select * from stock order by 1") == [("0", 6), ("1", 7), ("2", 8)]


@pytest.mark.parametrize("declared", ["int", "text"])
def test_a_key_without_a_value_is_refused_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, declared: str
) -> None:
    connection.execute(f"create table stock (item {declared} unique, n int)".encode())
    kind = "string" if declared == "text" else declared
    frame = spark.range(3).selectExpr(
        "'t' as topic", "0 as partition", "id as offset", f"cast(null as {kind}) as item", "1 as n"
    )
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(RowMismatch, match=r"column item .* must have a value"):
        table.rows.write(frame, batch)
    assert rows("select * from stock") == []


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ('text collate "nocase"', "has a collation that is not deterministic"),
        ("interval", "has a type for which different texts are one value"),
        ("jsonb", "has a type for which different texts are one value"),
        ("inet", "has a type for which different texts are one value"),
    ],
)
def test_a_key_that_takes_other_texts_for_the_same_is_refused_at_the_start_in_postgresql(
    database: str, ledger: Ledger, connection: Connection, declared: str, why: str
) -> None:
    connection.execute(NOCASE)
    connection.execute(f"create table stock (item {declared} unique, n int)".encode())
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(Refused, match=rf'column item .*{why}.*same_keys="as the column"'):
        table.prepare(ledger.store, ONCE)


def test_a_key_by_an_operator_class_of_the_users_own_is_refused(
    database: str, ledger: Ledger, connection: Connection
) -> None:
    connection.execute(
        "create function lowered(text, text) returns int language sql immutable as "
        "'select bttextcmp(lower($1), lower($2))'; "
        "create operator class nocase_ops for type text using btree as operator 3 =, function 1 lowered(text, text); "
        "create table stock (item text); create unique index on stock (item nocase_ops)"
    )
    with pytest.raises(Refused, match="has an operator class of its own"):
        Table(database, "stock", mode="upsert", key=["item"]).prepare(ledger.store, ONCE)


def test_a_range_type_of_the_users_own_is_refused(
    spark: SparkSession, database: str, batch: Batch, connection: Connection
) -> None:
    connection.execute("create type span as range (subtype = timestamptz); create table shop (kept span)")
    with pytest.raises(SinkMismatch, match="column kept: string into span does not fit"):
        Table(database, "shop").rows.write(spark.sql("select '[2024-07-01 10:00,)' as kept"), batch)


@pytest.mark.parametrize("other", [False, True], ids=["the only index", "one of two"])
def test_an_index_of_another_collation_is_refused_too(
    database: str,
    ledger: Ledger,
    connection: Connection,
    other: bool,  # noqa: FBT001 - a table's column
) -> None:
    connection.execute(NOCASE)
    connection.execute("create table stock (item text); create unique index on stock (item collate nocase)")
    if other:
        connection.execute("create unique index on stock (item)")
    with pytest.raises(Refused, match="has a collation that is not deterministic"):
        Table(database, "stock", mode="upsert", key=["item"]).prepare(ledger.store, ONCE)


@pytest.mark.parametrize("declared", ["time", "time(6)", "time(1)", "time(0)"])
def test_times_that_a_key_keeps_as_they_are_are_keys(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, declared: str
) -> None:
    """Longer ones are refused; they were rounded, and rows merged."""
    connection.execute(f"create table stock (item {declared} unique, n int)".encode())
    most = 6 if declared == "time" else int(declared[5])
    times = ["10:00:00", *(f"10:00:00.{'0' * (n - 1)}5" for n in range(1, most + 1))]
    frame = spark.createDataFrame([(each, number) for number, each in enumerate(times)], "item string, n int")
    for _ in range(2):
        Table(database, "stock", mode="upsert", key=["item"]).rows.write(frame, batch)
    assert rows("select item::text, n from stock order by n") == [(each, number) for number, each in enumerate(times)]


@pytest.mark.parametrize(
    ("declared", "key", "why"),
    [
        ("char(5)", "'b '", "ends with a blank"),
        ("varchar(3)", "'ab  '", "is longer than 3 characters"),
        ("uuid", "'00000000-0000-0000-0000-00000000000A'", "is not spelled as PostgreSQL spells it in a key"),
        ("time", "'10:00'", "is not spelled as PostgreSQL spells it in a key"),
        ("time", "'10:00:00.1234567'", "has more digits of a second than the column"),
        ("time(3)", "'10:00:00.1235'", "has more digits of a second than the column"),
        ("time(0)", "'10:00:00.7'", "has more digits of a second than the column"),
    ],
)
def test_another_spelling_of_a_key_is_refused(
    spark: SparkSession,
    database: str,
    batch: Batch,
    connection: Connection,
    rows: Query,
    declared: str,
    key: str,
    why: str,
) -> None:
    connection.execute(f"create table stock (item {declared} unique, n int)".encode())
    with pytest.raises(RowMismatch, match=rf"column item .*{why}"):
        Table(database, "stock", mode="upsert", key=["item"]).rows.write(
            spark.sql(f"select {key} as item, 1 as n"), batch
        )
    assert rows("select * from stock") == []


@pytest.mark.parametrize("batches", [1, 3])
def test_a_key_of_limited_length_counts_blanks_at_its_end(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, batches: int
) -> None:
    """Up to the length that it has; beyond that PostgreSQL itself would drop them."""
    connection.execute("create table stock (item varchar(3) unique, n int)")
    table = Table(database, "stock", mode="upsert", key=["item"])
    frame = spark.range(2, 4).selectExpr(
        "'t' as topic", "0 as partition", "id as offset", "rpad('ab', cast(id as int), ' ') as item", "1 as n"
    )
    for place in range(batches):
        table.rows.write(frame.where(f"pmod(offset, {batches}) = {place}"), batch)
    assert sorted(rows("select * from stock")) == [("ab", 1), ("ab ", 1)]
    with pytest.raises(RowMismatch, match="column item"):
        table.rows.write(frame.unionAll(spark.sql(f"select {AT}, 9L as offset, 'ab  ' as item, 2 as n")), batch)
    assert sorted(rows("select * from stock")) == [("ab", 1), ("ab ", 1)]


def test_keys_that_are_one_for_the_column_are_one_whole_row_if_that_is_meant_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query
) -> None:
    connection.execute(NOCASE)
    connection.execute("create table stock (item text collate nocase primary key, n int, note text)")
    table = Table(database, "stock", mode="upsert", key=["item"], same_keys="as the column")
    frame = spark.sql(
        f"select {AT}, 1L as offset, 'A1' as item, 1 as n, 'x' as note union all select {AT}, 2L, 'a1', 2, null"
    )
    table.rows.write(frame, batch)
    assert rows("select * from stock") == [("a1", 2, None)]
    table.rows.write(spark.sql("select 'A1' as item, 3 as n, 'y' as note"), batch)
    assert rows("select * from stock") == [("A1", 3, "y")]
    with pytest.raises(RowMismatch, match="same key"):
        table.rows.write(spark.sql("select 'A1' as item, 3 as n union all select 'a1', 4"), batch)


@pytest.mark.parametrize("later", ["", f" union all select {AT}, 9L, 'tea', 4"], ids=["the last", "not the last"])
def test_rows_of_one_record_with_one_key_are_refused_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, later: str
) -> None:
    connection.execute("create table stock (item text primary key, n int)")
    frame = spark.sql(f"select {AT}, 5L as offset, 'tea' as item, explode(array(1, 2, 3)) as n{later}")
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(RowMismatch, match=r"several rows of one record \(topic, partition, offset\) have the same key"):
        table.rows.write(frame, batch)
    assert rows("select * from stock") == []


def test_a_record_without_a_place_orders_nothing(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query
) -> None:
    connection.execute("create table stock (item text primary key, n int)")
    frame = spark.sql(f"select {AT}, cast(null as bigint) as offset, 'tea' as item, 1 as n")
    with pytest.raises(RowMismatch, match=r"column offset .* must have a value"):
        Table(database, "stock", mode="upsert", key=["item"]).rows.write(frame, batch)
    assert rows("select * from stock") == []


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("span", "'[2024-07-01 10:00,)'", "is not a range like"),
        ("span[]", "array('[2024-07-01 10:00,)')", "is not a range like"),
        ("flags", "'1011'", "is not 3 digits 0 or 1"),
        ("flags[]", "array('10')", "is not 3 digits 0 or 1"),
        ("short", "'ab  '", "is longer than 3 characters"),
        ("short[]", "array('ab  ')", "is longer than 3 characters"),
        ("needed", "cast(null as int)", "must have a value"),
    ],
)
def test_a_domain_of_a_domain_and_arrays_of_them_are_as_the_type_that_they_are_of(
    spark: SparkSession,
    database: str,
    batch: Batch,
    connection: Connection,
    rows: Query,
    declared: str,
    value: str,
    why: str,
) -> None:
    for name, of in [("span", "tstzrange"), ("flags", "bit(3)"), ("short", "varchar(3)"), ("needed", "int not null")]:
        connection.execute(f"create domain a_{name} as {of}; create domain {name} as a_{name}".encode())
    connection.execute(f"create table shop (kept {declared})".encode())
    frame = spark.sql(f"select {value} as kept")
    with pytest.raises(RowMismatch, match=rf"column kept\b.*{why}"):
        Table(database, "shop").rows.write(frame, batch)
    assert rows("select * from shop") == []


def test_an_upsert_of_keys_alone_leaves_those_that_are_there_whatever_triggers_there_are(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query
) -> None:
    connection.execute("create table shop (item text primary key); insert into shop values ('tea')")
    connection.execute("create function f() returns trigger language plpgsql as 'begin return new; end'")
    connection.execute("create trigger t before insert on shop for each row execute function f()")
    frame = spark.sql("select explode(array('tea', 'milk')) as item")
    Table(database, "shop", mode="upsert", key=["item"]).rows.write(frame, batch)
    assert rows("select * from shop order by 1") == [("milk",), ("tea",)]


def test_a_key_with_fractions_within_it_is_refused(
    spark: SparkSession, database: str, batch: Batch, connection: Connection
) -> None:
    connection.execute("create table shop (at float8[] primary key)")
    with pytest.raises(SinkMismatch, match="column at of the key has float or double within it"):
        Table(database, "shop", mode="upsert", key=["at"]).rows.write(spark.sql("select array(0.5d) as at"), batch)


@pytest.mark.usefixtures("all_staged")
@pytest.mark.parametrize("place", ["", f"{AT}, 5L as offset, "], ids=["no order", "one record"])
def test_a_key_that_is_the_whole_row_is_refused_if_it_comes_twice_without_an_order_in_postgresql(
    spark: SparkSession, database: str, batch: Batch, connection: Connection, rows: Query, place: str
) -> None:
    connection.execute("create table stock (item text primary key)")
    table = Table(database, "stock", mode="upsert", key=["item"])
    with pytest.raises(RowMismatch, match="have the same key"):
        table.rows.write(spark.sql(f"select {place}explode(array('tea', 'ale', 'tea')) as item"), batch)
    assert rows("select * from stock") == []
    table.rows.write(spark.sql(f"select {AT}, explode(array(5L, 6L)) as offset, 'tea' as item"), batch)
    table.rows.write(spark.sql("select explode(array('tea', 'ale')) as item"), batch)
    assert rows("select * from stock order by 1") == [("ale",), ("tea",)]
