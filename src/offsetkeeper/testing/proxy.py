"""A TCP proxy that fails on demand, exactly where it hurts: between a request and its reply."""

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import Enum
from types import TracebackType
from typing import Self

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.held import HeldRequest

_CHUNK = 1 << 16
_LIMIT = 30.0
_LOOK = 0.02
_FINISH_S = 10.0  # some servers keep a connection whose client has ended its side
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time at all: close() sends a reset

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cut(Enum):
    """Where a fault cuts the connection."""

    REQUEST = "before the request reached the server"
    REPLY = "after the server answered, before the client saw a byte of it"
    MID_REPLY = "in the middle of the reply"


class Fault:
    """A cut that is armed until it fires, once.

    As a context manager it must have fired by the end of the block.

    Attributes:
        cut: where the connection is cut.
        refuse: whether from then on the proxy refuses all connections.
        fired: set when the connection has been reset.
    """

    def __init__(self, proxy: "TcpProxy", cut: Cut, containing: bytes, *, refuse: bool = False) -> None:
        self.cut = cut
        self.refuse = refuse
        self.fired = threading.Event()
        self._containing = containing
        self._proxy = proxy

    def matches(self, request: bytes) -> bool:
        """Whether these bytes from the client are the ones to fail."""
        return self._containing in request

    def wait(self, limit: float = _LIMIT) -> None:
        """Wait until the fault has fired.

        Raises:
            ServerError: it did not within `limit` seconds.
        """
        if not self.fired.wait(limit):
            raise ServerError(f"no request met the cut {self.cut.value} within {limit:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.wait()
        else:
            self._proxy.heal()


class TcpProxy:
    """Passes bytes between clients and one server, until a fault is armed; a context manager.

    Args:
        target_host, target_port: the server. It need not run yet.
        port: TCP port of 127.0.0.1 to listen on; 0 takes a free one.
        patience: seconds that a connection waits for the server to listen, before it is reset.

    Attributes:
        port: the port it listens on, once entered.
        replied: bytes that came from the server so far, on all connections.
        reply_rate: bytes of the server in a second, at most, on each connection; any number until it is set.
    """

    def __init__(self, target_host: str, target_port: int, *, port: int = 0, patience: float = 0.0) -> None:
        self.port, self.replied = port, 0
        self.reply_rate = math.inf
        self._patience = patience
        self._target = (target_host, target_port)
        self._faults: list[Fault] = []
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._held: HeldRequest | None = None
        self._carrier: asyncio.Task[None] | None = None  # the link that has the request that is kept back

    @property
    def address(self) -> str:
        """Where clients connect, `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.port}"

    @property
    def armed(self) -> int:
        """Number of faults that no request has met yet."""
        return len(self._faults)

    def cut(self, where: Cut, containing: bytes = b"", *, refuse: bool = False) -> Fault:
        """Arm a fault: the next request meets it, and its connection is reset.

        But for `Cut.REQUEST` the server has then done all that it was asked: the proxy ends its side of the connection
        when the answer begins, and waits until the server has ended the other.

        Args:
            where: the connection is cut.
            containing: wait for a request with these bytes in it.
            refuse: reset all other connections too, and refuse new ones, until `heal`. So no client can ask what
                happened.
        """
        fault = Fault(self, where, containing, refuse=refuse)
        self._faults.append(fault)
        return fault

    def hold(self) -> None:
        """Keep back all that arrives from now on, from either side, ends and resets too, until `release`.

        To both sides the other one is there and silent, as where the network loses what is sent.
        """
        self._call(self._set_passing(passing=False))

    def release(self) -> None:
        """Pass on the held data in its order, and all later data."""
        self._call(self._set_passing(passing=True))

    def keep_back(self, containing: bytes) -> HeldRequest:
        """Keep back the next request with these bytes in it, and nothing else, until it lands."""
        self._held = HeldRequest(containing, self._call, _reset)
        return self._held

    def lead_to(self, host: str, port: int) -> None:
        """Send new connections to another server; those that are open stay."""
        self._target = (host, port)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, until `heal`. A request that is kept back stays on its way."""
        self._call(self._close_listener())

    def heal(self) -> None:
        """Disarm all faults and take connections again."""
        self._faults.clear()
        self._call(self._listen())

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self._listen())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._carrier = None
        self.refuse()
        self._end()

    def _call(self, coroutine: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LIMIT)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT)
        self._loop.close()

    async def _set_passing(self, *, passing: bool) -> None:
        if passing:
            self._passing.set()
        else:
            self._passing.clear()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
            self._listener.settimeout(0)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _close_listener(self) -> None:
        if self._listener:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await asyncio.sleep(0)  # each link has begun then, and resets its connection when it is cancelled
        links = self._links - {self._carrier, asyncio.current_task()}
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        """Take a connection.

        Not by `asyncio.start_server`: a connection that it takes just before it is closed stays open for ever.
        """
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.settimeout(0)
            link = self._loop.create_task(self._link(client))
            self._links.add(link)
            link.add_done_callback(self._links.discard)

    async def _link(self, accepted: socket.socket) -> None:
        """Pass bytes both ways until both sides have ended, or the connection breaks or is cut."""
        writers: list[asyncio.StreamWriter] = []
        try:
            client = await asyncio.open_connection(sock=accepted)
            writers.append(client[1])
            server = await self._connect()
            writers.append(server[1])
            await self._pass_both_ways(client, server)
        except* (OSError, asyncio.CancelledError):
            await _reset(writers)
        except* _Fired as fired:
            faults: list[Fault] = [error.args[0] for error in fired.exceptions]
            if any(fault.refuse for fault in faults):
                await self._close_listener()
            try:
                if any(fault.cut is not Cut.REQUEST for fault in faults):
                    await _let_finish(server)
            finally:
                await _reset(writers)
            for fault in faults:
                fault.fired.set()
        else:
            for writer in writers:
                writer.close()
        finally:
            if self._held and self._carrier is asyncio.current_task():
                self._held.end()

    async def _connect(self) -> Stream:
        deadline = self._loop.time() + self._patience
        while True:
            try:
                return await asyncio.open_connection(*self._target)
            except OSError:
                if self._loop.time() >= deadline:
                    raise
                await asyncio.sleep(_LOOK)

    async def _pass_both_ways(self, client: Stream, server: Stream) -> None:
        answers: list[Fault | HeldRequest] = []
        link = asyncio.current_task()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pass_requests(client, server[1], answers, link))
            both.create_task(self._pass_replies(server[0], client[1], answers))

    async def _pass_requests(
        self,
        client: Stream,
        server: asyncio.StreamWriter,
        answers: list[Fault | HeldRequest],
        link: asyncio.Task[None] | None,
    ) -> None:
        while request := await self._read(client[0]):
            fault = next((fault for fault in self._faults if fault.matches(request)), None)
            if fault:
                self._faults.remove(fault)
                if fault.cut is Cut.REQUEST:
                    raise _Fired(fault)
                answers.append(fault)
            held = self._held
            if held and held.matches(request):
                self._carrier = link
                answers.append(held)
                await held.keep(client[1])
            server.write(request)
            await server.drain()
            if held and held in answers:
                if held.abandoned:
                    await held.wait_for_answer()
                    break
                answers.remove(held)
                self._carrier = None
        server.write_eof()

    async def _pass_replies(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, answers: list[Fault | HeldRequest]
    ) -> None:
        """Pass on the server's data until a fault in `answers` applies, or the client is gone."""
        client.transport.set_write_buffer_limits(0)  # drain() returns when all was handed to the system
        while reply := await self._read(server):
            self.replied += len(reply)
            await asyncio.sleep(len(reply) / self.reply_rate)
            fault = answers[0] if answers else None
            if isinstance(fault, HeldRequest) and fault.abandoned:
                fault.answer()
                continue
            cut = fault if isinstance(fault, Fault) else None
            if cut is None:
                client.write(reply)
            elif cut.cut is Cut.MID_REPLY:
                client.write(reply[: len(reply) // 2])
            await client.drain()
            if cut:
                raise _Fired(cut)
        client.write_eof()

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        """Return what arrives next, or raise that the connection broke, once nothing is held."""
        try:
            arrived = await stream.read(_CHUNK)
        except OSError:
            await self._passing.wait()
            raise
        await self._passing.wait()
        return arrived


class _Fired(Exception):
    """Carries a fault from where it fires to where the connection is reset."""


async def _let_finish(server: Stream) -> None:
    """Return when the server has ended the connection: some answer in parts, and stop between two on a reset."""
    reader, writer = server
    with contextlib.suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(_FINISH_S):
            while await reader.read(_CHUNK):
                pass


async def _reset(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
