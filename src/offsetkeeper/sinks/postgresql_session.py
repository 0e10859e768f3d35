"""The driver's own connection to PostgreSQL, kept from batch to batch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from offsetkeeper.core.store import without_credentials
from offsetkeeper.errors import OutcomeUnknown, SinkError, StoreUnavailable
from offsetkeeper.stores.postgresql import Connection, Connections, read_url

T = TypeVar("T")
# Executors copy for as long as it takes, but notice within half a minute that the server has vanished.
_EXECUTORS = {"tcp_user_timeout": "30000", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "4"}


class Session:
    """A connection that is opened when it is needed, and again after it was lost.

    Attributes:
        address: the URL without credentials.
        executors: libpq's settings for executors, with the password: never to be shown.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        self.address = without_credentials(url)
        settings, libpq = read_url(url)
        self.executors: dict[str, Any] = {**_EXECUTORS, **libpq, "client_encoding": "utf8"}
        self._connections = Connections(libpq, self.address, settings.timeout, lambda _: None)
        weakref.finalize(self, self._connections.close)

    def __repr__(self) -> str:
        return f"Session({self.address!r})"

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns. It may be called twice: a kept connection may turn out to be lost.

        Raises:
            SinkError: the database could not be reached.
            SettingsError: it refused.
        """
        try:
            return self._run(work)
        except StoreUnavailable:
            pass
        try:
            return self._run(work)
        except StoreUnavailable as error:
            raise SinkError(str(error)) from error

    def transaction(self, work: Callable[[Connection], None]) -> None:
        """Do `work` in a transaction, and return when it is durable.

        Raises:
            SinkError: nothing was written.
            OutcomeUnknown: the reply to the commit was lost.
        """
        request = self._connections.request
        try:
            with self._connections.lend() as connection:
                with request(connection):
                    connection.execute("begin")
                work(connection)
                with request(connection, OutcomeUnknown, SinkError):
                    connection.execute("commit")
        except StoreUnavailable as error:
            raise SinkError(str(error)) from error

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._connections.lend() as connection, self._connections.request(connection):
            return work(connection)
