"""What an operator is told of the next start."""

from __future__ import annotations

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee, Having, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.plan import Policies
from offsetkeeper.core.rules import Author, Settle, decide
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


SPLIT = (OffsetRange("t", 0, 10, 12), OffsetRange("t", 0, 12, 15), OffsetRange("t", 1, 4, 6))


@pytest.mark.parametrize(
    ("moved", "offsets", "counts"),
    [
        ((), (10, 4), SPLIT),
        ((("t", 1),), (10, 4), SPLIT[:2]),
        ((), (12, 4), SPLIT[1:]),
        ((("t", 0),), (10, 5), ()),
    ],
    ids=["all", "where no reset moved it", "from where an edit has set it", "none"],
)
def test_what_counts_as_done_of_a_dropped_batch_is_what_a_settle_moves(
    moved: tuple[tuple[str, int], ...], offsets: tuple[int, int], counts: tuple[OffsetRange, ...]
) -> None:
    batch = Batch("g", "token", 7, SPLIT, lands_in=("one",), moved=tuple(TopicPartition(*each) for each in moved))
    positions = {TopicPartition("t", number): Position(at) for number, at in enumerate(offsets)}
    found = Snapshot("g", 3, Owner("me", 1), 1, positions=positions, sequence=7, unsettled=batch)
    ahead = outlook(found, [], Guarantee.EXACTLY_ONCE, Policies())
    assert (ahead.unsettled, ahead.counts, ahead.positions, ahead.refused) == (batch, counts, positions, False)
    settled = decide(found, Settle({}, having=Having.ALL), Author("me", "me", 0, "id")).after
    ends = {r.topic_partition: r.end for r in counts}
    assert settled.positions == {tp: at._replace(offset=ends.get(tp, at.offset)) for tp, at in positions.items()}
    told = "If all have it, these ranges count as done, and are not read again: " + ", ".join(map(str, counts))
    assert (told in ahead.settling) is bool(counts)


def test_without_a_dropped_batch_nothing_is_asked() -> None:
    ahead = outlook(Snapshot("g", 3, positions=AT), [], Guarantee.EXACTLY_ONCE, Policies())
    assert (ahead.unsettled, ahead.counts, ahead.settling) == (None, (), "")
