"""Rows into an Iceberg table, by the suite for sinks that keep a mark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offsetkeeper.sinks import IcebergTable
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.iceberg import IcebergServer
from sinks.icebergs import Lake

SCHEMA = pa.schema([("batch", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


class TestSQLite(LanderConformance):
    """In a catalog in SQLite."""

    histories = 2

    @pytest.fixture(autouse=True)
    def lake(self, tmp_path: Path) -> None:
        """Each test has a catalog of its own."""
        self.shop = Lake.made(tmp_path)

    def make(self, name: str) -> None:
        """Make a table."""
        self.shop.create(name, SCHEMA)

    def open(self, name: str) -> IcebergTable:
        """Return the sink."""
        return self.shop.sink(name)

    def read(self, name: str) -> Iterable[Any]:
        """Return what the current snapshot has."""
        return self.shop.rows(name)


class TestPostgreSQL(TestSQLite):
    """In a catalog in PostgreSQL."""

    histories = 1

    @pytest.fixture(autouse=True)
    def lake(self, tmp_path: Path, database: str) -> None:
        """Each test has a catalog of its own."""
        self.shop = Lake.made(tmp_path, database.replace("postgresql://", "postgresql+psycopg://", 1))


class TestREST(TestSQLite):
    """In a server that speaks REST."""

    histories = 1

    @pytest.fixture(autouse=True)
    def lake(self, iceberg_server: IcebergServer) -> None:
        """Each test has a namespace of its own."""
        self.shop = Lake.served(iceberg_server)


class TestUpsert(TestSQLite):
    """`mode="upsert"`, by the whole row: the driver writes files anew."""

    histories = 1

    def open(self, name: str) -> IcebergTable:
        """Return the sink."""
        return self.shop.sink(name, mode="upsert", key=SCHEMA.names)
