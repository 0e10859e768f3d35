"""Rows into a table of SQLite: small data, through the driver.

The rows come to the driver one Spark partition after the other, and wait in a temporary file until all are there: the
database is locked only while they are inserted.
"""

from __future__ import annotations

import pickle
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, SettingsError, SinkError, SinkMismatch
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

_TIMEOUT_S = 30.0
_CHUNK = 1000
_IN_MEMORY = 16 * 2**20
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
        in_order = ordered(fields, self._target)
        names = [column.name for column in columns if column is not None]
        kept = [(field, column) for field, column in zip(fields, columns, strict=True) if column is not None]
        rows = (frame.orderBy(*ORDER) if in_order else frame).select(*(shipped(field) for field, _ in kept))
        convert = [CONVERTERS.get(field.dataType.typeName(), _same) for field, _ in kept]
        converted = (_converted(row, names, convert) for row in rows.toLocalIterator(prefetchPartitions=True))
        waiting = _Waiting(converted if in_order else self._distinct(converted, names))
        return lambda connection: self._finish(connection, _statement(self._target, names), waiting)

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

    def _finish(self, connection: sqlite3.Connection, statement: str, waiting: _Waiting) -> None:
        try:
            for rows in waiting.chunks():
                connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise SinkError(f"{self._address}, table {self._target}: {error}; nothing was written") from error

    def _columns(self, connection: sqlite3.Connection) -> list[SQLiteColumn]:
        table = self._target.table
        if connection.execute(_TABLE, [table]).fetchone() is None:
            raise no_table(self._target, self._address)
        found = connection.execute(_COLUMNS, [table]).fetchall()
        return [SQLiteColumn(name, kind, bool(r), bool(g), affinity(kind)) for name, kind, r, g in found]

    def _distinct(self, rows: Iterable[tuple[Any, ...]], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Return the rows as they are, and refuse two with one key."""
        places = [names.index(name) for name in self._target.key]
        seen = set()
        for row in rows:
            key = tuple(row[place] for place in places)
            if places and None not in key and key in seen:
                raise same_key(self._target)
            seen.add(key)
            yield row


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


def _converted(row: Iterable[Any], names: Sequence[str], convert: Sequence[Callable[[Any], Any]]) -> tuple[Any, ...]:
    return tuple(_value(*parts) for parts in zip(names, convert, row, strict=True))


def _value(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return None if value is None else convert(value)
    except (ValueError, OverflowError) as error:
        raise SinkMismatch(f"column {name}: {error}; nothing was written") from error


def _same(value: Any) -> Any:
    return value


class _Waiting:
    """Rows in a temporary file, which is gone with the last mention of it."""

    def __init__(self, rows: Iterator[tuple[Any, ...]]) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by the next line
        weakref.finalize(self, self._file.close)
        while chunk := list(islice(rows, _CHUNK)):
            pickle.dump(chunk, self._file)
        self._end = self._file.tell()

    def chunks(self) -> Iterator[list[tuple[Any, ...]]]:
        """Return the rows, some at a time."""
        self._file.seek(0)
        while self._file.tell() < self._end:
            yield pickle.load(self._file)  # noqa: S301 - written above
