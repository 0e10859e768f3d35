"""The task that writes a topic is lost, or another producer fences its own: that costs the batch no attempt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Policies
from offsetkeeper.errors import Fenced, MarkMoved
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.topic import several, task
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from sinks.topics import values

NewTopic = Callable[..., str]
Act = Callable[[str], None]
ALWAYS = 1000


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> Lab:
    """A lab with its store in a SQLite file."""
    return Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db")


class Middle:
    """What happens in the middle of a task's transaction, when it has handed all its rows to the producer.

    Args:
        folder: of files, of which each says that it has happened once more.
        act: what happens, given the transactional id; it runs in the worker.
        times: in how many tasks it happens.
        where: part of a row's value without which it does not happen; nor with another prefix of the id.
    """

    def __init__(self, folder: Path, act: Act, times: int = 1, where: str = "") -> None:
        self.folder, self._act, self._times, self._where = folder / "middle", act, times, where
        self.folder.mkdir()

    @property
    def happened(self) -> int:
        """How often it has happened."""
        return len([*self.folder.iterdir()])

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it into the tasks of `Topic`, with slots and without."""
        one, more, rows = task.answer, several.answer, self._rows()

        def answer(slot: Any, saying: Any, name: Any, closed: Any, batches: Any) -> Any:
            return one(slot, saying, name, closed, rows(slot.name, batches))

        def answers(share: Any, batches: Any) -> Any:
            from pyspark import BarrierTaskContext  # noqa: PLC0415 - runs on executors

            # Another slot's producer may not be there yet, and would fence whoever is.
            return more(share, rows(share.slots[BarrierTaskContext.get().partitionId()].name, batches))

        monkeypatch.setattr(task, "answer", answer)
        monkeypatch.setattr(several, "answer", answers)

    def _rows(self) -> Callable[[str, Iterator[Any]], Iterator[Any]]:
        place, act, times, where = str(self.folder), self._act, self._times, self._where

        def rows(name: str, batches: Iterator[Any]) -> Iterator[Any]:  # nested: it is pickled by value
            import os  # noqa: PLC0415 - runs on executors

            seen = ""
            for batch in batches:
                seen += str(batch.column("value").to_pylist())
                yield batch
            before = len(os.listdir(place))  # noqa: PTH208 - as above
            if where in seen and before < times and name.startswith("offsetkeeper."):
                open(f"{place}/{before}", "x").close()  # noqa: PTH123 - as above
                act(name)

        return rows


def kill() -> Act:
    """Return what kills the worker of a task, as the system does that has no more memory."""
    number = int(signal.SIGKILL)

    def act(_: str) -> None:
        os.kill(os.getpid(), number)

    return act


def fence(brokers: str, after: str = "") -> Act:
    """Return what an older run does that wakes up, once a file is there, if one is given: it takes the id."""

    def act(name: str) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - runs on executors

        while after and not os.path.exists(after):  # noqa: PTH110 - runs on executors
            time.sleep(0.01)
        older = Producer({"bootstrap.servers": brokers, "transactional.id": name, "log_level": 0})
        older.init_transactions(30)

    return act


def copy(frame: DataFrame, _: Any) -> DataFrame:
    """Return what goes out."""
    told = "topic as source_topic", "partition as source_partition"
    return frame.selectExpr("value", *told)


def one_slot(frame: DataFrame, _: Any) -> DataFrame:
    """Return what goes out without slots."""
    return frame.select("value")


def run(lab: Lab, source: str, sink: Topic, process: Any = one_slot, **settings: Any) -> None:
    """Run until all is done, exactly once, with one attempt."""
    pipeline = lab.pipeline(source, attempts=1, **settings)
    pipeline.run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


@pytest.mark.parametrize("what", ["its worker is killed", "its producer is fenced"])
@pytest.mark.parametrize("slots", [1, 2])
def test_a_task_that_is_interrupted_in_its_transaction_costs_no_attempt(
    lab: Lab,
    topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: str,
    slots: int,
) -> None:
    """With one attempt; and a reader of committed records has each once."""
    source, target = topic(2), topic()
    lab.produce_all(source, [(number % 2, f"order {number}") for number in range(20)])
    act = kill() if "killed" in what else fence(lab.kafka.bootstrap)
    middle = Middle(tmp_path, act, times=2, where="order 0")
    middle.patch(monkeypatch)
    run(lab, source, Topic(lab.kafka.bootstrap, target, slots=slots), copy if slots > 1 else one_slot)
    assert middle.happened == 2
    assert values(lab.kafka.bootstrap, target) == sorted(f"order {number}" for number in range(20))
    assert lab.events() == ["acquire", "place", "begin", "commit", "release"]
    told = [text for text in caplog.messages if "which costs no attempt" in text]
    assert [text.partition("interrupted ")[2][:8] for text in told] == ["(1 of 4)", "(2 of 4)"]


