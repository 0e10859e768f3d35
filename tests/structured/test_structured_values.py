"""Odd values of a query's frames: each output has what was in the frame, read by clients that are not ours.

Spark gives each batch of a query a session of its own, a copy of the user's. The values of all types, by `run`, are in
`tests/sinks`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest
from pyspark.sql import DataFrame

from offsetkeeper import Batch
from offsetkeeper.errors import RowMismatch, SinkMismatch
from offsetkeeper.sinks import DeltaTable, Files, Outputs, Table
from offsetkeeper.testing.mariadb import MariaDBServer
from structured.lab import StructuredLab

NewTopic = Callable[..., str]
TEXTS = ["", " ", "e\u0301", "\U0001f9fb \\N\t\n\"'", "x" * 5000]
AT = datetime(2026, 10, 25, 0, 30, 0, 123457, UTC)  # in Berlin this hour comes twice
ROWS = [(text, Decimal("12345678.123456789012345678"), 5e-324, AT, date(1583, 1, 1), b"\0\xff") for text in TEXTS]
COLUMNS = ["item", "amount", "share", "at", "day", "raw"]
TYPES = "item {text}, amount decimal(38,18), share double precision, at {at}, day date, raw {raw}"


def values(records: DataFrame, _: Batch) -> DataFrame:
    """Return a row for each record: its value is the number of a text."""
    texts = ", ".join("'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'" for text in TEXTS)
    return records.selectExpr(
        f"array({texts})[int(string(value))] as item",
        "cast('12345678.123456789012345678' as decimal(38,18)) as amount",
        "double('5e-324') as share",
        f"timestamp'{AT}' as at",
        "date'1583-01-01' as day",
        "x'00ff' as raw",
    )


def in_each(frame: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Return the rows for each output; JSON has no bytes."""
    rows = values(frame, batch)
    return {
        name: rows.drop("raw") if name == "json" else rows for name in ("parquet", "json", "delta", "pg", "my", "lite")
    }


def test_each_output_of_a_query_has_the_values_of_its_frame(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path, database: str, mariadb_server: MariaDBServer
) -> None:
    name, lite, mysql = topic(), tmp_path / "lite.db", mariadb_server.create_database()
    lab.produce(name, *map(str, range(len(TEXTS))))
    own: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": mariadb_server.port,
        "user": "root",
        "database": mysql,
        "charset": "utf8mb4",
    }
    with pymysql.connect(**own) as connection:
        kinds = TYPES.format(text="mediumtext character set utf8mb4", at="timestamp(6)", raw="blob")
        connection.cursor().execute(f"create table odd ({kinds})")
    with psycopg.connect(database) as connection:
        connection.execute(f"create table odd ({TYPES.format(text='text', at='timestamptz', raw='bytea')})")
    with closing(sqlite3.connect(lite)) as connection:
        connection.execute("create table odd (item text, amount text, share real, at text, day text, raw blob)")
    fields = [pa.field("item", pa.string()), pa.field("amount", pa.decimal128(38, 18)), pa.field("share", pa.float64())]
    fields += [pa.field("at", pa.timestamp("us", "UTC")), pa.field("day", pa.date32()), pa.field("raw", pa.binary())]
    deltalake.DeltaTable.create(str(tmp_path / "delta"), pa.schema(fields))
    sink = Outputs(
        parquet=Files(str(tmp_path / "parquet")),
        json=Files(str(tmp_path / "json"), format="json"),
        delta=DeltaTable(tmp_path / "delta"),
        pg=Table(database, "odd"),
        my=Table(mariadb_server.url(mysql), "odd"),
        lite=Table(f"sqlite:///{lite}", "odd"),
    )
    lab.start(name, in_each, sink=sink, guarantee="exactly_once", max_records=3).awaitTermination()

    expected = sorted(map(_key, ROWS))
    assert sorted(_key(tuple(row[column] for column in COLUMNS)) for row in _parquet(tmp_path / "parquet")) == expected
    delta = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
    assert sorted(_key(tuple(row[column] for column in COLUMNS)) for row in delta) == expected
    with psycopg.connect(database, options="-c timezone=UTC") as connection:
        assert sorted(map(_key, connection.execute("select * from odd").fetchall())) == expected
    with pymysql.connect(**own, init_command="set time_zone = '+00:00'") as connection:
        cursor = connection.cursor()
        cursor.execute("select * from odd")
        assert sorted(map(_key, cursor.fetchall())) == expected
    with closing(sqlite3.connect(lite)) as connection:
        assert sorted(map(_of_text, connection.execute("select * from odd"))) == expected
    lines = [
        json.loads(line, parse_float=Decimal)
        for path in (tmp_path / "json").rglob("*.json")
        for line in path.read_text("utf-8").splitlines()
    ]
    assert sorted(_of_text((*(line[column] for column in COLUMNS[:-1]), b"\0\xff")) for line in lines) == expected


def _parquet(folder: Path) -> list[dict[str, Any]]:
    return [row for path in folder.rglob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]


def _key(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Return a row as texts; a time is one of UTC without its zone."""
    return tuple(str(each.replace(tzinfo=None) if isinstance(each, datetime) else each) for each in row)


def _of_text(row: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the row of an output that keeps times and decimals as text."""
    item, amount, share, at, day, raw = row
    return _key((item, Decimal(amount), float(share), datetime.fromisoformat(at), date.fromisoformat(day), raw))


@pytest.mark.parametrize(
    ("setting", "value", "error", "why"),
    [
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS", SinkMismatch, "cuts column at to milliseconds"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY", RowMismatch, "column at has a timestamp before 1900"),
    ],
)
def test_a_setting_of_the_session_that_changes_values_is_refused_in_a_query_too(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path, setting: str, value: str, error: type[Exception], why: str
) -> None:
    name = topic()
    lab.produce(name, "0")
    lab.spark.conf.set(setting, value)

    def old(records: DataFrame, _: Batch) -> DataFrame:
        return records.selectExpr("timestamp'1890-01-01 00:00:00.123456Z' as at")

    try:
        with pytest.raises(error, match=why):
            lab.start(name, old, sink=Files(str(tmp_path / "parquet")), guarantee="exactly_once").awaitTermination()
    finally:
        lab.spark.conf.unset(setting)
    assert [path for path in tmp_path.rglob("*.parquet") if "batch=" in str(path)] == []
    assert lab.offsets() == {0: 0}
