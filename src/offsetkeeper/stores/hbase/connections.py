"""Connections to HBase's Thrift server: reused, with limited waits, and with errors of offsetkeeper.

A connection is closed after anything but an answer: a late answer would be taken as the answer to the next request.
"""

from __future__ import annotations

import re
import selectors
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import happybase  # noqa: F401 - it makes the module Hbase_thrift
from Hbase_thrift import (
    AlreadyExists,
    BatchMutation,
    ColumnDescriptor,
    Hbase,
    IllegalArgument,
    IOError,  # noqa: A004 - its own name
    Mutation,
    TScan,
)
from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]  # it is in a compiled module
from thriftpy2.thrift import TClient, TException
from thriftpy2.transport import TBufferedTransport, TFramedTransport, TSocket, TTransportException

from offsetkeeper.clients.pool import SENSELESS, Lost, Pool, senseless
from offsetkeeper.clients.url import ClientUrl, read_choice
from offsetkeeper.core import environment
from offsetkeeper.core.tls import spoken_hint
from offsetkeeper.errors import OffsetkeeperError, Refused, StoreUnavailable

__all__ = [
    "CLIENT",
    "BatchMutation",
    "ColumnDescriptor",
    "Connections",
    "Mutation",
    "NoTable",
    "Row",
    "rows_of",
    "scan",
]
CLIENT = ("transport", "protocol")
_PORT = 9090
_LONGEST_CONNECT = 10.0
_MOST = 256 << 20
_TRANSPORTS: Mapping[str, Any] = {"buffered": TBufferedTransport, "framed": TFramedTransport}
_PROTOCOLS: Mapping[str, Any] = {"binary": TBinaryProtocol, "compact": TCompactProtocol}
# Surely not done, and a retry does not help. Other errors may come from a server behind, after it did the request.
_ANSWERS = (IOError, IllegalArgument, AlreadyExists)
_REFUSED = re.compile(r"NamespaceNotFound|AccessDenied|size too large|exceeds limit|IllegalArgument")


class NoTable(StoreUnavailable):
    """The table does not exist."""


class Row(NamedTuple):
    """A row in an answer: its key, and the values of its columns."""

    row: bytes
    columns: Mapping[bytes, bytes]


class _Socket(TSocket):
    """A socket from which no more, and little longer, is read than an answer can have: else it fills the memory."""

    _left, _until = 0, 0.0

    def write(self, buf: bytes) -> None:
        """See the library; an answer begins."""
        super().write(buf)  # type: ignore[no-untyped-call]  # the library has no types
        self._left, self._until = _MOST, environment.monotonic() + self.sock.gettimeout()

    def read(self, sz: int) -> bytes:
        """See the library."""
        if sz > self._left:
            raise TTransportException(message=f"an answer of more than {_MOST} bytes")
        if environment.monotonic() > self._until:
            raise TTransportException(message="the answer has no end")
        data = bytes(super().read(sz))  # type: ignore[no-untyped-call]
        self._left -= len(data)
        return data


