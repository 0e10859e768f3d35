"""What is in front of the routes: whom they answer, below which path, and in pieces."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offsetkeeper.monitor.access import HEADERS, knows_host, refused_body

_PIECE = 65_536  # bytes; a client that reads nothing holds two
_TURN = 4 * _PIECE  # bytes that are sent before others have their turn; asyncio logs the fifth write to who has gone


class Gate:
    """Answers only requests that name one of our hosts, in pieces: what a client does not read is not kept for it.

    Args:
        app: what is behind.
        names: of this machine, in small letters.
        base: path that a proxy may leave in front of ours.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str], base: str = "") -> None:
        self._app = app
        self._base = base
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = any(name == b"etag" for name, _ in message["headers"])
                more = {**HEADERS, "cache-control": "no-cache" if kept else "no-store"}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in more.items())]
            await _in_pieces(message, send)

        app = self._app
        if scope["type"] == "http":
            headers = Request(scope).headers
            host = headers.get("host", "")
            if refused := refused_body(headers):
                app = error(*refused, close=True)
            elif not knows_host(host, self._names):
                app = error(421, f"{host!r} is not a name of this server: start it with --name to add it")
            elif scope["path"] == self._base != "":
                app = RedirectResponse(f"{self._base}/", 308)
            scope = _below(self._base, scope)
        await app(scope, receive, send_with_headers)


def _below(base: str, scope: Scope) -> Scope:
    """Return a request with its path below the base; a proxy may have taken that away already."""
    if not base or not scope["path"].startswith(f"{base}/"):
        return scope
    raw = scope.get("raw_path", b"")
    return {**scope, "path": scope["path"].removeprefix(base), "raw_path": raw.removeprefix(base.encode())}


async def _in_pieces(message: Message, send: Send) -> None:
    """Send a message. Each piece of a long body waits until the one before is read, and others have their turn."""
    if message["type"] != "http.response.body":
        await send(message)
        return
    body = message.get("body", b"")
    last = max(0, len(body) - 1) // _PIECE * _PIECE
    for start in range(0, last, _PIECE):
        await send({**message, "body": body[start : start + _PIECE], "more_body": True})
        if start % _TURN == 0:
            await asyncio.sleep(0)
    await send({**message, "body": body[last:]})


def error(code: int, text: str, *, close: bool = False) -> JSONResponse:
    """Return an error of the API; `close` ends the connection after it."""
    return JSONResponse({"error": text}, code, {"connection": "close"} if close else None)
