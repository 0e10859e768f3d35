"""What an operator is told of the next start."""

from __future__ import annotations

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.plan import Policies
from offsetkeeper.operate.outlook import outlook

AT = {TopicPartition("t", 0): Position(10)}


@pytest.mark.parametrize(
    ("lands_in", "written", "unknown"), [(("one",), (), True), (("one", "two"), ("one",), False), ((), ("one",), False)]
)
def test_a_start_that_asks_outputs_with_marks_is_not_called_refused_before(
    lands_in: tuple[str, ...], written: tuple[str, ...], unknown: object
) -> None:
    batch = Batch("g", "token", 7, (OffsetRange("t", 0, 10, 15),), lands_in=lands_in, written=written)
    found = Snapshot("g", 3, positions=AT, sequence=7, pending=batch)
    told = outlook(found, ["Kafka holds 12 to 20"], Guarantee.EXACTLY_ONCE, Policies()).why
    assert told.startswith("what the start does is unknown until it asks the outputs") is unknown
    assert "These ranges may come twice" in told
