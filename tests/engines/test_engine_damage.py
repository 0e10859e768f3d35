"""A bit that changed on the broker's disk ends a run: no value, no dead letter, and no halves are tried."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from fixtures.damage import flip
from offsetkeeper import Policies, TopicPartition
from offsetkeeper.errors import BrokerError
from offsetkeeper.sinks import Files, Idempotent, Table, Topic

VALUES = [f"value-{number}-" * 20 for number in range(4)]
Make = Callable[[Lab, Path, Callable[..., str]], Any]


@pytest.fixture
def damaged(lab: Lab, topic: Callable[..., str]) -> str:
    """A topic with four records, each a batch of Kafka's; the third one is damaged."""
    name = topic()
    for value in VALUES:
        lab.produce(name, value)
    flip(lab.kafka, name, b"-2-")
    return name


def table(_: Lab, folder: Path, __: Callable[..., str]) -> Any:
    with closing(sqlite3.connect(folder / "elsewhere.db")) as connection:
        connection.execute('create table orders ("offset" int, value text)')
    return Table(f"sqlite:///{folder}/elsewhere.db", "orders")


def kafka(lab: Lab, _: Path, topic: Callable[..., str]) -> Any:
    return Topic(lab.kafka.bootstrap, topic())


def rows(frame: DataFrame, _: Any) -> DataFrame:
    return frame.selectExpr("offset", "cast(value as string) as value")


def messages(frame: DataFrame, _: Any) -> DataFrame:
    return frame.select("key", "value")


SINKS: dict[str, tuple[Make, Any]] = {
    "function": (lambda lab, _, __: Idempotent(lab.keep), None),
    "table": (table, rows),
    "files": (lambda _, folder, __: Files(folder / "files"), rows),
    "topic": (kafka, messages),
}


@pytest.mark.parametrize(
    ("reader", "sink"), [("packed", "table"), ("packed", "topic"), *(("connector", sink) for sink in SINKS)]
)
def test_a_damaged_record_is_no_dead_letter_and_no_halves_are_tried(
    lab: Lab,
    damaged: str,
    topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    reader: Any,
    sink: str,
) -> None:
    """A record that fails takes the others of its batch through halves. Here all of them wait for a whole replica."""
    make, process = SINKS[sink]
    letters: list[Any] = []
    pipeline = lab.pipeline(
        damaged,
        reader=reader,
        policies=Policies(poison="quarantine"),
        dead_letters=Idempotent(lambda frame, _: letters.extend(frame.collect())),
        attempts=1,
    )
    guarantee: Any = "at_least_once"
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerError, match=rf"{damaged}[ -]0\b.*offset 2\b"):
        pipeline.run(lab.spark, process, sink=make(lab, tmp_path, topic), guarantee=guarantee, until="caught_up")
    assert letters == []
    assert lab.values == []
    assert "commit" not in lab.events()
    assert "abandon" not in lab.events()
    assert "given up" not in caplog.text
    assert lab.snapshot().positions[TopicPartition(damaged, 0)].offset == 0
