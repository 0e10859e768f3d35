"""Each row and each value in a Delta Lake table, read by Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import pytest
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from offsetkeeper.sinks import DeltaTable
from sinks.exactness import TEXTS, VALUES, Exactness, Kind

PARTITIONED = ", to partition by"
IN_PARTITIONS = ("byte", "short", "int", "long", "boolean", "string", "date")
WIDER = {"byte": "short", "short": "int", "int": "long", "float": "double", "decimal(5,2)": "decimal(12,4)"}
FOLDERS = st.sampled_from(["a/b=c%20", "..", "__HIVE_DEFAULT_PARTITION__", "a\nb", "x" * 300, "%41", "é", "+", "a:b"])
INNER = {
    "array<string>": st.lists(st.none() | TEXTS, max_size=3),
    "array<array<decimal(5,2)>>": st.lists(st.none() | st.lists(VALUES["decimal(5,2)"], max_size=2), max_size=2),
    "map<string,timestamp>": st.dictionaries(TEXTS, st.none() | VALUES["timestamp"], max_size=3),
    "struct<a:int,b:struct<c:string,d:array<double>>>": st.tuples(
        st.none() | VALUES["int"],
        st.none() | st.tuples(st.none() | TEXTS, st.none() | st.lists(VALUES["double"], max_size=2)),
    ),
}


def kinds() -> st.SearchStrategy[Kind]:
    """Return a type, the same in a partition, a wider type, or a nested one."""
    flat = st.sampled_from([Kind(name, name, values) for name, values in VALUES.items()])
    texts = VALUES | {"string": TEXTS | FOLDERS}
    parted = st.sampled_from([Kind(name + PARTITIONED, name, texts[name]) for name in IN_PARTITIONS])
    wider = st.sampled_from([Kind(declared, name, VALUES[name]) for name, declared in WIDER.items()])
    nested = st.sampled_from([Kind(name, name, values) for name, values in INNER.items()])
    return st.one_of(flat, parted, wider, nested)


def plain(value: Any) -> Any:
    """Return a value as Arrow and Spark both have it: records and maps as lists, and fractions as texts."""
    match value:
        case dict():
            return [plain(each) for each in value.values()] if "a" in value and "b" in value else sorted_pairs(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case float():
            return repr(value)
        case datetime():
            return value.isoformat()
    return value


def sorted_pairs(value: dict[Any, Any]) -> list[Any]:
    """Return the entries of a map."""
    return [[key, plain(each)] for key, each in value.items()]


class TestDelta(Exactness):
    """`DeltaTable`."""

    whole, text, share = "int", "string", 0.4

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, spark: Any) -> None:  # noqa: ARG002 - parses the types
        self.path = tmp_path

    def kinds(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        return kinds()

    def keys(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        flat = [Kind(name, name, values) for name, values in VALUES.items()]
        zeros = Kind("double", "double", st.sampled_from([0.0, 0.0, 0.0, -0.0, float("nan"), 0.5, -0.5]))
        parted = [Kind(name + PARTITIONED, name, VALUES[name]) for name in IN_PARTITIONS]
        return st.sampled_from([*flat, zeros, *parted])

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:  # noqa: ARG002 - it has none
        """See `Exactness`."""
        ddl = ", ".join(f"{column} {declared.removesuffix(PARTITIONED)}" for column, declared in columns.items())
        schema = deltalake.Schema.from_json(StructType.fromDDL(ddl).json())
        by = [column for column, declared in columns.items() if declared.endswith(PARTITIONED)]
        deltalake.DeltaTable.create(self.path / name, schema=schema, partition_by=by)

    def sink(self, name: str, **words: Any) -> DeltaTable:
        """See `Exactness`."""
        return DeltaTable(self.path / name, **words)

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `Exactness`."""
        found = deltalake.DeltaTable(self.path / name).to_pyarrow_table().to_pylist()
        return [tuple(row[column] for column in columns) for row in found]

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `Exactness`."""
        if kind.spark.startswith("struct") and isinstance(found, dict):
            found = [found["a"], None if found["b"] is None else [*found["b"].values()]]
        if kind.spark.startswith("map") and isinstance(given, dict):
            given = [*given.items()]
            return sorted(map(repr, plain(given))) == sorted(map(repr, plain(found)))
        return bool(plain(given) == plain(found))
