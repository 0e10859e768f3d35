"""A query that reads one topic by two sources, as a frame that is used twice: what to do is true, and loses nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from checkpoints.written import put
from offsetkeeper.checkpoint import CheckpointStore, LocalFiles, plan_truncate, read_checkpoint
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import CheckpointMismatch

A = TopicPartition("orders", 0)


def batch(files: LocalFiles, number: int, *ends: int, done: bool = True) -> None:
    """Write a batch whose sources end at these offsets, as Spark plans it and marks it as done."""
    lines = [json.dumps({"orders": {"0": end}}) for end in ends]
    put(files, f"offsets/{number}", "\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))
    if done:
        put(files, f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    """A checkpoint whose newest batch is done, and ends at 20 for both sources."""
    files = LocalFiles(tmp_path / "a checkpoint")
    put(files, "metadata", '{"id":"00000000-0000-0000-0000-000000000001"}')
    batch(files, 0, 10, 10)
    batch(files, 1, 20, 20)
    return files


def refused(files: LocalFiles, number: int) -> str:
    """Return what a start says of a batch."""
    with pytest.raises(CheckpointMismatch, match="read orders 0, one up to 30 and one up to 33") as raised:
        log(files).ends(number)
    return str(raised.value)


def log(files: LocalFiles) -> BatchLog:
    return BatchLog(files, Topics.of(["orders"]), {}, packed=False)


def test_a_batch_that_is_done_is_not_to_be_taken_back(files: LocalFiles) -> None:
    """Its results are in the output of plain Spark, and would be written there again."""
    batch(files, 2, 30, 33)
    told = refused(files, 2)
    assert "truncate" not in told
    assert "it is done, and its results are in the output" in told
    batch(files, 3, 40, 40, done=False)  # then the one before it is done too
    assert refused(files, 2) == told


def test_what_is_to_be_done_about_it_leads_on(files: LocalFiles) -> None:
    """Nothing is written to the topic any more, so the query reads both sources to one end."""
    batch(files, 2, 30, 33)
    assert "stop what writes to the topic, let the program that ran this batch read all" in refused(files, 2)
    batch(files, 3, 33, 33)
    assert log(files).ends(3) == {A: 33}
    assert CheckpointStore(files).load("shop").positions[A].offset == 33


def test_a_batch_that_is_only_planned_is_taken_back_by_the_line_of_the_error(files: LocalFiles) -> None:
    batch(files, 2, 30, 33, done=False)
    told = refused(files, 2)
    assert "If plain Spark began this batch, let its program finish it" in told
    command = shlex.split(told.rpartition("take it back: ")[2])
    assert command[:4] == ["offsetkeeper", "checkpoint", "truncate", str(files.path)]
    edit = plan_truncate(read_checkpoint(files), int(command[command.index("--batch") + 1]), query_id="keep")
    assert "offsets/2" in edit.deletes
    assert "offsets/1" not in edit.deletes


def test_the_first_batch_cannot_be_taken_back(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    batch(files, 0, 30, 33, done=False)
    assert "truncate" not in refused(files, 0)
