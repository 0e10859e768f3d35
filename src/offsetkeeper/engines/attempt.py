"""One batch, from its ranges to its commit: read, write and commit, in the order of the guarantee, and try again."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offsetkeeper.core import environment, trace
from offsetkeeper.core.batch import Batch, Program
from offsetkeeper.core.cluster import Cluster
from offsetkeeper.core.executors import error_text
from offsetkeeper.core.identity import is_recreated
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import topics_of
from offsetkeeper.engines.failures import Course, Failure
from offsetkeeper.engines.outputs import RunOutputs
from offsetkeeper.engines.recomputed import watched
from offsetkeeper.engines.settings import Run
from offsetkeeper.engines.stop import Stop, check_spark, spark_gone
from offsetkeeper.errors import (
    AlreadyCommitted,
    BrokerUnavailable,
    CorruptStore,
    MarkError,
    RangeGone,
    RecordUnreadable,
    Refused,
    RuleError,
    SettingsError,
    SinkMismatch,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.kafka.start_plan import described, led_since
from offsetkeeper.kafka.topic_ids import check_cluster
from offsetkeeper.readers import ConnectorReader, task_error
from offsetkeeper.sinks.once import Once, WriteResult
from offsetkeeper.sinks.outputs import Frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
range_log = logging.getLogger("offsetkeeper.ranges")
_HOPELESS = (RuleError, SettingsError, Refused, SinkMismatch, VersionConflict, CorruptStore, RecordUnreadable)

_TOLD = 2  # the failure in a row after which the history says that an output is away: one may be a lost connection
_TOLD_AGAIN_S = 300.0  # so that a run that waits is told from one that has died since; see `operate/status.py`


class _Committed(Exception):
    """An earlier try of the batch, whose reply was lost, turns out to be committed."""


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
        outputs: the outputs of the run.
    """

    asked: Run
    ledger: Ledger
    stop: Stop
    reason: str = ""
    watch: Callable[[DataFrame], AbstractContextManager[Callable[[], None]]] = watched
    streams: bool = False
    program: InitVar[Callable[[Iterable[str]], Program] | None] = None
    outputs: RunOutputs = field(init=False)

    def __post_init__(self, program: Callable[[Iterable[str]], Program] | None) -> None:
        """Take the run's outputs."""
        self.outputs = RunOutputs(self.asked, self.ledger, program or self.asked.program)

    @property
    def once(self) -> bool:
        """Whether no part of a batch may be written a second time."""
        return self.asked.guarantee is Guarantee.AT_MOST_ONCE and bool(self.outputs.ways.writers)

    def deliver(
        self,
        batch: Batch,
        records: Callable[[Batch], DataFrame],
        may_go_on: Callable[[], bool] = lambda: True,
        *,
        patient: bool = True,
    ) -> bool:
        """Write and commit the batch. After a failure try again, as often as the pace allows.

        An output that is away is waited for, for up to `retry_timeout_s`. Nothing is open meanwhile: the next try reads
        and stages the batch anew.

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
        course = Course(0 if patient else self.asked.pace.attempts - 1)
        told_s = -math.inf
        while failure := self._failed(batch, records, course):
            due = failure.times == _TOLD or environment.monotonic() - told_s >= _TOLD_AGAIN_S
            # A joiner's store is away too.
            if failure.away and failure.times >= _TOLD and due and self.outputs.ways.writers:
                told_s = environment.monotonic()
                self.ledger.note_waiting(f"batch {batch.id}: {failure.text}: {failure.why}")
            self.stop.wait(failure.pause_s)
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
        self.ledger.commit(batch, self.reason, self.outputs.kept(batch))

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

        self.asked.pace.patiently(BrokerUnavailable, lambda: led_since(asked, ends, told))

    def _failed(self, batch: Batch, records: Callable[[Batch], DataFrame], course: Course) -> Failure | None:
        """Try a batch once; return None if it is done, else its failure."""
        try:
            self._attempt(replace(batch, retry=batch.retry or course.tried), records, course)
        except _Committed:
            return None
        except MarkError:
            self.ledger.confirm(batch)  # the usual reason is another owner: raises Fenced
            raise
        except _HOPELESS:
            raise
        except Exception as error:
            if isinstance(ours := task_error(error), RecordUnreadable):
                raise ours from error
            failure, gone = course.failed(error, self.asked.pace), spark_gone(error)
            if gone or self.once or failure.is_last or self.stop.is_set():
                if failure.is_last and failure.advice:
                    error.add_note(failure.advice)
                found = gone or task_error(error)
                ranges = batch.lines()
                what = failure.text if failure.away and gone is None else f"attempt {failure.times}"
                (found or error).add_note(f"in batch {batch.id}, {what}, ranges:\n{ranges}"[:2000])
                if found is not None:
                    raise found from error
                raise
            log.warning("batch %s: %s: %s", batch.id, failure.text, error_text(error))
            return failure
        return None

    def _attempt(self, batch: Batch, records: Callable[[Batch], DataFrame], course: Course) -> None:
        """Read, write and commit one batch in the order of its guarantee."""
        if not self._reads(course):
            self._check_topics(batch, course)
            course.tell(self.ledger.commit, batch, self.reason, course.returned)
            return
        for name in sorted(course.returned.keys() - set(self.outputs.written)):
            course.tell(self.ledger.note_written, batch, name, course.returned[name])
        shown = replace(batch, written=self.outputs.written)
        trace.note(self.ledger.who, "read", **trace.batch_fields(batch), retry=batch.retry)
        course.frame = found = records(shown)
        made = self.asked.outputs.frames(found, shown, self.asked.process, self.outputs.old_names)
        with self.watch(found) as computed, made as frames:

            def check() -> None:
                computed()
                self._check_topics(batch, course)

            if not self.once:
                self._write(batch, shown, frames, course, check)
            finish = self.outputs.ways.stage(frames, shown)
            check() if self.outputs.ways.joiners else self._check_topics(batch, course)
            self._commit(batch, finish, course)
            for name, writer in self.outputs.ways.writers.items() if self.once else ():
                self.ledger.check_owner()
                writer.write(frames[name], shown)
                check_spark(found)

    def _reads(self, course: Course) -> bool:
        """Whether an attempt reads records. If all outputs have the batch, only the ledger is left to change."""
        return bool(self.outputs.ways.joiners or self._left(course)) or not course.returned

    def _left(self, course: Course) -> list[str]:
        """Return the names of the separate outputs that do not have the batch yet."""
        return [name for name in self.outputs.ways.writers if name not in {*self.outputs.written, *course.returned}]

    def _write(self, batch: Batch, shown: Batch, frames: Frames, course: Course, check: Callable[[], object]) -> None:
        """Write the outputs that do not have the batch yet, and mark each; the commit replaces the mark of the last."""
        if self.outputs.ways.writers:
            if self.ledger.snapshot.pending is not None:
                if course.tell(self.ledger.confirm, batch):
                    raise _Committed
            else:
                landed, positions = self.outputs.first_targets(batch.group), self.ledger.snapshot.positions
                program = self.outputs.program(topics_of(positions))
                course.tell(self.ledger.begin, batch, tuple(self.outputs.ways.once), landed, program)
        left, used = self._left(course), bool(self.outputs.ways.joiners)
        for name in left:
            written = self._write_one(name, shown, frames[name], check)
            used |= written.used
            course.returned[name] = written.target
            if self.outputs.ways.joiners or name != left[-1]:
                course.tell(self.ledger.note_written, batch, name, written.target)
        if not used:  # Spark keeps the state of a query only if its frame is used
            next(iter(frames.values())).write.format("noop").mode("overwrite").save()

    def _write_one(self, name: str, shown: Batch, frame: DataFrame, check: Callable[[], object]) -> WriteResult:
        """Write a separate output."""
        way = self.outputs.ways.writers[name]
        if isinstance(way, Once):
            return way.write(frame, shown, self.outputs.landed_in(name), check)
        way.write(frame, shown)
        check_spark(frame)  # a function may have written only what it got before the JVM died
        return WriteResult(used=True, target="")

    def _commit(self, batch: Batch, finish: Callable[[Any], None], course: Course) -> None:
        if not self.outputs.ways.joiners:
            course.tell(self.ledger.commit, batch, self.reason, course.returned)
            return
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(self.ledger.transaction(batch, self.reason, course.returned))
            except AlreadyCommitted as error:
                raise _Committed from error
            finish(connection)  # which may raise an AlreadyCommitted of a ledger of the user's
            check_spark(course.frame)

    def _check_topics(self, batch: Batch, course: Course) -> None:
        """Check that no topic was created again since the plan, or is another cluster's: offsets do not show it."""
        ranges, stored = batch.ranges, self.ledger.snapshot.positions
        if not ranges or course.checked:
            return
        topics, known = {r.topic for r in ranges}, {r.topic_partition: stored[r.topic_partition] for r in ranges}
        cluster = self._cluster  # one client for both questions
        now = self.asked.pace.patiently(BrokerUnavailable, lambda: described(cluster, known))
        for tp, at in known.items():
            here = now.get(tp)
            if here is not None:
                check_cluster(at.cluster_id, here.cluster_id, topics)
            if here is None or is_recreated(at.topic_id, here.topic_id):
                raise RangeGone(f"topic {tp.topic} was deleted or created again while batch {batch.id} was read")
        if self.streams or isinstance(self.asked.reader, ConnectorReader):  # other tasks compare the records' epochs
            self.check_uncut(batch, cluster)
        course.checked = not self._reads(course)

    @property
    def _cluster(self) -> Cluster:
        """Kafka. Consumers of the connector cannot be asked where they are: a client that connects now is like them."""
        return self.asked.cluster.anew() if isinstance(self.asked.reader, ConnectorReader) else self.asked.cluster
