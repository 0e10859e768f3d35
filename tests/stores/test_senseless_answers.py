"""Servers that speak the right protocol and answer what makes no sense: an error of ours, and no loop without an end.

After a change was sent, its outcome is unknown. The servers are fakes, as no real one answers so.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from Hbase_thrift import ColumnDescriptor, Hbase, IOError, TCell, TRowResult  # noqa: A004 - its own name
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket

from offsetkeeper.checkpoint.hdfs import open_hdfs
from offsetkeeper.checkpoint.s3 import open_s3
from offsetkeeper.clients import mysql
from offsetkeeper.clients.mysql import read_url
from offsetkeeper.clients.mysql_tls import connectable
from offsetkeeper.core.tls import Tls
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, OutcomeUnknown, Refused, SinkError, StoreUnavailable
from offsetkeeper.sinks.few import NONE
from offsetkeeper.sinks.mysql.task import Statements, insert_rows
from offsetkeeper.stores import open_store
from offsetkeeper.stores.hbase import HBaseStore, connections
from offsetkeeper.stores.hbase.tables import DOCUMENT, HISTORY, LEDGER, OFFSETS
from offsetkeeper.stores.zookeeper import ZooKeeperStore
from offsetkeeper.stores.zookeeper.nodes import load_row
from stores.test_foreign_answers import CHANGE, Listener, http, little

FOREVER = 2**31 - 1


class Thrift(Listener):
    """A Thrift server of HBase without rows, except for some answers.

    Args:
        answers: what the calls return, or raise, by their names.
    """

    def __init__(self, **answers: Any) -> None:
        super().__init__(b"", more=False)
        self._answers = answers

    def _serve(self, client: socket.socket) -> None:
        families = {OFFSETS, LEDGER, HISTORY}
        usual: dict[str, Any] = {
            **{name: [] for name in ("getRowWithColumns", "getRowsWithColumns", "scannerGetList")},
            "getColumnDescriptors": {name: ColumnDescriptor(name=name, timeToLive=FOREVER) for name in families},
            "scannerOpenWithScan": 1,
            "checkAndPut": True,
            **dict.fromkeys(("scannerClose", "mutateRows", "mutateRowsTs", "createTable")),
        }

        def called(answer: Any) -> Callable[..., Any]:
            def call(*_: Any) -> Any:
                if isinstance(answer, Exception):
                    raise answer
                return answer() if callable(answer) else answer

            return call

        calls = {name: called(answer) for name, answer in {**usual, **self._answers}.items()}
        processor = TProcessor(Hbase, SimpleNamespace(**calls))
        protocol = TBinaryProtocol(TBufferedTransport(TSocket(sock=client)), decode_response=False)  # type: ignore[no-untyped-call]
        with client, contextlib.suppress(Exception):
            while True:
                processor.process(protocol, protocol)


@contextlib.contextmanager
def hbase(**answers: Any) -> Iterator[HBaseStore]:
    """Yield a store at such a server."""
    with Thrift(**answers) as server:
        store = HBaseStore(f"hbase://127.0.0.1:{server.port}?timeout=5")
        try:
            yield store
        finally:
            store.close()


def ask_all(store: HBaseStore) -> None:
    """Ask all questions."""
    store.load("g")
    store.history("g")
    store.groups()


ROWS = {
    "no key, no columns": [TRowResult()],
    "no columns": [TRowResult(row=b"g")],
    "no key": [TRowResult(columns={DOCUMENT: TCell(value=b"{}")})],
    "no value": [TRowResult(row=b"g", columns={DOCUMENT: TCell()})],
    "other columns": [TRowResult(row=b"g", columns={b"x:y": TCell(value=b"{}")})],
}


@pytest.mark.parametrize("name", ["getRowWithColumns", "scannerGetList"])
@pytest.mark.parametrize("rows", [name for name in ROWS if name != "other columns"])
def test_a_row_of_hbase_that_lacks_its_parts_is_no_answer(name: str, rows: str) -> None:
    with hbase(**{name: ROWS[rows]}) as store, pytest.raises(StoreUnavailable, match="makes no sense"):
        ask_all(store)


def test_a_row_of_hbase_without_the_document_is_no_answer() -> None:
    with hbase(getRowWithColumns=ROWS["other columns"]) as store, pytest.raises(StoreUnavailable, match="no sense"):
        store.load("g")


def test_hbase_without_a_message_has_refused_all_the_same() -> None:
    with hbase(getRowWithColumns=IOError()) as store, pytest.raises(StoreUnavailable, match="HBase answered"):
        store.load("g")
    with hbase(checkAndPut=IOError()) as store, pytest.raises(OutcomeUnknown, match="HBase answered"):
        store.apply(CHANGE)


def test_rows_of_hbase_that_come_again_and_again_end() -> None:
    again = [TRowResult(row=b"a:g:1", columns={OFFSETS + b"0": TCell(value=b"1")})]
    asked: list[Callable[[HBaseStore], object]] = [lambda store: store.load("g"), lambda store: store.groups()]
    for ask in asked:
        with hbase(scannerGetList=again) as store, little(), pytest.raises(StoreUnavailable, match="makes no sense"):
            ask(store)


@pytest.mark.parametrize(("most", "timeout"), [(1 << 16, 5), (256 << 20, 1)])
def test_rows_of_hbase_without_an_end_are_given_up(monkeypatch: pytest.MonkeyPatch, most: int, timeout: int) -> None:
    monkeypatch.setattr(connections, "_MOST", most)
    call = b"getRowWithColumns"
    rows = b"\x0f\0\0\x0c\x7f\xff\xff\xff"  # a list of 2 billion, each of which is a zero
    reply = b"\x80\1\0\2" + len(call).to_bytes(4, "big") + call + bytes(4) + rows
    with Listener(reply, more=True) as server, little():
        store = HBaseStore(f"hbase://127.0.0.1:{server.port}?timeout={timeout}")
        with pytest.raises(StoreUnavailable, match="the connection broke"):
            store.load("g")
        store.close()


def test_a_change_that_hbase_has_not_made_may_be_made_if_the_document_cannot_be_read() -> None:
    """The Thrift server tries by itself again, and then finds the result of its first try."""
    looks = [list[TRowResult]()]

    def look() -> list[TRowResult]:
        return looks.pop() if looks else ROWS["no value"]

    with hbase(checkAndPut=False, getRowWithColumns=look) as store, pytest.raises(OutcomeUnknown, match="makes no sen"):
        store.apply(CHANGE)


def lengthy(kind: bytes, content: bytes = b"") -> bytes:
    """Return a message of PostgreSQL."""
    return kind + (len(content) + 4).to_bytes(4, "big") + content


class PostgreSQL(Listener):
    """A PostgreSQL that answers each statement with rows of texts.

    Args:
        said: the rows for a statement.
    """

    def __init__(self, said: Callable[[bytes], list[tuple[bytes, ...]]]) -> None:
        super().__init__(b"", more=False)
        self._said = said

    def _serve(self, client: socket.socket) -> None:
        status = (b"server_version\x0016.0\0", b"client_encoding\0UTF8\0", b"standard_conforming_strings\0on\0")
        ready = lengthy(b"Z", b"I")
        with client, client.makefile("rb") as file, contextlib.suppress(OSError):
            while file.read(int.from_bytes(file.read(4), "big") - 4)[:2] != b"\0\3":
                client.sendall(b"N")  # no encryption
            client.sendall(lengthy(b"R", bytes(4)) + b"".join(lengthy(b"S", each) for each in status) + ready)
            statement = b""
            while kind := file.read(1):
                content = file.read(int.from_bytes(file.read(4), "big") - 4)
                statement = content if kind in b"PQ" else statement
                if kind in b"QS":
                    begun = lengthy(b"1") + lengthy(b"2") if kind == b"S" else b""
                    client.sendall(begun + self._rows(self._rows_of(statement)) + lengthy(b"C", b"SELECT 0\0") + ready)

    def _rows_of(self, statement: bytes) -> list[tuple[bytes, ...]]:
        of_itself = b"pg_is_in_recovery" in statement and b"FROM" not in statement
        return [(b"f",)] if of_itself else self._said(statement)

    def _rows(self, rows: list[tuple[bytes, ...]]) -> bytes:
        count = len(rows[0]) if rows else 1
        column = (
            b"c\0" + bytes(6) + (25).to_bytes(4, "big") + (-1).to_bytes(2, "big", signed=True) + b"\xff" * 4 + bytes(2)
        )
        found = [b"".join(len(each).to_bytes(4, "big") + each for each in row) for row in rows]
        told = [lengthy(b"D", count.to_bytes(2, "big") + row) for row in found]
        return lengthy(b"T", count.to_bytes(2, "big") + column * count) + b"".join(told)


@contextlib.contextmanager
def postgresql(**answers: list[tuple[bytes, ...]]) -> Iterator[Any]:
    """Yield a store at such a server; an answer is for statements that have its name in them."""

    def said(statement: bytes) -> list[tuple[bytes, ...]]:
        return next((rows for name, rows in answers.items() if name.encode() in statement), [])

    with PostgreSQL(said) as server:
        store = open_store(f"postgresql://u@127.0.0.1:{server.port}/shop?schema=public&timeout=5&gssencmode=disable")
        try:
            yield store
        finally:
            store.close()


@pytest.mark.parametrize("rows", [[()], [(b"x",)], [(b"x", b"y", b"z", b"z")], [(b"x\xff",)], [(b"x",) * 8]])
def test_rows_of_postgresql_of_another_shape_are_no_answer(rows: list[tuple[bytes, ...]]) -> None:
    asked: dict[str, Callable[[Any], object]] = {
        "control": lambda store: store.load("g"),
        "version": lambda store: store.history("g"),
        "extract": lambda store: store.clock_ms(),
        "pg_postmaster": lambda store: store.identity(),
        "relpersistence": lambda store: store.load("g"),
        "pg_settings": lambda store: store.server_settings(),
    }
    for name, ask in asked.items():
        with postgresql(**{name: rows}) as store, pytest.raises(StoreUnavailable, match="no sense"):
            ask(store)


def test_after_rows_of_postgresql_that_cannot_be_read_a_change_may_be_made() -> None:
    with postgresql(moved=[(b"x\xff",)]) as store, pytest.raises(OutcomeUnknown, match="no sense"):
        store.apply(CHANGE)


def test_rows_of_postgresql_without_an_end_take_no_longer_than_the_timeout() -> None:
    over = threading.Event()

    class Endless(PostgreSQL):
        def _serve(self, client: socket.socket) -> None:
            threading.Thread(target=self._tell, args=(client.dup(),), daemon=True).start()
            super()._serve(client)

        def _tell(self, client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                begun = asked.wait(10)
                client.sendall(lengthy(b"1") + lengthy(b"2") + self._rows([(b"x",)]))
                while begun and not over.wait(0.01):
                    client.sendall(lengthy(b"D", b"\0\1\0\0\0\1x"))

    asked = threading.Event()

    def said(_: bytes) -> list[tuple[bytes, ...]]:
        asked.set()
        over.wait(20)
        raise OSError

    with Endless(said) as server, little():
        store = open_store(f"postgresql://u@127.0.0.1:{server.port}/shop?schema=public&timeout=0.5&gssencmode=disable")
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            store.load("g")
        over.set()
        store.close()


class Kept(deque[Any]):
    """The connections of a pool; it counts those that were ever given back."""

    given = 0

    def append(self, each: Any) -> None:
        """Count, and keep."""
        self.given += 1
        super().append(each)


def kept_by(store: Any) -> Kept:
    """Return the connections that a store keeps from now on."""
    store._connections._idle = Kept()
    return store._connections._idle  # type: ignore[no-any-return]


def test_a_connection_of_postgresql_with_the_answer_of_another_statement_is_lent_to_nobody() -> None:
    with postgresql(control=[(b"x",)]) as store:
        kept = kept_by(store)
        with pytest.raises(StoreUnavailable, match="no sense"):
            store.load("g")
        assert kept.given == 0


@pytest.mark.parametrize("row", [[], [(b"x", b"y")], [(b"2",)], [(b"0", b"on")]])
def test_a_change_of_postgresql_is_made_only_if_its_own_answer_says_so(row: list[tuple[bytes, ...]]) -> None:
    with postgresql(moved=row) as store, pytest.raises(OutcomeUnknown, match="no sense"):
        store.apply(CHANGE)


_FLAGS = 0x0FFFFF & ~0x820  # neither TLS nor compression
GREETING = b"".join(
    [
        *(b"\x0a8.0.0\0", bytes(4), b"12345678\0", (_FLAGS & 0xFFFF).to_bytes(2, "little"), b"\x2d\2\0"),
        *((_FLAGS >> 16).to_bytes(2, "little"), b"\x15", bytes(10), b"123456789012\0mysql_native_password\0"),
    ]
)


def numbered(*packets: bytes) -> bytes:
    """Return packets of MySQL, the answer to one request."""
    return b"".join(len(each).to_bytes(3, "little") + bytes([n]) + each for n, each in enumerate(packets, 1))


def column(name: bytes) -> bytes:
    """Return the description of a column of texts."""
    words = [b"def", b"", b"", b"", name, name]
    return b"".join(bytes([len(each)]) + each for each in words) + b"\x0c\x2d\0\xff\0\0\0\xfd\0\0\0\0\0"


class Telling(Listener):
    """A MySQL that lets everybody in, and answers requests that have a word in them.

    Args:
        answers: packets by word; another request is answered as done, each of its statements.
    """

    def __init__(self, answers: dict[bytes, list[bytes]]) -> None:
        super().__init__(b"", more=False)
        self._answers = answers

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as file, contextlib.suppress(OSError):
            client.sendall(len(GREETING).to_bytes(3, "little") + b"\0" + GREETING)
            self._heard(file)
            client.sendall(b"\7\0\0\2\0\0\0\2\0\0\0")
            while said := self._heard(file):
                done = [b"\0\0\0\x0a\0\0\0"] * said.count(b";") + [b"\0\0\0\2\0\0\0"]
                client.sendall(numbered(*next((told for word, told in self._answers.items() if word in said), done)))

    def _heard(self, file: Any) -> bytes:
        return bytes(file.read(int.from_bytes(file.read(4)[:3], "little")))


END = b"\xfe\0\0\2\0"
NUMBER = column(b"n").replace(b"\xfd", b"\x08")  # an integer
PACKET = [b"\1", NUMBER, END, b"\x071048576", END]
FIRST = [b"\1", NUMBER, END, b"\x010", b"\xfe\0\0\x0a\0"]  # read_only, and another answer follows
OTHER = {
    "three columns": [*FIRST, b"\3", *map(column, (b"a", b"b", b"c")), END, b"\1a\1b\1c", END],
    "cut": [*FIRST, b"\xfc"],
    "too few": [*FIRST[:-1], END],
    "cut row": [*FIRST, b"\2", column(b"a"), column(b"b"), END, b"\xfc\1", END],
}


@pytest.mark.parametrize("answer", OTHER)
def test_a_connection_of_mysql_with_an_answer_that_cannot_be_read_is_lent_to_nobody(answer: str) -> None:
    with Telling({b"@@max_allowed_packet": PACKET, b"@@global.read_only": OTHER[answer]}) as server:
        store: Any = open_store(f"mysql://u:p@127.0.0.1:{server.port}/shop?timeout=2")
        store._ready = True  # the server has no tables that could be looked at
        kept = kept_by(store)
        with pytest.raises(StoreUnavailable, match="no sense"):
            store.history("g")
        assert kept.given == 0
        store.close()


class MySQL(Listener):
    """A MySQL that lets everybody in, and answers statements with the same packet.

    Attributes:
        heard: what came after that packet.
    """

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer, more=False)
        self.heard: list[bytes] = []

    def _serve(self, client: socket.socket) -> None:
        ok = b"\0\0\0\2\0\0\0"
        with client, contextlib.suppress(OSError):
            for number, packet in enumerate([GREETING, ok, ok, self._answer]):  # after SET NAMES
                if number:
                    client.recv(1 << 16)
                client.sendall(len(packet).to_bytes(3, "little") + bytes([(0, 2, 1, 1)[number]]) + packet)
            while more := client.recv(1 << 16):
                self.heard.append(more)


@pytest.mark.parametrize("answer", [b"\xfb/etc/passwd", b"\xfb", b"\xfb\xff", b"\x03", b"\xfe", b"\xfc", b"\xff"])
def test_a_mysql_that_asks_for_a_file_gets_none(answer: bytes) -> None:
    """And other packets that are no answer to a statement."""
    with MySQL(answer) as server:
        store = open_store(f"mysql://u:p@127.0.0.1:{server.port}/shop?timeout=2")
        with pytest.raises(StoreUnavailable) as told:
            store.load("g")
        assert ("file" in str(told.value)) == answer.startswith(b"\xfb")
        store.close()
    assert b"root" not in b"".join(server.heard)


@pytest.mark.parametrize(("heard", "most"), [(0, 1 << 20), (1, 1 << 20), (3, 20 << 20)])
def test_a_packet_of_mysql_that_goes_on_and_on_is_given_up(
    monkeypatch: pytest.MonkeyPatch, heard: int, most: int
) -> None:
    """Instead of the greeting, of the answer to the login, and of that to the second statement."""
    monkeypatch.setattr(mysql, "_MOST", 20 << 20)

    class Endless(Listener):
        def _serve(self, client: socket.socket) -> None:
            ok = [b"\7\0\0" + bytes([number]) + b"\0\0\0\2\0\0\0" for number in (2, 1)]
            with client, contextlib.suppress(OSError):
                for packet in [len(GREETING).to_bytes(3, "little") + b"\0" + GREETING, *ok][:heard]:
                    client.sendall(packet)
                    client.recv(1 << 16)
                number = (0, 2, 1, 1)[heard]
                while True:
                    client.sendall(b"\xff\xff\xff" + bytes([number % 256]) + bytes(0xFFFFFF))
                    number += 1

    with Endless(b"", more=True) as server, little():
        store = open_store(f"mysql://u:p@127.0.0.1:{server.port}/shop?timeout=5")
        with pytest.raises(StoreUnavailable, match=f"a packet has more than {most} bytes"):
            store.load("g")
        store.close()


def test_a_greeting_of_mysql_that_makes_no_sense_says_so() -> None:
    with Listener(b"\1\0\0\0\x0a", more=False) as server:
        store = open_store(f"mysql://u:p@127.0.0.1:{server.port}/shop?timeout=2")
        with pytest.raises(StoreUnavailable, match="makes no sense"):
            store.load("g")
        store.close()


class Asking(Listener):
    """A MySQL that asks for the password in clear.

    Attributes:
        heard: what the client said.
    """

    def __init__(self, way: bytes) -> None:
        super().__init__(b"\xfe" + way, more=False)
        self.heard = b""

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.sendall(len(GREETING).to_bytes(3, "little") + b"\0" + GREETING)
            self.heard += client.recv(1 << 16)
            client.sendall(len(self._answer).to_bytes(3, "little") + b"\2" + self._answer)
            while more := client.recv(1 << 16):
                self.heard += more


@pytest.mark.parametrize("way", [b"mysql_clear_password\0", b"dialog\0\4Password: "])
@pytest.mark.parametrize("settings", ["", "&ssl_disabled=true"])
def test_a_mysql_whose_certificate_is_not_checked_gets_no_password_in_clear(way: bytes, settings: str) -> None:
    with Asking(way) as server:
        url = f"mysql://u:geheim@127.0.0.1:{server.port}/shop?timeout=2{settings}"
        store = open_store(url)
        with pytest.raises(Refused) as told:
            store.load("g")
        store.close()
        if not settings:
            batches = iter([pa.record_batch({"n": [1]})])
            rows = insert_rows(read_url(url)[1], "mysql://there", Statements("", ""), [], NONE, batches)
            with pytest.raises(SinkError, match="asks for the password in clear"):
                list(rows)
    assert "nothing was written: the server asks for the password in clear" in str(told.value)
    assert b"geheim" not in server.heard
    assert server.heard


def test_a_mysql_that_is_known_may_ask_for_the_password_in_clear() -> None:
    """By its certificate, or because it is on this machine's own socket."""
    assert "auth_plugin_map" in connectable({"tls": None})
    assert "auth_plugin_map" in connectable({"tls": Tls("ssl_ca", verify=False, identity=False)})
    assert "auth_plugin_map" not in connectable({"tls": Tls("ssl_ca")})
    assert "auth_plugin_map" not in connectable({"tls": None, "unix_socket": "/run/mysqld.sock"})


