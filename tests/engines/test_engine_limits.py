"""The size of batches, and when they come: bytes, limits by topic, a least size, an interval."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch, Pipeline, Policies
from offsetkeeper.core import environment
from offsetkeeper.sinks import Table

NewTopic = Callable[..., str]


def watched(pipeline: Pipeline, looks: int) -> threading.Event:
    """Return an event that is set when a pipeline asks Kafka for offsets for the so many-th time."""
    found, left, ask = threading.Event(), [looks], pipeline._cluster.bounds

    def bounds(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] <= 0:
            found.set()
        return ask(*arguments, **more)

    pipeline._cluster.bounds = bounds  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_batch_has_about_as_many_bytes_as_it_may_whatever_the_size_of_records(
    lab: Lab, topic: NewTopic, reader: str
) -> None:
    small, large = topic(2), topic(2)
    lab.produce_all(small, [(p, "s" * 1_000) for p in range(2) for _ in range(300)])
    lab.produce_all(large, [(p, "l" * 50_000) for p in range(2) for _ in range(20)])
    sizes: list[int] = []

    def weigh(frame: DataFrame, _: Batch) -> None:
        sizes.append(sum(len(row.value) for row in frame.collect()))

    lab.pipeline(small, large, max_bytes=400_000, reader=reader).run(lab.spark, weigh, until="caught_up")
    assert sum(sizes) == 600 * 1_000 + 40 * 50_000
    assert max(sizes) <= 400_000
    assert len(sizes) <= 9, sizes


def test_a_batch_with_a_limit_of_bytes_passes_over_aborted_records_that_take_longer_than_a_look_at_sizes(
    lab: Lab, topic: NewTopic
) -> None:
    """A look takes at most as long as a stall, and sees no record here."""
    orders = topic()
    small = {"batch.num.messages": 10, "log_level": 0}  # records of a batch come, and are passed over, together
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap, "transactional.id": orders, **small})
    producer.init_transactions(LIMIT_S)
    for values, end in ((["x" * 1000] * 2000, producer.abort_transaction), (["a", "b"], producer.commit_transaction)):
        producer.begin_transaction()
        for value in values:
            producer.produce(orders, value)
        assert producer.flush(LIMIT_S) == 0
        end(LIMIT_S)
    with lab.kafka.proxy() as proxy:
        proxy.reply_rate = 500_000
        kafka = dict.fromkeys(("fetch.max.bytes", "fetch.message.max.bytes", "message.max.bytes"), "65536")
        slowly: dict[str, Any] = {
            "brokers": proxy.address,
            "kafka": {**kafka, "offsetkeeper.native": "never"},
            "stall_s": 1,
        }
        assert lab.read(orders, **slowly, max_bytes=10_000_000) == ["a", "b"]


def test_topics_have_limits_of_their_own(lab: Lab, topic: NewTopic) -> None:
    slow, quick = topic(2), topic()
    lab.produce_all(slow, [(p, f"{p}.{n}") for p in range(2) for n in range(4)])
    lab.produce(quick, *map(str, range(9)))
    lab.read(slow, quick, max_records_per_topic={slow: 3})
    of_batches = [{r.topic: r.size for r in batch.ranges if r.topic == quick} for batch in lab.batches]
    assert of_batches == [{quick: 9}, {}, {}]
    assert [sum(r.size for r in batch.ranges if r.topic == slow) for batch in lab.batches] == [3, 3, 2]


def test_few_records_wait_for_more_unless_nothing_is_to_come(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    pipeline = lab.pipeline(name, min_records=5, max_delay_s=1000.0)
    looked = watched(pipeline, 4)
    with Running(pipeline, lab.spark, lab.keep) as run:
        assert looked.wait(LIMIT_S)
        lab.produce(name, "d", "e")
        run.next_batch()
        lab.produce(name, "f")
    assert lab.values == ["a", "b", "c", "d", "e"]
    assert len(lab.batches) == 1
    assert lab.read(name, min_records=5, max_delay_s=1000.0) == ["f"]


def test_few_records_do_not_wait_for_longer_than_their_delay(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with Running(lab.pipeline(name, min_records=1000, max_delay_s=0.2), lab.spark, lab.keep) as run:
        run.next_batch()
    assert lab.values == ["a"]


def test_batches_of_an_interval_begin_no_sooner_one_after_the_other(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "c")
    begun: list[float] = []

    def keep(frame: DataFrame, batch: Batch) -> None:
        begun.append(environment.monotonic())
        lab.keep(frame, batch)

    with Running(lab.pipeline(name, max_records=1, interval_s=0.5), lab.spark, keep) as run:
        while len(run.batches) < 3:
            run.next_batch()
    assert lab.values == ["a", "b", "c"]
    assert begun[2] - begun[0] > 0.9


def test_pieces_of_a_batch_that_is_cut_wait_for_no_interval(lab: Lab, topic: NewTopic) -> None:
    name, letters = topic(), []
    lab.produce(name, "a", "b", "poison", "d")

    def parse(frame: DataFrame, batch: Batch) -> None:
        if any(row.value == b"poison" for row in frame.collect()):
            raise ValueError("poison")
        lab.keep(frame, batch)

    settings: dict[str, Any] = {
        "policies": Policies(poison="quarantine"),
        "dead_letters": lambda frame, _: letters.extend(frame.collect()),
        "interval_s": 1000.0,
        "attempts": 1,
    }
    with Running(lab.pipeline(name, **settings), lab.spark, parse) as run:
        while sum(batch.size for batch in run.batches) < 4:
            run.next_batch()
    assert lab.values == ["a", "b", "d", "d"]  # the function has to write another one before a letter goes
    assert len(letters) == 1


@pytest.mark.parametrize(("split", "tasks"), [("auto", 2), (None, 1)])
def test_a_large_partition_is_read_by_several_tasks_into_a_table_unless_it_is_refused(
    lab: Lab, topic: NewTopic, tmp_path: Path, split: Any, tasks: int
) -> None:
    """A function gets the rows of a partition in order, from one task."""
    name, shop = topic(), tmp_path / "shop.db"
    lab.produce_all(name, [(0, "a")] * 50_000)
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute('create table orders ("offset" bigint, task int)')

    def numbered(frame: DataFrame, _: Batch) -> DataFrame:
        return frame.selectExpr("offset", "spark_partition_id() as task")

    pipeline = lab.pipeline(name, split=split)
    pipeline.run(lab.spark, numbered, sink=Table(f"sqlite:///{shop}", "orders"), until="caught_up")
    with closing(sqlite3.connect(shop)) as connection:
        found = connection.execute('select count(distinct "offset"), count(*), count(distinct task) from orders')
        assert found.fetchone() == (50_000, 50_000, tasks)
    seen: list[int] = []
    lab.pipeline(name, group="function").run(
        lab.spark, lambda frame, _: seen.append(frame.rdd.getNumPartitions()), until="caught_up"
    )
    assert seen == [1]
