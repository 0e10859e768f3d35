"""Rows into an Iceberg table, exactly once, with the `pyiceberg` package and without a jar.

Each task writes Parquet files into the table's folder. Readers see only files of the table's snapshots. One commit to
the catalog then adds a snapshot with the files, and changes the mark, which is a property of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.core.urls import is_url, shown_location
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.sink import Lander
from offsetkeeper.sinks.table import Mode, parse_target

if TYPE_CHECKING:
    from offsetkeeper.sinks.iceberg.landing import IcebergTarget

_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)+")


class IcebergTable:
    """Writes each batch into an Iceberg table, completely and once, whichever store keeps the offsets.

    The frame's columns go into the columns with the same name. Types are compared before anything is written, and a
    value is never rounded or cut. Columns of the table that may be null may be left out. The table must exist.

    Executors write the files, so they must reach the table's folder or bucket, and need the driver's release of
    `pyiceberg`. Each batch is one snapshot; its summary has the group, the batch's id, and the offsets.

    With "upsert", the driver then writes the files anew that have rows of the batch's keys, without these rows: it
    needs memory for the keys and for one such file. A row is replaced as a whole, so the frame must have all columns.

    Args:
        table: name of the table with its namespace: `shop.orders`.
        catalog: name of the catalog, as `pyiceberg` knows it: one of REST, or of SQL in SQLite or PostgreSQL. In a
            catalog of SQL it is a part of each table's key.
        mode: "append", or "upsert" to replace the rows with the same key. If several rows of a batch have the same key,
            the last one by topic, partition and offset is used; if the frame lacks these columns, the batch is refused
            (the table need not have them).
        key: names of columns whose values identify a row, for "upsert".
        properties: properties of the catalog for `pyiceberg`, such as `uri` and `s3.access-key-id`, beside those in
            its own file of settings. They are never shown.

    Raises:
        SettingsError: an argument is wrong.
    """

    worker_modules = ("pyarrow", "pyiceberg")
    any_order = True

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        mode: Mode = "append",
        key: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(table, str) or not _NAME.fullmatch(table):
            raise SettingsError(f"{table!r} is not the name of a table in a catalog: write 'namespace.table'")
        self._target = parse_target("table", mode, key)._replace(table=table)
        self._catalog, self._properties = catalog, dict(properties or {})

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return self._target.table

    @property
    def mode(self) -> Mode:
        """What becomes of rows that come again."""
        return self._target.mode

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        uri = self._properties.get("uri", "")
        return f"{shown_location(uri) if is_url(uri) else ''} {self._catalog} {self._target.table}"

    def __repr__(self) -> str:
        return f"IcebergTable({self._target.table!r}, catalog={self._catalog!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check that the table exists, and that this sink supports all of its features.

        Raises:
            MissingExtra: pyiceberg is not installed, or it is of another release.
            Refused: the table does not exist, or this sink cannot write it, or does not know its catalog.
            SinkError: the catalog or the table could not be reached.
        """
        table = self._table()
        table.check()
        return Lander(table.stage, table.seen, table.land, table.lost)

    def _table(self) -> IcebergTarget:
        with needing_extra("IcebergTable needs", "iceberg,spark"):
            module = import_module("offsetkeeper.sinks.iceberg.landing")
        table: IcebergTarget = module.IcebergTarget(self._catalog, self._properties, self._target)
        return table
