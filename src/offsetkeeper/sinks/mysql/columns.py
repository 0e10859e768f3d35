"""The columns and keys of a table in MySQL, and which Spark types each type can hold without loss."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.errors import Refused
from offsetkeeper.sinks.table import Column, Target, no_table, no_unique_index

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from offsetkeeper.stores.mysql import Connection

_FIND = """
    SELECT table_name, table_type LIKE '%%VIEW%%', engine FROM information_schema.tables
    WHERE table_schema = %s AND table_name = %s"""
_COLUMNS = """
    SELECT column_name, column_type, data_type, is_nullable, column_default, extra, character_set_name, collation_name,
        numeric_scale, datetime_precision
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
_UNIQUE = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND non_unique = 0"""
_GENERATED = re.compile(r"(VIRTUAL|STORED|PERSISTENT) GENERATED", re.IGNORECASE)
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "uuid", "inet4", "inet6"})
# In strict mode the server refuses values that are too large or too long. Types that it would change are not here.
_FITS: Mapping[str, frozenset[str]] = {
    "byte": _WHOLE | {"float", "double"},
    "short": _WHOLE | {"float", "double"},
    "integer": _WHOLE | {"double"},
    "long": _WHOLE,
    "boolean": _WHOLE | {"bit"},
    "float": frozenset({"float", "double"}),
    "double": frozenset({"double"}),
    "decimal": frozenset({"decimal"}),
    "string": _TEXTS,
    "binary": frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}),
    "date": frozenset({"date", "datetime"}),
    "timestamp": frozenset({"timestamp"}),
    "timestamp_ntz": frozenset({"datetime"}),
}
_REMEDIES = {
    ("timestamp", "datetime"): "would lose its time zone: make the column timestamp(6), or cast to timestamp_ntz",
    ("timestamp_ntz", "timestamp"): "has no time zone: make the column datetime(6), or cast to timestamp",
    ("double", "decimal"): "would be rounded: cast to decimal",
    ("float", "decimal"): "would be rounded: cast to decimal",
    ("double", "float"): "would be rounded: cast to float",
    ("binary", "binary"): "would be padded with zeros: make the column varbinary",
    ("string", "enum"): "does not fit: MySQL takes digits for the number of a value; make the column varchar",
    ("string", "set"): "does not fit: MySQL takes digits for the number of a value; make the column varchar",
}


@dataclass(frozen=True)
class MySQLColumn(Column):
    """One column of a table in MySQL.

    Attributes:
        kind: name of its type.
        staged: its declaration in a staging table.
        scale: digits after the decimal point.
        fraction: digits of fractional seconds, or None if it has none.
        counted: whether the database numbers the rows in it (AUTO_INCREMENT).
    """

    kind: str
    staged: str
    scale: int
    fraction: int | None
    counted: bool


class Relation(NamedTuple):
    """A table that was found.

    Attributes:
        schema: schema of the table.
        name: name without the schema.
        columns: columns in their order.
        unique: names of the columns of each unique index; None for a part of a column, or an expression.
    """

    schema: str
    name: str
    columns: Sequence[MySQLColumn]
    unique: Mapping[str, set[str | None]]

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def find_table(connection: Connection, target: Target, database: str, address: str) -> Relation:
    """Return the table.

    Args:
        connection: a connection to the server.
        target: the table.
        database: its database if the target names none.
        address: address of the server, for messages.

    Raises:
        Refused: the table does not exist, or is not one of InnoDB.
    """
    where = (target.schema or database, target.table)
    found = [row for row in connection.execute(_FIND, where).fetchall() if row[0] == target.table]
    if not found:
        raise no_table(target, address)
    [(_, view, engine)] = found
    if view:
        raise Refused(f"{address}: {target} is a view; give the table that has the rows")
    if engine != "InnoDB":  # others that have transactions commit by themselves
        raise Refused(
            f"{address}: table {target} is kept by {engine}, which does not commit together with InnoDB: "
            f"ALTER TABLE {target} ENGINE = InnoDB"
        )
    unique: dict[str, set[str | None]] = {}
    for index, column, part in connection.execute(_UNIQUE, where).fetchall():
        unique.setdefault(index, set()).add(column if part is None else None)
    return Relation(*where, [_column(*row) for row in connection.execute(_COLUMNS, where).fetchall()], unique)


def check_key(relation: Relation, target: Target, address: str, names: Collection[str] = ()) -> None:
    """Check that the key is a unique index, and that an upsert cannot match rows by another unique index.

    Args:
        relation: the table.
        target: the table, and its key.
        address: address of the server, for messages.
        names: names of the frame's columns, if known.

    Raises:
        Refused: the key is not a unique index, or another unique index could match.
    """
    key = set(target.key)
    if not key:
        return
    if key not in relation.unique.values():
        raise no_unique_index(target, address)
    # If the database numbers the rows itself, no two rows are equal.
    numbered = {column.name for column in relation.columns if column.counted} - set(names)
    others = [name for name, columns in relation.unique.items() if columns != key and not columns & numbered]
    if others:
        raise Refused(
            f"{address}: table {target} has other unique indexes than the one on its key: {', '.join(sorted(others))}. "
            "MySQL would replace a row that is equal there, whatever its key: make them not unique, or use append"
        )


def misfit(data_type: DataType, column: MySQLColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    name = data_type.typeName()
    if name == "void":
        return ""
    if name not in _FITS:
        return "has no counterpart in MySQL: use to_json into a column of json or text"
    if column.kind not in _FITS[name]:
        return _REMEDIES.get((name, column.kind), "does not fit: cast in the frame")
    scale: Any = getattr(data_type, "scale", 0)
    if column.kind == "decimal" and scale > column.scale:
        return "would be rounded: cast to a decimal of the column's scale"
    return (
        "would be rounded: its digits are limited" if column.kind in {"float", "double"} and "(" in column.type else ""
    )


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def _column(
    name: str,
    declared: str,
    kind: str,
    nullable: str,
    default: str | None,
    extra: str,
    charset: str | None,
    collation: str | None,
    scale: int | None,
    fraction: int | None,
) -> MySQLColumn:
    counted = "auto_increment" in extra.lower()
    text = f" CHARACTER SET {charset} COLLATE {collation}" if charset and kind != "json" else ""
    null = "NULL" if nullable == "YES" else "NOT NULL"
    has_fraction = kind in {"timestamp", "datetime"}
    return MySQLColumn(
        name,
        declared,
        nullable == "NO" and default is None and not counted,
        _GENERATED.search(extra) is not None,
        nullable == "YES",
        kind,
        f"{declared}{text} {null}",
        scale or 0,
        fraction if has_fraction else None,
        counted,
    )
