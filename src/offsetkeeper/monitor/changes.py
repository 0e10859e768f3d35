"""Resets, rewinds and undos asked for by a request: a preview first, then that very plan, by its digest.

They are for those who have the token, from our own page or from no page at all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import TopicPartition, check_offset, check_partition
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
from offsetkeeper.monitor.app import error
from offsetkeeper.operate.json_view import reset_fields
from offsetkeeper.operate.reset import Shift, Target, apply_reset, plan_reset, plan_rewind, plan_undo, reset_lag
from offsetkeeper.operate.reset_plan import ResetPlan

_KEPT = 100  # previews; the oldest are forgotten first
_PATIENCE_S = 10.0
_BODY_BYTES = 1_000_000
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

    def reset(self, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Preview a reset; see docs/serve.md for the body.

        Raises:
            SettingsError: the body is wrong, or asks for what Kafka does not hold.
        """
        to = _target(body)
        topics, partitions = _scope(body)
        every = bool(body.get("all_topics"))
        if every and (topics or partitions):
            raise SettingsError("give topics and partitions, or all_topics, not both")
        if not (every or topics or partitions or isinstance(to, Mapping)):
            raise SettingsError("say what is to be moved: topics, partitions, or all_topics")
        snapshot = self._ledger(group).load()
        with self._lock:
            plan = plan_reset(
                snapshot,
                self._store.address,
                self._cluster,
                to,
                partitions=partitions,
                topics=topics,
                all_topics=every,
            )
        return self._preview(plan, "")

    def rewind(self, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Preview the way back to a version of the ledger.

        Raises:
            SettingsError: the body names no version.
            NotAllowed: the ledger was never at it.
        """
        version = body.get("version")
        if type(version) is not int:
            raise SettingsError("give the version to go back to, as a number")
        topics, partitions = _scope(body)
        with self._lock:
            plan = plan_rewind(self._ledger(group), self._cluster, version, partitions=partitions, topics=topics)
        return self._preview(plan, f"rewind to version {version}")

    def undo(self, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Preview taking back the newest reset.

        Raises:
            NotAllowed: there is none.
        """
        topics, partitions = _scope(body)
        with self._lock:
            plan, entry = plan_undo(self._ledger(group), self._cluster, partitions=partitions, topics=topics)
        return self._preview(plan, f"undo of version {entry.version}" + f" ({entry.reason})" * bool(entry.reason))

    def execute(self, group: str, body: Mapping[str, Any], client: str) -> dict[str, Any]:
        """Do what was previewed, if the ledger is still the one it was made for.

        Raises:
            SettingsError: there is no such preview, the ledger has moved on, or Kafka has.
            Fenced: a run holds the group, and `force` is not set.
            VersionConflict: somebody changed the ledger at this very moment.
        """
        with self._lock:
            plan, why = self._previews.get(str(body.get("digest")), (None, ""))
            if plan is None or plan.group != group:
                raise Stale(f"no preview of group {group!r} has this digest: make one, look at it, send it again")
            reason = "; ".join(filter(None, (str(body.get("reason") or ""), why, f"through serve, from {client}")))
            apply_reset(self._ledger(group), self._cluster, plan, reason, force=body.get("force") is True)
            del self._previews[plan.digest]
        self._done()
        return reset_fields(plan, {}, executed=True)

    def _preview(self, plan: ResetPlan, why: str) -> dict[str, Any]:
        if not plan.steps:
            raise NotAllowed(f"group {plan.group!r} stands there already: nothing would move")
        with self._lock:
            lags = reset_lag(plan, self._cluster)
            self._previews[plan.digest] = (plan, why)
            while len(self._previews) > _KEPT:
                self._previews.popitem(last=False)
        return reset_fields(plan, lags, executed=False)

    def _ledger(self, group: str) -> Ledger:
        return Ledger(self._store, group, retry_timeout_s=_PATIENCE_S)


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
        body = load_json(bytes(text) or b"{}")
    except (ValueError, RecursionError) as wrong:
        raise SettingsError(f"the request is no JSON: {wrong}") from None
    if not isinstance(body, dict):
        raise SettingsError("the request must be a JSON object")
    return body


def _target(body: Mapping[str, Any]) -> Target | Shift:
    given = [name for name in ("to", "shift", "offsets") if body.get(name) is not None]
    if len(given) != 1:
        raise SettingsError("give exactly one of to, shift and offsets")
    value = body[given[0]]
    if given == ["shift"]:
        if type(value) is not int:
            raise SettingsError("shift must be a number of offsets, negative to go back")
        return Shift(value)
    if given == ["offsets"]:
        return {TopicPartition(topic, partition): check_offset(at) for topic, partition, at in _triples(value)}
    return _to(value)


def _to(value: Any) -> str | int | datetime:
    if type(value) is int:
        return check_offset(value)
    if not isinstance(value, str):
        raise SettingsError("to must be earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00")
    if value in {"earliest", "latest"}:
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise SettingsError(
            "to is not a target: use earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00"
        ) from None


def _scope(body: Mapping[str, Any]) -> tuple[set[str], set[TopicPartition]]:
    topics, pairs = body.get("topics") or [], body.get("partitions") or []
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise SettingsError("topics must be a list of names")
    if not isinstance(pairs, list) or not all(isinstance(each, list) and len(each) == 2 for each in pairs):  # noqa: PLR2004
        raise SettingsError("partitions must be a list of [topic, partition]")
    return set(topics), {check_partition(TopicPartition(*pair)) for pair in pairs}


def _triples(value: Any) -> list[tuple[str, int, int]]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 3 for each in value):  # noqa: PLR2004
        raise SettingsError("offsets must be a list of [topic, partition, offset]")
    return [(*check_partition(TopicPartition(topic, partition)), at) for topic, partition, at in value]
