"""The work of a task on an executor: writes its rows into Parquet files in the table's folder, and reports the files.

The files of a task that fails or runs a second time are not reported: no reader sees them, and VACUUM deletes them.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from offsetkeeper.core.environment import token
from offsetkeeper.core.urls import redacted, secrets_of
from offsetkeeper.errors import MissingExtra, RowMismatch, SinkError
from offsetkeeper.sinks.limits import RANK, Limits, check, check_ranks
from offsetkeeper.sinks.synced import sync, with_folders

RESULT = "path string, size long, rows long, partition string, host string"

_ROW_GROUP_BYTES = 64 * 2**20
_SAMPLE = 10_000
_NO_TEXT = re.compile(r"\x1b\[\d*m|↳")


@dataclass(frozen=True)
class Folder:
    """The folder of a table.

    Attributes:
        address: a path, or a URI that deltalake opens.
        options: deltalake's options, with secrets: never show them.
    """

    address: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def local(self) -> bool:
        """Whether the address is a path."""
        return "://" not in self.address

    def files(self) -> fs.FileSystem:
        """Return the file system whose root is the table's folder.

        Raises:
            MissingExtra: deltalake is not installed here.
        """
        if self.local:
            return fs.SubTreeFileSystem(self.address, fs.LocalFileSystem())
        try:
            from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415 - a client library, loaded on use
        except ImportError as error:
            raise MissingExtra("the executors lack deltalake: install it there too") from error
        return fs.PyFileSystem(DeltaStorageHandler(self.address, dict(self.options)))

    def sync(self, *names: str) -> None:
        """Wait until these files and their folders are on the disk; an object store does this by itself."""
        if self.local:
            paths = (os.path.join(self.address, name) for name in names)  # noqa: PTH118 - as text
            sync(with_folders(paths, self.address))

    def why(self, error: Exception) -> str:
        """Return an error as one line without secrets."""
        hidden = redacted(str(error), secrets_of(self.options))
        text = " ".join(_NO_TEXT.sub(" ", hidden).split()) or type(error).__name__
        return f"{self.address}: {text}"


class FilePlan(NamedTuple):
    """How rows are written.

    Attributes:
        schema: schema of the rows in the table; the frame's columns have other names, in the same order. Columns of
            `limits.PLACE` may follow, and `RANK`.
        partitions: names of the columns that the table is partitioned by.
        limits: what the values of each column must be.
        prefix: prefix of all file names; no other try of any batch uses it.
        same_key: the message for a second row of a key.
    """

    schema: pa.Schema
    partitions: tuple[str, ...]
    limits: tuple[Limits, ...]
    prefix: str
    same_key: str


class File(NamedTuple):
    """One file.

    Attributes:
        path: path in the table's folder.
        size: size in bytes.
        rows: number of rows.
        partition: values of the partition columns, as JSON.
        host: the machine of the task.
    """

    path: str
    size: int
    rows: int
    partition: str
    host: str


def write_files(folder: Folder, plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write all rows, grouped by partition, and return a row for each file when all are durable.

    Raises:
        MissingExtra: deltalake is not installed on this executor.
        RowMismatch: a value does not fit.
        SinkError: the rows could not be written, or a file has others.
    """
    writing = _Writing(folder, plan)
    try:
        for batch in batches:
            if batch.num_rows:
                writing.write(batch)
        files = writing.finish()
    except BaseException as error:
        writing.give_up()
        if isinstance(error, pa.ArrowException | OSError):
            raise SinkError(f"{folder.why(error)}; the table was not changed") from None
        raise
    if files:
        yield pa.RecordBatch.from_pylist([file._asdict() for file in files], pa.schema(_RESULT))


_RESULT = [("path", pa.string()), ("size", pa.int64()), ("rows", pa.int64())]
_RESULT += [("partition", pa.string()), ("host", pa.string())]


