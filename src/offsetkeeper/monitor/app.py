"""The routes: page, events, JSON, metrics. All are answered from the newest view; changes are in `changes`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offsetkeeper.monitor.access import HEADERS, knows_host
from offsetkeeper.monitor.listing import Asked
from offsetkeeper.monitor.made_once import MadeOnce
from offsetkeeper.monitor.metrics import CONTENT_TYPE, Detail, exposition
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.poller import Poller
from offsetkeeper.monitor.view import GroupSample, Health, View
from offsetkeeper.operate.json_view import (
    audit_fields,
    group_fields,
    history_fields,
    lag_fields,
    ledger_fields,
    plan_fields,
)

_STATIC = Path(__file__).parent / "static"
_LISTENERS = 200
_HEARTBEAT_S = 15.0
_HISTORY = 20  # entries, as the command `history` prints
_LIMIT = re.compile("[0-9]{1,9}")  # of thousands of digits Python makes no number
Answer = Callable[[GroupSample, Request], Any]


class Site:
    """What the server serves.

    Args:
        poller: what keeps polling.
        pages: HTML of a view.
        more: routes besides its own.
        detail: of the metrics.
    """

    def __init__(self, poller: Poller, pages: Pages, more: list[Route], detail: Detail = "partitions") -> None:
        self._poller = poller
        self._pages = pages
        self._more = more
        self._exposition = MadeOnce(partial(exposition, detail=detail))
        self._overview = MadeOnce(lambda view: pages.groups(view).encode())

    def app(self) -> Starlette:
        """Return the application. It polls while it runs."""
        routes: list[BaseRoute] = [
            Route("/", self._groups_page),
            Route("/groups/{group:path}", self._group_page),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/api/health", self._health),
            Route("/api/groups", self._groups),
            self._of_group("show", lambda group, _: _ledger_json(group)),
            self._of_group("lag", lambda group, _: _lag_json(group)),
            self._of_group(
                "plan", lambda group, _: group.plan and group.ahead and plan_fields(group.plan, group.ahead)
            ),
            self._of_group("history", _history),
            self._of_group(
                "verify", lambda group, _: audit_fields(group.snapshot.group, group.entries, group.findings)
            ),
            *self._more,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: self._refused})

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._poller.start()
        try:
            yield
        finally:
            self._poller.stop()

    def _groups_page(self, request: Request) -> Response:
        asked, view = Asked.of(request.query_params), self._poller.view
        return HTMLResponse(self._overview.of(view) if asked == Asked() else self._pages.groups(view, asked))

    def _group_page(self, request: Request) -> Response:
        name, view = request.path_params["group"], self._poller.view
        if name not in view.groups:
            return HTMLResponse(self._pages.missing(view, name), 404)
        asked = request.query_params
        return HTMLResponse(self._pages.group(view, name, whole="all" in asked, shade=asked.get("shade", "")))

    def _metrics(self, _: Request) -> Response:
        return Response(self._exposition.of(self._poller.view), headers={"content-type": CONTENT_TYPE})

    def _healthz(self, _: Request) -> Response:
        alive = self._poller.alive
        return PlainTextResponse("ok\n" if alive else "no look for a long time\n", 200 if alive else 503)

    def _health(self, _: Request) -> Response:
        return JSONResponse(health_json(self._poller.view))

    def _groups(self, _: Request) -> Response:
        return JSONResponse([group_json(name, sample) for name, sample in self._poller.view.groups.items()])

    def _of_group(self, command: str, answer: Answer) -> Route:
        def endpoint(request: Request) -> Response:
            name, view = request.path_params["group"], self._poller.view
            if name in view.groups:
                return JSONResponse(answer(view.groups[name].of_the_poll(), request))
            return error(404, f"the store has no group {name!r}") if view.store.up else error(503, view.store.error)

        return Route(f"/api/{command}/{{group:path}}", endpoint)

    async def _events(self, _: Request) -> Response:
        return _Events(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        """Send the number of each new poll; a page then fetches its content again."""
        told = None
        while not self._poller.stopping:
            view = self._poller.view
            if view.number != told:
                told = view.number
                yield f"id: {told}\ndata: {json.dumps(health_json(view))}\n\n"
            elif not await self._poller.next(_HEARTBEAT_S):
                yield ": still here\n\n"

    def _refused(self, request: Request, refusal: Exception) -> Response:
        code, text = (refusal.status_code, refusal.detail) if isinstance(refusal, HTTPException) else (500, "")
        if request.url.path.startswith("/api/"):
            return error(code, text)
        return HTMLResponse(self._pages.missing(self._poller.view, ""), code)


def _history(sample: GroupSample, request: Request) -> list[dict[str, Any]]:
    limit = request.query_params.get("limit", "")
    return history_fields(sample.entries[: int(limit) if _LIMIT.fullmatch(limit) else _HISTORY])


def group_json(name: str, sample: GroupSample) -> dict[str, Any]:
    """Return what `groups --json` prints of a group; if it was never read, its name and the error."""
    return (group_fields(sample.snapshot) if sample.at_ms else {"group": name}) | {"error": sample.error or None}


def _ledger_json(sample: GroupSample) -> dict[str, Any]:
    """Return what `show --json` prints."""
    return ledger_fields(sample.snapshot, {lag.topic_partition: lag for lag in sample.lags or ()})


def _lag_json(sample: GroupSample) -> dict[str, Any]:
    """Return what `lag --json` prints, and the time of the poll; only the time if Kafka did not answer."""
    known = {"group": sample.snapshot.group, "status": None}
    if sample.lags is not None and sample.status is not None:
        known = lag_fields(sample.snapshot.group, sample.status, sample.lags, sample.speeds)
    return {**known, "at_ms": sample.at_ms, "error": sample.error or None}


def health_json(view: View) -> dict[str, Any]:
    """Return whether store and Kafka answered, and the time of the poll."""
    both = {"store": _health(view.store), "kafka": _health(view.kafka)}
    return {"look": view.number, "at_ms": view.at_ms, "took_s": round(view.took_s, 3), **both}


def _health(found: Health) -> dict[str, Any]:
    return {"up": found.up, "since_ms": found.since_ms, "error": found.error or None}


class _Events(StreamingResponse):
    """Send events to a page, unless too many pages listen."""

    listening = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. No other request runs between the check for a free place and taking it."""
        if _Events.listening >= _LISTENERS:
            await error(503, "too many pages listen already")(scope, receive, send)
            return
        _Events.listening += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            _Events.listening -= 1


class Gate:
    """Answers only requests that name one of our hosts.

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
                app = error(421, f"{host!r} is not a name of this server: start it with --name to add it")
        await app(scope, receive, send_with_headers)


def error(code: int, text: str) -> JSONResponse:
    """Return an error of the API."""
    return JSONResponse({"error": text}, code)
