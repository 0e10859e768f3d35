"""Offsets held against others, partition by partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from offsetkeeper.core.bounds import Found
from offsetkeeper.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class Difference:
    """One partition on both sides; None where a side has it not."""

    topic_partition: TopicPartition
    left: int | None
    right: int | None

    @property
    def ahead(self) -> int | None:
        """By how many offsets the left side is ahead; negative where it is behind."""
        return None if self.left is None or self.right is None else self.left - self.right

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**self.topic_partition._asdict(), "left": self.left, "right": self.right, "ahead": self.ahead}


class Held(NamedTuple):
    """One partition and what Kafka holds of it.

    Attributes:
        topic_partition: which one.
        position: where reading goes on; None for a partition that the checkpoint does not know.
        beginning, end: what Kafka holds; None where it has no such partition.
    """

    topic_partition: TopicPartition
    position: int | None
    beginning: int | None
    end: int | None

    @property
    def verdict(self) -> str:
        """What a start finds: "ok", "new", "below the beginning", "beyond the end", or "gone"."""
        if self.beginning is None or self.end is None:
            return "gone"
        if self.position is None:
            return "new"
        if self.position < self.beginning:
            return "below the beginning"
        return "ok" if self.position <= self.end else "beyond the end"

    @property
    def bad(self) -> bool:
        """Whether records are lost, or Spark fails."""
        return self.verdict not in {"ok", "new"}

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        names = {"position": self.position, "beginning": self.beginning, "end": self.end, "verdict": self.verdict}
        return {**self.topic_partition._asdict(), **names}


def differences(left: Mapping[TopicPartition, int], right: Mapping[TopicPartition, int]) -> list[Difference]:
    """Return the partitions in which two sides differ, sorted."""
    rows = [Difference(tp, left.get(tp), right.get(tp)) for tp in sorted(left.keys() | right.keys())]
    return [row for row in rows if row.left != row.right]


def against_kafka(positions: Mapping[TopicPartition, int], found: Mapping[TopicPartition, Found]) -> list[Held]:
    """Return every partition with what Kafka holds of it, sorted."""
    keys = sorted(positions.keys() | found.keys())
    bounds = {tp: (held.beginning, held.end) for tp, held in found.items()}
    return [Held(tp, positions.get(tp), *bounds.get(tp, (None, None))) for tp in keys]
