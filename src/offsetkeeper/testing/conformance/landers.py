"""What holds for every output that keeps a mark, on the real thing: each batch is in it once, or never."""
# ruff: noqa: S101, S106 - no token is a password; asserting is what a suite does

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import BatchVoid, MarkAhead, MarkBehind, MarkMismatch, MarkMoved, OutcomeUnknown, SinkError
from offsetkeeper.sinks import Lander, MarkKey, Seen, Sink
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.sink import lost_by_mark
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.medium import THOROUGH
from offsetkeeper.testing.conformance.restored import Restored, each
from offsetkeeper.testing.simulator.explore import wander
from offsetkeeper.testing.simulator.outputs import ModelMarkedOutput
from offsetkeeper.testing.simulator.scenarios import scenarios
from offsetkeeper.testing.simulator.store import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "batch string, topic string, partition int, offset bigint"
Record = tuple[str, str, int, int]
_CASTS = ("three owners", "operators", "events")
_number = itertools.count()


class LanderConformance:
    """For each `Sink` whose `prepare` returns a `Lander`.

    Attributes:
        histories: random ones that are tried of each kind, on the real output.
    """

    histories = 4

    def make(self, name: str) -> None:
        """Make an empty output of that name, which is a word of ASCII letters and digits."""
        raise NotImplementedError

    def open(self, name: str) -> Sink:
        """Return a sink on that output, as a program of its own opens it."""
        raise NotImplementedError

    def read(self, name: str) -> Iterable[Record]:
        """Return the rows that another program finds there, in any order, in the columns of `SCHEMA`."""
        raise NotImplementedError

    def frame(self, spark: SparkSession, rows: Sequence[Record]) -> DataFrame:
        """Return a frame for this sink that holds the rows."""
        return spark.createDataFrame(list(rows), SCHEMA)

    @pytest.fixture
    def output(self) -> str:
        """Return the name of an output that is empty."""
        return self._made()

    @pytest.fixture
    def writes(self, spark: SparkSession) -> Callable[[Once, Batch], object]:
        """Return what writes the records of a batch."""
        return lambda once, batch: once.write(self.frame(spark, records(batch)), batch)

    def once(self, output: str, name: str = "", change: Callable[[Lander], Lander] = lambda it: it) -> Once:
        """Return the rule over a sink that is opened anew; `change` puts something in between."""
        way = self.open(output).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Lander)
        return Once(change(way), name)

    def test_a_batch_that_is_written_again_is_there_once(self, output: str, writes: Any) -> None:
        """By a program that is started anew each time."""
        first, second = batch_of(1), batch_of(2)
        for batch in (first, first, second, second):
            writes(self.once(output), batch)
            assert self._has(output, batch)
        assert self._rows(output) == Counter(records(first) + records(second))

    def test_an_output_without_a_mark_has_none(self, output: str) -> None:
        """As before the first batch."""
        assert self.once(output).mark("billing") is None

    def test_a_batch_without_rows_moves_the_mark(self, spark: SparkSession, output: str, writes: Any) -> None:
        """So the next one finds the mark of the one before."""
        empty = batch_of(1)
        self.once(output).write(self.frame(spark, records(batch_of(2))).where("false"), empty)
        assert self._has(output, empty)
        writes(self.once(output), batch_of(2))
        assert self._rows(output) == Counter(records(batch_of(2)))

    def test_a_lost_answer_is_looked_up(self, output: str, writes: Any) -> None:
        """The rows are written, but the answer was lost."""
        writes(self.once(output, change=answer_lost), batch_of(1))
        assert self._rows(output) == Counter(records(batch_of(1)))

    def test_a_lost_request_is_told_as_unknown_and_may_be_sent_again(self, output: str, writes: Any) -> None:
        """The rows are not written, and the answer was lost."""
        with pytest.raises(OutcomeUnknown):
            writes(self.once(output, change=request_lost), batch_of(1))
        assert not self._rows(output)
        writes(self.once(output), batch_of(1))
        assert self._rows(output) == Counter(records(batch_of(1)))

    def test_a_batch_that_is_dropped_can_never_land(self, output: str, writes: Any) -> None:
        """However often it is dropped."""
        writes(self.once(output), batch_of(1))
        dropped = batch_of(2)
        for _ in range(2):
            assert self.once(output).make_void(dropped).landing is Landing.VOID
        with pytest.raises(BatchVoid):
            writes(self.once(output), dropped)
        writes(self.once(output), batch_of(3))
        assert self.once(output).make_void(dropped).landing is Landing.PASSED
        assert self._rows(output) == Counter(records(batch_of(1)) + records(batch_of(3)))

    def test_a_batch_that_is_there_cannot_be_dropped(self, output: str, writes: Any) -> None:
        """The run that drops it learns this."""
        writes(self.once(output), batch_of(1))
        assert self.once(output).make_void(batch_of(1)).landing is Landing.LANDED
        assert self.once(output).make_void(replace(batch_of(1), token="other")).landing is Landing.OTHER
        assert self._rows(output) == Counter(records(batch_of(1)))

    def test_a_batch_in_another_target_with_the_same_mark_is_told(self, output: str, writes: Any) -> None:
        """As of another program that has taken the batch over."""

        def at(target: str) -> Once:
            return self.once(output, change=lambda way: replace(way, writes_to=target))

        writes(at("here"), batch_of(1))
        writes(at("here"), batch_of(1))
        with pytest.raises(MarkMismatch, match="another target"):
            writes(at("there"), batch_of(1))
        assert at("there").make_void(batch_of(1)).landing is Landing.ELSEWHERE
        assert self._rows(output) == Counter(records(batch_of(1)))
        writes(at("there"), batch_of(2))
        assert self._rows(output) == Counter(records(batch_of(1)) + records(batch_of(2)))

    def test_another_batch_of_the_same_sequence_is_refused(self, output: str, writes: Any) -> None:
        """As of a ledger that was made anew."""
        writes(self.once(output), batch_of(1))
        with pytest.raises(MarkMismatch):
            writes(self.once(output), replace(batch_of(1), token="other"))
        assert self._rows(output) == Counter(records(batch_of(1)))

    @pytest.mark.parametrize("meanwhile", ["nothing", "same", "same and next", "void", "void and next"])
    @pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
    def test_an_older_run_that_stalls_before_it_lands_changes_nothing(
        self, output: str, writes: Any, meanwhile: str, *, first: bool
    ) -> None:
        """It has looked at the mark and staged its rows; then a newer one lands the batch, or drops it."""
        before = [] if first else [batch_of(1)]
        for batch in before:
            writes(self.once(output), batch)
        mine, following = batch_of(2), batch_of(3)
        told: dict[str, type[Exception] | None] = {
            "nothing": None,
            "same": None,
            "same and next": MarkAhead,
            "void": BatchVoid,
            "void and next": MarkAhead,
        }

        def newer() -> None:
            if meanwhile.startswith("same"):
                writes(self.once(output), mine)
            elif meanwhile.startswith("void"):
                self.once(output).make_void(mine)
            if meanwhile.endswith("next"):
                writes(self.once(output), following)

        stalled = self.once(output, change=lambda lander: replace(lander, land=_after(newer, lander.land)))
        error = told[meanwhile]
        if error is None:
            writes(stalled, mine)
        else:
            with pytest.raises(error):
                writes(stalled, mine)
        there = [*before, *([] if meanwhile.startswith("void") else [mine])]
        there += [following] if meanwhile.endswith("next") else []
        assert self._rows(output) == Counter(row for batch in there for row in records(batch))
        writes(self.once(output), batch_of(4))

    def test_what_was_seen_before_another_change_is_refused(self, spark: SparkSession, output: str) -> None:
        """Of two that have seen the same mark, one lands, whichever batch it brings."""
        way, key = self.once(output).lander, MarkKey("billing", "")
        stale = self.once(output).lander
        old, mine = stale.seen(key), batch_of(2)
        staged = stale.stage(self.frame(spark, records(mine)), mine)
        way.land(key, way.seen(key), OutputMark.of(mine, void=True), None)
        with pytest.raises(MarkMoved):
            stale.land(key, old, OutputMark.of(mine), staged)
        assert not self._rows(output)

    def test_of_two_that_land_at_the_same_moment_one_does(self, spark: SparkSession, output: str) -> None:
        """Each with a batch of its own, of the same sequence."""
        batches, key = [batch_of(1), replace(batch_of(1), token="other")], MarkKey("billing", "")
        ready = threading.Barrier(len(batches))

        def land(batch: Batch) -> Batch | None:
            way = self.once(output).lander
            staged = way.stage(self.frame(spark, records(batch)), batch)
            seen = way.seen(key)
            ready.wait(60)
            try:
                way.land(key, seen, OutputMark.of(batch), staged)
            except SinkError:
                return None
            return batch

        with ThreadPoolExecutor(len(batches)) as pool:
            landed = [batch for batch in pool.map(land, batches) if batch is not None]
        assert len(landed) == 1
        assert self._rows(output) == Counter(records(landed[0]))
        assert self._has(output, landed[0])

    def test_outputs_of_two_names_and_groups_keep_a_mark_each(self, output: str, writes: Any) -> None:
        """In one table, or topic. A suite for an output that is of one group alone takes this test out."""
        others = replace(batch_of(1), group="other"), replace(batch_of(1), token="named")
        writes(self.once(output), batch_of(1))
        writes(self.once(output), others[0])
        writes(self.once(output, "audit"), others[1])
        assert self._has(output, others[0])
        assert self._has(output, others[1], "audit")
        assert self._has(output, batch_of(1))
        assert self._rows(output) == Counter(row for batch in (batch_of(1), *others) for row in records(batch))

    @pytest.mark.parametrize("cast", _CASTS)
    def test_random_histories_break_no_promise(self, spark: SparkSession, cast: str) -> None:
        """Three runs of the real engine over the real output, with crashes, lost answers, late requests and resets."""
        for number in range(self.histories * THOROUGH):
            name = self._made()
            scenario = scenarios()[f"exactly once, marked; {cast}"]
            scenario = replace(scenario, outputs={name: "marked"}, marked_output=self._real(spark, name))
            _, failure = wander([scenario], seed=f"{cast} {number}", histories=1)
            assert failure is None, str(failure)

    @pytest.mark.parametrize("made_anew", [False, True], ids=["restored", "made anew"])
    def test_a_ledger_from_a_backup_is_refused_until_adopted(
        self, spark: SparkSession, output: str, *, made_anew: bool
    ) -> None:
        """The output has a later batch than the ledger. Then the positions of the ledger count, as the preview says."""
        runs = Restored(self._real(spark, output))
        empty = runs.world.store.state
        runs.run()
        backup = runs.world.store.state
        runs.produce()
        runs.run()
        assert runs.counted() == each(0, 1)
        runs.world.store.state = empty if made_anew else backup
        command = runs.refused(MarkAhead)
        assert command == ["adopt", "billing", "--sequence", "2"]
        runs.adopt(command)
        runs.produce()
        for _ in range(2):
            runs.run()
            assert runs.counted() == each(0, 1, times=2) | each(*[] if made_anew else [0]) | each(2)

    def test_an_output_from_a_backup_is_refused_until_adopted(self, spark: SparkSession, output: str) -> None:
        """It lacks a batch that the ledger has committed. After a reset to the end of its rows no row is lost."""
        backup = self._made()
        runs, older = Restored(self._real(spark, output)), Restored(self._real(spark, backup))
        older.run()
        runs.run()
        runs.produce()
        runs.run()
        runs.output.real = backup
        assert runs.counted() == each(0)
        command = runs.refused(MarkBehind)
        assert command == ["adopt", "billing", "--sequence", "1"]
        runs.reset(1)
        assert runs.refused(MarkBehind) == command
        runs.adopt(command)
        runs.produce()
        for _ in range(2):
            runs.run()
            assert runs.counted() == each(0, 1, 2)

    def _real(self, spark: SparkSession, place: str) -> Callable[..., RealOutput]:
        """Return what makes the output at a place for a scenario; see `Scenario.marked_output`."""
        return lambda name, *more: RealOutput(name, *more, suite=self, spark=spark, real=place)

    def _made(self) -> str:
        name = f"output{next(_number)}"
        self.make(name)
        return name

    def _has(self, output: str, batch: Batch, name: str = "") -> bool:
        once = self.once(output, name)
        return once.landing(once.mark(batch.group), batch) is Landing.LANDED

    def _rows(self, output: str) -> Counter[Record]:
        return Counter(self.read(output))


