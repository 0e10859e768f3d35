"""The columns and keys of a table in MySQL, and which Spark types each type can hold without loss."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.clients.mysql import Connection
from offsetkeeper.clients.mysql_server import triggers
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.limits import Limits, all_nines
from offsetkeeper.sinks.table import Column, Target, merged_keys, no_table, no_unique_index

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_FIND = """
    SELECT table_name, table_type LIKE '%%VIEW%%', engine FROM information_schema.tables
    WHERE table_schema = %s AND table_name = %s"""
_COLUMNS = """
    SELECT column_name, column_type, data_type, is_nullable, column_default, extra, c.character_set_name,
        collation_name, character_maximum_length, character_octet_length, maxlen, numeric_precision, numeric_scale,
        datetime_precision
    FROM information_schema.columns c LEFT JOIN information_schema.character_sets s
        ON s.character_set_name = c.character_set_name
    WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
_PADS = "SELECT CONVERT('a' USING {charset}) COLLATE {collation} = CONVERT('a ' USING {charset}) COLLATE {collation}"
_UNIQUE = """
    SELECT index_name, column_name, sub_part FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND non_unique = 0"""
_GENERATED = re.compile(r"(VIRTUAL|STORED|PERSISTENT) GENERATED", re.IGNORECASE)
_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "decimal"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "uuid", "inet4", "inet6"})
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_SPARK_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
# Types that the server would change are not here; of the others, `limits` has the values that it does not keep.
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
# The spelling that the server gives back; it reads others too.
_FORMS = {
    "uuid": ("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "is not written as 8-4-4-4-12 small hexadecimal digits"),
    "inet4": (r"(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})", "is not an address without leading zeros"),
}
# All characters were tried in all character sets of MariaDB 11.4: these come back as others, without an error.
_CHANGED = {"tis620": r"[^\x{0000}-\x{FFFF}]", "cp932": r"\x{6661}"}
_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})


@dataclass(frozen=True)
class MySQLColumn(Column):
    """One column of a table in MySQL.

    Attributes:
        kind: name of its type.
        staged: its declaration in a staging table.
        precision: digits of a number.
        scale: digits after the decimal point.
        fraction: digits of fractional seconds, or None if it has none.
        counted: whether the database numbers the rows in it (AUTO_INCREMENT).
        renewed: whether it gets the time of each update that does not set it (ON UPDATE).
        charset: character set of a text; empty if it is none.
        collation: decides which texts are equal.
        characters: most characters of a char or varchar, as those of other texts are limited by their bytes.
        octets: most bytes of a text in its character set.
        widest: most bytes of one character.
        padded: whether it is a key that must tell all texts apart, but ignores blanks at the end.
    """

    kind: str
    staged: str
    precision: int
    scale: int
    fraction: int | None
    counted: bool
    renewed: bool
    charset: str
    collation: str
    characters: int
    octets: int
    widest: int
    padded: bool = False


class Relation(NamedTuple):
    """A table that was found.

    Attributes:
        schema: schema of the table.
        name: name without the schema.
        columns: columns in their order.
        unique: names of the columns of each unique index; None for a part of a column, or an expression.
        triggers: whether a trigger sees the rows of an upsert before they are written; a user without the right TRIGGER
            sees none.
    """

    schema: str
    name: str
    columns: Sequence[MySQLColumn]
    unique: Mapping[str, set[str | None]]
    triggers: bool

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
            f"ALTER TABLE {target.quoted(quoted)} ENGINE = InnoDB"
        )
    unique: dict[str, set[str | None]] = {}
    for index, column, part in connection.execute(_UNIQUE, where).fetchall():
        unique.setdefault(index, set()).add(column if part is None else None)
    columns = [_column(_Found(*row)) for row in connection.execute(_COLUMNS, where).fetchall()]
    exact = () if target.same_keys else target.key
    columns = [
        replace(column, padded=_pads(connection, column)) if column.name in exact and column.charset else column
        for column in columns
    ]
    changed = target.mode == "upsert" and bool(triggers(connection, where[0], [target.table], "BEFORE"))
    return Relation(*where, columns, unique, changed)


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
        raise no_unique_index(target, address, quoted)
    # If the database numbers the rows itself, no two rows are equal.
    numbered = {column.name for column in relation.columns if column.counted} - set(names)
    others = [name for name, columns in relation.unique.items() if columns != key and not columns & numbered]
    if others:
        raise Refused(
            f"{address}: table {target} has other unique indexes than the one on its key: {', '.join(sorted(others))}. "
            "MySQL would replace a row that is equal there, whatever its key: make them not unique, or use append"
        )
    if not target.same_keys:
        for column in (column for column in relation.columns if column.name in key):
            _check_equality(column, target)