class Web(Listener):
    """A web server that answers by the method and the operation of WebHDFS, or by the method alone.

    Args:
        answers: HTTP answers by "PUT RENAME" or "PUT"; the last one of a list is given for ever.

    Attributes:
        asked: the headers of requests, and their first "line".
    """

    def __init__(self, answers: dict[str, list[bytes]]) -> None:
        super().__init__(b"", more=False)
        self._answers = answers
        self.asked: list[dict[str, str]] = []

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            client.makefile("rb") as file,
            contextlib.suppress(OSError, ValueError),
        ):  # of a client that goes in the middle
            while line := file.readline().decode():
                headers = dict(each.decode().lower().split(": ") for each in iter(file.readline, b"\r\n"))
                self.asked.append({name: text.strip() for name, text in headers.items()} | {"line": line})
                if "100-continue" in headers.get("expect", ""):
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                file.read(int(headers.get("content-length", 0)))
                method, _, path = line.partition(" ")
                operation = path.partition("op=")[2].partition("&")[0].split()
                answers = self._answers[" ".join([method, *operation[:1]])]
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                client.sendall(answer.replace(b"PORT", str(self.port).encode()))


TRUE = http(b'{"boolean": true}')
PAGE = http(b"<html>Please log in: hunter2</html>", "text/html")
STATUS = b'{"FileStatus": {"pathSuffix": "", "type": "FILE", "modificationTime": 1, "length": 1, "replication": 1}}'
NOT_THERE = http(b'{"RemoteException": {"exception": "FileNotFoundException", "message": "x"}}', status="404 Not Found")
ODD_AFTER = [PAGE, http(b"{}"), http(b"null"), http(b"[]"), http(b'{"boolean": 1}'), http(b"x"), http(b"\xff")]


