"""How far a group is behind: records, seconds, and how near retention is. Pure: what was asked of Kafka comes in.

No commit is "no commit", never an offset of -1. Records are the offsets between the position and the end, the upper
bound of records: compaction and transactions leave holes. Seconds are the age of the first unread record, by its own
timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offsetkeeper.model import Positions, TopicPartition


@dataclass(frozen=True, slots=True)
class Held:
    """What Kafka holds of a partition.

    Attributes:
        beginning, end: offsets, half-open.
        next_ms: timestamp of the first unread record, milliseconds since 1970; None where none is unread, or where it
            could not be read.
        retention_ms: for how long Kafka keeps records, or None where it keeps them for ever.
    """

    beginning: int
    end: int
    next_ms: int | None = None
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one partition is behind.

    Attributes:
        topic_partition: which one.
        position: the next offset to read, or None where nothing is committed.
        beginning, end: what Kafka holds.
        records: offsets unread; None where nothing is committed.
        lost: offsets that retention has taken unread.
        seconds: age of the first unread record, 0 where none is unread; None where it is not known.
        retention_used: the share of its time in Kafka that the first unread record has had; 1 is when it goes.
    """

    topic_partition: TopicPartition
    position: int | None
    beginning: int
    end: int
    records: int | None
    lost: int
    seconds: float | None
    retention_used: float | None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first unread record is deleted; None where that is not known, or never."""
        if self.seconds is None or not self.retention_used:
            return None
        return max(0.0, self.seconds / self.retention_used - self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "position": self.position,
            "beginning": self.beginning,
            "end": self.end,
            "records": self.records,
            "lost": self.lost,
            "seconds": self.seconds,
            "retention_used": self.retention_used,
            "seconds_left": self.seconds_left,
        }


def measure(positions: Positions, held: Mapping[TopicPartition, Held], now_ms: int) -> list[Lag]:
    """Return the lag of every partition that Kafka has, sorted."""
    return [_lag(tp, positions[tp].offset if tp in positions else None, held[tp], now_ms) for tp in sorted(held)]


def _lag(tp: TopicPartition, position: int | None, held: Held, now_ms: int) -> Lag:
    if position is None:
        return Lag(tp, None, held.beginning, held.end, None, 0, None, None)
    lost = max(0, min(held.beginning, held.end) - position)
    # Ends are asked for after positions, so a position past the end is one of another topic of this name: no lag.
    records = max(0, held.end - max(position, held.beginning))
    seconds = used = None
    if records == 0:
        seconds = 0.0
    elif held.next_ms is not None:
        seconds = max(0.0, (now_ms - held.next_ms) / 1000)  # clocks differ: a record of the future is no lag
    if seconds is not None and held.retention_ms:
        used = min(1.0, seconds * 1000 / held.retention_ms)
    return Lag(tp, position, held.beginning, held.end, records, lost, seconds, used)
