"""What Kafka holds of a partition, and where a position stands against that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from offsetkeeper.core.model import Position, TopicPartition


class Bounds(NamedTuple):
    """What Kafka holds of a partition.

    Attributes:
        beginning: offset of its first record.
        end: offset after its last record; with read_committed the last stable offset, where an open transaction begins.
        topic_id: Kafka's id of the topic, or None where it is not known.
        log_end: offset after its last record, whatever transactions are open; None where that was not asked.
    """

    beginning: int
    end: int
    topic_id: str | None = None
    log_end: int | None = None

    @property
    def held_back(self) -> int:
        """Offsets that a transaction which is still open keeps from being read; 0 where that was not asked."""
        return 0 if self.log_end is None else max(0, self.log_end - self.end)


class Standing(StrEnum):
    """Where a position stands against what Kafka holds of its partition."""

    WITHIN = "within"
    """Reading can go on at the position; it may be the end."""
    BELOW_BEGINNING = "below the beginning"
    """Records from the position on are lost to retention, or were deleted."""
    BEYOND_END = "beyond the end"
    """The partition ends before the position."""
    RECREATED = "recreated"
    """The topic was deleted and made again since: the position counts other records."""
    GONE = "gone"
    """Kafka has no such partition."""
    UNKNOWN = "unknown"
    """There is no position."""


def standing_of(position: Position | None, bounds: Bounds | None) -> Standing:
    """Return where a position stands.

    Args:
        position: None where there is none.
        bounds: of its partition; None where Kafka has no such partition.
    """
    if bounds is None:
        return Standing.GONE
    if position is None:
        return Standing.UNKNOWN
    if is_recreated(position.topic_id, bounds.topic_id):
        return Standing.RECREATED
    if position.offset < bounds.beginning:
        return Standing.BELOW_BEGINNING
    return Standing.WITHIN if position.offset <= bounds.end else Standing.BEYOND_END


def known_ids(positions: Mapping[TopicPartition, Position | Bounds]) -> dict[str, str]:
    """Return the id of each topic of which one is known."""
    return {tp.topic: at.topic_id for tp, at in positions.items() if at.topic_id is not None}


def is_recreated(known: str | None, now: str | None) -> bool:
    """Whether two ids of a topic tell that it was made again; an id that is not known tells nothing."""
    return None not in {known, now} and known != now
