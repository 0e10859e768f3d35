"""A request on its way: a proxy has it, the server does not, and who sent it may be gone when it lands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

from offsetkeeper.testing.errors import ServerError

_LIMIT = 30.0
Reset = Callable[[list[asyncio.StreamWriter]], Coroutine[None, None, None]]
Call = Callable[[Coroutine[None, None, None]], None]


class HeldRequest:
    """A request that a proxy keeps back when it comes, until it lands; `TcpProxy.keep_back` makes one.

    Args:
        containing: the request has these bytes in it.
        call: runs a coroutine where the proxy runs.
        reset: resets connections.

    Attributes:
        abandoned: whether its client was cut off meanwhile.
    """

    def __init__(self, containing: bytes, call: Call, reset: Reset) -> None:
        self.abandoned = False
        self._containing = containing
        self._call = call
        self._reset = reset
        self._came, self._over = threading.Event(), threading.Event()
        self._lands, self._answered = asyncio.Event(), asyncio.Event()
        self._client: list[asyncio.StreamWriter] = []

    def matches(self, request: bytes) -> bool:
        """Whether these bytes from a client are the ones to keep back."""
        return not self._came.is_set() and self._containing in request

    def wait(self, limit: float = _LIMIT) -> None:
        """Wait until it came.

        Raises:
            ServerError: it did not within `limit` seconds.
        """
        if not self._came.wait(limit):
            raise ServerError(f"no request with {self._containing!r} came within {limit:g} s")

    def abandon(self) -> None:
        """Reset the connection to its client. To the server the client is still there."""
        self.abandoned = True
        self._call(self._reset(self._client))

    def land(self, limit: float = _LIMIT) -> None:
        """Pass it on to the server; where its client was cut off, return when the server is done with it.

        Raises:
            ServerError: the server did not answer within `limit` seconds, or has closed the connection before.
        """
        self.let_go()
        if self.abandoned and not (self._over.wait(limit) and self._answered.is_set()):
            raise ServerError(f"the request with {self._containing!r} was not answered within {limit:g} s")

    def let_go(self) -> None:
        """Pass it on, and do not wait; if it comes later, it is not kept back any more."""
        self._call(self._land())

    async def keep(self, client: asyncio.StreamWriter) -> None:
        """Return when it is to land."""
        self._client.append(client)
        self._came.set()
        await self._lands.wait()

    async def wait_for_answer(self) -> None:
        """Return when the server has begun to answer."""
        await self._answered.wait()

    def answer(self) -> None:
        """Note that the server says something."""
        if self._lands.is_set():
            self._answered.set()

    def end(self) -> None:
        """Note that the server has ended the connection."""
        self._over.set()

    async def _land(self) -> None:
        self._lands.set()
