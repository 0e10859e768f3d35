"""Connections of clients: who asks nothing in time is let go, and so is the oldest of those where there are too many.

Uvicorn waits for a request for ever. So a thousand connections that each send half a request take all files of the
process, and no request is answered any more.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds in which the headers of a request must come."""
MOST = 400
"""Connections at a time; a process may have 1,024 files unless told otherwise."""


class Connection(H11Protocol):
    """One connection."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._expect()
        # One that waits for longer than all others has its place taken: requests that are answered go on.
        waiting = [each for each in self.connections if isinstance(each, Connection) and each.deadline is not None]
        if len(self.connections) > MOST and waiting:
            min(waiting, key=lambda each: each.deadline or 0.0).let_go()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._settle()
        super().connection_lost(exc)

    @property
    def deadline(self) -> float | None:
        """When it is let go, by the clock of the event loop; None while a request is answered."""
        return None if self._timer is None else self._timer.when()

    def let_go(self) -> None:
        """Close it. It is gone only later, and is not let go twice."""
        self._settle()
        self.transport.abort()

    def _expect(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._settle()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.let_go)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
