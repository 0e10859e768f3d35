"""Clients that send half a request, or nothing: nobody else waits for them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from monitor.gallery import Gallery, group
from monitor.scene import Scene, Served
from offsetkeeper.monitor import app, connections
from offsetkeeper.monitor.connections import Connection
from offsetkeeper.monitor.gate import Gate

LIMIT_S = 30
HALF = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@contextmanager
def files(wanted: int) -> Iterator[None]:
    """Let this process, and those that it starts meanwhile, have so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_half_open_requests_than_files_stop_no_answer(scene: Scene) -> None:
    scene.group("shop", scene.topic(1, 1), [1])
    with ExitStack() as stack:
        with files(1024):
            server = stack.enter_context(Served(scene.store, scene.server.bootstrap))
        stack.enter_context(files(4096))
        where = urlsplit(server.url)
        for number in range(1100):
            here = (f"127.0.0.{number % 20 + 2}", 0)  # so that none has as many as an address may have
            server_at = (where.hostname, where.port)
            half = stack.enter_context(socket.create_connection(server_at, LIMIT_S, source_address=here))
            half.sendall(HALF)
            if number % 100 == 0:
                assert httpx.get(f"{server.url}/healthz", timeout=LIMIT_S, trust_env=False).text.startswith("ok, ")
        assert "shop" in httpx.get(server.url, timeout=LIMIT_S, trust_env=False).text
    assert server.output == ""


@pytest.mark.parametrize("listening", [[50], [40] * 5], ids=["one address", "five addresses"])
def test_no_more_pages_listen_than_may(listening: list[int], scene: Scene) -> None:
    """Whoever comes last gets its events too, from those who have most. Four addresses shut out all others."""

    async def listens(answer: httpx.Response, look: int) -> bool:
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and json.loads(line[6:])["look"] >= look:
                return True
        return False

    async def listen(server: Served) -> list[int]:
        async with AsyncExitStack() as stack, asyncio.timeout(LIMIT_S):
            answers = []
            for number in range(len(listening)):
                limits = httpx.Limits(max_connections=None)
                here = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{1 + number}", limits=limits)
                client = await stack.enter_async_context(httpx.AsyncClient(timeout=LIMIT_S, transport=here))
                asked = [client.build_request("GET", f"{server.url}/events") for _ in range(60)]
                answers.append(await asyncio.gather(*(client.send(each, stream=True) for each in asked)))
            look = server.json("/api/health")["look"] + 1  # who listens no more may have heard of the ones before
            found = [await asyncio.gather(*(listens(answer, look) for answer in each)) for each in answers]
            for answer in itertools.chain(*answers):
                await answer.aclose()
            assert [answer.status_code for answer in answers[0]].count(503) == 10
            return [sum(each) for each in found]

    scene.group("shop", scene.topic(1, 1), [1])
    with Served(scene.store, scene.server.bootstrap) as server:
        assert asyncio.run(listen(server)) == listening
    assert server.output == ""


@pytest.mark.parametrize(
    "sent", [b"", HALF, HALF + b"\r\n" + HALF], ids=["nothing", "half a request", "half of a second request"]
)
def test_a_request_that_does_not_come_is_not_waited_for(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    assert asyncio.run(exchange(sent)).count(b"200 OK") == sent.count(b"\r\n\r\n")


def test_a_long_answer_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.05)
    whole = HALF.replace(b"/ ", b"/slow ") + b"connection: close\r\n\r\n"
    assert (asyncio.run(exchange(whole))).endswith(b"ok")


