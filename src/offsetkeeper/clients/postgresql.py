"""Connections to PostgreSQL, from the URL: with limited waits and with errors of offsetkeeper."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.rows import TupleRow

from offsetkeeper.clients import url as urls
from offsetkeeper.clients.pool import SENSELESS, Lost, Pool, senseless
from offsetkeeper.clients.postgresql_server import IS_STANDBY, refuse_standby
from offsetkeeper.clients.postgresql_tls import FILES, check_files, objection
from offsetkeeper.clients.sql_codes import POSTGRESQL_PASSING
from offsetkeeper.core import environment
from offsetkeeper.core.outside import unknown_setting
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.errors import NotAllowed, OffsetkeeperError, Refused, SettingsError, StoreUnavailable

_OWN = ("schema", "table", "history", "timeout")
_FILES = ("sslkeylogfile", "servicefile")
# A wait that has no limit, as of a merge or of COPY, ends half a minute after the server's host has vanished.
_VANISHED = {"tcp_user_timeout": "30000", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "4"}
_READ_ONLY = "25006"
T = TypeVar("T")

# libpq has no error codes for failed connections, only texts. With a server in another language, such errors are
# retried until the timeout: this is better than to give up while a server is only starting.
_HOPELESS = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
    r"|permission denied|not permitted to log in|does not support SSL|certificate |unrecognized configuration"
    r"|invalid \w+ value|bad value|private key file|alert (bad certificate|unknown ca|access denied)"
)
_OF_SERVER = re.compile(r"connection to server .+?(?=connection to server |\Z)", re.DOTALL)


class _Stepwise(psycopg.Pipeline):
    """A pipeline that sends one statement at a time, so that there is nothing to wait for."""

    def sync(self) -> None:
        """Do nothing: all statements are answered."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose waits for the server can be limited, and that can be lent within a transaction.

    Attributes:
        deadline: time limit by `environment.monotonic`, in seconds.
        lent: whether a block of the user has the connection; the block must not end the transaction. After it has, no
            further statement is sent: each would be stored at once.
    """

    deadline = math.inf
    lent = False

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait as psycopg does, but check the deadline at least ten times a second. All that is sent is sent here.

        Raises:
            NotAllowed: the connection is lent, and its transaction has ended.
        """
        if self.lent and self.pgconn.transaction_status == TransactionStatus.IDLE:
            gen.close()
            raise NotAllowed(
                "the block has ended the transaction, so nothing more is written: write on the connection, and leave "
                "commit and rollback to offsetkeeper"
            )
        return super().wait(_until(gen, self), *args, **kwargs)

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Send statements without waiting for answers. While lent, one by one: each answer may end it."""
        if self.lent:
            yield _Stepwise(self)
            return
        with super().pipeline() as pipeline:
            yield pipeline

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Lend it to the block, in a transaction that has begun."""
        self.lent = True
        try:
            yield
        finally:
            self.lent = False


def read_url(url: str) -> tuple[urls.ClientUrl, dict[str, Any]]:
    """Return the parsed URL, and the settings for libpq.

    Raises:
        SettingsError: the URL cannot be parsed, or has a setting that neither offsetkeeper nor libpq knows. The message
            shows no part of the URL that could be a password.
    """
    read = urls.read_url(url, _OWN, own=None)
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if error := unknown_setting("the store's URL", read.given, (*_OWN, *sorted(known))):
        raise error
    _refuse_code(read.given)
    parts, query = read.parts, urlencode(read.given, quote_via=quote)
    try:
        found = conninfo_to_dict(
            f"postgresql://{parts.netloc}{parts.path}?{query}"
        )  # `geturl` leaves // out before no host
    except (psycopg.Error, ValueError):  # the original message quotes the URL
        raise read.error(
            "cannot be parsed: write postgresql://user:password@host:port/database, and special characters in the "
            "password as %XX"
        ) from None
    _refuse_senders(found)
    primary = {"target_session_attrs": "read-write"} if "," in str(found.get("host", "")) else {}
    ours = {"connect_timeout": "10", "fallback_application_name": "offsetkeeper", **_verifying(found), **primary}
    return read, {**_VANISHED, **ours, **found}


def _verifying(given: Mapping[str, object]) -> dict[str, str]:
    """Return what makes libpq check certificate and name, if a file for TLS is given: else it may speak without TLS.

    The URL counts before the environment, so that no variable of another program lowers it.
    """
    here = given.keys() & {*FILES}
    around = "PGSSLMODE" not in os.environ and any(os.environ.get(f"PG{name.upper()}") for name in FILES)
    return {"sslmode": "verify-full"} if here or around else {}


def _is_hopeless(text: str) -> bool:
    """Whether no other try will connect, by what libpq says of each server."""
    return all(map(_HOPELESS.search, _OF_SERVER.findall(text) or [text]))


