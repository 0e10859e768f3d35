"""Which SQLite columns can hold which Spark types without loss, and in which form.

A column's affinity decides how SQLite converts a value: https://www.sqlite.org/datatype3.html.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from offsetkeeper.sinks.limits import Limits, no_utf8
from offsetkeeper.sinks.table import Column

if TYPE_CHECKING:
    from decimal import Decimal

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql.types import DataType, StructField

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DOUBLE_DIGITS = 15  # decimal digits that a double keeps
# In the order in which SQLite searches a type's name for them.
_AFFINITIES = (
    ("INTEGER", ("INT",)),
    ("TEXT", ("CHAR", "CLOB", "TEXT")),
    ("BLOB", ("BLOB",)),
    ("REAL", ("REAL", "FLOA", "DOUB")),
)
_NOT_IN_UTF_16 = (
    "has a text with U+FFFE or U+FFFF, and in a file in UTF-16 SQLite changes both to U+FFFD: replace them in the "
    "frame, or use a file in UTF-8"
)
_NUMBERS = frozenset({"INTEGER", "NUMERIC", "BLOB"})
_TIMES = frozenset({"TEXT", "NUMERIC", "BLOB"})
_FITS: Mapping[str, frozenset[str]] = {
    "byte": _NUMBERS,
    "short": _NUMBERS,
    "integer": _NUMBERS,
    "long": _NUMBERS,
    "boolean": _NUMBERS,
    "float": frozenset({"REAL", "BLOB"}),
    "double": frozenset({"REAL", "BLOB"}),
    "decimal": frozenset({"TEXT", "BLOB"}),
    "string": frozenset({"TEXT", "BLOB"}),
    "binary": frozenset({"BLOB"}),
    "date": _TIMES,
    "timestamp": _TIMES,
    "timestamp_ntz": _TIMES,
    "void": frozenset({"INTEGER", "TEXT", "BLOB", "REAL", "NUMERIC"}),
}


@dataclass(frozen=True)
class SQLiteColumn(Column):
    """One column of a table in SQLite.

    Attributes:
        affinity: of its type.
        encoding: of the file, as SQLite names it.
        keyed: whether equal values must be one key there.
    """

    affinity: str
    encoding: str = "UTF-8"
    keyed: bool = False


def affinity(declared: str, *, strict: bool = False) -> str:
    """Return the affinity of a column's type, in a strict table or not; BLOB keeps every value unchanged."""
    name = declared.upper()
    if not name or (strict and name == "ANY"):
        return "BLOB"
    return next((kind for kind, marks in _AFFINITIES if any(mark in name for mark in marks)), "NUMERIC")


def misfit(data_type: DataType, column: SQLiteColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    name = data_type.typeName()
    if name not in _FITS:
        return "has no counterpart in SQLite: use to_json into a column of text"
    if name == "decimal" and getattr(data_type, "precision", 0) <= _DOUBLE_DIGITS and column.affinity == "NUMERIC":
        return ""
    if column.affinity not in _FITS[name]:
        return f"does not fit: SQLite stores {column.affinity} there; cast in the frame"
    if column.keyed and getattr(data_type, "scale", 0) != 0:
        return 'has two keys for 1.5 and 1.50: use NUMERIC, or give same_keys="as the column" if that is meant'
    return ""


def limits(data_type: DataType, column: SQLiteColumn) -> Limits:
    """Return what values of a Spark type must be, so that a column that fits the type keeps them unchanged."""
    found = Limits(column.name, column.type, column.nullable)
    if data_type.typeName() == "string" and column.encoding.startswith("UTF-16"):
        return found._replace(bars="[\ufffe\uffff]", remedy=_NOT_IN_UTF_16)
    return found


def shipped(field: StructField) -> SparkColumn:
    """Return a frame's column in a form that reaches the driver unchanged, whatever time zones are set."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - `import offsetkeeper` must not load it

    column = f.col("`" + field.name.replace("`", "``") + "`")
    if field.dataType.typeName() == "timestamp":
        return f.unix_micros(column)
    if field.dataType.typeName() == "string":  # Spark would send other characters for bytes that are not UTF-8
        return column.cast("binary")
    return column.cast("string") if field.dataType.typeName() in {"date", "timestamp_ntz"} else column


def _text(value: bytearray) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(no_utf8(bytes(value))) from error


def _allowed_text(limits: Limits, value: bytearray) -> str:
    text = _text(value)
    if re.search(limits.bars, text):
        raise ValueError(limits.remedy)
    return text


def _timestamp(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(" ")


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _number(value: float) -> float:
    if math.isnan(value):
        raise ValueError("SQLite has no NaN and would store null: replace it, for example with nanvl")
    return value


def _key_number(value: float) -> float:
    if value == 0 and math.copysign(1, value) < 0:
        raise ValueError("-0.0 is a key equal to 0.0 there: add 0.0 to it in the frame")
    return _number(value)


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "string": _text,
    "timestamp": _timestamp,
    "decimal": _decimal,
    "float": _number,
    "double": _number,
    "binary": bytes,
}


def converter(kind: str, limits: Limits) -> Callable[[Any], Any] | None:
    """Return the function that makes a value of a Spark type one for SQLite; None if it is one already.

    The function raises ValueError if SQLite would store another value, or take it for the same key as another one.
    """
    if not limits.negative_zero:
        return _key_number
    return partial(_allowed_text, limits) if limits.bars else _CONVERTERS.get(kind)
