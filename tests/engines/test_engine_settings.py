"""What is wrong with settings is said before anything is touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from engines.lab import Lab
from offsetkeeper import Pipeline, TopicPartition
from offsetkeeper.errors import CorruptStore, GuaranteeRefused, Refused, SettingsError, UnknownScheme
from offsetkeeper.sinks import Idempotent, Table, Transaction
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.server import free_port

NewTopic = Callable[..., str]
T0 = ("t", 0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("group", "a\0b", "is not a group name"),
        ("store", "offsets.db", "unknown store URL .*supported schemes: .*sqlite://"),
        ("store", None, "unknown store URL .*supported schemes: .*sqlite://"),
        ("store", "nosuch://host/x", "unknown store URL .*supported schemes: .*sqlite://"),
        ("store", "sqlite:///a.db?tabel=x", "unknown setting: did you mean table\\? Known settings: table"),
        ("brokers", "localhost:many", "are not a list of brokers"),
        ("topics", [], "no topics: give at least one"),
        ("topics", "orders", r"give a list of names, such as \['orders'\]"),
        ("topics", None, "give a list of names"),
        ("topics", [["orders"]], "is not a topic name"),
        ("topics", ["no spaces"], "is not a topic name"),
        ("start", "newest", "use 'earliest', 'latest', a datetime, or offsets by partition"),
        ("start", ["earliest"], "use 'earliest', 'latest', a datetime, or offsets by partition"),
        ("start", datetime(2026, 1, 1), "has no time zone"),  # noqa: DTZ001 - what is refused
        ("start", {"t": 1}, r"write TopicPartition\('topic', 0\)"),
        ("start", {("t", -1): 1}, "is not a partition of t"),
        ("start", {("other", 0): 1}, "the pipeline does not read this topic"),
        ("start", {T0: -5}, "-5 is not an offset"),
        ("policies", "stop", r"write Policies\("),
        ("policies", {"removed": "stop"}, r"write Policies\("),
        ("kafka", "security.protocol=SSL", "give librdkafka's settings as a dict of texts"),
        ("kafka", {"no.such.setting": "x"}, "librdkafka refuses the Kafka options: No such configuration property"),
        ("kafka", {"enable.auto.commit": "true"}, "take the Kafka option enable.auto.commit out"),
        ("isolation", "serializable", "is not an isolation level"),
        ("reader", "fast", "is not a reader: use one of auto, packed, connector"),
        ("split", 0, "split=0"),
        ("max_records", 0, "use a whole number from 1 on"),
        ("max_records", 1.5, "use a whole number from 1 on"),
        ("poll_interval_s", None, "poll_interval_s=None: use a number from 0 on"),
        ("poll_interval_s", float("nan"), "use a number from 0 on"),
        ("attempts", 0, "use a whole number from 1 on"),
        ("attempts", True, "use a whole number from 1 on"),
        ("retry_timeout_s", -1, "use a number from 0 on"),
        ("retry_timeout_s", "long", "use a number from 0 on"),
    ],
)
def test_a_wrong_setting_is_told_when_the_pipeline_is_made(name: str, value: Any, said: str) -> None:
    settings = {"group": "g", "store": "memory://", "brokers": "127.0.0.1:9092", "topics": ["t"]}
    with pytest.raises(SettingsError, match=said):
        Pipeline(**{**settings, name: value})


def test_an_unknown_scheme_has_an_error_of_its_own() -> None:
    with pytest.raises(UnknownScheme):
        Pipeline(group="g", store="etcd://host", brokers="127.0.0.1:9092", topics=["t"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give a function, a sink, or both"),
        ({"process": "x"}, "is not a sink"),
        ({"process": lambda frame: frame}, r"does not take \(frame, batch\)"),
        ({"process": print, "until": "tomorrow"}, "until='tomorrow': use 'stopped' or 'caught_up'"),
        ({"process": print, "guarantee": "twice"}, "use one of 'at_most_once', 'at_least_once', 'exactly_once'"),
        ({"process": print, "offsets": {"t": 1}}, r"write TopicPartition\('topic', 0\)"),
        ({"process": print, "offsets": 3}, "is not a mapping of offsets"),
        ({"process": print, "offsets": {("other", 0): 3}}, "the pipeline does not read this topic"),
    ],
)
def test_a_wrong_argument_is_told_before_kafka_or_the_store_are_asked(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    brokers = f"127.0.0.1:{free_port()}"  # nobody there: to ask would take all of the patience
    pipeline = Pipeline(
        group="g", store=f"sqlite:///{tmp_path}/o.db", brokers=brokers, topics=["t"], retry_timeout_s=1e6
    )
    with pytest.raises(SettingsError, match=said):
        pipeline.run(spark, **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sink", ["function", "transaction"])
def test_exactly_once_is_refused_where_it_cannot_be_kept(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    """By a plain function, and with a store that lends no transaction."""
    sinks: dict[str, Any] = {
        "function": lambda frame, batch: None,  # noqa: ARG005 - the signature asked for
        "transaction": Transaction(lambda frame, batch, connection: None),  # noqa: ARG005 - as above
    }
    brokers = f"127.0.0.1:{free_port()}"
    store = "memory://" if sink == "transaction" else f"sqlite:///{tmp_path}/offsets.db"
    pipeline = Pipeline(group="g", store=store, brokers=brokers, topics=["t"], retry_timeout_s=1e6)
    with pytest.raises(GuaranteeRefused):
        pipeline.run(spark, sink=sinks[sink], guarantee="exactly_once")


def test_a_table_that_is_not_there_is_told_before_anything_is_read(lab: Lab, topic: NewTopic) -> None:
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        connection.execute("create table another (id int)")
    sink = Table(lab.store, "no_such_table")
    with pytest.raises(Refused, match="no_such_table"):
        lab.pipeline(topic()).run(lab.spark, sink=sink, guarantee="exactly_once")
    assert lab.events() == []


def test_a_row_in_the_store_that_can_be_no_offset_stops_the_start_and_is_left_as_it_is(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.read(name)
    file = lab.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("update kafka_offsets set offset = 'many'")
    for run in (lambda: lab.read(name), lambda: lab.pipeline(name).plan()):
        with pytest.raises(
            CorruptStore, match=f"topic '{name}', partition 0 holds a value .* not an offset.*correct or delete"
        ):
            run()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select offset from kafka_offsets").fetchall() == [("many",)]


def test_an_idempotent_output_can_be_exactly_once_with_any_store(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.store = f"memory://{name}"
    sink = Idempotent(lab.keep)
    lab.pipeline(name).run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up")
    assert lab.values == ["a"]


def test_topics_given_twice_are_read_once(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    assert lab.read(name, name) == ["a"]
    assert lab.snapshot().positions.keys() == {TopicPartition(name, 0)}


def test_secrets_are_in_neither_representation_nor_error() -> None:
    secret = "verysecret"
    settings = {"sasl.password": secret, "sasl.username": "me", "security.protocol": "SASL_PLAINTEXT"}
    kafka = {**settings, "sasl.mechanism": "PLAIN"}
    store = f"postgresql://user:{secret}@127.0.0.1:1/db"
    pipeline = Pipeline(
        group="g", store=store, brokers=f"127.0.0.1:{free_port()}", topics=["t"], kafka=kafka, retry_timeout_s=0.1
    )
    assert secret not in repr(pipeline)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whichever comes first
        pipeline.plan()
    assert secret not in f"{raised.value} {raised.value.__cause__}"


def test_a_store_that_can_only_be_read_is_refused_at_the_start(lab: Lab, topic: NewTopic) -> None:
    """Also one that was opened by its user."""
    name = topic()
    lab.produce(name, "a")
    store = MemoryStore("memory://read-only")
    store.abilities = frozenset()
    with pytest.raises(GuaranteeRefused, match="can only be read"):
        lab.pipeline(name, store=store).run(lab.spark, lab.keep, until="caught_up")
    assert lab.values == []
    assert store.load("group").version == 0
