"""The tables of types in docs/types.md say what the sinks do; OFFSETKEEPER_WRITE_TYPES=1 writes them anew."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pymysql
import pytest
from hypothesis import strategies as st
from pyiceberg import types as iceberg_types
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField
from pyspark.sql import SparkSession, types

from docs.pages import hold
from offsetkeeper import Batch, OffsetRange
from offsetkeeper.clients.mysql import Connections, read_url
from offsetkeeper.errors import SinkMismatch
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.cassandra import columns as cassandra
from offsetkeeper.sinks.delta import columns as delta
from offsetkeeper.sinks.files.link import Layout, columns_of
from offsetkeeper.sinks.iceberg import columns as iceberg
from offsetkeeper.sinks.lake import misfit
from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.mysql import columns as mysql
from offsetkeeper.sinks.postgresql import columns as postgresql
from offsetkeeper.sinks.sqlite import columns as sqlite
from offsetkeeper.sinks.table import Column, Target
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.mariadb import MariaDBServer
from sinks import test_exact_files as exact
from sinks.exactness import Kind, land
from sinks.exactness import made as rows
from sinks.test_exact_delta import PARTITIONED
from sinks.topics import committed, lander

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
SPARK: Mapping[str, types.DataType] = {
    "byte": types.ByteType(),
    "short": types.ShortType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "decimal(10,2)": types.DecimalType(10, 2),
    "boolean": types.BooleanType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
}
POSTGRESQL = """smallint, integer, bigint, numeric, numeric(12,2), numeric(6,2), numeric(5,-2), real, double precision,
    boolean, text, varchar(20), char(5), json, jsonb, xml, uuid, inet, cidr, macaddr, bit(3), varbit(8), point,
    int4range, numrange, tsrange, tstzrange, daterange, time, time(0), timetz, interval, interval(0), bytea, date,
    timestamp, timestamp(3), timestamptz, timestamptz(0), money, tsvector"""
MYSQL = """tinyint, smallint, mediumint, int, bigint, bigint unsigned, decimal(12;2), decimal(6;2), float, double,
    bit(1), char(5), varchar(20), tinytext, text, longtext, json, uuid, inet4, inet6, enum('a'), binary(3),
    varbinary(20), blob, date, datetime, datetime(6), timestamp, timestamp(6), time, year"""
SQLITE = "INTEGER, TEXT, BLOB, REAL, NUMERIC"
ICEBERG = (
    *(iceberg_types.BooleanType(), iceberg_types.IntegerType(), iceberg_types.LongType(), iceberg_types.FloatType()),
    *(iceberg_types.DoubleType(), iceberg_types.DecimalType(12, 2), iceberg_types.DateType(), iceberg_types.TimeType()),
    *(iceberg_types.TimestampType(), iceberg_types.TimestamptzType(), iceberg_types.StringType()),
    *(iceberg_types.UUIDType(), iceberg_types.FixedType(3), iceberg_types.BinaryType()),
)
Misfit = Callable[[types.DataType, Any], str]
LimitsOf = Callable[[types.DataType, Any], Limits]


def told(limits: Limits) -> str:
    """Return in a few words what executors look at."""
    words = {
        "range": limits.least is not None or limits.most is not None,
        "digits of a second": limits.digits < Limits("").digits,
        "length": limits.characters is not None or limits.bytes is not None,
        "blanks at the end": not limits.blanks,
        "NaN, infinity": limits.finite,
        "form": bool(limits.form or limits.bars),
    }
    return ", ".join(word for word, there in words.items() if there)


def table(columns: Sequence[Column], misfit: Misfit, limits: LimitsOf) -> str:
    """Return the table of a sink whose columns have types."""
    return lines(
        {
            name: [(column.type, told(limits(kind, column))) for column in columns if not misfit(kind, column)]
            for name, kind in SPARK.items()
        }
    )


def lines(found: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """Return the table of a sink: for each of Spark's types the types that take it, and what executors look at."""
    shown = ["| Spark | kept, or refused by the database | kept, and checked row by row |", "|---|---|---|"]
    for name, fitting in found.items():
        exact = ", ".join(f"`{of}`" for of, why in fitting if not why)
        checked = ", ".join(f"`{of}` ({why})" for of, why in fitting if why)
        shown.append(f"| `{name}` | {exact} | {checked} |")
    return "\n".join(shown)


def check(name: str, text: str) -> None:
    """Hold the table of a sink against the page."""
    hold(PAGE, name, text, "OFFSETKEEPER_WRITE_TYPES")