def test_a_slot_that_is_fenced_after_the_first_has_landed_costs_no_attempt(
    lab: Lab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the batch is there then; the next try writes what lacks."""
    source, target = topic(2), topic()
    lab.produce_all(source, [(number % 2, f"order {number}") for number in range(20)])
    once, act, real = str(tmp_path / "once"), fence(lab.kafka.bootstrap), several.answer

    class Late(Turn):
        def write(self, messages: Any, saying: Saying, agree: Callable[[], object] = lambda: None) -> None:
            def agreed() -> None:
                agree()
                if self._slot.name.endswith("/1") and not os.path.exists(once):  # noqa: PTH110 - runs on executors
                    open(once, "x").close()  # noqa: PTH123 - as above
                    act(self._slot.name)

            super().write(messages, saying, agreed)

    def answer(share: Any, batches: Any) -> Any:
        return real(share, batches)

    monkeypatch.setattr(several, "Turn", Late)
    monkeypatch.setattr(several, "answer", answer)
    run(lab, source, Topic(lab.kafka.bootstrap, target, slots=2), copy)
    assert os.path.exists(once)  # noqa: PTH110 - as above
    assert values(lab.kafka.bootstrap, target) == sorted(f"order {number}" for number in range(20))


def test_a_record_that_kills_each_worker_is_an_attempt_after_all_and_goes_into_the_dead_letters(
    lab: Lab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as many tries as Spark gives a task. The record beside it goes where it should."""
    source, target, dead = topic(), topic(), topic()
    lab.produce(source, "good", "bad")
    middle = Middle(tmp_path, kill(), ALWAYS, "bad")
    middle.patch(monkeypatch)
    letters = Topic(lab.kafka.bootstrap, dead, prefix="letters")
    run(
        lab,
        source,
        Topic(lab.kafka.bootstrap, target),
        policies=Policies(poison="quarantine"),
        dead_letters=letters,
    )
    assert middle.happened == 9, "four tries of both records, four of the one that is left, and a trial of it"
    assert values(lab.kafka.bootstrap, target) == ["good"]
    assert values(lab.kafka.bootstrap, dead) == ["bad"]


def test_another_program_that_fences_each_try_ends_the_run(
    lab: Lab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No try of it is for ever. Once the other one is stopped, the batch lands."""
    source, target = topic(), topic()
    lab.produce(source, "a", "b")
    middle, sink = Middle(tmp_path, fence(lab.kafka.bootstrap), ALWAYS), Topic(lab.kafka.bootstrap, target)
    with monkeypatch.context() as patch:
        middle.patch(patch)
        with pytest.raises(MarkMoved, match="another producer has taken the transactional id"):
            run(lab, source, sink)
    assert middle.happened == 4
    assert values(lab.kafka.bootstrap, target) == []
    run(lab, source, sink)
    assert values(lab.kafka.bootstrap, target) == ["a", "b"]


def test_a_run_that_a_newer_one_fences_in_its_transaction_does_not_fence_that_one_in_turn(
    lab: Lab, topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger says whose the group is, before the next try."""
    source, target, go = topic(), topic(), tmp_path / "go"
    lab.produce(source, "a", "b")
    middle, sink = Middle(tmp_path, fence(lab.kafka.bootstrap, str(go))), Topic(lab.kafka.bootstrap, target)
    asked: dict[str, Any] = {"sink": sink, "guarantee": "exactly_once", "until": "caught_up"}
    with monkeypatch.context() as patch:
        middle.patch(patch)
        with Running(lab.pipeline(source, attempts=1), lab.spark, one_slot, **asked) as older:
            wait_until(lambda: middle.happened > 0, "the older run is in its transaction", LIMIT_S)
            with lab.ledger() as newer:
                newer.acquire()
                go.touch()
                with pytest.raises(Fenced):
                    older.end()
    assert middle.happened == 1
    assert values(lab.kafka.bootstrap, target) == []
    run(lab, source, sink)
    assert values(lab.kafka.bootstrap, target) == ["a", "b"]
