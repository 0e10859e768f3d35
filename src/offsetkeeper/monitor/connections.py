"""Connections of clients: one that does not ask or read in time is closed; of too many, the one that waits longest.

Uvicorn waits for a request, and for a client to read its answer, for ever. So a thousand connections that each send
half a request take all files of the process, and no request is answered any more.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import h11
from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from offsetkeeper.monitor.access import counted_as, is_in, refused_body

REQUEST_S = 10.0
"""Seconds in which a request must come, headers and body."""
READ_S = 60.0
"""Seconds for which an answer may wait for its client to read on, all together."""
MOST = 700
"""Connections at a time; often a process may have no more than 1,024 files."""
MOST_OF_ONE = 100
"""Connections of one address at a time, answered or not; those of a trusted proxy are of many clients."""
LARGEST_HEAD = 32_768
"""Bytes of the head of a request: behind a proxy with a login, cookies may take 20 KB."""
MOST_LINES = 100
"""Lines of the head of a request."""
DISCARDED = 2**21
"""Bytes that are read and thrown away after the answer to a request that is refused."""
_PART = 1024  # bytes of a body that are parsed at a time
_PRINTED = 0x21
_BLANKS = b" " * 65  # h11's time for a line grows with the square of these: 16 KB of them took 1.8 s
_END = re.compile(rb"\n\r?\n")


class Connection(H11Protocol):
    """One connection.

    The head of a request is gathered here and given to h11 in one piece, once it is known to be cheap to parse.
    """

    _timer: asyncio.TimerHandle | None = None
    _asked: RequestResponseCycle | None = None
    _is_last = False  # whether nothing is read after the request that is being answered
    _left_s = READ_S
    _head = b""
    _discarded = 0
    since: float | None = None
    """Since when it waits for its client, by the clock of the event loop; None while a request is answered."""
    made = 0.0
    """When it was made, by the same clock."""
    gone = False
    """Whether it is let go."""
    counted = ""
    """What its limit is for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.made, self.counted = self.loop.time(), counted_as(self.address)
        self._wait(REQUEST_S)
        every: Iterable[Any] = self.connections
        if len(self.connections) > MOST:
            self._longest(every).let_go()
            return
        same = [each for each in every if each.counted == self.counted]
        if len(same) > MOST_OF_ONE and not self._is_proxy():
            self._longest(same).let_go()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        left = data
        answered = self.cycle and self.cycle.response_complete and not self._is_last
        if answered and not (self._head or self.flow.write_paused):
            self._unset_keepalive_if_required()
            self._settle()  # the next request begins, and has its own time
        while left and not (self._is_last or self.transport.is_closing()):
            if self.conn.their_state is h11.IDLE:
                part, left = self._whole_head(left)
            else:
                part, left = left[:_PART], left[_PART:]
            if part:
                super().data_received(part)
                self._begin()
        if self._is_last:
            self._discard(len(left))
        self._turn()

    def send_400_response(self, msg: str) -> None:
        """See `H11Protocol`."""
        del msg
        self._refuse(400, "it is not HTTP")

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
        if self._is_last:  # who still sends has until our own limit to see the answer
            self._unset_keepalive_if_required()
        self._turn()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._settle()
        self._wait(self._left_s)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self._left_s -= self.loop.time() - (self.since or self.loop.time())
        self._settle()
        self._turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._settle()
        self.gone = True
        super().connection_lost(exc)

    @property
    def address(self) -> str:
        """Of the client."""
        return self.client[0] if self.client else ""

    def let_go(self) -> None:
        """Close it. It is gone only later, but counts no more."""
        self._settle()
        self.gone = True
        self.connections.discard(self)
        self.transport.abort()

    def _begin(self) -> None:
        """Give a new request its time. A body that is refused is not read, nor a further request before the answer."""
        if self.cycle is not self._asked:
            self._asked, self._left_s = self.cycle, READ_S
            self._is_last = refused_body(Headers(raw=self.headers)) is not None
        if self.conn.their_state is h11.MUST_CLOSE:
            self._is_last = True  # HTTP/1.0, or the client has said so: what follows is not a request
        if self.cycle and not (self.cycle.more_body or self.cycle.response_complete) and self.conn.trailing_data[0]:
            self._is_last = True  # the client sends the others again elsewhere
        if self._is_last and self.cycle:
            self.cycle.keep_alive = False
            self.cycle.transport = _ReadsOn(self.transport)  # type: ignore[assignment] # it needs no more

    def _whole_head(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the head of a request if it is whole now, and the bytes after it. It may be refused."""
        before, self._head = len(self._head), self._head + data[:LARGEST_HEAD]
        found = _END.search(self._head, max(0, before - 2))
        head = self._head[: found.end()] if found else self._head
        if head[0] < _PRINTED:  # as of a client of TLS
            self._refuse(400, "it does not begin with a method")
        elif len(head) >= LARGEST_HEAD or head.count(b"\n") > MOST_LINES:
            self._refuse(431, f"its head has more than {LARGEST_HEAD:,} bytes or {MOST_LINES} lines")
        elif _BLANKS in head[max(0, before - 64) :].replace(b"\t", b" "):
            self._refuse(400, "it has too many blanks in a row")
        elif found:
            self._head = b""
            return head, data[len(head) - before :]
        return b"", b""

    def _refuse(self, code: int, why: str) -> None:
        """Answer before there is a whole request, and read no other."""
        self._head, self._is_last = b"", True
        if self.cycle and not self.cycle.response_complete:
            self.let_go()  # there is one answer for each request
            return
        body = f"the request was not read: {why}\n".encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        answer = h11.Response(status_code=code, headers=[*headers, (b"content-length", b"%d" % len(body))])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        _ReadsOn(self.transport).close()

    def _discard(self, size: int) -> None:
        """Count the bytes that are read and thrown away. Bytes that come after a close would destroy the answer."""
        self._discarded += size
        if self._discarded > DISCARDED:
            self.transport.close()

    def _longest(self, connections: Iterable[Connection]) -> Connection:
        """Return the other one that waits for longest; the oldest if all are being answered."""
        others = (each for each in connections if each is not self)
        return min(others, key=lambda each: (each.since is None, each.since or each.made))

    def _is_proxy(self) -> bool:
        proxies = self.config.forwarded_allow_ips if self.config.proxy_headers else ()
        return any(is_in(self.address, proxy) for proxy in proxies or ())

    def _turn(self) -> None:
        """Wait for the client while it is its turn."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self.flow.write_paused:
            self._wait(REQUEST_S)
        else:
            self._settle()

    def _wait(self, seconds: float) -> None:
        if self._timer is None and not self.gone:
            self.since = self.loop.time()
            self._timer = self.loop.call_later(seconds, self.let_go)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.since = None


class _ReadsOn:
    """A transport whose closing ends what we send, and no more: the client closes it then, or time does.

    Were it closed while the client still sends, the network would tell it of that, and its answer might be lost.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Send what is left, and then the end."""
        if not self._transport.is_closing():
            with suppress(OSError):  # the client has gone, and the loop does not know it yet
                self._transport.write_eof()
