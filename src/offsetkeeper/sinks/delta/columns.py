"""The columns of a Delta Lake table, from its log, and which Spark types each type can hold without loss.

A schema in the log is JSON in Spark's own form.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

from offsetkeeper.sinks.latest import col, last_of_each_key, ranked
from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.table import Column, Target

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
_ATOMS = frozenset(
    {"byte", "short", "integer", "long", "float", "double", "decimal", "boolean", "string", "binary", "date"}
    | {"timestamp", "timestamp_ntz"}
)
_IN_PARTITIONS = frozenset({"byte", "short", "integer", "long", "boolean", "string", "date"})
_NO_PARTITION = r"\A(?:__HIVE_DEFAULT_PARTITION__)?\z"  # deltalake takes its word for null when it writes files anew
_EXACT_IN_LOG = frozenset({"byte", "short", "integer", "long", "boolean", "string", "date"})


@dataclass(frozen=True)
class DeltaColumn(Column):
    """One column of the table, with its Spark type."""

    data_type: DataType


def columns_of(schema: str) -> list[DeltaColumn]:
    """Return the columns of a table whose schema is this JSON."""
    return [
        DeltaColumn(each.name, each.dataType.simpleString(), not each.nullable, False, each.nullable, each.dataType)  # noqa: FBT003 - generated
        for each in StructType.fromJson(json.loads(schema))
    ]


def misfit(data_type: DataType, column: DeltaColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    if not _known(column.data_type):
        return "is not supported"
    return "" if _holds(column.data_type, data_type) else "does not fit: cast in the frame"


def partitions_misfit(column: DeltaColumn) -> bool:
    """Whether the sink cannot write a table that is partitioned by this column."""
    return column.data_type.typeName() not in _IN_PARTITIONS


def finds_files(schema: str, key: Collection[str]) -> bool:
    """Whether deltalake may find the files of keys by the least and greatest key of each file, as the log has them.

    The log has times in milliseconds, decimals as floating-point numbers, and leaves NaN out. With these deltalake
    missed files, and added a key a second time, or replaced the row of another.
    """
    return all(each.data_type.typeName() in _EXACT_IN_LOG for each in columns_of(schema) if each.name in key)


def limits_of(column: DeltaColumn, partitions: Collection[str], key: Collection[str]) -> Limits:
    """Return what the values of a column must be.

    Args:
        column: the column.
        partitions: names of the columns that the table is partitioned by.
        key: names of the columns of an upsert's key. A merge takes -0.0 and 0.0 for the same, and NaN of
            other bits for another.
    """
    in_key = column.name in key
    limits = Limits(column.name, column.type, nullable=not (column.required or in_key))
    if in_key and isinstance(column.data_type, FloatType | DoubleType):
        limits = limits._replace(negative_zero=False, nan=False)
    if column.name in partitions and column.data_type.typeName() == "string":
        limits = limits._replace(
            bars=_NO_PARTITION, remedy="becomes null in a partition column: replace it in the frame"
        )
    return limits


def shaped(frame: DataFrame, columns: list[DeltaColumn], partitions: list[str], target: Target) -> DataFrame:
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


def _chosen(column: DeltaColumn, given: DataType | None) -> SparkColumn:
    if given is None:
        return f.lit(None).cast(column.data_type)
    found = col(column.name)
    return found if given.simpleString() == column.type else found.cast(column.data_type)


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
