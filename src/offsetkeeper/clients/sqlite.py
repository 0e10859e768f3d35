"""Connections to a SQLite file that can be lent within a transaction, and facts about the file."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from offsetkeeper.clients import url as urls
from offsetkeeper.clients.mounts import is_alone
from offsetkeeper.clients.url import ClientUrl
from offsetkeeper.core.model import Change
from offsetkeeper.errors import NotAllowed, Refused

# EXTRA also waits for the folder: without WAL a commit deletes a file, and a loss of power could bring it back.
DURABLE = "PRAGMA synchronous = EXTRA"
"""Makes a connection wait for the disk at each commit; what a build of SQLite does by itself may differ."""
BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Error codes if another writer holds the lock."""
PASSING = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL})
"""Error codes that may pass: disk, memory."""
_MERGE = "merge them by sqlite3 {} 'pragma wal_checkpoint(truncate)'"
_BESIDE = ("journal", "wal", "shm")
_Identity = tuple[int, int] | None  # device and inode; None if there is no such file
_TRIGGERS = "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?"
_ENDED = (
    "the transaction was ended in the block, or by SQLite itself, as `on conflict rollback` does; all was rolled back. "
    "Write on the connection, and leave commit, rollback and close to offsetkeeper"
)


def read_url(url: str) -> tuple[ClientUrl, Path]:
    """Return the parsed URL, and the absolute path of the file. Nothing is opened.

    Raises:
        SettingsError: the URL cannot be parsed, has an unknown setting, or names no file.
    """
    read = urls.read_url(url, ("table", "history", "timeout"))
    path = unquote(read.parts.path)[1:]
    if read.parts.netloc or read.parts.fragment or not path:
        raise read.error("has no file: write sqlite:///relative.db or sqlite:////absolute.db")
    return read, Path(path).absolute()


def beside(path: Path, kind: str) -> Path:
    """Return the path of a file that SQLite makes for another one: it follows a link, and looks beside the file."""
    return Path(f"{os.path.realpath(path)}-{kind}")


def check_files(path: Path, address: str) -> None:
    """Check what SQLite is to open: for a FIFO it waits for ever, and of another way to the file it knows nothing.

    What was committed is in `-wal` until it is merged, and who has a lock is in `-shm`. Both lie in the folder
    of the name. Through a second name, or where the file alone was mounted, another program sees neither.

    Args:
        path: path of the file.
        address: where it is, for errors.

    Raises:
        Refused: the path, or that of a file beside it, is not a file; or the file has a second name, or is a mount.
    """
    if _is_odd(path.stat):
        raise Refused(f"{address}: {path} is not a file; give the path of a file")
    for each in (beside(path, kind) for kind in _BESIDE):
        if _is_odd(each.lstat):
            raise Refused(f"{address}: {each} is not a regular file: take it away")
    if _names(path) > 1:
        raise Refused(
            f"{address}: {path} has a second name, a hard link (find it by -samefile {path}): through it a program "
            "would miss commits, and could commit too. End all programs that use the file. Its last commits may be in "
            f"-wal beside the name that was used: {_MERGE.format('THAT_NAME')}. Then remove the name that no program "
            "uses. Of a backup that is linked, open a copy made by .backup"
        )
    if is_alone(path):
        left = beside(path, "wal").exists()
        first = f". First, before this container ends: {_MERGE.format(path)}; then end" if left else ". End"
        raise Refused(
            f"{address}: {path} is mounted without its folder. SQLite keeps the last commits beside it, in -wal, where "
            f"they are lost with the container{first} all programs that use the file, and mount its folder"
        )


def _names(path: Path) -> int:
    try:
        return path.stat().st_nlink
    except (OSError, ValueError):  # as below
        return 0


def _is_odd(look: Callable[[], os.stat_result]) -> bool:
    try:
        return not stat.S_ISREG(look().st_mode)
    except (OSError, ValueError):  # it is not there, or not any more, or is no path: SQLite tells
        return False


class _Cursor(sqlite3.Cursor):
    """A cursor that runs nothing for a block whose transaction has ended: each statement would be stored at once."""

    def execute(self, *arguments: Any) -> Any:
        self._check()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        self._check()
        return super().executemany(*arguments)

    def executescript(self, *arguments: Any) -> Any:
        self._check()
        return super().executescript(*arguments)

    def _check(self) -> None:
        connection = self.connection
        if isinstance(connection, Connection) and connection.lent and not connection.in_transaction:
            raise NotAllowed(_ENDED)