def _refuse_code(given: Mapping[str, str]) -> None:
    """Check that no setting has libpq load a library, write a file, or take more settings from a file.

    Raises:
        SettingsError: one has.
    """
    if ":" in given.get("sslkey", ""):  # engine:key, and the engine may be the path of a library
        raise SettingsError("sslkey in the URL names a key in an OpenSSL engine, whose code would run: give a file")
    if wrong := next((name for name in _FILES if name in given), None):
        raise SettingsError(f"{wrong} is not taken from a URL: it names a file to write, or with more settings")


def _refuse_senders(found: Mapping[str, object]) -> None:
    """Check that no credential of this machine goes to a server that another part of the URL names.

    Raises:
        SettingsError: one would.
    """
    if found.get("gssdelegation", "0") != "0":
        raise SettingsError("gssdelegation is not taken from a URL: it sends a Kerberos ticket to the server")
    if "password" in found:
        return
    if "service" in found and not found.keys().isdisjoint({"host", "hostaddr"}):
        raise SettingsError(
            "service in the URL stands beside a host, which would get the password of the service: leave the host out"
        )
    if {"host", "hostaddr"} <= found.keys() and found.get("sslmode") != "verify-full":
        raise SettingsError(
            "hostaddr in the URL stands beside a host, and its server would get the password that a file has for the "
            "host: give one of both, the password, or sslmode=verify-full"
        )


class Connections(Pool[Connection]):
    """Connections of one store, kept unless they are broken, still in a transaction, or to a read-only server.

    `lend` raises StoreUnavailable if the server cannot be reached, and Refused if it refuses the user, the
    password or the database.

    Args:
        url: URL of the store; its timeout is for one request.
        libpq: settings of libpq.
        prepare: called with each new connection.
    """

    def __init__(self, url: urls.ClientUrl, libpq: dict[str, Any], prepare: Callable[[Connection], None]) -> None:
        super().__init__(self._open, Connection.close, clean=lambda connection, _: _is_idle(connection))
        self._libpq = libpq
        self._url = url
        self._address = url.address
        self._timeout = url.settings.timeout
        self._prepare = prepare

    @contextmanager
    def request(
        self, connection: Connection, lost: Lost = StoreUnavailable, refused: type[OffsetkeeperError] = Refused
    ) -> Iterator[None]:
        """Limit the time of the block's statements, and translate their errors.

        Raises:
            StoreUnavailable: surely rolled back, and worth a retry.
            OffsetkeeperError: `lost` if the connection broke, no answer came in time, or it made no sense; `refused`
                if the server refused for good.
        """
        try:
            with self.limit(connection):
                yield
        except psycopg.Error as error:
            raise self._failure(connection, error, lost, refused) from error
        except OffsetkeeperError:
            raise
        except SENSELESS as error:
            connection.close()  # the next answer may be another one's too
            raise lost(senseless(self._address, error, "the port of PostgreSQL (5432)")) from error

    @contextmanager
    def limit(self, connection: Connection) -> Iterator[None]:
        """Break the connection if the block takes longer than the timeout.

        A stopped server that is not dead keeps its end open, so only this side can end the wait.
        """
        connection.deadline = environment.monotonic() + self._timeout
        try:
            yield
        finally:
            connection.deadline = math.inf

    def _open(self) -> Connection:
        check_files(self._libpq)
        try:
            # No prepared statements: poolers do not support them, and their plans would not know the number of rows.
            # A database or a role in SQL_ASCII would answer with bytes.
            settings = {**self._libpq, "client_encoding": "utf8"}
            connection = Connection.connect(**settings, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            hopeless = _is_hopeless(str(error))
            if hopeless and may_be_objection(str(error)) and (why := objection(self._libpq)):
                raise Refused(f"{self._address}: nothing was written: {why}") from self._url.cause(error)
            kind = Refused if hopeless else StoreUnavailable
            raise kind(f"{self._address}: cannot connect: {self._url.redact(error)}") from self._url.cause(error)
        try:
            with self.request(connection):
                [(standby,)] = connection.execute(IS_STANDBY).fetchall()
                refuse_standby(self._address, standby)
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
        if state == _READ_ONLY:
            connection.close()  # a new one may lead to the primary
        if state.startswith(POSTGRESQL_PASSING):
            return StoreUnavailable(f"{self._address}: nothing was written: {error}")
        return refused(f"{self._address}: PostgreSQL refused, and nothing was written: {error}")


def _is_idle(connection: Connection) -> bool:
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


def _until(waiting: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """Continue a wait for the server until the connection's deadline, also while an answer comes: it may never end."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            late = environment.monotonic() > connection.deadline
            wanted = waiting.throw(psycopg.OperationalError("no answer in time")) if late else waiting.send(ready)
    except StopIteration as end:
        return cast("T", end.value)
