"""The routes: page, events, JSON, metrics. All are answered from the newest look; changes are in `change_routes`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from offsetkeeper.monitor import fields
from offsetkeeper.monitor.metrics import CONTENT_TYPE, exposition
from offsetkeeper.monitor.middleware import error
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.view import GroupLook
from offsetkeeper.monitor.watch import Watch
from offsetkeeper.operate.json_view import audit_fields, history_fields, plan_fields

_STATIC = Path(__file__).parent / "static"
_LISTENERS = 200
_HEARTBEAT_S = 15.0
_HISTORY = 20  # entries, as the command `history` prints
_LIMIT = re.compile("[0-9]{1,9}")  # of thousands of digits Python makes no number
Answer = Callable[[GroupLook, Request], Any]


class Site:
    """What is served.

    Args:
        watch: what keeps looking.
        pages: HTML of a view.
        more: routes besides its own.
    """

    def __init__(self, watch: Watch, pages: Pages, more: list[Route]) -> None:
        self._watch = watch
        self._pages = pages
        self._more = more
        self._listeners = 0

    def app(self) -> Starlette:
        """Return it as an application, which looks for as long as it lives."""
        routes: list[BaseRoute] = [
            Route("/", self._groups_page),
            Route("/groups/{group:path}", self._group_page),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/api/health", self._health),
            Route("/api/groups", self._groups),
            self._of_group("show", lambda look, _: fields.shown(look)),
            self._of_group("lag", lambda look, _: fields.lag(look)),
            self._of_group("plan", lambda look, _: look.plan and look.ahead and plan_fields(look.plan, look.ahead)),
            self._of_group("history", _history),
            self._of_group("verify", lambda look, _: audit_fields(look.snapshot.group, look.entries, look.findings)),
            *self._more,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: self._refused})

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._watch.start()
        try:
            yield
        finally:
            self._watch.stop()

    def _groups_page(self, _: Request) -> Response:
        return HTMLResponse(self._pages.groups(self._watch.view))

    def _group_page(self, request: Request) -> Response:
        name, view = request.path_params["group"], self._watch.view
        if name not in view.groups:
            return HTMLResponse(self._pages.missing(view, name), 404)
        return HTMLResponse(self._pages.group(view, name, whole="all" in request.query_params))

    def _metrics(self, _: Request) -> Response:
        return Response(exposition(self._watch.view), headers={"content-type": CONTENT_TYPE})

    def _healthz(self, _: Request) -> Response:
        alive = self._watch.alive
        return PlainTextResponse("ok\n" if alive else "no look for a long time\n", 200 if alive else 503)

    def _health(self, _: Request) -> Response:
        return JSONResponse(fields.health(self._watch.view))

    def _groups(self, _: Request) -> Response:
        return JSONResponse([fields.group(name, look) for name, look in self._watch.view.groups.items()])

    def _of_group(self, command: str, answer: Answer) -> Route:
        def endpoint(request: Request) -> Response:
            name, view = request.path_params["group"], self._watch.view
            if name in view.groups:
                return JSONResponse(answer(view.groups[name], request))
            return error(404, f"the store has no group {name!r}") if view.store.up else error(503, view.store.error)

        return Route(f"/api/{command}/{{group:path}}", endpoint)

    async def _events(self, _: Request) -> Response:
        if self._listeners >= _LISTENERS:
            return error(503, "too many pages listen already")
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        """Tell the number of each new look; a page then fetches what it shows."""
        self._listeners += 1
        told = None
        try:
            while not self._watch.stopping:
                view = self._watch.view
                if view.number != told:
                    told = view.number
                    yield f"id: {told}\ndata: {json.dumps(fields.health(view))}\n\n"
                elif not await self._watch.next(_HEARTBEAT_S):
                    yield ": still here\n\n"
        finally:
            self._listeners -= 1

    def _refused(self, request: Request, refusal: Exception) -> Response:
        code, text = (refusal.status_code, refusal.detail) if isinstance(refusal, HTTPException) else (500, "")
        if request.url.path.startswith("/api/"):
            return error(code, text)
        return HTMLResponse(self._pages.missing(self._watch.view, ""), code)


def _history(look: GroupLook, request: Request) -> list[dict[str, Any]]:
    limit = request.query_params.get("limit", "")
    return history_fields(look.entries[: int(limit) if _LIMIT.fullmatch(limit) else _HISTORY])
