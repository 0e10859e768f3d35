"""How far a group is behind: records, seconds, and how near retention is. Pure: what was asked of Kafka comes in.

No commit is "no commit", never an offset of -1. Records are the offsets between the position and the end, the upper
bound of records: compaction and transactions leave holes. Seconds are the age of the first unread record, by its own
timestamp. Only where that record could not be read are they interpolated, between two records of the partition whose
times are known, and marked as an estimate; never extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offsetkeeper.core.bounds import is_recreated
from offsetkeeper.core.model import Position, Positions, TopicPartition, kafka_positions


@dataclass(frozen=True, slots=True)
class Held:
    """What Kafka holds of a partition.

    Attributes:
        beginning, end: offsets, half-open.
        next_ms: timestamp of the first unread record, milliseconds since 1970; None where none is unread, or where it
            could not be read. From 1970 itself is no time: some clients write 0 or -1 where they know none.
        retention_ms: for how long Kafka keeps records, or None where it keeps them for ever.
        estimated: whether `next_ms` was interpolated.
        topic_id: Kafka's id of the topic, or None where it is not known.
    """

    beginning: int
    end: int
    next_ms: int | None = None
    retention_ms: int | None = None
    estimated: bool = False
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one partition is behind.

    Attributes:
        topic_partition: which one.
        position: the next offset to read, or None where nothing is committed.
        beginning, end: what Kafka holds; None where the partition is gone.
        records: offsets unread; None where nothing is committed, and where the partition is gone.
        lost: offsets that retention has taken unread.
        seconds: age of the first unread record, 0 where none is unread; None where it is not known.
        retention_used: the share of its time in Kafka that the first unread record has had; 1 is when it goes.
        estimated: whether `seconds`, and what follows from it, is an estimate.
        recreated: whether the topic was deleted and made again since the position was stored: all of it is unread.
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
    recreated: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first unread record is deleted; None where that is not known, or never."""
        if self.seconds is None or not self.retention_used:
            return None
        return max(0.0, self.seconds / self.retention_used - self.seconds)

    @property
    def remark(self) -> str:
        """What is odd about the position, in a word or two; empty where nothing is."""
        if self.position is None:
            return "no commit"
        if self.end is None:
            return "gone"
        if self.recreated:
            return "recreated"
        if self.position > self.end:
            return "beyond the end"
        return "lost records" if self.lost else ""

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
            "estimated": self.estimated,
            "retention_used": self.retention_used,
            "seconds_left": self.seconds_left,
            "remark": self.remark,
        }


def measure(positions: Positions, held: Mapping[TopicPartition, Held], now_ms: int) -> list[Lag]:
    """Return the lag of every partition that Kafka has or that has a position, sorted.

    Args:
        positions: as stored.
        held: what Kafka holds of all topics of the positions, and of others that are read.
        now_ms: milliseconds since 1970.
    """
    stored = kafka_positions(positions)
    return [_lag(tp, stored.get(tp), held.get(tp), now_ms) for tp in sorted(held.keys() | stored.keys())]


def _lag(tp: TopicPartition, stored: Position | None, held: Held | None, now_ms: int) -> Lag:
    if held is None:
        return Lag(tp, stored and stored.offset, None, None, None, 0, None, None)
    if stored is None:
        return Lag(tp, None, held.beginning, held.end, None, 0, None, None)
    recreated = is_recreated(stored, held.topic_id)
    position = held.beginning if recreated else stored.offset
    lost = max(0, min(held.beginning, held.end) - position)
    # Ends are asked for after positions, so a position past the end is one of another topic of this name: no lag.
    records = max(0, held.end - max(position, held.beginning))
    seconds = used = None
    if records == 0:
        seconds = 0.0
    elif held.next_ms is not None and held.next_ms > 0:
        seconds = max(0.0, (now_ms - held.next_ms) / 1000)  # clocks differ: a record of the future is no lag
    if seconds is not None and held.retention_ms:
        used = min(1.0, seconds * 1000 / held.retention_ms)
    estimated = held.estimated and bool(records)
    return Lag(tp, stored.offset, held.beginning, held.end, records, lost, seconds, used, estimated, recreated)
