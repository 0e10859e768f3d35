"""Checks on the driver whether Kafka has the ranges to read: a task would only wait for missing records."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from offsetkeeper.core.bounds import Standing, standing_of
from offsetkeeper.core.cluster import cluster_id_of, topic_ids_of
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.errors import ReadStalled
from offsetkeeper.kafka.topic_ids import NO_IDS, check_cluster, with_ids
from offsetkeeper.readers.consume import range_gone

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from offsetkeeper.core.bounds import Bounds
    from offsetkeeper.core.cluster import Cluster


def check_ranges(
    cluster: Cluster,
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str] = NO_IDS,
    cluster_id: str | None = None,
) -> None:
    """Ask Kafka for the bounds of the ranges' partitions.

    Args:
        cluster: Kafka; its isolation says where a partition ends.
        ranges: ranges of offsets.
        topic_ids: the expected ids of topics, as far as known.
        cluster_id: the expected id of the cluster, if it is known.

    Raises:
        RangeGone: Kafka no longer holds the start of a range, or a topic was created again or is read from another
            cluster.
        ReadStalled: a range ends after the end of its partition, or in an open transaction.
        UnknownTopic: a topic or partition does not exist.
        BrokerUnavailable, NotAuthorized: Kafka could not be asked.
    """
    wanted = {r.topic: topic_ids[r.topic] for r in ranges if r.topic in topic_ids}
    asked = {r.topic for r in ranges} if cluster_id is not None else wanted
    found = with_ids(wanted, lambda: cluster.describe(asked), partial(topic_ids_of, cluster_id=cluster_id))
    check_cluster(cluster_id, cluster_id_of(found), found)
    bounds = cluster.bounds(r.topic_partition for r in ranges)
    for each in ranges:
        here = bounds[each.topic_partition]
        if standing_of(Position(each.start), here) is Standing.BELOW_BEGINNING:
            raise range_gone(*each.topic_partition, (each.start, each.end), here)
        if standing_of(Position(each.end), here) is Standing.BEYOND_END:
            raise _beyond(cluster, each, here)


def _beyond(cluster: Cluster, wanted: OffsetRange, here: Bounds) -> ReadStalled:
    tp = wanted.topic_partition
    written = cluster.bounds([tp], isolation="read_uncommitted")[tp]
    why = f"the partition ends at {written.end}. Check where the range comes from"
    if written.end >= wanted.end:
        why = (
            f"a transaction is open from offset {here.end} on, and blocks the records after it. Read up to there, or "
            "wait until it ends; kafka-transactions.sh shows its producer"
        )
    return ReadStalled(f"{tp}: offsets {wanted.start} up to {wanted.end} are requested, but {why}")
