"""The runs of a pipeline, as actors: by the direct engine, and by a streaming query over a model of Spark.

Before batch N, Spark writes where it ends to `offsets/N`, unless that is there; after it, `commits/N`. A query that
starts runs the newest batch again where `commits` lacks it. State of version N is read by batch N, which writes N + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from offsetkeeper.checkpoint.log_format import (
    OffsetLog,
    dump_commit,
    dump_initial_offsets,
    dump_metadata,
    dump_offset_log,
    dump_offsets,
    kafka_offsets,
)
from offsetkeeper.checkpoint.logs import BatchLog
from offsetkeeper.core.bounds import known_cluster, known_ids
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.engines.checkpoint_match import OnMismatch, batch_ranges
from offsetkeeper.engines.loop import Loop, Until
from offsetkeeper.engines.query import Stream, open_stream
from offsetkeeper.engines.settings import QueryRun, Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.readers import StreamStart
from offsetkeeper.readers.ranges import fair_share
from offsetkeeper.testing.simulator.checkpoint import SparkError
from offsetkeeper.testing.simulator.outputs import Frame, watched
from offsetkeeper.testing.simulator.store import Record

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.world import World

_MOST = 2
_Known = tuple[Mapping[str, str], str | None]  # ids of topics and cluster


class NoWait(Stop):
    """A stop that is never requested and never waits."""

    def wait(self, seconds: float) -> None:
        """See `Stop.wait`."""


@dataclass(frozen=True, slots=True)
class StateFrame(Frame):
    """The result of a query with state: whoever uses it brings the state forward."""

    columns: tuple[str, ...] = ("customer", "total")
    checkpoint: Any = None
    number: int = 0
    uses: list[int] = field(default_factory=list)

    def records(self) -> tuple[Record, ...]:
        """Return the records that this batch adds to the state.

        Raises:
            RangeGone: see `Frame.records`.
            SparkError: the state that the batch begins with is not there.
        """
        self.checkpoint.looked()
        found = Frame.records(self)
        before = self.checkpoint.state.get(self.number)
        if before is None:
            raise SparkError(f"the state has no version {self.number}")
        self.checkpoint.state[self.number + 1] = before + Counter(found)
        self.uses.append(self.number)
        return found


def owner(
    world: World, program: int = 0, pending: Literal["own", "finish", "drop"] = "own", *, renamed: bool = False
) -> None:
    """Run the pipeline of a program until it is caught up; `renamed` with the new names of its outputs."""
    engine = _direct(world, world.run_of(program, pending, renamed=renamed), until="caught_up")
    if engine.batches.quarantine is not None:
        engine.batches.quarantine.letter = lambda records, _batch, **_: records
        engine.batches.quarantine.letters.watch = engine.batches.delivery.watch
    engine.run()


def query(world: World, *, renamed: bool = False) -> None:
    """Run the scenario's streaming query until it is caught up; `renamed` with the new names of its outputs."""
    run = world.run_of(renamed=renamed)
    asked = QueryRun(
        run,
        world.checkpoint.address,
        stateful=world.scenario.stateful,
        on_mismatch=OnMismatch(),
        publish=False,
        open_folder=lambda _spark, _path: world.checkpoint,
        rows_from=_rows_from,
    )
    engine = _direct(world, run)
    stream = open_stream(engine, asked)
    try:
        _run_batches(world, stream, asked)
    except Exception:
        stream.close()
        raise
    stream.close()


def _direct(world: World, run: Run, until: Until = "stopped") -> Loop:
    engine = Loop(None, run, world.ledger(), NoWait(), until=until)  # type: ignore[arg-type] # no Spark
    engine.batches.delivery.watch = lambda _: watched(world.schedule)
    return engine


def _run_batches(world: World, stream: Stream, asked: QueryRun) -> None:
    start: StreamStart = stream.records  # type: ignore[assignment] # the model's frame is where it begins
    checkpoint = world.checkpoint
    if "metadata" not in checkpoint.files:
        checkpoint.write("metadata", dump_metadata(checkpoint.query_id))
    began = {tp: at.offset for tp, at in start.positions.items()}
    ids = (known_ids(start.positions), known_cluster(start.positions.values())) if asked.packed else ({}, None)
    if not asked.packed and "sources/0/0" not in checkpoint.files:
        checkpoint.write("sources/0/0", dump_initial_offsets(began))
    log = BatchLog(checkpoint, start.topics, began, asked.packed)
    newest = log.newest()
    number = 0 if newest is None else newest[0] + newest[1]
    while True:
        if f"offsets/{number}" not in checkpoint.files:
            ends = _ends(world, log, began, number)
            if ends is None:
                return
            checkpoint.write(f"offsets/{number}", dump_offset_log(OffsetLog(1, {}, {"0": dump_offsets(ends)})))
        bounds = log.batch_offsets(number)
        ranges = batch_ranges(bounds.starts, bounds.ends)
        frame = _frame(world, asked, ranges, number, ids)
        stream.write(frame, number)  # type: ignore[arg-type] # the model's frame
        if isinstance(frame, StateFrame) and not frame.uses:
            raise SparkError(f"batch {number} has brought no state forward: its frame was not used")
        checkpoint.write(f"commits/{number}", dump_commit(0))
        number += 1


def _ends(
    world: World, log: BatchLog, began: Mapping[TopicPartition, int], number: int
) -> dict[TopicPartition, int] | None:
    """Return where batch `number` ends, as the source plans it; None where nothing is to be read."""
    if log.packed and not number:
        return {**began}  # the packed source begins with an empty batch, so that where it began is written down
    starts = log.ends(number - 1) if number else kafka_offsets(log.initial()["0"], "")
    found = world.cluster.bounds_of(world.cluster.find(log.topics, {tp.topic for tp in starts}).values())
    new = {tp: here.beginning if log.packed else 0 for tp, here in found.items() if tp not in starts}
    known = starts if log.packed else {**new, **starts}  # the packed source reads a new partition in the next batch
    shares = fair_share({tp: found[tp].end - at for tp, at in known.items() if tp in found}, _MOST, number)
    return {**new, **{tp: at + shares.get(tp, 0) for tp, at in known.items()}} if shares or new else None


def _frame(
    world: World,
    asked: QueryRun,
    ranges: tuple[OffsetRange, ...],
    number: int,
    known: _Known,
) -> Frame:
    frame = Frame(world.cluster, ranges)
    if asked.stateful:
        frame = StateFrame(world.cluster, ranges, checkpoint=world.checkpoint, number=number)
    return replace(frame, topic_ids=known[0], cluster_id=known[1])


def _rows_from(frame: Any, done: Mapping[TopicPartition, int]) -> Any:
    return replace(frame, done={tuple(tp): at for tp, at in done.items()})
