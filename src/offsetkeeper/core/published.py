"""Offsets that a store also writes for other programs, and where they differ from the ledger. Pure.

The store in Kafka has such offsets: the committed offsets of the consumer group, which Kafka's own tools can change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from offsetkeeper.core.commands import command
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.errors import listed


@runtime_checkable
class Publishing(Protocol):
    """A store that writes offsets for other programs."""

    def published_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets of a group that other programs see; a partition without one is left out.

        Raises:
            StoreUnavailable, Refused: the offsets could not be read.
        """


class Difference(NamedTuple):
    """A partition whose published offset differs from the ledger."""

    topic: str
    partition: int
    published: int
    ledger: int


def differences(positions: Positions, published: Mapping[TopicPartition, int]) -> list[Difference]:
    """Return the partitions whose published offset differs from the ledger; unpublished partitions do not count."""
    return [
        Difference(*tp, published[tp], at.offset)
        for tp, at in sorted(positions.items())
        if published.get(tp, at.offset) != at.offset
    ]


def no_offsets(store: object) -> str:
    """Return what it may mean that such a store has no offsets of a group; for other stores an empty text."""
    if not isinstance(store, Publishing):
        return ""
    return (
        ", and Kafka has no committed offset of it: it deletes the offsets of each group with their topic, also if "
        "that is created again, and those of a group without members after offsets.retention.minutes"
    )


def told(group: str, found: Sequence[Difference]) -> str:
    """Return a message that says what differs and what to do."""
    return (
        f"{_differ(group, found)}. Another tool has changed them, or a run ended before it wrote them. Only the ledger "
        "counts; the next run writes its offsets to Kafka again. To move the group, use offsetkeeper reset"
    )


def refused(group: str, found: Sequence[Difference]) -> str:
    """Return a message that says why the ledger's positions are not taken elsewhere, and what to do."""
    lines = listed((f"{each.topic},{each.partition},{each.published}" for each in found), "; ")
    return (
        f"{_differ(group, found)}. If another program has gone on, its records would come twice: first let the ledger "
        "take over what Kafka has, with --store of this ledger (with all its settings): "
        f"{command('reset', group, '--from-file FILE')}, with the lines {lines}. If none has, and a run ended before "
        "it wrote them, give --force: it takes the ledger's positions"
    )


def _differ(group: str, found: Sequence[Difference]) -> str:
    first, count = found[0], "1 partition" if len(found) == 1 else f"{len(found)} partitions"
    return (
        f"group {group!r}: Kafka's committed offsets differ from the ledger in {count}, such as {first.topic} "
        f"{first.partition}: {first.published} in Kafka, {first.ledger} in the ledger"
    )