@pytest.mark.parametrize("answer", [*ODD_AFTER, http(b"", "a/b", "307 Temporary Redirect")])
@pytest.mark.parametrize("after", ["PUT RENAME", "GET GETFILESTATUS"])
def test_after_a_file_of_hdfs_was_named_an_odd_answer_is_no_refusal(after: str, answer: bytes) -> None:
    there = http(b"", "a/b", "307 Temporary Redirect", "Location: http://127.0.0.1:PORT/webhdfs/v1/x?op=WRITE")
    answers = {
        "GET LISTSTATUS": [NOT_THERE],
        "PUT MKDIRS": [TRUE],
        "PUT CREATE": [there],
        "PUT WRITE": [http(b"", "a/b", "201 Created")],
        "PUT RENAME": [http(b"", "a/b")],
        "GET GETFILESTATUS": [http(STATUS)],
    }
    with Web({**answers, after: [answer]}) as server:
        store = open_store(f"webhdfs://u@127.0.0.1:{server.port}/store?timeout=5")
        with pytest.raises(OutcomeUnknown) as told:
            store.apply(CHANGE)
        store.close()
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("answer", [PAGE, http(b"", "a/b", "204 No Content"), http(b"", "a/b", "502 Bad Gateway")])
def test_after_an_object_of_s3_was_sent_an_odd_answer_is_no_refusal(answer: bytes) -> None:
    xml = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    put = http(b"", "a/b", "200 OK", 'ETag: "x"')
    exists = http(b"", "a/b", "412 Precondition Failed")
    with Web({"GET": [http(xml, "application/xml")], "PUT": [put, exists, answer]}) as server:
        store = open_store(
            f"s3://key:secret@bucket/x?endpoint_url=http://127.0.0.1:{server.port}&region=us-east-1&timeout=5"
        )
        with pytest.raises(OutcomeUnknown) as told:
            store.apply(CHANGE)
        store.close()
    assert "hunter2" not in str(told.value)


