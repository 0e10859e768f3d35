"""Which frames a Delta Lake table takes, what becomes of their values, and which tables are refused."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from deltalake.schema import Field, PrimitiveType
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import GuaranteeRefused, Refused, RowMismatch, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks import DeltaTable, Files, Outputs
from offsetkeeper.sinks.delta import landing, task
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of

KEYED = "id bigint, name string, topic string, partition int, offset bigint"
TYPES = pa.schema(
    [
        *(("b", pa.int8()), ("s", pa.int16()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32())),
        *(("d", pa.float64()), ("n", pa.decimal128(38, 9)), ("t", pa.string()), ("x", pa.binary()), ("y", pa.bool_())),
        *(("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us"))),
        *(("tags", pa.list_(pa.string())), ("counts", pa.map_(pa.string(), pa.int64()))),
        ("who", pa.struct([("name", pa.string()), ("born", pa.date32())])),
    ]
)
VALUES = """
select * from values
    (-128Y, -32768S, -2147483648, -9223372036854775808L, -0.5F, double('NaN'), 12345678901234567890.123456789BD, 'é\n',
     X'00FF', true, date'0001-01-01', timestamp'2024-07-01 12:00:00.000001 UTC', timestamp_ntz'9999-12-31 23:59:59.5',
     array('a', null), map('k', 1L), named_struct('name', 'Ann', 'born', date'1999-12-31')),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
as (b, s, i, l, f, d, n, t, x, y, day, at, wall, tags, counts, who)"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where no table is yet."""
    return str(tmp_path / "orders")


def made(path: str, *fields: Any, **settings: Any) -> deltalake.DeltaTable:
    return deltalake.DeltaTable.create(path, schema=pa.schema(fields), **settings)


def once(path: str, **settings: Any) -> Once:
    way = Outputs(it=DeltaTable(path, **settings)).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    return way.once["it"]


def rows(path: str, *columns: str) -> list[Any]:
    found = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return [tuple(row[name] for name in columns or row) for row in found]


def write(sink: Once, spark: SparkSession, values: Sequence[Any], schema: str, sequence: int = 1) -> None:
    sink.write(spark.createDataFrame([*values], schema), batch_of(sequence))


def test_values_come_back_as_they_were(spark: SparkSession, path: str) -> None:
    made(path, *TYPES)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        once(path).write(spark.sql(VALUES), batch_of(1))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [row] = [row for row in rows(path) if row[0] is not None]
    [nulls] = [row for row in rows(path) if row[0] is None]
    assert str(row[5]) == "nan"
    assert row[:5] + row[6:] == (
        *(
            -128,
            -(2**15),
            -(2**31),
            -(2**63),
            -0.5,
            Decimal("12345678901234567890.123456789"),
            "é\n",
            b"\x00\xff",
            True,
        ),
        *(date(1, 1, 1), datetime(2024, 7, 1, 12, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 500000)),  # noqa: DTZ001 - a wall clock
        *(["a", None], [("k", 1)], {"name": "Ann", "born": date(1999, 12, 31)}),
    )
    assert nulls == (None,) * 16
    assert deltalake.DeltaTable(path).count() == 2


