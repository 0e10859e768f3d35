"""Rows into a table of SQLite: small data, through the driver.

The rows come to the driver one Spark partition after the other, and wait in a temporary database until all are there:
the target is locked only while they are inserted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, SettingsError, SinkError, SinkMismatch
from offsetkeeper.sinks.sqlite_staging import Staging, fetch, staged_column
from offsetkeeper.sinks.sqlite_types import CONVERTERS, SQLiteColumn, affinity, misfit, shipped
from offsetkeeper.sinks.target import (
    ORDER,
    Target,
    match_columns,
    no_table,
    no_unique_index,
    ordered,
    same_key,
    two_databases,
)
from offsetkeeper.stores.sqlite import SQLiteStore, database_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

_Converter = tuple[int, str, Callable[[Any], Any]]
_TIMEOUT_S = 30.0
_TABLE = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name = ?"
_COLUMNS = """
    SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT (pk AND upper(type) = 'INTEGER'), hidden IN (2, 3)
    FROM pragma_table_xinfo(?) WHERE hidden <> 1"""
_PRIMARY_KEY = "SELECT name FROM pragma_table_info(?) WHERE pk"
_UNIQUE = """SELECT l.name, i.name FROM pragma_index_list(?) l, pragma_index_info(l.name) i
    WHERE l."unique" AND NOT l.partial"""


class SQLiteTable:
    """The sink behind `Table("sqlite:///...", ...)`; see there."""

    def __init__(self, url: str, target: Target) -> None:
        store = SQLiteStore(url)  # which opens nothing, and reads the URL as the store does
        self._path, self._address = store.path, store.address
        self._target = target
        if target.schema not in {"", "main"}:
            raise SettingsError(f"{target}: a SQLite file has no schema {target.schema!r}; give the table's name alone")

    def check(self, store: Store, guarantee: Guarantee) -> None:
        """See `Sink.check`."""
        if guarantee is Guarantee.EXACTLY_ONCE and not self.shares_transaction(store):
            raise two_databases(self._address, store)
        key = set(self._target.key)
        with closing(_open(self._path, self._address)) as connection:
            self._columns(connection)
            if key and key not in _unique_keys(connection, self._target.table):
                raise no_unique_index(self._target, self._address)

    def shares_transaction(self, store: Store) -> bool:
        """Whether the store is in the same file, however the paths are written."""
        if not isinstance(store, TransactionalStore) or not store.address.startswith("sqlite:"):
            return False
        with closing(_open(self._path, self._address)) as connection:
            return database_identity(connection) == store.identity()

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:  # noqa: ARG002 - the protocol's signature
        """See `Sink.stage`."""
        fields = frame.schema.fields
        with closing(_open(self._path, self._address)) as connection:
            columns = match_columns(fields, self._columns(connection), self._target, misfit)
        staged = self._staged(frame, fields)
        names = [field.name for field in fields]
        key = [] if (in_order := ordered(fields, self._target)) else [names.index(name) for name in self._target.key]
        if key and staged.same_key(key):
            raise same_key(self._target)
        places = [place for place, found in enumerate(columns) if found is not None]
        order = [names.index(name) for name in ORDER] if in_order else []
        statement = _statement(self._target, [names[place] for place in places])
        return lambda connection: self._finish(connection, statement, staged.rows(places, order))

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `Sink.write`."""
        finish = self.stage(frame, batch)
        with closing(_open(self._path, self._address)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise SinkError(f"{self._address}: {error}; nothing was written") from error
            finish(connection)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise OutcomeUnknown(f"{self._address}: the commit failed half-way ({error})") from error

    def _staged(self, frame: DataFrame, fields: Sequence[StructField]) -> Staging:
        kinds = [(place, field.name, field.dataType.typeName()) for place, field in enumerate(fields)]
        convert = [(place, name, CONVERTERS[kind]) for place, name, kind in kinds if kind in CONVERTERS]
        rows = fetch(frame.select(*(shipped(field).alias(staged_column(place)) for place, field in enumerate(fields))))
        try:
            return Staging((_converted(row, convert) for row in rows) if convert else rows, len(fields))
        except sqlite3.Error as error:
            raise SinkError(f"rows for {self._target} could not be staged: {error}; nothing was written") from error

    def _finish(self, connection: sqlite3.Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise SinkError(f"{self._address}, table {self._target}: {error}; nothing was written") from error

    def _columns(self, connection: sqlite3.Connection) -> list[SQLiteColumn]:
        table = self._target.table
        if connection.execute(_TABLE, [table]).fetchone() is None:
            raise no_table(self._target, self._address)
        found = connection.execute(_COLUMNS, [table]).fetchall()
        return [SQLiteColumn(name, kind, bool(r), bool(g), affinity(kind)) for name, kind, r, g in found]


def _open(path: Path, address: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_TIMEOUT_S, isolation_level=None)
    except sqlite3.Error as error:
        raise SettingsError(f"{address}: {error}; create the database and its table first") from error


def _unique_keys(connection: sqlite3.Connection, table: str) -> list[set[str]]:
    indexes: dict[str, set[str]] = {}
    for index, column in connection.execute(_UNIQUE, [table]):
        indexes.setdefault(index, set()).add(column)
    return [{column for (column,) in connection.execute(_PRIMARY_KEY, [table])}, *indexes.values()]


def _statement(target: Target, names: Sequence[str]) -> str:
    listed, key = ", ".join(map(_quoted, names)), ", ".join(map(_quoted, target.key))
    changes = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names if name not in target.key)
    insert = f"INSERT INTO {_quoted(target.table)} ({listed}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - quoted
    if target.mode == "append":
        return insert
    return f"{insert} ON CONFLICT ({key}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _converted(row: Sequence[Any], convert: Sequence[_Converter]) -> Sequence[Any]:
    values = list(row)
    for place, name, function in convert:
        if values[place] is not None:
            try:
                values[place] = function(values[place])
            except (ValueError, OverflowError) as error:
                raise SinkMismatch(f"column {name}: {error}; nothing was written") from error
    return values
