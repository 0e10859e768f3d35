"""Connections to MySQL, from the URL: with limited waits and with errors of offsetkeeper."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pymysql
from pymysql.constants import CLIENT, CR, ER, SERVER_STATUS
from pymysql.cursors import Cursor

from offsetkeeper.clients import url as urls
from offsetkeeper.clients.mysql_tls import IN_CLEAR, connectable, objection
from offsetkeeper.clients.pool import SENSELESS, Lost, Pool, senseless
from offsetkeeper.clients.sql_codes import MYSQL_BROKEN, MYSQL_PASSING, is_of_mysql_client
from offsetkeeper.clients.tls import NAMES, SWITCHES, read_tls
from offsetkeeper.core.patience import Patience, PatientFile
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.core.urls import port_of
from offsetkeeper.errors import NotAllowed, OffsetkeeperError, Refused, StoreUnavailable

Result = tuple[int, Sequence[tuple[Any, ...]]]  # number of rows, and the rows

_LONGEST_CONNECT = 10.0
_RESET = 0x1F  # COM_RESET_CONNECTION; the library has no name for it
_MOST_BEFORE, _MOST = 1 << 20, 1 << 30  # bytes of a packet, before the login and after: the largest max_allowed_packet
_PORT = "the port of MySQL (3306)"
_MARGIN = 64  # bytes of a packet without its statements
# A wait that has no limit, as of a merge, ends half a minute after the server's host has vanished. The library turns
# keepalives on, and leaves their times to the system: two hours on Linux.
_VANISHED = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
_TCP = (socket.AF_INET, socket.AF_INET6)
# SQL texts are written for this mode. Values are never cut to fit a column, nor is a table made by another engine.
OURS = (
    "SET NAMES utf8mb4, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_select_limit = 18446744073709551615"
)
# What a server may set for all sessions: it would cut answers, refuse statements, or commit in another way. And for a
# table that another session has locked it waits a day (MariaDB) or a year.
_SETUP = (
    "SET NAMES utf8mb4, autocommit = 1, completion_type = 0, sql_select_limit = 18446744073709551615, "
    "sql_big_selects = 1, group_concat_max_len = 65536, lock_wait_timeout = {locks}"
)
# A node of Galera may be behind. So it is to wait, before it answers, for what the others had committed.
_IS_NODE = "SHOW VARIABLES WHERE variable_name = 'wsrep_on' AND value = 'ON'"
_CAUSAL = ", wsrep_sync_wait = 1"

if TYPE_CHECKING:
    _Connection = pymysql.connections.Connection[Cursor]
else:
    _Connection = pymysql.connections.Connection


class Connection(_Connection):
    """A connection that can be lent within a transaction.

    Attributes:
        lent: whether a block of the user has the connection; the block must not end the transaction. After it has, no
            further statement is sent: each would be stored at once.
        several: whether one request may have several statements.
        packet: the most bytes of a request.
        most: the most bytes of a packet of an answer.
        locks: seconds that a statement waits for a table which another session has locked.
        node: whether the server is a node of Galera.
        staged: tables, quoted for SQL, that a transaction has read and that are not needed after its commit.
    """

    lent = False
    several = False
    packet = 1 << 20
    most = _MOST_BEFORE
    locks = 30
    node = False
    staged: tuple[str, ...] = ()
    _left = 0
    _read_timeout: float | None = None
    _answers: BufferedReader | None = None

    def connect(self, sock: Any = None) -> None:
        """Connect; a server that vanishes is noticed, as far as the platform can."""
        super().connect(sock)
        there = self._sock  # type: ignore[attr-defined]
        for name, value in _VANISHED.items() if there.family in _TCP else ():
            with suppress(AttributeError, OSError):
                there.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def query(self, sql: Any, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 - the library's signature
        """Send a statement; NotAllowed if the connection is lent, and its transaction has ended."""
        if self.lent and not self.in_transaction():
            raise NotAllowed(
                "the block has ended the transaction, so nothing more is written: leave commit and rollback to "
                "offsetkeeper, and CREATE, ALTER and DROP to another connection, as MySQL commits with them"
            )
        return super().query(sql, unbuffered=unbuffered)

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Run a statement on a new cursor and return the cursor, as sqlite3 and psycopg do."""
        cursor = self.cursor()
        cursor.execute(statement, parameters)
        return cursor

    def begin(self) -> None:
        """Begin a transaction; NotAllowed while it is lent."""
        self._refuse_while_lent()
        super().begin()

    def commit(self) -> None:
        """Commit; NotAllowed while it is lent."""
        self._refuse_while_lent()
        super().commit()

    def rollback(self) -> None:
        """Roll back; NotAllowed while it is lent."""
        self._refuse_while_lent()
        super().rollback()

    def close(self) -> None:
        """Close, even with an unread result: its cursor then does not read from the closed connection."""
        unread = self._result  # type: ignore[attr-defined]
        if unread is not None:
            unread.unbuffered_active = False
        super().close()

    def run(self, statements: Sequence[str]) -> list[Result]:
        """Run statements in one request, and return the result of each; a failing statement is the last one."""
        results: list[Result] = []
        with self.cursor(Cursor) as cursor:  # not of a class that a block may have set
            cursor.execute(";".join(statements))
            while True:
                results.append((cursor.rowcount, cursor.fetchall() if cursor.description else ()))
                if not cursor.nextset():
                    break
        if len(results) != len(statements):
            raise ValueError("the answer to another request")
        return results

    def limit(self, seconds: float | None) -> None:
        """Set the time limit of an answer."""
        self._read_timeout = self._write_timeout = seconds

    @property
    def _rfile(self) -> BufferedReader | None:
        """What the library reads from; it sets it for each socket, and again for TLS."""
        return self._answers

    @_rfile.setter
    def _rfile(self, file: BufferedReader | None) -> None:
        self._patience = Patience(self._read_timeout or math.inf)
        self._answers = file and BufferedReader(PatientFile(file.detach(), self._patience))

    def _write_bytes(self, data: bytes) -> None:
        self._patience.begin(self._read_timeout or math.inf)
        super()._write_bytes(data)  # type: ignore[misc]

    def drop_staged(self) -> None:
        """Drop the tables in `staged`. This commits, so it must be outside a transaction.

        A task may still write to such a table: do not wait for it.
        """
        tables, self.staged = self.staged, ()
        if not tables:
            return
        self.run(["SET SESSION lock_wait_timeout = 1"])
        try:
            for table in tables:
                self.run([f"DROP TABLE IF EXISTS {table}"])
        finally:
            if self.open:
                self.run([f"SET SESSION lock_wait_timeout = {self.locks}"])

    def set_up(self) -> None:
        """Set what a new session needs."""
        self.run([_SETUP.format(locks=self.locks) + _CAUSAL * self.node])

    def renew(self) -> None:
        """Reset the settings of a block: variables, temporary tables, modes."""
        self.cursorclass = Cursor
        self._execute_command(_RESET, b"")  # type: ignore[attr-defined]
        self._read_ok_packet()  # type: ignore[attr-defined]
        self.set_up()

    def drop(self) -> None:
        """Close the connection, which rolls back; the server need not answer."""
        if self.open:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether the connection was closed on purpose, and is not broken."""
        return bool(self._closed)  # type: ignore[attr-defined]

    def in_transaction(self) -> bool:
        """Whether a transaction is open, by the server's last answer."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)  # type: ignore[attr-defined]

    def _read_query_result(self, unbuffered: bool = False) -> int:  # noqa: FBT001, FBT002 - the library's signature
        try:
            return int(super()._read_query_result(unbuffered))  # type: ignore[misc]
        except RuntimeError as error:  # it has sent nothing, and the server still waits for it
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.OperationalError(
                CR.CR_MALFORMED_PACKET, "the server asked for a file, and got none"
            ) from error

    def _read_packet(self, *kind: Any) -> Any:
        self._left = self.most
        return super()._read_packet(*kind)  # type: ignore[no-untyped-call]

    def _read_bytes(self, num_bytes: int) -> bytes:
        """Read a part of a packet. Each may say that another one follows."""
        self._left -= num_bytes
        if self._left < 0:
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.OperationalError(CR.CR_MALFORMED_PACKET, f"a packet has more than {self.most} bytes")
        return bytes(super()._read_bytes(num_bytes))  # type: ignore[misc]

    def _refuse_while_lent(self) -> None:
        if self.lent:
            raise NotAllowed(
                "the block may not begin or end a transaction on the connection lent to it: write on it, and leave "
                "commit, rollback and close to offsetkeeper"
            )


