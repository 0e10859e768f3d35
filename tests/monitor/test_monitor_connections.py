"""Clients that send half a request, or nothing: nobody else waits for them."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from uvicorn.server import ServerState

from monitor.scene import Scene, Served
from offsetkeeper.monitor import connections
from offsetkeeper.monitor.connections import Connection

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
            half = stack.enter_context(socket.create_connection((where.hostname, where.port), LIMIT_S))
            half.sendall(HALF)
            if number % 100 == 0:
                assert httpx.get(f"{server.url}/healthz", timeout=LIMIT_S, trust_env=False).text == "ok\n"
        assert "shop" in httpx.get(server.url, timeout=LIMIT_S, trust_env=False).text
    assert server.output == ""


def test_no_more_pages_listen_than_may(scene: Scene) -> None:
    """However many ask at once."""

    async def listen(url: str, count: int) -> list[int]:
        async with httpx.AsyncClient(
            timeout=LIMIT_S, limits=httpx.Limits(max_connections=None), trust_env=False
        ) as client:
            asked = [client.send(client.build_request("GET", f"{url}/events"), stream=True) for _ in range(count)]
            answers = await asyncio.gather(*asked)
            codes = [answer.status_code for answer in answers]
            for answer in answers:
                await answer.aclose()
            return codes

    scene.group("shop", scene.topic(1, 1), [1])
    with Served(scene.store, scene.server.bootstrap) as server:
        codes = asyncio.run(listen(server.url, 230))
        assert sorted(set(codes)) == [200, 503]
        assert codes.count(200) == 200


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


async def exchange(sent: bytes) -> bytes:
    """Send something to a server, and return all that it answers until it closes the connection."""

    async def answer(request: object) -> PlainTextResponse:
        del request
        return PlainTextResponse("ok")

    async def slow(request: object) -> PlainTextResponse:
        await asyncio.sleep(0.5)  # ten times as long as a request may take to come
        return await answer(request)

    app = Starlette(routes=[Route("/", answer), Route("/slow", slow)])
    config = uvicorn.Config(app, http=Connection, ws="none", timeout_keep_alive=1, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        found = b""
        async with asyncio.timeout(LIMIT_S):
            try:
                while data := await reader.read(4096):
                    found += data
            except ConnectionResetError:
                pass
        writer.close()
        return found
