"""After a lost checkpoint the state is built again, and the output has what that of a query without a loss has."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from offsetkeeper import Batch, Ledger, OnMismatch, Policies, Position, TopicPartition, open_store
from offsetkeeper.checkpoint import LocalFiles
from offsetkeeper.checkpoint.first_batch import SETTINGS
from offsetkeeper.core.model import Snapshot
from offsetkeeper.engines import rebuild
from offsetkeeper.engines.checkpoint_guard import CheckpointGuard
from offsetkeeper.errors import CheckpointMismatch, SettingsError
from structured.lab import StructuredLab, fail

NewTopic = Callable[..., str]
REBUILD = OnMismatch(state="rebuild")
FOR_EVER = {"retention.ms": "-1"}
HOUR_MS = 1_700_000_000_000 // 3_600_000 * 3_600_000
_PARTITIONS = 2


def by_minute(records: DataFrame) -> DataFrame:
    """Count records by minute and value."""
    minute = f.window("timestamp", "60 seconds").alias("w")
    counts = records.withWatermark("timestamp", "90 seconds").groupBy("value", minute).count()
    return counts.select(f.concat_ws(" ", f.col("value").cast("string"), "w.start", "count").alias("line"))


def sliding(records: DataFrame) -> DataFrame:
    """Count records in windows that overlap, which begin at odd times."""
    minute = f.window("timestamp", "3 minutes", "1 minute", "10 seconds")
    counts = records.withWatermark("timestamp", "30 seconds").groupBy(minute).count()
    return counts.select(f.concat_ws(" ", "window.start", "count").alias("line"))


def once(records: DataFrame) -> DataFrame:
    """Return each value of a time once."""
    kept = records.withWatermark("timestamp", "90 seconds").dropDuplicates(["value", "timestamp"])
    return kept.select(f.concat_ws(" ", f.col("value").cast("string"), "timestamp").alias("line"))


class Lines:
    """An output: the lines that a user counts."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, frame: DataFrame, _: Batch) -> None:
        """Keep a batch."""
        self.lines += [row["line"] for row in frame.collect()]


def produce(lab: StructuredLab, name: str, minute: int, rng: random.Random) -> None:
    """Produce records of about a minute, in no order; some are late, some are there twice."""
    for partition in range(_PARTITIONS):
        for _ in range(12):
            at = HOUR_MS + minute * 60_000 + rng.randrange(-150, 60) * 1000
            for _ in range(rng.choice((1, 1, 2))):
                lab.produce(name, rng.choice("abc"), partition=partition, timestamp_ms=at)


@pytest.mark.parametrize(
    ("query", "output_mode"), [(by_minute, "append"), (sliding, "append"), (once, "append"), (by_minute, "update")]
)
def test_a_query_that_loses_its_checkpoint_writes_what_one_without_a_loss_writes(
    query: Any, output_mode: str, either: StructuredLab, topic: NewTopic
) -> None:
    """Twice, and the second time as soon as the state is built again. Late records stay late."""
    lab, rng = either, random.Random(4)  # noqa: S311 - the same each time
    name, lost, whole = topic(_PARTITIONS, FOR_EVER), Lines(), Lines()
    both: dict[str, Any] = {"query": query, "output_mode": output_mode}
    same = OnMismatch(state="rebuild", unchanged=(query, output_mode) in {(once, "append"), (by_minute, "update")})
    for minute in range(7):
        produce(lab, name, minute, rng)
        if minute in {3, 4, 5}:
            lab.delete_checkpoint()
        lab.follow(name, lost, on_mismatch=same, **both)
        lab.follow(name, whole, group="whole", checkpoint=str(lab.checkpoint.parent / "whole"), **both)
    assert sorted(lost.lines) == sorted(whole.lines)
    assert len(lost.lines) > 5


def test_a_crash_in_the_batch_that_builds_the_state_changes_nothing(lab: StructuredLab, topic: NewTopic) -> None:
    """Also if the program no longer says that it rebuilds."""
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 5):
        lab.produce(name, "a", "b", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    lab.delete_checkpoint()
    lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD)
    assert [line.split()[0] for line in lines.lines] == ["a", "b"]
    for batch in lab.batch_ids("commits"):  # as if Spark had died in the first batch
        lab.forget_commit(batch)
    for batch in lab.batch_ids()[1:]:
        (lab.checkpoint / "offsets" / str(batch)).unlink()
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 5 * 60_000)
    lab.produce(name, "c", timestamp_ms=HOUR_MS + 10 * 60_000)
    lab.follow(name, lines, query=by_minute)
    assert sorted(line.split()[0] + line.split()[-1] for line in lines.lines) == ["a1", "a2", "b1", "b1"]


