"""The store in one SQLite file: `sqlite:///relative.db`, `sqlite:////absolute.db`. It needs no server."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from offsetkeeper.clients.pool import Pool
from offsetkeeper.clients.sqlite import (
    BUSY,
    DURABLE,
    PASSING,
    Connection,
    beside,
    check_files,
    code_of,
    database_identity,
    has_outdated,
    no_end_inside,
    read_url,
    triggers,
)
from offsetkeeper.clients.url import UrlSettings
from offsetkeeper.core.codec import control_mark, dump_control, dump_entry
from offsetkeeper.core.model import Change
from offsetkeeper.core.outside import LARGEST_STORED
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable
from offsetkeeper.stores.tables import VERSION, Tables, TableStore, table_names

_FIRST = "INSERT INTO {groups} (control, version, group_id) VALUES (?, 1, ?) ON CONFLICT DO NOTHING"
_NEXT = """
    UPDATE {groups} SET control = ?, version = version + 1
    WHERE group_id = ? AND version = ? AND instr(control, ?) > 0"""
_MOVE = """
    UPDATE {offsets} SET "offset" = ?, topic_id = ?, timestamp = CURRENT_TIMESTAMP
    WHERE group_id = ? AND topic = ? AND partition = ? AND "offset" = ?"""
_ADD = """
    INSERT INTO {offsets} ("offset", topic_id, group_id, topic, partition) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING"""
_RECORD = "INSERT OR REPLACE INTO {history} (group_id, version, entry) VALUES (?, ?, ?)"
_PRUNE = "DELETE FROM {history} WHERE group_id = ? AND version <= ?"
_TABLES = (
    """CREATE TABLE IF NOT EXISTS {offsets} (
        topic TEXT NOT NULL, group_id TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
        timestamp TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, topic_id TEXT, PRIMARY KEY (group_id, topic, partition))""",
    """CREATE TABLE IF NOT EXISTS {groups} (
        group_id TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, control TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS {history} (
        group_id TEXT NOT NULL, version INTEGER NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (group_id, version))""",
)
_VIEWS = "SELECT name FROM sqlite_schema WHERE type = 'view' AND name COLLATE NOCASE IN (?, ?, ?)"
_NO_LIMIT = 2**31 - 1
_READ_ONLY = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
"""Error codes if the file, or the files that SQLite creates beside it, may not be written."""


class SQLiteStore(TableStore):
    """Ledgers in a SQLite file, which other programs may read by plain SQL; see `stores.tables`.

    Args:
        url: `sqlite:///path`, with `?table=`, `?history=` (entries kept for each group, 1000) and
            `?timeout=` (seconds to wait for a lock, 30).

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read, self.path = read_url(url)
        super().__init__(read)
        self._connections: Connections = Connections(self.path, self.address, self._settings, self._tables)
        self._seen = False  # the file, by `groups`

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        with self._connections.lend() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._write(connection, change)
            self._connections.commit(connection)

    def groups(self) -> Sequence[str]:
        """See `Store.groups`. A file that was there before and is gone is an error: its groups are not gone."""
        here = self._connections.file() is not None
        if self._seen and not here:
            raise StoreUnavailable(f"{self.address}: the file {self.path} is gone: it was there before. Put it back")
        self._seen = here
        return super().groups()

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        with self._connections.lend() as connection:
            return database_identity(connection)

    @contextmanager
    def transaction(self, change: Change) -> Iterator[sqlite3.Connection]:
        """See `TransactionalStore.transaction`. The file is locked for other writers until the block ends.

        Raises:
            NotAllowed: the block tried to end the transaction; all is rolled back.
        """
        with closing(self._connections.open()) as connection:  # not reused: the block may have changed its settings
            with self._connections.failures():
                connection.execute("BEGIN IMMEDIATE")
                version = connection.execute(self._tables.sql(VERSION), (change.after.group,))
                self._check_version(change, version.fetchall())
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _NO_LIMIT)
            with no_end_inside(connection, change):
                yield connection
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_STORED)
            with self._connections.failures():
                self._write(connection, change)
                self._connections.commit(connection)

    def _read(self, _: int, statement: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Return the rows; empty if the file does not exist: opening it would create it."""
        if self._connections.file() is None:
            return []
        sql = self._tables.sql(statement)
        try:
            with self._connections.lend() as connection:
                return self._connections.rows(connection, sql, parameters)
        except Refused as error:
            if not isinstance(error.__cause__, sqlite3.Error) or code_of(error.__cause__) not in _READ_ONLY:
                raise
        return self._connections.read_unopened(sql, parameters)

    def _write(self, connection: sqlite3.Connection, change: Change) -> None:
        group, version, sql = change.after.group, change.before.version, self._tables.sql
        connection.row_factory = None
        control = dump_control(change.after)
        step = (
            (_NEXT, (control, group, version, control_mark(change.before))) if version else (_FIRST, (control, group))
        )
        if connection.execute(sql(step[0]), step[1]).rowcount != 1:
            raise self._refused(change, f"its version is no longer {version}, which was read")
        added = [(*m.after[:2], group, *tp) for tp, m in change.moves.items() if m.before is None]
        moved = [(*m.after[:2], group, *tp, m.before.offset) for tp, m in change.moves.items() if m.before is not None]
        for statement, rows in ((_MOVE, moved), (_ADD, added)):
            if rows and connection.executemany(sql(statement), rows).rowcount != len(rows):
                raise self._refused(change, "another program changed its positions")
        if connection.execute(sql(_RECORD), (group, version + 1, dump_entry(change.entry))).rowcount != 1:
            raise self._refused(change, "its history was not written")
        connection.execute(sql(_PRUNE), (group, version + 1 - self._settings.history))

    def _obstacles(self) -> Sequence[str]:
        with self._connections.lend() as connection:
            return triggers(connection, table_names(self._settings))


_LOCK = threading.Lock()
_POOLS = weakref.WeakSet["Connections"]()


def _sweep(path: Path) -> None:
    """Close the connections of all stores of this process to a file that was replaced, but for those in use."""
    with _LOCK:
        pools = [pool for pool in _POOLS if pool.is_of(path)]
    for pool in pools:
        pool.sweep()


class Connections(Pool[Connection]):
    """Connections of one store.

    Args:
        path: path of the file.
        address: address of the store, for messages.
        settings: settings of the store.
        tables: the tables; missing ones are created.
    """

    def __init__(self, path: Path, address: str, settings: UrlSettings, tables: Tables) -> None:
        super().__init__(self.open, Connection.close, usable=Connection.is_current)
        self._path = path
        self._address = address
        self._settings = settings
        self._tables = tables
        with _LOCK:
            _POOLS.add(self)

    def is_of(self, path: Path) -> bool:
        """Return whether the connections are to the file at a path."""
        return self._path == path

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a connection to the current file at the path. After any error it is closed, which rolls back."""
        with super().lend() as connection, self.failures():
            yield connection

    def file(self) -> tuple[int, int] | None:
        """Return device and inode of the file, or None if the file does not exist.

        Raises:
            Refused: its folder does not exist or may not be read.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if self._path.parent.is_dir():
                return None
            raise Refused(f"{self._address}: the folder {self._path.parent} does not exist; create it first") from None
        except PermissionError as error:
            raise Refused(
                f"{self._address}: {error.strerror}: {self._path}; check the permissions of its folders"
            ) from error
        except OSError as error:  # the name is too long
            raise Refused(f"{self._address}: {self._path} cannot be a file: {error.strerror}") from error
        return found.st_dev, found.st_ino

    def open(self) -> Connection:
        """Return a new connection; the caller must close it.

        Raises:
            Refused: the path is not a file, or may not be written.
            CorruptStore: the file is not a database.
            StoreUnavailable: the file is locked, or was replaced while another store of this process has it open.
        """
        self.file()  # tells more of a path that is none
        check_files(self._path, self._address)
        _sweep(self._path)
        if has_outdated(self._path):
            raise StoreUnavailable(
                f"{self._address}: the file was replaced while a store of this process has it open: close it, or end "
                "the process"
            )
        with self.failures():
            connection = sqlite3.connect(
                self._path,
                timeout=self._settings.timeout,
                isolation_level=None,
                check_same_thread=False,
                factory=Connection,
            )
            try:
                self._prepare(connection)
                connection.remember(self._path)
            except BaseException:
                connection.close()
                raise
        return connection

    def rows(
        self, connection: sqlite3.Connection, sql: str, parameters: tuple[str | int, ...]
    ) -> list[tuple[Any, ...]]:
        """Return rows. A row of another program that is not UTF-8 must not hide the rows of other groups.

        Raises:
            CorruptStore: a table is a view, whose rows may have no end, or a value is larger than any of a ledger.
        """
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_STORED)
        for (view,) in connection.execute(_VIEWS, table_names(self._settings)):
            raise CorruptStore(f"{self._address}: {view} is a view, not a table; nothing was read. Drop it")
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.DataError as error:
            if code_of(error) != sqlite3.SQLITE_TOOBIG:
                raise
            raise CorruptStore(
                f"{self._address}: a value has more than {LARGEST_STORED} bytes, and none of a ledger has; nothing was "
                "read. Delete its row"
            ) from None

    def read_unopened(self, sql: str, parameters: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of a file that no process has open, for a user who may only read it.

        The first process that opens a file in WAL mode creates `-wal` and `-shm` beside it, even to read. Such a user
        may not create them.

        Raises:
            StoreUnavailable: a writer opened the file meanwhile.
            Refused: the file may not be read.
        """
        before = self._unopened()
        with self.failures():
            unchanging = sqlite3.connect(f"{self._path.as_uri()}?immutable=1", uri=True)
            with closing(unchanging) as connection:
                rows = self.rows(connection, sql, parameters)
        if not before or before != self._unopened():
            raise StoreUnavailable(f"{self._address}: a writer opened the file while it was read")
        return rows

    def _unopened(self) -> tuple[int, ...]:
        """Return values that change with the content of the file; empty if a process has the file open."""
        found = self._path.stat()
        opened = any(beside(self._path, kind).exists() for kind in ("wal", "journal"))
        return () if opened else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(DURABLE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_STORED)  # a ledger that is written can be read again
        with suppress(sqlite3.OperationalError):  # read-only or in use: it is as safe without WAL
            connection.execute("PRAGMA journal_mode = WAL")
        for statement in _TABLES:
            connection.execute(self._tables.sql(statement))
        if not self._has_topic_id(connection):
            connection.execute("BEGIN IMMEDIATE")  # another process may add it at the same time
            if not self._has_topic_id(connection):
                connection.execute(self._tables.sql("ALTER TABLE {offsets} ADD COLUMN topic_id TEXT"))
            connection.execute("COMMIT")

    def _has_topic_id(self, connection: sqlite3.Connection) -> bool:
        columns = connection.execute("SELECT name FROM pragma_table_info(?)", (self._settings.table,))
        return "topic_id" in {name for (name,) in columns}

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Translate errors of SQLite in the block."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> OffsetkeeperError:
        code = code_of(error)
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return CorruptStore(
                f"{self._address}: {error}; nothing was changed. Give another file, or restore this one"
            )
        if code in BUSY:
            return StoreUnavailable(
                f"{self._address}: another writer, of this process or another, held the lock for "
                f"{self._settings.timeout:g} s"
            )
        if code in PASSING:
            return StoreUnavailable(f"{self._address}: {error}; nothing was written")
        return Refused(f"{self._address}: SQLite refused: {error}; check the file's permissions and its tables")

    def commit(self, connection: Connection) -> None:
        """Commit.

        Raises:
            StoreUnavailable: the file was replaced since the connection was lent; nothing was written.
            OutcomeUnknown: SQLite failed half-way because of a disk error, or the file was replaced meanwhile.
        """
        if not connection.is_current():
            raise StoreUnavailable(f"{self._address}: the file was replaced; nothing was written")
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                raise
            raise OutcomeUnknown(
                f"{self._address}: the commit failed half-way ({error}); load the ledger again"
            ) from error
        if not connection.is_current():
            raise OutcomeUnknown(f"{self._address}: the file was replaced during the commit; load the ledger again")
