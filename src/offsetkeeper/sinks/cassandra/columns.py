"""The columns of a Cassandra table, and which Spark types each type can hold without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsetkeeper.sinks.table import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

IN_KEY = frozenset({"partition_key", "clustering"})
"""The kinds of the columns in a primary key."""

_INTEGERS = ("byte", "short", "integer", "long")
_HOLDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text": ("string",),
        "tinyint": _INTEGERS[:1],
        "smallint": _INTEGERS[:2],
        "int": _INTEGERS[:3],
        "bigint": _INTEGERS,
        "varint": _INTEGERS,
        "float": ("float",),
        "double": ("float", "double"),
        "decimal": ("decimal",),
        "boolean": ("boolean",),
        "blob": ("binary",),
        "date": ("date",),
        "timestamp": ("timestamp",),
        "uuid": ("string",),
        "timeuuid": ("string",),
    }
)


@dataclass(frozen=True)
class CassandraColumn(Column):
    """One column of the table.

    Attributes:
        kind: Cassandra's kind: partition_key, clustering, regular or static.
    """

    kind: str

    @property
    def in_key(self) -> bool:
        """Whether the column is in the primary key."""
        return self.kind in IN_KEY


def misfit(data_type: DataType, column: CassandraColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    if column.kind == "static":
        return "does not fit: it is static, so several rows of a batch would write it, and their order is unknown"
    if column.type not in _HOLDS:
        return "is not supported"
    return "" if data_type.typeName() in _HOLDS[column.type] else "does not fit: cast in the frame"


def quoted(name: str) -> str:
    """Return a name quoted for CQL."""
    return '"' + name.replace('"', '""') + '"'