def limits(data_type: DataType, column: MySQLColumn) -> Limits:
    """Return what values of a Spark type must be, so that a column that `misfit` accepts keeps them as they are."""
    found = Limits(column.name, column.type, nullable=column.nullable)
    name = data_type.typeName()
    if name == "void":
        return found
    if name in {"timestamp", "timestamp_ntz"}:
        return found._replace(digits=column.fraction or 0)
    if name in {"float", "double"}:
        return found._replace(finite=True, least=0 if "unsigned" in column.type else None)
    if name == "string":
        return _limits_of_text(found, column)
    if column.kind in _WHOLE:
        least, most = _ends_of_type(data_type)
        first, last = _ends(column)
        return found._replace(least=first if least < first else None, most=last if most > last else None)
    return found


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


class _Found(NamedTuple):
    """A row of `_COLUMNS`."""

    name: str
    declared: str
    kind: str
    nullable: str
    default: str | None
    extra: str
    charset: str | None
    collation: str | None
    characters: int | None
    octets: int | None
    widest: int | None
    precision: int | None
    scale: int | None
    fraction: int | None


def _column(row: _Found) -> MySQLColumn:
    counted = "auto_increment" in row.extra.lower()
    charset = row.charset if row.charset and row.kind != "json" else ""
    text = f" CHARACTER SET {charset} COLLATE {row.collation}" if charset else ""
    nullable = row.nullable == "YES"
    return MySQLColumn(
        name=row.name,
        type=row.declared,
        required=not nullable and row.default is None and not counted,
        generated=_GENERATED.search(row.extra) is not None,
        nullable=nullable,
        kind=row.kind,
        staged=f"{row.declared}{text} {'NULL' if nullable else 'NOT NULL'}",
        precision=row.precision or 0,
        scale=row.scale or 0,
        fraction=row.fraction if row.kind in {"timestamp", "datetime"} else None,
        counted=counted,
        renewed="on update" in row.extra.lower(),
        charset=charset,
        collation=row.collation or "",
        characters=row.characters or 0,
        octets=row.octets or 0,
        widest=row.widest or 1,
    )


def _pads(connection: Connection, column: MySQLColumn) -> bool:
    """Whether the column's collation ignores blanks at the end. Names do not tell: MariaDB's utf8mb4_0900_bin does."""
    [(equal,)] = connection.execute(_PADS.format(charset=column.charset, collation=column.collation)).fetchall()
    return bool(equal)


def _check_equality(column: MySQLColumn, target: Target) -> None:
    """Check that a column of the key tells all texts apart that fit into it, by their characters."""
    if column.charset and not column.collation.endswith("_bin"):
        why = f"has collation {column.collation}, for which different texts are equal"
        raise merged_keys(target, column, why, f"give it collation {column.charset}_bin")
    if column.kind == "inet6":
        raise merged_keys(target, column, "takes several spellings of an address for the same", "make it a varchar")


def _limits_of_text(found: Limits, column: MySQLColumn) -> Limits:
    form, remedy = _FORMS.get(column.kind, ("", ""))
    if column.charset in _CHANGED:
        found = found._replace(
            bars=_CHANGED[column.charset], remedy=f"has a character that {column.charset} would change"
        )
    if column.kind in {"char", "varchar"}:
        return found._replace(characters=column.characters, blanks=column.kind != "char" and not column.padded)
    found = found._replace(blanks=not column.padded)
    if column.charset in _UTF8:
        return found._replace(bytes=column.octets)
    if column.charset:
        return found._replace(characters=column.octets // column.widest)
    return found._replace(form=form, remedy=remedy)


def _ends(column: MySQLColumn) -> tuple[int | Decimal, int | Decimal]:
    """Return the least and the greatest number of a column."""
    unsigned = "unsigned" in column.type
    if column.kind == "decimal":
        most = all_nines(column.precision, column.scale)
        return 0 if unsigned else most.copy_negate(), most
    bits = _BITS[column.kind]
    return (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _ends_of_type(data_type: Any) -> tuple[int | Decimal, int | Decimal]:
    """Return the least and the greatest number of a Spark type."""
    name = data_type.typeName()
    if name == "decimal":
        most = all_nines(data_type.precision, data_type.scale)
        return most.copy_negate(), most
    bits = _SPARK_BITS.get(name)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if bits else (0, 1)
