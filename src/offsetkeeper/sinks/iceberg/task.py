"""The work of a task on an executor: writes its rows into Parquet files in the table's folder, and reports the files.

The files of a task that fails or runs a second time are in no snapshot: no reader sees them, and Iceberg's
`remove_orphan_files` deletes them.
"""

from __future__ import annotations

import pickle
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import __version__ as pyiceberg_version
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO, _get_field_from_arrow_table
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.transforms import DayTransform, Transform, TruncateTransform
from pyiceberg.types import IcebergType, IntegerType, LongType, TimestampType, TimestamptzType

from offsetkeeper.core.urls import redacted, secrets_of
from offsetkeeper.errors import MissingExtra, RowMismatch, SinkError, SinkMismatch
from offsetkeeper.sinks.iceberg.bounds import data_files
from offsetkeeper.sinks.limits import FIRST_DAY, LAST_DAY, RANK, Limits, check, check_ranks, record_of
from offsetkeeper.sinks.synced import sync, with_folders

RESULT = "file binary, host string"

_FILE_BYTES = 128 * 2**20  # of rows in memory; a file has fewer, as it is compressed
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Place:
    """Where the files of a table are.

    Attributes:
        name: name of the table, for messages.
        location: the table's folder.
        properties: pyiceberg's properties of the folder's file system, with secrets: never show them.
        release: the driver's release of pyiceberg.
    """

    name: str
    location: str
    properties: Mapping[str, str] = field(repr=False)
    release: str

    def files(self) -> Any:
        """Return what opens the table's files, and notes their names.

        Raises:
            MissingExtra: pyiceberg is of another release here.
        """
        if pyiceberg_version != self.release:
            raise MissingExtra(
                f"the executors have pyiceberg {pyiceberg_version}, but the driver has {self.release}: install "
                f"pyiceberg=={self.release} there"
            )
        return _Begun(load_file_io(dict(self.properties), self.location))

    def why(self, error: BaseException) -> str:
        """Return an error as one line without secrets."""
        return f"{self.name}: {without_secrets(error, self.properties)}"


class FilePlan(NamedTuple):
    """How rows are written.

    Attributes:
        metadata: the table's metadata without its snapshots, as JSON.
        schema: schema of the rows in the table; the frame's columns have other names, in the same order. Columns of
            `limits.PLACE` may follow, and `RANK`.
        limits: what the values of each column must be.
        same_key: the message for a second row of a key.
    """

    metadata: str
    schema: pa.Schema
    limits: tuple[Limits, ...]
    same_key: str = ""


