"""How much, how often, until when; and what is told on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch
from offsetkeeper.engines.loop import Progress

NewTopic = Callable[..., str]


def test_a_limit_on_records_is_shared_fairly_among_partitions(lab: Lab, topic: NewTopic) -> None:
    name = topic(3)
    sizes = {0: 1, 1: 8, 2: 8}
    lab.produce_all(name, [(p, f"{p}.{n}") for p, size in sizes.items() for n in range(size)])
    assert len(lab.read(name, max_records=7)) == 17
    assert [batch.size for batch in lab.batches] == [7, 7, 3]
    assert lab.batches[0].lines() == f"{name} 0 0 1\n{name} 1 0 3\n{name} 2 0 3"


def test_a_run_until_caught_up_ends_with_what_was_there_while_a_producer_goes_on(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")

    def produce_and_keep(frame: DataFrame, batch: Batch) -> None:
        lab.produce(name, "more", "and more")
        lab.keep(frame, batch)

    summary = lab.pipeline(name, max_records=2).run(lab.spark, produce_and_keep, until="caught_up")
    assert lab.values == ["a", "b", "c"]
    assert (summary.batches, summary.offsets, summary.ended) == (2, 3, "caught_up")


def test_a_run_until_caught_up_leaves_partitions_that_appear_meanwhile_to_the_next(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")

    def grow_and_keep(frame: DataFrame, batch: Batch) -> None:
        if not lab.batches:
            lab.grow(name, 2)
            lab.produce(name, "new", partition=1)
        lab.keep(frame, batch)

    lab.pipeline(name, max_records=1).run(lab.spark, grow_and_keep, until="caught_up")
    assert lab.values == ["a", "b"]
    assert lab.read(name) == ["new"]


def test_stop_lets_the_batch_under_way_finish_and_gives_the_group_back(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    pipeline = lab.pipeline(name, max_records=1)

    def stop_and_keep(frame: DataFrame, batch: Batch) -> None:
        pipeline.stop()
        lab.keep(frame, batch)

    summary = pipeline.run(lab.spark, stop_and_keep)
    assert (summary.batches, summary.ended, lab.values) == (1, "stopped", ["a"])
    assert lab.snapshot().owner is None
    assert lab.snapshot().pending is None


def test_stop_from_another_thread_ends_a_run_that_waits_for_records_at_once(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    pipeline = lab.pipeline(name, poll_interval_s=1000.0)
    with Running(pipeline, lab.spark, lab.keep) as run:
        run.next_batch()
        pipeline.stop()
        assert run.end().ended == "stopped"


def test_stop_before_a_run_has_begun_ends_it_and_not_the_one_after(lab: Lab, topic: NewTopic) -> None:
    """Otherwise a thread that stops a run which another thread is just about to start would wait for ever."""
    name = topic()
    lab.produce(name, "a")
    pipeline = lab.pipeline(name)
    pipeline.stop()
    assert pipeline.run(lab.spark, lab.keep).ended == "stopped"
    assert lab.values == []
    assert pipeline.run(lab.spark, lab.keep, until="caught_up").ended == "caught_up"
    assert lab.values == ["a"]


def test_on_batch_tells_each_batch_once_it_is_committed(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    told: list[Progress] = []
    stored: list[dict[int, int]] = []

    def on_batch(progress: Progress) -> None:
        told.append(progress)
        stored.append(lab.offsets())

    lab.pipeline(name, max_records=2).run(lab.spark, lab.keep, until="caught_up", on_batch=on_batch)
    assert [progress.batch for progress in told] == lab.batches
    assert [progress.left for progress in told] == [1, 0]
    assert stored == [{0: 2}, {0: 3}]
    assert all(0 < progress.seconds < LIMIT_S for progress in told)


def test_each_range_is_logged_on_a_line_of_its_own_where_asked_for(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(2)
    lab.produce(name, "a")
    lab.produce(name, "b", partition=1)
    caplog.set_level(logging.INFO)
    lab.read(name, log_ranges=True)
    lines = [r.getMessage() for r in caplog.records if r.name == "offsetkeeper.ranges"]
    assert lines == [f"batch group/{lab.token()}/1\n{name} 0 0 1\n{name} 1 0 1"]
    lab.produce(name, "c")
    lab.read(name)
    assert len([r for r in caplog.records if r.name == "offsetkeeper.ranges"]) == 1


def test_records_of_aborted_transactions_are_left_out_and_open_ones_are_waited_for(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": name})
    producer.init_transactions()
    for value, end in (("a", producer.commit_transaction), ("gone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        end()
    assert lab.read(name) == ["a"]
    assert lab.offsets() == {0: 4}
    producer.begin_transaction()
    producer.produce(name, "open")
    producer.flush()
    lab.produce(name, "after it")
    assert lab.read(name) == []
    assert lab.offsets() == {0: 4}
    producer.commit_transaction()
    assert lab.read(name) == ["open", "after it"]


def test_records_of_transactions_not_committed_are_read_where_asked_for(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, "open")
    producer.flush()
    assert lab.read(name, isolation="read_uncommitted") == ["open"]
    producer.abort_transaction()
