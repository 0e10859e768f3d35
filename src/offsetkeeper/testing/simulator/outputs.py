"""Frames and outputs as models: rows that land whole, in part, twice or late, as those of Spark's tasks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.bounds import NO_LEADER_EPOCHS
from offsetkeeper.core.cluster import cluster_id_of, topic_ids_of
from offsetkeeper.core.mark import OutputMark, together
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import ComputedAgain, MarkMoved, OutcomeUnknown, SinkError
from offsetkeeper.kafka.topic_ids import NO_IDS, check_cluster, check_ids
from offsetkeeper.readers import ConnectorReader, PackedReader
from offsetkeeper.sinks import Joiner, Lander, MarkKey, Seen, Writer
from offsetkeeper.sinks.sink import lost_by_target
from offsetkeeper.sinks.topic.several import may_follow
from offsetkeeper.testing.simulator.kafka import GROUP, ModelCluster
from offsetkeeper.testing.simulator.schedule import GO, Flight, Schedule
from offsetkeeper.testing.simulator.store import Connection, Record, Row

NOTHING_WRITTEN = "it fails before anything is written"
ALL_WRITTEN = "it fails after all is written"
HALF_WRITTEN = "it fails after half is written"
LATE = "it fails, and a task that was given up writes all of it late"
TWICE = "it succeeds, and a speculative task writes all of it late"
POISON = frozenset({(0, 1)})  # partition and offset of what cannot be processed, where there are dead letters
FAULTS = (NOTHING_WRITTEN, ALL_WRITTEN, HALF_WRITTEN, LATE, TWICE)


class PoisonError(Exception):
    """What a user's function raises of a record that it cannot process."""


NEW = "new "
"""Before the name of an output that a redeploy has renamed."""


def known(output: str) -> str:
    """Return the name that the model has for an output, whether or not a redeploy has renamed it."""
    return output.removeprefix(NEW)


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame over ranges of Kafka: read when it is used, each time anew."""

    cluster: ModelCluster
    ranges: tuple[OffsetRange, ...]
    columns: tuple[str, ...] = ("topic", "partition", "offset")
    done: Any = None
    poison: frozenset[tuple[int, int]] = frozenset()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    cluster_id: str | None = None
    leader_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def records(self) -> tuple[Record, ...]:
        """Return the records.

        Raises:
            RangeGone: Kafka has not all of them any more.
            PoisonError: one of them cannot be processed.
        """
        found = self.cluster.read(self.ranges, self.topic_ids, self.cluster_id, self.leader_epochs)
        if any((record[2], record[3]) in self.poison for record in found):
            raise PoisonError("a record cannot be processed")
        if not self.done:
            return found
        return tuple(r for r in found if r[3] >= self.done.get((r[0], r[2]), 0))

    def limit(self, _: int) -> Frame:
        """Return a frame without records."""
        return replace(self, ranges=())

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        """Return whether Kafka holds none of the records."""
        return not self.cluster.read(self.ranges, self.topic_ids, self.cluster_id, self.leader_epochs)

    def persist(self) -> None:
        """Do nothing: what is read twice within a step is the same."""

    def unpersist(self) -> None:
        """Do nothing, as `persist`."""

    @property
    def write(self) -> Frame:
        """Return what writes the frame away, so that Spark has used it."""
        return self

    def format(self, _: str) -> Frame:
        """Go on: see `write`."""
        return self

    def mode(self, _: str) -> Frame:
        """Go on: see `write`."""
        return self

    def save(self) -> None:
        """Read the records."""
        self.records()

    @property
    def sparkSession(self) -> None:  # noqa: N802 - Spark's name
        """Do nothing: Spark is not used."""
        return


class ModelReader:
    """Reads exact ranges of the model of Kafka.

    Args:
        cluster: to read from.
    """

    def __init__(self, cluster: ModelCluster) -> None:
        self._cluster = cluster

    def read(
        self,
        spark: object,  # noqa: ARG002 - the protocol's signature
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str] = NO_IDS,
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,
    ) -> Any:
        """See `Reader.read`: here a frame is read in one step."""
        known = {"topic_ids": topic_ids, "cluster_id": cluster_id, "leader_epochs": leader_epochs}
        return Frame(self._cluster, tuple(ranges), **known)  # type: ignore[arg-type]

    def sample(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
        """See `Reader.sample`: each record has one byte."""
        return dict.fromkeys(offsets, (1, 1))

    def in_any_order(self) -> Any:
        """See `Reader.in_any_order`."""
        return self

    def bare(self) -> Any:
        """See `Reader.bare`."""
        return self

    def for_query(self, spark: object, start: object, connector_began: object) -> Any:  # noqa: ARG002 - as above
        """See `Reader.for_query`."""
        return self

    def stream(self, spark: object, start: Any) -> Any:  # noqa: ARG002 - as above
        """See `Reader.stream`: what a query reads is chosen by the model of Spark."""
        return start


class ModelPackedReader(ModelReader, PackedReader):
    """The same, which queries take for the packed one."""

    worker_modules = ()


class ModelConnectorReader(ModelReader, ConnectorReader):
    """The same, as Spark's connector reads: its consumers ask for no ids."""

    def read(
        self,
        spark: object,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str] = NO_IDS,
        cluster_id: str | None = None,
        leader_epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS,  # noqa: ARG002 - its consumers ignore them
    ) -> Any:
        """See `ConnectorReader.read`."""
        found = self._cluster.client().describe({r.topic for r in ranges})
        check_cluster(cluster_id, cluster_id_of(found), found)
        check_ids(topic_ids, topic_ids_of(found))
        return super().read(spark, ranges)


