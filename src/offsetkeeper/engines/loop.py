"""The loop of a run: take the group, plan, process the next batch, pause. Only the ledger decides what is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch, after, counted_after
from offsetkeeper.core.html import html_table
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import RUN, START, Snapshot
from offsetkeeper.core.offsets import OffsetRange, TopicPartition, digest_of
from offsetkeeper.core.pending import Fate
from offsetkeeper.core.plan import Plan, Verdict
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.engines.batches import Batches
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.stop import Stop
from offsetkeeper.engines.workers import check_workers
from offsetkeeper.errors import (
    BrokerUnavailable,
    Fenced,
    OffsetkeeperError,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
    listed,
)
from offsetkeeper.kafka.start_plan import ask_plan, doubtful
from offsetkeeper.kafka.topic_ids import check_cluster
from offsetkeeper.readers.limits import BatchSize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("offsetkeeper")

_QUIET_S = 300.0
Until = Literal["stopped", "caught_up"]
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch, also one that a run before has written and this one has only committed.

    Attributes:
        batch: the batch, with its id and exact ranges.
        seconds: time from the choice of its ranges, or from the start that found it, until the commit was durable.
        left: offsets that are still to read, according to the plan of the batch, or the plan for after a pending one.
    """

    batch: Batch
    seconds: float
    left: int


class Guard(Protocol):
    """Checks a query's checkpoint before the group is taken, and again after."""

    def query(self) -> str | None:
        """Return the id of a query with state, empty if its checkpoint is empty; None for a query without state."""
        ...

    def begins(self) -> bool:
        """Whether the checkpoint has no batch, so that the query begins anew."""
        ...

    def check(self, plan: Plan, then: Snapshot, fate: Fate | None) -> None:
        """Check that the checkpoint matches the ledger.

        Args:
            plan: the plan of the start.
            then: the ledger with the positions, the queries' numbers and the watermark that it has when the query
                starts.
            fate: what becomes of the pending batch; None without one.

        Raises:
            CheckpointMismatch: the checkpoint does not match.
        """
        ...


@dataclass(slots=True)
class Summary:
    """The result of a run: committed batches and offsets, and why the run ended ("caught_up" or "stopped").

    `quarantined` is the number of these offsets that went into the dead letters. `away` has the partitions with a
    position that Kafka did not know at the end, so that nothing of them could be read.
    """

    batches: int = 0
    offsets: int = 0
    quarantined: int = 0
    ended: str = ""
    away: tuple[TopicPartition, ...] = ()

    def _repr_html_(self) -> str:
        columns = ("batches", "offsets", "quarantined", "ended", "away")
        row = (self.batches, self.offsets, self.quarantined, self.ended, listed(self.away, ", "))
        return html_table("run", columns, [row])


