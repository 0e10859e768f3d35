"""Rows into files: Parquet or JSON in a folder, local or on HDFS; see `folder` for its layout."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store
from offsetkeeper.core.urls import AZURE, is_url, scheme_of, split_url, url_error, without_credentials
from offsetkeeper.errors import GuaranteeRefused, SettingsError, UnknownScheme
from offsetkeeper.sinks.files.folder import Output, Tree
from offsetkeeper.sinks.files.hdfs import open_hdfs
from offsetkeeper.sinks.files.link import Layout
from offsetkeeper.sinks.files.local import LocalTree
from offsetkeeper.sinks.sink import Lander

Format = Literal["parquet", "json"]
_FILE = re.compile(r"file:(?://(?=/))?(/(?!/).*)")
_IN_AZURE = '("az://container/path")'
_OBJECTS = ("s3", "s3a", "s3n", "gs", *AZURE, "oss", "cosn")


class Files:
    """Writes each batch into its own folder `batch=<sequence>`, completely or not at all, and once.

    `spark.read.parquet(folder)` reads all batches, with the column `batch`. The folder belongs to one group and output;
    no other program may write into it. It is created if it does not exist.

    Local: executors write the files, and the driver process syncs and renames them. So both must see the folder under
    the same path. HDFS: the rename goes through the driver's JVM, so it needs classic Spark.

    Args:
        folder: a path, `file:///path`, or `hdfs://namenode:8020/path`.
        format: "parquet", or "json" with one object per line.
        partition_by: names of columns that become folders within the folder of a batch.
        shared: whether the local folder is a mount that the driver and every executor have under this path. Otherwise
            it is refused if executors are separate processes, because they may be on other machines. Each write is
            checked: if the driver does not see what a task has written, the batch fails, and is tried again.

    Raises:
        GuaranteeRefused: the folder is in an object store, which has no rename.
        UnknownScheme: the file system is not supported.
        SettingsError: another argument is wrong.
    """

    any_order = True
    mode = "append"

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
        if any(name.startswith((".", "_")) for name in partition_by):
            raise SettingsError(
                f"partition_by={tuple(partition_by)!r}: a name begins with . or _, and readers skip such folders: "
                "rename the column in the frame"
            )
        self._folder, self._open = _located(os.fspath(folder))
        self._layout, self._shared = Layout(format, tuple(partition_by)), shared

    @property
    def writes_to(self) -> str:
        """The name of its target."""
        return split_url(self._folder).path if is_url(self._folder) else self._folder

    @property
    def place(self) -> str:
        """Where it is; see `Sink`."""
        return without_credentials(self._folder) if is_url(self._folder) else str(Path(self._folder).absolute())

    def __repr__(self) -> str:
        return f"Files({self._folder!r}, format={self._layout.format!r})"

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """Check that the folder can be written, and that its batches have the same format.

        Raises:
            GuaranteeRefused: the folder is on HDFS, and this is Spark Connect.
            Refused: the folder cannot be written, or its batches have another format or other partitions.
            SinkError: its file system could not be reached.
        """
        tree = self._open(self._folder)
        local = isinstance(tree, LocalTree)
        output = Output(tree, self._layout, anywhere=self._shared or not local, mounted=self._shared and local)
        output.check()
        return Lander(output.stage, output.seen, output.land)


def _located(folder: str) -> tuple[str, Callable[[str], Tree]]:
    """Return the absolute path or address of a folder, and the function that opens it."""
    if not is_url(folder):
        return str(Path(folder).absolute()), LocalTree
    if match := _FILE.fullmatch(folder):
        return match[1], LocalTree
    scheme = scheme_of(folder).removesuffix("://")
    if scheme == "hdfs":
        if without_credentials(folder) != folder:
            raise url_error(folder, "must not have user, password or query: Spark's own settings have the user")
        return folder, open_hdfs
    if scheme in _OBJECTS:
        raise GuaranteeRefused(
            f"{scheme}://: an object store has no rename, it only copies object by object, so readers would see a part "
            f"of a batch: use DeltaTable{_IN_AZURE * (scheme in AZURE)} there"
        )
    raise UnknownScheme(
        f"{url_error(folder, 'is not known')}: Files supports a local path, file:///path and hdfs://namenode:8020/path"
    )
