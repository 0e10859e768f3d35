"""Ledgers in SQL tables: of SQLite, PostgreSQL and MySQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from golden.medium import Medium
from golden.values import readable, written
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.postgresql import PostgreSQLServer

_TABLES = {
    "kafka_offsets": ("topic", "group_id", "partition", "offset", "timestamp", "topic_id"),
    "offsetkeeper_groups": ("group_id", "version", "control"),
    "offsetkeeper_history": ("group_id", "version", "entry"),
}
_COLUMNS = """
    SELECT quote_ident(attname) || ' ' || format_type(atttypid, atttypmod)
        || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
        || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
    FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
    WHERE attrelid = ?::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_KEYS = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = ?::regclass AND contype = 'p'"
_OPTIONS = "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = ?::regclass"


class TablesMedium(Medium):
    """Three tables."""

    quote = '"'

    def sql(self, statement: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """Run a statement, with `?` for each parameter, commit, and return the rows."""
        raise NotImplementedError

    def definition(self, table: str) -> str:
        """Return the statement that makes a table."""
        raise NotImplementedError

    def dump(self) -> Any:
        """Read every row."""
        return {table: {"made": self.definition(table), "rows": self._rows(table)} for table in _TABLES}

    def restore(self, content: Any) -> None:
        """Make the tables and insert every row."""
        for table, found in content.items():
            self.sql(found["made"])
            names = _TABLES[table]
            places = ", ".join(f"({', '.join('?' for _ in names)})" for _ in found["rows"])
            values = [_value(row[name]) for row in found["rows"] for name in names]
            self.sql(f"INSERT INTO {table} ({self._names(names)}) VALUES {places}", *values)  # noqa: S608

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Read the table that people know."""
        names = self._names(("topic", "partition", "offset"))
        rows = self.sql(f"SELECT {names} FROM kafka_offsets WHERE group_id = ?", group)  # noqa: S608
        return {(topic, partition): offset for topic, partition, offset in rows}

    def _rows(self, table: str) -> list[dict[str, Any]]:
        columns = _TABLES[table]
        key = self._names([name for name in columns if name in {"topic", "group_id", "partition", "version"}])
        rows = self.sql(f"SELECT {self._names(columns)} FROM {table} ORDER BY {key}")  # noqa: S608
        return [dict(zip(columns, map(_plain, row), strict=True)) for row in rows]

    def _names(self, columns: Sequence[str]) -> str:
        return ", ".join(f"{self.quote}{name}{self.quote}" for name in columns)


class SQLiteMedium(TablesMedium):
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offsets.db"
        self.url = f"sqlite:///{self._file}"

    def sql(self, statement: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """Run by the sqlite3 of Python."""
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()

    def definition(self, table: str) -> str:
        """As SQLite keeps it."""
        return str(self.sql("SELECT sql FROM sqlite_master WHERE name = ?", table)[0][0])


class PostgreSQLMedium(TablesMedium):
    """A database."""

    def __init__(self, server: PostgreSQLServer) -> None:
        self.url = server.url(server.create_database())

    def sql(self, statement: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """Run by psycopg."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET timezone = 'UTC'")
            cursor = connection.execute(statement.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def definition(self, table: str) -> str:
        """Put together from the catalog."""
        columns, keys = (self.sql(statement, table) for statement in (_COLUMNS, _KEYS))
        [[options]] = self.sql(_OPTIONS, table)
        parts = ", ".join(part for (part,) in [*columns, *keys])
        return f"CREATE TABLE {table} ({parts})" + (f" WITH ({options})" if options else "")


class MySQLMedium(TablesMedium):
    """A database of MariaDB."""

    quote = "`"

    def __init__(self, server: MariaDBServer) -> None:
        self.url = server.url(server.create_database())

    def sql(self, statement: str, *parameters: Any) -> Sequence[Sequence[Any]]:
        """Run by PyMySQL."""
        parts = urlsplit(self.url)
        with (
            pymysql.connect(
                host=parts.hostname,
                port=parts.port or 0,
                user="root",
                database=parts.path[1:],
                autocommit=True,
                init_command="SET time_zone = '+00:00'",
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement.replace("?", "%s"), parameters)
            return list(cursor.fetchall())

    def definition(self, table: str) -> str:
        """As MySQL tells it."""
        return str(self.sql(f"SHOW CREATE TABLE {table}")[0][1])


def _value(kept: Any) -> Any:
    return written(kept).decode() if isinstance(kept, dict) else kept


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else readable(str(value))