@dataclass(eq=False)
class RealOutput(ModelMarkedOutput):
    """A real output among the models of the simulator.

    Attributes:
        suite: makes, opens and reads outputs.
        spark: the session.
        real: the suite's name of the output that holds the rows now.
    """

    suite: LanderConformance = field(kw_only=True)
    spark: SparkSession = field(kw_only=True)
    real: str = field(kw_only=True)

    def __post_init__(self) -> None:
        """Open the output, as each of the scenario's runs would."""
        self._landers: dict[tuple[str, str], Lander] = {}

    def counted(self) -> Counter[Row]:
        """See `ModelOutput.counted`."""
        with environment.using(environment.Environment()):
            return Counter(_row(self.name, *record) for record in self.suite.read(self.real))

    def put(self, rows: list[Row], batch: Batch) -> Any:
        """See `ModelMarkedOutput.put`."""
        with environment.using(environment.Environment()):
            frame = self.suite.frame(self.spark, [_record(row) for row in rows])
            return self._lander().stage(frame, batch)

    def look(self, key: MarkKey) -> Seen:
        """See `ModelMarkedOutput.look`."""
        with environment.using(environment.Environment()):
            return self._lander().seen(key)

    def lost(self, landed: Landed, seen: Seen) -> str:
        """See `ModelMarkedOutput.lost`: the histories know which rows should be there, by the mark alone."""
        return lost_by_mark(landed, seen)

    def swap(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Any) -> bool:
        """See `ModelMarkedOutput.swap`."""
        with environment.using(environment.Environment()):
            try:
                self._lander().land(key, seen, mark, staged)
            except MarkMoved:
                return False
            return True

    def _lander(self) -> Lander:
        """Return the lander of the current run: each has its own."""
        who = self.schedule.current.name if self.schedule.current else "", self.real
        if who not in self._landers:
            self._landers[who] = self.suite.once(self.real).lander
        return self._landers[who]


