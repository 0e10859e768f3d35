"""Rows into a Delta Lake table, exactly once, with the `deltalake` package and without a jar.

Each task writes Parquet files into the table's folder. Readers see only files in the table's log. One commit of the log
then adds the files, and has the mark as transactions of an application (`marks`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, needing_extra
from offsetkeeper.core.urls import AZURE, is_url, split_url, url_error, without_credentials
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.sink import Lander
from offsetkeeper.sinks.table import Mode, parse_target

if TYPE_CHECKING:
    from offsetkeeper.sinks.delta.landing import DeltaTarget


class DeltaTable:
    """Writes each batch into a Delta Lake table, completely and once, whichever store keeps the offsets.

    The frame's columns go into the columns with the same name. Types are compared before anything is written, and a
    value is never rounded or cut. Columns of the table that may be null may be left out; of a row that an upsert finds,
    they stay. The table must exist.

    Executors write the files, so they must reach the folder or the bucket; except for a path they need `deltalake`.
    With "upsert", the driver then merges the rows into the table, so the rows of a batch, and the files whose rows it
    replaces, must fit into the driver's memory.

    Args:
        uri: URI of the table: a path that driver and executors share, or a URI of deltalake, as `s3://bucket/orders`.
        mode: "append", or "upsert" to replace the rows with the same key. If several rows of a batch have the same key,
            the last one by topic, partition and offset is used; if the frame lacks these columns, the batch is refused
            (the table need not have them).
        key: names of columns whose values identify a row, for "upsert".
        storage_options: options of deltalake, such as keys of a bucket. They are never shown.

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

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return self._address

    @property
    def mode(self) -> Mode:
        """What becomes of rows that come again."""
        return self._target.mode

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        return self._address

    def __repr__(self) -> str:
        return f"DeltaTable({self._address!r}, mode={self._target.mode!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check that the table exists, and that this sink supports all of its features.

        Raises:
            MissingExtra: deltalake is not installed.
            Refused: the table does not exist, or this sink cannot write it.
            GuaranteeRefused: its storage may accept two commits with the same version.
            SinkError: the table could not be reached.
        """
        table = self._table()
        table.check()
        return Lander(table.stage, table.seen, table.land, table.lost)

    def _table(self) -> DeltaTarget:
        with needing_extra("DeltaTable needs", "delta,spark"):
            module = import_module("offsetkeeper.sinks.delta.landing")
        table: DeltaTarget = module.DeltaTarget(self._address, self._options, self._target)
        return table


def _address(uri: str) -> str:
    if not is_url(uri):
        return os.path.abspath(uri)  # noqa: PTH100 - as text
    parts = split_url(uri)
    if parts.scheme == "file":
        if parts.netloc or parts.query or parts.fragment or not parts.path:
            raise url_error(uri, "of a table must be file:///path, without a host, and with ? as %3F and # as %23")
        return unquote(parts.path)
    if parts.scheme in AZURE and "@" in parts.netloc:
        raise url_error(
            uri,
            "of a table is not taken with the account: write az://container/path, and give account_name in "
            "storage_options",
        )
    if without_credentials(uri) != uri:
        raise SettingsError("the URI of a table must not have user, password or query: give them as storage_options")
    return uri
