"""Rows into a Delta Lake table, exactly once, by the `deltalake` package: without a jar.

Each task writes Parquet files into the table's folder, where no reader looks for files that the table's log does not
name. One commit of the log then names them, and has the mark as transactions of an application (`marks`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.core.urls import is_url, split_url, without_credentials
from offsetkeeper.errors import MissingExtra, SettingsError
from offsetkeeper.sinks.sink import Lander
from offsetkeeper.sinks.table import Mode, parse_target

if TYPE_CHECKING:
    from offsetkeeper.sinks.delta.landing import Table


class DeltaTable:
    """Writes each batch into a Delta Lake table, whole and once, whatever store keeps the offsets.

    The frame's columns go into the columns of the same name. Their types are compared before anything is written, and
    a value is never rounded or cut. Columns of the table that may be null may be left out. The table must be there.

    Executors write the files, so they reach the folder or the bucket; for anything but a path they need `deltalake`.
    "upsert" writes them too, but the driver then merges them into the table, so the rows of a batch, and the files
    whose rows it replaces, have to fit the driver.

    Args:
        uri: of the table: a path that driver and executors share, or what deltalake opens, as `s3://bucket/orders`.
        mode: "append", or "upsert" to replace the rows that have the same key. Of several rows with one key in a batch
            the last by topic, partition and offset is taken where the frame has these columns (they need not be in
            the table); where it has not, the batch is refused.
        key: names of columns whose values tell each row from all others, for "upsert".
        storage_options: deltalake's, such as keys of a bucket. They are not shown anywhere.

    Raises:
        SettingsError: an argument is wrong.
    """

    worker_modules = ("deltalake", "numpy", "pyarrow")
    any_order = True

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: Mode = "append",
        key: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._address = _address(os.fspath(uri))
        self._target = parse_target("table", mode, key)._replace(table=self._address)
        self._options = dict(storage_options or {})

    def __repr__(self) -> str:
        return f"DeltaTable({self._address!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check that the table is there, and that nothing in it asks for more than this sink does.

        Raises:
            MissingExtra: deltalake is not installed.
            Refused: the table is not there, or is not as it must be.
            GuaranteeRefused: its storage does not keep two commits apart.
            SinkError: it could not be reached.
        """
        table = self._table()
        table.check()
        return Lander(table.stage, table.seen, table.land)

    def _table(self) -> Table:
        try:
            module = import_module("offsetkeeper.sinks.delta.landing")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("offsetkeeper"):
                raise
            raise MissingExtra(f"DeltaTable needs {error.name!r}: pip install 'offsetkeeper[delta,spark]'") from error
        table: Table = module.Table(self._address, self._options, self._target)
        return table


def _address(uri: str) -> str:
    if not is_url(uri):
        return os.path.abspath(uri)  # noqa: PTH100 - as text
    if uri.startswith("file://"):
        return unquote(split_url(uri).path)
    if without_credentials(uri) != uri:
        raise SettingsError("the URI of a table holds no user, password or query: give them as storage_options")
    return uri
