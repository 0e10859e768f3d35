"""Brokers that are not there, die, and come back."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch
from offsetkeeper.errors import BrokerUnavailable
from offsetkeeper.testing.server import free_port

NewTopic = Callable[..., str]


def test_brokers_that_are_down_at_start_are_told_once_the_patience_ends(lab: Lab) -> None:
    brokers = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnavailable, match=f"no answer from {brokers}.*Check that the brokers run"):
        lab.read("orders", brokers=brokers, retry_timeout_s=0.5)
    assert lab.events() == []


def test_brokers_that_stay_away_end_the_run_and_the_group_is_given_back(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with lab.kafka.proxy() as proxy:
        pipeline = lab.pipeline(name, brokers=proxy.address, retry_timeout_s=5)
        with Running(pipeline, lab.spark, lab.keep) as run:
            run.next_batch()
            proxy.refuse()
            with pytest.raises(BrokerUnavailable):
                run.end()
    assert lab.snapshot().owner is None
    assert lab.offsets() == {0: 1}


def test_brokers_that_are_away_for_a_while_are_waited_for(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    with lab.kafka.proxy() as proxy, Running(lab.pipeline(name, brokers=proxy.address), lab.spark, lab.keep) as run:
        run.next_batch()
        proxy.refuse()
        lab.produce(name, "b")
        assert not run.progressed.wait(0.3)
        proxy.heal()
        run.next_batch()
    assert lab.values == ["a", "b"]


def test_a_broker_killed_while_a_batch_is_read_and_started_again_loses_and_doubles_nothing(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic(2)
    lab.produce_all(name, [(n % 2, str(n)) for n in range(10)])

    back = threading.Thread(target=lab.kafka.restart)

    def kill_and_keep(frame: DataFrame, batch: Batch) -> None:
        if back.ident is None:  # once, though the batch may have to be tried again
            lab.kafka.kill()
            back.start()
        lab.keep(frame, batch)

    with Running(lab.pipeline(name, retry_timeout_s=60, max_records=6), lab.spark, kill_and_keep) as run:
        while sum(batch.size for batch in run.batches) < 10:
            run.next_batch()
        back.join(LIMIT_S)
        lab.produce(name, "later")
        run.next_batch()
    assert sorted(lab.values) == sorted([*map(str, range(10)), "later"])
