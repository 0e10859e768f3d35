"""Measures how far a group is behind, how near retention is, and how fast it reads. Pure, except two functions.

A partition without a commit has "no commit", never an offset of -1. The lag in records is the number of offsets between
position and end. It is an upper bound: compaction and transactions leave holes. Records after an open transaction
cannot be read yet, so they are counted as held back, not as lag. The lag in seconds is the age of the first unread
record whose timestamp is not in the future, by that timestamp. If all that were looked at are from the future, the age
is unknown. If the first record cannot be read, its time is interpolated between two records of the partition whose
times are known, and marked as an estimate. It is never extrapolated.

Two samples give the speed of a group and the growth of its topics. With one sample, the speed is what the commits of
the current run have moved since its first one, and the growth is the unread records divided by the age of the oldest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core.bounds import Bounds, Standing, led_anew, standing_of
from offsetkeeper.core.duration import duration, is_future
from offsetkeeper.core.html import html_table
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import Position, Positions, TopicPartition, topics_of
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import listed

if TYPE_CHECKING:
    from offsetkeeper.kafka import KafkaCluster

_NEVER_S = 365 * 86_400.0  # catching up that takes longer than a year counts as never
_RUN_BEGINS = frozenset({"acquire", "release", "rewind"})
AHEAD = "the next record's time is in the future"
"""The remark on a partition whose age is unknown for this reason."""
_OTHERS = {Standing.ELSEWHERE, Standing.RECREATED}  # the position is one of other records
_NOT_CHECKED = "leader changed, not checked"
_REMARKS = {
    Standing.UNKNOWN: "no commit",
    Standing.GONE: "gone",
    Standing.ELSEWHERE: "another cluster",
    Standing.RECREATED: "recreated",
    Standing.CUT: "cut",
    Standing.BEYOND_END: "beyond the end",
    Standing.BELOW_BEGINNING: "lost records",
    Standing.WITHIN: "",
}


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of one partition.

    Attributes:
        topic_partition: the partition.
        position: the next offset to read, or None if nothing is committed.
        beginning, end: the offsets that Kafka holds; None if the partition is gone.
        records: unread offsets; None if nothing is committed, the partition is gone, or it ends before the position.
        lost: unread offsets that are lost to retention; of a partition that was added, all before its beginning.
        seconds: age of the first unread record, or of the first record of a partition without a commit; 0 if all is
            read; None if unknown.
        retention_used: share of the retention time that the first unread record has used; it is deleted at 1.
        estimated: whether `seconds`, and all values derived from it, are estimates.
        standing: where the position is; if the topic was created again since, all of its records are unread.
        held_back: offsets after the beginning of an open transaction.
        held_back_s: age of the first record of that transaction; None if none is open, or unknown.
        unchecked: whether the partition has another leader epoch than the position: the next batch finds out whether
            its log was cut.
        ahead: whether the times of the first unread records are in the future, so that `seconds` is unknown.
    """

    topic_partition: TopicPartition
    position: int | None
    beginning: int | None
    end: int | None
    records: int | None
    lost: int
    seconds: float | None
    retention_used: float | None
    estimated: bool = False
    standing: Standing = Standing.WITHIN
    held_back: int = 0
    held_back_s: float | None = None
    unchecked: bool = False
    ahead: bool = False

    def __repr__(self) -> str:
        position, end, records, _, age, _ = ("-" if cell is None else cell for cell in _cells(self)[2:])
        more = [f"{self.lost} lost"] * bool(self.lost) + [self.remark] * bool(self.remark)
        told = [f"position {position}", f"end {end}", f"{records} behind", f"age {age}", *more]
        return f"<{self.topic_partition}: {', '.join(told)}>"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first unread record is deleted; None if unknown or never."""
        if self.seconds is None or not self.retention_used:
            return None
        return max(0.0, self.seconds / self.retention_used - self.seconds)

    @property
    def without_commit(self) -> int:
        """Offsets that Kafka holds of a partition without a commit: no run has begun to read it."""
        return self.end - self.beginning if self.position is None and self.end and self.beginning is not None else 0

    @property
    def undated_new(self) -> bool:
        """Whether there are records of a partition without a commit, and their age is unknown."""
        return self.without_commit > 0 and self.seconds is None

    @property
    def undated(self) -> bool:
        """Whether there are unread or held back records whose age is unknown."""
        return bool((self.records and self.seconds is None) or (self.held_back and self.held_back_s is None))

    @property
    def remark(self) -> str:
        """A short remark if the position is unusual, else an empty text."""
        return _REMARKS[self.standing] or _NOT_CHECKED * self.unchecked or AHEAD * self.ahead

    def as_dict(self) -> dict[str, Any]:
        """Return the lag as plain values."""
        return plain(self, "seconds_left", "remark", without="standing")


class Lags(list[Lag]):
    """The lag of partitions, sorted; a list that a notebook and a console show as a table."""

    def __repr__(self) -> str:
        return listed([_caption(self), *self])

    def _repr_html_(self) -> str:
        columns = ("topic", "partition", "position", "end", "records", "lost", "age", "remark")
        return html_table(_caption(self), columns, map(_cells, self))


def _caption(lags: Lags) -> str:
    waiting = total(lags, {}).waiting
    return "lag is not known" if waiting is None else f"{waiting} records behind"


class _Age(NamedTuple):
    """The age of a record in seconds, None if unknown; if it is estimated; if the record is from the future."""

    seconds: float | None
    estimated: bool = False
    ahead: bool = False


_READ = _Age(0.0)  # of a partition that is read to its end


class FirstUnread(NamedTuple):
    """The first unread record of a partition, as it was read from Kafka.

    Attributes:
        offset: an offset at or before the record.
        topic_id: id of its topic, or None if unknown.
        at_ms: timestamp of the record, or of the first one after it that is not from the future, milliseconds since
            1970.
        ahead: whether that time was in the future when the record was read.
    """

    offset: int
    topic_id: str | None
    at_ms: int
    ahead: bool = False

    def is_at(self, offset: int, bounds: Bounds) -> bool:
        """Whether this is the first record that counts from an offset on, in a partition with these bounds."""
        return not self.ahead and self.offset == offset and self.topic_id == bounds.topic_id


class Speed(NamedTuple):
    """Speeds in offsets per second, an upper bound of records; None if unknown."""

    processed: float | None = None
    produced: float | None = None

    def catch_up_s(self, records: int | None) -> float | None:
        """Return the seconds until this many unread records are read; None if unknown or never."""
        if not records:
            return None if records is None else 0.0
        if self.processed is None or self.produced is None or self.processed <= self.produced:
            return None
        seconds = records / (self.processed - self.produced)
        return seconds if seconds <= _NEVER_S else None


class Sample(NamedTuple):
    """Lags at one moment, given in milliseconds since 1970."""

    at_ms: int
    lags: Sequence[Lag]


@dataclass(frozen=True, slots=True)
class Total:
    """The lag of several partitions together, such as of a topic or a group.

    Attributes:
        partitions: number of partitions.
        uncommitted, gone, beyond: number of partitions without a commit, of partitions that are not in Kafka, and of
            partitions that end before the position; the sums leave them out.
        records, lost: sums over the partitions.
        seconds: age of the oldest unread record, of those whose age is known, also in partitions without a commit;
            None if there is none.
        undated: number of partitions with unread or held back records whose age is unknown.
        ahead: those of them whose next records are from the future.
        estimated: whether an age is an estimate.
        retention_used: the largest used share of retention.
        seconds_left: seconds until the first unread record is deleted; None if unknown or never.
        speed: sums of the known speeds.
        held_back: sum over the partitions.
        held_back_s: age of the first record of the oldest open transaction; None if unknown.
        without_commit: offsets that Kafka holds of partitions without a commit; `records` leaves them out.
        undated_new: number of partitions without a commit that have records whose age is unknown.
    """

    partitions: int
    uncommitted: int
    gone: int
    beyond: int
    records: int
    lost: int
    seconds: float | None
    undated: int
    ahead: int
    estimated: bool
    retention_used: float | None
    seconds_left: float | None
    speed: Speed
    held_back: int
    held_back_s: float | None
    without_commit: int
    undated_new: int

    @property
    def waiting(self) -> int | None:
        """The unread records. None, not 0, if a position is beyond the end or no partition has a known lag."""
        unknown = self.beyond or 0 < self.partitions == self.uncommitted + self.gone
        return self.records or (None if unknown else 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        known = plain(self, without="speed") | {"records": self.waiting}
        return known | speed_fields(self.speed, self.waiting)


def speed_fields(speed: Speed, records: int | None) -> dict[str, float | None]:
    """Return a speed and the time to catch up, as plain values: offsets per second, and seconds."""
    return {
        "processed_per_s": speed.processed,
        "produced_per_s": speed.produced,
        "catch_up_s": speed.catch_up_s(records),
    }


def topics_read(snapshot: Snapshot) -> set[str]:
    """Return the topics that a group reads: those of its positions, also of positions that the store has lost."""
    return topics_of(snapshot.positions) | {tp.topic for tp in snapshot.missing}


def group_lag(snapshot: Snapshot, cluster: KafkaCluster, topics: Collection[str] = ()) -> Lags:
    """Return the lag of each partition of a group's topics, and of `topics`.

    Raises:
        SettingsError: one of `topics` is not a topic name.
        BrokerUnavailable, NotAuthorized: see `lag_within`.
    """
    bounds = cluster.bounds_of_topics({*topics, *topics_read(snapshot)})
    bounds = cluster.with_log_ends(cluster.with_open_transactions(snapshot.positions, bounds))
    return lag_within(snapshot, cluster, bounds, cluster.retentions({tp.topic for tp in bounds}).ms)


def lag_within(
    snapshot: Snapshot,
    cluster: KafkaCluster,
    bounds: Mapping[TopicPartition, Bounds],
    retentions_ms: Mapping[str, int],
    known: dict[TopicPartition, FirstUnread] | None = None,
) -> Lags:
    """Return the lag of each partition in `bounds`. The bounds were read from Kafka after the snapshot.

    Args:
        snapshot: the group's ledger.
        cluster: Kafka; it is asked only for the time of each first unread record.
        bounds: the offsets that Kafka holds of the group's topics. Of a topic of which the last run has read chosen
            partitions, the others are left out.
        retentions_ms: how long Kafka keeps the records of each topic, in milliseconds.
        known: first unread records that were read earlier; they are not read again, unless they are from the future.
            The current ones replace them.

    Raises:
        BrokerUnavailable, NotAuthorized: Kafka could not be asked. A topic that may not be read is not an error: its
            lag in seconds is an estimate then.
    """
    bounds = {tp: at for tp, at in bounds.items() if tp in snapshot.positions or tp.topic not in snapshot.partly}
    stored = {tp: at for tp, at in snapshot.positions.items() if tp in bounds}
    unread = {tp: _first_unread(at, bounds[tp]) for tp, at in stored.items()}
    # A start reads new partitions of these from the beginning; without a ledger they may be left out on purpose.
    topics = topics_of(stored) if snapshot.version else set()
    new = [tp for tp in bounds if tp not in stored and tp not in snapshot.missing and tp.topic in topics]
    unread |= {tp: bounds[tp].beginning for tp in new}
    known_topics = {tp.topic for tp, at in stored.items() if standing_of(at, bounds[tp]) not in _OTHERS}
    added = {tp for tp in new if tp.topic in known_topics and tp not in snapshot.forgotten}
    behind = {tp: offset for tp, offset in unread.items() if offset < bounds[tp].end}
    before = {} if known is None else known
    same = {
        tp: before[tp].at_ms for tp, offset in behind.items() if tp in before and before[tp].is_at(offset, bounds[tp])
    }
    read = cluster.record_timestamps({tp: offset for tp, offset in behind.items() if tp not in same})
    missing = {tp: offset for tp, offset in behind.items() if tp not in same and tp not in read.times_ms}
    estimated = cluster.estimate_timestamps(missing, read.at_ms) if missing else {}
    if known is not None:
        known.clear()
        known |= {
            tp: FirstUnread(behind[tp], bounds[tp].topic_id, at, is_future(at, read.at_ms))
            for tp, at in (same | read.times_ms).items()
        }
    times_ms = same | read.times_ms | estimated
    held_ms = cluster.held_since(bounds)
    return measure(snapshot.positions, bounds, read.at_ms, times_ms, retentions_ms, estimated, held_ms, added)


def aged(
    lags: Sequence[Lag], known: Mapping[TopicPartition, FirstUnread], now_ms: int, retentions_ms: Mapping[str, int]
) -> list[Lag] | None:
    """Return the lags at a later time, if no position and no bounds have changed. Kafka is not asked.

    Args:
        lags: the earlier lags.
        known: their first unread records, see `lag_within`.
        now_ms: milliseconds since 1970.
        retentions_ms: how long Kafka keeps the records of each topic, in milliseconds.

    Returns:
        The lags, or None if a time must be asked again: an estimate, or the time of an open transaction.
    """

    def later(lag: Lag) -> Lag:
        first = known.get(lag.topic_partition) if lag.records or lag.without_commit else None
        return lag if first is None else _aged(lag, first, now_ms, retentions_ms)

    if any(lag.held_back or ((lag.records or lag.estimated) and lag.topic_partition not in known) for lag in lags):
        return None
    return [later(lag) for lag in lags]


def measure(
    positions: Positions,
    bounds: Mapping[TopicPartition, Bounds],
    now_ms: int,
    times_ms: Mapping[TopicPartition, int] | None = None,
    retentions_ms: Mapping[str, int] | None = None,
    estimated: Collection[TopicPartition] = (),
    held_ms: Mapping[TopicPartition, int] | None = None,
    added: Collection[TopicPartition] = (),
) -> Lags:
    """Return the lag of every partition that is in Kafka or has a position, sorted.

    Args:
        positions: the stored positions.
        bounds: the offsets that Kafka holds of all topics of the positions, and of others that are read.
        now_ms: milliseconds since 1970.
        times_ms: timestamp of the first unread record of each partition, as far as known.
        retentions_ms: how long Kafka keeps the records of each topic; topics that keep them for ever are left out.
        estimated: partitions whose time was interpolated.
        held_ms: timestamp of the first record after an open transaction, by partition, as far as known.
        added: partitions without a position that a start reads from the beginning, and that nobody has read before:
            what Kafka has deleted of them is lost.
    """
    times, kept, stored = times_ms or {}, retentions_ms or {}, positions
    lags = (
        _lag(tp, stored.get(tp), bounds.get(tp), _age(times.get(tp), now_ms, tp in estimated), kept.get(tp.topic))
        for tp in sorted(bounds.keys() | stored.keys())
    )
    held = (_held_back(lag, bounds.get(lag.topic_partition), held_ms or {}, now_ms) for lag in lags)
    return Lags(replace(lag, lost=lag.beginning or 0) if lag.topic_partition in added else lag for lag in held)


def speeds(now: Sample, entries: Sequence[Entry], before: Sample | None = None) -> dict[TopicPartition, Speed]:
    """Return the speed of each partition.

    Args:
        now: the current lags.
        entries: the group's newest history, newest first.
        before: an earlier sample; without one, the speed is computed from the history and the lags.
    """
    if before is not None and now.at_ms > before.at_ms:
        return _between(before, now)
    processed = _processed(entries, now.at_ms)
    found = {}
    for lag in now.lags:
        read = processed.get(lag.topic_partition, 0.0 if processed else None)
        # If all records are read, the group keeps up with the writers.
        written = read if lag.records == 0 else lag.records / lag.seconds if lag.records and lag.seconds else None
        found[lag.topic_partition] = Speed(read, written)
    return found


def total(lags: Iterable[Lag], speed: Mapping[TopicPartition, Speed]) -> Total:
    """Return the lag of several partitions together."""
    every = list(lags)
    known = [lag for lag in every if lag.records is not None]
    fast = [speed.get(lag.topic_partition, Speed()) for lag in known]
    undated = sum(lag.undated for lag in every)
    unread = (lag for lag in every if lag.records or lag.without_commit or not undated)
    return Total(
        len(every),
        sum(lag.position is None for lag in every),
        sum(lag.end is None for lag in every),
        sum(lag.standing is Standing.BEYOND_END for lag in every),
        sum(lag.records or 0 for lag in known),
        sum(lag.lost for lag in every),
        max((lag.seconds for lag in unread if lag.seconds is not None), default=None),
        undated,
        sum(lag.ahead for lag in every),
        any(lag.estimated for lag in every),
        max((lag.retention_used for lag in every if lag.retention_used is not None), default=None),
        min((lag.seconds_left for lag in every if lag.seconds_left is not None), default=None),
        Speed(_known_sum(each.processed for each in fast), _known_sum(each.produced for each in fast)),
        sum(lag.held_back for lag in every),
        max((lag.held_back_s for lag in every if lag.held_back_s is not None), default=None),
        sum(lag.without_commit for lag in every),
        sum(lag.undated_new for lag in every),
    )


def _cells(lag: Lag) -> tuple[object, ...]:
    about = "~" if lag.estimated else ""
    age = None if lag.seconds is None else f"{about}{duration(lag.seconds)}"
    return (*lag.topic_partition, lag.position, lag.end, lag.records, lag.lost or None, age, lag.remark)


def _first_unread(stored: Position, bounds: Bounds) -> int:
    below = {*_OTHERS, Standing.BELOW_BEGINNING}
    return bounds.beginning if standing_of(stored, bounds) in below else stored.offset


def _lag(
    tp: TopicPartition,
    stored: Position | None,
    bounds: Bounds | None,
    age: _Age,
    retention_ms: int | None,
) -> Lag:
    standing = standing_of(stored, bounds)
    position, beginning, end = stored and stored.offset, bounds and bounds.beginning, bounds and bounds.end
    if stored is None or bounds is None:
        seconds, estimated, ahead = age if bounds and bounds.beginning < bounds.end else _Age(None)
        used = _share_used(seconds, retention_ms)
        return Lag(tp, position, beginning, end, None, 0, seconds, used, estimated, standing, ahead=ahead)
    lost = max(0, min(bounds[:2]) - stored.offset) if standing is Standing.BELOW_BEGINNING else 0
    if (
        standing is Standing.BEYOND_END
    ):  # ends are read after positions, so the log was cut, or the position is of another topic with this name
        return Lag(tp, position, beginning, end, None, 0, None, None, standing=standing)
    records = bounds.end - _first_unread(stored, bounds)
    seconds, estimated, ahead = age if records else _READ
    used = _share_used(seconds, retention_ms)
    unchecked = bool(led_anew({tp: stored}, {tp: bounds}))
    return Lag(
        tp,
        position,
        beginning,
        end,
        records,
        lost,
        seconds,
        used,
        estimated,
        standing,
        unchecked=unchecked,
        ahead=ahead,
    )


def _aged(lag: Lag, first: FirstUnread, now_ms: int, retentions_ms: Mapping[str, int]) -> Lag:
    seconds, _, ahead = _age(first.at_ms, now_ms)
    used = _share_used(seconds, retentions_ms.get(lag.topic_partition.topic))
    return Lag(
        lag.topic_partition,
        lag.position,
        lag.beginning,
        lag.end,
        lag.records,
        lag.lost,
        seconds,
        used,
        standing=lag.standing,
        unchecked=lag.unchecked,
        ahead=ahead,
    )


def _share_used(seconds: float | None, retention_ms: int | None) -> float | None:
    return None if seconds is None or not retention_ms else min(1.0, seconds * 1000 / retention_ms)


def _held_back(lag: Lag, bounds: Bounds | None, held_ms: Mapping[TopicPartition, int], now_ms: int) -> Lag:
    if bounds is None or not bounds.held_back:
        return lag
    return replace(lag, held_back=bounds.held_back, held_back_s=_age(held_ms.get(lag.topic_partition), now_ms).seconds)


def _age(written_ms: int | None, here_ms: int, estimated: bool = False) -> _Age:  # noqa: FBT001, FBT002 - passed on
    """Return the age of a record; unknown for timestamps of 0 or less (some clients write 0 or -1)."""
    if written_ms is None or written_ms <= 0:
        return _Age(None)
    ahead = is_future(written_ms, here_ms)
    return _Age(None if ahead else max(0.0, (here_ms - written_ms) / 1000), estimated, ahead)


def _between(before: Sample, after: Sample) -> dict[TopicPartition, Speed]:
    seconds = (after.at_ms - before.at_ms) / 1000
    earlier = {lag.topic_partition: lag for lag in before.lags}
    return {
        lag.topic_partition: Speed(_rate(past.position, lag.position, seconds), _rate(past.end, lag.end, seconds))
        for lag in after.lags
        if (past := earlier.get(lag.topic_partition)) is not None
    }


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    """Return offsets per second; None if an offset went back: by a reset, or because the topic was created again."""
    return None if before is None or after is None or after < before else (after - before) / seconds


def _processed(entries: Sequence[Entry], now_ms: int) -> dict[TopicPartition, float]:
    """Return the speed of the current run in each partition, in offsets per second; empty if unknown."""
    commits: list[Entry] = []
    for entry in entries:
        if entry.event in _RUN_BEGINS:
            break
        commits += [entry] if entry.event == "commit" else []
    if len(commits) < 2 or now_ms <= commits[-1].at_ms:  # noqa: PLR2004 - the first commit only gives the start time
        return {}
    seconds = (now_ms - commits[-1].at_ms) / 1000
    found: dict[TopicPartition, float] = {}
    for entry in commits[:-1]:
        for r in entry.ranges:
            found[r.topic_partition] = found.get(r.topic_partition, 0.0) + r.size / seconds
    return found


def _known_sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
