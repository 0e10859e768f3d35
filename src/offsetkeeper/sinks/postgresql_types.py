"""Which column of PostgreSQL holds which Spark type without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.sinks.target import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@dataclass(frozen=True)
class PostgreSQLColumn(Column):
    """One column of a table in PostgreSQL.

    Attributes:
        schema, name_of_type: of its type; of the type that a domain is made of.
        kind: name of that type; of its elements where it is an array.
        category: PostgreSQL's letter for the kind, such as S for strings.
        array: whether it is one.
        modifier: precision, scale or length, as PostgreSQL packs them; -1 for none.
    """

    schema: str
    name_of_type: str
    kind: str
    category: str
    array: bool
    modifier: int


class _Wire(NamedTuple):
    """A type on its way: the type it is staged as, and the kinds of columns that hold all its values."""

    staged: str
    kinds: frozenset[str]


def _wire(staged: str, *kinds: str) -> _Wire:
    return _Wire(staged, frozenset({staged, *kinds}))


# Whole numbers may go into narrower ones: PostgreSQL refuses those that do not fit, and the batch with them.
_WIRES: Mapping[str, _Wire] = {
    "byte": _wire("int2", "int4", "int8", "numeric", "float4", "float8"),
    "short": _wire("int2", "int4", "int8", "numeric", "float4", "float8"),
    "integer": _wire("int4", "int2", "int8", "numeric", "float8"),
    "long": _wire("int8", "int2", "int4", "numeric"),
    "float": _wire("float4", "float8"),
    "double": _wire("float8"),
    "decimal": _wire("numeric"),
    "string": _wire("text", "varchar", "bpchar", "citext", "time", "timetz", "interval"),
    "binary": _wire("bytea"),
    "boolean": _wire("bool"),
    "date": _wire("date", "timestamp"),
    "timestamp": _wire("timestamptz"),
    "timestamp_ntz": _wire("timestamp"),
}
# What PostgreSQL reads from text: enums, networks, geometry, bit strings, ranges, and others such as json and uuid.
_FROM_TEXT = frozenset("EIGVRU")
_NOT_FROM_TEXT = frozenset({"bytea"})
_REMEDIES = {
    ("timestamp", "timestamp"): "would lose its time zone: make the column timestamptz, or cast to timestamp_ntz",
    ("timestamp_ntz", "timestamptz"): "has no time zone: make the column timestamp, or cast to timestamp",
    ("double", "numeric"): "would be rounded: cast to decimal",
    ("float", "numeric"): "would be rounded: cast to decimal",
    ("double", "float4"): "would be rounded: cast to float",
}


def staged_type(data_type: DataType) -> str:
    """Return the PostgreSQL type that values of a Spark type are staged as; "" where there is none."""
    kind, element = data_type.typeName(), getattr(data_type, "elementType", None)
    if kind == "void":
        return "text"
    if element is not None:
        return f"{_WIRES[element.typeName()].staged}[]" if element.typeName() in _WIRES else ""
    return _WIRES[kind].staged if kind in _WIRES else ""


def misfit(data_type: DataType, column: PostgreSQLColumn) -> str:
    """Return why a column cannot hold each value of a Spark type as it is, or "" where it can."""
    if data_type.typeName() == "void":
        return ""
    staged = staged_type(data_type)
    if not staged:
        return "has no counterpart in PostgreSQL: use to_json into a column of json or text"
    if staged.endswith("[]") != column.array:
        return "is possible only with both an array, or none: use to_json into a column of json or text"
    return _misfit(getattr(data_type, "elementType", data_type), column)


def _misfit(data_type: Any, column: PostgreSQLColumn) -> str:
    name = data_type.typeName()
    if name == "decimal" and column.kind == "numeric" and data_type.scale > _scale(column.modifier):
        return "would be rounded: cast to a decimal of the column's scale"
    from_text = column.category in _FROM_TEXT and column.kind not in _NOT_FROM_TEXT
    if column.kind in _WIRES[name].kinds or (_WIRES[name].staged == "text" and from_text):
        return ""
    return _REMEDIES.get((name, column.kind), "does not fit: cast in the frame")


def _scale(modifier: int) -> int:
    """Return the scale of a numeric column; a numeric without one keeps every digit."""
    if modifier < 0:
        return 1000
    packed = (modifier - 4) & 0x7FF
    return packed - 2048 if packed >= 1024 else packed  # noqa: PLR2004 - 11 bits with a sign
