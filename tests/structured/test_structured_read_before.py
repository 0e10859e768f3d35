"""A query with state never begins empty by following a message: what the output counts is what Kafka holds."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from typer.testing import CliRunner

from engines.lab import LIMIT_S
from offsetkeeper import Batch, OnMismatch, Policies, TopicPartition
from offsetkeeper.checkpoint.store import open_checkpoint
from offsetkeeper.cli.main import app
from offsetkeeper.errors import CheckpointMismatch, OffsetkeeperError
from offsetkeeper.operate.copy import copy
from offsetkeeper.stores import open_store
from structured.lab import StructuredLab

NewTopic = Callable[..., str]
MINUTE_MS = 60_000
DAY_MS = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
FOR_EVER = {"retention.ms": "-1"}
EMPTY = r"(?s)would start with empty state.*offsets=.*state='empty'"
SEEN = 12
"""Records of the open window before a checkpoint is gone."""
LATER = 5
"""Records of the same window after it."""


def windows(records: DataFrame) -> DataFrame:
    """Count records by minute, as soon as a minute can get no more."""
    minutes = records.withWatermark("timestamp", "60 seconds").groupBy(f.window("timestamp", "60 seconds").alias("w"))
    return minutes.count().select("count")


def values(records: DataFrame) -> DataFrame:
    """Return each value once."""
    return records.dropDuplicates(["value"])


class Counts:
    """The output of a windowed count: the rows that a user sees."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, frame: DataFrame, _: Any) -> None:
        """Keep a batch."""
        self.rows += [row["count"] for row in frame.collect()]


def produce(lab: StructuredLab, name: str, count: int, minute: int = 0, partition: int = 0) -> None:
    """Produce records of one minute."""
    lab.produce(
        name, *(str(each) for each in range(count)), partition=partition, timestamp_ms=DAY_MS + minute * MINUTE_MS
    )


def close_window(lab: StructuredLab, name: str) -> None:
    """Produce the record by which the first minute can get no more."""
    produce(lab, name, 1, minute=10)