@dataclass(eq=False)
class ModelOutput:
    """An output apart from the ledger's store.

    Attributes:
        name: of the output.
        schedule: chooses the faults.
        writing: called before each write, with the name and the batch.
        keyed: whether rows lie under the id of their batch, so that a batch that is written twice is there once.
        faults: that a write may have.
        rows: what a user would count, with how often each is there.
        writes_to: the table, if the output tells it.
    """

    name: str
    schedule: Schedule
    writing: Callable[[str, Batch], None]
    keyed: bool = False
    faults: tuple[str, ...] = FAULTS
    rows: dict[Row, int] = field(default_factory=dict)
    writes_to: str = ""

    @property
    def place(self) -> str:
        """See `Sink`."""
        return self.writes_to

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Lander:  # noqa: ARG002 - the protocol's signature
        """See `Sink.prepare`."""
        return Writer(self._write)

    def digest(self) -> int:
        """Return a digest of what is there."""
        return hash(frozenset(self.rows.items()))

    def counted(self) -> Counter[Row]:
        """Return the rows that a user would count."""
        return Counter(self.rows)

    def _write(self, frame: Any, batch: Batch) -> None:
        mode = self.schedule.point(f"writes batch {batch.sequence} into {self.name or 'the output'}", self.faults)
        self.schedule.saw(mode)
        self.writing(self.name, batch)
        rows = [Row(self.name, batch.id, record) for record in frame.records()]
        if mode in {GO, ALL_WRITTEN, TWICE}:
            self._land(rows)
        elif mode == HALF_WRITTEN:
            self._land(rows[: (len(rows) + 1) // 2])
        if mode in {LATE, TWICE}:
            self.schedule.flights.append(Flight(self.name, lambda: self._land(rows), hash(tuple(rows))))
        if mode not in {GO, TWICE}:
            raise SinkError(mode)
        if self.schedule.current is not None:
            self.schedule.current.returned.add((batch.id, self.name))

    def _land(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows[row] = 1 if self.keyed else self.rows.get(row, 0) + 1


AGAIN = "Spark computes a stage again, with other rows"
AWAY = "it is away"
ANSWER_LOST = "the answer is lost"
LANDS_LATE = "the request is held, and no answer comes"


@dataclass(eq=False)
class ModelMarkedOutput(ModelOutput):
    """An output that keeps a mark: rows and mark change in one step, by compare-and-set.

    Attributes:
        marks: beside the tables: outputs of one name share a mark, whatever table they write to.
        backup: rows and mark before the newest batch.
        gone: ids of batches whose rows or void marks are gone: a backup was restored, or the target was made again.
        made: how often the target was made. The mark outlives it, as that of a topic does.
        checked: whether the frame is computed before the run asks whether Spark has computed a stage again.
        landing: called when a mark changes, with the name of the output, and the target that was seen before.
        elsewhere: what the name does not lead to now, with its own mark: rows, mark, `made` and backup.
    """

    checked: ClassVar[bool] = True
    landing: Callable[[str, str], None] = lambda *_: None
    elsewhere: tuple[dict[Row, int], OutputMark | None, int, tuple[dict[Row, int], OutputMark | None]] | None = None
    marks: dict[str, OutputMark | None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    made: int = 1
    backup: tuple[dict[Row, int], OutputMark | None] = field(default_factory=lambda: ({}, None))

    @property
    def mark(self) -> OutputMark | None:
        """The mark of the scenario's group, under the output's first name."""
        return self.marks.get(self.name)

    @mark.setter
    def mark(self, mark: OutputMark | None) -> None:
        self.marks[self.name] = mark

    def prepare(self, store: Store, guarantee: Guarantee) -> Lander:  # noqa: ARG002 - the protocol's signature
        """See `Sink.prepare`."""
        return Lander(self._stage, self._seen, self._land_marked, self.lost, writes_to=self.writes_to)

    def digest(self) -> int:
        """See `ModelOutput.digest`."""
        other = self.elsewhere and (frozenset(self.elsewhere[0].items()), *self.elsewhere[1:3], self.elsewhere[3][1])
        gone = frozenset(self.gone)
        marks = frozenset((name, mark) for name, mark in self.marks.items() if mark is not None)
        return hash((super().digest(), marks, self.made, self.backup[1], gone, other))

    def _stage(self, frame: Any, batch: Batch) -> Any:
        mode = self._point("stages rows for", *((AGAIN,) if self.checked else ()))
        self.writing(self.name, batch)
        rows = [Row(self.name, batch.id, record) for record in frame.records()]
        return self.put(mixed(self.schedule, rows) if mode == AGAIN else rows, batch)

    def _seen(self, key: MarkKey) -> Seen:
        self._point("looks at the mark of")
        found = self.look(key)
        self.schedule.saw(found.mark)
        return found

    def _land_marked(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Any) -> None:
        what = "voids a batch in" if staged is None else "lands a batch in"
        mode = self._point(what, ANSWER_LOST, LANDS_LATE)
        given = self.made, key, seen, mark, staged
        if mode == LANDS_LATE:
            late = Flight(f"{what} {self.name}", partial(self._late, *given), hash((seen.mark, mark, self.made)))
            self.schedule.flights.append(late)
        else:
            fits = self.swap(key, seen, mark, staged)
            self.schedule.saw(fits)
            if not fits:
                raise MarkMoved("the mark has moved")
        if mode != GO:
            raise OutcomeUnknown(mode)
        actor = self.schedule.current
        if actor is not None and staged is not None:
            actor.returned.add((f"{key.group}/{mark.token}/{mark.sequence}", self.name))

    def _late(self, made: int, *given: Any) -> None:
        """Land a request that was held: it is on its way to the target that the name led to when it was sent."""
        there = self.elsewhere is not None and self.made != made
        if there:
            self.lead_elsewhere()
        self.swap(*given)
        if there:
            self.lead_elsewhere()

    def put(self, rows: list[Row], batch: Batch) -> Any:  # noqa: ARG002 - for outputs that are real
        """Stage rows of a batch."""
        return rows

    def look(self, key: MarkKey) -> Seen:
        """Return the mark."""
        return Seen(self.marks.get(key.output), target="" if self.writes_to else str(self.made))

    def swap(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Any) -> bool:
        """Land staged rows and the mark, unless the mark is no longer the one seen; return whether it was."""
        if self.marks.get(key.output) != seen.mark:
            return False
        self.backup = ({**self.rows}, self.mark)
        self.marks[key.output] = mark
        self.landing(self.name, seen.target)
        self._land(staged or ())
        return True

    def restore(self) -> None:
        """Put the backup back."""
        rows, mark = self.backup
        if self.mark is not None and self.mark != mark:
            self.gone.add(f"{GROUP}/{self.mark.token}/{self.mark.sequence}")
        self.mark = mark
        self.gone |= {row.batch for row in self.rows} - {row.batch for row in rows}
        self.rows = {**rows}

    def lost(self, landed: Landed, seen: Seen) -> str:
        """Return why rows that the ledger knows here are gone; see `Lander`."""
        return lost_by_target(landed, seen)

    def remake(self) -> None:
        """Delete the target and make it again, without rows."""
        self.gone |= {row.batch for row in self.rows}
        self.rows, self.made = {}, self.made + 1

    def lead_elsewhere(self) -> None:
        """Let the name lead to another target, which is empty at first; the next call leads back."""
        rows, mark, made, backup = self.elsewhere or ({}, None, self.made + 1, ({}, None))
        self.elsewhere = self.rows, self.mark, self.made, self.backup
        self.gone = (self.gone | _batches(self.rows, self.mark)) - _batches(rows, mark)
        self.rows, self.mark, self.made, self.backup = rows, mark, made, backup

    def _point(self, what: str, *faults: str) -> str:
        mode = self.schedule.point(f"{what} {self.name or 'the output'}", (AWAY, *faults))
        self.schedule.saw(mode)
        if mode == AWAY:
            raise SinkError(mode)
        return mode


def _batches(rows: dict[Row, int], mark: OutputMark | None) -> set[str]:
    """Return the ids of the batches that a target has, or that its mark makes void."""
    marked = set() if mark is None else {f"{GROUP}/{mark.token}/{mark.sequence}"}
    return {row.batch for row in rows} | marked


SLOTS = 2


@dataclass(eq=False)
class ModelSlottedOutput(ModelMarkedOutput):
    """An output with slots by the partition of the record: the first one leads; each changes in a step of its own.

    Attributes:
        slots: their marks.
    """

    checked = False
    slots: list[OutputMark | None] = field(default_factory=lambda: [None] * SLOTS)

    def digest(self) -> int:
        """See `ModelOutput.digest`."""
        return hash((super().digest(), tuple(self.slots)))

    def look(self, key: MarkKey) -> Seen:  # noqa: ARG002 - as in `put`
        """Return the mark of all slots together, and that of the first."""
        return Seen(together(self.slots), self.slots[0], str(self.made))

    def _land_marked(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Any) -> None:
        partly = seen.mark is not None and seen.mark.partly and seen.mark.sequence == mark.sequence
        if not partly:
            self._change(0, mark, staged, lambda: self.slots[0] == seen.handle)
        if staged is None and not partly:
            return
        for number, found in enumerate(self.slots[1:], 1):
            if found is None or found.sequence != mark.sequence or (staged is not None and found != mark):
                self._change(number, mark, staged, partial(self._may_follow, number, mark))
        actor = self.schedule.current
        if actor is not None and staged is not None:
            actor.returned.add((f"{key.group}/{mark.token}/{mark.sequence}", self.name))

    def _may_follow(self, number: int, mark: OutputMark) -> bool:
        found = self.slots[number]
        return may_follow(None if found is None else str(found), mark.sequence)

    def _change(self, number: int, mark: OutputMark, staged: Any, fits: Callable[[], bool]) -> None:
        what = f"{'voids' if staged is None else 'lands'} slot {number} in"
        rows = [row for row in staged or () if row.record[2] % SLOTS == number]

        def swap() -> bool:
            if not fits():
                return False
            self.slots[number] = mark
            self._land(rows)
            return True

        mode = self._point(what, ANSWER_LOST, LANDS_LATE)
        if mode == LANDS_LATE:
            self.schedule.flights.append(Flight(f"{what} {self.name}", swap, hash((number, mark))))
        else:
            done = swap()
            self.schedule.saw(done)
            if not done:
                raise MarkMoved("the mark has moved")
        if mode != GO:
            raise OutcomeUnknown(mode)


@dataclass(eq=False)
class ModelJoiner:
    """An output in the ledger's own store: its rows are committed with the offsets."""

    name: str
    schedule: Schedule

    def prepare(self, store: Store, guarantee: Guarantee) -> Joiner:  # noqa: ARG002 - the protocol's signature
        """See `Sink.prepare`."""
        return Joiner(self._stage)

    def _stage(self, frame: Any, batch: Batch) -> Callable[[Connection], None]:
        mode = self.schedule.point(f"stages rows for {self.name or 'the output'}", (AGAIN,))
        self.schedule.saw(mode)
        rows = [Row(self.name, batch.id, record) for record in frame.records()]
        rows = mixed(self.schedule, rows) if mode == AGAIN else rows

        def finish(connection: Connection) -> None:
            connection.rows += rows

        return finish


def mixed(schedule: Schedule, rows: list[Row]) -> list[Row]:
    """Return rows of two computations: the first one has moved to a task that had written before, so it is lost."""
    if schedule.current is not None:
        schedule.current.mixed = True
    return rows[1:]


@contextmanager
def watched(schedule: Schedule) -> Iterator[Callable[[], None]]:
    """Lend what Spark shows of the block: see `engines.recomputed.watched`."""
    actor = schedule.current
    if actor is not None:
        actor.mixed = False

    def check() -> None:
        if actor is not None and actor.mixed:
            raise ComputedAgain(AGAIN)

    yield check


def spoilt(records: Any, _: Batch) -> Any:
    """Return the frame that a user makes of records, which fails where it has one that cannot be processed."""
    return replace(records, poison=POISON)
