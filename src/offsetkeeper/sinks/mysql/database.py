"""The driver's connections to the database of a MySQL table, and the settings that a merge relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from offsetkeeper.clients.mysql import Connection, Connections, read_url
from offsetkeeper.clients.mysql_server import IS_READ_ONLY, refuse_read_only
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown
from offsetkeeper.sinks.staged_table import ServerDatabase

T = TypeVar("T")
# All that a merge relies on. The server sorts and groups only by the first max_sort_length bytes of a text. Rows that
# are sent along are in UTF-8, also after a block that has set another character set.
RELIED_ON = {
    "character_set_client": "utf8mb4",
    "collation_connection": "utf8mb4_general_ci",
    "sql_mode": "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "unique_checks": "1",
    "foreign_key_checks": "1",
    "sql_select_limit": "18446744073709551615",
    "max_sort_length": "65536",
}
_MARIADB = {"check_constraint_checks": "1"}  # which MySQL has not, and takes for a comment


def _sets(values: Callable[[str], str]) -> str:
    """Return the settings of a SET statement; `values` gives the value of each name."""
    common = ", ".join(f"{name} = {values(name)}" for name in RELIED_ON)
    return common + "".join(f" /*M!100201 , {name} = {values(name)} */" for name in _MARIADB)


_OURS = _sets({**RELIED_ON, **_MARIADB}.__getitem__)
_SETUP = f"SET NAMES utf8mb4, {_OURS}"
_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"  # no locks on gaps, so fewer deadlocks
# A merge may be on the store's connection, where the settings of the block must be restored.
KEEP = f"SET {', '.join(f'@offsetkeeper_{name} = @@{name}' for name in RELIED_ON)}" + "".join(
    f" /*M!100201 , @offsetkeeper_{name} = @@{name} */" for name in _MARIADB
)
# A driver that stalls between two statements of a merge holds its locks no longer than it waits for those of others.
KEEP += ", @offsetkeeper_wait_timeout = @@wait_timeout"
SET = f"SET {_OURS}, wait_timeout = {{locks}}"
RESTORE = f"SET {_sets('@offsetkeeper_{}'.format)}, wait_timeout = @offsetkeeper_wait_timeout"


class MySQLDatabase(ServerDatabase[Connection]):
    """The database of a URL. See `sinks.marks.Database`.

    Attributes:
        name: the database in the URL.

    Raises:
        SettingsError: the URL is wrong.
    """

    _connections: Connections

    def __init__(self, url: str) -> None:
        read, library = read_url(url)
        self.name = read.settings.schema
        self._timeout = read.settings.timeout
        timeouts = {"read_timeout": self._timeout, "write_timeout": self._timeout}
        executors = {**library, **timeouts, "charset": "utf8mb4", "autocommit": None}
        connections = Connections(read, library, _prepare, several=True)
        super().__init__(read.address, executors, connections)

    @contextmanager
    def request(self, connection: Connection) -> Iterator[None]:
        """Limit the time of each answer in the block, and translate errors."""
        connection.limit(self._timeout)
        with self._connections.request(connection):
            yield

    def _run(self, work: Callable[[Connection], T]) -> T:
        def checked(connection: Connection) -> T:
            self._refuse_read_only(connection)
            return work(connection)

        return super()._run(checked)

    def _transact(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        try:
            with self.request(connection):
                self._refuse_read_only(connection)
                # A driver that stalls here holds its locks only as long as another run waits for them.
                connection.execute(f"SET SESSION wait_timeout = {connection.locks}")
                connection.begin()
            work(connection)
            connection.limit(self._timeout)
            with self._connections.request(connection, OutcomeUnknown):
                connection.commit()
            with suppress(OffsetkeeperError), self.request(connection):  # harmless: all is committed
                connection.drop_staged()
        finally:
            connection.drop()  # its session has a setting of this transaction

    def _refuse_read_only(self, connection: Connection) -> None:
        """Check that the server takes changes; one may be demoted while a connection to it is kept.

        Raises:
            StoreUnavailable: it is read-only. A replica that is behind would show a mark that is no more.
        """
        [read_only] = connection.execute(IS_READ_ONLY).fetchall()
        refuse_read_only(self.address, read_only)


def _prepare(connection: Connection) -> None:
    """Set up a new connection. It is not a method: a pool that refers to its session is never collected."""
    for statement in (_SETUP, _READ_COMMITTED, f"SET SESSION innodb_lock_wait_timeout = {connection.locks}"):
        connection.execute(statement)
