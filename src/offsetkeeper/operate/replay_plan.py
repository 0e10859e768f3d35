"""The plan of a replay: ranges to read again, without touching the group. Pure.

The plan has, for each partition, the wanted range, the part that Kafka still holds, and the part that is lost:
retention has deleted it, or an election has cut it from the log, and others may have its offsets now.
A replay does not touch positions, owner and history.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from offsetkeeper.core.bounds import Bounds, Standing, known_ids, standing_of
from offsetkeeper.core.model import NO_CUTS, Cuts, Entry
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import Refused, listed

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The range of one partition to read again.

    Attributes:
        wanted: the requested range.
        left: the part of `wanted` that Kafka still holds; it may be empty.
        cut: number of offsets of `wanted` that an election has cut from the log.
    """

    wanted: OffsetRange
    left: OffsetRange
    cut: int = 0

    @property
    def lost(self) -> int:
        """Number of offsets that are lost to retention or were cut, an upper bound of records."""
        return self.wanted.size - self.left.size

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "topic": self.wanted.topic,
            "partition": self.wanted.partition,
            "wanted": [self.wanted.start, self.wanted.end],
            "start": self.left.start,
            "end": self.left.end,
            "records": self.left.size,
            "lost": self.lost,
            "cut": self.cut,
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """The ranges of a group to read again. Stretches are sorted; no wanted range is empty.

    Attributes:
        topic_ids: the ids of the topics, as far as known.
        since, before: of the ranges, only records with a time from `since` to before `before` are wanted; None for no
            such limit. Producers give the times, so they need not be in the order of the offsets.
        perhaps_deleted: partitions of which retention has deleted records, and Kafka holds none from before `since`:
            those that are gone may be wanted too. Sorted; `lost` does not count them.
        emptied: partitions of which retention has deleted all records; as it keeps those from `since` on, they were
            older. Sorted; they are not in `perhaps_deleted`.
    """

    group: str
    stretches: tuple[Stretch, ...]
    topic_ids: Mapping[str, str]
    since: datetime | None = None
    before: datetime | None = None
    perhaps_deleted: tuple[TopicPartition, ...] = ()
    emptied: tuple[TopicPartition, ...] = ()

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges that can be read."""
        return tuple(each.left for each in self.stretches if each.left.size)

    @property
    def size(self) -> int:
        """Number of offsets that can be read, an upper bound of records."""
        return sum(each.left.size for each in self.stretches)

    @property
    def lost(self) -> int:
        """Number of offsets that are lost to retention or were cut."""
        return sum(each.lost for each in self.stretches)

    @property
    def cut(self) -> int:
        """Number of offsets that elections have cut from the log."""
        return sum(each.cut for each in self.stretches)

    @property
    def whole(self) -> bool:
        """Whether Kafka surely has all that is wanted."""
        return not (self.lost or self.perhaps_deleted)

    @property
    def losses(self) -> str:
        """What is lost, or may be, as a sentence; empty if nothing is."""
        deleted = self.lost - self.cut
        told = [f"retention has deleted {deleted} of these offsets"] if deleted else []
        if self.cut:
            told += [
                f"elections have cut {self.cut} of these offsets from the log, and other records may have them now"
            ]
        told += [_perhaps(self.perhaps_deleted)] if self.perhaps_deleted else []
        return "; ".join(told)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        stretches = [each.as_dict() for each in self.stretches]
        times = {name: at.isoformat() for name, at in (("since", self.since), ("before", self.before)) if at}
        return {
            "group": self.group,
            "records": self.size,
            "lost": self.lost,
            "cut": self.cut,
            "perhaps_deleted": [tp._asdict() for tp in self.perhaps_deleted],
            "emptied": [tp._asdict() for tp in self.emptied],
            **times,
            "stretches": stretches,
        }


def make_replay(
    group: str,
    wanted: Iterable[OffsetRange],
    positions: Positions,
    bounds: Mapping[TopicPartition, Bounds],
    cuts: Cuts = NO_CUTS,
    perhaps_deleted: tuple[TopicPartition, ...] = (),
) -> Replay:
    """Return the plan to read these ranges again.

    Args:
        group: the consumer group.
        wanted: the ranges; empty ones are ignored.
        positions: the positions when the ranges were read; they have the topic ids.
        bounds: the offsets that Kafka holds.
        cuts: the offsets from which on other records may have taken the place of those that are wanted; -1 if that
            offset is unknown.
        perhaps_deleted: see `Replay`.

    Raises:
        Refused: a partition does not exist, its topic was created again since, or the partition ends before the
            range does; or all ranges are empty.
    """
    ranges = sorted(r for r in wanted if r.size > 0)
    uncut = [r._replace(end=min(r.end, cuts.get(r.topic_partition, r.end))) for r in ranges]
    wrong = [problem for r in uncut if (problem := _problem(r, positions, bounds.get(r.topic_partition)))]
    if wrong or not ranges:
        empty = ["the requested ranges are empty", *([_perhaps(perhaps_deleted)] if perhaps_deleted else [])]
        raise Refused(f"nothing to replay:\n  {listed(wrong or empty)}")
    stretches = tuple(
        _stretch(r, max(r.start, here.end), bounds[r.topic_partition].beginning)
        for r, here in zip(ranges, uncut, strict=True)
    )
    ids = known_ids({r.topic_partition: bounds[r.topic_partition] for r in ranges})
    return Replay(group, stretches, ids, perhaps_deleted=perhaps_deleted)


def cuts_since(entries: Iterable[Entry], version: int) -> dict[TopicPartition, int]:
    """Return where logs were cut since a version, as the history says: for each partition the lowest offset.

    Args:
        entries: the history, at least down to `version + 1`.
        version: version of the ledger.
    """
    found: dict[TopicPartition, int] = {}
    for entry in entries:
        for tp, at in entry.cuts.items() if entry.version > version else ():
            found[tp] = min(at, found.get(tp, at))
    return found


def record_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as values for JSON; the timestamp as ISO 8601, bytes that are not UTF-8 as `{"base64": …}`.

    A time that is no date of the years 1 to 9999 is null, and `timestamp_ms` has its milliseconds since 1970.

    Args:
        row: as `replay_records` yields it.
    """
    ms: int = row["timestamp"]
    at = _date(ms)
    more = {} if at else {"timestamp_ms": ms}
    more |= {"unreadable": row["unreadable"]} if "unreadable" in row else {}
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": at and at.isoformat(timespec="milliseconds"),
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "headers": [[header["key"], _text(header["value"])] for header in row.get("headers") or ()],
        **more,
    }


