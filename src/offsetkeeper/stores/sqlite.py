"""The store in one SQLite file: `sqlite:///relative.db`, `sqlite:////absolute.db`. Nothing to install or start."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from offsetkeeper.core.codec import control_mark, dump_control, dump_entry
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.store import Ability, version_conflict, without_credentials
from offsetkeeper.errors import SettingsError, VersionConflict
from offsetkeeper.stores.settings import read_settings, refuse_unknown
from offsetkeeper.stores.sqlite_connections import Connections, no_end_inside
from offsetkeeper.stores.tables import GROUPS, HISTORY, LOAD, name_tables

_OWN = ("table", "history", "timeout")
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


class SQLiteStore:
    """Ledgers in a SQLite file, which other programs may read by plain SQL; see `stores.tables`.

    Args:
        url: `sqlite:///path`, with `?table=`, `?history=` (entries kept for each group, 1000) and
            `?timeout=` (seconds to wait for a lock, 30).

    Raises:
        SettingsError: the URL is wrong.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: str) -> None:
        self.address = without_credentials(url)
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.netloc or parts.fragment or not path:
            raise SettingsError(f"{self.address} names no file: write sqlite:///relative.db or sqlite:////absolute.db")
        self._settings, given = read_settings(parts.query, _OWN)
        refuse_unknown(given, _OWN)
        self.path = Path(path).absolute()
        self._tables = name_tables(self._settings, self.address)
        self._connections = Connections(self.path, self.address, self._settings, self._tables)

    def __repr__(self) -> str:
        return f"SQLiteStore({self.address!r})"

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        return self._tables.snapshot(group, self._read(LOAD, group, group))

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        with self._connections.lend() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._write(connection, change)
            self._connections.commit(connection)

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        return self._tables.entries(group, self._read(HISTORY, group, group, limit))

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return sorted(group for (group,) in self._read(GROUPS) if isinstance(group, str))

    def close(self) -> None:
        """See `Store.close`."""
        self._connections.close()

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        with self._connections.lend() as connection:
            return database_identity(connection)

    @contextmanager
    def transaction(self, change: Change) -> Iterator[sqlite3.Connection]:
        """See `TransactionalStore.transaction`. The file is locked for other writers until the block ends.

        Raises:
            NotAllowed: the block tried to end the transaction by itself; all is rolled back.
        """
        with closing(self._connections.open()) as connection:  # not kept: the block may have changed its settings
            with self._connections.failures():
                connection.execute("BEGIN IMMEDIATE")
                self._check_version(connection, change)
            with no_end_inside(connection, change):
                yield connection
            with self._connections.failures():
                self._write(connection, change)
                self._connections.commit(connection)

    def _read(self, statement: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        """Return the rows; none where there is no file, as to look into it would make one."""
        if self._connections.file() is None:
            return []
        with self._connections.lend() as connection:
            return connection.execute(self._tables.sql(statement), parameters).fetchall()

    def _check_version(self, connection: sqlite3.Connection, change: Change) -> None:
        rows = connection.execute(
            self._tables.sql("SELECT version FROM {groups} WHERE group_id = ?"), (change.after.group,)
        ).fetchall()
        found = rows[0][0] if rows else 0
        if found != change.before.version:
            raise version_conflict(self.address, change, found)

    def _write(self, connection: sqlite3.Connection, change: Change) -> None:
        group, version, sql = change.after.group, change.before.version, self._tables.sql
        connection.row_factory = None
        control = dump_control(change.after)
        step = (
            (_NEXT, (control, group, version, control_mark(change.before))) if version else (_FIRST, (control, group))
        )
        if connection.execute(sql(step[0]), step[1]).rowcount != 1:
            raise self._conflict(change, f"it is not the version {version} any more that was read")
        added = [(*m.after, group, *tp) for tp, m in change.moves.items() if m.before is None]
        moved = [(*m.after, group, *tp, m.before.offset) for tp, m in change.moves.items() if m.before is not None]
        for statement, rows in ((_MOVE, moved), (_ADD, added)):
            if rows and connection.executemany(sql(statement), rows).rowcount != len(rows):
                raise self._conflict(change, "another program changed its positions")
        connection.execute(sql(_RECORD), (group, version + 1, dump_entry(change.entry)))
        connection.execute(sql(_PRUNE), (group, version + 1 - self._settings.history))

    def _conflict(self, change: Change, what: str) -> VersionConflict:
        return VersionConflict(f"{self.address}: group {change.after.group!r} was not changed: {what}")


def database_identity(connection: sqlite3.Connection) -> str:
    """Return what tells the main database file of a connection from every other, however its path is spelled."""
    [path] = [file for _, name, file in connection.execute("PRAGMA database_list") if name == "main"]
    if not path:
        return f"sqlite:memory:{id(connection)}"
    stat = Path(path).stat()
    return f"sqlite:{stat.st_dev}:{stat.st_ino}"