class Connections(Pool[Connection]):
    """Connections of one store, kept unless they are broken, still in a transaction, or to a server that cannot serve.

    `lend` raises StoreUnavailable if the server cannot be reached, and Refused if it refuses the user, the
    password or the database.

    Args:
        url: URL of the store; its timeout is for one answer.
        library: settings of the client library, as `read_url` gives them.
        prepare: called with each new connection.
        several: whether one request may have several statements.
    """

    def __init__(
        self, url: urls.ClientUrl, library: Mapping[str, Any], prepare: Callable[[Connection], None], *, several: bool
    ) -> None:
        super().__init__(self._open, Connection.drop, clean=_can_be_kept)
        self._library = library
        self._url = url
        self._address = url.address
        self._timeout = url.settings.timeout
        self._prepare = prepare
        self._several = several

    @contextmanager
    def request(self, connection: Connection, lost: Lost = StoreUnavailable) -> Iterator[None]:
        """Translate errors of the library in the block, which uses the connection.

        After an answer that makes no sense the connection is closed: it may have the rest of that answer in it.

        Raises:
            StoreUnavailable: surely rolled back, and worth a retry.
            OffsetkeeperError: `lost` if the connection broke, no answer came in time, or it made no sense.
            Refused: the server refused for good.
        """
        try:
            yield
        except pymysql.Error as error:
            raise self._failure(error, lost) from error
        except OffsetkeeperError:
            raise
        except SENSELESS as error:
            connection.drop()
            raise lost(senseless(self._address, error, _PORT)) from error

    def _open(self) -> Connection:
        # Count found rows, even if an update did not change them.
        flags = CLIENT.FOUND_ROWS | (CLIENT.MULTI_STATEMENTS if self._several else 0)
        try:
            connection = Connection(
                **connectable(self._library), client_flag=flags, charset="utf8mb4", autocommit=None, defer_connect=True
            )
            connection.several = self._several
            connection.locks = max(1, int(self._timeout))  # otherwise the server waits after this side gave up
            connection.limit(self._timeout)
            connection.connect()
            connection.most = _MOST
        except pymysql.Error as error:
            raise self._unconnected(error) from self._url.cause(error)
        except OffsetkeeperError:
            raise
        except SENSELESS as error:
            raise StoreUnavailable(senseless(self._address, error, _PORT)) from self._url.cause(error)
        except (OSError, RuntimeError) as error:  # libraries of an authentication method
            raise Refused(f"{self._address}: cannot connect: {self._url.redact(error)}") from self._url.cause(error)
        try:
            with self.request(connection):
                [(_, nodes)] = connection.run([_IS_NODE])
                connection.node = bool(nodes)
                connection.set_up()
                [(_, [(packet,)])] = connection.run(["SELECT @@max_allowed_packet"])
                connection.packet = packet - _MARGIN
                self._prepare(connection)
        except BaseException:
            connection.drop()
            raise
        return connection

    def _unconnected(self, error: pymysql.Error) -> OffsetkeeperError:
        code = code_of(error)
        if IN_CLEAR in error.args:
            return Refused(f"{self._address}: nothing was written: {IN_CLEAR}")
        if may_be_objection(str(error)) and (why := objection(self._library)):
            return Refused(f"{self._address}: nothing was written: {why}")
        ours = code in (2026, 2059) or "CERTIFICATE" in str(error)  # no TLS, or an unknown authentication method
        passing = not ours and (code in MYSQL_PASSING or code in MYSQL_BROKEN or is_of_mysql_client(code))
        kind: type[OffsetkeeperError] = StoreUnavailable if passing else Refused
        return kind(f"{self._address}: cannot connect: {self._url.redact(error)}")

    def _failure(self, error: pymysql.Error, lost: Lost) -> OffsetkeeperError:
        code = code_of(error)
        if code in MYSQL_BROKEN or is_of_mysql_client(code):
            return lost(f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error}")
        if code == ER.OPTION_PREVENTS_STATEMENT and "NO_ENGINE_SUBSTITUTION" in str(error):
            return Refused(
                f"{self._address}: the server makes tables only by another engine than InnoDB, which does not commit "
                "together with it: unset enforce_storage_engine, at least while a first run makes its tables"
            )
        if code in MYSQL_PASSING:
            return StoreUnavailable(f"{self._address}: nothing was written: {error}")
        return Refused(f"{self._address}: MySQL refused, and nothing was written: {error}")


