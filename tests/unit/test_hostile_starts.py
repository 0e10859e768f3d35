"""Starts over a ledger that something else has touched, with stand-ins for Kafka and Spark: what is written."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from offsetkeeper.core.batch import Batch, QueryBatch
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, TopicDescription
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.plan import Policies
from offsetkeeper.core.topics import Topics
from offsetkeeper.engines.loop import Loop, Progress, Summary
from offsetkeeper.engines.settings import Pace, Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown
from offsetkeeper.kafka.start_plan import Subscription
from offsetkeeper.readers.limits import Limits
from offsetkeeper.sinks import Idempotent, Lander, Outputs, Seen
from offsetkeeper.stores.memory import MemoryStore
from unit.test_ledger_faults import Faulty

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Broker:
    """A cluster with one topic.

    Attributes:
        held: beginning and end of each partition.
        topic_id: of the topic.
    """

    brokers = "broker:9092"

    def __init__(self, *held: tuple[int, int], topic_id: str | None = "id") -> None:
        self.held_now = dict(enumerate(held))
        self.topic_id = topic_id

    def describe(self, topics: Any) -> dict[str, TopicDescription]:
        """See `Cluster.describe`."""
        return {name: TopicDescription(name, self.topic_id, tuple(self.held_now)) for name in topics}

    def bounds(self, tps: Any, **_: Any) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds`."""
        return {tp: Bounds(*self.held_now[tp.partition]) for tp in tps}

    find = Cluster.find
    bounds_of_topics = Cluster.bounds_of_topics
    bounds_of = Cluster.bounds_of
    with_open_transactions = Cluster.with_open_transactions
    with_cuts = Cluster.with_cuts