class ZooKeeper(Listener):
    """A ZooKeeper without nodes, except for some answers.

    Args:
        answers: the bodies of replies by the number of the operation; the last one of a list is given for ever.
    """

    def __init__(self, answers: dict[int, list[bytes]]) -> None:
        super().__init__(b"", more=False)
        self._answers = {GET: [], MULTI: [NOTHING_DONE], EXISTS: [bytes(68)], CHILDREN: [bytes(4)], **answers}

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as file, contextlib.suppress(OSError):
            self._heard(file)
            self._tell(client, bytes(4) + (10_000).to_bytes(4, "big") + bytes(8) + b"\0\0\0\x10" + bytes(17))
            while request := self._heard(file):
                answers = self._answers.get(int.from_bytes(request[4:8], "big"), [b""])
                body = answers.pop(0) if len(answers) > 1 else next(iter(answers), None)
                failed = (-101).to_bytes(4, "big", signed=True)  # no such node
                self._tell(client, request[:4] + bytes(8) + (failed if body is None else bytes(4) + body))

    def _heard(self, file: Any) -> bytes:
        return bytes(file.read(int.from_bytes(file.read(4), "big")))

    def _tell(self, client: socket.socket, message: bytes) -> None:
        client.sendall(len(message).to_bytes(4, "big") + message)


