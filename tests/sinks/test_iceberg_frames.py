"""Which frames an Iceberg table takes, what becomes of their values, and which tables and catalogs are refused."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import _ENV_CONFIG
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    TimeType,
)
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import (
    MissingExtra,
    OffsetkeeperError,
    Refused,
    RowMismatch,
    SettingsError,
    SinkError,
    SinkMismatch,
)
from offsetkeeper.sinks import IcebergTable
from offsetkeeper.sinks.iceberg.history import held
from offsetkeeper.sinks.iceberg.task import without_secrets
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.landers import batch_of
from sinks.icebergs import Lake, by_duckdb
from sinks.test_delta_frames import VALUES

TYPES = pa.schema(
    [
        *(("b", pa.int32()), ("s", pa.int32()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32())),
        *(("d", pa.float64()), ("n", pa.decimal128(38, 9)), ("t", pa.string()), ("x", pa.binary()), ("y", pa.bool_())),
        *(("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us"))),
        *(("tags", pa.list_(pa.string())), ("counts", pa.map_(pa.string(), pa.int64()))),
        ("who", pa.struct([("name", pa.string()), ("born", pa.date32())])),
    ]
)
ORDER = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DecimalType(12, 4)),
    NestedField(4, "tags", ListType(5, IntegerType(), element_required=True)),
    NestedField(6, "ratio", DoubleType()),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty catalog."""
    return Lake.made(tmp_path)


def write(spark: SparkSession, lake: Lake, query: str, sequence: int = 1, name: str = "orders") -> None:
    Once(lake.lander(name), "").write(spark.sql(query), batch_of(sequence))


def test_values_come_back_as_they_were_in_iceberg(spark: SparkSession, lake: Lake) -> None:
    """To pyiceberg and to DuckDB."""
    lake.create("orders", TYPES)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        write(spark, lake, VALUES)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = [tuple(row.values()) for row in lake.table("orders").scan().to_arrow().to_pylist()]
    [row] = [row for row in found if row[0] is not None]
    [nulls] = [row for row in found if row[0] is None]
    expected = (
        *(-128, -(2**15), -(2**31), -(2**63), -0.5, Decimal("12345678901234567890.123456789"), "é\n", b"\x00\xff"),
        *(True, date(1, 1, 1), datetime(2024, 7, 1, 12, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 500000)),  # noqa: DTZ001 - a wall clock
        ["a", None],
    )
    assert str(row[5]) == "nan"
    assert row[:5] + row[6:] == (*expected, [("k", 1)], {"name": "Ann", "born": date(1999, 12, 31)})
    assert nulls == (None,) * 16
    [other] = by_duckdb(
        lake, "select b, s, i, l, f, n, t, x, y, day, \"at\" at time zone 'UTC', wall, tags from {rows} where y"
    )
    utc = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in expected]
    assert list(other) == utc


