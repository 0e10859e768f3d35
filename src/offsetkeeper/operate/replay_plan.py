"""The plan of a replay: ranges to read again, without touching the group. Pure.

The plan has, for each partition, the wanted range, the part that Kafka still holds, and the part lost to retention.
A replay does not touch positions, owner and history.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from offsetkeeper.core.bounds import Bounds, Standing, known_ids, standing_of
from offsetkeeper.core.offsets import OffsetRange, Position, Positions
from offsetkeeper.errors import Refused, listed


@dataclass(frozen=True, slots=True)
class Stretch:
    """The range of one partition to read again.

    Attributes:
        wanted: the requested range.
        left: the part of `wanted` that Kafka still holds; it may be empty.
    """

    wanted: OffsetRange
    left: OffsetRange

    @property
    def lost(self) -> int:
        """Number of offsets lost to retention, an upper bound of records."""
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
        }


@dataclass(frozen=True, slots=True)
class Replay:
    """The ranges of a group to read again. Stretches are sorted; no wanted range is empty.

    Attributes:
        topic_ids: the ids of the topics, as far as known.
        since, before: of the ranges, only records with a time from `since` to before `before` are wanted; None for no
            such limit. Producers give the times, so they need not be in the order of the offsets.
    """

    group: str
    stretches: tuple[Stretch, ...]
    topic_ids: Mapping[str, str]
    since: datetime | None = None
    before: datetime | None = None

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
        """Number of offsets that are lost to retention."""
        return sum(each.lost for each in self.stretches)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        stretches = [each.as_dict() for each in self.stretches]
        times = {name: at.isoformat() for name, at in (("since", self.since), ("before", self.before)) if at}
        return {"group": self.group, "records": self.size, "lost": self.lost, **times, "stretches": stretches}


def make_replay(
    group: str, wanted: Iterable[OffsetRange], positions: Positions, bounds: Mapping[Any, Bounds]
) -> Replay:
    """Return the plan to read these ranges again.

    Args:
        group: the consumer group.
        wanted: the ranges; empty ones are ignored.
        positions: the positions when the ranges were read; they have the topic ids.
        bounds: the offsets that Kafka holds.

    Raises:
        Refused: a partition does not exist, its topic was created again since, or the partition ends before the
            range does; or all ranges are empty.
    """
    ranges = sorted(r for r in wanted if r.size > 0)
    wrong = [problem for r in ranges if (problem := _problem(r, positions, bounds.get(r.topic_partition)))]
    if wrong or not ranges:
        raise Refused(f"nothing to replay:\n  {listed(wrong) or 'the requested ranges are empty'}")
    stretches = tuple(Stretch(r, _left(r, bounds[r.topic_partition].beginning)) for r in ranges)
    return Replay(group, stretches, known_ids({r.topic_partition: bounds[r.topic_partition] for r in ranges}))


def record_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as values for JSON; the timestamp as ISO 8601, bytes that are not UTF-8 as `{"base64": …}`.

    Args:
        row: a row with the columns of the readers' frames.
    """
    at: datetime | None = row["timestamp"]
    return {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": at and at.isoformat(timespec="milliseconds"),
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "headers": [[header["key"], _text(header["value"])] for header in row.get("headers") or ()],
    }


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


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