def test_a_narrower_number_is_taken_and_a_column_that_may_be_null_may_be_left_out(
    spark: SparkSession, path: str
) -> None:
    made(path, ("name", pa.string()), ("id", pa.int64()), ("price", pa.decimal128(12, 4)), ("ratio", pa.float64()))
    frame = spark.sql("select 0.5F as ratio, 7Y as id, 1.25BD as price")
    once(path).write(frame, batch_of(1))
    assert rows(path, "name", "id", "price", "ratio") == [(None, 7, Decimal("1.2500"), 0.5)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select 1L as id, 'a' as name, 1 as other", r"the table has no column other"),
        ("select 'a' as name", r"column id \(bigint\) must have a value, but is not in the frame"),
        ("select 'x' as id, 'a' as name", r"column id: string into bigint does not fit"),
        ("select 1BD as id", r"column id: decimal\(1,0\) into bigint does not fit"),
        ("select 1L as id, 1.23456BD as price", r"column price: decimal\(6,5\) into decimal\(12,4\) does not fit"),
        ("select 1L as id, array(1L) as tags", r"column tags: array<bigint> into array<int> does not fit"),
        ("select 1L as id, array(1, null) as tags", r"column tags: array<int> into array<int> does not fit"),
        ("select 1L as id, 1L as id", r"the frame has column id 2 times"),
        (
            "select 1L as id, 'a' collate UTF8_LCASE as name",
            "column name: string collate UTF8_LCASE into string does not",
        ),
        ("select 1L as ID, 'a' as name", r"column id \(bigint\) must have a value"),
        ("select cast(null as bigint) as id", r"column id \(bigint\) must have a value, but a row has none"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(spark: SparkSession, path: str, query: str, told: str) -> None:
    """By its column; nothing is written."""
    tags = pa.list_(pa.field("element", pa.int32(), nullable=False))
    made(
        *(path, pa.field("id", pa.int64(), nullable=False), ("name", pa.string())),
        *(("price", pa.decimal128(12, 4)), ("tags", tags)),
    )
    with pytest.raises(SinkMismatch, match=told):
        once(path).write(spark.sql(query), batch_of(1))
    assert not list(Path(path).rglob("*.parquet"))


def test_a_table_that_is_altered_between_batches_is_noticed(spark: SparkSession, path: str) -> None:
    made(path, ("id", pa.int64()))
    sink = once(path)
    write(sink, spark, [(1,)], "id bigint")
    deltalake.DeltaTable(path).alter.add_columns(Field("more", PrimitiveType("integer")))
    write(sink, spark, [(2, 3)], "id bigint, more int", 2)
    with pytest.raises(SinkMismatch, match="column more: string into int does not fit"):
        write(sink, spark, [(2, "x")], "id bigint, more string", 3)
    assert sorted(rows(path, "id", "more"), key=repr) == [(1, None), (2, 3)]


def test_rows_go_where_they_belong_in_a_partitioned_table(spark: SparkSession, path: str) -> None:
    """With names that a folder could not have, nulls, and a partition in several tasks; and filters find them."""
    by = [("word", pa.string()), ("n", pa.int32()), ("yes", pa.bool_()), ("day", pa.date32()), ("left", pa.int8())]
    made(path, ("id", pa.int64()), *by, partition_by=[name for name, _ in by])
    given = [
        (n, word, n % 2 or None, n % 3 == 0, date(2024, 2, 28 + n % 2))
        for n, word in enumerate(["a/b=c%20", " ", "é", None, "null", "..", "x" * 300] * 3)
    ]
    frame = spark.createDataFrame(given, "id long, word string, n int, yes boolean, day date").repartition(3)
    once(path).write(frame, batch_of(1))
    found = rows(path, "id", "word", "n", "yes", "day", "left")
    assert sorted(found) == [(*row, None) for row in given]
    table = deltalake.DeltaTable(path)
    some = table.to_pyarrow_table(filters=[("word", "=", "a/b=c%20"), ("day", "=", date(2024, 2, 28))])
    assert sorted(some["id"].to_pylist()) == [0, 14]
    assert table.count() == len(given)


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["region"]}], ids=["append", "upsert"])
def test_rows_with_values_of_partition_columns_alone_are_read_back(
    spark: SparkSession, path: str, words: dict[str, Any]
) -> None:
    """Files without a column had no rows, whatever the log said of them."""
    made(path, ("region", pa.string()), ("note", pa.string()), ("n", pa.int32()), partition_by=["region"])
    given = ["a", "b", None] if not words else ["a", "b"]
    write(once(path, **words), spark, [(each,) for each in given], "region string")
    if not words:
        write(once(path), spark, [("a",)], "region string", 2)
    expected = [*given, *["a"] * (not words)]
    assert sorted(rows(path), key=str) == sorted(((each, None, None) for each in expected), key=str)
    table = deltalake.DeltaTable(path)
    found = QueryBuilder().register("t", table).execute("select region from t").read_all()
    assert len(pa.table(found)) == table.count() == len(expected)


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["region", "day"]}], ids=["append", "upsert"])
def test_a_table_that_is_partitioned_by_all_its_columns_is_refused(path: str, words: dict[str, Any]) -> None:
    """Its files have no columns, and so no rows; an upsert failed again and again."""
    made(path, ("region", pa.string()), ("day", pa.date32()), partition_by=["region", "day"])
    with pytest.raises(Refused, match=r"partitioned by all its columns.* add a column"):
        once(path, **words)


