"""Asks Kafka for what a reset is made of: plans it, checks it once more, does it, and takes it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import (
    Entry,
    Position,
    Positions,
    Snapshot,
    TopicPartition,
    in_kafka,
    kafka_positions,
)
from offsetkeeper.errors import NotAllowed, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.lag import Lag, group_lag
from offsetkeeper.operate.reset_plan import (
    ResetPlan,
    check_exist,
    check_within,
    is_named,
    make_reset,
    positions_before,
    refuse,
    select,
    starts_since,
)

_MARGIN = 20  # changes that a run makes between the ledger and its history
Target = str | int | datetime | Mapping[TopicPartition, int]


class Shift(NamedTuple):
    """A target relative to the stored position, in offsets, forwards or backwards."""

    by: int


def plan_reset(
    snapshot: Snapshot,
    store: str,
    cluster: Cluster,
    to: Target | Shift,
    *,
    partitions: Collection[TopicPartition] = (),
    topics: Collection[str] = (),
    all_topics: bool = False,
    clip: bool = False,
) -> ResetPlan:
    """Return what a reset would do; nothing is changed.

    Args:
        snapshot: the group's ledger.
        store: address of its store.
        cluster: Kafka.
        to: "earliest", "latest", "current", an offset, a time with its zone, offsets by partition, or a `Shift`.
        partitions: those to move. With neither these nor `topics`, all that there are offsets or positions of.
        topics: whose partitions are all moved. The plan names those with a position that are not in Kafka any more.
        all_topics: beside those named, all that the ledger has positions of. Partitions of their topics without one
            are left as they are, and the plan names them.
        clip: whether an offset that Kafka does not hold becomes the nearest that it does, which the plan names.

    Raises:
        Refused: a partition is not there, has no position to start from, or the offset is not in Kafka.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    if isinstance(to, Mapping):
        if not to:
            raise SettingsError("no offsets are given: nothing was changed")
        chosen = select(to, partitions, topics, "the offsets given")
        return _plan(snapshot, store, cluster, {tp: Position(to[tp]) for tp in chosen}, clip=clip)
    stored = set(kafka_positions(snapshot.positions))
    every = all_topics or not (partitions or topics)
    named = {*partitions, *(stored if every else ())}
    bounds = _bounds(snapshot, cluster, {*topics, *(tp.topic for tp in named if every)}, named)
    absent = sorted(set(topics) - {tp.topic for tp in bounds})
    refuse(f"topic {topic} does not exist at {cluster.brokers}" for topic in absent)
    chosen = named | {tp for tp in bounds if tp.topic in topics}
    if not chosen:
        raise Refused(f"group {snapshot.group!r} in {store} has no positions: name the topics to set")
    left = bounds.keys() - chosen - stored if every else ()
    gone = {tp for tp in stored if tp.topic in topics} - chosen - bounds.keys()
    targets = _targets(snapshot, cluster, to, chosen, bounds)
    return make_reset(snapshot, store, targets, _reached(snapshot, cluster, targets, bounds), left, gone, clip=clip)