EXISTS, GET, CHILDREN, MULTI = 3, 4, 8, 14
NOTHING_DONE = b"\xff\xff\xff\xff\1\xff\xff\xff\xff"
ODD_BODIES = [b"", b"\0", b"\x7f\xff\xff\xff", b"\0\0\0\2\xff\xff"]


@pytest.mark.parametrize("body", ODD_BODIES)
@pytest.mark.parametrize(("operation", "before"), [(GET, []), (MULTI, []), (MULTI, [NOTHING_DONE, NOTHING_DONE])])
def test_a_reply_of_zookeeper_that_cannot_be_read_is_no_answer(
    operation: int, before: list[bytes], body: bytes
) -> None:
    with ZooKeeper({operation: [*before, body]}) as server:
        store = open_store(f"zookeeper://127.0.0.1:{server.port}?timeout=5")
        with pytest.raises(OutcomeUnknown if before else StoreUnavailable):
            store.apply(CHANGE)
        store.close()


def test_a_node_of_zookeeper_without_data_is_damaged() -> None:
    """Other programs can make such a node."""
    with ZooKeeper({GET: [b"\xff" * 4 + bytes(68)]}) as server:
        store = ZooKeeperStore(f"zookeeper://127.0.0.1:{server.port}?timeout=5")
        with pytest.raises(CorruptStore):
            store.load("g")
        assert store.server_settings() == {"participants": "1"}
        store.close()
    with pytest.raises(CorruptStore, match="here"):
        load_row("/consumers/g/offsets/a/0", None, "here")


