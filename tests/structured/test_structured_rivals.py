"""Two queries of one group, a query that is stopped or killed, and offsets put into Kafka's own group."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import LIMIT_S, QUICK
from engines.test_engine_processes import SESSION
from offsetkeeper import Batch
from offsetkeeper.checkpoint import LocalFiles
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch, Fenced
from offsetkeeper.sinks import Table
from offsetkeeper.testing.java import java
from offsetkeeper.testing.server import wait_until
from structured import killed_child
from structured.lab import StructuredLab
from structured.test_structured_crashes import parse

NewTopic = Callable[..., str]
ALWAYS = {"processingTime": "50 milliseconds"}


def test_the_older_of_two_queries_is_fenced_at_its_next_batch(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    older = lab.start(name, trigger=ALWAYS, checkpoint=f"{lab.checkpoint}-older")
    wait_until(lambda: lab.events()[-1] == "commit", "the older one had committed", LIMIT_S)
    with lab.start(name, trigger=ALWAYS):
        lab.produce(name, "b")
        with pytest.raises(Fenced, match=r"was taken over by .* of this run was refused"):
            older.awaitTermination(LIMIT_S)
        assert not older.isActive
        wait_until(lambda: lab.values == ["a", "b"], "the newer one had read on", LIMIT_S)


def test_a_direct_run_fences_a_query_in_the_middle_of_a_batch_whose_rows_are_rolled_back(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a")
    path = lab.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table orders (partition int, "offset" int, value text)')
    reached, go = threading.Event(), threading.Event()

    def pause(frame: DataFrame, batch: Batch) -> DataFrame:
        reached.set()
        assert go.wait(LIMIT_S)
        return parse(frame, batch)

    sink = Table(lab.store, "orders")
    query = lab.start(name, pause, sink=sink, guarantee="exactly_once")
    assert reached.wait(LIMIT_S)
    lab.pipeline(name).run(lab.spark, parse, sink=sink, guarantee="exactly_once", until="caught_up")
    go.set()
    with pytest.raises(Fenced):
        query.awaitTermination(LIMIT_S)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select value from orders").fetchall() == [("a",)]


def test_stop_waits_for_the_batch_under_way_and_gives_the_group_back(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    reached, go = threading.Event(), threading.Event()

    def pause(_: DataFrame, __: Batch) -> None:
        reached.set()
        assert go.wait(LIMIT_S)

    query = lab.start(name, pause, trigger=ALWAYS)
    assert reached.wait(LIMIT_S)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_until(lambda: not query.isActive, "Spark had stopped the query", LIMIT_S)
    assert lab.snapshot().owner is not None
    go.set()
    stopping.join(LIMIT_S)
    assert lab.snapshot().owner is None
    assert (lab.events()[-2:], lab.offsets()) == (["commit", "release"], {0: 1})
    assert lab.follow(name) == []  # Spark does not know that it was done, and its output is skipped


def test_a_driver_that_is_killed_loses_and_doubles_nothing(packed: StructuredLab, topic: NewTopic) -> None:
    lab, name = packed, topic(2)
    lab.produce_all(name, [(n % 2, str(n)) for n in range(8)])
    path = lab.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table orders (partition int, "offset" int, value text)')
    pipeline = {**QUICK, "store": lab.store, "brokers": lab.kafka.bootstrap, "topics": [name], "max_records": 3}
    settings = {"pipeline": pipeline, "spark": SESSION, "checkpoint": str(lab.checkpoint)}
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
    command = [sys.executable, killed_child.__file__, json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, process_group=0) as child:
        assert child.stdout
        assert child.stdout.readline().strip() == "second batch"
        os.killpg(child.pid, signal.SIGKILL)
    assert sum(lab.offsets().values()) == 3
    sink = Table(lab.store, "orders")
    lab.follow(name, parse, sink=sink, guarantee="exactly_once")
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("select value from orders order by value").fetchall()
    assert rows == [(str(n),) for n in range(8)]


def test_offsets_are_put_into_kafkas_group_on_request(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce_all(name, [(0, "a"), (1, "b"), (1, "c")])
    group = f"group-{name}"
    lab.follow(name, group=group, publish=True)
    assert lab.kafka.group_offsets(group, [(name, 0), (name, 1)]) == {(name, 0): 1, (name, 1): 2}


def test_offsets_that_kafka_does_not_take_stop_nothing(
    lab: StructuredLab, topic: NewTopic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr("offsetkeeper.kafka.consumers.Consumers.commit", refuse)
    name = topic()
    lab.produce(name, "a")
    with caplog.at_level(logging.WARNING, "offsetkeeper"):
        assert lab.follow(name, publish=True) == ["a"]
    assert "could not be committed to Kafka's group: not today" in caplog.text


def test_a_topic_read_twice_to_different_ends_has_no_one_range(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.follow(name)
    path = lab.checkpoint / "offsets" / "0"
    path.write_text(path.read_text("utf-8") + f'\n{{"{name}":{{"0":0}}}}', "utf-8")
    log = BatchLog(LocalFiles(lab.checkpoint), Topics.of([name]), {}, packed=False)
    with pytest.raises(CheckpointMismatch, match="two sources of the query read"):
        log.batch_offsets(0)
