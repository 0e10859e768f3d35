"""What operators do with a group while no run holds it: look, measure lag, plan a reset, do it, undo it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import NamedTuple

from offsetkeeper.errors import NotAllowed, SettingsError
from offsetkeeper.kafka import Cluster
from offsetkeeper.kafka.timestamps import estimate_timestamps, record_timestamps
from offsetkeeper.lag import Held, Lag, is_recreated, measure
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Entry, Snapshot, TopicPartition, in_kafka, kafka_positions
from offsetkeeper.plan import Found
from offsetkeeper.reset import ResetPlan, make_reset, positions_before

Target = str | int | datetime | Mapping[TopicPartition, int]


class Shift(NamedTuple):
    """A target relative to the stored position, in offsets, forwards or backwards."""

    by: int


def group_lag(snapshot: Snapshot, cluster: Cluster, topics: Collection[str] = ()) -> list[Lag]:
    """Return the lag of each partition of a group's topics.

    Positions come first and ends later, so that no lag is negative.

    Args:
        snapshot: the group's ledger.
        cluster: Kafka.
        topics: more topics than those of the positions.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    found = cluster.held({*topics, *(tp.topic for tp in kafka_positions(snapshot.positions))})
    return lag_within(snapshot, cluster, found, cluster.retentions({tp.topic for tp in found}))


def lag_within(
    snapshot: Snapshot,
    cluster: Cluster,
    found: Mapping[TopicPartition, Found],
    retentions_ms: Mapping[str, int],
) -> list[Lag]:
    """Return the lag of each partition in `found`, which was asked of Kafka after the snapshot was read.

    Args:
        snapshot: the group's ledger.
        cluster: Kafka, which is asked for the time of each first unread record only.
        found: what Kafka holds of the group's topics.
        retentions_ms: for how long Kafka keeps the records of each topic, milliseconds.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked. That a topic may not be read is no error: its lag in
            seconds is an estimate then.
    """
    unread = {
        tp: held.beginning if is_recreated(at, held.topic_id) else max(at.offset, held.beginning)
        for tp, held in found.items()
        if (at := snapshot.positions.get(tp)) is not None
    }
    behind = {tp: offset for tp, offset in unread.items() if offset < found[tp].end}
    read = record_timestamps(cluster.brokers, cluster.options, behind, isolation=cluster.isolation).times_ms
    now_ms = time.time_ns() // 1_000_000
    missing = {tp: offset for tp, offset in behind.items() if tp not in read}
    times = read | (estimate_timestamps(cluster, missing, now_ms) if missing else {})
    held = {
        tp: Held(
            at.beginning,
            at.end,
            times.get(tp),
            retentions_ms.get(tp.topic),
            tp in times and tp not in read,
            at.topic_id,
        )
        for tp, at in found.items()
    }
    return measure(snapshot.positions, held, now_ms)


