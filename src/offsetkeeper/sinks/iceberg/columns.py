"""The columns of an Iceberg table with their Spark types, and what this sink cannot write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyiceberg import types as iceberg
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform
from pyspark.sql import types as spark

from offsetkeeper.sinks.lake import LakeColumn
from offsetkeeper.sinks.limits import Limits

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

_FORMAT = 2
_ATOMS: Mapping[type[iceberg.IcebergType], spark.DataType] = MappingProxyType(
    {
        iceberg.BooleanType: spark.BooleanType(),
        iceberg.IntegerType: spark.IntegerType(),
        iceberg.LongType: spark.LongType(),
        iceberg.FloatType: spark.FloatType(),
        iceberg.DoubleType: spark.DoubleType(),
        iceberg.DateType: spark.DateType(),
        iceberg.TimestampType: spark.TimestampNTZType(),
        iceberg.TimestamptzType: spark.TimestampType(),
        iceberg.StringType: spark.StringType(),
        iceberg.BinaryType: spark.BinaryType(),
    }
)
# pyiceberg looks for the rows of a partition by its value: it would find those of NaN nowhere, and of 0.0 twice.
_IN_PARTITIONS = (iceberg.BooleanType, iceberg.IntegerType, iceberg.LongType, iceberg.StringType, iceberg.DateType)

_NO_PARTITIONS = (UnknownTransform, VoidTransform)


def columns_of(schema: Schema) -> list[LakeColumn]:
    """Return the columns of a table."""
    return [
        LakeColumn(each.name, str(each.field_type), each.required, False, each.optional, _spark(each.field_type))  # noqa: FBT003 - generated
        for each in schema.fields
    ]


def limits_of(column: LakeColumn, key: Collection[str]) -> Limits:
    """Return what the values of a column must be; `key` has the names of the columns of an upsert's key."""
    in_key = column.name in key
    limits = Limits(column.name, column.type, nullable=not (column.required or in_key))
    if in_key and isinstance(column.data_type, spark.FloatType | spark.DoubleType):
        return limits._replace(negative_zero=False, nan=False)
    return limits


def partition_sources(metadata: TableMetadata) -> list[str]:
    """Return the names of the top-level columns that the table's partitions are worked out from."""
    schema = metadata.schema()
    names = (schema.find_column_name(each.source_id) or "" for each in metadata.spec().fields)
    tops = {each.name for each in schema.fields}
    return [*dict.fromkeys(name if name in tops else name.partition(".")[0] for name in names)]


def demands(metadata: TableMetadata, key: Collection[str]) -> Iterator[str]:
    """Yield the demands of a table that this writer does not support; `key` as of `limits_of`."""
    names = {each.name for each in metadata.schema().fields}
    yield from (f"it has no column {name}, which is in the key" for name in key if name not in names)
    if metadata.format_version != _FORMAT:
        yield f"its format version is {metadata.format_version}, not {_FORMAT}"
    written = metadata.properties.get("write.format.default", "parquet").lower()
    if written != "parquet":
        yield f"write.format.default is {written}"
    schema, fields = metadata.schema(), metadata.spec().fields
    sources = [each.source_id for each in fields]
    yield from (why for each in fields if (why := _partitions_misfit(each, schema)))
    for each in dict.fromkeys(sources):
        if sources.count(each) > 1:
            yield f"two fields of its partitions are of column {schema.find_column_name(each)}"


def _partitions_misfit(field: PartitionField, schema: Schema) -> str:
    kind = schema.find_type(field.source_id)
    if isinstance(field.transform, IdentityTransform):
        known = isinstance(kind, _IN_PARTITIONS)
    elif isinstance(field.transform, TruncateTransform) and isinstance(kind, iceberg.BinaryType):
        known = False  # pyiceberg-core cannot, and would blame each row
    else:  # pyiceberg-core ends the task where a decimal of Spark's rows is not at a multiple of 16 bytes
        known = not isinstance(kind, iceberg.DecimalType) and not isinstance(field.transform, _NO_PARTITIONS)
    if known:
        return ""
    return f"it is partitioned by {field.transform} of {schema.find_column_name(field.source_id)}, which is {kind}"


def _spark(kind: iceberg.IcebergType) -> spark.DataType:
    """Return the type of Spark with the same values; `NullType` if there is none."""
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, iceberg.StructType):
        return spark.StructType(
            [spark.StructField(each.name, _spark(each.field_type), each.optional) for each in kind.fields]
        )
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_spark(kind.element_type), not kind.element_required)
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(_spark(kind.key_type), _spark(kind.value_type), not kind.value_required)
    return _ATOMS.get(type(kind), spark.NullType())
