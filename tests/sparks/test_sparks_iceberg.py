"""Spark reads what IcebergTable has written: `make sparks`. Iceberg has a runtime for 4.1, and none for 4.2 and 4.3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession

from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.conformance.landers import batch_of
from offsetkeeper.testing.iceberg import IcebergServer
from sinks.icebergs import Lake
from sparks import releases

RELEASE = "4.1"
VALUES = (
    "select 1L as id, 'é' as name, 12.345BD as price, timestamp '2024-07-01 12:00:00.000001Z' as at, "
    "timestamp_ntz '9999-12-31 23:59:59.5' as wall, array('a', null) as tags, X'00FF' as raw, 0.5D as ratio "
    "union all select null, null, null, null, null, null, null, double('NaN')"
)
TYPES = pa.schema(
    [
        *(("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(12, 4))),
        *(("at", pa.timestamp("us", "UTC")), ("wall", pa.timestamp("us")), ("tags", pa.list_(pa.string()))),
        *(("raw", pa.binary()), ("ratio", pa.float64())),
    ]
)
PRICES = Schema(
    NestedField(1, "id", LongType(), required=True), NestedField(2, "shop", StringType()), identifier_field_ids=[1]
)
BY_SHOP = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "shop"))

pytestmark = [
    pytest.mark.skipif(RELEASE not in releases.asked(), reason="make sparks installs the releases of Spark"),
    pytest.mark.timeout(1200),  # the first test of a release installs it
]


@pytest.fixture(scope="module")
def lake() -> Iterator[Lake]:
    """A catalog that speaks REST."""
    with IcebergServer() as server:
        yield Lake.served(server)


def write(spark: SparkSession, lake: Lake, name: str, query: str, sequence: int) -> None:
    settings: dict[str, Any] = {"mode": "upsert", "key": ("id",)} if name == "prices" else {}
    Once(lake.lander(name, **settings), "").write(spark.sql(query), batch_of(sequence))


def test_spark_reads_rows_upserts_and_offsets_of_iceberg(spark: SparkSession, lake: Lake) -> None:
    lake.create("orders", TYPES)
    write(spark, lake, "orders", VALUES, 1)
    write(spark, lake, "orders", "select 2L as id, 'b' as name", 2)
    lake.create("prices", PRICES, BY_SHOP)
    write(spark, lake, "prices", "select 1L as id, 'a' as shop union all select 2L, 'b'", 1)
    write(spark, lake, "prices", "select 2L as id, 'a' as shop union all select 3L, null", 2)
    queries = {
        "orders": "select id, name, price, unix_micros(at), string(wall), tags, hex(raw), string(ratio) from {}orders "
        "order by id nulls first",
        "prices": "select * from {}prices order by id",
        "of a": "select id from {}prices where shop = 'a' order by id",
        "offsets": "select summary['offsetkeeper.batch'], summary['offsetkeeper.offsets'] from {}orders.snapshots "
        "order by committed_at",
    }
    queries = {name: query.format(f"lake.`{lake.namespace}`.") for name, query in queries.items()}
    jars = ",".join([str(jar) for jar in fetch_jars("iceberg-spark-4.1")])
    given = json.dumps({"jars": jars, "uri": lake.properties["uri"], "queries": queries})
    found = json.loads(releases.run(RELEASE, Path(__file__).with_name("iceberg_reader.py"), given)[-1])
    assert found["orders"] == [
        [None, None, None, None, None, None, None, "NaN"],
        [1, "é", "12.3450", 1_719_835_200_000_001, "9999-12-31 23:59:59.5", ["a", None], "00FF", "0.5"],
        [2, "b", *(None,) * 6],
    ]
    assert found["prices"] == [[1, "a"], [2, "a"], [3, None]]
    assert found["of a"] == [[1], [2]]
    told = [batch_of(number) for number in (1, 2)]
    assert found["offsets"] == [[batch.id, batch.lines()] for batch in told]
