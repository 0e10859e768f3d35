"""What a reset is to reach, and the plan that reaches it: each partition's step, checked against Kafka. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from offsetkeeper.core.batch import NO_QUERIES, Queries
from offsetkeeper.core.bounds import Bounds, Standing, cut_text, is_another, seen_at, standing_of
from offsetkeeper.core.identity import is_elsewhere, is_recreated
from offsetkeeper.core.model import RUN, START, Count, Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.core.rules import drops
from offsetkeeper.operate.audit import what_was_read
from offsetkeeper.operate.reset_plan import Dropped, ResetPlan, Step, deleted
from offsetkeeper.operate.scope import missing, refuse

_DECIDING = {"begin", "commit", "abandon", "settle", "rewind", "adopt"}  # what becomes of a batch


class Goal(NamedTuple):
    """What a reset is to reach.

    Attributes:
        positions: offset of each partition, with the id of the topic it belongs to, None is the current topic; and with
            a leader epoch if it belongs to the log of then.
        clip: whether an offset that Kafka does not hold becomes the nearest one that it holds; the plan lists these.
        numbers: the number that the next batch of a query with state gets, by the query's id.
    """

    positions: Positions
    clip: bool = False
    numbers: Queries = NO_QUERIES


def make_reset(
    snapshot: Snapshot,
    store: str,
    goal: Goal,
    bounds: Mapping[TopicPartition, Bounds],
    left: Iterable[TopicPartition] = (),
    gone: Iterable[TopicPartition] = (),
    *,
    history: Iterable[Entry] = (),
) -> ResetPlan:
    """Return the plan that moves each partition of the goal to its offset.

    Args:
        snapshot: the group's ledger.
        store: address of its store.
        goal: what is to be reached.
        bounds: the offsets that Kafka holds, and where logs were cut since they were read.
        left: partitions without a position that the plan lists as not moved.
        gone: partitions with a position that the plan lists as gone.
        history: the group's history, newest first. It tells which offsets were read; without it, all before a position
            count as read.

    Raises:
        Refused: see `check_within`.
    """
    asked = goal.positions
    targets = _clipped(asked, bounds) if goal.clip else asked
    check_within(targets, bounds)
    positions = snapshot.positions
    news = {tp: _seen(at, bounds[tp], positions.get(tp)) for tp, at in sorted(targets.items())}
    cuts = {tp: cut for tp in news if (cut := bounds[tp].others_from) is not None}
    entries = [*history]
    known = what_was_read(entries, snapshot, news, cuts)
    steps, stays = [], []
    for tp, new in news.items():
        here, stored, cut = bounds[tp], positions.get(tp), cuts.get(tp)
        if cut is None and _is_there(stored, new):
            stays.append((tp, new.offset))
        else:
            another = stored is not None and is_another(stored, new)
            steps.append(Step(tp, stored and stored.offset, new, here.beginning, here.end, another, known[tp], cut))
    moved = {step.topic_partition: step.new for step in steps}
    others = {step.topic_partition.topic: step.new for step in steps if step.another}
    away = {step.topic_partition for step in steps if step.another}
    older = {tp for tp, at in snapshot.positions.items() if tp not in moved and _is_older(at, others.get(tp.topic))}
    counted = snapshot.queries
    counts = [(query, Count(counted[query], to)) for query, to in sorted(goal.numbers.items()) if counted[query] != to]
    pending, changes = snapshot.pending, bool(steps or counts)
    dropped = pending if pending is not None and changes and drops(pending, moved) else None
    unsettled = snapshot.unsettled if changes or _counts_no_more(snapshot, dict(stays)) else None
    return ResetPlan(
        snapshot.group,
        store,
        snapshot.version,
        snapshot.change_id,
        tuple(steps),
        tuple(stays),
        tuple(sorted({*left, *older})),
        tuple(sorted(gone)),
        None if dropped is None else Dropped.of(dropped, positions, news, away | older),
        tuple((tp, at.offset) for tp, at in sorted(asked.items()) if at.offset != targets[tp].offset),
        "" if pending is None or dropped is not None else pending.id,
        "" if unsettled is None else unsettled.id,
        next(iter(_clusters(snapshot.positions, moved)), ()),
        tuple(counts),
        once_more=() if unsettled is None else _read_again(unsettled.ranges, news, away | older),
        states=tuple(sorted(query for query, number in counted.items() if number)),
        outputs=snapshot.outputs,
        direct=not snapshot.queries and only_direct(entries),
    )


def only_direct(history: Iterable[Entry]) -> bool:
    """Whether direct runs have taken the group, and no streaming query, as far as the history knows."""
    reasons = {entry.reason for entry in history if entry.event == "acquire"}
    return RUN in reasons and START not in reasons


def check_within(targets: Positions, bounds: Mapping[TopicPartition, Bounds]) -> None:
    """Check that Kafka holds each offset, and that it belongs to the current topic.

    Raises:
        Refused: a partition does not exist, Kafka does not hold an offset, or the topic was deleted and created
            again; the message lists up to twenty problems.
    """
    refuse(problem for tp in sorted(targets) if (problem := _problem(tp, targets[tp], bounds.get(tp))))


def restoring(plan: ResetPlan, snapshot: Snapshot, entries: Iterable[Entry], version: int) -> ResetPlan:
    """Return a plan that makes the unsettled batch pending again, if it takes back all that happened since.

    Args:
        plan: goes back to a version.
        snapshot: the ledger.
        entries: its history, newest first.
        version: the version. The batch was pending then if its begin is the newest entry that says so.
    """
    batch = snapshot.unsettled
    if batch is None or batch.sequence != snapshot.sequence:
        return plan
    known = list(entries)
    starts = {r.topic_partition: r.start for r in reversed(batch.ranges)}
    there = {**snapshot.positions, **plan.positions}
    stands = all(tp in there and there[tp].offset == start for tp, start in starts.items())
    newest = next((entry for entry in known if entry.version <= version and entry.event in _DECIDING), None)
    began = newest is not None and (newest.event, newest.token) == ("begin", batch.token)
    only = all(entry.event == "rewind" for entry in known if entry.version > version)  # no run has looked since
    return replace(plan, restores=batch.id, unsettled="", once_more=()) if stands and began and only else plan


def _seen(target: Position, here: Bounds, stored: Position | None) -> Position:
    """Return the new position. One of the log of then keeps its leader epoch: a batch may be pending again there."""
    seen = seen_at(target.offset, here, stored)
    return seen if target.leader_epoch is None else seen._replace(leader_epoch=target.leader_epoch)


def _is_there(stored: Position | None, new: Position) -> bool:
    """Whether a partition is at its target. A start notes cluster and epoch, no reset is needed for it."""
    new = new._replace(leader_epoch=None)
    return stored is not None and stored._replace(leader_epoch=None) in {new, new._replace(cluster_id=None)}


def _counts_no_more(snapshot: Snapshot, stays: Mapping[TopicPartition, int]) -> bool:
    """Whether a dropped batch counts no more in one of these partitions, which a reset names and which stay."""
    unmoved = () if snapshot.unsettled is None else snapshot.unsettled.unmoved
    return any(stays.get(r.topic_partition) == r.start for r in unmoved)


def _read_again(
    ranges: Iterable[OffsetRange], news: Positions, others: Collection[TopicPartition]
) -> tuple[OffsetRange, ...]:
    """Return what is read again of ranges in partitions that a reset names."""
    named = [r for r in ranges if r.topic_partition in news and r.topic_partition not in others]
    starts = {r: max(r.start, news[r.topic_partition].offset) for r in named}
    return tuple(r._replace(start=start) for r, start in starts.items() if start < r.end)


def _is_older(at: Position, new: Position | None) -> bool:
    """Whether a position is of the topic before it was created again, in the same cluster."""
    return (
        new is not None and is_recreated(at.topic_id, new.topic_id) and not is_elsewhere(at.cluster_id, new.cluster_id)
    )


def _clusters(positions: Positions, moved: Positions) -> Iterator[tuple[str, ...]]:
    """Yield the old and the new cluster of each position that goes to another one."""
    for tp, new in moved.items():
        old = positions.get(tp, new).cluster_id
        if old is not None and new.cluster_id is not None and is_elsewhere(old, new.cluster_id):
            yield old, new.cluster_id


def _clipped(targets: Positions, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Position]:
    return {tp: _nearest(at, bounds[tp]) if tp in bounds else at for tp, at in targets.items()}


def _nearest(target: Position, here: Bounds) -> Position:
    most = here.end
    if target.leader_epoch is not None and here.common is not None and here.common >= 0:
        most = min(most, here.common)
    offset = max(min(target.offset, most), here.beginning)
    return target if offset == target.offset else target._replace(offset=offset, leader_epoch=None)


def _problem(tp: TopicPartition, target: Position, bounds: Bounds | None) -> str:
    if bounds is None:
        return missing(tp)
    standing = standing_of(target, bounds if target.leader_epoch is not None else bounds._replace(common=None))
    if standing is Standing.ELSEWHERE:
        return (
            f"{tp}: the brokers are of the Kafka cluster {bounds.cluster_id}, and the position is of "
            f"{target.cluster_id}: offset {target.offset} means another record there. Correct --brokers. If the group "
            "is to go on in the other cluster, reset it to earliest, latest, a time, or offsets of that cluster"
        )
    if standing is Standing.RECREATED:
        return (
            f"{tp}: the topic was deleted and created again since; offset {target.offset} means another record now. "
            "Reset it to earliest, latest, a time, or an offset of the new topic"
        )
    if standing is Standing.CUT:
        clip = "" if bounds.common == -1 else f". --clip takes {max(bounds.common or 0, bounds.beginning)}"
        return (
            f"{tp}: offset {target.offset} means another record now: its log {cut_text(bounds)}. Reset it to earliest, "
            f"latest, a time, or an offset of the log as it is now{clip}"
        )
    if standing is not Standing.WITHIN:
        there = f"{bounds.beginning} to {bounds.end}"
        gone = deleted(target.offset, bounds.beginning)
        lost = f" ({gone} offsets are lost)" if gone else ""
        return (
            f"{tp}: offset {target.offset} is outside the offsets that Kafka holds, {there}{lost}. "
            "--clip takes the nearest one"
        )
    return ""
