"""Clients that do what no honest one does, again and again, in a process of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.synchronize import Event
from typing import Self

LIMIT_S = 300.0
PACE_S = 0.1  # between two bytes of who is slow
AGAIN_S = 0.5  # between two connections: five hundred that come again at once are an attack on the network
HOST = "host: 127.0.0.1\r\n"
ALL = f"GET /groups/big?all HTTP/1.1\r\n{HOST}\r\n".encode()
POST = f"POST /api/reset/big HTTP/1.1\r\n{HOST}"


class Client:
    """A connection that is not blocked, with little room for what it does not read."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        await self._loop.sock_sendall(self._link, data)

    async def read(self, most: int) -> None:
        """Read a piece.

        Raises:
            ConnectionError: there is no more.
        """
        if not await self._loop.sock_recv(self._link, most):
            raise ConnectionResetError

    async def read_on(self, most: int = 65536) -> None:
        """Read until the end."""
        while True:
            await self.read(most)


async def pipelines(client: Client) -> None:
    """Ask, and read nothing."""
    while True:
        await client.send(ALL * 100)


async def reads_slowly(client: Client) -> None:
    """Ask once."""
    await client.send(ALL)
    while True:
        await client.read(256)
        await asyncio.sleep(PACE_S)


async def writes_slowly(client: Client) -> None:
    """Begin a request that has no end."""
    await client.send(ALL[:-2])
    while True:
        await client.send(b"x: y\r\n")
        await asyncio.sleep(PACE_S)


async def asks_for_all(client: Client) -> None:
    """Ask for the longest page, and read it."""
    await client.send(ALL.replace(HOST.encode(), f"{HOST}connection: close\r\n".encode()))
    await client.read_on()


async def stays_half_open(client: Client) -> None:
    """Ask nothing."""
    await client.read_on()


async def sends_a_long_body(client: Client) -> None:
    """Send more than is read."""
    await client.send(f"{POST}content-length: 900000000\r\n\r\n".encode())
    while True:
        await client.send(bytes(100_000))


async def sends_two_lengths(client: Client) -> None:
    """Send a body as chunks, and its length besides."""
    await client.send(f"{POST}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".encode() + ALL)
    await client.read_on()


async def sends_tiny_chunks(client: Client) -> None:
    """Send a body of one byte at a time."""
    await client.send(f"{POST}transfer-encoding: chunked\r\n\r\n".encode())
    while True:
        await client.send(b"1\r\na\r\n" * 10_000)


async def sends_a_long_head(client: Client) -> None:
    """Send thousands of headers."""
    await client.send(ALL[:-2] + b"a:b\r\n" * 40_000)
    await client.read_on()


async def sends_blanks(client: Client) -> None:
    """Send a line that takes long to parse, for its length."""
    await client.send(ALL[:-2] + b"a:" + b" " * 15_000 + b"\0\r\n\r\n")
    await client.read_on()


async def asks_odd_things(client: Client) -> None:
    """Ask for what nobody else asks for."""
    await client.send(
        f"GET /?search={secrets.token_hex(8)}&status={'x' * 8000} HTTP/1.1\r\n{HOST}connection: close\r\n\r\n".encode()
    )
    await client.read_on()


async def listens(client: Client) -> None:
    """Ask for all events, and read none."""
    await client.send(f"GET /events HTTP/1.1\r\n{HOST}\r\n".encode())
    while True:
        await client.read(1)
        await asyncio.sleep(PACE_S)


KINDS: tuple[Callable[[Client], Awaitable[None]], ...] = (
    pipelines,
    reads_slowly,
    writes_slowly,
    asks_for_all,
    stays_half_open,
    sends_a_long_body,
    sends_two_lengths,
    sends_tiny_chunks,
    sends_a_long_head,
    sends_blanks,
    asks_odd_things,
    listens,
)


class Crowd:
    """So many of them, of all kinds, dealt out among so many addresses of 127.0.0.0/8; a context manager.

    It begins once each has connected.
    """

    def __init__(self, host: str, port: int, clients: int, addresses: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._all_here = spawn.Event()
        self._process = spawn.Process(target=_run, args=((host, port), clients, addresses, self._all_here), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        assert self._all_here.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join(LIMIT_S)


def _run(where: tuple[str, int], clients: int, addresses: int, all_here: Event) -> None:
    async def run() -> None:
        missing = set(range(clients))

        async def attack(number: int) -> None:
            high, low = divmod(number % addresses, 250)
            address = f"127.1.{high}.{2 + low}"
            while True:
                with suppress(OSError), socket.socket() as link:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    link.setblocking(False)  # noqa: FBT003 - takes no name
                    link.bind((address, 0))
                    await asyncio.get_running_loop().sock_connect(link, where)
                    missing.discard(number)
                    if not missing:
                        all_here.set()
                    await KINDS[number % len(KINDS)](Client(link))
                await asyncio.sleep(AGAIN_S)

        await asyncio.gather(*map(attack, range(clients)))

    asyncio.run(run())