@pytest.mark.parametrize("pace", [0, 1024], ids=["reads nothing", "reads a little, again and again"])
def test_an_answer_that_is_not_read_is_not_kept(pace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a piece of it waits in memory, and not for long."""

    async def unread() -> tuple[int, int]:
        async with listening({}) as (address, state), asyncio.timeout(LIMIT_S):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)  # noqa: FBT003 - takes no name
                loop = asyncio.get_running_loop()
                await loop.sock_connect(client, address)
                await loop.sock_sendall(client, HALF.replace(b"/ ", b"/long ") + b"\r\n")
                most = read = 0
                while state.connections or not read:
                    most = max([most, *(each.transport.get_write_buffer_size() for each in state.connections)])
                    read += len(await loop.sock_recv(client, pace)) if pace else most
                    await asyncio.sleep(0.01)
                return most, read

    monkeypatch.setattr(connections, "READ_S", 0.5)
    most, read = asyncio.run(unread())
    assert 0 < most < 300_000
    assert read < LONG


def test_an_answer_is_whole_in_whatever_pieces_it_is_sent() -> None:
    whole = HALF.replace(b"/ ", b"/long ") + b"connection: close\r\n\r\n"
    answer = asyncio.run(exchange(whole))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {LONG}".encode() in head
    assert body == bytes(range(250)) * (LONG // 250)


def test_requests_that_are_sent_before_an_answer_is_read_are_not_answered() -> None:
    """A client that pipelines sends them again; one that never reads makes no work."""
    asked = HALF + b"\r\n"
    assert asyncio.run(exchange(asked * 50)).count(b"200 OK") == 1


def test_a_request_of_two_lengths_is_refused() -> None:
    """A proxy may take the rest of it for another client's request."""
    twice = HALF + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert asyncio.run(exchange(twice + HALF + b"\r\n")).count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 400 " in asyncio.run(exchange(twice))


@pytest.mark.parametrize("settings", [{}, {"proxy_headers": True, "forwarded_allow_ips": ["127.0.0.0/8"]}])
def test_one_address_takes_no_more_than_its_share_of_connections(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that waits for longest gives way; the connections of a trusted proxy are of many clients."""
    monkeypatch.setattr(connections, "MOST_OF_ONE", 3)

    async def share() -> list[str]:
        async with listening(settings) as (address, _), asyncio.timeout(LIMIT_S):
            every = [await asyncio.open_connection(*address) for _ in range(5)]
            other = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
            for _, writer in (*every, other):
                writer.write(HALF + b"connection: close\r\n\r\n")
            found = [await _read(reader) for reader, _ in (*every, other)]
            for _, writer in (*every, other):
                writer.close()
            return ["answered" if b"200 OK" in each else "closed" for each in found]

    gone = 0 if settings else 2
    assert asyncio.run(share()) == ["closed"] * gone + ["answered"] * (6 - gone)


def test_connections_that_are_being_answered_count_for_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none of them waits for its client, the oldest gives way: whoever asks anew is answered."""
    monkeypatch.setattr(connections, "MOST_OF_ONE", 3)

    async def kept() -> tuple[list[bytes], int]:
        async with listening({}) as (address, state), asyncio.timeout(LIMIT_S):
            every = []
            for number in range(6):
                here = ("127.0.0.2" if number == 0 else "127.0.0.1", 0)  # the oldest of all is of another address
                reader, writer = await asyncio.open_connection(*address, local_addr=here)
                every.append((reader, writer))
                writer.write(HALF.replace(b"/ ", b"/endless ") + b"\r\n")
                await reader.readuntil(b"begun")
            gone = [await _read(reader) for reader, _ in every[1:3]]
            left = len(state.connections)
            for _, writer in every:
                writer.close()
            return gone, left

    gone, left = asyncio.run(kept())
    assert b"begun" not in b"".join(gone)
    assert left == 4


@pytest.mark.parametrize("pause_s", [0.05, 1.3], ids=["two parts", "longer than a connection may be idle"])
def test_a_request_may_come_in_parts_on_a_connection_that_had_one(pause_s: float) -> None:
    """A request has its own time. It was cut off where it began within the idle time, and ended after it."""

    async def ask() -> bytes:
        async with listening({}) as (address, _), asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HALF + b"\r\n")
            await reader.readuntil(b"ok")
            writer.write(HALF)
            await asyncio.sleep(pause_s)  # so that the server has it alone
            writer.write(b"connection: close\r\n\r\n")
            found = await _read(reader)
            writer.close()
            return found

    assert b"200 OK" in asyncio.run(ask())


@pytest.mark.parametrize("more", [b"\r\n", HALF + b"\r\n", b"\0"], ids=["a blank line", "a request", "junk"])
@pytest.mark.parametrize("last", [HALF.replace(b"1.1", b"1.0") + b"\r\n", HALF + b"connection: close\r\n\r\n"])
@pytest.mark.parametrize("at_once", [True, False])
def test_what_follows_the_last_request_is_thrown_away(
    last: bytes,
    more: bytes,
    at_once: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page did not come, and the connection stayed for ever."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)

    async def ask() -> tuple[bytes, int]:
        async with listening({}) as (address, state), asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(last.replace(b"/ ", b"/slow ") + more * at_once)
            if not at_once:
                await asyncio.sleep(0.05)  # so that the server has the request alone
                writer.write(more)
            found = await _read(reader)
            while state.connections:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            writer.close()
            return found, len(state.connections)

    found, left = asyncio.run(ask())
    assert (found.count(b"HTTP/1.1 "), found.count(b"200 OK"), left) == (1, 1, 0)


def test_an_upgrade_is_no_way_to_send_requests_before_the_answer() -> None:
    asked = HALF + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    assert asyncio.run(exchange(asked * 50)).count(b"200 OK") == 1


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (b"a:b\r\n" * 30_000 + b"\r\n", 431),
        (b"a:b\r\n" * 99 + b"\r\n", 431),
        (b"cookie: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"a:" + b" " * 15_000 + b"\0\r\n\r\n", 400),
        (b"a:" + b"\r\n\t \t" * 3_000 + b"\0\r\n\r\n", 431),
        (b"content-length: 1000001\r\n\r\n" + bytes(50_000), 413),
        (b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 30_000, 411),
    ],
    ids=["headers", "lines", "a long head", "blanks", "folded blanks", "a long body", "tiny chunks"],
)
def test_what_is_dear_to_read_is_not_read(more: bytes, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these once kept all others waiting for half a second or two, and was one of hundreds."""
    parsed, original = [], H11Protocol.data_received

    def data_received(self: H11Protocol, data: bytes) -> None:
        parsed.append(len(data))
        original(self, data)

    monkeypatch.setattr(H11Protocol, "data_received", data_received)
    assert b"HTTP/1.1 %d " % code in asyncio.run(exchange(HALF + more))
    assert sum(parsed) < (25_000 if code in {411, 413} else 1)


def test_cookies_of_twenty_kilobytes_are_read() -> None:
    """A proxy with a login may add them."""
    asked = HALF + b"cookie: " + b"x" * 20_000 + b"\r\nconnection: close\r\n\r\n"
    assert b"HTTP/1.1 200 " in asyncio.run(exchange(asked))


def test_a_head_may_come_byte_by_byte_and_with_the_next_one() -> None:
    async def ask() -> bytes:
        async with listening({}) as (address, _), asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in HALF.replace(b"GET", b"POST") + b"content-length: 3\r\n\r\nabc":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            found = await reader.readuntil(b"ok")
            writer.write(HALF + b"\n")  # a line may end with a line feed alone
            found += await reader.readuntil(b"ok")
            writer.close()
            return found

    assert asyncio.run(ask()).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("first", [b"\x16\x03\x01\x02", b"\r\n\r\n", b" GET / HTTP/1.1\r\n", HALF + b"a:\0\r\n\r\n"])
def test_what_cannot_become_a_request_is_answered_at_once(first: bytes) -> None:
    assert asyncio.run(exchange(first)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("head", "code"),
    [(b"content-length: 1500000\r\n\r\n", 413), (b"transfer-encoding: chunked\r\n\r\n", 411), (b"a:b\r\n" * 200, 431)],
    ids=["a long body", "chunks", "headers"],
)
def test_who_still_sends_gets_the_answer(head: bytes, code: int) -> None:
    """Closed at once, the connection would be reset, and the answer lost with it."""

    async def send_then_read() -> bytes:
        async with listening({}) as (address, _), asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HALF.replace(b"GET", b"POST") + head)
            for _ in range(100):
                writer.write(bytes(15_000))
                await writer.drain()
                await asyncio.sleep(0.001)
            found = await reader.read()
            writer.close()
            return found

    assert asyncio.run(send_then_read()).startswith(b"HTTP/1.1 %d " % code)


def test_a_client_that_has_gone_before_the_loop_knows_it_is_no_error_in_the_log() -> None:
    """The transport is made up: the network tells of it in the moment between two calls of the loop."""

    class Gone:
        """A transport whose client has gone."""

        def is_closing(self) -> bool:
            """See `asyncio.BaseTransport`."""
            return False

        def write_eof(self) -> None:
            """See `asyncio.WriteTransport`."""
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    gone: Any = Gone()
    connections._ReadsOn(gone).close()


def test_who_sends_without_end_is_not_read_for_ever() -> None:
    async def send() -> int:
        async with listening({}) as (address, _), asyncio.timeout(LIMIT_S):
            _, writer = await asyncio.open_connection(*address)
            writer.write(HALF + b"content-length: 900000000\r\n\r\n")
            sent = 0
            try:
                while sent < 900_000_000:
                    writer.write(bytes(100_000))
                    sent += 100_000
                    await writer.drain()
            except OSError:
                pass
            return sent

    assert asyncio.run(send()) < 30_000_000


def test_a_request_for_the_head_of_events_has_an_end() -> None:
    """A stream that sends nothing would never learn that its client is gone."""
    with Gallery() as gallery:
        where = urlsplit(gallery.url)
        with socket.create_connection((where.hostname, where.port), LIMIT_S) as client:
            client.sendall(HALF.replace(b"GET /", b"HEAD /events") + b"connection: close\r\n\r\n")
            answer = client.makefile("rb").read()
    assert b"content-type: text/event-stream" in answer


def test_limits_that_are_none_make_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is kept until the next poll."""
    made: list[int] = []
    monkeypatch.setattr(app, "history_fields", lambda entries: made.append(len(entries)) or [])  # type: ignore[func-returns-value]
    monkeypatch.setitem(app._OF_GROUP, "history", app._history)
    with Gallery() as gallery:
        gallery.show(group("shop"))
        for query in ("", "?limit=", "?limit=20", *(f"?limit={'x' * size}" for size in range(1, 9))):
            assert httpx.get(f"{gallery.url}/api/history/shop{query}", timeout=LIMIT_S, trust_env=False).json() == []
    assert len(made) == 1


def test_the_page_of_all_partitions_has_an_end() -> None:
    """One of 10,000 took a second and five megabytes, for each who asked."""
    many, topics = group("many", [1] * 1005), [f"topic-{number}" for number in range(103)]
    with Gallery() as gallery:
        gallery.show(many, group("spread", [1] * 206, topics=topics))
        for path, counts, more in (
            ("many", (200, 1000), "The 200 partitions that are most behind. .*Show 1,000</a>"),
            ("many?all", (1000, 1000), "The 1,000 partitions that are most behind. .*All, as JSON</a>"),
            ("spread", (200, 20), "The 10 topics that are most behind. .*Show 100</a>"),
            ("spread?all", (206, 200), "The 100 topics that are most behind. .*All, as JSON</a>"),
        ):
            page = httpx.get(f"{gallery.url}/groups/{path}", timeout=LIMIT_S, trust_env=False).text
            assert (page.count('<td class="share"'), page.count("<li class")) == counts
            assert re.search(more, page)
        whole = httpx.get(f"{gallery.url}/api/lag/many", timeout=LIMIT_S, trust_env=False).json()
    assert len(whole["partitions"]) == 1005


def test_a_crowd_that_asks_for_long_pages_and_reads_nothing_shuts_out_nobody() -> None:
    """From several addresses, one of them also that of whoever asks in earnest."""
    asked = b"GET /groups/big?all HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 50
    with files(4096), ExitStack() as stack:
        gallery = stack.enter_context(Gallery())
        where = urlsplit(gallery.url)
        gallery.show(group("big", [1] * 3000), group("small", [1]))
        for number in range(500):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.bind((f"127.0.0.{number % 5 + 1}", 0))
            client.connect((where.hostname, where.port))
            client.sendall(asked if number % 2 else HALF)
        for path, found in (("/healthz", "ok"), ("/metrics", 'group="small"'), ("/groups/small", "small")):
            assert found in httpx.get(gallery.url + path, timeout=10, trust_env=False).text


LONG = 5_000_000


async def _without_end() -> AsyncIterator[bytes]:
    yield b"begun"
    await asyncio.Event().wait()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@asynccontextmanager
async def listening(settings: dict[str, Any]) -> AsyncIterator[tuple[tuple[str, int], ServerState]]:
    """A server with a short answer, a slow one and a long one, and the state of its connections."""

    async def answer(request: object) -> PlainTextResponse:
        del request
        return PlainTextResponse("ok")

    async def slow(request: object) -> PlainTextResponse:
        await asyncio.sleep(0.5)  # ten times as long as a request may take to come
        return await answer(request)

    async def long(request: object) -> Response:
        del request
        return Response(bytes(range(250)) * (LONG // 250))

    async def endless(request: object) -> StreamingResponse:
        del request
        return StreamingResponse(_without_end())

    every = {"/": answer, "/slow": slow, "/long": long, "/endless": endless}
    site = Gate(Starlette(routes=[Route(*each, methods=["GET", "POST"]) for each in every.items()]), frozenset())
    more = {"proxy_headers": False, **settings}
    config = uvicorn.Config(
        site, http=Connection, ws="none", timeout_keep_alive=1, lifespan="off", log_config=None, **more
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname(), state


async def exchange(sent: bytes) -> bytes:
    """Send something to a server, and return all that it answers until it closes the connection."""
    async with listening({}) as (address, _), asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        found = b""
        try:
            while data := await reader.read(4096):
                found += data
        except ConnectionResetError:
            pass
        writer.close()
        return found