def check_reset(ledger: Ledger, cluster: Cluster, plan: ResetPlan) -> ResetPlan:
    """Return the plan itself if it fits the ledger and Kafka as they are now.

    Raises:
        Stale: the ledger has moved on since the plan was made, or Kafka does not hold its offsets any more.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    plan.check(ledger.load(), ledger.store.address)
    check_within(plan.positions, _bounds_around(ledger.snapshot, cluster, plan.positions))
    return plan


def apply_reset(ledger: Ledger, cluster: Cluster, plan: ResetPlan, reason: str, *, force: bool = False) -> Snapshot:
    """Do what a plan says, if ledger and Kafka are still as they were, and return the ledger after it.

    A plan that moves nothing changes nothing: no owner is fenced by it, no batch dropped, and no undo takes it back.

    Raises:
        Stale: see `check_reset`; nothing was moved.
        Fenced: a run holds the group, and `force` is not set.
        VersionConflict: somebody changed the ledger at this very moment; nothing was moved.
    """
    check_reset(ledger, cluster, plan)
    if plan.steps:
        ledger.rewind(plan.positions, reason, force=force)
    return ledger.snapshot


def reset_lag(plan: ResetPlan, cluster: KafkaCluster) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that a plan moves as it would be then: how near retention is, among others.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    then = Snapshot(plan.group, positions=plan.positions)
    return {lag.topic_partition: lag for lag in group_lag(then, cluster)}


def plan_rewind(
    ledger: Ledger,
    cluster: Cluster,
    version: int,
    *,
    partitions: Collection[TopicPartition] = (),
    topics: Collection[str] = (),
) -> ResetPlan:
    """Return the plan that sets positions to what they were at a version of the ledger.

    A partition that a run has begun to read since goes back to where that was.

    Args:
        ledger: of the group.
        cluster: Kafka.
        version: to go back to.
        partitions: those to take back. With neither these nor `topics`, all.
        topics: whose partitions are all taken back.

    Raises:
        NotAllowed: the ledger was never at that version.
        Refused: the history, or Kafka, does not reach back that far; or a partition had no position then, and
            was given one by a reset.
    """
    snapshot = ledger.load()
    if not 0 < version <= snapshot.version:
        raise NotAllowed(f"group {ledger.group!r} is at version {snapshot.version}: give one from 1 to that")
    return _plan_back(ledger, cluster, version, partitions, topics)


def plan_undo(
    ledger: Ledger,
    cluster: Cluster,
    *,
    partitions: Collection[TopicPartition] = (),
    topics: Collection[str] = (),
) -> tuple[ResetPlan, Entry]:
    """Return the plan that takes the newest reset back, with what was committed since, and the entry of that reset.

    Where partitions are named it is the newest one that moved any of them, and only they go back. An undo is a reset
    like any other: undone again, it leads to where the group stood before it.

    Args:
        ledger: of the group.
        cluster: Kafka.
        partitions: those to take back. With neither these nor `topics`, all.
        topics: whose partitions are all taken back.

    Raises:
        NotAllowed: the history has no such reset.
        Refused: Kafka does not hold the old positions any more; or a partition had none before the reset.
    """
    found = ledger.load()
    positions = found.positions
    for entry in ledger.history(1000):
        if entry.version > found.version:
            continue  # of somebody who was quicker: this plan is refused then, as the ledger has moved on
        if entry.event == "rewind" and any(is_named(tp, partitions, topics) for tp in entry.moves):
            return _plan_back(ledger, cluster, entry.version - 1, partitions, topics), entry
    select(positions, partitions, topics, f"the positions of group {ledger.group!r}")  # a wrong name is told as one
    which = " of what is named" if partitions or topics else ""
    raise NotAllowed(f"the history of group {ledger.group!r} has no reset{which} to undo: rewind goes to a version")


def _plan_back(
    ledger: Ledger, cluster: Cluster, version: int, partitions: Collection[TopicPartition], topics: Collection[str]
) -> ResetPlan:
    """Return the plan back to a version of the ledger as it was last loaded; 0 is before its first change."""
    snapshot, now = ledger.snapshot, ledger.snapshot.positions
    newest = ledger.history(snapshot.version - version + 1 + _MARGIN)
    entries = [entry for entry in newest if entry.version <= snapshot.version]
    then = starts_since(entries, version) | positions_before(entries, now, version)
    chosen = select(then.keys() | now.keys(), partitions, topics, f"the positions of group {ledger.group!r}")
    refuse(
        f"{tp} had no position then and stands at {now[tp].offset}: a position is never taken away. "
        "Reset it, such as to earliest, and name the partitions that shall go back"
        for tp in sorted(chosen - then.keys())
    )
    back = {tp: then[tp] for tp in chosen if then[tp] != now.get(tp)}  # what stands there already asks nothing of Kafka
    return _plan(snapshot, ledger.store.address, cluster, back)


def _plan(snapshot: Snapshot, store: str, cluster: Cluster, targets: Positions, *, clip: bool = False) -> ResetPlan:
    return make_reset(snapshot, store, targets, _bounds_around(snapshot, cluster, targets), clip=clip)


def _bounds_around(snapshot: Snapshot, cluster: Cluster, targets: Positions) -> dict[TopicPartition, Bounds]:
    """Return what Kafka holds of the topics of these partitions, and what queries have counted."""
    return _reached(snapshot, cluster, targets, _bounds(snapshot, cluster, (), targets))


def _bounds(
    snapshot: Snapshot, cluster: Cluster, topics: Collection[str], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Bounds]:
    """Return what Kafka holds of topics, and of partitions. No others are asked for, as one may have no leader.

    Where the group stands in open transactions, that is not beyond the end.
    """
    names = set(filter(in_kafka, {*topics, *(tp.topic for tp in partitions)}))
    asked = [
        each
        if each.topic in topics
        else replace(each, partitions=tuple(p for p in each.partitions if (each.topic, p) in partitions))
        for each in cluster.describe(names).values()
    ]
    return cluster.with_open_transactions(snapshot.positions, cluster.bounds_of(asked))


def _reached(
    snapshot: Snapshot, cluster: Cluster, targets: Positions, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, Bounds]:
    """Return `bounds` with what queries have counted, and where targets in open transactions are not beyond the end."""
    return cluster.with_open_transactions(targets, bounds) | _counted(snapshot, targets)


def _counted(snapshot: Snapshot, targets: Positions) -> dict[TopicPartition, Bounds]:
    """Return what queries have counted, of those that are to count on from elsewhere: Kafka knows nothing of them."""
    stored = snapshot.positions
    counts = {tp: at.offset for tp, at in targets.items() if tp in stored and not in_kafka(tp.topic)}
    return {tp: Bounds(0, max(offset, stored[tp].offset)) for tp, offset in counts.items()}


def _targets(
    snapshot: Snapshot,
    cluster: Cluster,
    to: str | int | datetime | Shift,
    chosen: Collection[TopicPartition],
    bounds: Mapping[TopicPartition, Bounds],
) -> dict[TopicPartition, Position]:
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise SettingsError(f"{to} has no time zone: add one, such as +00:00")
        check_exist(chosen, bounds)
        times = cluster.offsets_for_times(chosen, int(to.timestamp() * 1000))
        return {tp: Position(offset) for tp, offset in times.items()}
    if isinstance(to, Shift) or to == "current":
        stored = snapshot.positions
        unknown = sorted(tp for tp in chosen if tp not in stored)
        check_exist(unknown, bounds)
        refuse(f"{tp} has no stored position: give it an offset, a time, earliest or latest" for tp in unknown)
        by = to.by if isinstance(to, Shift) else 0
        return {tp: stored[tp]._replace(offset=stored[tp].offset + by) for tp in chosen}
    if isinstance(to, int):
        return dict.fromkeys(chosen, Position(to))
    if to not in {"earliest", "latest"}:
        raise SettingsError(f"{to!r} is no target: use earliest, latest, current, an offset or a time")
    check_exist(chosen, bounds)
    return {tp: Position(bounds[tp].beginning if to == "earliest" else bounds[tp].end) for tp in chosen}