def split(declared: str) -> list[str]:
    """Return the types of a list."""
    return [each.replace(";", ",") for each in re.split(r",\s+", declared)]


def test_postgresql(database: str, spark: SparkSession) -> None:
    assert spark
    with psycopg.connect(database, autocommit=True) as opened:
        connection: Any = opened
        parts = ", ".join(f"c{place} {each}" for place, each in enumerate(split(POSTGRESQL)))
        connection.execute(f"create table kinds ({parts})".encode())
        relation = postgresql.find_table(connection, Target("", "kinds", "append", ()), "")
        columns = postgresql.columns_of(connection, relation)
    check("PostgreSQL", table(columns, postgresql.misfit, postgresql.limits))


def test_mysql(mariadb_server: MariaDBServer) -> None:
    database = mariadb_server.create_database()
    parts = ", ".join(f"c{place} {each} null" for place, each in enumerate(split(MYSQL)))
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root", database=database) as connection:
        connection.cursor().execute(f"create table kinds ({parts}) character set utf8mb4")
    url, library = read_url(mariadb_server.url(database))
    with closing(Connections(url, library, lambda _: None, several=False)) as connections, connections.lend() as lent:
        relation = mysql.find_table(lent, Target("", "kinds", "append", ()), database, "")
    check("MySQL", table(relation.columns, mysql.misfit, mysql.limits))


def test_sqlite() -> None:
    columns = [sqlite.SQLiteColumn("c", each, False, False, True, sqlite.affinity(each)) for each in split(SQLITE)]  # noqa: FBT003
    check("SQLite", table(columns, sqlite.misfit, sqlite.limits))


def test_delta() -> None:
    fields = [types.StructField(name, kind) for name, kind in SPARK.items()]
    note = "__CHAR_VARCHAR_TYPE_STRING"
    fields += [
        types.StructField(kind, types.StringType(), metadata={note: kind}) for kind in ("varchar(20)", "char(5)")
    ]
    columns = delta.columns_of(json.dumps(json.loads(types.StructType(fields).json())))
    check("Delta", table(columns, delta.misfit, lambda _, column: delta.limits_of(column, (), ())))


def test_iceberg() -> None:
    columns = iceberg.columns_of(Schema(*(NestedField(n, str(kind), kind) for n, kind in enumerate(ICEBERG, 1))))
    check("Iceberg", table(columns, misfit, lambda _, column: iceberg.limits_of(column, ())))


def test_cassandra() -> None:
    columns = [cassandra.CassandraColumn("c", each, False, False, True, "regular") for each in cassandra._HOLDS]  # noqa: FBT003
    check("Cassandra", table(columns, cassandra.misfit, lambda _, column: cassandra.limits_of(column, alone=False)))


