"""Offsets that a store writes for other programs beside its ledger, and where they are others than the ledger's. Pure.

Kafka as the store has them: the committed offsets of the consumer group, which Kafka's own tools change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from offsetkeeper.core.model import Positions, TopicPartition, kafka_positions


@runtime_checkable
class Publishing(Protocol):
    """A store that writes offsets for other programs."""

    def published_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets that other programs see of a group; a partition without one is absent.

        Raises:
            StoreUnavailable, Refused: they could not be read.
        """


class Difference(NamedTuple):
    """A partition whose published offset is not the ledger's."""

    topic: str
    partition: int
    published: int
    ledger: int


def differences(positions: Positions, published: Mapping[TopicPartition, int]) -> list[Difference]:
    """Return the partitions of a ledger whose published offset is another; one that is not published is none."""
    return [
        Difference(*tp, published[tp], at.offset)
        for tp, at in sorted(kafka_positions(positions).items())
        if published.get(tp, at.offset) != at.offset
    ]


def told(group: str, found: Sequence[Difference]) -> str:
    """Return in a sentence what differs, and what to do."""
    first, count = found[0], "1 partition" if len(found) == 1 else f"{len(found)} partitions"
    return (
        f"group {group!r}: Kafka's committed offsets are not the ledger's in {count}, such as {first.topic} "
        f"{first.partition}: {first.published} there, {first.ledger} in the ledger. Another tool has changed them, or "
        "a run ended before it wrote them. Only the ledger counts, and the next run writes its offsets there again. To "
        "move the group, use offsetkeeper reset"
    )
