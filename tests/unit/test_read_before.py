"""Which positions a query with state has surely not read before: those of a first start, where nothing came since."""

from __future__ import annotations

import pytest

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Move
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.plan import FirstOffsets, Plan, Policies, plan
from offsetkeeper.engines.read_before import read_before

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


def planned(stored: dict[TopicPartition, int], given: dict[TopicPartition, int] | None = None) -> Plan:
    """Return the plan of a start; Kafka holds offsets 0 to 100 of partition 0, and of partition 1 if it is stored."""
    positions = {tp: Position(offset) for tp, offset in stored.items()}
    bounds = {tp: Bounds(0, 100) for tp in {A, *stored}}
    return plan("shop", positions, bounds, Policies(), FirstOffsets(given=given or {}))


def entry(version: int, event: str, before: int | None, after: int) -> Entry:
    """Return an entry of the history that moves partition 0."""
    position = None if before is None else Position(before)
    return Entry(version, event, str(version), 0, "test", moves={A: Move(position, Position(after))})


PLACED = entry(2, "place", None, 7)


def test_a_partition_without_a_position_and_one_where_it_first_began_were_not_read() -> None:
    assert read_before(planned({}), []) == []
    assert read_before(planned({A: 7}), [PLACED]) == []
    assert read_before(planned({A: 7}), [Entry(3, "acquire", "3", 0, "test"), PLACED]) == []


def test_a_partition_that_was_forgotten_and_begun_anew_was_read_before() -> None:
    """Its place looks like that of a first start."""
    forgotten = Entry(1, "forget", "1", 0, "test", forgot={A: Position(40)})
    assert [row.topic_partition for row in read_before(planned({A: 7}), [PLACED, forgotten])] == [A]


def test_a_crash_between_forget_and_the_first_batch_changes_nothing() -> None:
    """Before the start that gives it a position, and after that."""
    forgotten = Entry(1, "forget", "1", 0, "test", forgot={A: Position(40)})
    first, second = ((planned({}), [forgotten]), (planned({A: 0}), [entry(2, "place", None, 0), forgotten]))
    for counted in (False, True):
        for start, history in (first, second):
            assert [row.topic_partition for row in read_before(start, history, counted=counted)] == [A]
    assert read_before(planned({}, {A: 0}), [forgotten]) == []


def test_beside_batches_of_another_checkpoint_no_position_is_that_of_a_first_start() -> None:
    assert read_before(planned({}), [], counted=True) == []
    assert read_before(planned({A: 7}), [PLACED], counted=True)


@pytest.mark.parametrize("history", [[], [entry(1, "copy", None, 7)], [entry(1, "rewind", None, 7)]])
def test_a_position_of_another_origin_was_read_before(history: list[Entry]) -> None:
    assert [row.topic_partition for row in read_before(planned({A: 7}), history)] == [A]


@pytest.mark.parametrize("event", ["copy", "rewind"])
def test_a_first_start_counts_only_since_the_last_reset_or_copy(event: str) -> None:
    assert read_before(planned({A: 7}), [entry(9, event, 50, 7), PLACED])


def test_a_position_that_has_moved_since_its_first_start_was_read_before() -> None:
    assert read_before(planned({A: 8}), [PLACED])
    assert read_before(planned({A: 8}), [entry(3, "place", 7, 8), PLACED])


def test_an_offset_counts_for_its_own_partition_alone() -> None:
    assert read_before(planned({A: 8}, {A: 0}), [PLACED]) == []
    assert [row.topic_partition for row in read_before(planned({A: 8, B: 8}, {A: 0}), [])] == [B]
