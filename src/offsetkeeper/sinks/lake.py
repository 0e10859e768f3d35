"""Tables of lakes, whose columns have Spark types: what each holds without loss, and frames in a table's shape."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from offsetkeeper.errors import SinkError
from offsetkeeper.sinks.latest import col, last_of_each_key, ranked
from offsetkeeper.sinks.table import Column, Target

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_ATOMS = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "decimal", "boolean", "string", "binary", "date"}
    | {"timestamp", "timestamp_ntz"}
)


@dataclass(frozen=True)
class LakeColumn(Column):
    """One column of the table, with its Spark type."""

    data_type: DataType


class StagedFile(NamedTuple):
    """A file on a file system of this machine, as the task that wrote it tells of it.

    Attributes:
        path: its path.
        size: its size in bytes.
        host: the machine of the task.
    """

    path: str
    size: int
    host: str


def check_seen(name: str, files: Iterable[StagedFile]) -> None:
    """Check that this process sees the files of tasks, before a commit names them.

    Args:
        name: name of the table, for messages.
        files: the files.

    Raises:
        SinkError: it does not. The task has written on a disk of its own, as where a mount is missing.
    """
    for file in files:
        if differs := _differs(file):
            raise SinkError(
                f"{name}: a task on {file.host} has written {file.path} with {file.size} bytes, but this process "
                f"{differs}: it must be in one folder for the driver and all executors, so look whether that is "
                f"mounted on {file.host}; nothing was written"
            )


def _differs(file: StagedFile) -> str:
    try:
        size = Path(file.path).stat().st_size
    except OSError as error:
        return f"does not see it ({error.strerror})"
    return "" if size == file.size else f"sees {size} bytes of it"


def misfit(data_type: DataType, column: LakeColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    if not _known(column.data_type):
        return "is not supported"
    return "" if _holds(column.data_type, data_type) else "does not fit: cast in the frame"


def shaped(frame: DataFrame, columns: list[LakeColumn], partitions: list[str], target: Target) -> DataFrame:
    """Return the frame with these columns of a table, in their order and types, with rows of a partition together.

    The columns get other names, because mapInArrow of PySpark 4.2 does not accept dots in names.
    """
    if target.mode == "upsert":
        frame = last_of_each_key(frame, target)
    given = {field.name: field.dataType for field in frame.schema.fields}
    names = {column.name: f"c{place}" for place, column in enumerate(columns)}
    chosen = [_chosen(column, given.get(column.name)).alias(names[column.name]) for column in columns]
    frame = frame.select(*chosen, *ranked(frame, names, target))
    return frame.sortWithinPartitions(*map(names.__getitem__, partitions)) if partitions else frame


def _chosen(column: LakeColumn, given: DataType | None) -> SparkColumn:
    if given is None:
        return f.lit(None).cast(column.data_type)
    found = col(column.name)
    return found if given.simpleString() == column.data_type.simpleString() else found.cast(column.data_type)


def _known(kind: DataType) -> bool:
    return all(map(_known, _inner(kind))) if _inner(kind) else kind.typeName() in _ATOMS


def _inner(kind: DataType) -> list[DataType]:
    if isinstance(kind, StructType):
        return [each.dataType for each in kind.fields]
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    return [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []


def _holds(kind: DataType, given: DataType) -> bool:
    """Whether each value of type `given` is also one of type `kind`; nested types must be the same."""
    if isinstance(kind, DecimalType) and isinstance(given, DecimalType):
        return kind.scale >= given.scale and kind.precision - kind.scale >= given.precision - given.scale
    if isinstance(kind, _NUMBERS) and isinstance(given, _NUMBERS):
        return _NUMBERS.index(type(kind)) >= _NUMBERS.index(type(given))
    return (isinstance(kind, DoubleType) and isinstance(given, FloatType)) or _same(kind, given)


def _same(kind: DataType, given: DataType) -> bool:
    """Whether the types are the same, and `given` has no nulls where `kind` allows none."""
    if isinstance(kind, StructType) and isinstance(given, StructType):
        pairs = [*zip(kind.fields, given.fields, strict=False)]
        return len(kind.fields) == len(given.fields) and all(_same_field(*pair) for pair in pairs)
    if isinstance(kind, ArrayType) and isinstance(given, ArrayType):
        return kind.containsNull >= given.containsNull and _same(kind.elementType, given.elementType)
    if isinstance(kind, MapType) and isinstance(given, MapType):
        nulls = kind.valueContainsNull >= given.valueContainsNull
        return nulls and _same(kind.keyType, given.keyType) and _same(kind.valueType, given.valueType)
    return kind.simpleString() == given.simpleString()


def _same_field(kind: StructField, given: StructField) -> bool:
    return kind.name == given.name and kind.nullable >= given.nullable and _same(kind.dataType, given.dataType)
