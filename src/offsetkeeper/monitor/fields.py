"""What the JSON API answers: the fields of the commands' `--json`, from the newest look. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from offsetkeeper.control import entry_fields
from offsetkeeper.model import Snapshot, kafka_positions, query_batches
from offsetkeeper.monitor.view import GroupLook, Health, View
from offsetkeeper.speed import Speed, speed_fields, total


def summary(snapshot: Snapshot) -> dict[str, Any]:
    """Return one line of `groups --json`."""
    positions = kafka_positions(snapshot.positions)
    return {
        "group": snapshot.group,
        "version": snapshot.version,
        "held_by": snapshot.owner and snapshot.owner.name,
        "epoch": snapshot.epoch,
        "generation": snapshot.generation,
        "sequence": snapshot.sequence,
        "topics": ", ".join(sorted({tp.topic for tp in positions})),
        "partitions": len(positions),
    }


def shown(snapshot: Snapshot) -> dict[str, Any]:
    """Return what `show --json` prints."""
    positions = [
        {"topic": tp.topic, "partition": tp.partition, "offset": at.offset, "topic_id": at.topic_id}
        for tp, at in sorted(kafka_positions(snapshot.positions).items())
    ]
    pending = snapshot.pending
    under_way: dict[str, Any] | None = None
    if pending is not None:
        under_way = {"id": pending.id, "ranges": [list(r) for r in pending.ranges], "written": list(pending.written)}
    queries = query_batches(snapshot.positions)
    return {**summary(snapshot), "positions": positions, "queries": queries, "pending": under_way}


def lag(look: GroupLook) -> dict[str, Any]:
    """Return what `lag --json` prints, and when it was so; where Kafka could not be asked, no more than that."""
    head = {"group": look.snapshot.group, "status": look.status, "at_ms": look.at_ms, "error": look.error or None}
    if look.lags is None or look.total is None:
        return head
    topics = [
        {"topic": topic, **total(some, look.speeds).as_dict()}
        for topic, some in groupby(look.lags, lambda each: each.topic_partition.topic)
    ]
    partitions = [
        {**each.as_dict(), **speed_fields(look.speeds.get(each.topic_partition, Speed()), each.records)}
        for each in look.lags
    ]
    return {**head, **look.total.as_dict(), "topics": topics, "partitions": partitions}


def history(look: GroupLook, limit: int) -> list[dict[str, Any]]:
    """Return what `history --json` prints."""
    return [{"version": entry.version, **entry_fields(entry)} for entry in look.entries[:limit]]


def verified(look: GroupLook) -> dict[str, Any]:
    """Return what `verify --json` prints."""
    findings = [each.as_dict() for each in look.findings]
    return {"group": look.snapshot.group, "entries": len(look.entries), "findings": findings}


def health(view: View) -> dict[str, Any]:
    """Return how store and Kafka are, and when they were looked at."""
    both = {"store": _health(view.store), "kafka": _health(view.kafka)}
    return {"look": view.number, "at_ms": view.at_ms, "took_s": round(view.took_s, 3), **both}


def _health(found: Health) -> dict[str, Any]:
    return {"up": found.up, "since_ms": found.since_ms, "error": found.error or None}