class Frame:
    """What an output is given: ranges in place of rows."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        self.ranges = ranges

    def persist(self) -> None:
        """See `DataFrame`."""

    def unpersist(self) -> None:
        """See `DataFrame`."""


class Reader:
    """Reads nothing."""

    def read(self, _: Any, ranges: tuple[OffsetRange, ...], *__: object) -> Any:
        """See `Reader.read`."""
        return Frame(ranges)


class Restless(Stop):
    """Waits for nothing."""

    def wait(self, seconds: float) -> None:
        """Return at once."""


class Scene:
    """A group, its store, a broker, and outputs.

    Attributes:
        written: output, id and ranges of each write, in order.
        meanwhile: what an output does at its next calls.
    """

    def __init__(self, broker: Broker) -> None:
        self.store, self.broker = Faulty(MemoryStore(f"memory://{secrets.token_hex(8)}")), broker
        self.written: list[tuple[str, str, tuple[OffsetRange, ...]]] = []
        self.meanwhile: list[Callable[[], None]] = []

    def run(self, *names: str, guarantee: Guarantee = Guarantee.EXACTLY_ONCE, attempts: int = 1, **how: Any) -> Summary:
        """Run until all is read, and return the summary; `names` are those of `rows`, or `outputs` are given."""
        outputs = how.pop("outputs", None) or Outputs(**{name: Idempotent(self._output(name)) for name in names})
        ledger = Ledger(self.store, "g", retry_timeout_s=0, name="run")
        pace = Pace(Limits(max_records=how.pop("limit", None)), attempts=attempts, retry_timeout_s=0)
        topics = Subscription(Topics.of(["t"]), policies=how.pop("policies", Policies()))
        cluster, reader, process = cast("Any", self.broker), cast("Any", Reader()), how.pop("process", None)
        asked = Run("g", None, cluster, topics, reader, outputs, process, guarantee, pace, how.pop("given", {}))
        return Loop(cast("Any", None), asked, ledger, how.pop("stop", Restless()), "caught_up", **how).run()

    def rows(self, output: str) -> list[tuple[int, int]]:
        """Return partition and offset of what the output has, which keeps one copy for each id."""
        kept = {batch: ranges for name, batch, ranges in self.written if name == output}
        return sorted((r.partition, o) for ranges in kept.values() for r in ranges for o in range(r.start, r.end))

    def _output(self, name: str) -> Callable[[Any, Batch], None]:
        def write(frame: Any, batch: Batch) -> None:
            self.written.append((name, batch.id, frame.ranges))
            if self.meanwhile:
                self.meanwhile.pop(0)()

        return write


def fail() -> None:
    raise RuntimeError("dead")


@pytest.mark.parametrize("guarantee", [Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE])
def test_a_position_edited_from_outside_while_a_batch_is_pending_stops_no_start_for_ever(guarantee: Guarantee) -> None:
    """The edit stops the run, as docs/stores.md says. No later start may write before it finds the edit."""
    scene = Scene(Broker((0, 5)))

    def edit() -> None:
        cast("MemoryStore", scene.store.store).memory.positions["g"][A] = Position(3, "id")

    scene.meanwhile = [edit]
    with pytest.raises(OffsetkeeperError):
        scene.run("a", guarantee=guarantee)
    assert len(scene.written) == 1
    for _ in range(2):
        try:
            scene.run("a", guarantee=guarantee)
        except OffsetkeeperError as error:
            assert "pending='drop'" in str(error), f"names no way on: {error}"  # noqa: PT017
            assert len(scene.written) == 1, "each start writes once more"


def test_a_pending_batch_whose_position_was_deleted_from_outside_is_no_key_error() -> None:
    scene = Scene(Broker((0, 5)))
    scene.meanwhile = [fail]
    with pytest.raises(RuntimeError):
        scene.run("a")
    del cast("MemoryStore", scene.store.store).memory.positions["g"][A]
    with pytest.raises(OffsetkeeperError, match="pending='drop'"):
        scene.run("a")


def test_a_batch_that_all_outputs_have_is_committed_though_kafka_has_lost_it_meanwhile() -> None:
    """Nothing is left to be read: only the commit was refused for a moment."""
    scene = Scene(Broker((0, 5)))

    def commit_once_away(faulty: Faulty, change: Any) -> None:
        if change.entry.event != "commit":
            faulty.store.apply(change)
            faulty.faults.append(commit_once_away)
            return
        scene.broker.held_now[0] = (2, 5)
        raise OutcomeUnknown("the store is away")

    scene.store.faults = [commit_once_away]
    scene.run("a", attempts=3, policies=Policies(below_beginning="beginning"))
    assert scene.store.load("g").pending is None
    assert scene.rows("a") == [(0, offset) for offset in range(5)]


def test_a_commit_that_has_landed_is_not_reported_as_a_batch_to_be_removed_from_the_outputs() -> None:
    """Its reply was lost; then retention takes what it has read."""
    scene = Scene(Broker((0, 5)))

    def reply_lost(faulty: Faulty, change: Any) -> None:
        faulty.store.apply(change)
        if change.entry.event != "commit":
            faulty.faults.append(reply_lost)
            return
        scene.broker.held_now[0] = (2, 5)
        raise OutcomeUnknown("the reply was lost")

    scene.store.faults = [reply_lost]
    scene.run("a", attempts=3, policies=Policies(below_beginning="beginning"))
    assert scene.rows("a") == [(0, offset) for offset in range(5)]


def test_a_broker_that_tells_no_topic_ids_for_now_stops_no_batch() -> None:
    """The plan takes an id that is not told for unknown; so must the look before the commit."""
    scene = Scene(Broker((0, 5)))
    scene.run("a")
    scene.broker.topic_id = None
    scene.broker.held_now[0] = (0, 6)
    scene.run("a")
    assert scene.rows("a") == [(0, offset) for offset in range(6)]


class Waits:
    """A guard of a query with state that runs the pending batch again."""

    def query(self) -> str:
        """See `Guard.query`."""
        return QUERY

    def begins(self) -> bool:
        """See `Guard.begins`."""
        return False

    def check(self, plan: Any, then: Any, fate: Any) -> None:
        """See `Guard.check`."""


QUERY = "00000000-0000-4000-8000-000000000001"


def test_a_topic_id_that_is_told_only_now_keeps_no_query_from_its_pending_batch() -> None:
    """As where a hole was followed into a partition that the ledger did not know, or brokers were upgraded."""
    scene = Scene(Broker((0, 5)))
    ledger = Ledger(scene.store, "g", retry_timeout_s=0)
    ledger.acquire()
    ledger.place({A: Position(0)}, queries={QUERY: 0})
    ledger.begin(ledger.batch([OffsetRange("t", 0, 0, 5)], QueryBatch(QUERY, 0)))
    ledger.release()
    asked = Run(
        "g",
        None,
        cast("Any", scene.broker),
        Subscription(Topics.of(["t"])),
        cast("Any", Reader()),
        Outputs(a=Idempotent(scene._output("a"))),
        None,
        Guarantee.EXACTLY_ONCE,
        Pace(attempts=1, retry_timeout_s=0),
        {},
    )
    direct = Loop(cast("Any", None), asked, Ledger(scene.store, "g", retry_timeout_s=0), Restless())
    direct.take(cast("Any", Waits()))


class Kept:
    """An output that keeps its mark.

    Attributes:
        rows: the ranges that it has.
        mark: its mark.
        then: what happens right after the next landing.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self.rows: list[OffsetRange] = []
        self.mark: OutputMark | None = None
        self.then = [then]

    def prepare(self, _store: object, _guarantee: object) -> Lander:
        """See `Sink.prepare`."""

        def land(_key: object, _seen: object, mark: OutputMark, staged: Any) -> None:
            self.mark = mark
            self.rows += staged or ()
            if self.then:
                self.then.pop()()

        return Lander(lambda frame, _: cast("Any", frame).ranges, lambda _: Seen(self.mark), land)


