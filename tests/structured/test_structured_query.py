"""A query that nothing happens to: what it reads, in which batches, and when it goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S
from offsetkeeper import Batch, TopicPartition
from offsetkeeper.engines.query import Query
from offsetkeeper.errors import GuaranteeRefused, SettingsError
from offsetkeeper.testing.server import wait_until
from structured.lab import StructuredLab, started

NewTopic = Callable[..., str]


def test_two_topics_are_read_once_and_a_second_query_goes_on(either: StructuredLab, topic: NewTopic) -> None:
    one, two = topic(2), topic()
    either.produce_all(one, [(0, "a"), (1, "b"), (0, "c")])
    either.produce(two, "d")
    assert sorted(either.follow([one, two])) == ["a", "b", "c", "d"]
    either.produce(two, "e")
    either.produce(one, "f", partition=1)
    assert sorted(either.follow([one, two])) == ["e", "f"]
    assert either.follow([one, two]) == []
    stored = {tuple(tp): at.offset for tp, at in either.snapshot().positions.items()}
    assert stored == {(one, 0): 2, (one, 1): 2, (two, 0): 2}
    assert either.snapshot().owner is None


def test_a_batch_has_the_exact_ranges_of_its_rows(either: StructuredLab, topic: NewTopic) -> None:
    name = topic(3)
    either.produce_all(name, [(n % 3, str(n)) for n in range(20)])
    seen: list[tuple[set[tuple[int, int]], set[tuple[int, int]]]] = []

    def compare(frame: DataFrame, batch: Batch) -> None:
        rows = {(row.partition, row.offset) for row in frame.collect()}
        seen.append((rows, {(r.partition, n) for r in batch.ranges for n in range(r.start, r.end)}))

    either.follow(name, compare, max_records=6)
    either.grow(name, 4)
    either.produce_all(name, [(3, "new"), (0, "old")])
    either.follow(name, compare)
    assert len(seen) > 3
    assert all(rows == ranges for rows, ranges in seen)
    assert sum(len(rows) for rows, _ in seen) == 22


def test_a_query_begins_where_a_direct_run_stopped_and_the_other_way_round(
    either: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    either.produce(name, "a", "b")
    assert either.read(name) == ["a", "b"]
    either.produce(name, "c")
    assert either.follow(name) == ["c"]
    either.produce(name, "d")
    assert either.read(name) == ["d"]
    either.produce(name, "e")
    assert either.follow(name) == ["e"]  # its checkpoint stands at d


def test_partitions_added_while_a_query_runs_are_read_from_their_beginning(
    either: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    either.produce(name, "a")

    def reading() -> Query:
        query = either.start(name, trigger={"processingTime": "50 milliseconds"})
        wait_until(lambda: either.values == ["a"] or not query.isActive, "the first record was read", LIMIT_S)
        if not query.isActive:
            query.awaitTermination(LIMIT_S)  # raises what ended it
        return query

    with started(reading) as query:
        either.grow(name, 2)
        either.produce(name, "b", partition=1)

        def read() -> bool:
            assert query.exception() is None
            return len(either.values) == 2

        wait_until(read, "the new partition was read", LIMIT_S)
    assert either.values == ["a", "b"]
    assert either.offsets() == {0: 1, 1: 1}
    assert either.snapshot().owner is None


def test_a_batch_without_records_calls_nobody_and_commits_nothing(packed: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    assert packed.follow(name) == []
    assert packed.batch_ids() == [0]
    assert (packed.batches, packed.events()) == ([], ["acquire", "place", "release"])


def test_the_first_batch_writes_down_where_the_query_begins(packed: StructuredLab, topic: NewTopic) -> None:
    """So that a crash in the first batch with records cannot change where it starts."""
    name = topic()
    packed.produce(name, "a", "b")
    packed.follow(name, offsets={TopicPartition(name, 0): 1})
    assert (packed.ends(0), packed.ends(1)) == ({name: {"0": 1}}, {name: {"0": 2}})
    assert packed.values == ["b"]


def test_start_latest_reads_what_comes_after_the_start(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.settings["start"] = "latest"
    assert lab.follow(name) == []
    lab.produce(name, "b")
    assert lab.follow(name) == ["b"]


def test_a_failing_batch_is_tried_again_with_the_same_ranges(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    tries: list[Batch] = []

    def flaky(frame: DataFrame, batch: Batch) -> None:
        tries.append(batch)
        if len(tries) == 1:
            lab.produce(name, "b")
            raise RuntimeError("for the first time")
        lab.keep(frame, batch)

    lab.follow(name, flaky)
    assert lab.values == ["a"]
    assert [batch.retry for batch in tries] == [False, True]
    assert tries[0] == tries[1]


@pytest.mark.parametrize(
    "trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}, {"availableNow": True, "once": True}]
)
def test_a_trigger_without_batches_is_refused(lab: StructuredLab, topic: NewTopic, trigger: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="processingTime"):
        lab.start(topic(), trigger=trigger)


def test_what_a_function_cannot_keep_is_refused_before_the_group_is_taken(lab: StructuredLab, topic: NewTopic) -> None:
    with pytest.raises(GuaranteeRefused):
        lab.start(topic(), guarantee="exactly_once")
    assert lab.events() == []
