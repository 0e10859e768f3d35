"""A streaming query that had nothing but its checkpoint is taken over, and given back: docs/migrate-checkpoints.md."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from docs.pages import ROOT
from offsetkeeper import Batch, Pipeline, Policies
from offsetkeeper.errors import CheckpointMismatch
from offsetkeeper.testing.kafka import KafkaServer
from stores.migrating import ENDS, LEFT, LIMIT_S, MORE, Switch

CRASHED = {0: LEFT[0] + 1, 1: LEFT[1]}
"""How far the output is: the query died between its output and Spark's note that the batch is done."""


@pytest.fixture
def switch(spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path) -> Switch:
    """A query's topic and output; its checkpoint is `old` in the test's folder."""
    places = {r"checkpoints/orders\b": f"{tmp_path}/old", r"checkpoints/back\b": f"{tmp_path}/back"}
    store = f"sqlite:///{tmp_path}/offsets.db"
    return Switch(spark, kafka_server, topic(2), tmp_path, store, page="migrate-checkpoints.md", places=places)


def as_they_are(records: DataFrame) -> DataFrame:
    """What a query without state makes of the records."""
    return records


def old_query(switch: Switch, checkpoint: str, *, query: Callable[[DataFrame], DataFrame] = as_they_are) -> None:
    """Run a plain query of Spark's own until it has read all that is there."""
    options = {"kafka.bootstrap.servers": switch.kafka.bootstrap, "subscribe": switch.topic}
    records = switch.spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()

    def write(frame: DataFrame, _: int) -> None:
        insert(switch, frame)

    writer = query(records).writeStream.foreachBatch(write)
    path = str(switch.folder / checkpoint)
    running = writer.option("checkpointLocation", path).trigger(availableNow=True).start()
    assert running.awaitTermination(LIMIT_S)


def first_of_each_value(records: DataFrame) -> DataFrame:
    """What the query has state for."""
    return records.dropDuplicates(["value"])


def of_both(records: DataFrame) -> DataFrame:
    """A query with state that reads the topic by two sources."""
    return first_of_each_value(records.union(records))


def insert(switch: Switch, frame: DataFrame, _: Batch | None = None) -> None:
    """Put the rows into the table, over those of the same key."""
    rows = [(row.partition, row.offset, bytes(row.value).decode()) for row in frame.collect()]
    with closing(sqlite3.connect(switch.folder / "output.db")) as output, output:
        output.executemany("insert or replace into rows values (?, ?, ?)", rows)


def crash(switch: Switch, *, query: Callable[[DataFrame], DataFrame] = as_they_are) -> None:
    """Let the old query read what is there in two batches, of which the second has no commit."""
    switch.make_output()
    for ends, begins in ((LEFT, {}), (CRASHED, LEFT)):
        switch.produce(ends, begins)
        old_query(switch, "old", query=query)
    for name in ("1", ".1.crc"):
        (switch.folder / "old" / "commits" / name).unlink()
    switch.check_output(CRASHED)
    switch.produce(ENDS, CRASHED)


def next_line(printed: str) -> str:
    """Return the line of a program with which an export ends."""
    return printed.strip().splitlines()[-1].removeprefix("Next: ")


def program(switch: Switch) -> str:
    """Return the page's program for a query with state, with the test's names in the place of the page's."""
    page = (ROOT / "docs" / switch.page).read_text("utf-8")
    [block] = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    places = {
        '"shop"': f'"{switch.group}"',
        '"sqlite:///offsets.db"': f'"{switch.store}"',
        '"localhost:9092"': f'"{switch.kafka.bootstrap}"',
        '["orders"]': f'["{switch.topic}"]',
        '"checkpoints/orders"': f'"{switch.folder}/old", trigger={{"availableNow": True}}',
    }
    for word, value in places.items():
        assert block.count(word) == 1, word
        block = block.replace(word, value)
    return str(block)


def test_a_query_without_state_becomes_a_run_and_comes_back(switch: Switch) -> None:
    crash(switch)
    exported = switch.follow("checkpoint export")[-1]
    made = f"Pipeline(group='{switch.group}', store='{switch.store}', brokers=brokers, topics=['{switch.topic}']"
    assert next_line(exported) == f"{made}, policies=Policies(first_run='stop')).run(spark, process)"
    planned, _ = switch.follow("checkpoint diff checkpoints/orders")
    assert "2 resume" in planned
    switch.run_pipeline()
    switch.check_output(ENDS)
    switch.follow("checkpoint seed")
    switch.produce(MORE, ENDS)
    old_query(switch, "back")
    switch.check_output(MORE)


@pytest.mark.parametrize("by_page", [False, True], ids=["the printed line", "the program of the page"])
def test_a_query_with_state_keeps_it_there_and_back(switch: Switch, *, by_page: bool) -> None:
    """A value seen before the switch is dropped after it; one seen after it is dropped by the old query."""
    crash(switch, query=first_of_each_value)
    exported = switch.follow("checkpoint export")[-1]
    switch.produce_values("0/0", "1/3")
    names = {"spark": switch.spark, "process": partial(insert, switch)}
    if by_page:
        exec(program(switch), names)  # noqa: S102 - what is under test
    else:
        names |= {"Pipeline": Pipeline, "Policies": Policies, "query": first_of_each_value}
        names |= {"brokers": switch.kafka.bootstrap}
        line = next_line(exported).removesuffix(")") + ", trigger={'availableNow': True})"
        new = eval(line, names)  # noqa: S307 - printed by the command
        assert new.awaitTermination(LIMIT_S)
    switch.check_output(ENDS)
    switch.produce_values("0/9", "1/8")
    old_query(switch, "old", query=first_of_each_value)
    switch.check_output(ENDS)


def test_a_query_that_has_read_the_topic_twice_to_different_ends_reads_all_first(switch: Switch) -> None:
    """Its newest batch is in the output, so taking it back would bring its results again."""
    switch.make_output()
    switch.produce(LEFT)
    old_query(switch, "old", query=of_both)
    newest = switch.folder / "old" / "offsets" / "0"
    above = newest.read_text("utf-8").splitlines()[:-1]
    behind = {switch.topic: {"0": LEFT[0] - 2, "1": LEFT[1]}}  # as if two records came between the two
    newest.write_text("\n".join([*above, json.dumps(behind)]), "utf-8")
    newest.with_name(".0.crc").unlink()
    export = "offsetkeeper checkpoint export checkpoints/orders --to sqlite:///offsets.db --group shop --execute"
    switch.run(export)

    def start() -> None:
        pipeline = Pipeline(
            group=switch.group, store=switch.store, brokers=switch.kafka.bootstrap, topics=[switch.topic]
        )
        how: dict[str, Any] = {
            "query": of_both,
            "checkpoint": f"{switch.folder}/old",
            "trigger": {"availableNow": True},
        }
        assert pipeline.start(switch.spark, partial(insert, switch), **how).awaitTermination(LIMIT_S)

    with pytest.raises(CheckpointMismatch, match="Do not take this batch back: it is done") as raised:
        start()
    assert "truncate" not in str(raised.value)
    old_query(switch, "old", query=of_both)
    switch.run(f"{export} --overwrite")
    switch.produce(ENDS, LEFT)
    switch.produce_values("0/0", "1/3")  # seen before
    start()
    switch.check_output(ENDS)
