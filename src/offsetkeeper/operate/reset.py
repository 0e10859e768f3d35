"""Plans a reset with Kafka's answers, checks the plan again, executes it, and undoes it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import NamedTuple

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, first_ms
from offsetkeeper.core.commands import command
from offsetkeeper.core.ledger import MARGIN, Ledger
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.errors import CorruptStore, NotAllowed, Refused, SettingsError, Stale
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.earlier import numbers_before, positions_before, starts_since
from offsetkeeper.operate.forget import forget_command
from offsetkeeper.operate.lag import Lag, group_lag
from offsetkeeper.operate.reset_goal import Goal, check_within, make_reset, restoring
from offsetkeeper.operate.reset_plan import ResetPlan
from offsetkeeper.operate.scope import EVERYTHING, Scope, check_exist, refuse
from offsetkeeper.operate.status import entries_to_read

log = logging.getLogger(__name__)
_KEPT = 1000  # entries: stores keep this many, or fewer
_UNDO = re.compile(r"(?:^|; )undo of version (\d+)(?=;| \(by |$)")  # as `undo_reason` says it, and who signs it
Target = str | int | datetime | Mapping[TopicPartition, int]


class Shift(NamedTuple):
    """A target relative to the stored position, in offsets; negative moves back."""

    by: int


def known_history(ledger: Ledger, least: int = 0) -> Sequence[Entry]:
    """Return the history of a loaded ledger for the counts of a preview, newest first.

    Args:
        ledger: the group's ledger.
        least: how many entries are needed for more than counts.

    Raises:
        CorruptStore: one of the entries that are needed is damaged. Without the others, fewer offsets are known.
    """
    try:
        return ledger.history(max(least, entries_to_read(len(ledger.snapshot.positions))))
    except CorruptStore as error:
        log.warning("the numbers of the preview are by less of the history: %s", error)
        return ledger.history(least) if least else ()


def plan_reset(
    snapshot: Snapshot,
    store: str,
    cluster: Cluster,
    to: Target | Shift,
    scope: Scope = EVERYTHING,
    *,
    clip: bool = False,
    history: Sequence[Entry] = (),
) -> ResetPlan:
    """Return the plan of a reset; nothing changes.

    Args:
        snapshot: the group's ledger.
        store: address of its store.
        cluster: Kafka.
        to: "earliest", "latest", "current", an offset, a time with a time zone, offsets by partition, or a `Shift`.
        scope: the partitions to move. The plan lists partitions of its topics that are gone in Kafka, and partitions
            without a position that are not named, which do not move.
        clip: whether an offset that Kafka does not hold becomes the nearest one that it holds; the plan lists these.
        history: the group's history, newest first, see `make_reset`.

    Raises:
        Refused: a partition does not exist, has no position to shift, or Kafka does not hold the offset.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    partitions, topics, all_topics = scope
    if isinstance(to, Mapping):
        if not to:
            raise SettingsError("no offsets were given; nothing was changed")
        chosen = scope.select(to, "the offsets given")
        given = {tp: Position(to[tp]) for tp in chosen}
        left = _left(snapshot, cluster, chosen)
        around = _bounds_around(snapshot, cluster, given)
        return make_reset(snapshot, store, Goal(given, clip), around, left, history=history)
    stored = set(snapshot.positions)
    every = all_topics or not scope.names_some
    named = {*partitions, *(stored if every else ())}
    bounds = _bounds(snapshot, cluster, {*topics, *(tp.topic for tp in named if every)}, named)
    absent = sorted(set(topics) - {tp.topic for tp in bounds})
    refuse(f"topic {topic} does not exist at {cluster.brokers}" for topic in absent)
    chosen = named | {tp for tp in bounds if tp.topic in topics}
    if not chosen:
        raise Refused(f"group {snapshot.group!r} in {store} has no positions: name the topics to reset")
    left = _left(snapshot, cluster, chosen)
    gone = {tp for tp in stored if tp.topic in topics} - chosen - bounds.keys()
    targets = _targets(snapshot, cluster, to, chosen, bounds)
    bounds = _with_targets(snapshot, cluster, targets, bounds)
    plan = make_reset(snapshot, store, Goal(targets, clip), bounds, left, gone, history=history)
    return replace(plan, unsettled="", once_more=()) if to == "current" and not plan.steps else plan


