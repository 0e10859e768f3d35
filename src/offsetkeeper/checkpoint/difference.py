"""Compares offsets with other offsets or with Kafka, partition by partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from offsetkeeper.core.bounds import Bounds, Standing, standing_of
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.plain import plain

_VERDICTS = {Standing.WITHIN: "ok", Standing.UNKNOWN: "new"}  # all others keep their words


@dataclass(frozen=True, slots=True)
class Difference:
    """One partition on both sides; None if a side lacks it."""

    topic_partition: TopicPartition
    left: int | None
    right: int | None

    @property
    def ahead(self) -> int | None:
        """Number of offsets by which the left side is ahead; negative if it is behind."""
        return None if self.left is None or self.right is None else self.left - self.right

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return plain(self, "ahead")


class PositionCheck(NamedTuple):
    """One partition compared with Kafka.

    Attributes:
        topic_partition: the partition.
        position: the next offset to read; None for a partition that the checkpoint does not know.
        beginning, end: the offsets that Kafka holds; None if the partition does not exist in Kafka.
        verdict: the state at a start: "ok", "new", "below the beginning", "beyond the end", or "gone".
    """

    topic_partition: TopicPartition
    position: int | None
    beginning: int | None
    end: int | None
    verdict: str

    @property
    def bad(self) -> bool:
        """Whether records are lost or Spark fails."""
        return self.verdict not in {"ok", "new"}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return plain(self)


def differences(left: Mapping[TopicPartition, int], right: Mapping[TopicPartition, int]) -> list[Difference]:
    """Return the partitions in which two sides differ, sorted."""
    rows = [Difference(tp, left.get(tp), right.get(tp)) for tp in sorted(left.keys() | right.keys())]
    return [row for row in rows if row.left != row.right]


def against_kafka(
    positions: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, Bounds]
) -> list[PositionCheck]:
    """Return every partition compared with Kafka, sorted."""
    return [_checked(tp, positions.get(tp), bounds.get(tp)) for tp in sorted(positions.keys() | bounds.keys())]


def _checked(tp: TopicPartition, position: int | None, bounds: Bounds | None) -> PositionCheck:
    standing = standing_of(None if position is None else Position(position), bounds)
    beginning, end = (None, None) if bounds is None else bounds[:2]
    return PositionCheck(tp, position, beginning, end, _VERDICTS.get(standing, standing.value))
