"""What becomes of a batch: outputs and Kafka are asked, `core.pending` decides, and this acts.

A batch that a start finds begun is finished, counted, dropped or left to its query. A batch that fails is tried again,
dropped, or cut down to the records that fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from offsetkeeper.core.batch import DEAD_LETTERS, Batch, Kind
from offsetkeeper.core.bounds import NO_LEADER_EPOCHS, known_cluster, known_epochs, known_ids
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import Landing, named
from offsetkeeper.core.model import Guarantee, Having, unasked
from offsetkeeper.core.offsets import OffsetRange, TopicPartition, topics_of
from offsetkeeper.core.pending import (
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
from offsetkeeper.core.plan import Plan, Verdict
from offsetkeeper.engines.attempt import Delivery
from offsetkeeper.engines.outputs import Voided
from offsetkeeper.engines.quarantine import Held, Quarantine, is_of_records, text_of
from offsetkeeper.engines.recomputed import tell_limits
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.stop import Stop, Stopped
from offsetkeeper.errors import BrokerUnavailable, listed
from offsetkeeper.kafka.start_plan import Doubted, unreadable_ranges
from offsetkeeper.readers import Reader
from offsetkeeper.readers.unreadable import place_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")

_FINDS = "if a record is the cause, Policies(poison='quarantine') finds it: see Records that fail, in docs/sinks.md"


@dataclass(slots=True)
class Batches:
    """The batches of a run, for the owner of a ledger.

    Attributes:
        spark: the session that reads records.
        asked: the settings of the run.
        ledger: ledger of the group.
        stop: ends the attempts of a batch.
        plan: plans anew, before a batch is dropped while the run reads.
        doubted: what was doubted since the last plan, and found to stay so; see `whole`.
        quarantined: number of records that went into the dead letters.
        delivery: delivers into the outputs.
        quarantine: cuts batches that fail, and has the dead letters; None if records that fail stop the run.
    """

    spark: SparkSession
    asked: Run
    ledger: Ledger
    stop: Stop
    plan: Callable[[], Plan]
    doubted: Doubted = field(default_factory=dict)
    quarantined: int = 0
    delivery: Delivery = field(init=False)
    quarantine: Quarantine | None = field(init=False)
    _counts: bool = field(default=False, init=False)  # whether the batch that was given up last is committed instead
    _having: tuple[str, ...] = field(default=(), init=False)  # the outputs that have all of the pending batch

    def __post_init__(self) -> None:
        """Create the parts that deliver batches."""
        self.delivery = Delivery(self.asked, self.ledger, self.stop)
        cuts = self.asked.dead_letters is not None
        self.quarantine = Quarantine(self.asked, self.ledger, self.stop) if cuts else None

    def prepare(self) -> None:
        """Find out how each output is written, and whether it can keep the guarantee.

        Raises:
            GuaranteeRefused, SettingsError, StoreUnavailable, SinkError: see `RunOutputs.prepare`.
        """
        self.delivery.outputs.prepare()
        if self.asked.guarantee is Guarantee.EXACTLY_ONCE:
            tell_limits(self.spark, self.delivery.outputs.prepared)
        if self.quarantine is not None:
            self.quarantine.prepare(self.delivery.outputs.prepared)

    def fate(self, query: str | None, given: Collection[TopicPartition]) -> Fate | None:
        """Return what becomes of the pending batch at a start; None without one.

        Args:
            query: id of the query with state that starts, empty if it begins; None for any other run.
            given: the partitions whose positions this start sets.

        Raises:
            StartRefused, MarkError, CheckpointMismatch: the pending batch, or one that a reset dropped, forbids it.
            SinkError: an output stayed unavailable.
        """
        pending, unsettled = self.ledger.snapshot.pending, self.ledger.snapshot.unsettled
        if pending is not None:
            check_program(self._situation(pending, (), {}))
        dropped = None if unsettled is None else self._unsettled(unsettled, query, {})
        if dropped is not None:
            check_unsettled(dropped)
        landings = self._landings()
        if dropped is not None:
            when_unsettled(replace(dropped, landings=landings))
        if pending is None:
            return None
        found, marked = self._situation(pending, self._problems(pending), landings), self._keep_marks(pending)
        self._having = tuple(name for name in found.having if landings.get(name) is not Landing.PARTLY)
        return at_start(replace(found, query=query, marked=marked, given=given))

    def take_over(self, fate: Fate | None) -> None:
        """Note in the ledger the outputs that the pending batch goes into now, if they are not those it was begun for.

        Args:
            fate: what becomes of it.
        """
        if fate is not Fate.COUNT or self.asked.guarantee is not Guarantee.AT_MOST_ONCE:  # it only counts
            self._begin_anew()
        if fate in {Fate.FINISH, Fate.WAIT}:
            self._tell_split()
            self._widen()

    def settle(self, fate: Fate | None, query: str | None) -> Batch | None:
        """Settle a batch that a reset dropped; finish, count or drop the pending batch, or leave it to its query.

        Args:
            fate: what becomes of the pending batch.
            query: as in `fate`. What a query with state has read, its checkpoint says, and no output.

        Returns:
            The batch that is committed now, because it was finished (see `process`) or counts as done; else None.
        """
        pending, unsettled = self.ledger.snapshot.pending, self.ledger.snapshot.unsettled
        if unsettled is not None:
            self._settle_dropped(unsettled, query)
        if pending is None:
            return None
        if fate is Fate.DROP:
            return pending if self._drop(pending, self._problems(pending)) else None
        if fate is Fate.COUNT:
            self._count(pending)
            return pending
        return self.process(replace(pending, retry=True)) if fate is Fate.FINISH else None

    def next_piece(self) -> tuple[OffsetRange, ...]:
        """Return the ranges of a batch that was cut that are next; empty without one."""
        return self.quarantine.next(self.ledger.snapshot.positions) if self.quarantine else ()

    @property
    def away(self) -> tuple[TopicPartition, ...]:
        """Partitions with a position that Kafka does not know, by the last plan."""
        return tuple(tp for tp, answer in self.doubted.items() if answer is None)

    @property
    def cuts(self) -> bool:
        """Whether pieces of a batch are still to be tried."""
        return self.quarantine is not None and self.quarantine.cuts

    def process(self, batch: Batch, *, patient: bool = True) -> Batch | None:
        """Read, write and commit a batch.

        Args:
            batch: as `Ledger.batch` returns it.
            patient: see `Delivery.deliver`.

        Returns:
            The batch that is committed now: this one, or the dead letter of its only record; None if it was dropped or
            cut, or if its records fail while the run is asked to stop: the next run goes on with it. One that was to be
            dropped is committed if all its outputs turn out to have it.

        Raises:
            See `Delivery.deliver`.
        """
        try:
            done = self.delivery.deliver(batch, self._records, lambda: self._may_go_on(batch), patient=patient)
        except Exception as error:
            if not is_of_records(error):
                raise
            if self.quarantine is None:
                error.add_note(_FINDS)
                raise
            try:
                return self._isolate(self.quarantine, batch, error)
            except Stopped:
                log.warning("batch %s fails, and is left to the next run, as this one is asked to stop", batch.id)
                return None
        if done and self.quarantine:
            self.quarantine.worked()
        return batch if done or self._counts else None

    def _isolate(self, quarantine: Quarantine, batch: Batch, error: Exception) -> Batch | None:
        """Give up a batch that fails, and try its halves next; quarantine a single offset and return its batch.

        Raises:
            Exception: the error, if a record is not its cause.
            Stopped: the run is asked to stop; the batch is as it was.
            StartRefused: an older run has written the batch into one of the outputs meanwhile.
        """
        self.stop.check()
        self._check_uncut(batch, error)
        if batch.size == 1 and not quarantine.check(error, batch, self._records, self._held):
            log.warning("batch %s of one offset can be written now, so it is tried again: %s", batch.id, text_of(error))
            return self.process(batch)
        log.warning("batch %s of %d offsets failed and is given up: %s", batch.id, batch.size, text_of(error))
        why = f"it fails with {text_of(error).partition(':')[0]}"
        if self.ledger.snapshot.pending is not None and self._drop(batch, failure=why):
            return batch
        if batch.size > 1:
            quarantine.cut(batch, place_of(error))
            return None
        letter = self.ledger.batch(batch.ranges)
        if not quarantine.deliver(letter, error, self._bare_records, may_go_on=lambda: self._may_go_on(letter)):
            return letter if self._counts else None
        self.quarantined += 1
        return letter

    def _held(self) -> Held:
        """Return what Kafka holds of the run's partitions."""
        rows = self.plan().rows
        held = [(row.topic_partition, row.bounds) for row in rows if row.bounds is not None]
        resumed = {row.topic_partition: row.bounds for row in rows if row.verdict is Verdict.RESUME and row.bounds}
        at = {tp: self.ledger.snapshot.positions[tp].offset for tp, _ in held if tp in self.ledger.snapshot.positions}
        unread = [OffsetRange(*tp, at[tp], bounds.end) for tp, bounds in held if tp in at and at[tp] < bounds.end]
        read = [OffsetRange(*tp, bounds.beginning, at[tp]) for tp, bounds in held if tp in at]
        return Held(unread, [r for r in read if r.start < r.end], known_epochs(resumed))

    def _check_uncut(self, batch: Batch, error: Exception) -> None:
        """Raise the error if the batch must be finished as it is.

        No mark is made void before this check, so that a corrected program can finish the batch.
        """
        found = self._situation(batch, (), {})
        found = replace(found, landings=self._landings()) if found.once else found
        if when_poisoned(found) is Fate.KEEP:
            name = [*found.having, *found.diverted][0]
            error.add_note(
                f"{named(name)} already has the batch, so it is not cut: fix the program and start again. "
                f"Until that is done, the function must send each record to the same output as now: what "
                f"{named(name)} has stays there, and only the others get the batch"
            )
            raise error

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
            self.plan().check()
        self._drop(batch, problems)  # which counts it if all outputs have it
        return False

    def _drop(self, batch: Batch, problems: Sequence[str] = (), failure: str = "") -> bool:
        """Drop a batch; but if all its outputs turn out to have it, commit it, and return True.

        Args:
            batch: the batch.
            problems: why Kafka no longer holds its records.
            failure: why it is given up although Kafka holds them.

        Raises:
            StartRefused: some outputs have it, and with exactly once only a policy can allow to drop it.
        """
        pending = self.ledger.snapshot.pending
        landings, targets = Voided({}, {}) if pending is None else self._delivery_of(pending).outputs.make_void(pending)
        found = replace(self._situation(batch, problems, landings), failure=failure)
        self._counts = when_given_up(found) is Fate.COUNT
        if self._counts:
            self._count(found.batch)
            return True
        reason = dropped_text(found)
        log.warning("batch %s is dropped: %s:\n%s", batch.id, reason, batch.lines())
        if pending is not None:
            self.ledger.abandon(reason, targets, found.held)
        return False

    def _count(self, batch: Batch) -> None:
        """Commit a batch that is in its outputs, or may be and must not come twice."""
        self._delivery_of(batch).count_as_done(batch)
        self.quarantined += batch.kind is Kind.DEAD_LETTERS

    def _settle_dropped(self, batch: Batch, query: str | None) -> None:
        found = self._unsettled(batch, query, {})
        landings, targets = Voided({}, {}) if found.astray else self._delivery_of(batch).outputs.make_void(batch)
        found = replace(found, landings=landings)
        told = landed_text(found)
        log.warning("batch %s was dropped by a reset: %s:\n%s", batch.id, told, batch.lines())
        counts = when_unsettled(found) is Fate.COUNT
        held = Having.SOME if found.held is Having.ALL and not counts else found.held
        self.ledger.settle(told, targets, unasked(batch) if found.astray else held)

    def _begin_anew(self) -> None:
        """Begin the pending batch again for this program, if it is to be finished in other outputs than before.

        From then on it is this program's in the ledger too. A restart of this program goes on with it. A start of the
        program that began it is refused.
        """
        pending = self.ledger.snapshot.pending
        if pending is not None and self._anew():
            landed = {
                name: last for each in self._deliveries for name, last in each.outputs.landed_before(pending).items()
            }
            program = self.asked.program(topics_of(self.ledger.snapshot.positions))
            why = "pending='finish': another program takes the batch over"
            self.ledger.begin(pending, tuple(self._keep_marks(pending)), landed, program, why)

    def _tell_split(self) -> None:
        """Warn if some outputs have the pending batch by the code of another run, and this one writes the others.

        Nothing compares the code of two releases.
        """
        pending = self.ledger.snapshot.pending
        if pending is None or not self._having or self.asked.process is None:
            return
        others = [name for name in self._names if pending.goes_into(name) and name not in self._having]
        if others:
            log.warning(
                "batch %s: %s got it from an earlier run, and %s gets it from this one. If the function sends a record "
                "of it to another output than it did then, that record is in both, or in none:\n%s",
                pending.id,
                listed(map(named, self._having), ", "),
                listed(map(named, others), ", "),
                pending.lines(),
            )

    def _widen(self) -> None:
        """Note in the ledger the outputs that the program has beside those that the pending batch was begun for.

        They get the batch too. The next start finds them, also if it has other names for them. One that keeps a mark
        may have the batch under way, so a reset leaves it to the next start to keep the batch out of there. That holds
        also if only the kind of an output has changed, and it keeps a mark since then.
        """
        pending = self.ledger.snapshot.pending
        if pending is None or pending.program is None or pending.kind is Kind.DEAD_LETTERS:
            return
        program = pending.program.widened(self.asked.program(()))
        marked = tuple(self._keep_marks(pending))
        added = {*marked}.difference(pending.lands_in, pending.written)
        if added or program != pending.program:
            landed = self.delivery.outputs.found_targets(added)
            why = "it also goes into outputs that a redeploy has added"
            self.ledger.begin(pending, marked, landed, program, why)

    def _anew(self) -> bool:
        """Return whether the pending batch is to be finished in other outputs than those that it was begun for."""
        pending = self.ledger.snapshot.pending
        return pending is not None and self._situation(pending, (), {}).anew

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
            self._names,
            landings,
            joined=self._delivery_of(found.pending or batch).outputs.ways.joiners.keys(),
            begun=found.pending is not None,
            program=asked.program(began.topics) if began else None,
        )

    def _unsettled(self, batch: Batch, query: str | None, landings: Mapping[str, Landing]) -> Situation:
        """Return all that decides what becomes of a batch that a reset dropped."""
        program = batch.program and self.asked.program(batch.program.topics)
        return replace(
            self._situation(batch, (), landings),
            batch=batch,
            query=query,
            marked=self._keep_marks(batch),
            program=program,
        )

    def _problems(self, batch: Batch) -> list[str]:
        """Ask Kafka which ranges of a batch cannot be read again."""
        cluster, positions, doubted = self.asked.cluster, self.ledger.snapshot.positions, self.doubted
        reasons, stays = self.asked.pace.patiently(
            BrokerUnavailable, lambda: unreadable_ranges(cluster, batch, positions, doubted)
        )
        self.doubted = {**doubted, **stays}  # the next plan spends no time on the same again
        return reasons

    def _landings(self) -> dict[str, Landing]:
        anew = self._anew()
        return {
            name: landing for each in self._deliveries for name, landing in each.outputs.landings(anew=anew).items()
        }

    def _keep_marks(self, batch: Batch) -> Collection[str]:
        """Return the outputs of the program that keep marks, of those that a batch goes into."""
        return self._delivery_of(batch).outputs.ways.once.keys()

    @property
    def _names(self) -> list[str]:
        return [*self.delivery.outputs.names, *([DEAD_LETTERS] if self.quarantine else [])]

    def _delivery_of(self, batch: Batch) -> Delivery:
        """Return the delivery of a batch that was begun: into the dead letters, or into the other outputs."""
        return self.quarantine.letters if self.quarantine and batch.kind is Kind.DEAD_LETTERS else self.delivery

    @property
    def _deliveries(self) -> list[Delivery]:
        return [self.delivery, *([self.quarantine.letters] if self.quarantine else [])]

    def _records(self, batch: Batch, epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS) -> DataFrame:
        return self._read(self.asked.reader, batch, epochs)

    def _bare_records(self, batch: Batch) -> DataFrame:
        return self._read(self.asked.reader.bare(), batch)

    def _read(self, reader: Reader, batch: Batch, epochs: Mapping[TopicPartition, int] = NO_LEADER_EPOCHS) -> DataFrame:
        partitions = batch.partitions
        known = {tp: at for tp, at in self.ledger.snapshot.positions.items() if tp in partitions}
        ids, cluster = known_ids(known), known_cluster(known.values())
        newest = {tp: epochs.get(tp, epoch) for tp, epoch in known_epochs(known).items()}
        return reader.read(self.spark, batch.ranges, ids, cluster, newest)
