"""Plans a replay with Kafka's answers. It neither needs nor changes the group's positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, first_ms
from offsetkeeper.core.ledger import MARGIN, Ledger
from offsetkeeper.core.model import Entry
from offsetkeeper.core.offsets import OffsetRange, Positions, TopicPartition
from offsetkeeper.errors import NotAllowed, Refused, SettingsError
from offsetkeeper.operate.earlier import positions_before
from offsetkeeper.operate.replay_plan import Replay, cuts_since, make_replay
from offsetkeeper.operate.scope import EVERYTHING, Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper.kafka.cluster import Retentions

Limit = int | datetime | None


def plan_replay(
    ledger: Ledger,
    cluster: Cluster,
    *,
    start: Limit = None,
    end: Limit = None,
    scope: Scope = EVERYTHING,
    ordered: bool = False,
    retentions: Callable[[Iterable[str]], Retentions] | None = None,
) -> Replay:
    """Return the plan to read the records between two limits again; nothing changes.

    Between two times these are exactly the records whose time lies there, whatever their order. Between two offsets
    these are the records that were there when the position was stored: if an election has cut some since, others are
    not read for them. From a time on, retention may have deleted some if Kafka holds no record from before that time:
    what is deleted tells no time. The plan has these partitions in `perhaps_deleted`. A partition without any record is
    in `emptied` instead if retention keeps records since then: what it has deleted there is older.

    Args:
        ledger: ledger of the group.
        cluster: Kafka.
        start: an offset, or a time; without it, the beginning.
        end: an offset, or a time; it is not read. Without it, the group's position. A record before a time may come
            after any other one, so with a time the ranges reach up to the end of the partitions.
        scope: the partitions to read; without a name, all that have a position of the group, or had one that the store
            has lost.
        ordered: whether the records are in the order of their times: then the ranges end at the first record at or
            after the time.
        retentions: returns for how long topics keep their records, if that can be asked.

    Raises:
        Refused: see `make_replay`; or a topic does not exist, or a partition has no position to end at.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    partitions, topics, _ = scope
    snapshot = ledger.load()
    positions = snapshot.positions
    every = {*positions, *snapshot.missing}
    bounds = cluster.bounds_of_topics({*topics, *(tp.topic for tp in partitions)} or {tp.topic for tp in every})
    if missing := sorted(set(topics) - {tp.topic for tp in bounds}):
        raise Refused(f"topic {missing[0]} does not exist at {cluster.brokers}")
    # A position that the store has lost is no reason to leave records out, unless its topic is deleted.
    held = {*positions, *(tp for tp in snapshot.missing if tp in bounds)}
    chosen = {*partitions, *(tp for tp in bounds if tp.topic in topics)} or held
    there = {tp: bounds[tp] for tp in chosen if tp in bounds}
    starts = _offsets(cluster, start, there, {tp: at.beginning for tp, at in there.items()})
    if end is None and (unknown := sorted(tp for tp in there if tp not in positions)):
        raise Refused(f"{unknown[0]} has no stored position to end at: give the end, as an offset or a time")
    if isinstance(end, datetime) and not ordered:
        ends: Mapping[TopicPartition, int] = {tp: at.end for tp, at in there.items()}
    else:
        ends = _offsets(cluster, end, there, {tp: at.offset for tp, at in positions.items()})
    wanted = [OffsetRange(*tp, starts.get(tp, 0), ends.get(tp, 1)) for tp in chosen]
    since, before = (at if isinstance(at, datetime) else None for at in (start, end))
    read = {tp: at._replace(offset=min(at.offset, ends[tp])) for tp, at in positions.items() if tp in there}
    cuts = {} if since or before else _cuts(cluster, read, bounds)  # by time, it is the records that are there now
    gone = sorted(tp for tp, at in there.items() if since and 0 < at.beginning == starts[tp])
    empty = [tp for tp in gone if there[tp].beginning == there[tp].end]
    kept_ms = retentions({tp.topic for tp in empty}).surely_ms if empty and retentions else {}
    ago_ms = environment.now_ms() - first_ms(since) if since else 0
    emptied = tuple(tp for tp in empty if ago_ms < kept_ms.get(tp.topic, 0))
    perhaps = tuple(tp for tp in gone if tp not in emptied)
    made = make_replay(ledger.group, wanted, positions, bounds, cuts, perhaps)
    return replace(made, since=since, before=before, emptied=emptied)


def plan_replay_of(ledger: Ledger, cluster: Cluster, version: int) -> Replay:
    """Return the plan to read again the batch whose commit made a version of the ledger.

    Raises:
        NotAllowed: the history does not have that version, or no batch made it.
        Refused: see `make_replay`.
    """
    snapshot = ledger.load()
    entries = ledger.history(max(1, snapshot.version - version + 1 + MARGIN))
    entry = next((each for each in entries if each.version == version), None)
    if entry is None or not entry.ranges:
        what = _no_ranges(entry)
        raise NotAllowed(f"version {version} of group {ledger.group!r} {what}: offsetkeeper history lists the versions")
    bounds = cluster.bounds_of_topics({r.topic for r in entry.ranges})
    at = snapshot.positions
    read = {tp: at[tp]._replace(offset=r.end) for r in entry.ranges if (tp := r.topic_partition) in at}
    cuts = cuts_since(entries, version)
    cuts |= {tp: min(common, cuts.get(tp, common)) for tp, common in _cuts(cluster, read, bounds).items()}
    then = positions_before(entries, at, snapshot.version, version)
    return make_replay(ledger.group, entry.ranges, then, bounds, cuts)


def _no_ranges(entry: Entry | None) -> str:
    if entry is None:
        return "is not in its history"
    if entry.event == "commit":
        return "was made by a batch of a query that had no records"
    return f"was made by {entry.event}, not by a batch"


def _cuts(cluster: Cluster, read: Positions, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, int]:
    """Ask where logs were cut before these offsets since the ledger has stored the positions."""
    found = cluster.with_cuts(read, bounds)
    return {tp: here.common for tp, here in found.items() if here.common is not None}


def replay_batch(replay: Replay) -> Batch:
    """Return the batch that a replay passes to the user's function; its id is unique, also among replays."""
    return Batch(f"{replay.group}.replay", environment.token(), 1, replay.ranges)


def wanted_rows(replay: Replay, frame: DataFrame) -> DataFrame:
    """Return the rows of a frame of the ranges that a replay wants."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only --process needs Spark

    if replay.since is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(replay.since))
    return frame if replay.before is None else frame.where(f.col("timestamp") < f.lit(replay.before))


def _offsets(
    cluster: Cluster, limit: Limit, there: Collection[TopicPartition], default: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    if isinstance(limit, datetime):
        if limit.tzinfo is None:
            raise SettingsError(f"{limit} has no time zone: add one, such as +00:00")
        return cluster.offsets_for_times(there, first_ms(limit))
    return default if limit is None else dict.fromkeys(there, limit)
