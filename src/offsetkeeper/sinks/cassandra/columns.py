"""The columns of a Cassandra table, and which Spark types each type can hold without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from offsetkeeper.sinks.limits import Limits
from offsetkeeper.sinks.table import FRACTIONS, Column

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

_DIGITS = 3  # of a second
_HEX = "[0-9a-f]"
_ANY = f"(?i:{_HEX}{{8}}-?{_HEX}{{4}}-?VERSION{_HEX}{{3}}-?{_HEX}{{4}}-?{_HEX}{{12}})"
# Two spellings are two keys for Spark, which finds the last row of each.
_IN_KEY = f"{_HEX}{{8}}-{_HEX}{{4}}-VERSION{_HEX}{{3}}-{_HEX}{{4}}-{_HEX}{{12}}"
_SPELLING = "is not spelled as Cassandra does in a key: use lower() in the frame, and hyphens alone"
_UUID = {
    "uuid": (
        (_ANY.replace("VERSION", _HEX), "is not a UUID"),
        (_IN_KEY.replace("VERSION", _HEX), f"is not a UUID, or {_SPELLING}"),
    ),
    "timeuuid": (
        (_ANY.replace("VERSION", "1"), "is not a UUID of version 1"),
        (_IN_KEY.replace("VERSION", "1"), f"is not a UUID of version 1, or {_SPELLING}"),
    ),
}


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
    if column.kind == "partition_key" and getattr(data_type, "scale", 0) != 0:
        return "has two keys for 1.5 and 1.50: use a whole number, or a column of text"
    return "" if data_type.typeName() in _HOLDS[column.type] else "does not fit: cast in the frame"


def limits_of(column: CassandraColumn, *, alone: bool) -> Limits:
    """Return what the values of a column must be.

    Args:
        column: the column.
        alone: whether it is the whole partition key, which must not be empty.
    """
    limits = Limits(column.name, column.type, nullable=not column.in_key)
    if column.in_key and column.type in FRACTIONS:  # in a partition, all NaN are one
        return limits._replace(negative_zero=False, nan=column.kind != "partition_key")
    if column.type == "timestamp":
        return limits._replace(digits=_DIGITS)
    if column.type in _UUID:
        form, remedy = _UUID[column.type][column.in_key]
        return limits._replace(form=form, remedy=remedy)
    if alone and column.type in ("text", "blob"):
        return limits._replace(bars=r"\A\z", remedy="cannot be the partition key: put another value in its place")
    return limits


def quoted(name: str) -> str:
    """Return a name quoted for CQL."""
    return '"' + name.replace('"', '""') + '"'