EDGES: Mapping[str, Sequence[Any]] = {
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (math.nan, -0.0),
    "double": (math.inf, 5e-324),
    "decimal(10,2)": (Decimal("-99999999.99"), Decimal("0.10")),
    "boolean": (True, False),
    "string": (" 007 ", "a=/%\u00e9\U0001f642"),
    "binary": (b"\xff\0", b""),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)),
    "timestamp_ntz": (datetime(1, 1, 2), datetime(9999, 12, 30, 23, 59, 59, 999_999)),  # noqa: DTZ001 - without a zone
}
IN_FOLDERS = {"form": "", "length": "\u00e9" * 200}
"""Texts that the name of a folder cannot hold, by the words for the reason."""


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    """A column's type is the one that the files have. A folder holds the text of a value."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in SPARK}
    for made in (exact.TestParquet(), exact.TestJson()):
        made.path, made.declared = tmp_path / made.format, {}
        for name, kind in landed(made, spark, "columns", {name: name for name in SPARK}).items():
            found[name].append((kind, ""))
    parquet = exact.TestParquet()
    parquet.path, parquet.declared = tmp_path / "parted", {}
    layout = Layout("parquet", ("it",))
    parted = {name: name + PARTITIONED for name, kind in SPARK.items() if not misplaced(kind, layout)}
    landed(parquet, spark, "folders", parted)
    parquet.create("refused", {"it": parted["string"]})
    why = {
        word: str(land(parquet.sink("refused"), rows(spark, [(1, text)], "id int, it string"), "refused", 1))
        for word, text in IN_FOLDERS.items()
    }
    assert all("column it has" in each for each in why.values()), why
    for name in parted:
        found[name].append(("folder", ", ".join(IN_FOLDERS) if name == "string" else ""))
    check("Files", lines(found))


def misplaced(kind: types.DataType, layout: Layout) -> bool:
    """Whether a folder is refused for values of a type."""
    try:
        columns_of([types.StructField("id", types.IntegerType()), types.StructField("it", kind)], layout)
    except SinkMismatch:
        return True
    return False


def landed(made: exact.TestParquet, spark: SparkSession, name: str, declared: Mapping[str, str]) -> dict[str, str]:
    """Land two rows with values at the ends of each type; check what is found there, and return its types."""
    columns = {f"c{place}": of for place, of in enumerate(declared)}
    made.create(name, {column: declared[of] for column, of in columns.items()})
    given = [(place, *(EDGES[of][place] for of in declared)) for place in range(2)]
    schema = ", ".join(["id int", *(f"{column} {of}" for column, of in columns.items())])
    assert land(made.sink(name), rows(spark, given, schema), name, 1) is None
    read = {row[0]: row[1:] for row in made.read(name, ["id", *columns])}
    for place, row in enumerate(given):
        for of, value, there in zip(declared, row[1:], read[place], strict=True):
            assert made.same(Kind(declared[of], of, st.nothing()), value, there), f"{of}: {value!r}, {there!r}"
    files = [*(made.path / name).glob("batch=*/**/part-*")]
    if made.format == "parquet":
        arrow = pq.ParquetFile(files[0]).schema_arrow
        return {of: f"parquet {arrow.field(column).type}" for column, of in columns.items() if column in arrow.names}
    words = {bool: "true, false", int: "number", Decimal: "number", str: "string"}
    second = next(line for file in files for line in made.lines(file) if line["id"] == 1)
    return {of: f"json {words[type(second[column])]}" for column, of in columns.items()}


HEADERS = "array<struct<key:string,value:binary>>"
WRONG: Mapping[str, Mapping[str, Any]] = {
    "headers": {"form": [("a\0", b"")]},
    "topic": {"form": "a b"},
    "partition": {"range": 2},
    "timestamp": {"digits of a second": datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
}
"""Values that a message cannot have, by the words for the reason."""


def test_topic(spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    """A message has these parts."""
    name = topic(2)
    sink = Topic(kafka_server.bootstrap, name)
    staged = lander(sink).stage
    batch = Batch("types", "token", 1, (OffsetRange("orders", 0, 0, 1),))
    found: dict[str, list[tuple[str, str]]] = {}
    for of in (*SPARK, HEADERS):
        found[of] = []
        for part in ("key", "value", *WRONG):
            schema = f"{part} {of}" if part == "value" else f"value binary, {part} {of}"
            with suppress(SinkMismatch):
                staged(spark.createDataFrame([], schema), batch)
                found[of].append((part, ", ".join(WRONG.get(part, ()))))
    tried = {(word, part): value for part, values in WRONG.items() for word, value in values.items()}
    kinds = {part: of for of, parts in found.items() for part, _ in parts}
    for sequence, ((_, part), value) in enumerate(tried.items(), 1):
        why = land(sink, rows(spark, [(b"", value)], f"value binary, {part} {kinds[part]}"), "types", sequence)
        assert f"column {part}" in str(why), why
    at = datetime.now(UTC).replace(microsecond=999_000)  # an old one is deleted at once
    for sequence, (of, one) in enumerate({"string": "\u00e9 ", "binary": b"\xff\0"}.items(), 1):
        schema = f"key {of}, value {of}, headers {HEADERS}, topic string, partition int, timestamp timestamp"
        given = [(one, one, [("\u00e9", b"\xff"), ("\u00e9", None)], name, 1, at)]
        assert land(sink, rows(spark, given, schema), f"kept {of}", sequence) is None
        message = committed(kafka_server.bootstrap, name)[-1]
        raw = one.encode() if isinstance(one, str) else one
        assert (message.key, message.value, message.partition) == (raw, raw, 1)
        assert message.headers == [("\u00e9", b"\xff"), ("\u00e9", None)]
        assert message.timestamp_ms == round(at.timestamp() * 1000)
    check("Topic", lines(found))


NAMES = ["PostgreSQL", "MySQL", "SQLite", "Delta", "Iceberg", "Cassandra", "Files", "Topic"]


@pytest.mark.parametrize("name", NAMES)
def test_each_table_is_on_the_page(name: str) -> None:
    assert PAGE.read_text("utf-8").count(f"<!-- {name} -->") == 1
