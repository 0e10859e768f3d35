"""Delivers one batch, from its ranges to its commit, in the order of its guarantee; the same for every engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offsetkeeper.core.batch import Batch, Program
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.identity import is_recreated
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import Landing, check_left, check_marks
from offsetkeeper.core.model import Guarantee, Landed, Snapshot
from offsetkeeper.core.offsets import topics_of
from offsetkeeper.core.retry import retry
from offsetkeeper.engines.interrupted import interrupted, tries_of_a_task
from offsetkeeper.engines.recomputed import watched
from offsetkeeper.engines.run import Run, Stop, spark_gone
from offsetkeeper.errors import (
    AlreadyCommitted,
    BrokerUnavailable,
    ComputedAgain,
    CorruptStore,
    Fenced,
    MarkError,
    OffsetkeeperError,
    OutcomeUnknown,
    RangeGone,
    Refused,
    RuleError,
    SettingsError,
    SinkError,
    SinkMismatch,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.kafka.start_plan import led_since, whole
from offsetkeeper.kafka.topic_ids import check_cluster
from offsetkeeper.readers import ConnectorReader, task_error
from offsetkeeper.sinks.once import Once, Written
from offsetkeeper.sinks.outputs import Frames, Prepared
from offsetkeeper.sinks.sink import MarkKey, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
range_log = logging.getLogger("offsetkeeper.ranges")
T = TypeVar("T")
# Half of all attempts may lose an executor, and one batch in a thousand ends a run.
_STAGED_ANEW = 10
_TOO_OFTEN = (
    "That was the {}th time for this batch. Find out why Spark loses executors. Then keep shuffled rows outside of "
    "them (an external shuffle service, or decommissioning), or make batches shorter with max_records"
)
_FAILED = "batch %s, attempt %d of %d failed: %s"
_ANEW = "batch %s is staged anew (%d of %d): %s"
_INTERRUPTED = "batch %s was interrupted (%d of %d), which costs no attempt: %s"
_HOPELESS = (RuleError, SettingsError, Refused, SinkMismatch, VersionConflict, CorruptStore)


class Settled(NamedTuple):
    """What outputs that keep a mark have of a batch that was given up, and the identities of their targets."""

    landings: Mapping[str, Landing]
    targets: Mapping[str, str]


class _Failure(NamedTuple):
    """A failure of a batch, counted among those of its kind.

    Attributes:
        text: for the log, with the batch, both numbers and the error.
        times: number of such failures.
        most: the number at which the run ends.
    """

    text: str
    times: int
    most: int


@dataclass(slots=True)
class _Course:
    """The progress of this run with a batch.

    Attributes:
        returned: the separate outputs whose write has returned, with the identities of their targets; this run does
            not write them again.
        failures: failures of outputs; each uses up one attempt.
        outages: failures of the store while a change was recorded; they use up no attempt.
        anew: how often Spark has computed a part of the batch again; it uses up no attempt either.
        interruptions: of this attempt, see `interrupted`. So many as Spark tries a task use it up.
        frame: the records of the last try.
        telling: whether a change is being recorded in the store.
        gone: whether the last try found that the topic was deleted or created again.
        checked: whether it is known that the records which all outputs have are from the topics of the plan.
        spent: attempts that are not available to this batch.
    """

    spent: int = 0
    returned: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    outages: int = 0
    anew: int = 0
    interruptions: int = 0
    frame: DataFrame | None = None
    telling: bool = False
    gone: bool = False
    checked: bool = False

    @property
    def tried(self) -> bool:
        """Whether an attempt of this run has failed after it may have written something."""
        return self.failures + self.anew + self.interruptions > 0

    def tell(self, change: Callable[..., object], *arguments: Any) -> None:
        """Change the ledger; if that fails, `telling` stays set."""
        self.telling = True
        change(*arguments)
        self.telling = False

    def failed(self, error: Exception, attempts: int) -> _Failure:
        """Count a failure.

        Args:
            error: the error.
            attempts: how often a batch is tried.
        """
        self.gone = isinstance(error, RangeGone)
        if self.telling and isinstance(error, StoreUnavailable | OutcomeUnknown):
            self.telling = False
            self.outages += 1
            return _Failure(_FAILED, self.outages, attempts)
        self.telling = False
        if isinstance(error, ComputedAgain):
            self.anew += 1
            return _Failure(_ANEW, self.anew, _STAGED_ANEW)
        most = tries_of_a_task(self.frame) if interrupted(error) else 0
        if self.interruptions + 1 < most:
            self.interruptions += 1
            return _Failure(_INTERRUPTED, self.interruptions, most)
        self.interruptions = 0
        self.failures += 1
        return _Failure(_FAILED, self.failures + self.spent, attempts)


@dataclass(slots=True)
class Delivery:
    """Writes batches into their outputs and commits them, for the owner of a ledger.

    Attributes:
        asked: the settings of the run.
        ledger: ledger of the group.
        stop: ends the attempts of a batch.
        reason: reason of the commits, for the history.
        watch: lends a check of the jobs in a block; see `watched`.
        streams: whether a streaming query reads the records.
        program: what the whole program reads and writes, if the run's outputs are not all of it; see `Run.program`.
        prepared: how each output is written with this store; set by `prepare`.
    """

    asked: Run
    ledger: Ledger
    stop: Stop
    reason: str = ""
    watch: Callable[[DataFrame], AbstractContextManager[Callable[[], None]]] = watched
    streams: bool = False
    program: Callable[[Iterable[str]], Program] | None = None
    prepared: Prepared = field(default_factory=lambda: Prepared({}, {}), init=False)
    _here: Program | None = field(default=None, init=False)
    _found: dict[str, str] = field(default_factory=dict, init=False)  # the targets of outputs at the start

    def prepare(self) -> None:
        """Find out how each output is written, and whether it can keep the guarantee with this store.

        Raises:
            GuaranteeRefused, SettingsError: see `Sink.prepare`.
            StoreUnavailable, SinkError: the store or an output stayed unavailable.
        """
        asked, store = self.asked, self.ledger.store
        self.prepared = self.patiently(
            (StoreUnavailable, SinkError), lambda: asked.outputs.prepare(store, asked.guarantee)
        )

    @property
    def outputs(self) -> Prepared:
        """How each output is written, by the names of `names`."""
        return self.prepared.under(self._old_names)

    @property
    def names(self) -> list[str]:
        """The names of the outputs: those with which the pending or unsettled batch was begun, until it is done."""
        return [self._old_names.get(name, name) for name in self.asked.outputs.sinks]

    @property
    def _old_names(self) -> dict[str, str]:
        batch = self.ledger.snapshot.pending or self.ledger.snapshot.unsettled
        if batch is None:
            return {}
        self._here = self._here or self._program()  # once, as this is asked several times for each batch
        return batch.old_names(self._here)

    def _program(self, topics: Iterable[str] = ()) -> Program:
        return (self.program or self.asked.program)(topics)

    def landings(self, *, anew: bool = False) -> dict[str, Landing]:
        """Return what the marks say of the pending or unsettled batch; outputs that commit with the ledger lack it.

        Without such a batch, or without outputs that keep a mark, the result is empty.

        Args:
            anew: whether the batch was begun for other outputs. What the ledger knows of these names is of those.

        Raises:
            MarkError: the marks do not match the ledger.
            SinkError: an output stayed unavailable.
        """
        once, group, snapshot = self.outputs.once, self.ledger.group, self.ledger.snapshot
        if anew and snapshot.pending is not None:
            others = {name: landed for name, landed in snapshot.landed.items() if name not in once}
            snapshot = replace(snapshot, landed=others, pending=replace(snapshot.pending, written=()))
        beside = {
            name: self.patiently(SinkError, partial(joiner.mark, MarkKey(group, name)))
            for name, joiner in self.outputs.joiners.items()
        }
        renamed = {name: each for name, each in self.prepared.once.items() if name in self._old_names}
        seen, seen_anew = self._seen(once), self._seen(renamed)
        marks = {name: found.mark for name, found in seen.items()}
        new_marks = {name: found.mark for name, found in seen_anew.items()}
        expiring = {name for name, each in once.items() if each.lander.expires}
        for name, found in {**seen, **seen_anew}.items():
            self._found.setdefault(name, found.target)
        every = (*beside.values(), *marks.values(), *new_marks.values())
        newest = max((each.sequence for each in every if each is not None), default=0)
        # A run that lives may have landed batches since the ledger was loaded.
        reached = self.ledger.later().sequence if newest > snapshot.sequence else snapshot.sequence
        for name, mark in beside.items():
            check_left(group, name, mark, reached)
        check_marks(snapshot, marks, expiring, _lost(snapshot, once, seen), reached)
        # The next batch is begun under the new names. A mark there that does not fit forbids to finish this one.
        pending = snapshot.pending and replace(snapshot.pending, written=tuple(renamed))
        later = replace(snapshot, pending=pending, unsettled=None)
        check_marks(later, new_marks, {*renamed}, _lost(later, renamed, seen_anew), reached)
        batch = snapshot.pending or snapshot.unsettled
        if not once or batch is None:
            return {}
        return {
            **dict.fromkeys(self.outputs.joiners, Landing.ABSENT),
            **{name: once[name].landing(mark, batch, exact=anew) for name, mark in marks.items()},
        }

    def landed_before(self, batch: Batch) -> dict[str, Landed]:
        """Return the last batch before this one in each output that keeps a mark, as the marks say it.

        Raises:
            SinkError: an output stayed unavailable.
        """
        most = batch.sequence - 1
        return {
            name: Landed(min(found.mark.sequence, most) if found.mark else 0, found.target)
            for name, found in self._seen(self.outputs.once).items()
        }

    def settle(self, batch: Batch) -> Settled:
        """Make sure that a dropped batch can never land in an output that keeps a mark; return what each output has.

        Raises:
            MarkBehind: an output has lost rows.
            SinkError, OutcomeUnknown: an output stayed unavailable.
        """
        away, known = (SinkError, OutcomeUnknown), self._landed_in
        # Also those that the program has got since the batch was begun: they may have it under way.
        once = {name: each for name, each in self.outputs.once.items() if batch.goes_into(name)}
        found = {name: self.patiently(away, partial(each.settle, batch, known(name))) for name, each in once.items()}
        return Settled(
            {name: outcome.landing for name, outcome in found.items()},
            {name: outcome.target for name, outcome in found.items()},
        )

    @property
    def once(self) -> bool:
        """Whether no part of a batch may be written a second time."""
        return self.asked.guarantee is Guarantee.AT_MOST_ONCE and bool(self.outputs.writers)

    def deliver(
        self,
        batch: Batch,
        records: Callable[[Batch], DataFrame],
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        patient: bool = True,
    ) -> bool:
        """Write and commit the batch. After a failure try again, as often as the pace allows.

        Before each write, the store's last answer has named this run as the owner: the answer to a begin, a mark or an
        acquire, or a read of the ledger before another attempt. This is not a fence: a run that stalls after the answer
        may still write.

        Args:
            batch: as `Ledger.batch` returns it.
            records: returns the frame of records; called for each attempt.
            may_go_on: called before each further attempt that reads records again, or whose topic is gone. The batch is
                dropped if it returns False.
            patient: whether outputs may fail as often as the pace allows; otherwise there is one attempt.

        Returns:
            Whether the batch is committed; otherwise it was dropped.

        Raises:
            Fenced: another run has taken the group.
            StartRefused: the batch was begun and cannot be read again, so exactly once cannot be kept.
            SparkGone: Spark has died, so there is no further attempt.
            OffsetkeeperError: see the tree in `errors`.
            Exception: the error of the output at its last attempt, with the batch's ranges as a note.
        """
        if self.asked.pace.log_ranges:
            range_log.info("batch %s\n%s", batch.id, batch.lines())
        course = _Course(0 if patient else self.asked.pace.attempts - 1)
        while failed := self._failed(batch, records, course):
            self.stop.wait(min(2.0 ** (failed - 1), 30))
            try:
                committed = self.ledger.confirm(batch)
            except StoreUnavailable as error:
                error.add_note(f"in batch {batch.id}, which failed before: see the log")
                raise
            if committed:
                return True
            if (course.gone or self._reads(course)) and not may_go_on():
                return False
        return True

    def count_as_done(self, batch: Batch) -> None:
        """Commit a batch that is or may be written, and must not be written twice.

        Raises:
            MarkBehind: an output has lost rows since its mark was read.
        """
        first = self.asked.guarantee is Guarantee.AT_MOST_ONCE
        why = "may have been written before" if first else "is in its outputs according to their marks"
        log.warning("batch %s %s, so it counts as done:\n%s", batch.id, why, batch.lines())
        once = {name: each for name, each in self.outputs.once.items() if name in batch.lands_in}
        known = self.ledger.snapshot.landed_in
        seen = {name: self.patiently(SinkError, partial(each.kept, batch, known(name))) for name, each in once.items()}
        self.ledger.commit(batch, self.reason, {name: found.target for name, found in seen.items()})

    def patiently(self, on: type[Exception] | tuple[type[Exception], ...], call: Callable[[], T]) -> T:
        """Call until `on` is not raised, for up to `retry_timeout_s`."""
        return retry(on, self.asked.pace.retry_timeout_s, lambda _: call(), longest_s=2.0)

    def release(self, *, rejoin: bool = False) -> None:
        """Release the group if possible; `rejoin` if another process may have written since."""
        try:
            if rejoin:
                self.ledger.join(self.ledger.owner_id)
            self.ledger.release(reason="end")
        except Fenced:
            pass  # already fenced: the newer owner has the group
        except OffsetkeeperError as error:
            log.warning("group %s could not be released; the next run takes it over: %s", self.ledger.group, error)

    def _seen(self, once: Mapping[str, Once]) -> dict[str, Seen]:
        """Return the mark of outputs, and the identity of their targets."""
        group = self.ledger.group
        return {name: self.patiently(SinkError, partial(each.seen, group)) for name, each in once.items()}

    def _failed(self, batch: Batch, records: Callable[[Batch], DataFrame], course: _Course) -> int:
        """Try a batch once; return 0 if it is done, else the number of failures of this kind."""
        try:
            self._attempt(replace(batch, retry=batch.retry or course.tried), records, course)
        except AlreadyCommitted:
            return 0
        except MarkError:
            self.ledger.confirm(batch)  # the usual reason is another owner: raises Fenced
            raise
        except _HOPELESS:
            raise
        except Exception as error:
            failure, gone = course.failed(error, self.asked.pace.attempts), spark_gone(error)
            if gone or self.once or failure.times >= failure.most or self.stop.is_set():
                if failure.text is _ANEW and failure.times >= failure.most:
                    error.add_note(_TOO_OFTEN.format(failure.times))
                found = gone or task_error(error)
                ranges = batch.lines()
                (found or error).add_note(f"in batch {batch.id}, attempt {failure.times}, ranges:\n{ranges}"[:2000])
                if found is not None:
                    raise found from error
                raise
            log.warning(failure.text, batch.id, failure.times, failure.most, error)
            return failure.times
        return 0

    def _attempt(self, batch: Batch, records: Callable[[Batch], DataFrame], course: _Course) -> None:
        """Read, write and commit one batch in the order of its guarantee."""
        if not self._reads(course):
            self._check_topics(batch, course)
            course.tell(self.ledger.commit, batch, self.reason, course.returned)
            return
        for name in sorted(course.returned.keys() - set(self._marked())):
            course.tell(self.ledger.mark, batch, name, course.returned[name])
        shown = replace(batch, written=self._marked())
        course.frame = found = records(shown)
        made = self.asked.outputs.frames(found, shown, self.asked.process, self._old_names)
        with self.watch(found) as computed, made as frames:

            def check() -> None:
                computed()
                self._check_topics(batch, course)

            if not self.once:
                self._write(batch, shown, frames, course, check)
            finish = self.outputs.stage(frames, shown)
            check() if self.outputs.joiners else self._check_topics(batch, course)
            self._commit(batch, finish, course)
            for name, writer in self.outputs.writers.items() if self.once else ():
                self.ledger.check_owner()
                writer.write(frames[name], shown)

    def _marked(self) -> tuple[str, ...]:
        pending = self.ledger.snapshot.pending
        return pending.written if pending else ()

    def _reads(self, course: _Course) -> bool:
        """Whether an attempt reads records. If all outputs have the batch, only the ledger is left to change."""
        return bool(self.outputs.joiners or self._left(course)) or not course.returned

    def _left(self, course: _Course) -> list[str]:
        """Return the names of the separate outputs that do not have the batch yet."""
        return [name for name in self.outputs.writers if name not in {*self._marked(), *course.returned}]

    def _write(self, batch: Batch, shown: Batch, frames: Frames, course: _Course, check: Callable[[], object]) -> None:
        """Write the outputs that do not have the batch yet, and mark each; the commit replaces the mark of the last."""
        if self.outputs.writers:
            if self.ledger.snapshot.pending is not None:
                course.tell(self.ledger.confirm, batch)
            else:
                landed, positions = self._first_targets(batch.group), self.ledger.snapshot.positions
                program = self._program(topics_of(positions))
                course.tell(self.ledger.begin, batch, tuple(self.outputs.once), landed, program)
        left, used = self._left(course), bool(self.outputs.joiners)
        for name in left:
            written = self._write_one(name, shown, frames[name], check)
            used |= written.used
            course.returned[name] = written.target
            if self.outputs.joiners or name != left[-1]:
                course.tell(self.ledger.mark, batch, name, written.target)
        if not used:  # Spark keeps the state of a query only if its frame is used
            next(iter(frames.values())).write.format("noop").mode("overwrite").save()

    def _first_targets(self, group: str) -> dict[str, Landed]:
        """Return the identity of the target of each output without a batch: it may get one, and be made again."""
        new = [name for name in self.outputs.once if self.ledger.snapshot.landed_in(name) == Landed()]
        found = {name: self.outputs.once[name].seen(group).target for name in new}
        return {name: Landed(0, target) for name, target in found.items() if target}

    def _landed_in(self, name: str) -> Landed:
        """Return the last batch in an output; before the first one, the target that this run has found at its start."""
        landed = self.ledger.snapshot.landed_in(name)
        return landed if landed.sequence else landed._replace(target=self._found.get(name, ""))

    def _write_one(self, name: str, shown: Batch, frame: DataFrame, check: Callable[[], object]) -> Written:
        """Write a separate output."""
        way = self.outputs.writers[name]
        if isinstance(way, Once):
            return way.write(frame, shown, self._landed_in(name), check)
        way.write(frame, shown)
        return Written(used=True, target="")

    def _commit(self, batch: Batch, finish: Callable[[Any], None], course: _Course) -> None:
        if not self.outputs.joiners:
            course.tell(self.ledger.commit, batch, self.reason, course.returned)
            return
        with self.ledger.transaction(batch, self.reason, course.returned) as connection:
            finish(connection)

    def _check_topics(self, batch: Batch, course: _Course) -> None:
        """Check that no topic was created again since the plan, or is another cluster's: offsets do not show it."""
        ranges, stored = batch.ranges, self.ledger.snapshot.positions
        if not ranges or course.checked:
            return
        topics = {r.topic for r in ranges}
        cluster = self._cluster  # one client for both questions
        now = self.patiently(BrokerUnavailable, lambda: whole(lambda: cluster.describe(topics), topics))
        for tp in (r.topic_partition for r in ranges):
            if tp.topic in now:
                check_cluster(stored[tp].cluster_id, now[tp.topic].cluster_id, topics)
            if tp.topic not in now or is_recreated(stored[tp].topic_id, now[tp.topic].topic_id):
                raise RangeGone(f"topic {tp.topic} was deleted or created again while batch {batch.id} was read")
        if self.streams or isinstance(self.asked.reader, ConnectorReader):  # other tasks compare the records' epochs
            self.check_uncut(batch, cluster)
        course.checked = not self._reads(course)

    def check_uncut(self, batch: Batch, cluster: Cluster | None = None) -> None:
        """Check that no log was cut below the end of a range since the batch was planned.

        Args:
            batch: the batch.
            cluster: the client to ask; without one, a client as `_cluster` gives it.

        Raises:
            RangeGone: a log was cut, so that other records may have been read than those that were planned.
            UnknownTopic, BrokerUnavailable, NotAuthorized: Kafka could not be asked.
        """
        ranges, stored = batch.ranges, self.ledger.snapshot.positions
        places = ((r.topic_partition, stored[r.topic_partition]._replace(offset=r.end)) for r in ranges)
        ends = {tp: at for tp, at in places if at.leader_epoch is not None}
        asked = cluster or self._cluster

        def told(offset: int) -> str:
            return (
                f"before the end {offset} of batch {batch.id}. What was read may be other records than those that were "
                "planned: let the start be planned anew"
            )

        self.patiently(BrokerUnavailable, lambda: led_since(asked, ends, told))

    @property
    def _cluster(self) -> Cluster:
        """Kafka. Consumers of the connector cannot be asked where they are: a client that connects now is like them."""
        return self.asked.cluster.anew() if isinstance(self.asked.reader, ConnectorReader) else self.asked.cluster


def _lost(ledger: Snapshot, once: Mapping[str, Once], seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return of each output why rows that the ledger knows there are gone; empty if they are there."""
    return {name: once[name].lost(ledger.landed_in(name), found) for name, found in seen.items()}
