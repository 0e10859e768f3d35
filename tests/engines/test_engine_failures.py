"""Functions that fail: the same batch again, and at last the error with the ranges on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from engines.lab import Lab
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import BrokerUnavailable, SettingsError, StartRefused
from offsetkeeper.readers import PackedReader, Source
from offsetkeeper.sinks import Idempotent
from offsetkeeper.testing.server import free_port

NewTopic = Callable[..., str]


class Failing:
    """Keeps what it gets, and raises at its first calls.

    Attributes:
        batches: it was called with.
    """

    def __init__(self, lab: Lab, failures: int, *, keep: bool = True) -> None:
        self.batches: list[Batch] = []
        self._lab, self._failures, self._keep = lab, failures, keep

    def __call__(self, frame: DataFrame, batch: Batch) -> None:
        """Fail or not."""
        self.batches.append(batch)
        if self._keep:
            self._lab.keep(frame, batch)
        if len(self.batches) <= self._failures:
            raise RuntimeError(f"failure {len(self.batches)}")


def test_a_batch_that_fails_is_tried_again_with_the_same_ranges_and_id(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    failing = Failing(lab, 1)

    def produce_and_fail(frame: DataFrame, batch: Batch) -> None:
        lab.produce(name, "later")
        failing(frame, batch)

    summary = lab.pipeline(name).run(lab.spark, produce_and_fail, until="caught_up")
    first, again = failing.batches
    assert (first.id, first.ranges, first.retry) == (again.id, again.ranges, False)
    assert again.retry
    assert lab.values == ["a", "b", "a", "b"]
    assert (summary.batches, summary.offsets) == (1, 2)


def test_the_error_of_the_last_attempt_is_raised_with_the_ranges_on_it(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    failing = Failing(lab, 9, keep=False)
    with pytest.raises(RuntimeError, match="failure 2") as raised:
        lab.pipeline(name, attempts=2).run(lab.spark, failing, until="caught_up")
    where, finds = raised.value.__notes__
    assert where == f"in batch group/{lab.token()}/1, attempt 2, ranges:\n{name} 0 0 1"
    assert "Policies(poison='quarantine') finds it" in finds
    assert len(failing.batches) == 2
    assert (lab.history()[-1].event, lab.history()[-1].reason) == ("release", "ended by RuntimeError")
    lab.pipeline(name).run(lab.spark, lambda _, __: None, until="caught_up")
    assert (lab.history()[-1].event, lab.history()[-1].reason) == ("release", "end")


def test_the_run_after_a_failure_gets_the_pending_batch_unchanged_before_any_other(lab: Lab, topic: NewTopic) -> None:
    name = topic(2)
    lab.produce(name, "a")
    failing = Failing(lab, 1, keep=False)
    with pytest.raises(RuntimeError):
        lab.pipeline(name, attempts=1).run(lab.spark, failing, until="caught_up")
    lab.produce(name, "b")
    lab.produce(name, "c", partition=1)
    assert lab.read(name) == ["a", "b", "c"]
    again, after = lab.batches
    assert again == failing.batches[0]
    assert (again.retry, after.retry) == (True, False)
    assert after.lines() == f"{name} 0 1 2\n{name} 1 0 1"


def test_an_output_that_is_not_idempotent_is_never_called_again_at_most_once(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    failing = Failing(lab, 1)
    with pytest.raises(RuntimeError, match="failure 1"):
        lab.pipeline(name).run(lab.spark, failing, guarantee="at_most_once", until="caught_up")
    assert lab.offsets() == {0: 1}
    lab.produce(name, "b")
    lab.pipeline(name).run(lab.spark, failing, guarantee="at_most_once", until="caught_up")
    assert lab.values == ["a", "b"]


def test_a_batch_that_an_earlier_run_may_have_written_is_not_written_again_at_most_once(
    lab: Lab, topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    lab.produce(name, "a")
    with pytest.raises(RuntimeError):
        lab.pipeline(name, attempts=1).run(lab.spark, Failing(lab, 1), until="caught_up")
    lab.produce(name, "b")
    lab.pipeline(name).run(lab.spark, lab.keep, guarantee="at_most_once", until="caught_up")
    assert lab.values == ["a", "b"]
    told = rf"batch group/\w+/1 may have been written before, so it counts as done:\n{name} 0 0 1"
    assert re.search(told, "\n".join(caplog.messages))


def test_a_pending_batch_eaten_by_retention_stops_the_start_or_is_dropped_as_the_policy_says(
    lab: Lab, topic: NewTopic
) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    with pytest.raises(RuntimeError):
        lab.pipeline(name, attempts=1).run(lab.spark, Failing(lab, 1, keep=False), until="caught_up")
    lab.delete_records(name, before=1)
    before = lab.snapshot()
    with pytest.raises(StartRefused, match="below the beginning"):
        lab.read(name)
    assert lab.snapshot() == before
    assert lab.read(name, policies=Policies(below_beginning="beginning")) == ["b"]
    assert lab.batches[-1].sequence == 2


def test_an_idempotent_output_gets_the_batch_again_under_the_same_id(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    name = topic()
    lab.produce(name, "a", "b")
    failed: list[str] = []

    def write_file(frame: DataFrame, batch: Batch) -> None:
        file = tmp_path / batch.id.replace("/", "-")
        file.write_text(",".join(row.value.decode() for row in frame.collect()))
        if not failed:
            failed.append(batch.id)
            raise RuntimeError("after the output")

    sink = Idempotent(write_file)
    with pytest.raises(RuntimeError):
        lab.pipeline(name, attempts=1).run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up")
    lab.produce(name, "c")
    lab.pipeline(name).run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up")
    assert sorted(file.read_text() for file in tmp_path.glob("group-*")) == ["a,b", "c"]


def test_what_the_reader_raises_on_an_executor_comes_out_as_our_own_error(lab: Lab, topic: NewTopic) -> None:
    """The executors do not reach the brokers that the driver reaches."""
    name = topic()
    lab.produce(name, "a")
    pipeline = lab.pipeline(name, attempts=1)
    source = Source(f"127.0.0.1:{free_port()}", {}, "group", "read_committed", stall_s=2)
    pipeline._reader = PackedReader(source)
    with pytest.raises(BrokerUnavailable, match=f"{name} 0 at 0 of 1") as raised:
        pipeline.run(lab.spark, lab.keep, until="caught_up")
    assert raised.value.__notes__ == [f"in batch group/{lab.token()}/1, attempt 1, ranges:\n{name} 0 0 1"]
    assert isinstance(raised.value.__cause__, PySparkException)


def test_an_error_of_the_output_that_looks_like_one_of_the_reader_comes_out_as_it_is(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")

    def fail(_: DataFrame, __: Batch) -> None:
        raise RuntimeError("org.apache.kafka.common.errors.TimeoutException: the output topic did not answer")

    with pytest.raises(RuntimeError, match="the output topic"):
        lab.pipeline(name, attempts=1).run(lab.spark, fail, until="caught_up")


def test_a_function_with_a_sink_that_returns_nothing_is_told_at_once(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")
    calls: list[Batch] = []
    sink = Idempotent(lab.keep)
    with pytest.raises(SettingsError, match="must return the DataFrame to write; it returned None"):
        lab.pipeline(name).run(lab.spark, lambda _, batch: calls.append(batch), sink=sink, until="caught_up")
    assert len(calls) == 1


def test_an_error_of_on_batch_ends_the_run_after_the_batch_is_committed(lab: Lab, topic: NewTopic) -> None:
    name = topic()
    lab.produce(name, "a")

    def fail(_: object) -> None:
        raise RuntimeError("told")

    with pytest.raises(RuntimeError, match="told"):
        lab.pipeline(name).run(lab.spark, lab.keep, on_batch=fail, until="caught_up")
    assert lab.offsets() == {0: 1}
    assert lab.snapshot().owner is None
    assert lab.read(name) == []