def test_a_file_with_fewer_rows_than_a_task_had_is_an_error(path: str) -> None:
    made(path, ("region", pa.string()), ("note", pa.string()), partition_by=["region"])
    plan = task.FilePlan(pa.schema([("region", pa.string())]), ("region",), (), "part-few", "")
    batch = pa.record_batch({"c0": ["a", "a"]})
    with pytest.raises(SinkError, match=r"part-few-.* has 0 rows of 2; the table was not changed"):
        [*task.write_files(task.Folder(path, {}), plan, iter([batch]))]
    assert not [*Path(path).glob("*.parquet")]


@pytest.mark.parametrize("day", ["0000-12-31", "+10000-01-01"])
def test_a_date_that_names_no_partition_is_refused(spark: SparkSession, path: str, day: str) -> None:
    made(path, ("id", pa.int64()), ("day", pa.date32()), partition_by=["day"])
    with pytest.raises(RowMismatch, match=r"column day: a date before the year 1 or after 9999"):
        once(path).write(spark.sql(f"select 1L as id, cast('{day}' as date) as day"), batch_of(1))
    assert not rows(path)


@pytest.mark.parametrize("day", ["0000-12-31", "+10000-01-01"])
def test_a_date_with_which_an_upsert_would_make_the_table_unreadable_is_refused(
    spark: SparkSession, path: str, day: str
) -> None:
    """By its bounds in the log: `deltalake` then opens no file for pyarrow. An append has no such bounds."""
    made(path, ("id", pa.int64()), ("day", pa.date32()))
    sink = once(path, mode="upsert", key=["id"])
    with pytest.raises(RowMismatch, match=r"column day \(date\): a time before the year 1 or after 9999 in an upsert"):
        sink.write(spark.sql(f"select 1L as id, cast('{day}' as date) as day"), batch_of(1))
    sink.write(spark.sql("select 1L as id, date'0001-01-01' as day union select 2L, date'9999-12-31'"), batch_of(1))
    assert sorted(rows(path)) == [(1, date(1, 1, 1)), (2, date(9999, 12, 31))]
    once(path).write(spark.sql(f"select 3L as id, cast('{day}' as date) as day"), batch_of(2))
    assert sorted(deltalake.DeltaTable(path).to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]


def test_of_several_rows_with_one_key_the_last_is_taken(spark: SparkSession, path: str) -> None:
    """Kafka's columns need not be in the table, and columns that the frame has not keep their values."""
    made(path, ("Id.x", pa.int64()), ('a "name"', pa.string()), ("note", pa.string()))
    old = pa.table({"Id.x": [1, 9], 'a "name"': ["old", "kept"], "note": ["noted", "noted"]})
    deltalake.write_deltalake(path, old, mode="append")
    given = [(1, "first", "t", 0, 5), (1, "last", "t", 1, 1), (2, "last", "t", 0, 7), (2, "first", "t", 0, 6)]
    schema = '`Id.x` bigint, `a "name"` string, topic string, partition int, offset bigint'
    write(once(path, mode="upsert", key=["Id.x"]), spark, given, schema)
    assert sorted(rows(path, "Id.x", 'a "name"', "note")) == [
        *((1, "last", "noted"), (2, "last", None), (9, "kept", "noted"))
    ]


