"""A batch that a run began and did not commit: the next start finishes it unchanged, or says why it cannot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from offsetkeeper import Batch, Policies, TopicPartition
from offsetkeeper.errors import StartRefused
from offsetkeeper.sinks import Idempotent, Outputs

NewTopic = Callable[..., str]


class Files:
    """An idempotent output: a file for each batch id, with its values; the driver dies after the first one.

    Attributes:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dies = True

    def __call__(self, frame: DataFrame, batch: Batch) -> None:
        """Write the file, and die once."""
        values = sorted(row.value.decode() for row in frame.select("value").collect())
        (self.folder / batch.id.replace("/", "-")).write_text(json.dumps(values))
        if self.dies:
            self.dies = False
            raise RuntimeError("dead before the commit")

    def rows(self) -> Counter[str]:
        """Count the values in all files."""
        return Counter(value for file in self.folder.iterdir() for value in json.loads(file.read_text()))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    folder = tmp_path / "output"
    folder.mkdir()
    return Files(folder)


def exactly_once(lab: Lab, *topics: str, sink: Any, offsets: Any = None, **settings: Any) -> None:
    """Run until all is read."""
    pipeline = lab.pipeline(*topics, **settings)
    pipeline.run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up", offsets=offsets)


def begun(lab: Lab, files: Files, *topics: str) -> None:
    """Leave a batch of two partitions in each topic that is written and not committed."""
    for name in topics:
        lab.produce_all(name, [(p, f"{name}-{p}-{n}") for p in (0, 1) for n in range(2)])
    with pytest.raises(RuntimeError, match="dead"):
        exactly_once(lab, *topics, sink=Idempotent(files), attempts=1)
    assert lab.snapshot().pending is not None


@pytest.mark.parametrize("max_records", [None, 2])
def test_what_is_left_after_a_pending_batch_is_told(
    lab: Lab, topic: NewTopic, files: Files, max_records: int | None
) -> None:
    name = topic(2)
    begun(lab, files, name)
    lab.produce(name, *map(str, range(5)))
    told: list[int] = []
    lab.pipeline(name, max_records=max_records).run(
        lab.spark,
        sink=Idempotent(files),
        guarantee="exactly_once",
        until="caught_up",
        on_batch=lambda progress: told.append(progress.left),
    )
    assert told == ([5, 0] if max_records is None else [5, 3, 1, 0])


def test_a_pending_batch_is_finished_though_one_of_its_topics_is_not_read_any_more(
    lab: Lab, topic: NewTopic, files: Files
) -> None:
    one, other = topic(2), topic(2)
    begun(lab, files, one, other)
    exactly_once(lab, one, sink=Idempotent(files))
    exactly_once(lab, one, other, sink=Idempotent(files))
    assert files.rows() == Counter(f"{name}-{p}-{n}" for name in (one, other) for p in (0, 1) for n in range(2))
    assert "abandon" not in lab.events()


def test_a_pending_batch_is_finished_before_offsets_given_by_hand_are_set(
    lab: Lab, topic: NewTopic, files: Files
) -> None:
    name = topic(2)
    begun(lab, files, name)
    lab.produce(name, "later", partition=1)
    exactly_once(lab, name, sink=Idempotent(files), offsets={TopicPartition(name, 0): 2})
    assert files.rows() == Counter([*(f"{name}-{p}-{n}" for p in (0, 1) for n in range(2)), "later"])
    assert lab.events()[-5:] == ["commit", "place", "begin", "commit", "release"], "what was given is noted"


