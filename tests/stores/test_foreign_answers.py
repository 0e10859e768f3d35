"""A port that answers what makes no sense: each client raises an error of ours soon, and takes little memory.

The listener is a fake, as no real server answers so.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import quote

import pytest

from offsetkeeper.checkpoint.s3 import open_s3
from offsetkeeper.clients.hdfs import OWN, WebHdfs
from offsetkeeper.clients.url import read_url
from offsetkeeper.core import rules
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable
from offsetkeeper.sinks.cassandra.url import read_place
from offsetkeeper.stores import open_store

CHANGE = rules.decide(
    Snapshot("g"), rules.Rewind({TopicPartition("a", 0): Position(1)}), rules.Author("me", "me", 0, "id")
)
SOON_S = 15.0
MUCH = 300 << 10  # KiB
ENDLESS = b"\0" * (1 << 20)


def http(body: bytes, kind: str = "application/json", status: str = "200 OK", *headers: str) -> bytes:
    """Return an answer of an HTTP server."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


FRAMES = {
    "HTTP": http(b"<html>Bad Request</html>", "text/html", "400 Bad Request"),
    "a frame of 2 GB": b"\x7f\xff\xff\xf0",
    "a frame of 4 GB": b"\xff\xff\xff\xff",
    "bytes": bytes(range(1, 256)),
    "zeros": bytes(512),
    "nothing": b"",
}
UNREADABLE = "a redirect to another kind"
ODD = {
    "{}": http(b"{}"),
    "null": http(b"null"),
    "a list": http(b"[1]"),
    "a text": http(b'"FileStatuses"'),
    "no list in it": http(b'{"FileStatuses": {"FileStatus": 3}, "FileStatus": [], "boolean": 1}'),
    "files without names": http(b'{"FileStatuses": {"FileStatus": [{}]}, "FileStatus": {}}'),
    "not UTF-8": http(b"\xff\xfe{}"),
    "deep": http(b"[" * 100_000),
    "lists": http(b'{"FileStatuses":[' + b"[]," * 5_000_000 + b"0]}"),
    "HTML": http(b"<html><body>login</body></html>", "text/html"),
    "XML of another kind": http(b'<?xml version="1.0"?><rss><channel/></rss>', "application/xml"),
    "XML that ends": http(b'<?xml version="1.0"?><ListBucketResult><Contents>', "application/xml"),
    "keys without names": http(
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Size>x</Size></Contents></ListBucketResult>",
        "application/xml",
    ),
    "a redirect to elsewhere": http(b"", "text/plain", "307 Temporary Redirect", "Location: http://127.0.0.1:1/x"),
    UNREADABLE: http(b"", "text/plain", "307 Temporary Redirect", "Location: ftp://[x"),
    "a redirect to nowhere": http(b"", "text/plain", "307 Temporary Redirect"),
    "5 GB": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5000000000\r\n\r\n",
    "a success without content": http(b"", "application/json", "204 No Content"),
    "a gateway's error": http(b"<html>Bad Gateway</html>", "text/html", "502 Bad Gateway"),
}
BINARY = {
    "mysql": "mysql://root@127.0.0.1:{}/shop?timeout=2",
    "postgresql": "postgresql://postgres@127.0.0.1:{}/shop?timeout=2&connect_timeout=2",
    "redis": "redis://127.0.0.1:{}/0?timeout=2",
    "zookeeper": "zookeeper://127.0.0.1:{}?timeout=2",
    "hbase": "hbase://127.0.0.1:{}?timeout=2",
    "hbase, framed": "hbase://127.0.0.1:{}?timeout=2&transport=framed",
    "hbase, compact": "hbase://127.0.0.1:{}?timeout=2&protocol=compact",
    "kafka": "kafka://127.0.0.1:{}?timeout=2",
    "cassandra": "cassandra://127.0.0.1:{}/?timeout=2",
}
WEB = {
    "s3": "s3://key:secret@bucket/x?endpoint_url=http://127.0.0.1:{}&region=us-east-1&timeout=2",
    "webhdfs": "webhdfs://u@127.0.0.1:{}/store?timeout=2",
}


class Listener:
    """Answers each connection with the same bytes, after it has said something; a context manager.

    Args:
        answer: the bytes.
        more: whether zeros follow until the client has enough.
    """

    def __init__(self, answer: bytes, *, more: bool) -> None:
        self._answer, self._more = answer, more
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=self._server.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(0.3)  # MySQL's client waits for the server's first word
            with contextlib.suppress(TimeoutError):
                client.recv(1 << 16)
            client.settimeout(10)
            client.sendall(self._answer)
            while self._more:
                client.sendall(ENDLESS)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                client.sendall(self._answer)


def load(url: str) -> None:
    """Read a group."""
    _with(url, lambda store: store.load("g"))


def groups(url: str) -> None:
    """List the groups."""
    _with(url, lambda store: store.groups())


def change(url: str) -> None:
    """Write a change."""
    _with(url, lambda store: store.apply(CHANGE))


def _with(url: str, ask: Callable[[Any], object]) -> None:
    if url.startswith("cassandra"):
        with read_place(url)[0].session() as session:
            session.execute("SELECT 1")
        return
    store = open_store(url)
    try:
        ask(store)
    finally:
        store.close()