def test_the_settings_are_those_that_spark_keeps(lab: StructuredLab, topic: NewTopic) -> None:
    """Spark takes one that is not there as its oldest release had it."""
    name = topic(1, FOR_EVER)
    lab.produce(name, "a", timestamp_ms=HOUR_MS)
    lab.follow(name, Lines(), query=by_minute)
    kept = json.loads((lab.checkpoint / "offsets" / "0").read_text("utf-8").splitlines()[1])["conf"]
    assert rebuild._settings(lab.spark) == kept
    assert kept.keys() <= {*SETTINGS}


def test_a_start_with_an_empty_checkpoint_says_what_can_be_had(lab: StructuredLab, topic: NewTopic) -> None:
    name, lines = topic(1, FOR_EVER), Lines()
    lab.produce(name, "a", timestamp_ms=HOUR_MS)
    lab.follow(name, lines, query=by_minute)
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 300_000)
    lab.follow(name, lines, query=by_minute)
    lab.delete_checkpoint()
    with pytest.raises(CheckpointMismatch, match=r"watermark 2023-11-14T22:03:30.000\+00:00.*state='rebuild'"):
        lab.follow(name, lines, query=by_minute)
    with pytest.raises(SettingsError, match="window_s=30 is shorter than a window of the query, of 60 s"):
        lab.follow(name, lines, query=by_minute, on_mismatch=OnMismatch(state="rebuild", window_s=30))


def test_what_no_one_knows_is_refused(lab: StructuredLab, topic: NewTopic) -> None:
    """A position that has moved since, records that Kafka has deleted, files of another query."""
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 5, 6):
        lab.produce(name, "a", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    lab.delete_checkpoint()
    (lab.checkpoint / "state").mkdir(parents=True)
    (lab.checkpoint / "state" / "left").write_text("", "utf-8")
    before = lab.snapshot().positions
    with pytest.raises(CheckpointMismatch, match="files in state: delete the folder"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD)
    lab.delete_checkpoint()
    lab.delete_records(name, 3)
    with pytest.raises(CheckpointMismatch, match=r"Kafka holds no record before 2023.*below_beginning"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD)
    assert lab.snapshot().positions == before
    accepts = Policies(below_beginning="beginning")
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 20 * 60_000)
    lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, policies=accepts)
    assert len(lines.lines) == 1  # the windows under way lacked all of their records
    lab.read(name)  # a run without a query moves the positions
    lab.delete_checkpoint()
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 21 * 60_000)
    lab.read(name)
    with pytest.raises(CheckpointMismatch, match=r"no watermark for these positions.*state='empty'"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD)


def test_a_batch_that_was_begun_is_dropped_before_the_state_is_built_again(lab: StructuredLab, topic: NewTopic) -> None:
    """Only its own checkpoint could finish it. Its output did not land; its records come in another batch."""
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 5):
        lab.produce(name, "a", "b", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 5 * 60_000)
    lab.produce(name, "c", timestamp_ms=HOUR_MS + 10 * 60_000)
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, fail, query=by_minute, attempts=1)
    lab.delete_checkpoint()
    with pytest.raises(CheckpointMismatch, match=r"(?s)is pending.*pending='drop'"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD)
    lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, policies=Policies(pending="drop"))
    assert sorted(line.split()[0] + line.split()[-1] for line in lines.lines) == ["a1", "a2", "b1", "b1"]


def lost_with_a_pending_batch(lab: StructuredLab, name: str, process: Any = fail) -> Snapshot:
    """Begin a batch whose output fails, lose the checkpoint, and let another run take the group; return the ledger."""
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 5 * 60_000)
    lab.produce(name, "c", timestamp_ms=HOUR_MS + 10 * 60_000)
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, process, query=by_minute, attempts=1)
    lab.delete_checkpoint()
    with closing(open_store(lab.store)) as store:
        lives = Ledger(store, "group")
        lives.load()
        lives.acquire("run")
    before = lab.snapshot()
    assert before.owner is not None
    assert before.pending is not None
    assert before.pending.watermark_ms
    return before


def test_a_refused_rebuild_fences_no_run_and_drops_no_batch(
    lab: StructuredLab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 5):
        lab.produce(name, "a", "b", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    before = lost_with_a_pending_batch(lab, name)

    def refused(why: str, kind: type[Exception] = CheckpointMismatch) -> None:
        with pytest.raises(kind, match=why):
            lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, policies=Policies(pending="drop"))
        assert lab.snapshot() == before
        assert not lab.batch_ids()

    (lab.checkpoint / "state").mkdir(parents=True)
    (lab.checkpoint / "state" / "left").write_text("", "utf-8")
    refused("files in state: delete the folder")
    lab.delete_checkpoint()
    with monkeypatch.context() as here:
        here.setattr(CheckpointGuard, "history", lambda _: [])
        refused("the history is too short")
    with monkeypatch.context() as here:
        here.delattr(LocalFiles, "write")
        refused("can only be read from here", SettingsError)
    lab.delete_records(name, 3)
    refused("Kafka holds no record before 2023")


