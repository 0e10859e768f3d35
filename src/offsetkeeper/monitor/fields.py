"""What the JSON API answers from the newest look, beside what the commands print. Pure."""

from __future__ import annotations

from typing import Any

from offsetkeeper.monitor.view import GroupLook, Health, View
from offsetkeeper.operate.json_view import group_fields, lag_fields, ledger_fields


def group(name: str, look: GroupLook) -> dict[str, Any]:
    """Return what `groups --json` prints of a group; of one that was never read, its name and the error."""
    return (group_fields(look.snapshot) if look.at_ms else {"group": name}) | {"error": look.error or None}


def shown(look: GroupLook) -> dict[str, Any]:
    """Return what `show --json` prints."""
    return ledger_fields(look.snapshot, {lag.topic_partition: lag for lag in look.lags or ()})


def lag(look: GroupLook) -> dict[str, Any]:
    """Return what `lag --json` prints, and when it was so; where Kafka could not be asked, no more than that."""
    known = {"group": look.snapshot.group, "status": None}
    if look.lags is not None and look.status is not None:
        known = lag_fields(look.snapshot.group, look.status, look.lags, look.speeds)
    return {**known, "at_ms": look.at_ms, "error": look.error or None}


def health(view: View) -> dict[str, Any]:
    """Return how store and Kafka are, and when they were looked at."""
    both = {"store": _health(view.store), "kafka": _health(view.kafka)}
    return {"look": view.number, "at_ms": view.at_ms, "took_s": round(view.took_s, 3), **both}


def _health(found: Health) -> dict[str, Any]:
    return {"up": found.up, "since_ms": found.since_ms, "error": found.error or None}
