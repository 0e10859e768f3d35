"""The input of the task that writes a topic ends early: its job is cancelled, or a part of the shuffle is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.topic import several, task
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from sinks.topics import values

NewTopic = Callable[..., str]
ROWS = 30_000
_PATIENT = "spark.python.task.killTimeout"  # Spark kills the worker of a cancelled task after that


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose tasks get 1,000 rows at a time, and live on after their job is cancelled."""
    jvm: Any = spark._jvm
    told = jvm.org.apache.spark.SparkEnv.get().conf()
    told.set(_PATIENT, "60s")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1000)
    yield Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    told.remove(_PATIENT)


class Pause:
    """A pause of each task after its first rows.

    Args:
        folder: of the files that say that a task has come there, has gone on, and has ended.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pause"
        self._folder.mkdir()

    def said(self, what: str) -> int:
        """Return how many tasks have said this."""
        return len([*self._folder.glob(f"{what}-*")])

    def end(self) -> None:
        """Let all tasks go on; later ones do not pause."""
        (self._folder / "go").touch()

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it into the tasks of `Topic`, with slots and without."""
        one, more, rows, ended = task.answer, several.answer, *self._steps()

        def answer(slot: Any, saying: Any, name: Any, closed: Any, batches: Any) -> Any:
            try:
                yield from one(slot, saying, name, closed, rows(batches))
            finally:
                ended()

        def answers(share: Any, batches: Any) -> Any:
            try:
                yield from more(share, rows(batches))
            finally:
                ended()

        monkeypatch.setattr(task, "answer", answer)
        monkeypatch.setattr(several, "answer", answers)

    def _steps(self) -> tuple[Callable[[Iterator[Any]], Iterator[Any]], Callable[[], None]]:
        place = str(self._folder)

        def say(what: str) -> None:
            import uuid  # noqa: PLC0415 - runs on executors

            open(f"{place}/{what}-{uuid.uuid4()}", "x").close()  # noqa: PTH123 - as above

        def rows(batches: Iterator[Any]) -> Iterator[Any]:
            import os  # noqa: PLC0415 - as above
            import time  # noqa: PLC0415 - as above

            first = next(batches, None)
            say("came")
            while not os.path.exists(f"{place}/go"):  # noqa: PTH110 - as above
                time.sleep(0.01)
            if first is not None:
                yield first
            yield from batches

        def ended() -> None:
            say("ended")

        return rows, ended


def many(frame: DataFrame, _: Any) -> DataFrame:
    """Return what goes out: each record makes 15,000 rows of 1 kB."""
    told = "topic as source_topic", "partition as source_partition"
    made = frame.selectExpr("*", f"explode(sequence(1, {ROWS // 2})) as number").repartition(4)
    return made.selectExpr("rpad(concat(partition, ' ', number), 1000, 'x') as value", *told)


def without_slots(frame: DataFrame, batch: Any) -> DataFrame:
    """Return what goes out without slots."""
    return many(frame, batch).select("value")


@pytest.mark.parametrize("slots", [1, 2])
def test_a_job_that_is_cancelled_while_its_task_writes_loses_no_row(
    lab: Lab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    """The task sees the end of its input, as if the batch had no more rows; a later run writes all of them once."""
    source, target = topic(2), topic()
    lab.produce_all(source, [(0, "a"), (1, "b")])
    sink, process = Topic(lab.kafka.bootstrap, target, slots=slots), many if slots > 1 else without_slots
    asked: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once", "until": "caught_up"}
    pause = Pause(tmp_path)
    with monkeypatch.context() as patch:
        pause.patch(patch)
        with Running(lab.pipeline(source, attempts=1), lab.spark, process, **asked) as first:
            wait_until(lambda: pause.said("came") > 0, "a task is in the midst of its rows", LIMIT_S)
            lab.spark.sparkContext.cancelAllJobs()
            with pytest.raises(Exception, match="cancel"):
                first.end()
            pause.end()
            wait_until(lambda: pause.said("ended") == pause.said("came"), "the tasks have ended", LIMIT_S)
    lab.pipeline(source, attempts=1).run(lab.spark, process, **asked)
    found = values(lab.kafka.bootstrap, target)
    assert len(found) == len(set(found)) == ROWS