def check_reset(ledger: Ledger, cluster: Cluster, plan: ResetPlan) -> ResetPlan:
    """Return the plan itself if it still fits the ledger and Kafka.

    Raises:
        Stale: the ledger has changed since the plan was made, or a log was cut.
        Refused: Kafka no longer holds its offsets.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    plan.check(ledger.load(), ledger.store.address)
    bounds = _bounds_around(ledger.snapshot, cluster, plan.positions)
    check_within({tp: at._replace(leader_epoch=None) for tp, at in plan.positions.items()}, bounds)
    for tp in sorted(plan.positions):
        if bounds[tp].others_from not in {None, plan.cuts.get(tp)}:
            raise Stale(f"the log of {tp} was cut since the plan was made; nothing was changed. Make a new plan")
    return plan


def apply_reset(ledger: Ledger, cluster: Cluster, plan: ResetPlan, reason: str, *, force: bool = False) -> Snapshot:
    """Execute a plan if ledger and Kafka have not changed since, and return the ledger after it.

    A plan that changes nothing fences no owner, drops no batch, and leaves nothing to undo.

    Raises:
        Stale: see `check_reset`; nothing was moved.
        Fenced: a run holds the group, and `force` is not set.
        VersionConflict: another writer changed the ledger at the same time; nothing was moved.
    """
    check_reset(ledger, cluster, plan)
    if plan.moves:
        ledger.rewind(
            plan.positions,
            reason,
            force=force,
            queries=plan.numbers,
            stays=[tp for tp, _ in plan.stays],
            restores=bool(plan.restores),
            cuts=plan.cuts,
        )
    return ledger.snapshot


def reset_lag(plan: ResetPlan, cluster: KafkaCluster) -> dict[TopicPartition, Lag]:
    """Return the lag that each moved partition would have at its new position, such as how near retention is.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    then = Snapshot(plan.group, positions=plan.positions)
    return {lag.topic_partition: lag for lag in group_lag(then, cluster)}


def plan_rewind(
    ledger: Ledger, cluster: Cluster, version: int, scope: Scope = EVERYTHING, *, clip: bool = False
) -> ResetPlan:
    """Return the plan that sets positions back to an earlier version of the ledger.

    A partition that a run has started to read since then goes back to where that run started.

    Args:
        ledger: ledger of the group.
        cluster: Kafka.
        version: the version to go back to.
        scope: the partitions to move back.
        clip: as in `plan_reset`.

    Raises:
        NotAllowed: the ledger was never at that version.
        Refused: the history or Kafka does not reach back that far; or a partition had no position then, and a reset
            has set one since.
    """
    snapshot = ledger.load()
    if not 0 < version <= snapshot.version:
        raise NotAllowed(
            f"group {ledger.group!r} is at version {snapshot.version}: give a version from 1 to {snapshot.version}"
        )
    return _plan_back(ledger, cluster, version, scope, clip=clip)


def plan_undo(
    ledger: Ledger, cluster: Cluster, scope: Scope = EVERYTHING, *, clip: bool = False
) -> tuple[ResetPlan, Entry]:
    """Return the plan that undoes the newest reset and the commits since, and the history entry of that reset.

    If partitions are named, it is the newest reset that moved one of them, and only they move back. An undo is itself
    a reset: another undo moves the group back to where it was before.

    Args:
        ledger: ledger of the group.
        cluster: Kafka.
        scope: the partitions to move back.
        clip: as in `plan_reset`.

    Raises:
        NotAllowed: the history has no such reset.
        Refused: Kafka no longer holds the old positions; or a partition had none before the reset.
    """
    found = ledger.load()
    positions = found.positions
    for entry in ledger.history(_KEPT):
        if entry.version > found.version:
            continue  # newer than the loaded ledger: this plan will be refused as stale
        counted = bool(entry.counts) and not scope.names_some
        forgot = any(at is not None and scope.covers(tp) for tp, at in entry.forgot.items())
        moved = counted or any(scope.covers(tp) for tp in entry.moves)
        if (entry.event == "forget" and forgot) or (entry.event == "rewind" and moved):
            return _plan_back(ledger, cluster, entry.version - 1, scope, clip=clip), entry
    scope.select(positions, f"the positions of group {ledger.group!r}")  # refuses a wrong name
    which = " of these partitions" if scope.names_some else ""
    raise NotAllowed(
        f"the history of group {ledger.group!r} has no reset{which} to undo. To go back to a version, use rewind"
    )


