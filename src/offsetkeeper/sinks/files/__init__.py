"""Rows into files: Parquet or JSON in a folder, local or of HDFS; see `folder` for what is in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.core.urls import is_url, scheme_of, url_error, without_credentials
from offsetkeeper.errors import GuaranteeRefused, SettingsError, UnknownScheme
from offsetkeeper.sinks.files.folder import Output, Tree
from offsetkeeper.sinks.files.hdfs import open_hdfs
from offsetkeeper.sinks.files.link import Layout
from offsetkeeper.sinks.files.local import LocalTree
from offsetkeeper.sinks.sink import Lander

Format = Literal["parquet", "json"]
_FILE = re.compile(r"file:(?://(?=/))?(/(?!/).*)")
_OBJECTS = ("s3", "s3a", "s3n", "gs", "abfs", "abfss", "wasb", "wasbs", "oss", "cosn")


class Files:
    """Writes each batch into a folder `batch=<sequence>` of its own, whole or not at all, and once.

    `spark.read.parquet(folder)` reads them all, with the column `batch`. The folder is of one group and output, and
    nobody else writes into it. It is made where it is missing.

    Local: executors write, and the process of the driver syncs and renames. So both must see the folder under the same
    path. HDFS: the rename goes through the driver's JVM, so it needs classic Spark.

    Args:
        folder: a path, `file:///path`, or `hdfs://namenode:8020/path`.
        format: "parquet", or "json" with one object a line.
        partition_by: names of columns that get folders within each batch's.
        shared: the local folder is a mount that the driver and every executor have under this path. Without it a
            local folder is refused where executors are other processes than the driver, as they may be elsewhere.

    Raises:
        GuaranteeRefused: the folder is in an object store, which has no rename.
        UnknownScheme: it is in a file system that is not known here.
        SettingsError: another argument is wrong.
    """

    any_order = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        format: Format = "parquet",  # noqa: A002 - Spark's own word
        partition_by: Sequence[str] = (),
        shared: bool = False,
    ) -> None:
        if format not in get_args(Format):
            raise SettingsError(f"format={format!r}: use 'parquet' or 'json'")
        if isinstance(partition_by, str) or len(set(partition_by)) < len(partition_by):
            raise SettingsError(f"partition_by={partition_by!r}: give the names of columns, each once")
        self._folder, self._open = _located(os.fspath(folder))
        self._layout, self._shared = Layout(format, tuple(partition_by)), shared

    def __repr__(self) -> str:
        return f"Files({self._folder!r}, format={self._layout.format!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check that the folder can be written, and holds no batches of another format.

        Raises:
            GuaranteeRefused: it is on HDFS, and this is Spark Connect.
            Refused: it cannot be written, or its batches have another format or other partitions.
            SinkError: its file system could not be reached.
        """
        tree = self._open(self._folder)
        output = Output(tree, self._layout, anywhere=self._shared or not isinstance(tree, LocalTree))
        output.check()
        return Lander(output.stage, output.seen, output.land)


def _located(folder: str) -> tuple[str, Callable[[str], Tree]]:
    """Return the absolute path or address of a folder, and what opens it."""
    if not is_url(folder):
        return str(Path(folder).absolute()), LocalTree
    if match := _FILE.fullmatch(folder):
        return match[1], LocalTree
    scheme = scheme_of(folder).removesuffix("://")
    if scheme == "hdfs":
        if without_credentials(folder) != folder:
            raise url_error(folder, "holds no user, password or query: Spark's own settings say who asks")
        return folder, open_hdfs
    if scheme in _OBJECTS:
        raise GuaranteeRefused(
            f"{scheme}://: an object store has no rename, only copies object by object, of which readers would see a "
            "part: use DeltaTable there"
        )
    raise UnknownScheme(
        f"{url_error(folder, 'is not known')}: Files knows a local path, file:///path and hdfs://namenode:8020/path"
    )
