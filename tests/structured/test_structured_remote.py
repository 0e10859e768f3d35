"""A checkpoint that only Spark's server reaches, as on HDFS with Spark Connect: what is refused and read is the same.

Classic Spark stands in for the server: the folder is read through the session alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from offsetkeeper import TopicPartition
from offsetkeeper.checkpoint import folder
from offsetkeeper.checkpoint.folder import RemoteFolder
from offsetkeeper.errors import CheckpointMismatch
from structured.lab import StructuredLab, fail

NewTopic = Callable[..., str]


@pytest.fixture
def remote(lab: StructuredLab, monkeypatch: pytest.MonkeyPatch) -> StructuredLab:
    """The lab, with the connector; also the process that writes batches has no other way to the checkpoint."""
    monkeypatch.setattr(folder, "is_connect", lambda _: True)
    monkeypatch.setattr(RemoteFolder, "local", lambda _: None)
    return lab


def test_a_reset_is_not_ignored_by_a_first_batch_that_is_planned(remote: StructuredLab, topic: NewTopic) -> None:
    """Where it begins is in the checkpoint, in a folder of folders; the records before it would never be read."""
    name = topic()
    tp = TopicPartition(name, 0)
    remote.produce(name, "a", "b", "c", "d")
    with pytest.raises(RuntimeError, match="the output is away"):
        remote.follow(name, fail, attempts=1, offsets={tp: 2})
    with remote.ledger() as ledger:
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=0)}, "read again")
    with pytest.raises(CheckpointMismatch, match=rf"{name} 0: the checkpoint has 2 to 4, the ledger is at 0: a hole"):
        remote.follow(name)
    assert (remote.values, remote.offsets()) == ([], {0: 0})
    remote.delete_checkpoint()
    assert remote.follow(name) == ["a", "b", "c", "d"]


def test_a_first_batch_whose_start_cannot_be_seen_is_not_written(
    remote: StructuredLab, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connector writes it down before the batch runs, so that the ledger's position stands for nothing."""
    name = topic()
    remote.produce(name, "a")
    monkeypatch.setattr(RemoteFolder, "names", lambda *_: [])
    with pytest.raises(CheckpointMismatch, match=r"sources/0/0 is missing, so the range of the batch is unknown"):
        remote.follow(name)
    assert (remote.values, remote.offsets()) == ([], {0: 0})
    monkeypatch.undo()
    assert remote.follow(name) == ["a"]


def test_auto_stays_with_the_connector_for_a_planned_batch_of_a_new_partition(
    remote: StructuredLab, topic: NewTopic, tmp_path: Path
) -> None:
    """The packed source reads a new partition from the next batch on, and would take these records for read."""
    name = topic()
    remote.produce(name, "a")
    assert remote.follow(name) == ["a"]
    remote.grow(name, 2)
    remote.produce_all(name, [(0, "b"), (1, "c")])
    store, copy = tmp_path / "offsets.db", tmp_path / "copy.db"
    shutil.copy(store, copy)
    with pytest.raises(RuntimeError, match="the output is away"):
        remote.follow(name, fail, attempts=1)
    shutil.copy(copy, store)  # as if the driver had died when Spark had planned the batch and the ledger not begun it
    assert sorted(remote.follow(name, reader="auto")) == ["b", "c"]
    assert remote.offsets() == {0: 2, 1: 1}