def plain_query(lab: StructuredLab, name: str, out: Any, query: Any = windows) -> None:
    """Run a query of plain Spark, without offsetkeeper, on the lab's checkpoint."""
    options = {"kafka.bootstrap.servers": lab.kafka.bootstrap, "subscribe": name, "startingOffsets": "earliest"}
    records = lab.spark.readStream.format("kafka").options(**options).load()
    writer = query(records).writeStream.foreachBatch(out).option("checkpointLocation", str(lab.checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_S)


def export(lab: StructuredLab) -> None:
    """Write the checkpoint's offsets into the store, as the command does."""
    words = ["checkpoint", "export", str(lab.checkpoint), "--to", lab.store, "--group", "group", "--execute"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def reset(lab: StructuredLab, *words: str) -> str:
    """Reset the group as the command does; return what it says."""
    given = {"OFFSETKEEPER_STORE": lab.store, "OFFSETKEEPER_BROKERS": lab.kafka.bootstrap}
    done = CliRunner().invoke(app, ["reset", "group", *words, "--execute"], env=given)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def refused(lab: StructuredLab, name: str, match: str = EMPTY, query: Any = windows, **how: Any) -> CheckpointMismatch:
    """Check that a query with state does not start, and that nothing is changed by it."""
    before = lab.snapshot()
    with pytest.raises(CheckpointMismatch, match=match) as raised:
        lab.follow(name, query=query, **how)
    assert lab.snapshot() == before
    assert "lost or doubled" not in str(raised.value)
    return raised.value


def test_an_exported_query_goes_on_with_its_state_and_never_with_a_new_checkpoint(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """The window that is open at the switch has the records of before and after it."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    plain_query(lab, name, counts)
    export(lab)
    assert [*lab.snapshot().queries.values()] == [lab.batch_ids("commits")[-1] + 1]
    produce(lab, name, LATER)
    close_window(lab, name)
    refused(lab, name, checkpoint=str(lab.checkpoint.parent / "new"))
    lab.follow(name, counts, query=windows)
    assert counts.rows == [SEEN + LATER]


def test_an_export_without_the_number_of_the_query_says_how_its_state_is_kept(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """As a ledger has it that an older release has exported, or a reset has filled."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    plain_query(lab, name, counts)
    Path("offsets.csv").write_text(f"{name},0,{SEEN}\n", "utf-8")
    said = reset(lab, "--topic", name, "--from-file", "offsets.csv")
    assert "start of queries with state is refused" in said
    produce(lab, name, LATER)
    close_window(lab, name)
    refused(lab, name, r"(?s)does not count it.*hole='follow'.*state and its number")
    refused(lab, name, checkpoint=str(lab.checkpoint.parent / "new"))
    lab.follow(name, counts, query=windows, on_mismatch=OnMismatch(hole="follow"))
    assert counts.rows == [SEEN + LATER]


def test_positions_of_a_reset_are_read_before_and_offsets_build_the_state_anew(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """The group has no commits: a query of plain Spark lost its checkpoint, and its positions come from a file."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    Path("offsets.csv").write_text(f"{name},0,{SEEN - 1}\n", "utf-8")
    said = reset(lab, "--topic", name, "--from-file", "offsets.csv")
    assert "start of queries with state is refused" in said
    produce(lab, name, LATER)
    close_window(lab, name)
    refused(lab, name)
    lab.follow(name, counts, query=windows, offsets={TopicPartition(name, 0): 0})
    assert counts.rows == [SEEN + LATER]


def test_each_partition_that_was_read_needs_an_offset(lab: StructuredLab, topic: NewTopic) -> None:
    name, counts = topic(2, FOR_EVER), Counts()
    for partition in (0, 1):
        produce(lab, name, SEEN, partition=partition)
    lab.follow(name, Counts(), query=windows)
    lab.delete_checkpoint()
    close_window(lab, name)
    zero, one = (TopicPartition(name, partition) for partition in (0, 1))
    error = refused(lab, name, offsets={zero: 0})
    assert f"{one}: the ledger is at {SEEN}" in str(error)
    assert f"{zero}: the ledger" not in str(error)
    lab.follow(name, counts, query=windows, offsets={zero: 0, one: 0})
    assert counts.rows == [2 * SEEN]


def test_what_was_forgotten_was_read_before_also_before_a_start_gives_it_a_position(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """A crash between the start and the first batch changed the answer: the first start was let through."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    lab.follow(name, Counts(), query=windows)
    lab.delete_checkpoint()
    close_window(lab, name)
    given = {"OFFSETKEEPER_STORE": lab.store}
    assert CliRunner().invoke(app, ["forget", "group", name, "--execute"], env=given).exit_code == 0
    assert f"{name} 0: its position was forgotten" in str(refused(lab, name))
    lab.follow(name, counts, query=windows, offsets={TopicPartition(name, 0): 0})
    assert counts.rows == [SEEN]


def by_run(lab: StructuredLab, name: str) -> None:
    """A run without a query has read."""
    assert len(lab.read(name)) == SEEN


def by_a_query_without_state(lab: StructuredLab, name: str) -> None:
    """State is added to a query."""
    lab.follow(name)


def by_another_query(lab: StructuredLab, name: str) -> None:
    """Another query with state has read."""
    lab.follow(name, query=values, checkpoint=str(lab.checkpoint.parent / "another"))


def by_this_query(lab: StructuredLab, name: str) -> None:
    """Its checkpoint is deleted afterwards."""
    lab.follow(name, Counts(), query=windows)


def by_a_copy(lab: StructuredLab, name: str) -> None:
    """The group is moved to another store."""
    lab.read(name)
    place = f"{lab.store}.copy"
    with closing(open_store(lab.store)) as source, closing(open_store(place)) as target:
        copy("group", source, target, history=0)
    lab.store = place


def by_another_program(lab: StructuredLab, name: str) -> None:
    """Rows of another program are in the store, without a ledger."""
    lab.read(name)
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as file, file:
        for table in ("offsetkeeper_groups", "offsetkeeper_history"):
            file.execute(f"delete from {table}")  # noqa: S608 - a name of ours


def by_a_run_that_takes_over_and_dies(lab: StructuredLab, name: str) -> None:
    """The positions of another program are taken over by a run without state, which has not committed yet."""
    by_another_program(lab, name)
    with lab.ledger() as ledger:
        ledger.acquire("start")
        ledger.release()


def by_a_batch_that_counts_as_done(lab: StructuredLab, name: str) -> None:
    """At most once: the batch was stored before it was written."""

    def fail(_: DataFrame, __: Batch) -> None:
        raise RuntimeError("the output is away")

    with pytest.raises(RuntimeError, match="away"):
        lab.pipeline(name, attempts=1).run(lab.spark, fail, guarantee="at_most_once", until="caught_up")


WAYS = [by_run, by_a_query_without_state, by_another_query, by_this_query, by_a_copy, by_another_program]
WAYS += [by_a_run_that_takes_over_and_dies, by_a_batch_that_counts_as_done]


@pytest.mark.parametrize("way", WAYS)
def test_what_this_query_has_not_committed_is_read_before(
    lab: StructuredLab, topic: NewTopic, way: Callable[[StructuredLab, str], None]
) -> None:
    """An empty checkpoint is refused; read again from the beginning, the window has all its records."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    way(lab, name)
    lab.delete_checkpoint()
    produce(lab, name, LATER)
    close_window(lab, name)
    refused(lab, name)
    lab.follow(name, counts, query=windows, offsets={TopicPartition(name, 0): 0})
    assert counts.rows == [SEEN + LATER]


def test_the_word_begins_empty_and_a_query_without_state_needs_none(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    Path("offsets.csv").write_text(f"{name},0,1\n", "utf-8")
    reset(lab, "--topic", name, "--from-file", "offsets.csv")
    assert lab.follow(name) == ["b"]
    lab.produce(name, "a")
    lab.delete_checkpoint()
    assert lab.follow(name, query=values, on_mismatch=OnMismatch(state="empty")) == ["a"]


def wrong(records: DataFrame) -> DataFrame:
    """Raise Spark's error."""
    return records.select("no such column")


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_start_needs_no_word_however_often_it_fails(either: StructuredLab, topic: NewTopic, start: str) -> None:
    """The first start stores where it begins, and then Spark refuses the query."""
    name, counts = topic(1, FOR_EVER), Counts()
    if start == "latest":
        produce(either, name, 3, minute=-9)
    for _ in range(2):
        with pytest.raises(AnalysisException):
            either.follow(name, query=wrong, start=start)
    produce(either, name, SEEN)
    close_window(either, name)
    either.follow(name, counts, query=windows, start=start)
    assert counts.rows == [SEEN]


def test_a_topic_that_is_new_to_the_group_needs_no_word(lab: StructuredLab, topic: NewTopic) -> None:
    """The group has read another topic; the first start on this one fails."""
    before, name, counts = topic(), topic(1, FOR_EVER), Counts()
    lab.produce(before, "a")
    lab.read(before)
    produce(lab, name, SEEN)
    with pytest.raises(AnalysisException):
        lab.follow(name, query=wrong)
    close_window(lab, name)
    lab.follow(name, counts, query=windows)
    assert counts.rows == [SEEN]


def test_a_lost_checkpoint_is_told_also_where_nothing_was_read(packed: StructuredLab, topic: NewTopic) -> None:
    """The first batch of the packed source is empty, and the ledger has counted it: the query is known."""
    name = topic()
    packed.follow(name, query=values)
    packed.delete_checkpoint()
    refused(packed, name, query=values)


def test_a_partition_that_is_gone_needs_no_offset(packed: StructuredLab, topic: NewTopic) -> None:
    gone, name = topic(), topic()
    packed.produce_all(gone, [(0, "x")])
    packed.produce_all(name, [(0, "a")])
    packed.read(gone, name)
    packed.kafka.delete_topic(gone)
    again = packed.follow([name, gone], query=values, offsets={TopicPartition(name, 0): 0})
    assert again == ["a"]


def test_state_that_is_added_to_a_query_on_its_old_checkpoint_is_refused(
    either: StructuredLab, topic: NewTopic
) -> None:
    """That checkpoint has no state, whatever its number of batches; also where the only batch was not done."""
    name = topic(1, FOR_EVER)
    produce(either, name, SEEN)
    either.follow(name)
    produce(either, name, LATER)
    close_window(either, name)
    refused(either, name, r"(?s)does not count it.*If state was added")
    counts = Counts()
    with pytest.raises(Exception, match="state") as raised:  # Spark's own: it has no state of that version
        either.follow(name, counts, query=windows, on_mismatch=OnMismatch(hole="follow"))
    assert not isinstance(raised.value, OffsetkeeperError)
    assert counts.rows == []


def test_a_batch_that_a_query_without_state_planned_brings_no_state(lab: StructuredLab, topic: NewTopic) -> None:
    """The checkpoint has its first batch planned and not done, after positions that a run has reached."""
    name, counts = topic(1, FOR_EVER), Counts()
    produce(lab, name, SEEN)
    lab.read(name)
    produce(lab, name, LATER)

    def fail(_: DataFrame, __: Batch) -> None:
        raise RuntimeError("the output is away")

    with pytest.raises(RuntimeError, match="away"):
        lab.follow(name, fail, attempts=1)
    assert (lab.batch_ids(), lab.batch_ids("commits")) == ([0], [])
    close_window(lab, name)
    drop: dict[str, Any] = {"policies": Policies(pending="drop")}
    refused(lab, name, **drop)
    lab.delete_checkpoint()
    lab.follow(name, counts, query=windows, offsets={TopicPartition(name, 0): 0}, **drop)
    assert counts.rows == [SEEN + LATER]


def test_a_seeded_checkpoint_has_no_state(lab: StructuredLab, topic: NewTopic) -> None:
    """Seeded ahead of the ledger, only both words together begin there with empty state."""
    name = topic()
    lab.produce(name, "a", "b", "a")
    words = ["checkpoint", "seed", str(lab.checkpoint), "--from-file", "offsets.csv", "--execute"]
    Path("offsets.csv").write_text(f"{name},0,1\n", "utf-8")
    assert CliRunner().invoke(app, words).exit_code == 0
    follow = OnMismatch(hole="follow")
    rebuild = replace(follow, state="rebuild")  # it builds a state for an empty checkpoint, and this one has a batch
    for how in ({}, {"on_mismatch": follow}, {"on_mismatch": rebuild}):
        with pytest.raises(CheckpointMismatch, match=r"(?s)a hole.*state='empty'"):
            lab.follow(name, query=values, **how)
    both = OnMismatch(hole="follow", state="empty")
    assert sorted(lab.follow(name, query=values, on_mismatch=both)) == ["a", "b"]


def test_an_export_of_a_query_without_state_counts_no_batches(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.follow(name)
    with closing(open_checkpoint(f"checkpoint://{lab.checkpoint}")) as store:
        assert Counter(tp.topic for tp in store.load("group").positions) == {name: 1}
    printed = CliRunner().invoke(app, ["checkpoint", "export", str(lab.checkpoint)])
    assert re.sub(r"\s", "", printed.stdout) == f'{{"{name}":{{"0":1}}}}'


def test_a_printed_export_has_no_number_of_a_query(lab: StructuredLab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    lab.follow(name, query=values)
    printed = CliRunner().invoke(app, ["checkpoint", "export", str(lab.checkpoint)])
    assert re.sub(r"\s", "", printed.stdout) == f'{{"{name}":{{"0":1}}}}'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files into the test's folder."""
    monkeypatch.chdir(tmp_path)
