"""Each row and each value in Parquet and JSON files, read by Arrow and by Python's json."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from offsetkeeper.sinks import Files
from sinks.exactness import TEXTS, VALUES, Exactness, Kind
from sinks.test_exact_delta import FOLDERS, IN_PARTITIONS, INNER, PARTITIONED, plain

OUTPUT = "spark.sql.parquet.outputTimestampType"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_READ: dict[str, Any] = {
    **dict.fromkeys(("byte", "short", "int", "long"), int),
    "boolean": lambda text: {"true": True, "false": False}[text],
    "string": str,
    "date": date.fromisoformat,
}


class TestParquet(Exactness):
    """`Files(format="parquet")`."""

    text, share = "string", 0.4
    format = "parquet"
    settings: Mapping[str, str] = {}
    test_an_upsert_has_one_row_for_each_key = None  # type: ignore[assignment]  # there is no upsert

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, spark: SparkSession) -> Iterator[None]:
        self.path = tmp_path
        self.declared: dict[str, dict[str, str]] = {}
        for name, text in self.settings.items():
            spark.conf.set(name, text)
        yield
        for name in self.settings:
            spark.conf.unset(name)

    def kinds(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        flat = st.sampled_from([Kind(name, name, values) for name, values in VALUES.items()])
        texts = VALUES | {"string": TEXTS | FOLDERS}
        parted = st.sampled_from([Kind(name + PARTITIONED, name, texts[name]) for name in IN_PARTITIONS])
        nested = st.sampled_from([Kind(name, name, values) for name, values in INNER.items()])
        return st.one_of(flat, flat, parted, nested)

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:  # noqa: ARG002 - it has none
        """See `Exactness`."""
        self.declared[name] = columns

    def sink(self, name: str, **words: Any) -> Files:
        """See `Exactness`."""
        by = [column for column, declared in self.declared[name].items() if declared.endswith(PARTITIONED)]
        return Files(self.path / name, format=self.format, partition_by=by, **words)  # type: ignore[arg-type]

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `Exactness`."""
        rows = []
        for file in (self.path / name).glob("batch=*/**/part-*"):
            folders = dict(each.split("=", 1) for each in file.relative_to(self.path / name).parts[1:-1])
            kinds = self.declared[name]
            told = {
                column: None if text == _NULL else _READ[kinds[column].removesuffix(PARTITIONED)](unquote(text))
                for column, text in folders.items()
            }
            rows += [{**row, **told} for row in self.lines(file)]
        return [tuple(row.get(column) for column in columns) for row in rows]

    def lines(self, file: Path) -> list[dict[str, Any]]:
        """Return the rows of a file."""
        rows: list[dict[str, Any]] = pq.ParquetFile(file).read().to_pylist()
        return rows

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `Exactness`."""
        if kind.spark.startswith("struct") and isinstance(found, dict):
            found = [found["a"], None if found["b"] is None else [*found["b"].values()]]
        if kind.spark != "timestamp_ntz":
            given, found = _utc(given), _utc(found)
        if kind.spark.startswith("map") and isinstance(given, dict):
            return sorted(map(repr, plain([*given.items()]))) == sorted(map(repr, plain(found)))
        return bool(plain(given) == plain(found))


def _utc(value: Any) -> Any:
    """Return times of the same shape: Arrow finds the older form of Parquet's times without a zone, as pandas'."""
    match value:
        case dict():
            return {key: _utc(each) for key, each in value.items()}
        case list() | tuple():
            return [_utc(each) for each in value]
        case datetime():
            plain_time = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
            return plain_time.replace(tzinfo=UTC) if plain_time.tzinfo is None else plain_time.astimezone(UTC)
    return value


class TestParquetOfOldSessions(TestParquet):
    """In a session that writes for old readers, times that others misread are refused."""

    share = 0.2
    settings: Mapping[str, str] = {
        OUTPUT: "INT96",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.ansi.enabled": "false",
    }


class TestJson(TestParquet):
    """`Files(format="json")`."""

    format = "json"
    settings: Mapping[str, str] = {
        "spark.sql.jsonGenerator.ignoreNullFields": "false",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
    }

    def lines(self, file: Path) -> list[dict[str, Any]]:
        """See `TestParquet`."""
        texts = file.read_text("utf-8").split("\n")
        return [json.loads(text, parse_float=Decimal) for text in texts if text]

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `TestParquet`."""
        if kind.declared.endswith(PARTITIONED):
            return super().same(kind, given, found)
        return bool(_as_json(kind.spark, given) == _read(kind.spark, found))


def _read(kind: str, value: Any) -> Any:
    """Return fractions of a type as such, and a record without its nulls: whether these are there the session says."""
    if isinstance(value, dict) and kind.startswith("struct"):
        kinds = {"d": "array<double>", "b": "struct"}
        return {name: _read(kinds.get(name, ""), each) for name, each in value.items() if each is not None}
    if isinstance(value, list) and kind == "array<double>":
        return [_read("double", each) for each in value]
    if isinstance(value, Decimal) and kind in {"float", "double"}:
        form = "f" if kind == "float" else "d"
        return struct.unpack(form, struct.pack(form, float(value)))[0]
    return value


def _as_json(kind: str, value: Any) -> Any:  # noqa: PLR0911 - one for each type
    """Return what json finds where this value was written."""
    if value is None:
        return None
    if kind.startswith("array<"):
        return [_as_json(kind[6:-1], each) for each in value]
    if kind.startswith("map<string,"):
        return {key: _as_json(kind[11:-1], each) for key, each in value.items()}
    if kind.startswith("struct"):
        found = {"a": value[0], "b": None if value[1] is None else _without(c=value[1][0], d=_fractions(value[1][1]))}
        return _without(**found)
    match value:
        case float():
            return _fraction(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime():
            shown = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return shown if value.tzinfo is None else f"{shown}Z"
        case date():
            return value.isoformat()
    return value


def _fractions(values: list[float] | None) -> Any:
    return None if values is None else [*map(_fraction, values)]


def _fraction(value: float) -> Any:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    return value


def _without(**fields: Any) -> dict[str, Any]:
    return {name: each for name, each in fields.items() if each is not None}