def test_a_mistake_of_our_own_is_not_taken_for_an_odd_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise LookupError("ours")

    monkeypatch.setattr("offsetkeeper.stores.zookeeper.store.load_document", wrong)
    with ZooKeeper({GET: [b"\0\0\0\2{}" + bytes(68)]}) as server:
        store = ZooKeeperStore(f"zookeeper://127.0.0.1:{server.port}?timeout=5")
        with pytest.raises(LookupError, match="ours"):
            store.load("g")
        store.close()


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "br"])
def test_an_answer_of_hdfs_that_is_compressed_is_not_read(encoding: str) -> None:
    """A few kilobytes may become all memory."""
    packed = http(gzip.compress(b"{}"), "application/json", "200 OK", f"Content-Encoding: {encoding}")
    with Web({"GET LISTSTATUS": [packed]}) as server, hdfs(server) as store:
        with pytest.raises(StoreUnavailable, match="compressed"):
            store.groups()
        assert server.asked[-1]["accept-encoding"] == "identity"


def test_where_memory_ends_in_an_answer_of_hdfs_the_error_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("httpx.Response.iter_raw", full)
    found = {"GET LISTSTATUS": [http(b"{}")]}
    with Web(found) as server, hdfs(server) as store, pytest.raises(StoreUnavailable, match="MemoryError"):
        store.groups()


