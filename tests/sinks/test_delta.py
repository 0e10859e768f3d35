"""Rows into a Delta Lake table, by the suite for sinks that keep a mark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from offsetkeeper.sinks import DeltaTable
from offsetkeeper.testing.conformance import LanderConformance

SCHEMA = pa.schema([("batch", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


class TestAppend(LanderConformance):
    """`mode="append"`."""

    histories = 2

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        """Each test has a folder of its own."""
        self.path = tmp_path

    def make(self, name: str) -> None:
        """Make a table."""
        deltalake.DeltaTable.create(self.path / name, schema=SCHEMA)

    def open(self, name: str) -> DeltaTable:
        """Return the sink."""
        return DeltaTable(self.path / name)

    def read(self, name: str) -> Iterable[Any]:
        """Return what the log's newest version has."""
        rows = deltalake.DeltaTable(self.path / name).to_pyarrow_table().to_pylist()
        return [tuple(row[column] for column in SCHEMA.names) for row in rows]


class TestUpsert(TestAppend):
    """`mode="upsert"`, by the whole row: the driver merges what the executors wrote."""

    histories = 1

    def open(self, name: str) -> DeltaTable:
        """Return the sink."""
        return DeltaTable(self.path / name, mode="upsert", key=SCHEMA.names)
