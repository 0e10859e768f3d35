"""Queries with state: what Spark remembers is in the output exactly once, whatever dies and whenever."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from engines.lab import LIMIT_S
from offsetkeeper import Batch, OnMismatch, TopicPartition
from offsetkeeper.checkpoint import LocalFiles, read_checkpoint
from offsetkeeper.errors import CheckpointMismatch
from offsetkeeper.sinks import Table
from structured.lab import StructuredLab, fail
from structured.test_structured_crashes import TRANSACTION, run_dying

NewTopic = Callable[..., str]
DAY_MS = 1_700_000_000_000 // 60_000 * 60_000
FOR_EVER = {"retention.ms": "-1"}
# Seconds after DAY_MS. 5 is late, and still in time for its window; 6 comes when its window was closed; 900 closes all.
SECONDS = [1, 20, 70, 5, 61, 130, 250, 252, 251, 6, 900]


def windows(records: DataFrame) -> DataFrame:
    """Count records by minute, as soon as a minute can get no more."""
    minutes = records.withWatermark("timestamp", "60 seconds").groupBy(f.window("timestamp", "60 seconds").alias("w"))
    return minutes.count().select((f.unix_millis("w.start") - f.lit(DAY_MS)).alias("at"), "count")


def same(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the frame as it is."""
    return frame