def test_rows_with_one_key_and_no_order_are_refused_in_delta(spark: SparkSession, path: str) -> None:
    made(path, ("id", pa.int64()), ("name", pa.string()))
    sink = once(path, mode="upsert", key=["id"])
    with pytest.raises(RowMismatch, match=r"several rows of the batch have the same key \(id\)"):
        write(sink, spark, [(1, "a"), (1, "b")], "id bigint, name string")
    with pytest.raises(RowMismatch, match=r"column id \(bigint\) must have a value"):
        write(sink, spark, [(None, "a")], "id bigint, name string")
    write(sink, spark, [(1, "a"), (2, "b")], "id bigint, name string")
    assert sorted(rows(path)) == [(1, "a"), (2, "b")]


def test_two_rows_of_one_record_with_the_same_key_are_refused_in_delta(spark: SparkSession, path: str) -> None:
    """Nothing says which is the last. Without a place in the order it is unknown too."""
    made(path, ("id", pa.int64()), ("name", pa.string()))
    sink = once(path, mode="upsert", key=["id"])
    given = [(1, "a", "t", 0, 5), (1, "b", "t", 0, 6), (1, "c", "t", 0, 6), (2, "d", "t", 0, 6)]
    with pytest.raises(RowMismatch, match=r"several rows of one record .* have the same key \(id\)"):
        write(sink, spark, given, KEYED)
    for nowhere in ((1, "c", None, 0, 6), (1, "c", "t", None, 6), (1, "c", "t", 0, None)):
        with pytest.raises(RowMismatch, match="no value in one of the columns topic, partition and offset"):
            write(sink, spark, [*given[:2], nowhere], KEYED)
    assert not rows(path)
    write(sink, spark, [*given[:2], given[3]], KEYED)
    assert sorted(rows(path)) == [(1, "b"), (2, "d")]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (-0.0, r"-0\.0 is a key equal to 0\.0 there"),
        (float("nan"), "nan is a key of its own for each form of its bits"),
        (-float("nan"), "nan is a key of its own for each form of its bits"),
    ],
)
def test_a_number_in_a_key_that_has_two_forms_is_refused(spark: SparkSession, path: str, key: float, why: str) -> None:
    """For a merge -0.0 is the same key as 0.0, and not for Kafka. NaN of another sign is the same for Spark alone."""
    made(path, ("at", pa.float64()), ("name", pa.string()))
    sink = once(path, mode="upsert", key=["at"])
    schema = "at double, name string, topic string, partition int, offset bigint"
    write(sink, spark, [(0.0, "a", "t", 0, 1), (math.inf, "b", "t", 0, 1), (0.5, "c", "t", 0, 1)], schema)
    with pytest.raises(RowMismatch, match=rf"column at \(double\): {why}"):
        write(sink, spark, [(key, "d", "t", 0, 1), (0.0, "e", "t", 0, 2)], schema, 2)
    assert sorted(rows(path, "name")) == [("a",), ("b",), ("c",)]


def test_a_key_that_is_no_number_replaces_no_other(spark: SparkSession, path: str) -> None:
    """In a merge that finds files by the least and greatest key, NaN is equal to any key of its file, or hides it."""
    made(path, ("at", pa.float64()), ("name", pa.string()))
    sink = once(path, mode="upsert", key=["at"])
    schema = "at double, name string, topic string, partition int, offset bigint"
    others = {"at": [float("nan"), -float("nan"), 0.5], "name": ["a", "b", "c"]}
    deltalake.write_deltalake(path, pa.table(others), mode="append")  # as another writer may do
    for number, name in enumerate("de", 1):
        write(sink, spark, [(0.5, name, "t", 0, number)], schema, number)
    assert sorted(rows(path, "name")) == [("a",), ("b",), ("e",)]


