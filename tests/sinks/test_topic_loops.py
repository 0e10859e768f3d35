"""A topic that the same pipeline reads: each batch would write what the next one reads, and the run would never end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engines.lab import Lab
from fixtures.guarded import Guarded
from offsetkeeper import Pipeline, Policies
from offsetkeeper.errors import SettingsError, SinkMismatch
from offsetkeeper.sinks import Outputs, Topic
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import values

NewTopic = Callable[..., str]
LOOP = "each batch would write what the next one reads"


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")


def copy(frame: DataFrame, _: Any) -> DataFrame:
    """Return what goes out."""
    return frame.selectExpr("value")


def go(pipeline: Pipeline, lab: Lab, sink: Any, process: Any = copy) -> None:
    pipeline.run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


def test_a_topic_that_is_also_read_is_refused_before_anything_is_touched(lab: Lab, topic: NewTopic) -> None:
    """However it is read and written, and however its brokers are spelled."""
    one, two = topic(), topic()
    lab.produce(one, "a")
    here = lab.kafka.bootstrap
    elsewhere = here.replace("127.0.0.1", "localhost") + ",127.0.0.1:1"
    loop, other = Topic(elsewhere, two), Topic(here, topic())
    read = lab.pipeline(one, two)
    letters = lab.pipeline(one, two, policies=Policies(poison="quarantine"), dead_letters=loop)
    for pipeline, sink in (
        (read, loop),
        (lab.pipeline(topics=re.compile("topic-.*")), Topic(here, two)),
        (lab.pipeline(topics={one: [0], two: [0]}), loop),
        (read, Outputs(one=other, two=loop)),
        (letters, other),
    ):
        with pytest.raises(SettingsError, match=LOOP) as told:
            go(pipeline, lab, sink)
        assert f"topic {two} is read by this pipeline" in str(told.value)
    with pytest.raises(SettingsError, match=LOOP):
        read.start(lab.spark, copy, sink=loop, guarantee="exactly_once", checkpoint=f"{lab.store[10:]}.checkpoint")
    assert values(here, two) == []
    assert lab.events() == []


@pytest.mark.parametrize("slots", [1, 2])
def test_a_row_for_a_topic_that_is_also_read_is_refused(lab: Lab, topic: NewTopic, slots: int) -> None:
    """And no row of its batch is written, nor is a record put into the dead letters."""
    one, two, letters = topic(), topic(), topic()
    lab.produce(one, "a", "b")

    def back(frame: DataFrame, _: Any) -> DataFrame:
        sources = ["topic as source_topic", "partition as source_partition"] if slots > 1 else []
        return frame.selectExpr("value", f"if(value = 'b', '{one}', '{two}') as topic", *sources)

    pipeline = lab.pipeline(
        one, policies=Policies(poison="quarantine"), dead_letters=Topic(lab.kafka.bootstrap, letters)
    )
    with pytest.raises(SinkMismatch, match=f"column topic: topic {one} is read by this pipeline.*{LOOP}"):
        go(pipeline, lab, Topic(lab.kafka.bootstrap, two, slots=slots), back)
    found = [values(lab.kafka.bootstrap, name) for name in (one, two, letters)]
    assert found == [["a", "b"], [], []]


def test_a_loop_that_is_meant_is_run(lab: Lab, topic: NewTopic) -> None:
    """As for records that are to be tried again later."""
    one, again = topic(), topic()
    lab.produce(one, "a", "b")

    def later(frame: DataFrame, _: Any) -> DataFrame:
        return frame.where(f"topic = '{one}'").selectExpr("value", f"'{again}' as topic")

    sink = Topic(lab.kafka.bootstrap, again, also_read=True)
    for _ in range(2):
        go(lab.pipeline(one, again), lab, sink, later)
    assert values(lab.kafka.bootstrap, again) == ["a", "b"]
    with pytest.raises(SettingsError, match="also_read=1: use True or False"):
        Topic(lab.kafka.bootstrap, again, also_read=1)  # type: ignore[arg-type]  # on purpose


def test_a_topic_of_the_same_name_in_another_cluster_is_another_topic(
    lab: Lab, topic: NewTopic, guarded: Guarded
) -> None:
    name = topic()
    guarded.server.create_topic(name, 1)
    lab.produce(name, "a", "b")
    go(lab.pipeline(name), lab, Topic(guarded.server.bootstrap, name))
    assert values(guarded.server.bootstrap, name) == ["a", "b"]
    assert values(lab.kafka.bootstrap, name) == ["a", "b"]
