"""How fast a group reads, how fast its topics grow, and when it will have caught up. Pure.

Two looks tell both speeds. One look tells them too: what the commits of the run under way have moved since its first
one, and the unread records over the age of the oldest of them, which is how fast they came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from offsetkeeper.core.model import Entry, TopicPartition
from offsetkeeper.operate.lag import Lag

_NEVER_S = 365 * 86_400.0  # what takes longer than a year is never done
_RUN_BEGINS = frozenset({"acquire", "release", "rewind"})


class Speed(NamedTuple):
    """Offsets a second, the upper bound of records; None where it is not known."""

    processed: float | None = None
    produced: float | None = None

    def catch_up_s(self, records: int | None) -> float | None:
        """Return the seconds until so many unread records are read; None where that is not known, or never."""
        if not records:
            return None if records is None else 0.0
        if self.processed is None or self.produced is None or self.processed <= self.produced:
            return None
        seconds = records / (self.processed - self.produced)
        return seconds if seconds <= _NEVER_S else None


class Look(NamedTuple):
    """Lags at one moment, milliseconds since 1970."""

    at_ms: int
    lags: Sequence[Lag]


@dataclass(frozen=True, slots=True)
class Total:
    """The lag of several partitions together: of a topic, or of a group.

    Attributes:
        partitions: how many there are.
        uncommitted, gone: how many of them have no commit, and how many Kafka has not; they count in nothing else.
        records, lost: sums.
        seconds: age of the oldest unread record; None where none of the ages is known.
        estimated: whether an age is an estimate.
        retention_used: the largest share of retention used.
        seconds_left: until the first unread record is deleted; None where that is not known, or never.
        speed: sums of what is known.
    """

    partitions: int
    uncommitted: int
    gone: int
    records: int
    lost: int
    seconds: float | None
    estimated: bool
    retention_used: float | None
    seconds_left: float | None
    speed: Speed

    @property
    def waiting(self) -> int | None:
        """The unread records; None where they are known of no partition."""
        return None if 0 < self.partitions == self.uncommitted + self.gone else self.records

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "partitions": self.partitions,
            "uncommitted": self.uncommitted,
            "gone": self.gone,
            "records": self.waiting,
            "lost": self.lost,
            "seconds": self.seconds,
            "estimated": self.estimated,
            "retention_used": self.retention_used,
            "seconds_left": self.seconds_left,
            **speed_fields(self.speed, self.waiting),
        }


def speed_fields(speed: Speed, records: int | None) -> dict[str, float | None]:
    """Return a speed, and the time to catch up at it, as plain values: offsets a second, and seconds."""
    return {
        "processed_per_s": speed.processed,
        "produced_per_s": speed.produced,
        "catch_up_s": speed.catch_up_s(records),
    }


def speeds(look: Look, entries: Sequence[Entry], before: Look | None = None) -> dict[TopicPartition, Speed]:
    """Return the speed of each partition.

    Args:
        look: the lags now.
        entries: the group's newest history, newest first.
        before: an earlier look; without one, it is worked out of the history and the lags.
    """
    if before is not None and look.at_ms > before.at_ms:
        return _between(before, look)
    processed = _processed(entries, look.at_ms)
    found = {}
    for lag in look.lags:
        read = processed.get(lag.topic_partition, 0.0 if processed else None)
        # Where all is read, the group keeps up with whatever comes.
        written = read if lag.records == 0 else lag.records / lag.seconds if lag.records and lag.seconds else None
        found[lag.topic_partition] = Speed(read, written)
    return found


def total(lags: Iterable[Lag], speed: Mapping[TopicPartition, Speed]) -> Total:
    """Return the lag of several partitions together."""
    every = list(lags)
    known = [lag for lag in every if lag.records is not None]
    fast = [speed.get(lag.topic_partition, Speed()) for lag in known]
    return Total(
        len(every),
        sum(lag.position is None for lag in every),
        sum(lag.end is None for lag in every),
        sum(lag.records or 0 for lag in known),
        sum(lag.lost for lag in known),
        max((lag.seconds for lag in known if lag.seconds is not None), default=None),
        any(lag.estimated for lag in known),
        max((lag.retention_used for lag in known if lag.retention_used is not None), default=None),
        min((lag.seconds_left for lag in known if lag.seconds_left is not None), default=None),
        Speed(_sum(each.processed for each in fast), _sum(each.produced for each in fast)),
    )


def _between(before: Look, after: Look) -> dict[TopicPartition, Speed]:
    seconds = (after.at_ms - before.at_ms) / 1000
    earlier = {lag.topic_partition: lag for lag in before.lags}
    return {
        lag.topic_partition: Speed(_rate(past.position, lag.position, seconds), _rate(past.end, lag.end, seconds))
        for lag in after.lags
        if (past := earlier.get(lag.topic_partition)) is not None
    }


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    """Return offsets a second; None where one went back: by a reset, or because the topic was made again."""
    return None if before is None or after is None or after < before else (after - before) / seconds


def _processed(entries: Sequence[Entry], now_ms: int) -> dict[TopicPartition, float]:
    """Return what the run under way has read of each partition, offsets a second; empty where it is not known."""
    commits: list[Entry] = []
    for entry in entries:
        if entry.event in _RUN_BEGINS:
            break
        commits += [entry] if entry.event == "commit" else []
    if len(commits) < 2 or now_ms <= commits[-1].at_ms:  # noqa: PLR2004 - the first one only says when it began
        return {}
    seconds = (now_ms - commits[-1].at_ms) / 1000
    found: dict[TopicPartition, float] = {}
    for entry in commits[:-1]:
        for r in entry.ranges:
            found[r.topic_partition] = found.get(r.topic_partition, 0.0) + r.size / seconds
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