def test_a_refused_rebuild_leaves_the_only_batch_that_has_a_watermark(lab: StructuredLab, topic: NewTopic) -> None:
    """To drop it would take away what the state is built from."""
    name, lines = topic(1, FOR_EVER), Lines()

    def keep_once(frame: DataFrame, batch: Batch) -> None:
        lines(frame, batch)
        if batch.sequence > 1:
            fail(frame, batch)

    before = lost_with_a_pending_batch(lab, name, keep_once)
    assert before.watermark_ms is None
    with pytest.raises(CheckpointMismatch, match="The ledger has no watermark"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, policies=Policies(pending="drop"))
    assert lab.snapshot() == before


def test_no_record_is_counted_that_the_lost_query_has_not_read(lab: StructuredLab, topic: NewTopic) -> None:
    """The group began in the middle of a window."""
    name, lost, whole = topic(1, FOR_EVER), Lines(), Lines()
    lab.produce(name, "a", "a", timestamp_ms=HOUR_MS)
    lab.follow(name, lost, query=hourly, start="latest")
    lab.follow(name, whole, query=hourly, start="latest", group="whole", checkpoint=f"{lab.checkpoint}-whole")
    for minute in (1, 20, 90):
        lab.produce(name, "a", timestamp_ms=HOUR_MS + minute * 60_000)
        if minute == 90:
            lab.delete_checkpoint()
        lab.follow(name, lost, query=hourly, on_mismatch=REBUILD)
        lab.follow(name, whole, query=hourly, group="whole", checkpoint=f"{lab.checkpoint}-whole")
    assert lost.lines == whole.lines
    assert [line.split()[-1] for line in lost.lines] == ["2"]


def test_no_record_is_left_out_that_a_query_had_read_before_the_group_took_it_over(
    lab: StructuredLab, topic: NewTopic
) -> None:
    """The state came with the checkpoint, and the group's history does not show what is in it."""
    name, lines = topic(1, FOR_EVER), Lines()
    lab.produce(name, "a", "a", timestamp_ms=HOUR_MS)
    lab.follow(name, lines, query=hourly, group="before")
    with lab.ledger() as ledger:
        ledger.rewind({TopicPartition(name, 0): Position(2)}, reason="the positions of the group before")
    for minute in (20, 30):
        lab.produce(name, "a", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=hourly, on_mismatch=OnMismatch(hole="follow"))
    lab.delete_checkpoint()
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 90 * 60_000)
    with pytest.raises(CheckpointMismatch, match=r"cannot be rebuilt for sure: the query \S+ was taken over"):
        lab.follow(name, lines, query=hourly, on_mismatch=REBUILD)
    lab.follow(name, lines, query=hourly, offsets={TopicPartition(name, 0): 0})
    assert [line.split()[-1] for line in lines.lines] == ["4"]


def test_a_start_that_moves_positions_keeps_the_watermark_for_the_next_one(lab: StructuredLab, topic: NewTopic) -> None:
    """And a state that never ends, or a history without the records, is refused before anything is touched."""
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 5):
        lab.produce(name, "a", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    lab.delete_checkpoint()
    before = lab.snapshot()
    assert before.watermark_ms
    with pytest.raises(SettingsError, match="in output mode 'complete' a state never ends"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, output_mode="complete")
    lab.produce(name, "a", timestamp_ms=HOUR_MS + 20 * 60_000)
    lab.delete_records(name, 3)
    accepts = Policies(below_beginning="beginning")
    with pytest.raises(CheckpointMismatch, match=rf"moves positions: {name} 0 from 2 to 3"):
        lab.follow(name, lines, query=by_minute, on_mismatch=REBUILD, policies=accepts)
    assert lab.snapshot() == before


def hourly(records: DataFrame) -> DataFrame:
    """Count records by hour."""
    counts = (
        records.withWatermark("timestamp", "10 minutes").groupBy(f.window("timestamp", "1 hour").alias("w")).count()
    )
    return counts.select(f.concat_ws(" ", "w.start", "count").alias("line"))


def test_a_changed_query_begins_with_whole_windows(lab: StructuredLab, topic: NewTopic) -> None:
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 2, 5):
        lab.produce(name, "a", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, lines, query=by_minute)
    assert len(lines.lines) == 2  # the watermark is in minute 3
    lab.delete_checkpoint()
    lab.produce(name, "b", timestamp_ms=HOUR_MS + 20 * 60_000)
    lab.follow(name, lines, query=sliding, on_mismatch=REBUILD)
    counts = [int(line.split()[-1]) for line in lines.lines[2:]]
    assert counts == [1] * 4  # one window of three minutes with minute 2, three with minute 5


