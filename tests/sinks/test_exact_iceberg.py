"""Each row and each value in an Iceberg table, read by pyiceberg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from offsetkeeper.sinks import IcebergTable
from sinks.exactness import TEXTS, VALUES, Exactness, Kind
from sinks.icebergs import Lake
from sinks.test_exact_delta import FOLDERS, INNER, WIDER, plain

BY: dict[str, Transform[Any, Any]] = {
    "value": IdentityTransform(),
    "bucket": BucketTransform(3),
    "start": TruncateTransform(2),
    "day": DayTransform(),
}
PARTITIONS = {
    "value": ("int", "long", "boolean", "string", "date"),
    "bucket": ("int", "long", "string", "date", "binary", "timestamp"),
    "start": ("int", "long", "string", "binary"),
    "day": ("date", "timestamp", "timestamp_ntz"),
}
STORED = {"byte": "int", "short": "int"}


def kinds() -> st.SearchStrategy[Kind]:
    """Return a type, the same in a partition, a wider type, or a nested one."""
    flat = st.sampled_from([Kind(STORED.get(name, name), name, values) for name, values in VALUES.items()])
    texts = VALUES | {"string": TEXTS | FOLDERS}
    parted = st.sampled_from([Kind(f"{name}, by {how}", name, texts[name]) for how in BY for name in PARTITIONS[how]])
    wider = st.sampled_from([Kind(STORED.get(to, to), name, VALUES[name]) for name, to in WIDER.items()])
    nested = st.sampled_from([Kind(name, name, values) for name, values in INNER.items()])
    return st.one_of(flat, parted, wider, nested)


def arrow(ddl: str) -> pa.Schema:
    """Return the columns as Arrow has them."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return to_arrow_schema(schema, timezone="UTC")


class TestIceberg(Exactness):
    """`IcebergTable`."""

    whole, text, share = "int", "string", 0.4

    @pytest.fixture(autouse=True)
    def _lake(self, tmp_path: Path, spark: Any) -> None:  # noqa: ARG002 - parses the types
        self.lake = Lake.made(tmp_path)

    def kinds(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        return kinds()

    def keys(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        flat = [Kind(STORED.get(name, name), name, values) for name, values in VALUES.items()]
        zeros = Kind("double", "double", st.sampled_from([0.0, 0.0, 0.0, -0.0, float("nan"), 0.5, -0.5]))
        parted = [Kind(f"{name}, by {how}", name, VALUES[name]) for how in BY for name in PARTITIONS[how]]
        return st.sampled_from([*flat, zeros, *parted])

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:  # noqa: ARG002 - it has none
        """See `Exactness`."""
        declared = {column: each.partition(", by ") for column, each in columns.items()}
        ddl = ", ".join(f"{column} {kind}" for column, (kind, _, _) in declared.items())
        table = self.lake.create(name, arrow(ddl))
        ids = {field.name: field.field_id for field in table.schema().fields}
        by = [(ids[column], BY[how]) for column, (_, _, how) in declared.items() if how]
        fields = [PartitionField(source, 1000 + n, how, f"p{n}") for n, (source, how) in enumerate(by)]
        if fields:
            with self.lake.catalog() as catalog:
                catalog.drop_table(f"shop.{name}")
            self.lake.create(name, table.schema(), PartitionSpec(*fields))

    def sink(self, name: str, **words: Any) -> IcebergTable:
        """See `Exactness`."""
        return self.lake.sink(name, **words)

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `Exactness`."""
        found = self.lake.table(name).scan().to_arrow().to_pylist()
        return [tuple(row[column] for column in columns) for row in found]

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `Exactness`."""
        if kind.spark.startswith("struct") and isinstance(found, dict):
            found = [found["a"], None if found["b"] is None else [*found["b"].values()]]
        if kind.spark.startswith("map") and isinstance(given, dict):
            return sorted(map(repr, plain([*given.items()]))) == sorted(map(repr, plain(found)))
        return bool(plain(given) == plain(found))