def taken_back(ledger: Ledger, entry: Entry, scope: Scope = EVERYTHING) -> list[str]:
    """Return sentences on what an undo takes back: this entry of the loaded ledger, and copies into it since.

    If the undo moves all partitions, they also tell of resets right before, which stay.
    """
    now = ledger.snapshot.version
    since = [each for each in ledger.history(now - entry.version + MARGIN) if entry.version < each.version <= now]
    copies = [
        each
        for each in since
        if each.event == "copy" and (each.forgot or any(move.before for move in each.moves.values()))
    ]
    notes = [f"this takes back {_told(entry)}"] + [
        f"it also takes back {_told(each)}. The history does not show what was read in between, so that may come again"
        for each in copies[::-1]
    ]
    return notes if scope.names_some else notes + _further(ledger, entry)


def _further(ledger: Ledger, entry: Entry) -> list[str]:
    """Return sentences on resets right before the one that an undo takes back: no commit came in between."""
    before = (each for each in ledger.history(_KEPT) if each.version < entry.version)
    since = [each for each in takewhile(lambda each: each.event != "commit", before) if each.event == "rewind"]
    undone, notes = taken_back_by(entry), []
    if undone is not None:
        notes.append(f"version {entry.version} took back version {undone}: this makes that change once more")
    stays = _standing([each for each in since if each.version != undone])
    if stays and stays[0].version > 1:
        back = command("rewind", ledger.group, f"--version {stays[0].version - 1}")
        notes.append(f"an earlier reset stays: {_told(stays[0])}. To go back to before it: {back}")
    return notes


def _standing(resets: Sequence[Entry]) -> list[Entry]:
    """Return the resets, newest first, that no undo among them took back; none if an undo was undone itself."""
    undos = {each.version: version for each in resets if (version := taken_back_by(each)) is not None}
    if not undos.keys().isdisjoint(undos.values()):
        return []
    return [each for each in resets if each.version not in undos and each.version not in undos.values()]


def undo_reason(entry: Entry, reason: str = "") -> str:
    """Return the reason for an undo of an entry in the history; `taken_back_by` reads it."""
    return "; ".join(filter(None, (f"undo of version {entry.version}", reason)))


def check_again(entry: Entry, remedy: str, *, again: bool) -> None:
    """Check that an entry which is to be undone is no undo itself, so that one which is repeated changes nothing.

    Args:
        entry: the entry.
        remedy: how to ask for it.
        again: whether it was asked for.

    Raises:
        Refused: it is one, and was not asked for.
    """
    undone = taken_back_by(entry)
    if undone is not None and not again:
        raise Refused(
            f"nothing was changed: version {entry.version} took back version {undone} already. To make that change "
            f"once more, {remedy}; to go back further, use rewind"
        )


def taken_back_by(entry: Entry) -> int | None:
    """Return the version that an entry has taken back; None if the entry is no undo."""
    found = _UNDO.search(entry.reason) if entry.event == "rewind" else None
    return int(found[1]) if found else None


def _told(entry: Entry) -> str:
    at = datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(timespec="seconds")
    why = f": {entry.reason}" if entry.reason else ""
    return f"version {entry.version}, a {entry.event} by {entry.actor} at {at}{why}"


