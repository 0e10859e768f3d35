"""Connections of clients: who does not ask or read in time is let go, and so is who waits for longest of too many.

Uvicorn waits for a request, and for a client to read its answer, for ever. So a thousand connections that each send
half a request take all files of the process, and no request is answered any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.datastructures import Headers
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from offsetkeeper.monitor.access import is_in, refused_body

REQUEST_S = 10.0
"""Seconds in which a request must come, headers and body."""
READ_S = 60.0
"""Seconds for which an answer may wait for its client to read on, all together."""
MOST = 700
"""Connections at a time; a process may have 1,024 files unless told otherwise."""
MOST_OF_ONE = 100
"""Connections of one address at a time, answered or not; those of a trusted proxy are of many clients."""
_PART = 1024  # bytes that are parsed at a time: h11 measures the head of a request only while more of it must come


class Connection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None
    _asked: RequestResponseCycle | None = None
    _is_last = False  # whether nothing is read after the request that is being answered
    _left_s = READ_S
    since: float | None = None
    """Since when it waits for its client, by the clock of the event loop; None while a request is answered."""
    made = 0.0
    """When it was made, by the same clock."""
    gone = False
    """Whether it is let go."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.made = self.loop.time()
        self._wait(REQUEST_S)
        every = [each for each in self.connections if isinstance(each, Connection) and not each.gone]
        same = [each for each in every if each.address == self.address]
        if len(every) > MOST:
            self._longest(every).let_go()
        elif len(same) > MOST_OF_ONE and not self._is_proxy():
            self._longest(same).let_go()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for start in range(0, len(data), _PART):
            if self._is_last or self.transport.is_closing():
                break
            super().data_received(data[start : start + _PART])
            self._begin()
        self._turn()

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        super().on_response_complete()
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
        """Close it. It is gone only later, and is not let go twice."""
        self._settle()
        self.gone = True
        self.transport.abort()

    def _begin(self) -> None:
        """Give a new request its time. A body that is refused is not read, nor a further request before the answer."""
        if self.cycle is not self._asked:
            self._asked, self._left_s = self.cycle, READ_S
            self._is_last = refused_body(Headers(raw=self.headers)) is not None
        if self.cycle and not (self.cycle.more_body or self.cycle.response_complete) and self.conn.trailing_data[0]:
            self._is_last = True  # the client sends the others again elsewhere
        if self._is_last:
            self.cycle.keep_alive = False

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
