"""Connections to PostgreSQL: opened once and kept, every wait limited, every failure told as one of our errors."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.rows import TupleRow

from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.stores.settings import StoreSettings, read_settings

OWN = ("schema", "table", "history", "timeout")
T = TypeVar("T")
Lost = type[StoreUnavailable] | type[OutcomeUnknown]

# libpq tells why it could not connect in words only, without an error code. A server that speaks another language is
# retried in vain until the ledger's patience ends: better than to give up on one that is only starting.
_HOPELESS = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|no password supplied|permission denied"
    r"|not permitted to log in|does not support SSL|certificate |unrecognized configuration|invalid \w+ value|bad value"
)
# Surely rolled back, and worth another try: read-only for now, serialization and deadlock, resources, locks,
# cancelled, the system, internal.
_PASSING = ("25", "40", "53", "55", "57", "58", "XX")


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose waits for the server can be limited.

    Attributes:
        deadline: by `time.monotonic`, in seconds.
    """

    deadline = math.inf

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait as psycopg does, which looks up ten times a second."""
        return super().wait(_until(gen, self), *args, **kwargs)


def read_url(url: str) -> tuple[StoreSettings, dict[str, Any]]:
    """Return a URL's own settings, and those for libpq.

    Raises:
        SettingsError: the URL cannot be parsed, or has a setting that neither we nor libpq know. No part of it that
            could be a password is in the message.
    """
    parts = urlsplit(url)
    settings, rest = read_settings(parts.query.replace("+", "%2B"), OWN)  # to libpq, a plus is no space
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    for name in rest.keys() - known:
        raise SettingsError(f"the store's URL has a setting {name!r}, which is none of {', '.join(OWN)} nor of libpq's")
    try:
        found = conninfo_to_dict(parts._replace(query=urlencode(rest, quote_via=quote)).geturl())
    except psycopg.Error:  # its message quotes what it could not parse
        raise SettingsError(
            "the PostgreSQL URL cannot be parsed: write postgresql://user:password@host:port/database, "
            "and special characters in the password as %XX"
        ) from None
    return settings, {"connect_timeout": "10", "fallback_application_name": "offsetkeeper", **found}


class Connections:
    """Connections of one store, as many as are in use at once.

    Args:
        settings: for libpq.
        address: of the store, for messages.
        timeout: seconds that one request may take.
        prepare: called with each new connection.
    """

    def __init__(
        self, settings: dict[str, Any], address: str, timeout: float, prepare: Callable[[Connection], None]
    ) -> None:
        self._settings = settings
        self._address = address
        self._timeout = timeout
        self._prepare = prepare
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lend a kept connection, or a new one. It is kept again unless it is broken or still in a transaction.

        Raises:
            StoreUnavailable: the server cannot be reached.
            SettingsError: it refuses the user, the password or the database.
        """
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connect()
        try:
            yield connection
        finally:
            if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
                connection.close()
            else:
                with self._lock:
                    self._idle.append(connection)

    @contextmanager
    def request(
        self,
        connection: Connection,
        lost: Lost = StoreUnavailable,
        refused: type[OffsetkeeperError] = SettingsError,
    ) -> Iterator[None]:
        """Limit the time that the block's statements may take, and translate their errors.

        Raises:
            StoreUnavailable: surely rolled back, and worth another try.
            OffsetkeeperError: `lost` where the connection broke or no answer came in time, `refused` where the
                server refused for good.
        """
        try:
            with self.limit(connection):
                yield
        except psycopg.Error as error:
            raise self._failure(connection, error, lost, refused) from error

    @contextmanager
    def limit(self, connection: Connection) -> Iterator[None]:
        """Break the connection off when the block takes longer than the timeout.

        A server that is stopped, not dead, keeps its end open; only this side can end the wait.
        """
        connection.deadline = time.monotonic() + self._timeout
        try:
            yield
        finally:
            connection.deadline = math.inf

    def close(self) -> None:
        """Close the connections that are not lent."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _connect(self) -> Connection:
        try:
            # No prepared statements: poolers do not like them, and plans would not know the number of rows.
            connection = Connection.connect(**self._settings, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            kind = SettingsError if _HOPELESS.search(str(error)) else StoreUnavailable
            raise kind(f"{self._address} cannot be connected: {error}") from error
        try:
            with self.request(connection):
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failure(
        self, connection: Connection, error: psycopg.Error, lost: Lost, refused: type[OffsetkeeperError]
    ) -> OffsetkeeperError:
        state = error.sqlstate or ""
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state
        if connection.closed or broken or state.startswith(("08", "57P")):
            return lost(f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error}")
        if state.startswith(_PASSING):
            return StoreUnavailable(f"{self._address}: nothing was written: {error}")
        return refused(f"{self._address}: PostgreSQL refused, and nothing was written: {error}")


def _until(waiting: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """Go on with what waits for the server, until the connection's deadline."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            late = not ready and time.monotonic() > connection.deadline
            wanted = waiting.throw(psycopg.OperationalError("no answer in time")) if late else waiting.send(ready)
    except StopIteration as end:
        return cast("T", end.value)