def test_no_log_has_the_token_of_a_redirect_of_hdfs(caplog: pytest.LogCaptureFixture) -> None:
    there = "Location: http://127.0.0.1:PORT/webhdfs/v1/x?op=READ&delegation=hunter2"
    answers = {
        "GET LISTSTATUS": [listed(name="000000000001.json", type="FILE")],
        "GET GETFILESTATUS": [http(STATUS)],
        "GET OPEN": [http(b"", "a/b", "307 Temporary Redirect", there)],
        "GET READ": [http(b"{}")],
    }
    with Web(answers) as server, hdfs(server) as store, caplog.at_level(logging.DEBUG):
        with pytest.raises(CorruptStore):
            store.load("g")
        assert any("delegation=hunter2" in each["line"] for each in server.asked)
    assert "hunter2" not in caplog.text
    assert all(logging.getLogger(name).filters for name in ("httpx", "httpcore.http11"))


def listed(name: str = "g", **status: object) -> bytes:
    """Return the list of one folder, or of another status, by WebHDFS."""
    usual = {"type": "DIRECTORY", "modificationTime": 1, "length": 1, "replication": 1, "childrenNum": 1}
    return http(json.dumps({"FileStatuses": {"FileStatus": [{"pathSuffix": name, **usual, **status}]}}).encode())


