"""Queries that use their records more than once, and a checkpoint of another number of sources."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from typer.testing import CliRunner

from checkpoints.queries import do
from offsetkeeper import Batch
from offsetkeeper.checkpoint import LocalFiles, plan_truncate, read_checkpoint, verify
from offsetkeeper.cli.main import app
from offsetkeeper.errors import CheckpointMismatch
from structured.lab import AVAILABLE, StructuredLab, fail

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
    lab: StructuredLab,
    topic: str,
    query: Callable[[DataFrame], DataFrame],
    process: Any = None,
    trigger: Mapping[str, Any] = AVAILABLE,
    **settings: Any,
) -> None:
    """Run a query of one's own until it has read all that is there."""
    pipeline = lab.pipeline(topic, **{**lab.settings, **settings})
    with pipeline.stream(lab.spark, process or lab.keep, checkpoint=str(lab.checkpoint)) as stream:
        writer = query(stream.records).writeStream.foreachBatch(stream.write)
        started = writer.option("checkpointLocation", stream.checkpoint).trigger(**trigger).start()
        try:
            started.processAllAvailable()
        finally:
            started.stop()


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
        CheckpointMismatch, match=r"partitions topic-\w+-0: .* sources in another order|its sources in another order"
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


def test_sources_of_another_kind_in_another_order_are_refused_and_lose_nothing(
    either: StructuredLab, topic: NewTopic, tmp_path: Path
) -> None:
    """Spark says that a value is missing in its JSON, or that a file of its log is malformed."""
    name, folder = topic(), tmp_path / "files"
    folder.mkdir()

    def query(*order: str) -> Callable[[DataFrame], DataFrame]:
        def both(records: DataFrame) -> DataFrame:
            lines = either.spark.readStream.format("text").load(str(folder))
            frames = {"ours": records, "theirs": lines}
            one, other = (frames[each].select(f.col("value").cast("string")) for each in order)
            return one.union(other)

        return both

    def note(frame: DataFrame, _: Batch) -> None:
        either.values += [row["value"] for row in frame.collect()]

    for record, line in ("ax", "by"):
        either.produce(name, record)
        (folder / line).write_text(line, "utf-8")
        if either.values:
            with pytest.raises(CheckpointMismatch, match="its sources in another order, or one of another kind"):
                own(either, name, query(*reversed(IN_ORDER)), note)
        own(either, name, query(*IN_ORDER), note)
    assert Counter(either.values) == Counter("axby")


IN_ORDER = ("ours", "theirs")
NOW: Mapping[str, Any] = {"processingTime": "0 seconds"}  # with availableNow Spark itself refuses such a batch


def told_apart(lab: StructuredLab, beside: str, *order: str) -> Callable[[DataFrame], DataFrame]:
    """Return a query of ours and of a source of one's own, in this order, whose rows say which of them they are of."""

    def query(records: DataFrame) -> DataFrame:
        frames = {"ours": records.select(*COLUMNS), "theirs": source_of(lab, beside)}
        one, other = (frames[name].withColumn("of", f.lit(name)) for name in order)
        return one.union(other)

    return query


def test_a_planned_batch_whose_sources_change_places_is_refused_and_each_row_keeps_its_source(
    either: StructuredLab, topic: NewTopic
) -> None:
    """Spark's source reads the offsets that it gets, of whatever topic: `b` came as a row of the other source."""
    name, beside = topic(), topic()
    rows: list[tuple[str, str]] = []

    def note(frame: DataFrame, _: Batch) -> None:
        rows.extend((row["of"], bytes(row["value"]).decode()) for row in frame.collect())

    either.produce(name, "a")
    either.produce(beside, "x")
    own(either, name, told_apart(either, beside, *IN_ORDER), note)
    either.produce(name, "b")
    either.produce(beside, "y")
    with pytest.raises(RuntimeError, match="the output is away"):
        own(either, name, told_apart(either, beside, *IN_ORDER), fail)
    with pytest.raises(CheckpointMismatch, match="another order"):
        own(either, name, told_apart(either, beside, *reversed(IN_ORDER)), note, NOW)
    own(either, name, told_apart(either, beside, *IN_ORDER), note)
    assert Counter(rows) == Counter([("ours", "a"), ("ours", "b"), ("theirs", "x"), ("theirs", "y")])


def test_a_done_batch_whose_sources_change_places_does_not_reach_the_state(lab: StructuredLab, topic: NewTopic) -> None:
    """Its output is skipped, and its records went into the state of the other source: `b` came out twice."""
    name, beside = topic(), topic()
    rows: list[tuple[str, str]] = []

    def note(frame: DataFrame, _: Batch) -> None:
        rows.extend((row["of"], bytes(row["value"]).decode()) for row in frame.collect())

    def start(*order: str, trigger: Mapping[str, Any]) -> None:
        def distinct(records: DataFrame) -> DataFrame:
            return told_apart(lab, beside, *order)(records).dropDuplicates(["of", "value"])

        with lab.start(name, note, query=distinct, trigger=trigger) as query:
            query.processAllAvailable()

    for values in ("ax", "by"):
        lab.produce(name, values[0])
        lab.produce(beside, values[1])
        start(*IN_ORDER, trigger=AVAILABLE)
    lab.forget_commit(lab.batch_ids()[-1])
    with pytest.raises(CheckpointMismatch, match="another order"):
        start(*reversed(IN_ORDER), trigger=NOW)
    lab.produce(name, "b", "c")
    start(*IN_ORDER, trigger=AVAILABLE)
    wanted = [("ours", "a"), ("ours", "b"), ("ours", "c"), ("theirs", "x"), ("theirs", "y")]
    assert Counter(rows) == Counter(wanted)