@pytest.mark.parametrize(
    ("declared", "kind", "key"),
    [
        ("decimal(20,0)", pa.decimal128(20, 0), Decimal(12345678901234567890)),
        ("timestamp", pa.timestamp("us", "UTC"), datetime(6537, 1, 1, 0, 0, 0, 2001, tzinfo=UTC)),
    ],
)
def test_a_key_that_the_log_does_not_have_exactly_is_replaced(
    declared: str, kind: Any, key: Any, spark: SparkSession, path: str
) -> None:
    """The statistics of a file round it, so that it seems to be beyond all keys of the file."""
    made(path, ("at", kind), ("name", pa.string()))
    sink = once(path, mode="upsert", key=["at"])
    schema = f"at {declared}, name string, topic string, partition int, offset bigint"
    for number, name in enumerate("ab", 1):
        write(sink, spark, [(key, name, "t", 0, number)], schema, number)
    assert rows(path, "name") == [("b",)]


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["id"]}], ids=["append", "upsert"])
def test_a_text_in_a_partition_is_kept_or_refused_and_never_null(
    spark: SparkSession, path: str, words: dict[str, Any]
) -> None:
    """An upsert had the empty one as null. A merge and a compaction take Hive's word for null as null."""
    made(path, ("id", pa.int64()), ("word", pa.string()), partition_by=["word"])
    sink = once(path, **words)
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(RowMismatch, match=rf"column word \(string\): '{text}' becomes null"):
            write(sink, spark, [(1, "a"), (2, text)], "id long, word string")
    given = [*enumerate(["a/b=c%20", " ", "é", None, "a__HIVE_DEFAULT_PARTITION__", "..", "a\0b", "null"])]
    for sequence in (1, 2):
        write(sink, spark, given, "id long, word string", sequence)
    kept = given if words else sorted(given * 2, key=lambda row: row[0])
    deltalake.DeltaTable(path).optimize.compact()
    assert sorted(rows(path)) == kept


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["word"]}], ids=["append", "upsert"])
def test_a_text_that_is_none_is_refused_in_delta(spark: SparkSession, path: str, words: dict[str, Any]) -> None:
    """Bytes that Spark calls a string would make a file that no other reader can read, or end the process.

    The record is named, also if the table has none of its columns.
    """
    made(path, ("word", pa.string()), ("words", pa.map_(pa.string(), pa.list_(pa.string()))), ("x", pa.int32()))
    place = ", 'orders' as topic, 3 as partition, id + 7 as offset" if words else ""
    for columns in (
        "if(id = 5, cast(X'FF' as string), string(id)) as word",
        "string(id) as word, map('a', array('b', if(id = 5, cast(X'FF' as string), string(id)))) as words",
        "string(id) as word, map(if(id = 5, cast(X'FF' as string), string(id)), array('b')) as words",
    ):
        told = r"column words? .* has a text that is not UTF-8, b'\\xff', as"
        with pytest.raises(RowMismatch, match=f"orders 3 offset 12: {told}" if words else told):
            once(path, **words).write(spark.sql(f"select {columns}{place} from range(9)"), batch_of(1))  # noqa: S608 - the test's own
    assert not rows(path)


def test_a_table_with_a_key_twice_is_told(spark: SparkSession, path: str, caplog: pytest.LogCaptureFixture) -> None:
    made(path, ("id", pa.int64()), ("name", pa.string()))
    deltalake.write_deltalake(path, pa.table({"id": [1, 1], "name": ["a", "b"]}), mode="append")
    write(once(path, mode="upsert", key=["id"]), spark, [(1, "c"), (2, "d")], "id bigint, name string")
    assert sorted(rows(path)) == [(1, "c"), (1, "c"), (2, "d")]
    assert "2 rows has inserted 1 and replaced 2: the table had several rows of the same key" in caplog.text


def test_an_upsert_that_changes_nothing_moves_the_mark(spark: SparkSession, path: str) -> None:
    """A merge without changes is no commit of deltalake's own."""
    made(path, ("id", pa.int64()), ("day", pa.date32()), partition_by=["day"])
    sink = once(path, mode="upsert", key=["id", "day"])
    for sequence in (1, 2):
        write(sink, spark, [(1, date(2024, 2, 29))], "id bigint, day date", sequence)
        found = sink.mark("billing")
        assert found is not None
        assert found.sequence == sequence
    assert rows(path, "id", "day") == [(1, date(2024, 2, 29))]


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"mode": "upsert", "key": ["nr"]}, "it has no column nr, which is in the key"),
    ({"partition_by": ["ratio"]}, {}, "it is partitioned by ratio, which is double"),
    ({"configuration": {"delta.appendOnly": "true"}}, {"mode": "upsert", "key": ["id"]}, "it is append-only"),
    (
        {"configuration": {"delta.setTransactionRetentionDuration": "interval 30 days"}},
        {},
        "it would forget the mark: remove that property",
    ),
]


