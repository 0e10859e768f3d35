"""Queries on topics by a pattern and on chosen partitions, and the size and the pace of their batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S
from offsetkeeper import Batch, Policies, Position, TopicPartition
from offsetkeeper.core.environment import using
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import RangeGone, SettingsError, StartRefused
from offsetkeeper.readers import Source, StreamStart
from offsetkeeper.readers.limits import Limits
from offsetkeeper.readers.streaming import StreamPlanner, StreamSource
from offsetkeeper.testing.server import wait_until
from structured.lab import StructuredLab
from unit.test_limits import Clock

NewTopic = Callable[..., str]
SOON = {"processingTime": "100 milliseconds"}


def matching(base: str, **how: Any) -> dict[str, Any]:
    """Return what a query is asked for that reads this topic and those whose names go on from it."""
    return {"topic": "", "topics": re.compile(re.escape(base) + "(-.*)?"), **how}


def test_topics_that_appear_while_a_query_runs_are_read_whole(either: StructuredLab, topic: NewTopic) -> None:
    base = topic()
    either.produce(base, "before the group began")
    how = matching(base, start="latest", exclude=re.compile(".*-test"))
    with either.start(**how, trigger=SOON) as query:
        either.produce(base, "a")
        wait_until(lambda: either.values == ["a"] or query.exception(), "the query read", LIMIT_S)
        for name in ("new", "test"):
            either.kafka.create_topic(f"{base}-{name}", 2)
            either.produce_all(f"{base}-{name}", [(0, f"{name} 0"), (1, f"{name} 1")])
        wait_until(lambda: len(either.values) >= 3 or query.exception(), "the query read the new topic", LIMIT_S)
    either.kafka.create_topic(f"{base}-later")
    either.produce(f"{base}-later", "b")
    assert either.follow(**how) == ["b"]
    assert sorted(either.values) == ["a", "b", "new 0", "new 1"]
    stored = {tp: at.offset for tp, at in either.snapshot().positions.items()}
    new = f"{base}-new"
    assert stored == {(base, 0): 2, (new, 0): 1, (new, 1): 1, (f"{base}-later", 0): 1}


def test_new_topics_can_begin_at_their_end_or_stop_the_query(packed: StructuredLab, topic: NewTopic) -> None:
    base = topic()
    packed.produce(base, "a")
    stopping = matching(base, policies=Policies(new_topics="stop"))
    query = packed.start(**stopping, trigger=SOON)
    wait_until(lambda: packed.values == ["a"] or query.exception(), "the query read", LIMIT_S)
    packed.kafka.create_topic(f"{base}-new")
    packed.produce(f"{base}-new", "b")
    with pytest.raises(StartRefused, match=f"finds the new topic {base}-new"):
        query.awaitTermination(LIMIT_S)
    with pytest.raises(StartRefused, match="new_topics=stop"):
        packed.start(**stopping)
    assert packed.snapshot().owner is None
    assert packed.follow(**matching(base, policies=Policies(new_topics="end"))) == []
    packed.produce(f"{base}-new", "c")
    assert packed.follow(**matching(base)) == ["c"]


def test_a_topic_found_by_the_planner_begins_where_the_policy_says(packed: StructuredLab, topic: NewTopic) -> None:
    base = topic()
    packed.kafka.create_topic(f"{base}-new")
    packed.produce(f"{base}-new", "a", "b")
    source = Source(packed.kafka.bootstrap, {}, "test", "read_committed")
    begin = {TopicPartition(base, 0): Position(0)}
    ends = {}
    for policy in ("beginning", "end"):
        start = StreamStart(Topics.of(matching(base)["topics"]), begin, new_topics=policy)
        found = StreamPlanner(StreamSource(source, start, tasks=1)).latest({base: {"0": 0}}, None)
        ends[policy] = found[f"{base}-new"]
    assert ends == {"beginning": {"0": 0}, "end": {"0": 2}}


def test_a_partition_that_the_query_finds_is_of_its_cluster(either: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    query = either.start(name, trigger={"processingTime": "100 milliseconds"})
    with query:
        query.processAllAvailable()
        either.grow(name, 2)
        either.produce(name, "a", partition=1)
        wait_until(lambda: TopicPartition(name, 1) in either.snapshot().positions, "its position", LIMIT_S)
    first, new = (either.snapshot().positions[TopicPartition(name, number)] for number in range(2))
    assert first.cluster_id is not None
    assert (new.topic_id, new.cluster_id) == (first.topic_id, first.cluster_id)


def test_a_partition_that_comes_back_in_a_topic_made_again_is_read_whole(
    either: StructuredLab, topic: NewTopic
) -> None:
    """Its position is of the topic before, and says nothing of these records."""
    name = topic(2)
    either.produce_all(name, [(0, "a"), (1, "b"), (1, "c"), (1, "d")])
    assert sorted(either.follow(name)) == ["a", "b", "c", "d"]
    either.recreate(name)
    either.delete_checkpoint()
    either.values.clear()
    with either.start(name, trigger=SOON, policies=Policies(recreated="beginning")) as query:
        either.produce(name, "e")
        wait_until(lambda: either.values == ["e"] or query.exception(), "the query read", LIMIT_S)
        either.grow(name, 2)
        either.produce_all(name, [(1, "f"), (1, "g")])
        planned = {name: {"0": 1, "1": 2}}
        wait_until(lambda: query.exception() or either.ends(either.batch_ids()[-1]) == planned, "a batch", LIMIT_S)
        query.processAllAvailable()
    assert sorted(either.values) == ["e", "f", "g"]


def test_a_topic_that_comes_back_under_a_pattern_stops_the_query_until_a_policy_decides(
    packed: StructuredLab, topic: NewTopic
) -> None:
    base = topic()
    gone = f"{base}-gone"
    packed.kafka.create_topic(gone)
    packed.produce(gone, "a", "b", "c")
    how = matching(base)
    assert sorted(packed.follow(**how)) == ["a", "b", "c"]
    packed.kafka.delete_topic(gone)
    packed.delete_checkpoint()
    packed.values.clear()
    query = packed.start(**how, trigger=SOON)
    packed.produce(base, "d")
    wait_until(lambda: packed.values == ["d"] or query.exception(), "the query read", LIMIT_S)
    packed.kafka.create_topic(gone)
    packed.produce(gone, "e")
    with pytest.raises(RangeGone, match=f"topic {gone} was deleted and created again.*the policy decides"):
        query.awaitTermination(LIMIT_S)
    with pytest.raises(StartRefused, match="recreated=stop"):
        packed.start(**how)
    assert packed.follow(**how, policies=Policies(recreated="beginning")) == ["e"]


def test_a_query_reads_chosen_partitions_alone(either: StructuredLab, topic: NewTopic) -> None:
    name = topic(3)
    either.produce_all(name, [(p, f"{p}") for p in range(3)])
    assert sorted(either.follow("", topics={name: [0, 2]})) == ["0", "2"]
    either.produce_all(name, [(p, f"{p} again") for p in range(3)])
    assert sorted(either.follow("", topics={name: [0, 2]})) == ["0 again", "2 again"]
    assert either.offsets() == {0: 2, 2: 2}


def test_a_query_keeps_to_bytes_and_to_limits_of_topics(packed: StructuredLab, topic: NewTopic) -> None:
    small, large = topic(), topic()
    packed.produce(small, *["s" * 1_000] * 200)
    packed.produce(large, *["l" * 50_000] * 12)
    sizes: list[tuple[int, int]] = []

    def weigh(frame: DataFrame, _: Batch) -> None:
        rows = frame.collect()
        sizes.append((sum(len(row.value) for row in rows), sum(row.topic == small for row in rows)))

    how: dict[str, Any] = {"max_bytes": 300_000, "max_records_per_topic": {small: 90}}
    packed.follow([small, large], weigh, **how)
    assert sum(size for size, _ in sizes) == 800_000
    assert max(size for size, _ in sizes) <= 300_000
    assert max(count for _, count in sizes) <= 90
    with pytest.raises(SettingsError, match="connector cannot keep to max_bytes"):
        packed.start(small, **how, reader="connector", group="other")
    with packed.ledger(group="other") as ledger:
        assert ledger.snapshot.version == 0


def test_few_records_wait_for_more_in_a_query_too(packed: StructuredLab, topic: NewTopic) -> None:
    name, clock = topic(), Clock()
    source = Source(packed.kafka.bootstrap, {}, "test", "read_committed")
    limits = Limits(min_records=3, max_delay_s=60)
    start = StreamStart(Topics.of([name]), {TopicPartition(name, 0): Position(0)}, limits)
    plan, at = StreamPlanner(StreamSource(source, start, tasks=1)), {name: {"0": 0}}

    def ends(now: float) -> int:
        clock.now = now
        with using(clock):
            return plan.latest(at, limits.rows)[name]["0"]

    packed.produce(name, "a", "b")
    assert [ends(now) for now in (10, 69, 70)] == [0, 0, 2]
    assert ends(71) == 0
    packed.produce(name, "c")
    assert ends(72) == 3


def test_an_interval_is_the_trigger_of_a_query(lab: StructuredLab, topic: NewTopic) -> None:
    """Spark starts the first batch at once, and each other one when an interval of the clock begins: not this week."""
    name = topic()
    lab.produce(name, "a", "b", "c")

    def waits() -> bool:
        return str(query.status["message"]) == "Waiting for next trigger"

    with lab.start(name, trigger=None, interval_s=1e6, max_records=1) as query:
        wait_until(lambda: waits() or query.exception(), "the query waited", LIMIT_S)
    assert lab.values == ["a"]
