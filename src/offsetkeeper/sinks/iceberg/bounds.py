"""The bounds of a file: the least and the greatest value of a column. Readers and upserts leave files out by them.

Parquet keeps no bounds of a row group with a text, or bytes, of more than 4 KiB. pyiceberg takes those of the file from
its other row groups, so the file has values beyond its bounds, and whoever looks for them skips it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table.metadata import TableMetadata

NO_ID = -1
"""Stands for a column of a Parquet file that has no id of Iceberg: another program has added the file."""

_ID = b"PARQUET:field_id"
_MOST_KNOWN = 100_000  # files
_known: dict[str, set[int]] = {}  # by path: a file never changes, and a table may have many


def data_files(metadata: TableMetadata, rows: pa.Table, io: Any) -> list[DataFile]:
    """Write rows into files of a table, whose bounds are right.

    Args:
        metadata: the table's metadata.
        rows: at least one row.
        io: what opens the files.
    """
    files = [*_dataframe_to_data_files(metadata, rows, io)]
    for file in files:
        for column in unbounded(file, io):
            file.lower_bounds.pop(column, None)
            file.upper_bounds.pop(column, None)
    return files


def unbounded(file: DataFile, io: Any) -> set[int]:
    """Return the ids of the columns whose bounds may be wrong; `NO_ID` is of one without an id.

    Only a file with several row groups is opened, once in a process. Columns within others have no bounds.
    """
    if file.file_format != FileFormat.PARQUET or len(file.split_offsets or ()) == 1:
        return set()
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    found = _known.get(file.file_path)
    if found is None:  # several threads ask at once, and one may clear what is known
        found = _known[file.file_path] = _read_unbounded(file, io)
    return found


def _read_unbounded(file: DataFile, io: Any) -> set[int]:
    with io.new_input(file.file_path).open() as opened:
        footer = pq.read_metadata(opened)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    names = {each.path_in_schema for each in columns if not _has_bounds(each)}
    return {_id_of(field) for field in footer.schema.to_arrow_schema() if field.name in names}


def _has_bounds(column: Any) -> bool:
    """Whether Parquet has the bounds of a row group's column, or it has no value at all."""
    found = column.statistics
    return found is not None and (found.has_min_max or (found.has_null_count and found.null_count == column.num_values))


def _id_of(field: pa.Field) -> int:
    return int(field.metadata[_ID]) if field.metadata and _ID in field.metadata else NO_ID