@pytest.mark.parametrize("policy", ["stop", "beginning"])
def test_a_pending_batch_is_finished_though_another_partition_has_lost_records(
    lab: Lab, topic: NewTopic, files: Files, policy: Any
) -> None:
    """Whether the start is refused then is another question, and is answered by the policy."""
    name, lossy = topic(2), topic()
    lab.produce(lossy, "x")
    lab.read(lossy)
    lab.produce(lossy, "lost", "kept")
    begun(lab, files, name)
    lab.delete_records(lossy, before=2)
    how: dict[str, Any] = {"sink": Idempotent(files), "policies": Policies(below_beginning=policy)}
    if policy == "stop":
        with pytest.raises(StartRefused, match="below the beginning"):
            exactly_once(lab, name, lossy, **how)
        assert lab.snapshot().pending is not None
        return
    exactly_once(lab, name, lossy, **how)
    assert files.rows() == Counter([*(f"{name}-{p}-{n}" for p in (0, 1) for n in range(2)), "kept"])


def test_an_exactly_once_start_stops_where_the_pending_batch_cannot_be_read_again(
    lab: Lab, topic: NewTopic, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the ranges that may come twice; the policy drops the batch, and the history has it."""
    name = topic(2)
    begun(lab, files, name)
    lab.delete_records(name, before=1)
    before = lab.snapshot()
    policies = Policies(below_beginning="beginning")
    shown = rf"(?s)'{name} 0 0 2' cannot be read: Kafka holds 1 to 2.*may come twice:.*{name} 1 0 2.*pending='drop'"
    with pytest.raises(StartRefused, match=shown):
        exactly_once(lab, name, sink=Idempotent(files), policies=policies)
    assert lab.snapshot() == before
    dropping = Policies(below_beginning="beginning", pending="drop")
    exactly_once(lab, name, sink=Idempotent(files), policies=dropping)
    abandoned = next(entry for entry in lab.history() if entry.event == "abandon")
    assert "Kafka holds 1 to 2; no output is marked to have it" in abandoned.reason
    assert [(r.partition, r.start, r.end) for r in abandoned.ranges] == [(0, 0, 2), (1, 0, 2)]
    assert "is dropped" in caplog.text
    assert files.rows()[f"{name}-1-0"] == 2, "by the operator's word"


def test_records_that_go_away_between_two_attempts_end_an_exactly_once_run(
    lab: Lab, topic: NewTopic, files: Files
) -> None:
    name = topic()
    lab.produce(name, "a", "b")

    def write(frame: DataFrame, batch: Batch) -> None:
        lab.delete_records(name, before=1)
        files(frame, batch)

    with pytest.raises(StartRefused, match="may come twice"):
        exactly_once(lab, name, sink=Idempotent(write), policies=Policies(below_beginning="beginning"))
    assert lab.snapshot().pending is not None
    assert sum(files.rows().values()) <= 2


def test_a_pending_output_that_the_program_does_not_have_any_more_stops_the_start(
    lab: Lab, topic: NewTopic, files: Files
) -> None:
    """Renamed, it would get the batch once more."""
    name = topic()
    lab.produce(name, "a")
    kept = Idempotent(lab.keep)
    with pytest.raises(RuntimeError, match="dead"):
        exactly_once(lab, name, sink=Outputs(archive=kept, files=Idempotent(files)), attempts=1)
    assert lab.values == ["a"]
    for renamed in (Outputs(store=kept, files=Idempotent(files)), Idempotent(files)):
        with pytest.raises(StartRefused, match="output 'archive' has it, but the program has no output with that name"):
            exactly_once(lab, name, sink=renamed)
    exactly_once(lab, name, sink=Outputs(archive=kept, files=Idempotent(files)))
    assert (lab.values, files.rows()) == (["a"], Counter(["a"]))


def test_a_batch_of_a_topic_that_is_gone_is_dropped_at_least_once(
    lab: Lab, topic: NewTopic, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    one, gone = topic(2), topic(2)
    begun(lab, files, one, gone)
    lab.kafka.delete_topic(gone)
    assert sorted(lab.read(one)) == [f"{one}-{p}-{n}" for p in (0, 1) for n in range(2)]
    assert f"'{gone} 0 0 2' cannot be read: the partition no longer exists in Kafka" in caplog.text