def _perhaps(partitions: Iterable[TopicPartition]) -> str:
    return f"retention has deleted records, and some of them may have had these times: {listed(partitions, ', ')}"


def _date(ms: int) -> datetime | None:
    try:
        return _1970 + timedelta(milliseconds=ms)
    except OverflowError:  # Python knows no such year
        return None


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _stretch(wanted: OffsetRange, end: int, beginning: int) -> Stretch:
    return Stretch(wanted, _left(wanted._replace(end=end), beginning), wanted.end - end)


def _left(wanted: OffsetRange, beginning: int) -> OffsetRange:
    return wanted._replace(start=min(max(wanted.start, beginning), wanted.end))


def _problem(wanted: OffsetRange, positions: Positions, bounds: Bounds | None) -> str:
    tp = wanted.topic_partition
    standing = standing_of(positions.get(tp, Position(0))._replace(offset=wanted.end), bounds)
    if bounds is None:
        return f"{tp} does not exist in Kafka"
    if standing is Standing.ELSEWHERE:
        return f"{tp}: the brokers are of another Kafka cluster than the ledger's; its offsets mean other records there"
    if standing is Standing.RECREATED:
        return f"{tp}: the topic was deleted and created again since; its offsets mean other records now"
    if standing is Standing.BEYOND_END:
        return f"{tp}: offsets up to {wanted.end} are requested, but the partition ends at {bounds.end}"
    return ""