FIVE = OffsetRange("t", 0, 0, 5)


@pytest.mark.parametrize("guarantee", [Guarantee.AT_MOST_ONCE, Guarantee.EXACTLY_ONCE])
def test_a_batch_that_a_start_counts_as_done_is_told_as_each_other_one(guarantee: Guarantee) -> None:
    """Who begins something after each batch would else miss the one in which a run died."""
    scene, output, told = Scene(Broker((0, 5))), Kept(fail), list[Progress]()
    scene.meanwhile = [fail]
    at_most = guarantee is Guarantee.AT_MOST_ONCE
    begin = Guarantee.AT_LEAST_ONCE if at_most else guarantee
    how: dict[str, Any] = {} if at_most else {"outputs": Outputs(a=output)}
    with pytest.raises(RuntimeError):
        scene.run("a", guarantee=begin, **how)
    pending = scene.store.load("g").pending
    summary = scene.run("a", guarantee=guarantee, on_batch=told.append, **how)
    assert pending is not None
    assert [(each.batch.id, each.batch.ranges, each.left) for each in told] == [(pending.id, (FIVE,), 0)]
    assert summary == Summary(batches=1, offsets=5, ended="caught_up")
    assert output.rows == ([] if at_most else [FIVE])


def test_so_is_one_that_was_to_be_dropped_and_turns_out_to_be_there() -> None:
    scene, told = Scene(Broker((0, 5))), list[Progress]()

    def lose() -> None:
        scene.broker.held_now[0] = (5, 7)
        fail()

    output = Kept(lose)
    policies = Policies(below_beginning="beginning")
    summary = scene.run(outputs=Outputs(a=output), attempts=2, policies=policies, on_batch=told.append)
    assert [each.batch.ranges for each in told] == [(FIVE,)]
    assert (summary.batches, summary.offsets) == (1, 5)
    assert output.rows == [FIVE]


def test_a_batch_that_is_dropped_at_a_start_is_none_that_is_done() -> None:
    """Also where somebody has moved its position."""
    scene, told = Scene(Broker((0, 5))), list[Progress]()
    scene.meanwhile = [fail]
    with pytest.raises(RuntimeError):
        scene.run("a")
    cast("MemoryStore", scene.store.store).memory.positions["g"][A] = Position(5, "id")
    summary = scene.run("a", policies=Policies(pending="drop"), on_batch=told.append)
    assert (told, summary.batches, summary.offsets) == ([], 0, 0)


def test_a_run_that_is_asked_to_stop_while_it_asks_kafka_has_stopped() -> None:
    """It is not caught up: a supervisor that sends SIGTERM reads why it ended."""
    scene, stop, questions = Scene(Broker((0, 5))), Restless(), count()
    scene.run("a")
    describe, last = scene.broker.describe, -1

    def asked(topics: Any) -> Any:
        if next(questions) == last:
            stop.set()
        return describe(topics)

    scene.broker.describe = asked  # type: ignore[method-assign]
    assert scene.run("a", stop=stop).ended == "caught_up"
    before = next(questions)
    last = 2 * before
    assert scene.run("a", stop=stop).ended == "stopped"
    assert next(questions) == last + 1
