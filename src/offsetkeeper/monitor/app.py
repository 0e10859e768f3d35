"""The routes: page, events, JSON, metrics. All are answered from the newest view; changes are in `changes`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from offsetkeeper.core.model import LONGEST_GROUP
from offsetkeeper.monitor.access import counted_as
from offsetkeeper.monitor.choice import Choice
from offsetkeeper.monitor.gate import error
from offsetkeeper.monitor.group_path import IN_ROUTE
from offsetkeeper.monitor.listing import Asked
from offsetkeeper.monitor.made_once import MadeOnce
from offsetkeeper.monitor.metric_names import Detail
from offsetkeeper.monitor.metrics import CONTENT_TYPE, exposition
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
_LISTENERS, _OF_ONE = 200, 50  # pages that listen: all, and those of one address
_HEARTBEAT_S = 15.0
_HISTORY = 20  # entries, as the command `history` prints
_LIMIT = re.compile("[0-9]{1,9}")  # of thousands of digits Python makes no number, and a key of them takes memory
_WAITING = 700, 20, 700
Answer = Callable[[GroupSample, int], Any]


class Site:
    """What the server serves.

    Args:
        poller: what keeps polling.
        pages: HTML of a view.
        more: routes besides its own.
        detail: of the metrics.
        kafka_exporter: whether there are also metrics with the names of kafka_exporter.
    """

    def __init__(
        self,
        poller: Poller,
        pages: Pages,
        more: list[Route],
        detail: Detail = "partitions",
        *,
        kafka_exporter: bool = False,
    ) -> None:
        self._poller = poller
        self._pages = pages
        self._more = more
        self._exposed = partial(exposition, detail=detail, kafka_exporter=kafka_exporter)
        # Apart: many odd requests delay no common page, and no page delays the metrics.
        self._common, self._odd, self._scraped = (MadeOnce(lambda: poller.view, most) for most in _WAITING)

    def app(self) -> Starlette:
        """Return the application. It polls while it runs."""
        routes: list[BaseRoute] = [
            Route("/", self._groups_page),
            Route(f"/groups/{IN_ROUTE}", self._group_page),
            Route("/words", self._words_page),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
            Route("/healthz", self._healthz),
            Route("/api/health", self._health),
            Route("/api/groups", self._groups),
            *(self._of_group(*each) for each in _OF_GROUP.items()),
            *self._more,
            Mount("/static", StaticFiles(directory=_STATIC)),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: self._refused})
        app.router.redirect_slashes = False  # it would lead out of the base path, and from https to http
        return app

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._poller.start()
        try:
            yield
        finally:
            self._poller.stop()

    async def _groups_page(self, request: Request) -> Response:
        asked = Asked.of(request.query_params)
        made = self._common if asked == Asked() else self._odd
        return await made.of(asked, lambda view: HTMLResponse(self._pages.groups(view, asked)))

    async def _group_page(self, request: Request) -> Response:
        name, choice = self._named(request), Choice.of(request.query_params)

        def page(view: View) -> Response:
            if name not in view.groups:
                return HTMLResponse(self._pages.missing(view, name), 404)
            return HTMLResponse(self._pages.group(view, name, choice))

        usual = name in self._poller.view.groups and choice == Choice()
        return await (self._common if usual else self._odd).of((name, choice), page)

    async def _words_page(self, _: Request) -> Response:
        return await self._common.of("words", lambda view: HTMLResponse(self._pages.words(view)))

    async def _metrics(self, _: Request) -> Response:
        def metrics(view: View) -> Response:
            return Response(self._exposed(view), headers={"content-type": CONTENT_TYPE})

        return await self._scraped.of("metrics", metrics)

    async def _healthz(self, _: Request) -> Response:
        if self._poller.alive:
            return PlainTextResponse(f"ok, the newest look is {self._poller.age_s:.0f} s old\n")
        return PlainTextResponse(f"{self._poller.why_late}\n", 503)

    async def _health(self, _: Request) -> Response:
        return JSONResponse({**health_json(self._poller.view), "age_s": round(self._poller.age_s, 3)})

    async def _groups(self, _: Request) -> Response:
        def groups(view: View) -> Response:
            away = "" if view.store.up else view.store.error
            if away and not view.groups:  # no group would say that it is unknown
                return error(503, away)
            return JSONResponse([group_json(name, sample, away) for name, sample in view.groups.items()])

        return await self._common.of("groups", groups)

    def _of_group(self, command: str, answer: Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            name, asked = self._named(request), request.query_params.get("limit", "")
            limit = int(asked) if _LIMIT.fullmatch(asked) else _HISTORY

            def fields(view: View) -> Response:
                if not view.store.up:  # what was last known is not how it is: only the page may show it, with its time
                    return error(503, view.store.error)
                if name not in view.groups:
                    return error(404, f"the store has no group {name!r}")
                sample = view.groups[name]
                if command != "lag" and sample.error and sample.at_ms != view.at_ms:  # `lag` has the error itself
                    return error(503, sample.error)
                return JSONResponse(answer(sample.of_the_poll(), limit))

            made = self._odd if limit != _HISTORY or name not in self._poller.view.groups else self._common
            return await made.of((command, name, limit), fields)

        return Route(f"/api/{command}/{IN_ROUTE}", endpoint)

    def _named(self, request: Request) -> str:
        """Return the group that a request names; HTTPException if no group has such a name.

        Longer names would fill memory while the store is away.
        """
        name: str = request.path_params["group"]
        if len(name.encode("utf-8", "replace")) > LONGEST_GROUP and name not in self._poller.view.groups:
            raise HTTPException(404, f"no group has a name of more than {LONGEST_GROUP} bytes")
        return name

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":  # its answer has no end, and sends nothing that tells whether the client is there
            return Response(media_type="text/event-stream")
        return _Events(self._poller)

    def _refused(self, request: Request, refusal: Exception) -> Response:
        code, text = (refusal.status_code, refusal.detail) if isinstance(refusal, HTTPException) else (500, "")
        if request.url.path.startswith("/api/"):
            return error(code, text)
        return HTMLResponse(self._pages.missing(self._poller.view, ""), code)


def _history(sample: GroupSample, limit: int) -> list[dict[str, Any]]:
    return history_fields(sample.entries[:limit])


def group_json(name: str, sample: GroupSample, away: str = "") -> dict[str, Any]:
    """Return what `groups --json` prints of a group; if it was never read, its name and the error.

    Args:
        name: of the group.
        sample: of it.
        away: why the store is away, or empty.
    """
    known = group_fields(sample.snapshot) if sample.at_ms else {"group": name}
    return {**known, "error": away or sample.error or None}


def _ledger_json(sample: GroupSample) -> dict[str, Any]:
    """Return what `show --json` prints."""
    return ledger_fields(sample.snapshot, {lag.topic_partition: lag for lag in sample.lags or ()})


def _lag_json(sample: GroupSample) -> dict[str, Any]:
    """Return what `lag --json` prints, and the time of the poll; only the time if Kafka did not answer."""
    known = {"group": sample.snapshot.group, "status": None}
    if sample.lags is not None and sample.status is not None:
        known = lag_fields(sample.snapshot.group, sample.status, sample.lags, sample.speeds)
    return {**known, "at_ms": sample.at_ms, "error": sample.error or None}


_OF_GROUP: dict[str, Answer] = {
    "show": lambda group, _: _ledger_json(group),
    "lag": lambda group, _: _lag_json(group),
    "plan": lambda group, _: group.plan and group.ahead and plan_fields(group.plan, group.ahead),
    "history": _history,
    "verify": lambda group, _: audit_fields(group.snapshot.group, group.entries, group.findings),
}


def health_json(view: View) -> dict[str, Any]:
    """Return whether store and Kafka answered, and the time of the poll."""
    both = {"store": _health(view.store), "kafka": _health(view.kafka)}
    return {"look": view.number, "at_ms": view.looked_ms, "took_s": round(view.took_s, 3), **both}


def _health(found: Health) -> dict[str, Any]:
    return {"up": found.up, "since_ms": found.since_ms, "error": found.error or None}


class _Events(StreamingResponse):
    """Send events to a page. Of too many, the oldest of the address that has most gets no more, and ends at a poll."""

    listening: ClassVar[list[_Events]] = []  # the oldest first

    def __init__(self, poller: Poller) -> None:
        super().__init__(self._stream(poller), media_type="text/event-stream")
        self.address = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. No other request runs between the check for a free place and taking it."""
        listening, self.address = _Events.listening, counted_as((scope.get("client") or ("",))[0])
        of_each = Counter(each.address for each in (*listening, self))
        if of_each[self.address] > _OF_ONE:
            await error(503, "too many pages of this address listen already")(scope, receive, send)
            return
        listening.append(self)
        if len(listening) > _LISTENERS:
            [(most, _)] = of_each.most_common(1)
            listening.remove(next(each for each in listening if each.address == most))
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self in listening:
                listening.remove(self)

    async def _stream(self, poller: Poller) -> AsyncIterator[str]:
        """Send each new view; a page then fetches its content again.

        The id has the time too: a view that is overdue has the number of the poll before it, and so have polls after
        another start of the server.
        """
        told = None
        while self in _Events.listening and not poller.stopping:
            view = poller.view
            if view is not told:
                told = view
                yield f"id: {view.number}-{view.at_ms}\ndata: {json.dumps(health_json(view))}\n\n"
            elif not await poller.next(_HEARTBEAT_S):
                yield ": still here\n\n"