@dataclass(slots=True)
class Loop:
    """One run of a pipeline. It ends after a batch if `stop` is set, or if all is read and `until` is "caught_up"."""

    spark: SparkSession
    asked: Run
    ledger: Ledger
    stop: Stop
    until: Until = "stopped"
    on_batch: Callable[[Progress], None] = lambda _: None
    summary: Summary = field(default_factory=Summary)
    batches: Batches = field(init=False)
    size: BatchSize = field(init=False)
    _told: set[Any] = field(default_factory=set)
    _used: float = field(default_factory=environment.monotonic)  # when Spark Connect was last asked in a pause

    def __post_init__(self) -> None:
        """Create the parts that choose and deliver batches."""
        self.batches = Batches(self.spark, self.asked, self.ledger, self.stop, self._plan)
        self.size = BatchSize(self.asked.pace.limits, self._sample)

    def run(self) -> Summary:
        """Take the group, read on from its positions, and release it at the end.

        Raises:
            StartRefused: a partition's position cannot be resumed, and its policy says stop.
            Fenced: another run has taken the group.
            OffsetkeeperError: see the tree in `errors`.
            Exception: the error of the output at its last attempt, with the batch's ranges as a note.
        """
        if self.until not in {"stopped", "caught_up"}:
            raise SettingsError(f"until={self.until!r}: use 'stopped' or 'caught_up'")
        check_workers(self.spark, self.asked.worker_modules, self.asked.worker_variables)
        plan = self.take()
        with self._giving_back():
            self._work(_ends(plan) if self.until == "caught_up" else None)
        release(self.ledger)
        return replace(self.summary, quarantined=self.batches.quarantined, away=self.batches.away)

    def take(self, guard: Guard | None = None) -> Plan:
        """Take the group if its plan allows, deal with a pending batch, store the start positions; return the plan.

        Args:
            guard: the guard of the query; None for a run without a query.

        Raises:
            CheckpointMismatch: the pending batch belongs to another query; or see `Guard`.
            See `run`; the group is released if it was taken.
        """
        self.batches.prepare()
        before = self.ledger.load()
        self._decided(guard)  # before the acquire, so that a refused start fences no run
        self.ledger.acquire(RUN if guard is None else START, self.asked.described, self.asked.partly)
        with self._giving_back():
            fate, query, plan, given = self._decided(guard)
            self.batches.delivery.outputs.tell_left_out(before)
            stood, began = self.ledger.snapshot.positions, environment.monotonic()
            self.batches.take_over(fate)
            committed = self.batches.settle(fate, query)
            if committed is not None:
                self._done(committed, began, plan.unread)
            elif fate is Fate.FINISH and self.ledger.snapshot.pending is not None:
                return plan  # the run is asked to stop: all is left to the next start, also the offsets that are given
            # Finishing took time. What was to be dropped, or was dropped by a reset, may have been counted.
            if fate in {Fate.FINISH, Fate.DROP} or self.ledger.snapshot.positions != stood:
                plan = self._plan(replace(self.ledger.snapshot, given=()), given).check()
            waiting = self.ledger.snapshot.pending
            busy = waiting.partitions if waiting else set()
            places = {tp: at for tp, at in plan.places.items() if tp not in busy}
            given_now = digest_of(self.asked.given)
            self.ledger.place(places, reason="plan", given=given_now, cuts=plan.cuts, mirror=plan.mirror)
        return plan

    def _decided(self, guard: Guard | None) -> tuple[Fate | None, str | None, Plan, Offsets]:
        """Return the fate of the pending batch, the id of the query, the plan for after it, and the offsets it sets.

        It raises the error that forbids a start.
        """
        found = self.ledger.snapshot
        pending = found.pending
        again, given = self._given(guard)
        query = None if guard is None else guard.query()
        fate = self.batches.fate(query, given.keys())
        if pending is not None and fate in {Fate.FINISH, Fate.COUNT}:
            done = after(pending, found.positions), counted_after(pending, found.queries)
            found = replace(found, positions=done[0], queries=done[1], watermark_ms=pending.watermark_ms)
        plan = self._plan(replace(found, given=again), given).check()
        if guard is not None:
            guard.check(plan, replace(found, positions={**found.positions, **plan.places}), fate)
        return fate, query, plan, given

    def _given(self, guard: Guard | None) -> tuple[tuple[str, ...], Offsets]:
        """Return the digests of earlier starts if one had these offsets too, and the offsets that this start sets."""
        given, found = self.asked.given, self.ledger.snapshot
        if digest_of(given) not in found.given or (guard is not None and guard.begins()):
            return (), given  # a new checkpoint is a new word: results are built again from there
        if all(tp in found.positions and found.positions[tp].offset == offset for tp, offset in given.items()):
            return (), {}  # the start that set them died before its first commit
        return found.given, given

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Release the group if the block fails."""
        try:
            yield
        except (StoreUnavailable, OutcomeUnknown):
            raise  # a release would have to wait too: the next run takes the group over
        except BaseException as error:
            release(self.ledger, error)
            raise

    def _work(self, ends: Offsets | None) -> None:
        while not self.stop.is_set():
            began = environment.monotonic()
            plan = self._plan().check()
            self.ledger.place(plan.places, reason="plan", cuts=plan.cuts, mirror=plan.mirror)
            worked = self._next_batch(plan, ends)
            if ends is None:
                self._pause(began, worked=worked)
            elif not worked:
                if self.stop.is_set():
                    break  # asked while Kafka was
                self.summary.ended = "caught_up"
                if self.batches.away:
                    log.warning("caught up but for partitions that Kafka does not know: %s", listed(self.batches.away))
                return
        self.summary.ended = "stopped"

    def _pause(self, began: float, *, worked: bool) -> None:
        """Wait until the next poll of Kafka; do not wait between the pieces of a batch that is cut."""
        pace = self.asked.pace
        seconds = 0 if worked else pace.poll_interval_s
        if pace.interval_s is not None and not self.batches.cuts:
            seconds = began + pace.interval_s - environment.monotonic()
        while seconds > 0 and not self.stop.is_set():
            self.stop.wait(min(seconds, _QUIET_S))
            seconds -= _QUIET_S
            self._keep_session()

    def _keep_session(self) -> None:
        """Use a session of Spark Connect now and then: its server closes one that nobody uses for an hour."""
        now = environment.monotonic()
        if now >= self._used + _QUIET_S and is_connect(self.spark):
            self.spark.conf.get("spark.sql.session.timeZone")  # any request does
            self._used = now

    def _plan(self, ledger: Snapshot | None = None, given: Offsets | None = None) -> Plan:
        """Ask Kafka until it answers, and log new verdicts of partitions."""
        found, asked, doubted = ledger or self.ledger.snapshot, self.asked, self.batches.doubted
        plan = asked.pace.patiently(
            BrokerUnavailable, lambda: ask_plan(asked.cluster, asked.subscription, found, given, doubted)
        )
        self._check_leads(plan)
        stored = {row.topic_partition: row.stored for row in plan.rows if row.stored is not None}
        held = {row.topic_partition: row.bounds for row in plan.rows if row.bounds is not None}
        self.batches.doubted = doubtful(stored, held)
        unusual = {(row.topic_partition, row.verdict) for row in plan.rows if row.verdict is not Verdict.RESUME}
        if not unusual <= self._told or not self._told:
            warns = any(row.lost or row.verdict is Verdict.REMOVED for row in plan.rows if not row.stops)
            log.log(logging.WARNING if warns else logging.INFO, "plan of %s", plan)
        self._told = unusual or {None}
        return plan

    def _check_leads(self, plan: Plan) -> None:
        """Check, before a policy moves positions to another cluster, that who connects now gets there.

        A client that stays connected to the old cluster would take that for the other one, and move the group back.

        Raises:
            RangeGone: the name of the brokers leads elsewhere.
        """
        moving = {row.topic_partition.topic: row for row in plan.rows if row.moves_cluster}
        if moving:
            found = self.asked.pace.patiently(BrokerUnavailable, lambda: self.asked.cluster.anew().describe(moving))
            for name, topic in found.items():
                here = moving[name].bounds
                check_cluster(here and here.cluster_id, topic.cluster_id, moving)

    def _next_batch(self, plan: Plan, ends: Offsets | None) -> bool:
        """Process the next batch of the plan; return False if there is nothing to read."""
        began = environment.monotonic()
        positions = self.ledger.snapshot.positions
        backlogs = {
            tp: min(end, ends.get(tp, 0) if ends is not None else end) - positions[tp].offset
            for tp, end in _ends(plan).items()
        }
        piece = self.batches.next_piece()
        ranges = piece or self._ranges(backlogs, last=ends is not None)
        if not ranges:
            return False
        batch = self.ledger.batch(ranges)
        left = sum(size for size in backlogs.values() if size > 0) - batch.size
        committed = self.batches.process(batch, patient=not piece or batch.size == 1)
        if committed is not None:
            self._done(committed, began, left)
        return True

    def _ranges(self, backlogs: Offsets, *, last: bool) -> tuple[OffsetRange, ...]:
        snapshot = self.ledger.snapshot
        starts = {tp: snapshot.positions[tp].offset for tp in backlogs}
        shares = self.size.shares(backlogs, starts, snapshot.sequence, last=last)
        return tuple(OffsetRange(*tp, starts[tp], starts[tp] + size) for tp, size in shares.items())

    def _sample(self, starts: Offsets) -> Mapping[TopicPartition, tuple[int, int]]:
        return self.asked.pace.patiently(BrokerUnavailable, lambda: self.asked.reader.sample(starts))

    def _done(self, batch: Batch, began: float, left: int) -> None:
        self.summary.batches += 1
        self.summary.offsets += batch.size
        progress = Progress(batch, environment.monotonic() - began, left)
        log.info("batch %s: %d offsets in %.2f s, %d left", batch.id, batch.size, progress.seconds, left)
        self.on_batch(progress)


def release(ledger: Ledger, error: BaseException | None = None, *, rejoin: bool = False) -> None:
    """Release the group if possible.

    Args:
        ledger: ledger of the group.
        error: what ended the run; the history gets its class alone, as its text may have values of records.
        rejoin: whether another process may have written since.
    """
    try:
        if rejoin:
            ledger.join(ledger.owner_id)
        ledger.release(reason="end" if error is None else f"ended by {type(error).__name__}")
    except Fenced:
        pass  # the newer owner has the group
    except OffsetkeeperError as refused:
        log.warning("group %r could not be released; the next run takes it over: %s", ledger.group, refused)


def _ends(plan: Plan) -> dict[TopicPartition, int]:
    return {row.topic_partition: row.bounds.end for row in plan.rows if row.bounds is not None}
