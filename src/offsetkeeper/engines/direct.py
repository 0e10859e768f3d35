"""The direct engine: plan, read exactly these ranges, process, commit. Only the ledger decides what is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from offsetkeeper.core import environment
from offsetkeeper.core.batch import DEAD_LETTERS, Batch, Kind, Queries, after, counted_after
from offsetkeeper.core.bounds import known_cluster, known_epochs, known_ids
from offsetkeeper.core.html import html_table
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.life import (
    Fate,
    Situation,
    after_failure,
    at_start,
    check_program,
    check_unsettled,
    dropped_text,
    landed_text,
    when_given_up,
    when_poisoned,
    when_unsettled,
)
from offsetkeeper.core.mark import Landing, named
from offsetkeeper.core.model import Guarantee, Having, Snapshot, unasked
from offsetkeeper.core.offsets import OffsetRange, Positions, TopicPartition, digest_of, topics_of
from offsetkeeper.core.plan import Plan, Verdict
from offsetkeeper.engines.deliver import Delivery, Settled
from offsetkeeper.engines.quarantine import Quarantine, is_of_records, text_of
from offsetkeeper.engines.recomputed import tell_limits
from offsetkeeper.engines.run import Run, Stop
from offsetkeeper.engines.workers import check_workers
from offsetkeeper.errors import (
    BrokerUnavailable,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
    listed,
)
from offsetkeeper.kafka.start_plan import ask_plan, unreadable_ranges
from offsetkeeper.kafka.topic_ids import check_cluster
from offsetkeeper.readers.limits import BatchSize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")

Until = Literal["stopped", "caught_up"]
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch.

    Attributes:
        batch: the batch, with its id and exact ranges.
        seconds: time from the choice of its ranges until the commit was durable.
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

    def check(self, plan: Plan, positions: Positions, queries: Queries, waiting: Batch | None) -> None:
        """Check that the checkpoint matches the ledger.

        Args:
            plan: the plan of the start.
            positions: the ledger's positions when the query starts.
            queries: the ledger's numbers of queries' batches when the query starts.
            waiting: the pending batch, if the query must run it again.

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
class Direct:
    """One run of a pipeline. It ends after a batch if `stop` is set, or if all is read and `until` is "caught_up"."""

    spark: SparkSession
    asked: Run
    ledger: Ledger
    stop: Stop
    until: Until = "stopped"
    on_batch: Callable[[Progress], None] = lambda _: None
    summary: Summary = field(default_factory=Summary)
    delivery: Delivery = field(init=False)
    quarantine: Quarantine | None = field(init=False)
    size: BatchSize = field(init=False)
    _told: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Create the parts that deliver batches."""
        self.delivery = Delivery(self.asked, self.ledger, self.stop)
        cuts = self.asked.dead_letters is not None
        self.quarantine = Quarantine(self.asked, self.ledger, self.stop) if cuts else None
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
        self.delivery.release()
        return self.summary

    def take(self, guard: Guard | None = None) -> Plan:
        """Take the group if its plan allows, deal with a pending batch, store the start positions; return the plan.

        Args:
            guard: the guard of the query; None for a run without a query.

        Raises:
            CheckpointMismatch: the pending batch belongs to another query; or see `Guard`.
            See `run`; the group is released if it was taken.
        """
        self.delivery.prepare()
        if self.asked.guarantee is Guarantee.EXACTLY_ONCE:
            tell_limits(self.spark, self.delivery.prepared)
        if self.quarantine is not None:
            self.quarantine.prepare(self.delivery)
        self.ledger.load()
        self._decided(guard)  # before the acquire, so that a refused start fences no run
        self.ledger.acquire(reason="start")
        with self._giving_back():
            what, plan, given = self._decided(guard)
            stood = self.ledger.snapshot.positions
            if what is not Fate.COUNT or self.asked.guarantee is not Guarantee.AT_MOST_ONCE:  # it only counts
                self._take_over()
            if what in {Fate.FINISH, Fate.WAIT}:
                self._widen()
            self._settle(what, plan, guard)
            # Finishing took time. What was to be dropped, or was dropped by a reset, may have been counted.
            if what in {Fate.FINISH, Fate.DROP} or self.ledger.snapshot.positions != stood:
                plan = self._plan(replace(self.ledger.snapshot, given=""), given).check()
            waiting = self.ledger.snapshot.pending
            busy = waiting.partitions if waiting else set()
            places = {tp: at for tp, at in plan.places.items() if tp not in busy}
            given_now = digest_of(self.asked.given)
            self.ledger.place(places, reason="plan", given=given_now, cuts=plan.cuts, mirror=plan.mirror)
        return plan

    def _decided(self, guard: Guard | None) -> tuple[Fate | None, Plan, Offsets]:
        """Return the fate of the pending batch, the plan for after it, and the offsets by hand that it sets.

        It raises the error that forbids a start.
        """
        pending, positions = self.ledger.snapshot.pending, self.ledger.snapshot.positions
        queries = self.ledger.snapshot.queries
        if pending is not None:
            check_program(self._situation(pending, (), {}))
        unsettled, query = self.ledger.snapshot.unsettled, None if guard is None else guard.query()
        dropped = None if unsettled is None else self._unsettled(unsettled, query, {})
        if dropped is not None:
            check_unsettled(dropped)
        landings = self._landings()
        if dropped is not None:
            when_unsettled(replace(dropped, landings=landings))
        again, given = self._given(guard)
        what = None if pending is None else self._fate(pending, query, landings, given)
        if pending is not None and what in {Fate.FINISH, Fate.COUNT}:
            positions, queries = after(pending, positions), counted_after(pending, queries)
        found = replace(self.ledger.snapshot, positions=positions, given=again)
        plan = self._plan(found, given).check()
        if guard is not None:
            guard.check(plan, {**positions, **plan.places}, queries, pending if what is Fate.WAIT else None)
        return what, plan, given

    def _given(self, guard: Guard | None) -> tuple[str, Offsets]:
        """Return the digest of the offsets if an earlier start had them too, and the offsets that this start sets."""
        given, found = self.asked.given, self.ledger.snapshot
        if not given or found.given != digest_of(given) or (guard is not None and guard.begins()):
            return "", given  # a new checkpoint is a new word: results are built again from there
        if all(tp in found.positions and found.positions[tp].offset == offset for tp, offset in given.items()):
            return "", {}  # the start that set them died before its first commit
        return found.given, given

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Release the group if the block fails."""
        try:
            yield
        except (StoreUnavailable, OutcomeUnknown):
            raise  # a release would have to wait too: the next run takes the group over
        except BaseException:
            self.delivery.release()
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
                self.summary.ended = "caught_up"
                if self.summary.away:
                    log.warning("caught up but for partitions that Kafka does not know: %s", listed(self.summary.away))
                return
        self.summary.ended = "stopped"

    def _pause(self, began: float, *, worked: bool) -> None:
        """Wait until the next poll of Kafka; do not wait between the pieces of a batch that is cut."""
        pace = self.asked.pace
        seconds = 0 if worked else pace.poll_interval_s
        if pace.interval_s is not None and not (self.quarantine and self.quarantine.cuts):
            seconds = began + pace.interval_s - environment.monotonic()
        if seconds > 0:
            self.stop.wait(seconds)

    def _plan(self, ledger: Snapshot | None = None, given: Offsets | None = None) -> Plan:
        """Ask Kafka until it answers, and log new verdicts of partitions."""
        found, asked, away = ledger or self.ledger.snapshot, self.asked, self.summary.away
        plan = self.delivery.patiently(
            BrokerUnavailable, lambda: ask_plan(asked.cluster, asked.subscription, found, given, away)
        )
        self._check_leads(plan)
        self.summary.away = tuple(row.topic_partition for row in plan.rows if row.verdict is Verdict.REMOVED)
        unusual = {(row.topic_partition, row.verdict) for row in plan.rows if row.verdict is not Verdict.RESUME}
        if not unusual <= self._told or not self._told:
            log.info("plan of %s", plan)
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
            found = self.delivery.patiently(BrokerUnavailable, lambda: self.asked.cluster.anew().describe(moving))
            for name, topic in found.items():
                here = moving[name].bounds
                check_cluster(here and here.cluster_id, topic.cluster_id, moving)

    @property
    def _outputs(self) -> list[str]:
        return [*self.delivery.names, *([DEAD_LETTERS] if self.quarantine else [])]

    def _situation(self, batch: Batch, problems: Sequence[str], landings: Mapping[str, Landing]) -> Situation:
        """Return all that decides what becomes of a batch: of the pending one, or of one that is not begun yet."""
        found, asked = self.ledger.snapshot, self.asked
        began = found.pending and found.pending.program
        return Situation(
            found.pending or batch,
            found.positions,
            problems,
            asked.guarantee,
            asked.subscription.policies,
            self._outputs,
            landings,
            joined=self._delivery_of(found.pending or batch).outputs.joiners.keys(),
            begun=found.pending is not None,
            program=asked.program(began.topics) if began else None,
        )

    def _fate(self, pending: Batch, query: str | None, landings: Mapping[str, Landing], given: Offsets) -> Fate:
        found, marked = self._situation(pending, self._problems(pending), landings), self._marked(pending)
        return at_start(replace(found, query=query, marked=marked, given=given.keys()))

    def _unsettled(self, batch: Batch, query: str | None, landings: Mapping[str, Landing]) -> Situation:
        """Return all that decides what becomes of a batch that a reset dropped."""
        program = batch.program and self.asked.program(batch.program.topics)
        return replace(
            self._situation(batch, (), landings), batch=batch, query=query, marked=self._marked(batch), program=program
        )

    def _marked(self, batch: Batch) -> Collection[str]:
        """Return the outputs of the program that keep marks, of those that a batch goes into."""
        return self._delivery_of(batch).outputs.once.keys()

    def _anew(self) -> bool:
        """Return whether the pending batch is to be finished in other outputs than those that it was begun for."""
        pending = self.ledger.snapshot.pending
        return pending is not None and self._situation(pending, (), {}).anew

    def _take_over(self) -> None:
        """Begin the pending batch again for this program, if it is to be finished in other outputs than before.

        From then on it is this program's in the ledger too. A restart of this program goes on with it. A start of the
        program that began it is refused.
        """
        pending = self.ledger.snapshot.pending
        if pending is not None and self._anew():
            landed = {name: last for each in self._deliveries for name, last in each.landed_before(pending).items()}
            program = self.asked.program(topics_of(self.ledger.snapshot.positions))
            why = "pending='finish': another program takes the batch over"
            self.ledger.begin(pending, tuple(self._marked(pending)), landed, program, why)

    def _widen(self) -> None:
        """Note in the ledger the outputs that the program has beside those that the pending batch was begun for.

        They get the batch too. The next start finds them, also if it has other names for them.
        """
        pending = self.ledger.snapshot.pending
        if pending is None or pending.program is None or pending.kind is Kind.DEAD_LETTERS:
            return
        program = pending.program.widened(self.asked.program(()))
        if program != pending.program:
            self.ledger.begin(pending, program=program, reason="it also goes into outputs that a redeploy has added")

    def _problems(self, batch: Batch) -> list[str]:
        """Ask Kafka which ranges of a batch cannot be read again."""
        cluster, positions, away = self.asked.cluster, self.ledger.snapshot.positions, self.summary.away
        return self.delivery.patiently(BrokerUnavailable, lambda: unreadable_ranges(cluster, batch, positions, away))

    def _settle(self, what: Fate | None, plan: Plan, guard: Guard | None) -> None:
        """Settle a batch that a reset dropped; finish, count or drop the pending batch, or leave it to its query.

        Args:
            what: the fate of the pending batch.
            plan: the plan for after it.
            guard: the guard of the query. What one with state has read, its checkpoint says, and no output.
        """
        pending, unsettled = self.ledger.snapshot.pending, self.ledger.snapshot.unsettled
        if unsettled is not None:
            found = self._unsettled(unsettled, None if guard is None else guard.query(), {})
            landings, targets = Settled({}, {}) if found.astray else self._delivery_of(unsettled).settle(unsettled)
            found = replace(found, landings=landings)
            told = landed_text(found)
            log.warning("batch %s was dropped by a reset: %s:\n%s", unsettled.id, told, unsettled.lines())
            counts = when_unsettled(found) is Fate.COUNT
            held = Having.SOME if found.held is Having.ALL and not counts else found.held
            having = unasked(unsettled) if found.astray else held
            self.ledger.settle(told, targets, having)
        if pending is None:
            return
        if what is Fate.DROP:
            self._drop(pending, self._problems(pending))
        elif what is Fate.COUNT:
            self._delivery_of(pending).count_as_done(pending)
        elif what is Fate.FINISH:
            self._process(replace(pending, retry=True), environment.monotonic(), plan.unread)

    def _drop(self, batch: Batch, problems: Sequence[str] = (), failure: str = "") -> None:
        """Drop a batch; but if all its outputs turn out to have it, commit it.

        Args:
            batch: the batch.
            problems: why Kafka no longer holds its records.
            failure: why it is given up although Kafka holds them.

        Raises:
            StartRefused: some outputs have it, and with exactly once only a policy can allow to drop it.
        """
        pending = self.ledger.snapshot.pending
        landings, targets = Settled({}, {}) if pending is None else self._delivery_of(pending).settle(pending)
        found = replace(self._situation(batch, problems, landings), failure=failure)
        if when_given_up(found) is Fate.COUNT:
            self._delivery_of(found.batch).count_as_done(found.batch)
            return
        reason = dropped_text(found)
        log.warning("batch %s is dropped: %s:\n%s", batch.id, reason, batch.lines())
        if pending is not None:
            self.ledger.abandon(reason, targets, found.held)

    def _may_go_on(self, batch: Batch) -> bool:
        """Whether a failed batch can be read again; if not, drop it if policies and guarantee allow it.

        Raises:
            StartRefused: policies or guarantee do not allow it.
        """
        problems = self._problems(batch)
        found = self._situation(batch, problems, {})
        if problems and found.begun and found.exactly:
            found = replace(found, landings=self._landings())
        fate = after_failure(found)
        if fate is Fate.FINISH:
            return True
        if fate is Fate.DROP:
            self._plan().check()
        self._drop(batch, problems)  # which counts it if all outputs have it
        return False

    def _next_batch(self, plan: Plan, ends: Offsets | None) -> bool:
        """Process the next batch of the plan; return False if there is nothing to read."""
        began = environment.monotonic()
        positions = self.ledger.snapshot.positions
        backlogs = {
            tp: min(end, ends.get(tp, 0) if ends is not None else end) - positions[tp].offset
            for tp, end in _ends(plan).items()
        }
        piece = self.quarantine.next(positions) if self.quarantine else ()
        ranges = piece or self._ranges(backlogs, last=ends is not None)
        if not ranges:
            return False
        batch = self.ledger.batch(ranges)
        left = sum(size for size in backlogs.values() if size > 0) - batch.size
        self._process(batch, began, left, patient=not piece or batch.size == 1)
        return True

    def _ranges(self, backlogs: Offsets, *, last: bool) -> tuple[OffsetRange, ...]:
        snapshot = self.ledger.snapshot
        starts = {tp: snapshot.positions[tp].offset for tp in backlogs}
        shares = self.size.shares(backlogs, starts, snapshot.sequence, last=last)
        return tuple(OffsetRange(*tp, starts[tp], starts[tp] + size) for tp, size in shares.items())

    def _sample(self, starts: Offsets) -> Mapping[TopicPartition, tuple[int, int]]:
        return self.delivery.patiently(BrokerUnavailable, lambda: self.asked.reader.sample(starts))

    def _process(self, batch: Batch, began: float, left: int, *, patient: bool = True) -> None:
        try:
            done = self.delivery.deliver(batch, self._records, lambda: self._may_go_on(batch), patient=patient)
        except Exception as error:
            if self.quarantine is None or self.stop.is_set() or not is_of_records(error):
                raise
            self._isolate(self.quarantine, batch, error, began, left)
            return
        if done:
            if self.quarantine:
                self.quarantine.worked()
            self._done(batch, began, left)

    def _isolate(self, quarantine: Quarantine, batch: Batch, error: Exception, began: float, left: int) -> None:
        """Give up a batch that fails, and try its halves next; quarantine a single offset.

        Raises:
            Exception: the error, if a record is not its cause.
            StartRefused: an older run has written the batch into one of the outputs meanwhile.
        """
        if batch.size == 1:
            quarantine.check(error, batch, self._records(batch))
        self._check_uncut(batch, error)
        log.warning("batch %s of %d offsets failed and is given up: %s", batch.id, batch.size, text_of(error))
        if self.ledger.snapshot.pending is not None:
            self._drop(batch, failure=f"it fails with {text_of(error).partition(':')[0]}")
        positions = self.ledger.snapshot.positions
        if any(positions[r.topic_partition].offset != r.start for r in batch.ranges):
            return  # all outputs turned out to have the batch, so it counts as done
        if batch.size > 1:
            quarantine.cut(batch)
            return
        letter = self.ledger.batch(batch.ranges)
        if quarantine.deliver(letter, error, self._records, may_go_on=lambda: self._may_go_on(letter)):
            self.summary.quarantined += 1
            self._done(letter, began, left)

    def _check_uncut(self, batch: Batch, error: Exception) -> None:
        """Raise the error if the batch must be finished as it is.

        No mark is made void before this check, so that a corrected program can finish the batch.
        """
        found = self._situation(batch, (), {})
        found = replace(found, landings=self._landings()) if found.once else found
        if when_poisoned(found) is Fate.KEEP:
            name = [*found.having, *found.diverted][0]
            error.add_note(f"{named(name)} already has the batch, so it is not cut: fix the program and start again")
            raise error

    def _delivery_of(self, batch: Batch) -> Delivery:
        """Return the delivery of a batch that was begun: into the dead letters, or into the other outputs."""
        return self.quarantine.letters if self.quarantine and batch.kind is Kind.DEAD_LETTERS else self.delivery

    @property
    def _deliveries(self) -> list[Delivery]:
        return [self.delivery, *([self.quarantine.letters] if self.quarantine else [])]

    def _landings(self) -> dict[str, Landing]:
        anew = self._anew()
        return {name: landing for each in self._deliveries for name, landing in each.landings(anew=anew).items()}

    def _done(self, batch: Batch, began: float, left: int) -> None:
        self.summary.batches += 1
        self.summary.offsets += batch.size
        progress = Progress(batch, environment.monotonic() - began, left)
        log.info("batch %s: %d offsets in %.2f s, %d left", batch.id, batch.size, progress.seconds, left)
        self.on_batch(progress)

    def _records(self, batch: Batch) -> DataFrame:
        partitions = batch.partitions
        known = {tp: at for tp, at in self.ledger.snapshot.positions.items() if tp in partitions}
        ids, cluster = known_ids(known), known_cluster(known.values())
        return self.asked.reader.read(self.spark, batch.ranges, ids, cluster, known_epochs(known))


def _ends(plan: Plan) -> dict[TopicPartition, int]:
    return {row.topic_partition: row.bounds.end for row in plan.rows if row.bounds is not None}
