"""The columns of a Delta Lake table, from its log, and what their values must be.

A schema in the log is JSON in Spark's own form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from deltalake import ColumnProperties, WriterProperties
from pyspark.sql.types import DataType, DateType, DoubleType, FloatType, StructField, StructType

from offsetkeeper.sinks import lake
from offsetkeeper.sinks.lake import LakeColumn
from offsetkeeper.sinks.limits import Limits

_IN_PARTITIONS = frozenset({"byte", "short", "integer", "long", "boolean", "string", "date"})
_NO_PARTITION = r"\A(?:__HIVE_DEFAULT_PARTITION__)?\z"  # deltalake takes its word for null when it writes files anew
_EXACT_IN_LOG = frozenset({"byte", "short", "integer", "long", "boolean", "string", "date"})
_BOUND = "__CHAR_VARCHAR_TYPE_STRING"  # Spark's char(n) and varchar(n) are strings in a schema, with this beside them
_BOUND_IN_JSON = re.compile(rf'"{_BOUND}":"([^"]*)"')
_VARCHAR = re.compile(r"varchar\((\d+)\)")
_TEXT_BYTES = 64  # of the bounds of a text


def columns_of(schema: str) -> list[LakeColumn]:
    """Return the columns of a table whose schema is this JSON."""
    return [
        LakeColumn(each.name, _type(each), not each.nullable, False, each.nullable, each.dataType)  # noqa: FBT003 - generated
        for each in StructType.fromJson(json.loads(schema))
    ]


def misfit(data_type: DataType, column: LakeColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can; see also `limits_of`."""
    if column.type == column.data_type.simpleString() or _VARCHAR.fullmatch(column.type):
        return lake.misfit(data_type, column)
    return (
        "is not supported, as Spark fills texts of char with blanks, and bounds texts within other values: let it be "
        "varchar or string as a whole, or leave it out"
    )


def partitions_misfit(column: LakeColumn) -> bool:
    """Whether the sink cannot write a table that is partitioned by this column."""
    return column.data_type.typeName() not in _IN_PARTITIONS


def finds_files(schema: str, key: Collection[str]) -> bool:
    """Whether deltalake may find the files of keys by the least and greatest key of each file, as the log has them.

    The log has times in milliseconds, decimals as floating-point numbers, and leaves NaN out. With these deltalake
    missed files, and added a key a second time, or replaced the row of another.
    """
    return all(each.data_type.typeName() in _EXACT_IN_LOG for each in columns_of(schema) if each.name in key)


def written_by_merge(schema: str) -> WriterProperties:
    """Return how a merge writes files: with the bounds of columns that the log has exactly, and no others.

    By other bounds a reader with a filter on the column skips a file, and its rows. The rest is as deltalake does it.
    """
    columns = [each.name for each in columns_of(schema) if each.data_type.typeName() in _EXACT_IN_LOG]
    return WriterProperties(
        compression="SNAPPY",
        statistics_truncate_length=_TEXT_BYTES,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties=dict.fromkeys(columns, ColumnProperties(statistics_enabled="PAGE")),
    )


def limits_of(column: LakeColumn, partitions: Collection[str], key: Collection[str]) -> Limits:
    """Return what the values of a column must be.

    Args:
        column: the column.
        partitions: names of the columns that the table is partitioned by.
        key: names of the columns of an upsert's key. A merge takes -0.0 and 0.0 for the same, and NaN of
            other bits for another.
    """
    in_key = column.name in key
    limits = Limits(column.name, column.type, nullable=not (column.required or in_key))
    if bound := _VARCHAR.fullmatch(column.type):
        limits = limits._replace(characters=int(bound[1]))
    if in_key and isinstance(column.data_type, FloatType | DoubleType):
        limits = limits._replace(negative_zero=False, nan=False)
    if key and isinstance(column.data_type, DateType):  # of the bounds in the log, deltalake makes dates of Python
        limits = limits._replace(far_dates=False)
    if column.name in partitions and column.data_type.typeName() == "string":
        limits = limits._replace(
            bars=_NO_PARTITION, remedy="becomes null in a partition column: replace it in the frame"
        )
    return limits


def _type(field: StructField) -> str:
    """Return the type of a column as it was declared in Spark."""
    plain, within = field.dataType.simpleString(), _BOUND_IN_JSON.findall(field.json())
    return field.metadata.get(_BOUND) or (f"{plain} with {', '.join(within)}" if within else plain)