def batch_of(sequence: int) -> Batch:
    """Return a batch of three records of two partitions."""
    at = 10 * sequence
    ranges = (OffsetRange("orders", 0, at, at + 2), OffsetRange("orders", 1, at, at + 1))
    return Batch("billing", f"token{sequence}", sequence, ranges)


def records(batch: Batch) -> list[Record]:
    """Return a row for each record of a batch."""
    return [(batch.id, r.topic, r.partition, at) for r in batch.ranges for at in range(r.start, r.end)]


def answer_lost(lander: Lander) -> Lander:
    """Return the lander with its answers lost."""

    def land(*arguments: Any) -> None:
        lander.land(*arguments)
        raise OutcomeUnknown("the answer is lost")

    return replace(lander, land=land)


def request_lost(lander: Lander) -> Lander:
    """Return the lander with its requests lost."""

    def land(*_: Any) -> None:
        raise OutcomeUnknown("the request is lost")

    return replace(lander, land=land)


def _after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        first()
        return then(*arguments)

    return call


def _record(row: Row) -> Record:
    topic, topic_id, partition, offset = row.record
    return row.batch, f"{topic}.{topic_id}", partition, offset


def _row(output: str, batch: str, topic: str, partition: int, offset: int) -> Row:
    name, _, topic_id = topic.rpartition(".")
    return Row(output, batch, (name, topic_id, partition, offset))
