"""The nodes of a Cassandra cluster by the names that the user gave them, against which their certificates are checked.

The client library turns a name into addresses and forgets it. The cluster tells it of nodes by address alone.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def named_nodes(hosts: Sequence[tuple[str, int]]) -> Any:
    """Return a factory of endpoints for the client library.

    Its attribute `given` has an endpoint for each address of the hosts, and the hosts without an address as they are.

    Args:
        hosts: names and ports of some nodes.
    """
    from cassandra.connection import DefaultEndPoint, DefaultEndPointFactory  # noqa: PLC0415 - loaded on use

    class Node(DefaultEndPoint):  # type: ignore[misc]  # the library has no types
        """A node, of which the certificate must have a name."""

        ssl_options = None

        def __init__(self, address: str, port: int, name: str) -> None:
            super().__init__(address, port)
            self.ssl_options = {"server_hostname": name}

    class Nodes(DefaultEndPointFactory):  # type: ignore[misc]  # as above
        """Makes the endpoints of nodes that the cluster tells of."""

        def __init__(self) -> None:
            super().__init__(hosts[0][1])
            self.names: dict[str, str] = {}
            self.given: list[Any] = []
            for name, port in hosts:
                addresses = _addresses(name, port)
                self.names.update(dict.fromkeys(addresses, name))
                self.given += [Node(address, port, name) for address in addresses] or [(name, port)]

        def create(self, row: Any) -> Any:
            """See the library."""
            found = super().create(row)
            name = self.names.get(found.address)
            return found if name is None else Node(found.address, found.port, name)

    return Nodes()


def _addresses(name: str, port: int) -> list[str]:
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    return []