class Connection(sqlite3.Connection):
    """A connection that knows its files, and that releases all locks when it is closed.

    Attributes:
        lent: whether a block of the user has the connection, within a transaction.
    """

    lent = False
    _path: Path | None = None
    _files: tuple[_Identity, _Identity] = (None, None)

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Open the file; see `sqlite3.connect`."""
        self._cursors = weakref.WeakSet[sqlite3.Cursor]()
        super().__init__(*args, **settings)

    def __del__(self) -> None:
        """Close as `close` does: without it the end of a process could merge an old `-wal` into a restored file."""
        with suppress(Exception):
            self.close()

    def remember(self, path: Path) -> None:
        """Note which files are open: the one at a path, and its `-wal` if it has one. Both are there by now."""
        self._path, self._files = path, _files(path)
        with _LOCK:
            _REMEMBERED.add(self)

    def is_current(self) -> bool:
        """Return whether the open files are still those at the path, and not deleted or replaced, as by a backup.

        As long as a file is open, SQLite deletes no `-wal` of it. So where it is gone, somebody has put an older file
        there, perhaps into the same inode.
        """
        return self._path is None or _files(self._path) == self._files

    def cursor(self, factory: Any = None) -> Any:
        """Return a new cursor that is closed with the connection."""
        cursor = super().cursor(factory or _Cursor)
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement on a new cursor, and return the cursor."""
        return cast("sqlite3.Cursor", self.cursor().execute(sql, parameters))

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Run a statement for each of the parameters on a new cursor, and return the cursor."""
        return cast("sqlite3.Cursor", self.cursor().executemany(sql, parameters))

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Run statements on a new cursor, and return the cursor."""
        return cast("sqlite3.Cursor", self.cursor().executescript(sql_script))

    def close(self) -> None:
        """Roll back and close.

        SQLite itself keeps a closed connection's transaction and locks while a cursor has a statement, and an error
        that is kept keeps the cursors of its function.
        """
        with suppress(sqlite3.Error):  # already closed, or rolled back by SQLite
            self.set_authorizer(None)  # it may refuse to roll back
            self.rollback()
        for cursor in self._cursors:
            with suppress(sqlite3.Error):
                cursor.close()
        with self._without_merge():
            super().close()
        self._path = None

    @contextmanager
    def _without_merge(self) -> Iterator[None]:
        """In the block, keep SQLite from merging an outdated `-wal` into the file, and from deleting the one there now.

        It does both only if no other connection has the file. The one that is opened here does neither, as it may only
        read. Where the file itself was replaced, SQLite does nothing of that.
        """
        with ExitStack() as opened:
            if self._path and not self.is_current() and _identity(self._path) == self._files[0]:
                with suppress(sqlite3.Error):
                    reader = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, isolation_level=None)
                    opened.callback(reader.close)
                    reader.execute("BEGIN")
                    reader.execute("SELECT 1 FROM sqlite_schema").fetchall()
            yield


_LOCK = threading.Lock()
_REMEMBERED = weakref.WeakSet[Connection]()


def has_outdated(path: Path) -> bool:
    """Return whether this process has a connection to the file at a path whose `-wal` is not the one beside it now.

    What SQLite knows of a `-wal` it shares among all connections of a process to a file. So a new one would take the
    log of the restored file for the old one.
    """
    with _LOCK:
        opened = [each for each in _REMEMBERED if each._path is not None]  # noqa: SLF001 - of this module
    now = _identity(path)
    return any(each._files[0] == now and not each.is_current() for each in opened)  # noqa: SLF001 - as above


def _files(path: Path) -> tuple[_Identity, _Identity]:
    return _identity(path), _identity(beside(path, "wal"))


def _identity(path: Path) -> _Identity:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def no_end_inside(connection: sqlite3.Connection, change: Change) -> Iterator[None]:
    """Refuse COMMIT, ROLLBACK and BEGIN in the block: otherwise half of a batch could be stored."""
    refused = False

    def authorize(action: int, *_: str | None) -> int:
        nonlocal refused
        refused = refused or action == sqlite3.SQLITE_TRANSACTION
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

    message = f"group {change.after.group!r}: {_ENDED}"
    connection.set_authorizer(authorize)
    if isinstance(connection, Connection):
        connection.lent = True
    try:
        yield
    except sqlite3.DatabaseError as error:
        if refused:
            raise NotAllowed(message) from error
        raise
    finally:
        if isinstance(connection, Connection):
            connection.lent = False
    try:
        connection.set_authorizer(None)
        ended = not connection.in_transaction
    except sqlite3.ProgrammingError:  # closed
        ended = True
    if ended:
        raise NotAllowed(message)


def triggers(connection: sqlite3.Connection, tables: Sequence[str]) -> list[str]:
    """Return the triggers of tables, which may swallow what is written."""
    found = ((name, table) for table in tables for (name,) in connection.execute(_TRIGGERS, [table]))
    return [f"trigger {name} of table {table}" for name, table in found]


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error, or 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def database_identity(connection: sqlite3.Connection) -> str:
    """Return a text that identifies the main database file of a connection, however its path is spelled."""
    [path] = [file for _, name, file in connection.execute("PRAGMA database_list") if name == "main"]
    if not path:
        return f"sqlite:memory:{id(connection)}"
    stat = Path(path).stat()
    return f"sqlite:{stat.st_dev}:{stat.st_ino}"
