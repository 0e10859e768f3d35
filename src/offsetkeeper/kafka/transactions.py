"""Which positions lie in transactions that are still open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from offsetkeeper.core.bounds import Found, is_recreated
from offsetkeeper.core.model import Positions, TopicPartition

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import Cluster


def in_open_transactions(
    cluster: Cluster, positions: Positions, found: Mapping[TopicPartition, Found]
) -> dict[TopicPartition, Found]:
    """Return the partitions whose position lies between the last stable offset and the end of what was written.

    A run that read uncommitted records got there: there is nothing to read until the transactions end, and it is right.
    What is returned ends at the position. A position of a topic that was made again since lies in none.

    Args:
        cluster: Kafka, which is asked only where a position is past the end.
        positions: to look at.
        found: what Kafka holds; partitions that are not in it are passed over.

    Raises:
        UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster.bounds`.
    """
    beyond = {
        tp: at.offset
        for tp, at in positions.items()
        if tp in found and at.offset > found[tp].end and not is_recreated(at, found[tp].topic_id)
    }
    written = cluster.bounds(beyond, isolation="read_uncommitted") if beyond else {}
    return {tp: found[tp]._replace(end=at) for tp, at in beyond.items() if at <= written[tp].end}