@pytest.mark.parametrize(("table", "sink", "told"), REFUSED)
def test_a_table_that_asks_for_more_is_refused_at_the_start(
    path: str, table: dict[str, Any], sink: dict[str, Any], told: str
) -> None:
    made(path, ("id", pa.int64()), ("ratio", pa.float64()), **table)
    with pytest.raises(Refused, match=told):
        once(path, **sink)


def test_a_table_with_a_constraint_is_refused(path: str) -> None:
    """Files are written without asking it."""
    made(path, ("id", pa.int64())).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(Refused, match=r"it has delta.constraints.positive"):
        once(path)


def test_a_table_with_values_of_its_own_making_is_refused(path: str) -> None:
    generated = Field("twice", PrimitiveType("long"), metadata={"delta.generationExpression": "id * 2"})
    fields = [Field("id", PrimitiveType("long")), generated]
    deltalake.DeltaTable.create(path, schema=deltalake.Schema(fields))
    with pytest.raises(Refused, match=r"column twice has delta.generationExpression"):
        once(path)


BOUND = "__CHAR_VARCHAR_TYPE_STRING"


def bound(path: str, *declared: str) -> None:
    """Make a table with a column c0, c1 … of each type, as Spark does: texts are strings, and a note has the type."""
    plain = (re.sub(r"(var)?char\(\d+\)", "string", each) for each in declared)
    schema: Any = StructType.fromDDL(", ".join(f"c{n} {each}" for n, each in enumerate(plain)))
    for field, each in zip(schema, declared, strict=True):
        field.metadata = {} if each == field.dataType.simpleString() else {BOUND: each}
    deltalake.DeltaTable.create(path, deltalake.Schema.from_json(schema.json()))


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": ["c0"]}], ids=["append", "upsert"])
def test_a_text_of_spark_that_has_a_limit_is_not_exceeded(
    spark: SparkSession, path: str, words: dict[str, Any]
) -> None:
    """Characters count, not bytes. Spark's own reader and writer keep to it, and other programs rely on that."""
    bound(path, "varchar(3)", "string")
    sink = once(path, **words)
    for column in ("string(id) || 'éé'", "'abcdef'", "'abc '"):
        told = r"column c0 \(varchar\(3\)\): .* is longer than 3 characters; nothing was written"
        with pytest.raises(RowMismatch, match=told):
            sink.write(spark.sql(f"select {column} as c0 from range(9, 11)"), batch_of(1))  # noqa: S608 - the test's own
    assert not rows(path)
    given = [("ééé", "longer than three"), ("", None)]
    write(sink, spark, given, "c0 string, c1 string")
    assert sorted(rows(path), reverse=True) == given


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("char(5)", "'ab'"),
        ("array<varchar(3)>", "array('abcdef')"),
        ("struct<x:int,y:char(3)>", "named_struct('x', 1, 'y', 'a')"),
        ("map<string,varchar(3)>", "map('a', 'b')"),
    ],
)
def test_a_text_that_spark_fills_or_bounds_elsewhere_is_refused(
    spark: SparkSession, path: str, declared: str, value: str
) -> None:
    """And is no hindrance where the frame leaves it out."""
    bound(path, declared, "string")
    with pytest.raises(SinkMismatch, match=rf"column c0: .* into {re.escape(declared)} is not supported.*string"):
        once(path).write(spark.sql(f"select {value} as c0, 'a' as c1"), batch_of(1))
    assert not rows(path)
    write(once(path), spark, [("a",)], "c1 string")
    assert rows(path) == [(None, "a")]


