"""What librdkafka says of a log that was cut, and what is asked and stored after an election."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.offsets import Position, Positions, TopicPartition
from offsetkeeper.errors import BrokerUnavailable
from offsetkeeper.kafka.log_cuts import common_offset

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
WHERE = "offset 80 (leader epoch 4): broker end offset is"
CUT = f"Partition log truncation detected at {WHERE} 50 (offset leader epoch {{}}). Reset to INVALID."


@pytest.mark.parametrize(
    ("text", "common"),
    [
        (CUT.format(4), 50),
        (CUT.format(3), -1),
        ("Partition log truncation detected in other words", -1),
        (
            f"No epoch found less or equal to {WHERE} -1 (offset leader epoch -1)",
            -1,
        ),
        ("fetch failed due to requested offset not available on the broker: Broker: Offset out of range", None),
    ],
)
def test_the_common_offset_is_taken_only_where_the_leader_has_the_epoch(text: str, common: int | None) -> None:
    """Of an older epoch it may have records that were never read."""
    assert common_offset(text) == common


class Elected(Cluster):
    """A cluster that says of which positions it was asked."""

    brokers = "broker:9092"

    def __init__(self, cut: Mapping[TopicPartition, int]) -> None:
        self.cut = cut
        self.asked: list[Positions] = []

    def cuts(self, positions: Positions) -> dict[TopicPartition, int]:
        """See `Cluster.cuts`."""
        self.asked.append(positions)
        return {tp: common for tp, common in self.cut.items() if tp in positions}

    def describe(self, topics: Iterable[str], *, required: bool = False) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    topic_names = bounds = offsets_for_times = describe  # type: ignore[assignment]


def test_only_a_partition_with_another_leader_epoch_is_asked_for() -> None:
    stored = {A: Position(5, leader_epoch=1), B: Position(5, leader_epoch=1)}
    bounds = {A: Bounds(0, 9, leader_epoch=1), B: Bounds(0, 9, leader_epoch=2)}
    cluster = Elected({A: 3, B: 4})
    assert cluster.with_cuts(stored, bounds) == {A: bounds[A], B: bounds[B]._replace(common=4)}
    assert cluster.asked == [{B: stored[B]}]
    assert cluster.with_cuts(stored, {A: bounds[A]}) == {A: bounds[A]}
    assert len(cluster.asked) == 1


def test_an_older_epoch_is_a_cut_or_an_answer_of_a_broker_that_leads_no_more() -> None:
    """Its epoch is not stored: the next look would take all that came since for a cut."""
    stored, bounds = {A: Position(5, leader_epoch=2)}, {A: Bounds(0, 9, leader_epoch=1)}
    assert Elected({A: -1}).with_cuts(stored, bounds)[A].common == -1
    with pytest.raises(BrokerUnavailable, match="t 0: a broker at broker:9092 answered that is no longer its leader"):
        Elected({}).with_cuts(stored, bounds)
