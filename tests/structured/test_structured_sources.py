"""Queries that use their records more than once, and a checkpoint of another number of sources."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from checkpoints.queries import do
from engines.lab import LIMIT_S
from offsetkeeper.checkpoint import LocalFiles, plan_truncate, read_checkpoint, verify
from offsetkeeper.cli.main import app
from offsetkeeper.errors import CheckpointMismatch
from structured.lab import StructuredLab

COLUMNS = ("topic", "partition", "offset", "value")
NewTopic = Callable[..., str]


def once(records: DataFrame) -> DataFrame:
    return records


def thrice(records: DataFrame) -> DataFrame:
    return records.union(records).union(records)


def test_records_that_a_query_uses_three_times_are_in_the_output_three_times(
    either: StructuredLab, topic: NewTopic
) -> None:
    """And their ranges are committed once: the checkpoint has three sources, which end alike."""
    name = topic()
    for values in ("abcde", "fg"):
        either.produce(name, *values)
        assert Counter(either.follow(name, query=thrice, max_records=3)) == dict.fromkeys(values, 3)
    assert [at.offset for at in either.snapshot().positions.values()] == [7]


def test_another_number_of_sources_than_the_checkpoint_has_is_refused_and_loses_nothing(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    assert lab.follow(name, reader="connector", query=once) == ["a", "b"]
    lab.produce(name, "c")
    with pytest.raises(
        CheckpointMismatch, match=r"read 1 sources, and this query reads 3.*nothing was read or written"
    ):
        lab.follow(name, reader="connector", query=thrice)
    assert lab.follow(name, reader="connector", query=once) == ["c"]


def own(
    lab: StructuredLab, topic: str, query: Callable[[DataFrame], DataFrame], process: Any = None, **settings: Any
) -> None:
    """Run a query of one's own until it has read all that is there."""
    pipeline = lab.pipeline(topic, **{**lab.settings, **settings})
    with pipeline.stream(lab.spark, process or lab.keep, checkpoint=str(lab.checkpoint)) as stream:
        writer = query(stream.records).writeStream.foreachBatch(stream.write)
        writer = writer.option("checkpointLocation", stream.checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination(LIMIT_S)


def test_a_query_of_ones_own_that_spark_ends_within_its_block_tells_our_error(
    either: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    either.produce(name, "a")
    own(either, name, once)

    def refuse(*_: object) -> None:
        raise ZeroDivisionError("of the output")

    either.produce(name, "b")
    with pytest.raises(ZeroDivisionError, match="of the output"):
        own(either, name, once, refuse)
    with pytest.raises(CheckpointMismatch, match="read 1 sources, and this query reads 3"):
        own(either, name, thrice)
    own(either, name, once)
    assert either.values == ["a", "b"]


def test_a_batch_whose_uses_of_the_frame_end_differently_is_taken_back_as_the_error_says(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """A record came after Spark had asked for the end of one use, and before it asked for that of the next."""
    name = topic()
    lab.produce(name, "a")
    lab.follow(name, query=thrice)
    lab.produce(name, "b")
    last = lab.batch_ids()[-1]
    offsets = lab.checkpoint / "offsets"
    *before, one = (offsets / str(last)).read_text("utf-8").splitlines()
    later = json.dumps({name: {"0": 2}}, separators=(",", ":"))
    assert json.loads(one) == {name: {"0": 1}}
    (offsets / str(last + 1)).write_text("\n".join([*before, later]), "utf-8")
    with pytest.raises(CheckpointMismatch, match=r"one up to 1 and one up to 2.* Use it once") as refused:
        lab.follow(name, query=thrice)
    command = str(refused.value).partition("take it back: ")[2]
    arguments = shlex.split(command)
    assert arguments[0] == "offsetkeeper"
    done = CliRunner().invoke(app, [*arguments[1:], "--force"])  # the query ended less than 30 s ago
    assert done.exit_code == 0, done.output
    lab.follow(name, query=thrice)
    assert Counter(lab.values) == {"a": 3, "b": 3}


def source_of(lab: StructuredLab, topic: str) -> DataFrame:
    """Return a Kafka source of one's own."""
    reader = lab.spark.readStream.format("kafka").option("kafka.bootstrap.servers", lab.kafka.bootstrap)
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load().select(*COLUMNS)


def test_a_kafka_source_of_ones_own_does_not_make_ours_the_connector(lab: StructuredLab, topic: NewTopic) -> None:
    """The packed reader alone has a limit of bytes, and it reads what it began."""
    name, beside = topic(), topic()
    for values in ("ax", "by"):
        lab.produce(name, values[0])
        lab.produce(beside, values[1])
        own(
            lab,
            name,
            lambda records: records.select(*COLUMNS).union(source_of(lab, beside)),
            reader="auto",
            max_bytes=9,
        )
    assert Counter(lab.values) == Counter("axby")


def test_sources_in_another_order_are_refused_and_lose_nothing(either: StructuredLab, topic: NewTopic) -> None:
    """Spark takes the offsets of one source for those of the other, and says how to skip what it does not find."""
    name, beside = topic(), topic()
    either.produce(name, "a")
    either.produce(beside, "x", "y", "z")

    def first(records: DataFrame) -> DataFrame:
        return records.select(*COLUMNS).union(source_of(either, beside))

    own(either, name, first)
    either.produce(name, "b")
    either.produce(beside, "w")
    with pytest.raises(
        CheckpointMismatch, match=r"partitions topic-\w+-0: .* sources in another order|of another query"
    ):
        own(either, name, lambda records: source_of(either, beside).union(records.select(*COLUMNS)))
    if either.settings["reader"] == "connector":  # Spark has planned the batch before it refused it
        with pytest.raises(CheckpointMismatch, match="checkpoint verify"):
            own(either, name, first)
        files = LocalFiles(either.checkpoint)
        last = either.batch_ids()[-2]
        assert f"truncate to batch {last}" in verify(files)[0].remedy
        do(files, plan_truncate(read_checkpoint(files), last, query_id="keep"))
    own(either, name, first)
    assert Counter(either.values) == Counter("axyzbw")
