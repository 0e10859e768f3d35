"""What Kafka holds of a partition, and whether a stored position is one of it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from offsetkeeper.core.model import Position


class Found(NamedTuple):
    """What Kafka holds of a partition: offsets from `beginning` up to, not including, `end`."""

    beginning: int
    end: int
    topic_id: str | None = None


def is_recreated(position: Position, topic_id: str | None) -> bool:
    """Whether a position belongs to another topic of the same name; where an id is not known, it does not."""
    return None not in {position.topic_id, topic_id} and position.topic_id != topic_id
