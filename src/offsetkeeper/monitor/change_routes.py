"""The requests that change a group: for those who have the token, from our own page or from no page at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from offsetkeeper.errors import (
    BrokerUnavailable,
    OffsetkeeperError,
    OutcomeUnknown,
    RuleError,
    SettingsError,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.monitor.access import has_token, is_same_site
from offsetkeeper.monitor.changing import Changes
from offsetkeeper.monitor.middleware import error

_BODY_BYTES = 1_000_000
_CODES: tuple[tuple[type[OffsetkeeperError], int], ...] = (
    (SettingsError, 400),
    (RuleError, 409),
    (VersionConflict, 409),
    (StoreUnavailable, 503),
    (BrokerUnavailable, 503),
    (OutcomeUnknown, 502),
)
Change = Callable[[str, Mapping[str, Any], str], dict[str, Any]]


def routes(changes: Changes, token: str) -> list[Route]:
    """Return the routes of all changes; without a token each of them refuses."""
    return [
        _route("/api/reset/{group:path}", lambda group, body, _: changes.reset(group, body), token),
        _route("/api/rewind/{group:path}", lambda group, body, _: changes.rewind(group, body), token),
        _route("/api/undo/{group:path}", lambda group, body, _: changes.undo(group, body), token),
        _route("/api/execute/{group:path}", changes.execute, token),
    ]


def _route(path: str, change: Change, token: str) -> Route:
    async def endpoint(request: Request) -> Response:
        if refusal := _refusal(request, token):
            return refusal
        client = request.client.host if request.client else "unknown"
        try:
            body = await _body(request)
            return JSONResponse(await run_in_threadpool(change, request.path_params["group"], body, client))
        except OffsetkeeperError as failed:
            return error(next((code for kind, code in _CODES if isinstance(failed, kind)), 500), str(failed))

    return Route(path, endpoint, methods=["POST"])


def _refusal(request: Request, token: str) -> Response | None:
    if not token:
        return error(403, "this server is read-only: start it with --allow-changes and a token")
    if not is_same_site(request.headers):
        return error(403, "the request comes from a page of another site")
    if not has_token(request.headers, token):
        return error(401, "send the token, as in Authorization: Bearer …")
    return None


async def _body(request: Request) -> Mapping[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise SettingsError("send JSON, as content-type application/json")
    text = bytearray()
    async for part in request.stream():
        text += part
        if len(text) > _BODY_BYTES:
            raise SettingsError(f"the request has more than {_BODY_BYTES:,} bytes")
    try:
        body = json.loads(text or b"{}")
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"the request is no JSON: {wrong}") from None
    if not isinstance(body, dict):
        raise SettingsError("the request must be a JSON object")
    return body
