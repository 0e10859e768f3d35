"""What every request passes: the host it names must be ours, and each answer gets its headers."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offsetkeeper.monitor.access import HEADERS, knows_host


class Gate:
    """Lets in whoever names a host of ours.

    Args:
        app: what is behind.
        names: of this machine, in small letters.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = any(name == b"etag" for name, _ in message["headers"])
                more = {**HEADERS, "cache-control": "no-cache" if kept else "no-store"}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in more.items())]
            await send(message)

        app = self._app
        if scope["type"] == "http":
            host = Request(scope).headers.get("host", "")
            if not knows_host(host, self._names):
                app = error(421, f"{host!r} is no name of this server: start it with --name to add one")
        await app(scope, receive, send_with_headers)


def error(code: int, text: str) -> JSONResponse:
    """Return an error as the API tells it."""
    return JSONResponse({"error": text}, code)