def plan_reset(
    snapshot: Snapshot,
    store: str,
    cluster: Cluster,
    to: Target | Shift,
    *,
    partitions: Collection[TopicPartition] = (),
    topics: Collection[str] = (),
) -> ResetPlan:
    """Return what a reset would do; nothing is changed.

    Args:
        snapshot: the group's ledger.
        store: address of its store.
        cluster: Kafka.
        to: "earliest", "latest", "current", an offset, a time with its zone, offsets by partition, or a `Shift`.
        partitions: those to move. With neither these nor `topics`, all that the ledger has positions of.
        topics: whose partitions are all moved.

    Raises:
        SettingsError: a partition is not there, has no position to start from, or the offset is not in Kafka.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    if isinstance(to, Mapping):
        partitions, topics = tuple(to), ()
    named = {*topics, *(tp.topic for tp in partitions)}
    stored = kafka_positions(snapshot.positions)
    found = cluster.held(filter(in_kafka, named or {tp.topic for tp in stored}))
    chosen = {*partitions, *(tp for tp in found if tp.topic in topics)} or set(stored)
    if not chosen:
        raise SettingsError(f"group {snapshot.group!r} in {store} has no positions: name the topics to set")
    missing = sorted({topic for topic in topics if topic not in {tp.topic for tp in found}})
    if missing:
        raise SettingsError(f"topic {missing[0]} does not exist at {cluster.brokers}")
    targets = _targets(snapshot, cluster, to, chosen, found)
    return make_reset(snapshot, store, targets, {**found, **_counted(snapshot, targets)})


def apply_reset(ledger: Ledger, plan: ResetPlan, reason: str, *, force: bool = False) -> Snapshot:
    """Do what a plan says, if the ledger is still the one it was made for, and return the ledger after it.

    Raises:
        SettingsError: the ledger has moved on since the plan was made.
        Fenced: a run holds the group, and `force` is not set.
        VersionConflict: somebody changed the ledger at this very moment; nothing was moved.
    """
    plan.check(ledger.load(), ledger.store.address)
    ledger.rewind(plan.positions, reason, force=force)
    return ledger.snapshot


def plan_rewind(ledger: Ledger, cluster: Cluster, version: int) -> ResetPlan:
    """Return the plan that sets all positions to what they were at a version of the ledger.

    Raises:
        NotAllowed: the ledger was never at that version.
        SettingsError: the history, or Kafka, does not reach back that far.
    """
    snapshot = ledger.load()
    if not 0 < version <= snapshot.version:
        raise NotAllowed(f"group {ledger.group!r} is at version {snapshot.version}: give one from 1 to that")
    then = positions_before(ledger.history(snapshot.version - version + 1), snapshot.positions, version)
    return plan_reset(snapshot, ledger.store.address, cluster, {tp: at.offset for tp, at in then.items()})


def plan_undo(ledger: Ledger, cluster: Cluster) -> tuple[ResetPlan, Entry]:
    """Return the plan that takes the newest reset back, with what was committed since, and the entry of that reset.

    An undo is a reset like any other: undone again, it leads to where the group stood before it.

    Raises:
        NotAllowed: the history has no reset.
        SettingsError: Kafka does not hold the old positions any more.
    """
    ledger.load()
    for entry in ledger.history(1000):
        if entry.event == "rewind":
            return plan_rewind(ledger, cluster, entry.version - 1), entry
    raise NotAllowed(f"the history of group {ledger.group!r} has no reset to undo")


def _counted(snapshot: Snapshot, targets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Found]:
    """Return what queries have counted, of those that are to count on from elsewhere: Kafka knows nothing of them."""
    stored = snapshot.positions
    counts = {tp: offset for tp, offset in targets.items() if tp in stored and not in_kafka(tp.topic)}
    return {tp: Found(0, max(offset, stored[tp].offset)) for tp, offset in counts.items()}


def _targets(
    snapshot: Snapshot,
    cluster: Cluster,
    to: Target | Shift,
    chosen: Collection[TopicPartition],
    found: Mapping[TopicPartition, Found],
) -> dict[TopicPartition, int]:
    if isinstance(to, Mapping):
        return dict(to)
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise SettingsError(f"{to} has no time zone: add one, such as +00:00")
        return cluster.offsets_for_times([tp for tp in chosen if tp in found], int(to.timestamp() * 1000))
    if isinstance(to, Shift) or to == "current":
        stored = snapshot.positions
        if unknown := sorted(tp for tp in chosen if tp not in stored):
            raise SettingsError(f"{unknown[0]} has no stored position: give it an offset, a time, earliest or latest")
        return {tp: stored[tp].offset + (to.by if isinstance(to, Shift) else 0) for tp in chosen}
    if isinstance(to, int):
        return dict.fromkeys(chosen, to)
    if to not in {"earliest", "latest"}:
        raise SettingsError(f"{to!r} is no target: use earliest, latest, current, an offset or a time")
    return {tp: found[tp].beginning if to == "earliest" else found[tp].end for tp in chosen if tp in found}
