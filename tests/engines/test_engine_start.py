"""Where a run starts: the first ever, and each one after."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from engines.lab import Lab, Running
from offsetkeeper import OffsetRange, TopicPartition
from offsetkeeper.errors import SettingsError

NewTopic = Callable[..., str]
MINUTE = 60_000
HOUR_AGO = int(time.time() * 1000) - 60 * MINUTE


def test_a_first_run_at_the_earliest_reads_all_there_is_and_the_next_goes_on(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    assert lab.read(name) == ["a", "b"]
    assert lab.read(name) == []
    lab.produce(name, "c")
    assert lab.read(name) == ["c"]
    assert lab.offsets() == {0: 3}
    assert lab.batches[-1].lines() == f"{name} 0 2 3"


def test_a_first_run_on_an_empty_topic_stores_its_start(lab: Lab, topic: NewTopic) -> None:
    assert lab.read(topic(2)) == []
    assert lab.offsets() == {0: 0, 1: 0}


def test_a_first_run_at_the_latest_skips_what_is_there_and_nothing_that_arrives_between_two_starts(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "old")
    assert lab.read(name, start="latest") == []
    lab.produce(name, "new")
    assert lab.read(name, start="latest") == ["new"]


def test_a_first_run_at_a_time_begins_with_the_first_record_not_before_it(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce(name, "a", timestamp_ms=HOUR_AGO)
    lab.produce(name, "b", timestamp_ms=HOUR_AGO + MINUTE)
    lab.produce(name, "c", timestamp_ms=HOUR_AGO + 2 * MINUTE, partition=1)
    assert lab.read(name, start=datetime.fromtimestamp(HOUR_AGO / 1000 + 60, UTC)) == ["b", "c"]


def test_a_first_run_at_a_time_after_all_records_begins_at_the_end_and_misses_nothing_after(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", timestamp_ms=HOUR_AGO)
    assert lab.read(name, start=datetime.now(UTC)) == []
    lab.produce(name, "b", timestamp_ms=HOUR_AGO)
    assert lab.read(name) == ["b"]


def test_a_first_run_at_given_offsets_begins_the_partitions_not_named_at_their_beginning(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic(2)
    for partition in (0, 1):
        lab.produce(name, f"a{partition}", f"b{partition}", partition=partition)
    start = {TopicPartition(name, 0): 1}
    assert lab.read(name, start=start) == ["b0", "a1", "b1"]
    assert lab.read(name, start=start) == []


@pytest.mark.parametrize("offset", [0, 4])
def test_a_start_outside_of_what_kafka_holds_is_refused_before_anything_is_changed(
    lab: Lab, topic: NewTopic, offset: int
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    lab.delete_records(name, before=1)
    for refused in ({"start": {TopicPartition(name, 0): offset}}, {"offsets": {TopicPartition(name, 0): offset}}):
        with pytest.raises(SettingsError, match=f"{offset} .* outside the offsets that Kafka holds"):
            lab.read(name, **refused)
    assert lab.events() == []


def test_offsets_given_by_hand_move_their_partitions_at_this_start_and_no_other(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    for partition in (0, 1):
        lab.produce(name, f"a{partition}", f"b{partition}", partition=partition)
    lab.read(name)
    generation = lab.snapshot().generation
    assert lab.read(name, offsets={TopicPartition(name, 1): 1}) == ["b1"]
    assert lab.snapshot().generation == generation + 1
    assert lab.read(name) == []


def test_offsets_given_by_hand_may_skip_what_was_never_read(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    assert lab.read(name, offsets={TopicPartition(name, 0): 2}) == ["c"]


def test_a_topic_added_to_a_group_starts_by_the_users_choice_and_the_others_go_on(lab: Lab, topic: NewTopic) -> None:
    one, other = topic(), topic()
    lab.produce(one, "a")
    lab.read(one)
    lab.produce(one, "b")
    lab.produce(other, "old")
    assert lab.read(one, other, start="latest") == ["b"]
    lab.produce(other, "new")
    assert lab.read(one, other) == ["new"]


def test_a_topic_left_out_keeps_its_offsets_for_later(lab: Lab, topic: NewTopic) -> None:
    one, other = topic(), topic()
    lab.produce(one, "a")
    lab.produce(other, "b")
    assert sorted(lab.read(one, other)) == ["a", "b"]
    lab.produce(other, "c")
    assert lab.read(one) == []
    assert lab.read(one, other) == ["c"]


def test_positions_another_program_stored_are_where_the_first_run_goes_on(lab: Lab, topic: NewTopic) -> None:
    """A table of offsets from before: rows without a topic id, and no control record."""
    name = topic()
    lab.produce(name, "a", "b")
    with sqlite3.connect(lab.store.removeprefix("sqlite:///")) as connection:
        connection.execute(
            "create table kafka_offsets (topic text, group_id text, partition int, offset int, timestamp text,"
            " primary key (group_id, topic, partition))"
        )
        connection.execute("insert into kafka_offsets values (?, 'group', 0, 1, '')", [name])
    assert lab.read(name) == ["b"]
    [position] = lab.snapshot().positions.values()
    assert position.topic_id


def test_a_plan_tells_where_a_run_would_start_and_changes_nothing(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce(name, "a", "b")
    lab.read(name)
    before = lab.snapshot()
    pipeline = lab.pipeline(name)
    plan = pipeline.plan(offsets={TopicPartition(name, 0): 1})
    assert [(row.topic_partition.partition, str(row.verdict), row.start, row.replayed) for row in plan.rows] == [
        (0, "given by hand", 1, 1),
        (1, "resume", 0, 0),
    ]
    assert lab.snapshot() == before
    assert lab.read(name) == []


def test_a_plan_while_a_run_holds_the_group_does_not_disturb_it(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    pipeline = lab.pipeline(name)
    with Running(pipeline, lab.spark, lab.keep) as run:
        run.next_batch()
        assert [row.start for row in pipeline.plan().rows] == [1]
        assert [row.start for row in lab.pipeline(name).plan().rows] == [1]
        lab.produce(name, "b")
        run.next_batch()
    assert lab.values == ["a", "b"]


def test_a_stretch_is_read_again_without_touching_the_offsets(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce(name, "a", "b", "c", "d")
    lab.produce(name, "x", partition=1)
    lab.read(name)
    before = lab.snapshot()
    ranges = [OffsetRange(name, 1, 0, 0), OffsetRange(name, 0, 1, 3)]
    frame = lab.pipeline(name).read(lab.spark, ranges)
    assert [bytes(row["value"]) for row in frame.orderBy("offset").collect()] == [b"b", b"c"]
    assert lab.pipeline(name).read(lab.spark, []).collect() == []
    assert lab.snapshot() == before
    wrong: list[Any] = [OffsetRange("other", 0, 0, 1), OffsetRange(name, 0, 2, 1), OffsetRange(name, -1, 0, 1)]
    for each in (*wrong, (name, 0, 0, 1), name):
        with pytest.raises(SettingsError):
            lab.pipeline(name).read(lab.spark, [each])
