"""HTTP clients of httpx whose answers come in time; see `core.patience`."""

from __future__ import annotations

import math
import ssl
from typing import Any

import httpcore
import httpx

from offsetkeeper.clients.web_proxy import by_way
from offsetkeeper.core.patience import Patience


def open_client(timeout: float, **settings: Any) -> httpx.Client:
    """Return a client.

    Args:
        timeout: seconds to connect, and then to wait for each answer.
        settings: other settings of httpx's client.
    """
    client = httpx.Client(timeout=timeout, **settings)
    transports: list[Any] = [client._transport, *client._mounts.values()]  # noqa: SLF001 - it has no setting for it
    for transport in filter(None, transports):
        transport._pool._network_backend = _Network()  # noqa: SLF001
    return client


def way_of(client: httpx.Client, request: httpx.Request | None) -> str:
    """Return the words for an error if a request of a client of `open_client` went through a proxy."""
    if request is None:
        return ""
    pool = getattr(client._transport_for_url(request.url), "_pool", None)  # noqa: SLF001 - as above
    proxy = getattr(pool, "_proxy_url", None)
    if proxy is None:
        return ""
    host = proxy.host.decode()
    return by_way(f"//{f'[{host}]' if ':' in host else host}:{proxy.port}", request.url.scheme)


class _Network(httpcore.SyncBackend):
    def connect_tcp(self, *where: Any, **how: Any) -> httpcore.NetworkStream:
        return _Stream(super().connect_tcp(*where, **how))


class _Stream(httpcore.NetworkStream):
    """A connection: what is written to it begins another answer."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._patience = Patience(math.inf)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._patience.begin(math.inf if timeout is None else timeout)
        self._stream.write(buffer, timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return bytes(self._patience.read(lambda size: self._stream.read(size, timeout), max_bytes))
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
