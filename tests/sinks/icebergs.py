"""Iceberg tables of tests: in a catalog of SQL, with local files."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from offsetkeeper.core.model import Guarantee
from offsetkeeper.sinks import IcebergTable, Lander
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.iceberg import IcebergServer

CATALOG, NAMESPACE = "lake", "shop"


class Lake(NamedTuple):
    """A catalog with a namespace.

    Attributes:
        folder: where all of it is, but for a catalog in a server.
        properties: the catalog's, for pyiceberg.
        namespace: that of its tables.
    """

    folder: Path
    properties: dict[str, str]
    namespace: str = NAMESPACE

    @classmethod
    def at(cls, folder: Path, uri: str = "") -> Lake:
        """Return that of a folder; its catalog is in SQLite, or in the database of that URI."""
        place = uri or f"sqlite:///{folder}/catalog.db"
        return cls(folder, {"uri": place, "warehouse": f"file://{folder}/warehouse", "init_catalog_tables": "true"})

    @classmethod
    def made(cls, folder: Path, uri: str = "") -> Lake:
        """Return a new one."""
        folder.mkdir(exist_ok=True)
        lake = cls.at(folder, uri)
        with lake.catalog() as catalog:
            catalog.create_namespace(NAMESPACE)
        return lake

    @classmethod
    def served(cls, server: IcebergServer) -> Lake:
        """Return a new namespace in a server."""
        lake = cls(server.folder, dict(server.properties()), f"shop-{secrets.token_hex(4)}")
        with lake.catalog() as catalog:
            catalog.create_namespace(lake.namespace)
        return lake

    def catalog(self) -> Catalog:
        """Return the catalog, as another program opens it."""
        return load_catalog(CATALOG, **self.properties)

    def create(
        self,
        name: str,
        schema: Schema | pa.Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Table:
        """Make an empty table."""
        with self.catalog() as catalog:
            return catalog.create_table(
                f"{self.namespace}.{name}", schema, partition_spec=spec, properties=dict(properties)
            )

    def table(self, name: str) -> Table:
        """Return a table, as another program sees it now."""
        with self.catalog() as catalog:
            return catalog.load_table(f"{self.namespace}.{name}")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table, in the order of their values; null before all others."""
        found = [tuple(row.values()) for row in self.table(name).scan().to_arrow().to_pylist()]
        return sorted(found, key=lambda row: [(value is not None, value) for value in row])

    def sink(self, name: str, **settings: Any) -> IcebergTable:
        """Return a sink on a table."""
        return IcebergTable(f"{self.namespace}.{name}", catalog=CATALOG, properties=self.properties, **settings)

    def lander(self, name: str, **settings: Any) -> Lander:
        """Return how a sink writes a table."""
        way = self.sink(name, **settings).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Lander)
        return way


def by_duckdb(lake: Lake, query: str, name: str = "orders") -> list[Any]:
    """Return what DuckDB finds in the table's current metadata."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for extension in ("avro", "iceberg"):
            where = Path(str(import_module(f"duckdb_extension_{extension}").__file__)).parent
            [file] = where.rglob("*.duckdb_extension")
            connection.execute(f"load '{file}'")
        connection.execute("set timezone = 'UTC'")
        rows = f"iceberg_scan('{lake.table(name).metadata_location}')"
        return connection.execute(query.format(rows=rows)).fetchall()