@pytest.fixture
def counts(lab: StructuredLab) -> Callable[[], list[tuple[int, int]]]:
    """A function that returns the rows of the table `counts`, which is in the store's database."""
    path = lab.store.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table counts (at int, count int)")

    def read() -> list[tuple[int, int]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("select at / 60000, count from counts order by at").fetchall()

    return read


def produce(lab: StructuredLab, name: str, seconds: list[int]) -> None:
    """Produce a record for each of these times."""
    for each in seconds:
        lab.produce(name, str(each), timestamp_ms=DAY_MS + each * 1000)


def expected(seconds: list[int]) -> list[tuple[int, int]]:
    """Return the counts of a batch computation over all records that were in time, of the minutes that are over."""
    late, watermark, kept = 6, max(seconds) - 60, [each for each in seconds if each != 6]
    assert late in seconds
    groups = itertools.groupby(sorted(each // 60 for each in kept))
    return [(minute, len(list(found))) for minute, found in groups if minute * 60 + 60 <= watermark]


@pytest.mark.parametrize("reader", [pytest.param("packed", marks=pytest.mark.soak), "connector"])
def test_windows_with_late_data_are_counted_once_though_the_driver_dies_at_each_step_of_each_batch(
    lab: StructuredLab, topic: NewTopic, counts: Callable[[], Any], reader: str
) -> None:
    lab.settings["reader"] = reader
    name = topic(1, FOR_EVER)
    produce(lab, name, SECONDS)
    steps = itertools.cycle(TRANSACTION if reader == "connector" else TRANSACTION[-1:])
    how: dict[str, Any] = {"process": same, "query": windows, "guarantee": "exactly_once", "max_records": 3}
    for runs, step in enumerate(steps):
        assert runs < 80, "it does not get on"
        if not run_dying(lab, name, step, sink=lambda _: Table(lab.store, "counts"), **how):
            break
    assert counts() == expected(SECONDS)
    assert len(expected(SECONDS)) == 4


def test_batches_without_records_are_counted_too(
    lab: StructuredLab, topic: NewTopic, counts: Callable[[], Any]
) -> None:
    """Spark makes them when the watermark moves; the ledger counts them under the query's id."""
    name = topic(1, FOR_EVER)
    produce(lab, name, [1, 200])
    ranges: list[int] = []

    def note(frame: DataFrame, batch: Batch) -> DataFrame:
        ranges.append(len(batch.ranges))
        return frame

    lab.follow(name, note, query=windows, sink=Table(lab.store, "counts"), guarantee="exactly_once")
    assert counts() == [(0, 1)]
    assert ranges == [1, 0]
    assert [*lab.snapshot().queries.values()] == [2]


def test_state_is_kept_up_where_the_output_is_skipped(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    seen: list[list[int]] = []

    def total(frame: DataFrame, _: Batch) -> None:
        seen.append([row[0] for row in frame.collect()])

    how: dict[str, Any] = {"query": lambda records: records.groupBy().count(), "output_mode": "update"}
    lab.follow(name, total, **how)
    lab.forget_commit(lab.batch_ids()[-1])
    lab.produce(name, "c")
    lab.follow(name, total, **how)
    assert seen == [[2], [3]]


def test_back_to_plain_spark_nothing_comes_twice_after_one_more_start(lab: StructuredLab, topic: NewTopic) -> None:
    """A stop may come when the ledger has a batch, and Spark's log has not: plain Spark would run it again."""
    name = topic()
    lab.produce(name, "a", "b")
    how: dict[str, Any] = {"query": lambda records: records.dropDuplicates(["value"]), "reader": "connector"}
    lab.follow(name, **how)
    lab.forget_commit(lab.batch_ids()[-1])
    [number] = lab.snapshot().queries.values()
    assert read_checkpoint(LocalFiles(lab.checkpoint)).next().batch < number
    assert lab.follow(name, **how) == []
    [number] = lab.snapshot().queries.values()
    assert read_checkpoint(LocalFiles(lab.checkpoint)).next().batch == number
    lab.produce(name, "c")
    rows: list[str] = []
    plain = lab.spark.readStream.format("kafka").option("kafka.bootstrap.servers", lab.kafka.bootstrap)
    frame = plain.option("subscribe", name).load().dropDuplicates(["value"])
    writer = frame.writeStream.option("checkpointLocation", str(lab.checkpoint))
    writer = writer.foreachBatch(lambda found, _: rows.extend(row.value.decode() for row in found.collect()))
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    assert lab.values + rows == ["a", "b", "c"]


def test_state_is_kept_up_where_a_batch_counts_as_done_unwritten(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    how: dict[str, Any] = {"query": lambda records: records.dropDuplicates(["value"]), "guarantee": "at_most_once"}
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, **how)
    lab.produce(name, "a", "b")
    assert lab.follow(name, **how) == ["b"]


def test_duplicates_are_dropped_across_restarts_and_a_failed_batch_comes_again_as_it_was(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "a")
    query = {"query": lambda records: records.dropDuplicates(["value"])}
    assert lab.follow(name, **query) == ["a", "b"]
    lab.produce(name, "b", "c")
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, attempts=1, **query)
    lab.produce(name, "a", "d")
    assert lab.follow(name, **query) == ["c", "d"]
    retried = [batch for batch in lab.batches if batch.retry]
    assert [(r.start, r.end) for batch in retried for r in batch.ranges] == [(3, 5)]


def test_a_stream_joined_with_a_table_goes_on_after_a_restart(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "1", "2")
    names = lab.spark.createDataFrame([("1", "tea"), ("2", "milk"), ("3", "sugar")], "key string, name string")
    got: list[str] = []

    def enrich(records: DataFrame) -> DataFrame:
        return records.join(names, f.col("value").cast("string") == names["key"]).select("name")

    def collect(frame: DataFrame, _: Batch) -> None:
        got.extend(sorted(row.name for row in frame.collect()))

    lab.follow(name, collect, query=enrich)
    lab.produce(name, "3")
    lab.follow(name, collect, query=enrich)
    assert got == ["milk", "tea", "sugar"]


def test_a_lost_checkpoint_stops_a_query_with_state_before_anything_is_changed(
    lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b", "a")
    query = {"query": lambda records: records.dropDuplicates(["value"])}
    lab.follow(name, **query)
    lab.delete_checkpoint()
    lab.produce(name, "b", "c")
    before = lab.snapshot()
    with pytest.raises(CheckpointMismatch, match=r"(?s)start with empty state.*offsets=.*state='empty'"):
        lab.follow(name, **query)
    assert lab.snapshot() == before
    again = lab.follow(name, offsets={TopicPartition(name, 0): 0}, **query)
    assert again == ["a", "b", "c"]  # the state is built anew, and the output is written again
    lab.delete_checkpoint()
    lab.produce(name, "c")
    assert lab.follow(name, on_mismatch=OnMismatch(state="empty"), **query) == ["c"]


def test_an_older_checkpoint_stops_a_query_with_state(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    query = {"query": lambda records: records.dropDuplicates(["value"])}
    lab.produce(name, "a")
    lab.follow(name, **query)
    copy = lab.copy_checkpoint("older")
    for value in ("b", "c"):
        lab.produce(name, value)
        lab.follow(name, **query)
    newest = lab.copy_checkpoint("newest")
    lab.restore_checkpoint(copy)
    with pytest.raises(CheckpointMismatch, match=r"(?s)done before.*restore the newest copy"):
        lab.follow(name, **query)
    lab.restore_checkpoint(newest)
    lab.produce(name, "a", "d")
    assert lab.follow(name, **query) == ["d"]


def test_a_query_of_ones_own_is_made_of_the_two_pieces(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b", "a")
    for value, expected_values in (("c", ["a", "b", "c"]), ("d", ["d"])):
        lab.produce(name, value)
        with lab.pipeline(name).stream(lab.spark, lab.keep, checkpoint=str(lab.checkpoint)) as stream:
            writer = stream.records.dropDuplicates(["value"]).writeStream.foreachBatch(stream.write)
            query = writer.option("checkpointLocation", stream.checkpoint).trigger(availableNow=True).start()
            assert query.awaitTermination(LIMIT_S)
        assert lab.snapshot().owner is None
        assert lab.values == expected_values
        lab.values.clear()