def _can_be_kept(connection: Connection, error: BaseException | None) -> bool:
    """Return whether a connection can be lent again. Where its server was demoted, the address may lead to another."""
    return connection.open and not connection.in_transaction() and not isinstance(error, StoreUnavailable)


def code_of(error: pymysql.Error) -> int:
    """Return the number of an error, or 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def is_conflict(error: pymysql.Error) -> bool:
    """Whether another writer was first: the row already exists, or has changed since it was read."""
    return code_of(error) in (ER.DUP_ENTRY, ER.CHECKREAD)


def read_url(url: str) -> tuple[urls.ClientUrl, dict[str, Any]]:
    """Return the parsed URL, and the settings for the library; see `connectable`.

    Raises:
        SettingsError: the URL cannot be parsed, or has an unknown setting. The message shows no part of the URL that
            could be a password.
    """
    read = urls.read_url(
        url, ("table", "history", "timeout"), ("connect_timeout", "unix_socket", "ssl_disabled", *NAMES)
    )
    parts, given = read.parts, read.given
    database = unquote(parts.path[1:])
    port = port_of(parts)
    if not database or "/" in parts.path[1:] or parts.fragment or port == 0:
        raise read.error(
            "has no database: write mysql://user:password@host:port/database, and special characters in the password "
            "as %XX"
        )
    disabled = urls.read_choice("ssl_disabled", given.pop("ssl_disabled", "false"), SWITCHES)
    tls = read_tls(given, asked=False if disabled else None)
    connect, _ = urls.read_settings(f"timeout={given.pop('connect_timeout', _LONGEST_CONNECT)}", ("timeout",))
    return read._replace(settings=read.settings._replace(schema=database)), {
        **{name: text for name, text in given.items() if name not in NAMES},
        **({"ssl_disabled": True} if disabled else {}),
        "tls": tls,
        "host": parts.hostname,
        "port": port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or "").encode(),
        "database": database,
        "connect_timeout": min(connect.timeout, read.settings.timeout),
    }