def _plan_back(ledger: Ledger, cluster: Cluster, version: int, scope: Scope, *, clip: bool) -> ResetPlan:
    """Return the plan that goes back to a version of the loaded ledger; 0 is before its first change."""
    snapshot, now = ledger.snapshot, ledger.snapshot.positions
    newest = known_history(ledger, snapshot.version - version + 1 + MARGIN)
    entries = [entry for entry in newest if entry.version <= snapshot.version]
    then = starts_since(entries, version) | positions_before(entries, now, snapshot.version, version)
    chosen = scope.select(then.keys() | now.keys(), f"the positions of group {ledger.group!r}")
    refuse(
        f"{tp} had no position then and is at {now[tp].offset} now: no way back takes a position out. Do that with "
        f"{forget_command(ledger.group, tp)}. Or reset this partition, for "
        "example to earliest, and name the partitions that go back"
        for tp in sorted(chosen - then.keys())
    )
    then = {tp: at._replace(leader_epoch=now[tp].leader_epoch) if tp in now else at for tp, at in then.items()}
    back = {tp: then[tp] for tp in chosen if then[tp] != now.get(tp)}  # partitions that stay ask nothing of Kafka
    every = not scope.names_some  # a query's state belongs to all that it has read
    numbers = numbers_before(entries, snapshot.queries, version) if every else {}
    bounds = _bounds_around(snapshot, cluster, back)
    plan = make_reset(snapshot, ledger.store.address, Goal(back, clip, numbers), bounds, history=entries)
    return restoring(plan, snapshot, entries, version) if every else plan


def _left(snapshot: Snapshot, cluster: Cluster, moved: Collection[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions without a position of topics that move, which get none."""
    described = cluster.describe({tp.topic for tp in moved}).values()
    there = {TopicPartition(about.topic, number) for about in described for number in about.partitions}
    return there - snapshot.positions.keys() - {*snapshot.missing} - {*moved}  # without a lost one no start is possible


def _bounds_around(snapshot: Snapshot, cluster: Cluster, targets: Positions) -> dict[TopicPartition, Bounds]:
    """Return the bounds in Kafka of these partitions, see `_with_targets`."""
    return _with_targets(snapshot, cluster, targets, _bounds(snapshot, cluster, (), targets))


def _with_targets(
    snapshot: Snapshot, cluster: Cluster, targets: Positions, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, Bounds]:
    """Return bounds that have targets in open transactions, and know of logs that were cut.

    That is asked for the stored position, or for the target if it is further on in the log of then.
    """
    further = {
        tp: at
        for tp, at in targets.items()
        if at.leader_epoch is not None and (stored := snapshot.positions.get(tp)) and at.offset > stored.offset
    }
    return cluster.with_cuts({**snapshot.positions, **further}, cluster.with_open_transactions(targets, bounds))


def _bounds(
    snapshot: Snapshot, cluster: Cluster, topics: Collection[str], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Bounds]:
    """Return the bounds in Kafka of topics and partitions. Others are not asked for: they may have no leader.

    A position in an open transaction does not count as beyond the end.
    """
    names = {*topics, *(tp.topic for tp in partitions)}
    asked = [
        each
        if each.topic in topics
        else replace(each, partitions=tuple(p for p in each.partitions if (each.topic, p) in partitions))
        for each in cluster.describe(names).values()
    ]
    return cluster.with_open_transactions(snapshot.positions, cluster.bounds_of(asked))


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
        times = cluster.offsets_for_times(chosen, first_ms(to))
        return {tp: Position(offset) for tp, offset in times.items()}
    if isinstance(to, Shift) or to == "current":
        stored = snapshot.positions
        unknown = sorted(tp for tp in chosen if tp not in stored)
        check_exist(unknown, bounds)
        refuse(f"{tp} has no stored position: use an offset, a time, earliest or latest" for tp in unknown)
        by = to.by if isinstance(to, Shift) else 0
        return {tp: stored[tp]._replace(offset=stored[tp].offset + by) for tp in chosen}
    if isinstance(to, int):
        return dict.fromkeys(chosen, Position(to))
    if to not in {"earliest", "latest"}:
        raise SettingsError(f"{to!r} is not a target: use earliest, latest, current, an offset or a time")
    check_exist(chosen, bounds)
    return {tp: Position(bounds[tp].beginning if to == "earliest" else bounds[tp].end) for tp in chosen}
