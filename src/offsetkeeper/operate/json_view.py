"""The JSON that commands print with `--json` and that the JSON API returns, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.codec import entry_fields
from offsetkeeper.core.model import Entry, Owner, Snapshot
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.plan import Plan
from offsetkeeper.core.published import Difference
from offsetkeeper.operate.audit import Discrepancy
from offsetkeeper.operate.lag import Lag, Speed, speed_fields, total
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.reset_words import notes_of


def group_fields(snapshot: Snapshot) -> dict[str, Any]:
    """Return one group, as `groups` lists it."""
    positions = snapshot.positions
    return {
        "group": snapshot.group,
        "version": snapshot.version,
        "held_by": snapshot.owner and snapshot.owner.name,
        "epoch": snapshot.epoch,
        "generation": snapshot.generation,
        "sequence": snapshot.sequence,
        "topics": sorted({tp.topic for tp in positions}),
        "partitions": len(positions),
    }


def ledger_fields(snapshot: Snapshot, lags: Mapping[TopicPartition, Lag]) -> dict[str, Any]:
    """Return a group with its positions and, from `lags`, their lag, as `show` prints it."""
    positions = [
        {"topic": tp.topic, "partition": tp.partition, "offset": at.offset}
        | {"topic_id": at.topic_id, "cluster_id": at.cluster_id}
        | ({"lag": lags[tp].as_dict()} if tp in lags else {})
        for tp, at in sorted(snapshot.positions.items())
    ]
    queries, pending = dict(snapshot.queries), _batch_fields(snapshot.pending)
    state = {"queries": queries, "watermark_ms": snapshot.watermark_ms}
    outputs = {
        "outputs": {name: each._asdict() for name, each in snapshot.outputs.items()},
        "landed": {name: landed.sequence for name, landed in snapshot.landed.items()},
        "unsettled": _batch_fields(snapshot.unsettled),
        "missing": [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(snapshot.missing)],
    }
    return {**group_fields(snapshot), "positions": positions, **state, "pending": pending, **outputs}


def lag_fields(name: str, status: str, lags: Sequence[Lag], speeds: Mapping[TopicPartition, Speed]) -> dict[str, Any]:
    """Return the lag of a group, its topics and its partitions, as `lag` prints it.

    Args:
        name: name of the group or the checkpoint.
        status: status word of the group.
        lags: lag of each partition, sorted.
        speeds: speed of each partition.
    """
    topics = [
        {"topic": topic, **total(some, speeds).as_dict()}
        for topic, some in groupby(lags, lambda lag: lag.topic_partition.topic)
    ]
    partitions = [
        {**lag.as_dict(), **speed_fields(speeds.get(lag.topic_partition, Speed()), lag.records)} for lag in lags
    ]
    sums = total(lags, speeds).as_dict()
    return {"group": name, "status": status, **sums, "topics": topics, "partitions": partitions}


def edited_fields(differing: Sequence[Difference]) -> dict[str, Any]:
    """Return the partitions whose offsets other programs see differently; empty if there are none."""
    return {"edited": [each._asdict() for each in differing]} if differing else {}


def history_fields(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the entries of a history, as `history` prints them."""
    return [{"version": entry.version, **entry_fields(entry)} for entry in entries]


def audit_fields(group: str, entries: Sequence[Entry], findings: Sequence[Discrepancy]) -> dict[str, Any]:
    """Return the findings of an audit, as `verify` prints them."""
    return {"group": group, "entries": len(entries), "findings": [each.as_dict() for each in findings]}


def reset_fields(
    plan: ResetPlan, lags: Mapping[TopicPartition, Lag], *, executed: bool, owner: Owner | None = None
) -> dict[str, Any]:
    """Return what a reset, a rewind or an undo would do or has done.

    Args:
        plan: the plan.
        lags: lag of the partitions at their new positions, as far as it is known.
        executed: whether the plan was executed.
        owner: the run that holds the group and would be fenced.
    """
    lost = plan.lost
    return {
        "group": plan.group,
        "executed": executed,
        "held_by": owner and owner.name,
        "digest": plan.digest,
        "version": plan.version,
        "steps": [
            {**step.as_dict(), "lost": lost.get(step.topic_partition, 0), **_retention(lags.get(step.topic_partition))}
            for step in plan.steps
        ],
        "drops": plan.drops and plan.drops._asdict(),
        "keeps": plan.keeps,
        "unsettled": plan.unsettled,
        "once_more": [[*each] for each in plan.once_more],
        "restores": plan.restores,
        "clusters": [*plan.clusters],
        "queries": {query: count._asdict() for query, count in plan.queries},
        "left": [[*tp] for tp in plan.left],
        "gone": [[*tp] for tp in plan.gone],
        "clipped": [[*tp, offset] for tp, offset in plan.clipped],
        "notes": notes_of(plan),
    }


def _retention(lag: Lag | None) -> dict[str, Any]:
    if lag is None:
        return {}
    return {"retention_used": lag.retention_used, "seconds_left": lag.seconds_left, "estimated": lag.estimated}


def plan_fields(plan: Plan, ahead: Outlook) -> dict[str, Any]:
    """Return where the next run starts, and the fate of a pending or dropped batch, as `plan` prints it."""
    pending, unsettled = _batch_fields(ahead.pending), _batch_fields(ahead.unsettled)
    if pending is not None:
        pending |= {"fate": ahead.fate and ahead.fate.name.lower(), "why": ahead.why}
    if unsettled is not None:
        unsettled |= {"counts": [list(r) for r in ahead.counts], "why": ahead.settling}
    return plan.as_dict() | {"pending": pending, "unsettled": unsettled}


def _batch_fields(batch: Batch | None) -> dict[str, Any] | None:
    if batch is None:
        return None
    ranges, outputs = [list(r) for r in batch.ranges], {"written": [*batch.written], "lands_in": [*batch.lands_in]}
    program = None if batch.program is None else batch.program.as_dict()
    query = None if batch.query is None else batch.query._asdict()
    return {"id": batch.id, "ranges": ranges, "query": query, **outputs, "program": program}
