"""A primary and its standby behind one address: what a failover needs, the same for each kind of server."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack
from typing import Any

from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import Server, Startable

LIMIT_S = 60.0


class Pair(Startable):
    """Two servers, of which the second repeats what the first does; a context manager.

    Clients connect to a proxy, as to the virtual address of a cluster: it leads to the primary, and after a failover to
    the standby. The standby follows through a proxy of its own, which can hold back what is repeated.

    Args:
        primary, standby: the servers.
        synchronous: whether the primary acknowledges a change only when the standby has it.

    Attributes:
        address: the proxy that clients connect to.
        link: the proxy that the standby follows through.
    """

    def __init__(self, primary: Server, standby: Server, *, synchronous: bool) -> None:
        self.primary, self.standby, self.synchronous = primary, standby, synchronous
        self.address = TcpProxy(primary.host, primary.port)
        self.link = TcpProxy(primary.host, primary.port)
        self._running = ExitStack()

    def hold(self) -> None:
        """Hold back what is repeated from now on: the standby hears nothing any more, and sees no error."""
        self.link.hold()

    def promote(self) -> None:
        """Kill the primary, and make the standby the primary. Nobody is led to it yet."""
        self.primary.kill()
        self.address.refuse()
        self._promote()

    def lead(self) -> None:
        """Lead clients to the server that was promoted."""
        self.address.lead_to(self.standby.host, self.standby.port)
        self.address.heal()

    def url(self, name: str, server: Server | None = None) -> str:
        """Return the URL of a database by the clients' address, or of the one on a server."""
        found: Any = self.primary
        return str(found.url(name, port=server.port if server else self.address.port))

    def close(self) -> None:
        """End both servers, and delete their data."""
        self._running.close()
        self.standby.close()
        self.primary.close()

    def _start(self) -> None:
        for each in (self.address, self.link):
            self._running.enter_context(each)
        self.primary.start()
        self._follow()

    @abstractmethod
    def create(self) -> str:
        """Make an empty database that both have, and return its name."""

    @abstractmethod
    def _follow(self) -> None:
        """Start the standby, and return when it follows."""

    @abstractmethod
    def _promote(self) -> None:
        """Make the standby the primary."""