def write_files(place: Place, plan: FilePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write all rows, and return a row for each file when all are durable.

    Raises:
        MissingExtra: the executor has another release of pyiceberg than the driver.
        RowMismatch: a value does not fit.
        SinkError: the rows could not be written.
    """
    writing = _Writing(place, plan)
    try:
        for batch in batches:
            if batch.num_rows:
                writing.write(batch)
        files = writing.finish()
    except BaseException as error:
        writing.give_up()
        if isinstance(error, pa.ArrowException | OSError):
            raise SinkError(f"{place.why(error)}; the table was not changed") from None
        raise
    if files:
        hosts = pa.array([platform.node()] * len(files), pa.string())
        yield pa.RecordBatch.from_pydict({"file": pa.array(map(pickle.dumps, files), pa.binary()), "host": hosts})


def without_secrets(error: BaseException, properties: Mapping[str, Any]) -> str:
    """Return an error as one line without the secrets of a catalog's properties."""
    return " ".join(redacted(str(error), secrets_of(properties)).split()) or type(error).__name__


def local(locations: Iterable[str]) -> list[str]:
    """Return the paths of those locations that are on this machine's file systems; object stores wait by themselves."""
    parsed = map(PyArrowFileIO.parse_location, locations)
    return [path for scheme, _, path in parsed if scheme == "file"]


class Misplaced(NamedTuple):
    """A row that pyiceberg would put where readers do not look for it.

    Attributes:
        row: number of the row.
        why: what is wrong with its value.
    """

    row: int
    why: str


def misplaced(metadata: TableMetadata, rows: pa.Table) -> Misplaced | None:
    """Return the first row whose partition pyiceberg works out wrong, or None.

    Args:
        metadata: the table's metadata.
        rows: rows with the columns that its partitions are of.
    """
    schema = metadata.schema()
    for field_ in metadata.spec().fields:
        name, kind = schema.find_column_name(field_.source_id) or "", schema.find_type(field_.source_id)
        values = _get_field_from_arrow_table(rows, name)
        wrong = _in_wrong_partition(values, field_.transform, kind)
        row = -1 if wrong is None else pc.index(wrong, value=True).as_py()
        if row >= 0:
            why = f"which pyiceberg puts into a wrong partition by {field_.transform}"
            return Misplaced(row, f"column {name} has {values[row]}, {why}")
    return None


def _in_wrong_partition(values: pa.ChunkedArray, transform: Transform[Any, Any], kind: IcebergType) -> Any:
    """Return of each value whether its partition is wrong; None if all are right. A test compares all transforms."""
    if isinstance(transform, DayTransform) and isinstance(kind, TimestampType | TimestamptzType):
        # It cuts seconds toward zero: before 1970 the last second of a day is in the next one.
        days = pc.floor_temporal(values.cast(pa.timestamp("us")), unit="day").cast(pa.date32())
        return pc.not_equal(transform.pyarrow_transform(kind)(values).cast(pa.int32()), days.cast(pa.int32()))
    if isinstance(transform, TruncateTransform) and isinstance(kind, IntegerType | LongType):
        return pc.greater(transform.pyarrow_transform(kind)(values), values)  # near the least number it wraps
    return None


class _Begun:
    """Opens files, and notes the locations of those that it writes."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.locations: list[str] = []

    def new_output(self, location: str) -> Any:
        self.locations.append(location)
        return self._files.new_output(location)

    def new_input(self, location: str) -> Any:
        return self._files.new_input(location)

    def delete(self, location: str) -> None:
        self._files.delete(location)


class _Writing:
    """The files of one task."""

    def __init__(self, place: Place, plan: FilePlan) -> None:
        self._place, self._plan = place, plan
        self._files = place.files()
        self._metadata = TableMetadataUtil.parse_raw(plan.metadata)
        self._done: list[DataFile] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(self._checked(batch))
        self._waiting_bytes += self._waiting[-1].nbytes
        if self._waiting_bytes >= _FILE_BYTES:
            self._flush()

    def finish(self) -> list[DataFile]:
        if self._waiting:
            self._flush()
        folders = local([self._place.location])
        sync(with_folders(local(self._files.locations), folders[0] if folders else ""))
        return self._done

    def give_up(self) -> None:
        for location in self._files.locations:
            with suppress(Exception):
                self._files.delete(location)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(self._plan.schema.names, batch.columns, strict=False))
        try:
            check(batch, self._plan.limits)
        except RowMismatch as error:
            raise RowMismatch(f"{self._place.name}: {error}") from None
        if RANK in batch.schema.names:
            check_ranks(batch, self._plan.limits, self._plan.same_key)
        rows = pa.RecordBatch.from_pydict(columns).cast(self._plan.schema)
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            if _has_odd_years(array):
                raise RowMismatch(
                    f"{self._place.name}: column {name} has a time before the year 1 or after 9999, which pyiceberg "
                    "cannot write: replace it in the frame; nothing was written"
                )
        found = misplaced(self._metadata, pa.Table.from_batches([rows]))
        if found is not None:
            record = record_of(batch, found.row, self._plan.schema.names)
            raise RowMismatch(f"{self._place.name}: {record}{found.why}: replace it in the frame; nothing was written")
        return rows

    def _flush(self) -> None:
        rows = pa.Table.from_batches(self._waiting, self._plan.schema)
        self._waiting, self._waiting_bytes = [], 0
        try:
            files = data_files(self._metadata, rows, self._files)
        except (ValueError, OverflowError) as error:
            if isinstance(error, pa.ArrowException):
                raise
            raise RowMismatch(
                f"{self._place.why(error)}: pyiceberg cannot write a value of these rows; nothing was written"
            ) from error
        written = sum(each.record_count for each in files)
        if written != rows.num_rows:
            raise SinkMismatch(f"{self._place.name}: of {rows.num_rows} rows pyiceberg wrote {written} into files")
        self._done += files


def _has_odd_years(array: pa.Array) -> bool:
    """Whether a time in an array, or within its values, is of a year that Python does not know."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any(map(_has_odd_years, array.flatten()))
    if pa.types.is_map(kind):
        return _has_odd_years(array.keys) or _has_odd_years(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_odd_years(array.flatten())
    if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return False
    days = pa.types.is_date32(kind)
    ends = pc.min_max(array.cast(pa.int32() if days else pa.int64())).as_py()
    scale = 1 if days else _DAY_US
    return ends["min"] is not None and not FIRST_DAY * scale <= ends["min"] <= ends["max"] < (LAST_DAY + 1) * scale
