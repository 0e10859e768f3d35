"""One batch through the real ledger into outputs that count: what a lost reply, an outage or a newer run may repeat.

The frames are stand-ins without rows, and the store loses replies on purpose: these schedules are about which output is
called, when, and how often, and no server loses exactly the second reply. The same with real rows is in `tests/chaos`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, cast

import pytest

from offsetkeeper.core import environment, topics
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.cluster import TopicDescription
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.settings import Pace, Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.errors import (
    AlreadyCommitted,
    BrokerUnavailable,
    ComputedAgain,
    Fenced,
    MarkMoved,
    OutcomeUnknown,
    SinkError,
    StoreUnavailable,
)
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.sinks import Outputs, Transaction
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting
from unit.test_ledger_faults import RANGES, START, Faulty, Lending, always, away, delayed, overtaken, reply_lost
from unit.test_once import Output


class Frame:
    """What an output is given."""

    def persist(self) -> None:
        """See `DataFrame`."""

    def unpersist(self) -> None:
        """See `DataFrame`."""


class Topics:
    """A cluster that knows the topic's id.

    Attributes:
        away: how many questions get no answer.
    """

    def __init__(self) -> None:
        self.away = 0

    def describe(self, topics: set[str]) -> Mapping[str, TopicDescription]:
        """See `Cluster.describe`."""
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("no broker answers")
        return {topic: cast("Any", type("Described", (), {"topic_id": "id", "cluster_id": None})) for topic in topics}


class Restless(Stop):
    """Waits by the clock of the process, which no signal ends."""

    def wait(self, seconds: float) -> None:
        """Let the clock go on."""
        environment.wait(seconds)


class Scene:
    """A run that has acquired the group.

    Attributes:
        calls: names of the outputs that were called, in order.
        frames: how often the frame of the batch was made.
        retries: whether it was told each time that the batch was tried before.
        failing: what an output does at its next calls, by name.
    """

    def __init__(
        self,
        *names: str,
        guarantee: Guarantee = Guarantee.AT_LEAST_ONCE,
        attempts: int = 3,
        retry_timeout_s: float = 0,
        sinks: Mapping[str, Any] = MappingProxyType({}),
        store: type[Faulty] = Faulty,
    ) -> None:
        self.store, self.topics = store(MemoryStore(f"memory://{secrets.token_hex(8)}")), Topics()
        self.calls: list[str] = []
        self.frames = 0
        self.retries: list[bool] = []
        self.failing: dict[str, list[Callable[[], None]]] = {}
        self.ledger = Ledger(self.store, "g", retry_timeout_s=retry_timeout_s, name="me")
        self.ledger.acquire()
        self.ledger.place(START)
        outputs = Outputs(**{name: self._output(name) for name in names} | {**sinks})
        pace = Pace(attempts=attempts, retry_timeout_s=retry_timeout_s)
        cluster, nothing = cast("Any", self.topics), cast("Any", None)
        reads = Subscription(topics.Topics.of(["t"]))
        asked = Run("g", None, cluster, reads, nothing, outputs, None, guarantee, pace, {})
        self.delivery = Delivery(asked, self.ledger, Restless())
        self.delivery.watch = lambda _: nullcontext(lambda: None)
        self.delivery.outputs.prepare()
        self.batch = self.ledger.batch(RANGES)

    def recompute(self, times: int) -> None:
        """Let Spark compute a stage again in this many attempts: checks that follow raise."""
        left = [ComputedAgain("stage 3 has attempt 1")] * times

        def check() -> None:
            if left:
                raise left.pop()

        self.delivery.watch = lambda _: nullcontext(check)

    def deliver(self) -> bool:
        """Deliver the batch."""
        with no_waiting():
            return self.delivery.deliver(self.batch, self._records)

    def events(self) -> list[str]:
        """Return the history, oldest first, without the start."""
        return [entry.event for entry in reversed(self.store.history("g"))][2:]

    def rival(self) -> None:
        """Let a newer run take the group, do the batch, and end."""
        newer = Ledger(self.store.store, "g", name="rival")
        newer.acquire()
        newer.commit(newer.batch(RANGES))
        newer.release()

    def _records(self, batch: Batch) -> Any:
        self.frames += 1
        self.retries.append(batch.retry)
        return Frame()

    def _output(self, name: str) -> Callable[[Any, Batch], None]:
        def write(_: Any, __: Batch) -> None:
            self.calls.append(name)
            if self.failing.get(name):
                self.failing[name].pop(0)()

        return write


def fail() -> None:
    raise RuntimeError("the output is away")


@pytest.mark.parametrize("outage", [away, reply_lost])
@pytest.mark.parametrize("at", ["mark", "commit"])
def test_an_output_that_returned_is_not_written_again_while_the_store_is_away(at: str, outage: Any) -> None:
    """Nor is its frame made again, and no attempt is spent: with two attempts the second output may still fail once."""
    scene = Scene("one", "two", attempts=2)
    scene.failing["two" if at == "mark" else "one"] = [fail]

    def break_at(event: str) -> Callable[[Faulty, Any], None]:
        def fault(faulty: Faulty, change: Any) -> None:
            if change.entry.event == event:
                faulty.faults.clear()
                outage(faulty, change)
            else:
                faulty.store.apply(change)

        return fault

    scene.store.faults = always(break_at(at))
    assert scene.deliver()
    assert scene.calls == (["one", "two", "two"] if at == "mark" else ["one", "one", "two"])
    assert scene.events() == ["begin", "mark", "commit"]
    assert scene.frames == (3 if at == "mark" else 2)


def test_brokers_that_do_not_answer_after_the_output_make_it_write_nothing_again() -> None:
    scene = Scene("one")
    scene.topics.away = 1
    assert scene.deliver()
    assert (scene.calls, scene.frames) == (["one"], 1)


def test_a_store_that_stays_away_ends_the_run_after_its_attempts() -> None:
    scene = Scene("one", attempts=2)
    scene.store.faults = [lambda faulty, change: faulty.store.apply(change), *always(away)]
    with pytest.raises(StoreUnavailable) as raised:
        scene.deliver()
    assert scene.calls == ["one"]
    assert raised.value.__notes__[0].startswith(f"in batch {scene.batch.id}, attempt 2")


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_an_older_run_whose_output_failed_writes_nothing_once_a_newer_one_has_the_group(names: tuple[str, ...]) -> None:
    scene = Scene(*names)

    def fail_late() -> None:
        scene.rival()
        fail()

    scene.failing[names[-1]] = [fail_late]
    with pytest.raises(Fenced, match=rf"newer run that has ended since; batch {scene.batch.id} of this run must not"):
        scene.deliver()
    assert scene.calls == [*names]


@pytest.mark.parametrize("at", ["begin", "mark"])
def test_a_landed_change_whose_reply_was_lost_lets_nothing_be_written_once_a_newer_run_has_the_group(at: str) -> None:
    scene = Scene("one", "two", retry_timeout_s=5)

    def only(faulty: Faulty, change: Any) -> None:
        if change.entry.event == at:
            overtaken(faulty, change)
        else:
            faulty.store.apply(change)

    scene.store.faults = [only] * 2
    with no_waiting(), pytest.raises(Fenced, match=f"the {at} of this run is stored"):
        scene.deliver()
    assert scene.calls == ([] if at == "begin" else ["one"])


def test_a_commit_that_landed_is_reported_and_the_next_event_is_fenced() -> None:
    scene = Scene("one", retry_timeout_s=5)
    scene.store.faults = [lambda faulty, change: faulty.store.apply(change), overtaken]
    with no_waiting():
        assert scene.deliver()
    scene.batch = scene.ledger.batch([OffsetRange("t", 0, 15, 16)])
    with pytest.raises(Fenced, match="the commit of this run is stored"):
        scene.deliver()
    assert scene.calls == ["one"]


def test_at_most_once_a_run_that_was_taken_over_while_it_committed_writes_nothing() -> None:
    scene = Scene("one", guarantee=Guarantee.AT_MOST_ONCE, retry_timeout_s=5)
    scene.store.faults = [overtaken]
    with no_waiting(), pytest.raises(Fenced, match="the commit of this run is stored"):
        scene.deliver()
    assert scene.calls == []


def cut_off() -> None:
    raise OutcomeUnknown("the table's commit was cut off")


def restarts() -> None:
    raise SinkError("the database restarts")


def wrong() -> None:
    raise ValueError("a wrong value")


@pytest.mark.parametrize("failing", [restarts, cut_off])
def test_an_output_that_is_away_is_waited_for_and_costs_no_attempt(failing: Callable[[], None]) -> None:
    """The history says since when, once; and between two tries the store is asked who has the group."""
    scene = Scene("one", attempts=2, retry_timeout_s=60)
    scene.failing["one"] = [failing] * 8 + [wrong, failing]
    assert scene.deliver()
    assert scene.calls == ["one"] * 11
    told = [entry for entry in scene.ledger.history() if entry.event == "wait"]
    assert [entry.reason.startswith(f"batch {scene.batch.id}: its output is away since ") for entry in told] == [True]


@pytest.mark.parametrize("failing", [restarts, cut_off])
def test_an_output_that_stays_away_ends_the_run_after_the_timeout(failing: Callable[[], None]) -> None:
    """With its own error. Every attempt is tried, however short the timeout is."""
    for timeout_s, tries in ((0, 2), (60, 10)):
        scene = Scene("one", attempts=2, retry_timeout_s=timeout_s)
        scene.failing["one"] = [failing] * 99
        with pytest.raises((SinkError, OutcomeUnknown)) as told:
            scene.deliver()
        assert scene.calls == ["one"] * tries
        assert "its output is away since" in told.value.__notes__[0]


def test_a_run_that_waits_for_long_says_so_again_and_again() -> None:
    """Else nobody could tell it from one that has died since."""
    scene = Scene("one", attempts=2, retry_timeout_s=1000)
    scene.failing["one"] = [restarts] * 200
    with pytest.raises(SinkError):
        scene.deliver()
    told = [entry.reason for entry in scene.ledger.history() if entry.event == "wait"][::-1]
    assert [each.partition("(try ")[2].partition(",")[0] for each in told] == ["2", "34", "64", "94"]  # 10 s each


class Marked(Output):
    """An output that keeps a mark, and has no batch."""

    def __init__(self) -> None:
        super().__init__(*[None] * 100)


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE])
def test_what_spark_computed_again_is_staged_anew_and_spends_no_attempt(guarantee: Guarantee) -> None:
    marked = Marked()
    scene = Scene("one", guarantee=guarantee, attempts=1, sinks={"one": marked})
    scene.recompute(9)
    assert scene.deliver()
    assert (scene.frames, scene.retries) == (10, [False] + [True] * 9)
    assert (marked.asked.count("stage"), marked.asked.count("land")) == (10, 1)
    assert scene.events() == ["begin", "commit"]


def test_an_output_has_all_its_attempts_after_spark_computed_a_stage_again() -> None:
    scene = Scene("one", "two", attempts=2, sinks={"one": Marked()})
    scene.recompute(1)
    scene.failing["two"] = [fail]
    assert scene.deliver()
    assert scene.calls == ["two", "two"]


def test_what_spark_computes_again_for_ever_ends_the_run_and_says_what_to_do() -> None:
    marked = Marked()
    scene = Scene("one", attempts=100, sinks={"one": marked})
    scene.recompute(100)
    with pytest.raises(ComputedAgain, match="stage 3") as raised:
        scene.deliver()
    assert (marked.asked.count("stage"), marked.asked.count("land")) == (10, 0)
    assert "the 10th time for this batch. Find out why Spark loses executors" in raised.value.__notes__[0]
    assert scene.events() == ["begin"]


def lost(name: str = "barrier") -> Callable[[], None]:
    """Return an output that fails as Spark does which has lost a task."""
    barrier = "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent"
    text = {
        "barrier": f"{barrier} failure reason: ExecutorLostFailure (executor 1 exited)",
        "raised": f"{barrier} failure reason: Traceback (most recent call last):\n  ValueError: no number",
        "other": "Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times",
    }[name]

    def fail_so() -> None:
        raise RuntimeError(text)

    return fail_so


def moved() -> None:
    raise MarkMoved("another producer has taken the transactional id")


@pytest.mark.parametrize("why", [lost(), moved])
def test_so_many_interruptions_as_spark_tries_a_task_are_one_attempt(why: Callable[[], None]) -> None:
    scene = Scene("one", attempts=2)
    scene.failing["one"] = [why] * 4 + [why] * 3
    assert scene.deliver()
    assert len(scene.calls) == 8
    assert scene.retries == [False] + [True] * 7
    scene = Scene("one", attempts=2)
    scene.failing["one"] = [why] * 8
    with pytest.raises((RuntimeError, MarkMoved)):
        scene.deliver()
    assert len(scene.calls) == 8


@pytest.mark.parametrize("why", ["raised", "other"])
def test_a_task_that_raises_or_that_spark_has_tried_again_costs_an_attempt(why: str) -> None:
    scene = Scene("one", attempts=1)
    scene.failing["one"] = [lost(why)]
    with pytest.raises(RuntimeError):
        scene.deliver()
    assert scene.calls == ["one"]


def test_at_most_once_nothing_is_tried_again_after_an_interruption() -> None:
    scene = Scene("one", guarantee=Guarantee.AT_MOST_ONCE)
    scene.failing["one"] = [lost()]
    with pytest.raises(RuntimeError):
        scene.deliver()
    assert scene.calls == ["one"]


def test_an_older_run_that_was_interrupted_writes_nothing_once_a_newer_one_has_the_group() -> None:
    scene = Scene("one", attempts=1)

    def overtaken_there() -> None:
        scene.rival()
        moved()

    scene.failing["one"] = [overtaken_there]
    with pytest.raises(Fenced):
        scene.deliver()
    assert scene.calls == ["one"]


def test_what_is_in_an_output_stays_where_the_next_one_is_staged_anew() -> None:
    """A function writes by itself: what Spark computed again for it is not looked at."""
    marked = Marked()
    scene = Scene("one", "two", attempts=1, sinks={"two": marked})
    scene.recompute(1)
    assert scene.deliver()
    assert scene.calls == ["one"]
    assert (marked.asked.count("stage"), marked.asked.count("land")) == (2, 1)


def test_a_function_is_not_called_again_where_spark_computed_a_stage_again() -> None:
    scene = Scene("one", attempts=1)
    scene.recompute(1)
    assert scene.deliver()
    assert scene.calls == ["one"]


class Odd(Exception):
    """The error of a client whose text is a number."""

    def __str__(self) -> str:
        return self.args[0]  # type: ignore[no-any-return]


def odd() -> None:
    raise Odd(503)


def test_an_error_whose_text_cannot_be_made_costs_one_attempt_as_any_other(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene("one", attempts=3)
    scene.failing["one"] = [odd, odd]
    assert scene.deliver()
    assert scene.calls == ["one"] * 3
    assert "attempt 1 of 3 failed: <the text of Odd cannot be made>" in caplog.messages[0]
    scene = Scene("one", attempts=2)
    scene.failing["one"] = [odd, odd]
    with pytest.raises(Odd) as raised:
        scene.deliver()
    assert raised.value.__notes__[0].startswith(f"in batch {scene.batch.id}, attempt 2, ranges:\nt 0 10 15")


def told_by_another_ledger(*_: Any) -> None:
    raise AlreadyCommitted("batch audit/ab/7 is already committed: continue with the next one")


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_what_a_ledger_of_the_user_s_has_committed_is_not_this_batch(guarantee: Guarantee) -> None:
    """The second output did not get the batch, and the next batch was refused."""
    scene = Scene("one", "two", guarantee=guarantee)
    scene.failing["one"] = [told_by_another_ledger]
    with pytest.raises(AlreadyCommitted, match="audit/ab/7"):
        scene.deliver()
    assert scene.events() == (["commit"] if guarantee is Guarantee.AT_MOST_ONCE else ["begin"])
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert scene.deliver()
        assert scene.calls == ["one", "one", "two"]


def test_so_it_is_in_the_store_s_transaction() -> None:
    scene = Scene(sinks={"rows": Transaction(told_by_another_ledger)}, store=Lending)
    with pytest.raises(AlreadyCommitted, match="audit/ab/7"):
        scene.deliver()
    assert scene.events() == []


@pytest.mark.parametrize("reads", range(1, 6))
@pytest.mark.parametrize("names", [(), ("one",)])
def test_a_commit_that_lands_between_any_two_questions_is_found(
    names: tuple[str, ...], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(*names, sinks={"rows": Transaction(lambda *_: None)}, store=Lending)

    def late(faulty: Faulty, change: Any) -> None:
        if change.entry.event != "commit":
            faulty.store.apply(change)
            return
        faulty.faults.clear()
        load, answers = faulty.load, iter(range(1, 99))

        def answer(group: str) -> Any:
            found = load(group)
            if next(answers) == reads:
                faulty.land()
            return found

        monkeypatch.setattr(faulty, "load", answer)
        delayed(faulty, change)

    scene.store.faults = always(late)
    assert scene.deliver()
    assert scene.calls == [*names]
    assert scene.events() == (["begin", "mark", "commit"] if names else ["commit"])
    assert {tp.partition: at.offset for tp, at in scene.store.store.load("g").positions.items()} == {0: 15, 1: 22}