class _Writing:
    """The files of one task, one open at a time."""

    def __init__(self, folder: Folder, plan: FilePlan) -> None:
        self._folder, self._plan = folder, plan
        self._files = folder.files()
        self._prefix = f"{plan.prefix}-{token()}"  # of this attempt alone, whoever else runs the task
        stored = [each for each in plan.schema.names if each not in plan.partitions]
        self._stored = pa.schema([plan.schema.field(name) for name in stored])
        self._done: list[File] = []
        self._begun: list[str] = []
        self._partition: str | None = None
        self._parquet: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for partition, rows in _runs(self._folder, self._checked(batch), self._plan.partitions):
            if partition != self._partition:
                self._close()
                self._open(partition)
            self._waiting.append(rows.select(self._stored.names))
            self._waiting_bytes += self._waiting[-1].nbytes
            if self._waiting_bytes >= _ROW_GROUP_BYTES:
                self._flush()

    def finish(self) -> list[File]:
        self._close()
        if self._done:
            self._folder.sync(*(file.path for file in self._done))
        return self._done

    def give_up(self) -> None:
        for name in self._begun:
            with suppress(Exception):
                self._files.delete_file(name)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        plan = self._plan
        columns = dict(zip(plan.schema.names, batch.columns, strict=False))
        try:
            check(batch, plan.limits)
        except RowMismatch as error:
            raise RowMismatch(f"{self._folder.address}: {error}") from None
        if RANK in batch.schema.names:
            check_ranks(batch, plan.limits, plan.same_key)
        return pa.RecordBatch.from_pydict(columns).cast(plan.schema)

    def _open(self, partition: str) -> None:
        name = f"{self._prefix}-{len(self._begun)}.parquet"
        self._begun.append(name)
        self._partition, self._rows = partition, 0
        self._stream = self._files.open_output_stream(name)
        self._parquet = None

    def _flush(self) -> None:
        rows = pa.Table.from_batches(self._waiting, self._stored)
        self._rows += rows.num_rows
        self._waiting, self._waiting_bytes = [], 0
        if self._parquet is None:
            self._metadata: list[pq.FileMetaData] = []
            repeating = _repeating(rows)
            self._parquet = pq.ParquetWriter(
                self._stream, self._stored, use_dictionary=repeating, metadata_collector=self._metadata
            )
        self._parquet.write_table(rows, row_group_size=max(1, rows.num_rows))

    def _close(self) -> None:
        if self._partition is not None:
            self._flush()
            self._parquet.close()
            size = self._stream.tell()
            self._stream.close()
            self._check_rows()
            self._done.append(File(self._begun[-1], size, self._rows, self._partition, platform.node()))
            self._partition = None

    def _check_rows(self) -> None:
        """Check that the file has the rows that the log will say: readers find what the file says."""
        [found] = self._metadata
        if found.num_rows != self._rows:
            raise SinkError(
                f"{self._folder.address}: {self._begun[-1]} has {found.num_rows} rows of {self._rows}; the table was "
                "not changed"
            )


def _repeating(rows: pa.Table) -> bool | list[str]:
    """Return the columns to write with a dictionary: for others, the attempt takes a third of the writing time."""
    first = rows.slice(0, _SAMPLE)
    if any(pa.types.is_nested(kind) for kind in first.schema.types):
        return True
    return [name for name in first.column_names if pc.count_distinct(first[name]).as_py() <= first.num_rows // 2]


def _runs(folder: Folder, rows: pa.RecordBatch, names: tuple[str, ...]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield runs of rows of the same partition, with its values as JSON."""
    if not names:
        yield "[]", rows
        return
    codes = [pc.fill_null(rows.column(name).dictionary_encode().indices, -1).to_numpy() for name in names]
    changes = np.any([code[1:] != code[:-1] for code in codes], axis=0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.num_rows]
    for start, end in pairwise(starts):
        values = [_text(folder, name, rows.column(name)[start]) for name in names]
        yield json.dumps(values), rows.slice(start, end - start)


def _text(folder: Folder, name: str, scalar: pa.Scalar) -> str | None:
    """Return a value of a partition column in the form of the log."""
    try:
        value = scalar.as_py()
    except (OverflowError, ValueError) as error:  # Python knows only these years
        raise RowMismatch(
            f"{folder.address}: column {name}: a date before the year 1 or after 9999 cannot name a partition: replace "
            "it in the frame; nothing was written"
        ) from error
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