@contextlib.contextmanager
def little() -> Iterator[None]:
    """The block takes few seconds and little memory."""
    began, held = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - began < SOON_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < MUCH


def answered(url: str, answer: bytes, ask: Callable[[str], None], *, more: bool) -> OffsetkeeperError:
    """Return the error of ours that a client raises."""
    with Listener(answer, more=more) as listener, little(), pytest.raises(OffsetkeeperError) as told:
        ask(url.format(listener.port))
    assert "127.0.0.1" in str(told.value) or "bucket" in str(told.value)
    return told.value


@pytest.mark.parametrize("ask", [load, change])
@pytest.mark.parametrize("answer", FRAMES)
@pytest.mark.parametrize("client", BINARY)
def test_a_port_of_another_kind_is_an_error_of_ours(client: str, answer: str, ask: Callable[[str], None]) -> None:
    told = answered(BINARY[client], FRAMES[answer], ask, more="GB" in answer)
    assert not isinstance(told, OutcomeUnknown)  # no change was on its way yet


@pytest.mark.parametrize("ask", [load, change, groups])
@pytest.mark.parametrize("answer", [*ODD, *FRAMES])
@pytest.mark.parametrize("client", WEB)
def test_a_web_server_of_another_kind_is_an_error_of_ours(client: str, answer: str, ask: Callable[[str], None]) -> None:
    told = answered(WEB[client], {**ODD, **FRAMES}[answer], ask, more="GB" in answer)
    assert not isinstance(told, OutcomeUnknown)
    if (client, answer) == ("s3", UNREADABLE):
        del told
        with warnings.catch_warnings():  # its library leaves this connection open, for the garbage collector
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def test_a_web_page_is_not_an_empty_bucket() -> None:
    """The library of S3 takes it for one, so that a group would count as new."""
    told = answered(WEB["s3"], ODD["HTML"], load, more=False)
    assert "is not a list of objects, so this is not a server of S3" in str(told)


def listing(cut: str, more: bytes) -> bytes:
    """Return an answer of S3 with objects or groups, whole or cut."""
    return http(
        b"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>%s</IsTruncated>%s</ListBucketResult>"
        % (cut.encode(), more),
        "application/xml",
    )


PREFIX = b"<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>"
KEY = b"<Contents><Key>%s</Key><Size>1</Size></Contents>"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (listing("true", PREFIX % b"x/g/" + b"<NextMarker>x/g/</NextMarker>"), "does not know ListObjectsV2"),
        (listing("false", PREFIX % b"other/g/"), "not asked for"),
        (listing("false", KEY % b"other/g/000000000001.json"), "not asked for"),
    ],
    ids=["cut without a token", "another folder", "another object"],
)
@pytest.mark.parametrize("ask", [load, groups])
def test_a_list_of_s3_that_is_not_the_one_that_was_asked_for_is_refused(
    ask: Callable[[str], None], answer: bytes, why: str
) -> None:
    """Its library takes a list that is cut and has no token for a whole one: a server may know ListObjects alone."""
    told = answered(WEB["s3"], answer, ask, more=False)
    assert isinstance(told, Refused)
    assert why in str(told)


def test_an_object_of_s3_with_two_slashes_is_of_no_group() -> None:
    with Listener(listing("false", PREFIX % b"x//"), more=False) as server:
        store = open_store(WEB["s3"].format(server.port))
        assert store.groups() == []
        store.close()


def test_the_longest_list_of_s3_is_read() -> None:
    names = [f"x/{n:04}{chr(233) * 508}" for n in range(1_000)]  # 1,022 bytes each, and three times as many quoted
    owner = b"<Owner><ID>%s</ID></Owner><ETag>&quot;%s&quot;</ETag>" % (b"1" * 64, b"1" * 38)
    page = b"".join((KEY % quote(name).encode()).replace(b"<Size>", owner + b"<Size>") for name in names)
    with Listener(listing("false", page), more=False) as server:
        files = open_s3(WEB["s3"].format(server.port))
        assert files.names("") == [name.removeprefix("x/") for name in names]
        files.close()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("declared", ['<!ENTITY a "{}">', '<!ATTLIST CommonPrefixes a CDATA "{}">'])
def test_an_answer_of_s3_that_declares_what_grows_is_not_parsed(declared: str, encoding: str) -> None:
    text = (
        f"<!DOCTYPE x [{declared.format('A' * 10_000)}]>"
        + listing("false", (PREFIX % b"x/&a;/" if "ENTITY" in declared else b"<CommonPrefixes/>") * 20_000)
        .partition(b"\r\n\r\n")[2]
        .decode()
    )
    told = answered(WEB["s3"], http(text.encode(encoding), "application/xml"), groups, more=False)
    assert "declares" in str(told)


def test_a_file_of_hdfs_without_an_end_is_not_read_to_it() -> None:
    """The request names the bytes that are wanted, but a DataNode may send more."""
    with Listener(b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n", more=True) as data:
        there = f"Location: http://127.0.0.1:{data.port}/x"
        with Listener(http(b"", "text/plain", "307 Temporary Redirect", there), more=False) as name:
            client = WebHdfs(read_url(f"webhdfs://127.0.0.1:{name.port}/store?timeout=5", ("timeout",), OWN))
            with (
                contextlib.closing(client),
                little(),
                pytest.raises(StoreUnavailable, match="the answer has more than"),
            ):
                client.read("/store/1.json")