@contextlib.contextmanager
def hdfs(server: Web) -> Iterator[Any]:
    """Yield a store at such a server."""
    store = open_store(f"webhdfs://u@127.0.0.1:{server.port}/store?timeout=5")
    try:
        yield store
    finally:
        store.close()


NO_NUMBERS = [10**400, 2**63, -1, True, 1.5, None]


@pytest.mark.parametrize(
    "status",
    [
        {"name": ""},
        {"name": "a/../../b"},
        *({name: value} for name in ("modificationTime", "length", "replication") for value in NO_NUMBERS),
    ],
)
def test_a_status_of_hdfs_that_no_file_can_have_is_no_answer(status: dict[str, Any]) -> None:
    """A folder without a name would be its own child."""
    with Web({"GET LISTSTATUS": [listed(**status)]}) as server:
        with hdfs(server) as store, pytest.raises(OffsetkeeperError, match="not that of WebHDFS"):
            store.groups()
        files = open_hdfs(f"webhdfs://u@127.0.0.1:{server.port}/checkpoint?timeout=5")
        with pytest.raises(OffsetkeeperError, match="not that of WebHDFS"):
            files.stamps("offsets")
        files.close()


def test_a_folder_that_is_no_group_is_not_listed() -> None:
    """Commands could not name it."""
    names = ["", "..", " x", "a:b", "x" * 250, "g"]
    prefixes = "".join(f"<CommonPrefixes><Prefix>x/{name}/</Prefix></CommonPrefixes>" for name in names)
    xml = f"<ListBucketResult><IsTruncated>false</IsTruncated>{prefixes}</ListBucketResult>".encode()
    with Web({"GET": [http(xml, "application/xml")]}) as server:
        store = open_store(
            f"s3://key:secret@bucket/x?endpoint_url=http://127.0.0.1:{server.port}&region=us-east-1&timeout=5"
        )
        assert store.groups() == ["g"]
        store.close()
    for name in ["a:b", "\ud800", "\x1b[31m"]:
        with Web({"GET LISTSTATUS": [listed(name)]}) as server, hdfs(server) as store:
            assert store.groups() == []


@pytest.mark.parametrize("renamed", [b'{"boolean": false}', b'{"boolean": 1}'])
def test_a_file_of_a_checkpoint_that_was_not_renamed_was_not_written(renamed: bytes) -> None:
    """HttpFS knows no `renameoptions`, and renames over no file."""
    there = http(b"", "a/b", "307 Temporary Redirect", "Location: http://127.0.0.1:PORT/webhdfs/v1/x?op=WRITE")
    answers = {
        "DELETE DELETE": [TRUE],
        "PUT CREATE": [there],
        "PUT WRITE": [http(b"", "a/b", "201 Created")],
        "PUT RENAME": [http(renamed)],
    }
    told = renamed.endswith(b"false}")
    with Web(answers) as server:
        files = open_hdfs(f"webhdfs://u@127.0.0.1:{server.port}/checkpoint?timeout=5")
        with pytest.raises(Refused if told else StoreUnavailable, match="HttpFS" if told else "not that of WebHDFS"):
            files.write("offsets/1", b"x")
        if told:
            assert files.create("offsets/1", b"x") is False
        files.close()


def test_an_object_of_s3_is_not_read_past_the_size_it_tells() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: x\r\nTransfer-Encoding: chunked\r\n\r\n7fffffff\r\n"
    with Listener(head, more=True) as server, little():
        url = f"s3://key:secret@bucket/x?endpoint_url=http://127.0.0.1:{server.port}&region=us-east-1&timeout=5"
        files = open_s3(url)
        with pytest.raises(OffsetkeeperError, match="bucket"):
            files.read("offsets/1")
        files.close()