def test_a_limit_of_spark_that_a_field_within_a_column_notes_is_seen(spark: SparkSession, path: str) -> None:
    inner = StructType([StructField("x", StringType(), metadata={BOUND: "varchar(3)"})])
    deltalake.DeltaTable.create(path, deltalake.Schema.from_json(StructType([StructField("c", inner)]).json()))
    with pytest.raises(SinkMismatch, match=r"column c: .* into struct<x:string> with varchar\(3\) is not supported"):
        once(path).write(spark.sql("select named_struct('x', 'abcdef') as c"), batch_of(1))
    assert not rows(path)


def test_where_no_table_is_it_is_told_how_to_make_one(path: str) -> None:
    with pytest.raises(Refused, match=r"has no Delta table: create it first, with deltalake.DeltaTable.create"):
        once(path)
    assert not Path(path).exists()


def test_a_storage_that_may_rename_over_a_commit_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path, ("id", pa.int64()))
    with pytest.raises(GuaranteeRefused, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        once(path, storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(GuaranteeRefused, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        once(path)


def test_wrong_arguments_are_refused_when_they_are_given() -> None:
    for wrong in ({"mode": "merge"}, {"mode": "upsert"}, {"key": ["id"]}, {"mode": "upsert", "key": "id"}):
        with pytest.raises(SettingsError):
            DeltaTable("orders", **wrong)
    with pytest.raises(SettingsError) as raised:
        DeltaTable("s3://key:topsecret@bucket/orders")
    assert "topsecret" not in str(raised.value)


@pytest.mark.parametrize("uri", ["file:///tmp/a%20b", "file:/tmp/a%20b", "FILE:///tmp/a%20b"])
def test_a_path_may_be_given_as_a_uri(uri: str) -> None:
    assert DeltaTable(uri).place == DeltaTable("/tmp/a b").place == "/tmp/a b"  # noqa: S108 - nothing is there


@pytest.mark.parametrize("uri", ["file://host/tmp/x", "file:///tmp/x?y", "file:///tmp/x#y", "file://"])
def test_a_uri_of_a_path_that_says_more_is_refused(uri: str) -> None:
    """The rest was dropped, and so the table was another one."""
    with pytest.raises(SettingsError, match=r"file:///path, without a host, and with \? as %3F"):
        DeltaTable(uri)


def test_the_address_of_a_container_in_azure_is_told() -> None:
    """What is before its @ is no user."""
    for uri in ("abfss://shop@account.dfs.core.windows.net/x", "wasbs://shop@account.blob.core.windows.net/x"):
        with pytest.raises(SettingsError, match="write az://container/path, and give account_name in storage_options"):
            DeltaTable(uri)
        with pytest.raises(GuaranteeRefused, match=r'use DeltaTable\("az://container/path"\) there'):
            Files(uri)
    assert DeltaTable("az://shop/x").place == "az://shop/x"


def test_a_sink_is_shown_without_its_options_and_may_be_pickled(path: str) -> None:
    made(path, ("id", pa.int64()))
    sink = DeltaTable(f"file://{path}", storage_options={"token": "topsecret"})
    again = pickle.loads(pickle.dumps(sink))  # noqa: S301 - made here
    assert repr(sink) == repr(again) == f"DeltaTable({path!r}, mode='append')"
    table = landing.DeltaTarget(path, {"token": "topsecret"}, sink._target)
    assert "topsecret" not in f"{table!r} {table.stage} {table.folder}"


def test_an_error_shows_no_key_in_whichever_form_the_library_quotes_it() -> None:
    """Deltalake shows the answer of a server, which may show the request."""
    token = 'to"psecret\nof s3'
    folder = task.Folder("s3://b/p", {"aws_session_token": token})
    assert folder.why(OSError(f"no header: {token!r}, {token}")) == "s3://b/p: no header: '***', ***"


def test_at_most_once_is_refused_by_a_delta_table(path: str) -> None:
    made(path, ("id", pa.int64()))
    with pytest.raises(GuaranteeRefused):
        Outputs(it=DeltaTable(path)).prepare(MemoryStore("memory://"), Guarantee.AT_MOST_ONCE)
