"""The tables of types in docs/types.md say what the sinks do; OFFSETKEEPER_WRITE_TYPES=1 writes them anew."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from pyspark.sql import SparkSession, types

from offsetkeeper.sinks.cassandra import columns as cassandra
from offsetkeeper.sinks.delta import columns as delta
from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.mysql import columns as mysql
from offsetkeeper.sinks.postgresql import columns as postgresql
from offsetkeeper.sinks.sqlite import columns as sqlite
from offsetkeeper.sinks.table import Column, Target
from offsetkeeper.stores.mysql import Connections, read_url
from offsetkeeper.testing.mariadb import MariaDBServer

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
    """Return the table of a sink."""
    lines = ["| Spark | kept, or refused by the database | kept, and checked row by row |", "|---|---|---|"]
    for name, kind in SPARK.items():
        fitting = [(column.type, told(limits(kind, column))) for column in columns if not misfit(kind, column)]
        exact = ", ".join(f"`{of}`" for of, why in fitting if not why)
        checked = ", ".join(f"`{of}` ({why})" for of, why in fitting if why)
        lines.append(f"| `{name}` | {exact} | {checked} |")
    return "\n".join(lines)


def check(name: str, text: str) -> None:
    """Hold the table of a sink against the page."""
    page = PAGE.read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n\n(.*?)\n\n", page + "\n\n", re.DOTALL)
    assert found, name
    if os.environ.get("OFFSETKEEPER_WRITE_TYPES"):
        PAGE.write_text(page.replace(found[0], f"<!-- {name} -->\n\n{text}\n\n"), "utf-8")
    else:
        assert found[1] == text


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
    columns = delta.columns_of(json.dumps(json.loads(types.StructType(fields).json())))
    check("Delta", table(columns, delta.misfit, lambda _, column: delta.limits_of(column, (), ())))


def test_cassandra() -> None:
    columns = [cassandra.CassandraColumn("c", each, False, False, True, "regular") for each in cassandra._HOLDS]  # noqa: FBT003
    check("Cassandra", table(columns, cassandra.misfit, lambda _, column: cassandra.limits_of(column, alone=False)))


@pytest.mark.parametrize("name", ["PostgreSQL", "MySQL", "SQLite", "Delta", "Cassandra"])
def test_each_table_is_on_the_page(name: str) -> None:
    assert PAGE.read_text("utf-8").count(f"<!-- {name} -->") == 1
