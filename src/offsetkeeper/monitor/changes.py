"""Resets, rewinds and undos asked for by a request: a preview first, then that very plan, by its digest.

They are for those who have the token, from our own page or from no page at all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.outside import load_json
from offsetkeeper.core.store import Store
from offsetkeeper.errors import (
    BrokerUnavailable,
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    RuleError,
    SettingsError,
    Stale,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.access import has_token, is_same_site
from offsetkeeper.monitor.change_body import SCOPE, TARGETS, check_fields, flag, scope, target, text, version
from offsetkeeper.monitor.gate import error
from offsetkeeper.monitor.group_path import IN_ROUTE
from offsetkeeper.operate.fence import fence
from offsetkeeper.operate.json_view import reset_fields
from offsetkeeper.operate.reset import (
    apply_reset,
    check_again,
    known_history,
    plan_reset,
    plan_rewind,
    plan_undo,
    reset_lag,
    taken_back,
    undo_reason,
)
from offsetkeeper.operate.reset_plan import ResetPlan

_KEPT = 100  # previews; the oldest are forgotten first
_PATIENCE_S = 10.0
_CODES: tuple[tuple[type[OffsetkeeperError], int], ...] = (
    (SettingsError, 400),
    (Refused, 409),
    (RuleError, 409),
    (VersionConflict, 409),
    (StoreUnavailable, 503),
    (BrokerUnavailable, 503),
    (OutcomeUnknown, 502),
)
Change = Callable[[str, Mapping[str, Any], str], dict[str, Any]]
Plan = Callable[[Ledger], tuple[ResetPlan, str, list[str]]]
"""Makes a plan, the words on it for the history, and sentences for its preview."""


class Changes:
    """Previews, and what becomes of them. Safe to use from several threads: one change at a time.

    Args:
        store: the ledgers.
        cluster: Kafka.
        done: called after each change.
    """

    def __init__(self, store: Store, cluster: KafkaCluster, done: Callable[[], None]) -> None:
        self._store = store
        self._cluster = cluster
        self._done = done
        self._lock = threading.Lock()
        self._previews: OrderedDict[str, tuple[ResetPlan, str]] = OrderedDict()

    def reset(self, group: str, body: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Preview a reset; see docs/serve.md for the body.

        Raises:
            SettingsError: the body is wrong, or asks for what Kafka does not hold.
            Fenced: another owner took the group while it was fenced.
        """
        check_fields(body, (*TARGETS, *SCOPE, "all_topics", "clip", "fence"))
        to, which, clip = target(body), scope(body), flag(body, "clip")
        if which.all_topics and which.names_some:
            raise SettingsError("give topics and partitions, or all_topics, not both")
        if not (which.all_topics or which.names_some or isinstance(to, Mapping)):
            raise SettingsError("say which partitions to reset: topics, partitions, or all_topics")

        def plan(ledger: Ledger) -> tuple[ResetPlan, str, list[str]]:
            made = plan_reset(
                ledger.load(),
                self._store.address,
                self._cluster,
                to,
                which,
                clip=clip,
                history=known_history(ledger),
            )
            return made, "", []

        return self._preview(group, plan, flag(body, "fence"), client)

    def rewind(self, group: str, body: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Preview going back to a version of the ledger.

        Raises:
            SettingsError: the body names no version.
            NotAllowed: the ledger was never at it.
            Fenced: see `reset`.
        """
        check_fields(body, ("version", *SCOPE, "clip", "fence"))
        to, which, clip = version(body), scope(body), flag(body, "clip")

        def plan(ledger: Ledger) -> tuple[ResetPlan, str, list[str]]:
            made = plan_rewind(ledger, self._cluster, to, which, clip=clip)
            return made, f"rewind to version {to}", []

        return self._preview(group, plan, flag(body, "fence"), client)

    def undo(self, group: str, body: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Preview undoing the newest reset or forget; the notes name it, and copies since.

        Raises:
            NotAllowed: there is none.
            Refused: it is an undo itself, and the body does not say `again`.
            Fenced: see `reset`.
        """
        check_fields(body, (*SCOPE, "clip", "fence", "again"))
        which, clip, again = scope(body), flag(body, "clip"), flag(body, "again")

        def plan(ledger: Ledger) -> tuple[ResetPlan, str, list[str]]:
            made, entry = plan_undo(ledger, self._cluster, which, clip=clip)
            check_again(entry, 'send "again": true', again=again)
            return made, undo_reason(entry), taken_back(ledger, entry, which)

        return self._preview(group, plan, flag(body, "fence"), client)

    def execute(self, group: str, body: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Make the previewed change, if the ledger has not changed since.

        Raises:
            SettingsError: the body is wrong.
            Stale: the preview does not exist, or no longer; or the ledger or Kafka has changed since.
            Fenced: a run holds the group, and `force` is not set.
            VersionConflict: somebody changed the ledger at this very moment.
        """
        check_fields(body, ("digest", "reason", "force"))
        digest, reason, force = text(body, "digest"), text(body, "reason"), flag(body, "force")
        with self._lock:
            plan, why = self._previews.get(digest, (None, ""))
            if plan is None or plan.group != group:
                raise Stale(f"no preview of group {group!r} has this digest: make one, look at it, send it again")
            signed = "; ".join(filter(None, (reason, why, _through(client))))
            apply_reset(self._ledger(group), self._cluster, plan, signed, force=force)
            del self._previews[plan.digest]
        self._done()
        return reset_fields(plan, {}, executed=True)

    def _preview(self, group: str, make: Plan, fence_it: bool, client: str) -> dict[str, Any]:  # noqa: FBT001 - passed on
        """Return what `make` plans. Where a run is to be fenced, only after there was a plan, and then planned anew.

        So a refused change fences no run, and the run can no longer change the ledger that the plan is made for.
        """
        with self._lock:
            ledger = self._ledger(group)
            plan, why, told = make(ledger)
            if fence_it and plan.moves and fence(ledger, f"to stop the run; {_through(client)}") is not None:
                self._done()
                plan, why, told = make(ledger)
            if not plan.moves:
                raise NotAllowed(f"group {plan.group!r} is already at these offsets: nothing to do")
            lags = reset_lag(plan, self._cluster)
            self._previews[plan.digest] = (plan, why)
            while len(self._previews) > _KEPT:
                self._previews.popitem(last=False)
        found = reset_fields(plan, lags, executed=False, owner=ledger.snapshot.owner)
        return {**found, "notes": [*told, *found["notes"]]}

    def _ledger(self, group: str) -> Ledger:
        return Ledger(self._store, group, retry_timeout_s=_PATIENCE_S)


def routes(changes: Changes, token: str) -> list[Route]:
    """Return the routes of all changes; without a token each of them refuses."""
    return [
        _route(f"/api/reset/{IN_ROUTE}", changes.reset, token),
        _route(f"/api/rewind/{IN_ROUTE}", changes.rewind, token),
        _route(f"/api/undo/{IN_ROUTE}", changes.undo, token),
        _route(f"/api/execute/{IN_ROUTE}", changes.execute, token),
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
    try:
        body = load_json(await request.body() or b"{}")
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"the request is not JSON: {wrong}") from None
    if not isinstance(body, dict):
        raise SettingsError("the request must be a JSON object")
    return body


def _through(client: str) -> str:
    return f"through serve, from {client}"