@pytest.mark.parametrize(("query", "output_mode"), [(by_minute, "update"), (once, "append")])
def test_a_changed_query_that_emits_before_its_windows_end_is_refused(
    query: Any, output_mode: str, lab: StructuredLab, topic: NewTopic
) -> None:
    """What is read again is dropped, and the output has none of it: no later record would bring it."""
    name, lines = topic(1, FOR_EVER), Lines()
    for minute in (0, 2):
        lab.produce(name, "a", "b", timestamp_ms=HOUR_MS + minute * 60_000)
        lab.follow(name, Lines(), query=hourly)
    lab.delete_checkpoint()
    before = lab.snapshot()
    how: dict[str, Any] = {"query": query, "output_mode": output_mode}
    with pytest.raises(CheckpointMismatch, match=rf"({output_mode}|dropDuplicates) emits .* unchanged=True"):
        lab.follow(name, lines, on_mismatch=REBUILD, **how)
    assert lab.snapshot() == before
    lab.follow(name, lines, offsets={TopicPartition(name, 0): 0}, **how)
    assert sorted(line[0] for line in lines.lines) == ["a", "a", "b", "b"]


def own_time(records: DataFrame) -> DataFrame:
    """Have an event time of its own."""
    timed = records.withColumn("at", f.expr("timestamp + interval 10 minutes")).withWatermark("at", "90 seconds")
    counts = timed.groupBy("value", f.window("at", "60 seconds").alias("w")).count()
    return counts.select(f.concat_ws(" ", f.col("value").cast("string"), "w.start", "count").alias("line"))


def test_an_event_time_that_kafka_does_not_know_needs_a_word(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path
) -> None:
    name, lost, whole = topic(_PARTITIONS, FOR_EVER), Lines(), Lines()
    rng = random.Random(5)  # noqa: S311 - as above
    ahead = OnMismatch(state="rebuild", ahead_s=600)
    for minute in range(6):
        produce(lab, name, minute, rng)
        if minute == 3:
            lab.delete_checkpoint()
            with pytest.raises(SettingsError, match=r"is not the column timestamp.*ahead_s"):
                lab.follow(name, lost, query=own_time, on_mismatch=REBUILD)
        lab.follow(name, lost, query=own_time, on_mismatch=ahead)
        lab.follow(name, whole, query=own_time, group="whole", checkpoint=str(tmp_path / "whole"))
    assert sorted(lost.lines) == sorted(whole.lines)


def never_ends(records: DataFrame) -> DataFrame:
    """Keep each value for ever."""
    return records.dropDuplicates(["value"])


def within(records: DataFrame) -> DataFrame:
    """Keep each value for a while after its first record, and no one knows where the chain of them began."""
    return records.withWatermark("timestamp", "60 seconds").dropDuplicatesWithinWatermark(["value"])


def sessions(records: DataFrame) -> DataFrame:
    """Count sessions, which may be of any length."""
    return records.withWatermark("timestamp", "60 seconds").groupBy(f.session_window("timestamp", "1 minute")).count()


def wide(records: DataFrame, last: Column | None = None) -> DataFrame:
    """Count by minute and by the last of more columns than Spark writes into the text of a plan by itself."""
    columns = [f.expr(f"offset + {number} as c{number}") for number in range(40)]
    last = f.lit("one") if last is None else last
    rows = records.withWatermark("timestamp", "90 seconds").select("timestamp", *columns, last.alias("last"))
    return rows.groupBy("last", f.window("timestamp", "60 seconds")).count()


def by_chance(records: DataFrame) -> DataFrame:
    """Count by a column that is another one each time."""
    return wide(records, f.rand())


def test_a_wide_query_is_known_as_any_other_is(lab: StructuredLab, topic: NewTopic) -> None:
    name, fields = topic(1, FOR_EVER), "spark.sql.debug.maxToStringFields"
    lab.produce(name, "a", timestamp_ms=HOUR_MS)
    before = lab.spark.conf.get(fields)
    lab.follow(name, Lines(), query=lambda r: wide(r).selectExpr("last as line"), on_mismatch=REBUILD)
    assert lab.offsets() == {0: 1}
    assert lab.spark.conf.get(fields) == before


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (by_chance, r"more than the records: rand\("),
        (never_ends, "0 watermarks"),
        (within, "DeduplicateWithinWatermark"),
        (sessions, "session windows"),
    ],
)
def test_a_state_that_may_reach_further_is_refused_by_name(
    query: Any, why: str, lab: StructuredLab, topic: NewTopic
) -> None:
    name = topic(1, FOR_EVER)
    with pytest.raises(SettingsError, match=rf"cannot rebuild the state of this query.*{why}.*offsets="):
        lab.follow(name, query=query, on_mismatch=REBUILD)
    assert not lab.snapshot().version