def test_a_narrower_number_is_taken_and_a_column_that_may_be_null_may_be_left_out_in_iceberg(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create("orders", ORDER)
    write(spark, lake, "select 0.5F as ratio, 7Y as id, 1.25BD as price")
    assert lake.rows("orders") == [(7, None, Decimal("1.2500"), None, 0.5)]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select 1L as id, 'a' as name, 1 as other", r"the table has no column other"),
        ("select 'a' as name", r"column id \(long\) must have a value, but is not in the frame"),
        ("select 'x' as id, 'a' as name", r"column id: string into long does not fit"),
        ("select 1BD as id", r"column id: decimal\(1,0\) into long does not fit"),
        ("select 1L as id, 1.23456BD as price", r"column price: decimal\(6,5\) into decimal\(12, 4\) does not fit"),
        ("select 1L as id, array(1L) as tags", r"column tags: array<bigint> into list<int> does not fit"),
        ("select 1L as id, array(1, null) as tags", r"column tags: array<int> into list<int> does not fit"),
        ("select 1L as id, 1L as id", r"the frame has column id 2 times"),
        ("select 1L as ID, 'a' as name", r"column id \(long\) must have a value"),
        ("select cast(null as bigint) as id", r"column id \(long\) must have a value, but a row has none"),
        ("select 1L as id, cast(X'ff' as string) as name", r"column name \(string\) has a text that is not UTF-8"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_in_iceberg(
    spark: SparkSession, lake: Lake, query: str, told: str
) -> None:
    """By its column; nothing is written."""
    lake.create("orders", ORDER)
    with pytest.raises(SinkMismatch, match=told):
        write(spark, lake, query)
    assert not list(lake.folder.rglob("*.parquet"))


def test_a_table_that_is_altered_between_batches_is_noticed_in_iceberg(spark: SparkSession, lake: Lake) -> None:
    lake.create("orders", ORDER)
    write(spark, lake, "select 1L as id")
    with lake.catalog() as catalog, catalog.load_table("shop.orders").update_schema() as change:
        change.add_column("note", StringType())
        change.rename_column("name", "title")
    write(spark, lake, "select 2L as id, 'new' as note, 'tea' as title", 2)
    with pytest.raises(SinkMismatch, match="the table has no column name"):
        write(spark, lake, "select 3L as id, 'a' as name", 3)
    assert [(row[0], row[1], row[-1]) for row in lake.rows("orders")] == [(1, None, None), (2, "tea", "new")]


SALES = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "shop", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "a.b", StringType()),
)
PARTITIONS: dict[str, list[tuple[int, Transform[Any, Any]]]] = {
    "of a text": [(2, IdentityTransform())],
    "of days and buckets": [(3, DayTransform()), (1, BucketTransform(2))],
    "of the first letter": [(2, TruncateTransform(1))],
    "of a name with a dot": [(4, IdentityTransform())],
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_rows_go_into_their_partitions(spark: SparkSession, lake: Lake, kind: str) -> None:
    """Each once, whatever characters a value has; readers find them by it."""
    fields = [PartitionField(source, 1000 + n, how, f"p{n}") for n, (source, how) in enumerate(PARTITIONS[kind])]
    lake.create("orders", SALES, PartitionSpec(*fields))
    texts = ["a", "a/b=c%20", "..", "", "__HIVE_DEFAULT_PARTITION__", "a\nb", "é", "null", "a"]
    values = [(n, text, datetime(2024, 1, 1 + n % 3, tzinfo=UTC), text) for n, text in enumerate(texts)]
    values.append((99, None, None, None))  # type: ignore[arg-type]
    frame = spark.createDataFrame(values, "id bigint, shop string, at timestamp, `a.b` string")
    Once(lake.lander("orders"), "").write(frame, batch_of(1))
    assert sorted(row[0] for row in lake.rows("orders")) == [*range(len(texts)), 99]
    assert {row[:3] for row in lake.rows("orders")} == {row[:3] for row in values}
    [found] = lake.table("orders").scan("shop = 'a/b=c%20'").to_arrow().to_pylist()
    assert found["id"] == 1
    assert sorted(by_duckdb(lake, "select id from {rows} where shop = 'a' or shop is null")) == [(0,), (8,), (99,)]
    write(spark, lake, "select 100L as id", 2)
    assert len(lake.table("orders").scan("shop is null").to_arrow()) == 2


@pytest.mark.parametrize("columns", [1, 2])
def test_rows_with_values_of_partition_columns_alone_are_read_back_from_iceberg(
    spark: SparkSession, lake: Lake, columns: int
) -> None:
    """Also where the table has no other column: its files keep the columns of the partitions."""
    fields = [NestedField(number, name, StringType()) for number, name in enumerate(("shop", "note"), 1)]
    lake.create("orders", Schema(*fields[:columns]), PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p")))
    write(spark, lake, "select explode(array('a', 'a', 'b', null)) as shop")
    nothing = [None] * (columns - 1)
    assert sorted(lake.rows("orders"), key=str) == sorted(((each, *nothing) for each in ("a", "a", "b", None)), key=str)
    assert sorted(by_duckdb(lake, "select shop, count(*) from {rows} group by all"), key=str) == [
        *(("a", 2), ("b", 1), (None, 1))
    ]


def _partitioned(kind: Any, *transforms: Transform[Any, Any]) -> Callable[[Lake], Any]:
    fields = [PartitionField(1, 1000 + n, how, f"p{n}") for n, how in enumerate(transforms)]
    return lambda lake: lake.create("orders", Schema(NestedField(1, "of", kind)), PartitionSpec(*fields))


REFUSED: dict[str, tuple[Callable[[Lake], Any], str]] = {
    "version 1": (
        lambda lake: lake.create("orders", ORDER, properties={"format-version": "1"}),
        "its format version is 1, not 2",
    ),
    "ORC": (
        lambda lake: lake.create("orders", ORDER, properties={"write.format.default": "orc"}),
        "write.format.default is orc",
    ),
    "by fractions": (_partitioned(DoubleType(), IdentityTransform()), "partitioned by identity of of, which is double"),
    "by the first bytes": (_partitioned(BinaryType(), TruncateTransform(3)), "by truncate.* of of, which is binary"),
    "by decimals": (_partitioned(DecimalType(5, 2), BucketTransform(2)), "by bucket.* of of, which is decimal"),
    "twice": (_partitioned(LongType(), IdentityTransform(), BucketTransform(2)), "two fields of its partitions are of"),
    "no table": (lambda _: None, "Iceberg table shop.orders of catalog 'lake' does not exist: create it first"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_that_cannot_be_written_right_is_refused_at_the_start(lake: Lake, what: str) -> None:
    make, told = REFUSED[what]
    make(lake)
    with pytest.raises(Refused, match=told):
        lake.lander("orders")


def test_a_type_that_spark_lacks_is_refused(spark: SparkSession, lake: Lake) -> None:
    lake.create("orders", Schema(NestedField(1, "at", TimeType())))
    with pytest.raises(SinkMismatch, match="column at: string into time is not supported"):
        write(spark, lake, "select '12:00' as at")


CATALOGS: dict[str, tuple[dict[str, str], type[OffsetkeeperError], str]] = {
    "no uri": ({}, Refused, "URI missing|could not be initialized|Could not initialize"),
    "no such file": ({"uri": "sqlite:////nowhere/it.db"}, Refused, "its file /nowhere/it.db does not exist"),
    "no such server": (
        {"uri": "postgresql+psycopg://u:s3cr3t-word@127.0.0.1:1/it", "type": "sql"},
        SinkError,
        "onnection refused",
    ),
    "in memory of another kind": (
        {"uri": "sqlite://", "py-catalog-impl": "pyiceberg.catalog.noop.NoopCatalog"},
        Refused,
        "a NoopCatalog",
    ),
    "no driver": (
        {"uri": "postgresql+psycopg2://u:s3cr3t-word@127.0.0.1:1/it", "type": "sql"},
        MissingExtra,
        "driver is missing",
    ),
    "an odd uri": ({"uri": "s3cr3t-word", "type": "sql"}, Refused, "catalog 'lake': Could not parse"),
}


@pytest.mark.parametrize("what", CATALOGS)
def test_a_catalog_that_is_not_there_is_told_without_its_password(what: str) -> None:
    properties, kind, told = CATALOGS[what]
    sink = IcebergTable("shop.orders", catalog="lake", properties=properties)
    with pytest.raises(kind, match=told) as raised:
        sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    assert "s3cr3t-word" not in f"{sink!r} {sink.place} {''.join(traceback.format_exception(raised.value))}"


URIS: dict[str, str] = {
    "postgres://user:s3cr3t-word@db.example/it": "its uri begins with postgres://, but must begin with",
    "mysql+pymysql://user:s3cr3t-word@db.example/it": r"its uri begins with mysql\+pymysql://, but must begin with",
    "jdbc:postgresql://db.example/it?user=me&password=s3cr3t-word": "its uri must begin with http://",
    "user:s3cr3t-word@db.example/it": "its uri must begin with http://",
    "postgresql+psycopg://user:with@s3cr3t-word/it@127.0.0.1:1/it": "its uri has several @",
    "postgresql+psycopg://user:s3cr3t-word/it": "invalid literal",
    "postgresql+psycopg://user@127.0.0.1:1/it?password=s3cr3t-word": "onnection refused",
    "http://user:s3cr3t-word@nowhere.invalid:1x/": "Failed to parse",
    "sqlite:////nowhere/it.db": "its file /nowhere/it.db does not exist",
}


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("source", ["given", "environment", "file"])
def test_no_part_of_a_wrong_uri_that_may_be_a_password_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, source: str
) -> None:
    """Wherever pyiceberg has it from."""
    if source == "environment":
        monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    if source == "file":
        (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  lake:\n    uri: {uri}\n")
        monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(_ENV_CONFIG, "config", Config().config)
    sink = IcebergTable("shop.orders", catalog="lake", properties={"uri": uri} if source == "given" else {})
    with pytest.raises(OffsetkeeperError, match=URIS[uri]) as raised:
        sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    with pytest.raises(OffsetkeeperError, match=URIS[uri]) as looked:
        held("shop.orders", "lake", {"uri": uri} if source == "given" else {})
    for each in (raised, looked):
        assert "s3cr3t-word" not in f"{sink!r} {sink.place} {''.join(traceback.format_exception(each.value))}"


SHOWN: dict[str, dict[str, Any]] = {
    "a password": {"uri": "postgresql://reader:s3cr3t-word@base/orders"},
    "a password with signs": {"uri": "mysql://reader:s3cr3t-word@/@base/orders"},
    "an escaped password": {"uri": "postgresql://reader:s3cr3t%2Dword@base/orders"},
    "a password without a host": {"uri": "postgresql://reader:s3cr3t-word/orders"},
    "a parameter": {"uri": "jdbc:sqlserver://base;user=reader;password=s3cr3t-word;encrypt=true"},
    "an escaped parameter": {"uri": "postgresql://base/orders?sslmode=require&password=s3cr3t%2Dword"},
    "a proxy": {"s3.proxy-uri": "http://reader:s3cr3t-word@base:3128/orders"},
    "an id and a secret": {"credential": "reader:s3cr3t-word"},
    "a header": {"header.Authorization": "Bearer s3cr3t-word"},
    "within others": {"auth": {"type": "basic", "basic": {"username": "reader", "password": "s3cr3t-word"}}},
}


@pytest.mark.parametrize("what", SHOWN)
def test_what_may_be_a_password_in_any_property_is_left_out_of_an_error(what: str) -> None:
    """Where the property is quoted, and where the password is quoted alone; the rest is told."""
    for text in ("s3cr3t-word", *map(str, SHOWN[what].values())):
        told = without_secrets(ValueError(f"reader, base, orders, require: {text} is wrong"), SHOWN[what])
        assert told.startswith("reader, base, orders, require: ")
        assert told.endswith(" is wrong")
        assert not re.search("s3cr3t(-|%2D)word", told)


def test_a_database_without_a_catalog_gets_none(tmp_path: Path) -> None:
    (tmp_path / "it.db").touch()
    sink = IcebergTable("shop.orders", catalog="lake", properties={"uri": f"sqlite:///{tmp_path}/it.db"})
    with pytest.raises(Refused, match="no such table: iceberg_tables"):
        sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    assert (tmp_path / "it.db").stat().st_size == 0


@pytest.mark.parametrize("name", ["", "orders", "shop.", "shop orders.x", None])
def test_a_name_without_a_namespace_is_refused(name: Any) -> None:
    with pytest.raises(SettingsError, match=r"write 'namespace.table'"):
        IcebergTable(name)


@pytest.mark.parametrize("day", ["-0044-03-15", "+20000-01-01"])
def test_a_date_that_readers_in_python_do_not_know(spark: SparkSession, lake: Lake, day: str) -> None:
    """It is refused, as pyiceberg cannot write the bounds of such a column."""
    lake.create("orders", pa.schema([("day", pa.date32())]))
    with pytest.raises(RowMismatch, match=r"day .*before the year 1 or after 9999"):
        write(spark, lake, f"select cast('{day}' as date) as day")


@pytest.mark.parametrize("value", ["array(timestamp'+12000-01-01')", "named_struct('a', date'-0001-01-01')"])
def test_such_a_time_within_a_value_is_found(spark: SparkSession, lake: Lake, value: str) -> None:
    kinds = {"a": pa.list_(pa.timestamp("us", "UTC")), "n": pa.struct([("a", pa.date32())])}
    lake.create("orders", pa.schema([("x", kinds[value[0]])]))
    with pytest.raises(RowMismatch, match=r"column x has a time before"):
        write(spark, lake, f"select {value} as x")
