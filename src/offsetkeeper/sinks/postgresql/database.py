"""The driver's connections to the database of a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import psycopg
from psycopg import sql

from offsetkeeper.clients.postgresql import Connection, Connections, read_url
from offsetkeeper.clients.postgresql_server import DURABLE
from offsetkeeper.errors import OutcomeUnknown, SinkError
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.staged_table import ServerDatabase

# A driver that stalls here holds its locks only as long as another run waits for them.
# READ COMMITTED, so that the last look at the table sees what others have changed since the begin.
_BEGIN = sql.SQL(
    f"begin isolation level read committed; {DURABLE}; set local idle_in_transaction_session_timeout = {{}}"
)


class PostgreSQLDatabase(ServerDatabase[Connection]):
    """The database of a URL. See `sinks.marks.Database`.

    Raises:
        SettingsError: the URL is wrong.
    """

    _connections: Connections

    def __init__(self, url: str) -> None:
        read, libpq = read_url(url)
        executors = {**libpq, "client_encoding": "utf8"}
        super().__init__(read.address, executors, Connections(read, libpq, lambda _: None))
        self._begin = _BEGIN.format(sql.Literal(max(1, int(read.settings.timeout * 1000))))

    def request(self, connection: Connection) -> AbstractContextManager[None]:
        """See `sinks.marks.Database`."""
        return self._connections.request(connection)

    def _transact(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        with self.request(connection):
            connection.execute(self._begin)
        work(connection)
        with self._connections.request(connection, OutcomeUnknown, SinkError):
            try:
                connection.execute("commit")
            except psycopg.IntegrityError as error:  # a constraint that is put off until the commit
                raise judged(error, f"{self.address}: {words(error)}; nothing was written") from error