class _Connection(NamedTuple):
    socket: socket.socket
    client: Any

    def usable(self) -> bool:
        """Whether the server has not closed the connection, as it does with idle connections after a minute."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def _was_answered(_: _Connection, error: BaseException | None) -> bool:
    return error is None or isinstance(error, _ANSWERS)


class Connections:
    """Connections of one store.

    Args:
        url: URL of the store; its hosts are tried one after the other.

    Raises:
        SettingsError: the URL has no server, or it has a user, or a setting is wrong.
    """

    def __init__(self, url: ClientUrl) -> None:
        self._hosts = _hosts(url)
        self._address = url.address
        self._timeout = url.settings.timeout
        self._answered = False  # since this store was opened
        self._transport = read_choice("transport", url.given.get("transport", "buffered"), _TRANSPORTS)
        self._protocol = read_choice("protocol", url.given.get("protocol", "binary"), _PROTOCOLS)
        self._pool = Pool(self._connect, _Connection.close, usable=_Connection.usable, clean=_was_answered)

    @contextmanager
    def lend(self, lost: Lost = StoreUnavailable) -> Iterator[Any]:
        """Lend a Thrift client for some requests, and translate its errors.

        Raises:
            NoTable: a table does not exist; the request was not done.
            Refused: the server refuses the request.
            StoreUnavailable: no server can be reached.
            StoreError: `lost`, if the outcome of a request is unknown.
        """
        try:
            with self._pool.lend() as connection:
                yield connection.client
                self._answered = True
        except _ANSWERS as error:
            raise self._refusal(error, lost) from error
        except (TException, OSError) as error:
            raise lost(
                f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error!r}. "
                "If no answer ever came, transport= or protocol= in the URL differ from those of the server"
                f"{'' if self._answered else self._hint()}"
            ) from error
        except (ProtocolError, *SENSELESS) as error:
            check = "the port of HBase's Thrift server (9090), and transport= and protocol= in the URL"
            raise lost(senseless(self._address, error, check)) from error

    def close(self) -> None:
        """Close the connections that are not lent."""
        self._pool.close()

    def _connect(self) -> _Connection:
        errors = []
        for host, port in self._hosts:
            try:
                opened = socket.create_connection((host, port), min(self._timeout, _LONGEST_CONNECT))
            except OSError as error:
                errors.append(f"{host}:{port}: {error}")
                continue
            opened.settimeout(self._timeout)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = self._transport(_Socket(sock=opened))  # type: ignore[no-untyped-call]
            protocol = self._protocol(transport, decode_response=False)
            return _Connection(opened, TClient(Hbase, protocol))
        raise StoreUnavailable(f"{self._address}: cannot connect: {'; '.join(errors)}")

    def _hint(self) -> str:
        return spoken_hint(*self._hosts[0], "no client here has TLS with HBase, see docs/tls.md")

    def _refusal(self, error: Any, lost: Lost) -> OffsetkeeperError:
        message = (error.message or b"").decode("utf-8", "replace")
        told = f"{self._address}: HBase answered: {message.partition(chr(10))[0][:500]}"
        if "TableNotFound" in message:
            return NoTable(told)
        if isinstance(error, AlreadyExists):
            return StoreUnavailable(f"{told}: another program is creating it")
        if "NoSuchColumnFamily" in message:
            return Refused(f"{told}; nothing was written: another program uses the table; choose one with ?table=")
        if isinstance(error, IllegalArgument) or _REFUSED.search(message):
            return Refused(f"{told}; nothing was written")
        return lost(told)


def scan(client: Any, table: bytes, start: bytes, stop: bytes, *, column: bytes, most: int, how: str = "") -> list[Row]:
    """Return at most `most` rows from `start` on, before `stop`; empty is open. ValueError if they are others.

    Args:
        client: a client of `Connections`.
        table: the table to read.
        start: key of the first row.
        stop: key after the last row.
        column: column that the rows must have, or a column family.
        most: the most rows to return.
        how: "keys" for rows without values, "back" for the order from `start` down to `stop`.
    """
    asked = TScan(startRow=start, columns=[column], caching=most, reversed=how == "back")
    if stop:
        asked.stopRow = stop
    if how == "keys":
        asked.filterString = b"FirstKeyOnlyFilter() AND KeyOnlyFilter()"
    scanner = client.scannerOpenWithScan(table, asked, {})
    rows = rows_of(client.scannerGetList(scanner, most))
    client.scannerClose(scanner)
    keys = [start, *(each.row for each in rows)]
    if keys != sorted(keys, reverse=how == "back"):  # a request for the rows after them would never end
        raise ValueError("the rows are not in order")
    return rows


def rows_of(answer: Any) -> list[Row]:
    """Return the rows of an answer; TypeError or AttributeError if it has others."""
    rows = [Row(each.row, {name: cell.value for name, cell in each.columns.items()}) for each in answer]
    parts = (part for each in rows for part in (each.row, *each.columns.keys(), *each.columns.values()))
    if not all(type(part) is bytes for part in parts):
        raise TypeError("a row lacks its key or a value")
    return rows


def _hosts(url: ClientUrl) -> list[tuple[str, int]]:
    user, _, netloc = url.parts.netloc.rpartition("@")
    if user:
        raise url.error("has a user: HBase's Thrift server accepts no user and no password: leave them out")
    try:
        parts = [urlsplit(f"//{host}") for host in netloc.split(",")]
        hosts = [(part.hostname or "", part.port or _PORT) for part in parts]
    except ValueError:
        hosts = []
    if not hosts or not all(host for host, _ in hosts):
        raise url.error("has no server: write hbase://host:9090,host2:9090/namespace")
    return hosts
