"""Takes the rows of some keys out of an Iceberg table: the files that have them are written anew, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import compress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.types import DateType, IntegerType, LongType, StringType

from offsetkeeper.errors import SinkMismatch
from offsetkeeper.sinks.iceberg.bounds import NO_ID, data_files, unbounded
from offsetkeeper.sinks.iceberg.task import local, misplaced
from offsetkeeper.sinks.synced import sync

_AT_ONCE = 16  # files that are opened
_AT_LEAST: Any = GreaterThanOrEqual  # their types say that arguments need names, which they do not take
_AT_MOST: Any = LessThanOrEqual
_EXACT = (IntegerType, LongType, StringType, DateType)
"""Types of keys by whose least and greatest value files are left out."""


class Anew(NamedTuple):
    """Files that are written anew.

    Attributes:
        old: the files with rows of the keys.
        new: files with all their other rows.
    """

    old: list[DataFile]
    new: list[DataFile]

    def discard(self, table: Table) -> None:
        """Delete the new files: the commit that should add them has failed."""
        for file in self.new:
            with suppress(Exception):
                table.io.delete(file.file_path)


def without_keys(table: Table, staged: Sequence[DataFile], key: Sequence[str]) -> Anew:
    """Write the files of a table anew without the rows whose keys are in staged files.

    Args:
        table: the table.
        staged: files with the rows of a batch, one of each key.
        key: names of the columns of the key.

    Raises:
        SinkMismatch: another row of such a file would come into a wrong partition, or would be lost.
    """
    anew = Anew([], [])
    for file in staged:
        file.spec_id = table.metadata.default_spec_id  # it did not come along from the task
    keys = _read(table, [FileScanTask(file) for file in staged], key)
    try:
        for scanned in _that_may_have(table, keys, key):
            kept = _not_in(_read(table, [scanned], key), keys)
            if not pc.all(kept).as_py():
                anew.old.append(scanned.file)
                _write_left(table, scanned, kept, anew.new)
        sync(local(file.file_path for file in anew.new))
    except BaseException:
        anew.discard(table)
        raise
    return anew


def _write_left(table: Table, scanned: FileScanTask, kept: pa.Array, new: list[DataFile]) -> None:
    """Write the rows of a file that are kept into new ones."""
    left = _read(table, [scanned], [field.name for field in table.schema().fields]).filter(kept)
    if not left.num_rows:
        return
    name, path = f"Iceberg table {'.'.join(table.name()[-2:])}", scanned.file.file_path
    found = misplaced(table.metadata, left)
    if found is not None:
        raise SinkMismatch(
            f"{name}: a row that is there, beside one with a key of the batch, must be written anew, but {found.why}: "
            f"take this row out of {path} with another program; nothing was written"
        )
    files = data_files(table.metadata, left, table.io)
    new += files
    written = sum(each.record_count for each in files)
    if written != left.num_rows:
        raise SinkMismatch(
            f"{name}: of {left.num_rows} rows beside keys of the batch, in {path}, pyiceberg wrote {written} anew: "
            "report it; nothing was written"
        )


class _Planner(ManifestGroupPlanner):
    """Leaves out manifests and partitions by one filter, and files by their bounds by another, in one pass."""

    def __init__(self, table: Table, rows: BooleanExpression, bounds: BooleanExpression) -> None:
        super().__init__(table.metadata, table.io, rows)
        self._of_bounds = ManifestGroupPlanner(table.metadata, table.io, bounds)
        self.may_have = super()._build_metrics_evaluator()
        """Whether a file may have rows of the first filter, by its bounds."""

    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        return self._of_bounds._build_metrics_evaluator()  # noqa: SLF001 - there is no public way to it


def _that_may_have(table: Table, keys: pa.Table, key: Sequence[str]) -> list[FileScanTask]:
    """Return the files that may have one of these keys; of others, `pyiceberg` has written some with wrong bounds."""
    fields = [table.schema().find_field(name) for name in key]
    texts = {each.field_id for each in fields if isinstance(each.field_type, StringType)}
    others = [name for name, each in zip(key, fields, strict=True) if each.field_id not in texts]
    wanted, snapshot = _between(table, keys, key), table.current_snapshot()
    planner = _Planner(table, wanted, _between(table, keys, others))
    planned = list(planner.plan_files(snapshot.manifests(table.io))) if snapshot else []
    within, beyond = list[FileScanTask](), list[FileScanTask]()
    for scanned in planned:
        (within if planner.may_have(scanned.file) else beyond).append(scanned)
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # in an object store, most of the time of each is waiting
        wrong = pool.map(lambda scanned: unbounded(scanned.file, table.io) & {*texts, NO_ID}, beyond)
        return [*within, *compress(beyond, wrong)]


def _read(table: Table, files: Sequence[FileScanTask], names: Sequence[str]) -> pa.Table:
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
    return scan.to_table(files).select(names)


def _not_in(there: pa.Table, keys: pa.Table) -> pa.Array:
    """Return of each row whether its key is none of these."""
    names = [f"k{place}" for place in range(keys.num_columns)]  # a name may be that of the number
    places = pa.array(range(there.num_rows), pa.int64())
    numbered = there.rename_columns(names).append_column("n", places)
    found = numbered.join(keys.cast(there.schema).rename_columns(names), names, join_type="left semi")["n"]
    return pc.invert(pc.is_in(places, found.combine_chunks()))


def _between(table: Table, keys: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """Return what leaves out files that cannot have one of these keys."""
    found: BooleanExpression = AlwaysTrue()
    for name in key:
        ends = pc.min_max(keys[name]).as_py() if isinstance(table.schema().find_type(name), _EXACT) else {}
        if ends.get("min") is not None:
            least: Any = _AT_LEAST(Reference(name), ends["min"])
            found = And(found, And(least, _AT_MOST(Reference(name), ends["max"])))
    return found
