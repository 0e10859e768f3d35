"""The direct engine: plan, read exactly these ranges, process, commit. The ledger is the only truth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import stamina

from offsetkeeper.engines.planning import Subscription, make_plan
from offsetkeeper.engines.signals import Stop
from offsetkeeper.errors import (
    AlreadyCommitted,
    BrokerUnavailable,
    CorruptStore,
    Fenced,
    OffsetkeeperError,
    OutcomeUnknown,
    RangeGone,
    RuleError,
    SettingsError,
    SinkError,
    SinkMismatch,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.kafka import Cluster
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Batch, Guarantee, OffsetRange, TopicPartition
from offsetkeeper.plan import Plan, Row, Verdict
from offsetkeeper.readers import Reader, reading_error
from offsetkeeper.shares import share
from offsetkeeper.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("offsetkeeper")
range_log = logging.getLogger("offsetkeeper.ranges")

Until = Literal["stopped", "caught_up"]
T = TypeVar("T")
_HOPELESS = (RuleError, SettingsError, SinkMismatch, VersionConflict, CorruptStore)


_NUMBERS = (
    ("max_records", int, 1),
    ("poll_interval_s", int | float, 0),
    ("attempts", int, 1),
    ("patience_s", int | float, 0),
)


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch.

    Attributes:
        batch: its identity and exact ranges.
        seconds: from the choice of its ranges until the commit was durable.
        left: offsets still to read, as of the plan the batch was made from.
    """

    batch: Batch
    seconds: float
    left: int


@dataclass(slots=True)
class Summary:
    """What a run did: number of batches and of offsets committed, and why it ended ("caught up" or "stopped")."""

    batches: int = 0
    offsets: int = 0
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Pace:
    """How much, how often, how long.

    Attributes:
        max_records: the most offsets in one batch, or None for no limit.
        poll_interval_s: seconds between two looks at Kafka while there is nothing to read.
        attempts: how often a batch is tried before the run ends with its error.
        patience_s: seconds a broker or store may be away.
        log_ranges: log one line `topic partition start end` for each range of each batch.
    """

    max_records: int | None = None
    poll_interval_s: float = 1.0
    attempts: int = 3
    patience_s: float = 60.0
    log_ranges: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        for name, kind, least in _NUMBERS:
            value = getattr(self, name)
            if value is None and name == "max_records":
                continue
            if not isinstance(value, kind) or isinstance(value, bool) or not value >= least:
                raise SettingsError(f"{name}={value!r}: use a {'whole ' * (kind is int)}number from {least} on")


@dataclass(slots=True)
class Direct:
    """One run of a pipeline; setting `stop`, or all being read where `until` is "caught_up", ends it after a batch."""

    spark: SparkSession
    ledger: Ledger
    cluster: Cluster
    subscription: Subscription
    reader: Reader
    sink: Sink
    guarantee: Guarantee
    pace: Pace
    stop: Stop
    until: Until = "stopped"
    given: Mapping[TopicPartition, int] = field(default_factory=dict)
    transform: Callable[[DataFrame, Batch], DataFrame] = lambda frame, _: frame
    on_batch: Callable[[Progress], None] = lambda _: None
    summary: Summary = field(default_factory=Summary)
    _told: set[Any] = field(default_factory=set)
    _shared: bool = False  # whether output and offsets are one transaction

    def run(self) -> Summary:
        """Take the group, go on from where it stands, and give it back at the end.

        Raises:
            StartRefused: a partition's position cannot be resumed and its policy says stop.
            Fenced: another run has taken the group.
            OffsetkeeperError: see the tree in `errors`.
            Exception: whatever the output raised, at its last attempt; the batch's ranges are noted on it.
        """
        if self.until not in {"stopped", "caught_up"}:
            raise SettingsError(f"until={self.until!r}: use 'stopped' or 'caught_up'")
        self._patiently((StoreUnavailable, SinkError), self._check_sink)
        self.ledger.load()
        self._plan(self.given).check()  # so that a start that must be refused fences nobody
        self.ledger.acquire(reason="start")
        try:
            self._work()
        except (StoreUnavailable, OutcomeUnknown):
            raise  # to give the group back would be to wait once more: the next run takes it over
        except BaseException:
            self._release()
            raise
        self._release()
        return self.summary

    def _check_sink(self) -> None:
        self.sink.check(self.ledger.store, self.guarantee)
        self._shared = self.sink.shares_transaction(self.ledger.store)

    def _work(self) -> None:
        plan = self._plan(self.given).check()
        self._recover(plan)
        ends = _ends(plan) if self.until == "caught_up" else None
        while not self.stop.is_set():
            plan = self._plan().check()
            self.ledger.place(plan.places, reason="plan")
            if self._next_batch(plan, ends):
                continue
            if ends is not None:
                self.summary.ended = "caught up"
                return
            self.stop.wait(self.pace.poll_interval_s)
        self.summary.ended = "stopped"

    def _plan(self, given: Mapping[TopicPartition, int] | None = None) -> Plan:
        """Look at Kafka until it answers, and log what is new about the partitions."""
        group, positions = self.ledger.group, self.ledger.snapshot.positions
        plan = self._patiently(
            BrokerUnavailable, lambda: make_plan(self.cluster, self.subscription, group, positions, given)
        )
        found = {(row.topic_partition, row.verdict) for row in plan.rows if row.verdict is not Verdict.RESUME}
        if not found <= self._told or not self._told:
            log.info("plan of %s", plan)
        self._told = found or {None}
        return plan

    def _recover(self, plan: Plan) -> None:
        """Finish the batch an earlier run began, with the same ranges, or drop it where they cannot be read again."""
        pending = self.ledger.snapshot.pending
        if pending is not None and self._dropped(pending, plan):
            pending = None
        busy = {r.topic_partition for r in pending.ranges} if pending else set()
        self.ledger.place({tp: at for tp, at in plan.places.items() if tp not in busy}, reason="plan")
        if pending is not None and self._once:
            log.warning("batch %s may have been written before, so it counts as done:\n%s", pending.id, pending.lines())
            self.ledger.commit(pending)
        elif pending is not None:
            self._process(replace(pending, retry=True), time.monotonic(), left=0)

    def _dropped(self, batch: Batch, plan: Plan) -> bool:
        """Abandon a batch if the plan, which its policies allowed, goes on anywhere else than the batch does."""
        rows = {row.topic_partition: row for row in plan.rows}
        reasons = [why for r in batch.ranges if (why := _unreadable(r, rows.get(r.topic_partition)))]
        if not reasons:
            return False
        log.warning("batch %s is dropped: %s", batch.id, "; ".join(reasons[:20]))
        if self.ledger.snapshot.pending is not None:
            self.ledger.abandon("; ".join(reasons[:20]))
        return True

    def _next_batch(self, plan: Plan, ends: Mapping[TopicPartition, int] | None) -> bool:
        """Process what the plan has to read; False where that is nothing."""
        began = time.monotonic()
        positions = self.ledger.snapshot.positions
        backlogs = {
            tp: min(end, ends.get(tp, 0) if ends is not None else end) - positions[tp].offset
            for tp, end in _ends(plan).items()
        }
        shares = share(backlogs, self.pace.max_records, self.ledger.snapshot.sequence)
        if not shares:
            return False
        ranges = [OffsetRange(*tp, positions[tp].offset, positions[tp].offset + size) for tp, size in shares.items()]
        left = sum(size for size in backlogs.values() if size > 0) - sum(shares.values())
        self._process(self.ledger.batch(ranges), began, left)
        return True

    def _process(self, batch: Batch, began: float, left: int) -> None:
        if self.pace.log_ranges:
            range_log.info("batch %s\n%s", batch.id, batch.lines())
        attempt = 1
        while not self._tried(batch, attempt):
            self.stop.wait(min(2.0 ** (attempt - 1), 30))
            self._patiently(StoreUnavailable, lambda: self.ledger.store.load(self.ledger.group))
            if self._dropped(batch, self._plan().check()):
                return
            attempt += 1
        self.summary.batches += 1
        self.summary.offsets += batch.size
        progress = Progress(batch, time.monotonic() - began, left)
        log.info("batch %s: %d offsets in %.2f s, %d left", batch.id, batch.size, progress.seconds, left)
        self.on_batch(progress)

    def _tried(self, batch: Batch, attempt: int) -> bool:
        """Try a batch once; False where it may be tried again."""
        try:
            self._attempt(replace(batch, retry=batch.retry or attempt > 1))
        except AlreadyCommitted:
            return True
        except _HOPELESS:
            raise
        except Exception as error:
            if self._once or attempt >= self.pace.attempts or self.stop.is_set():
                found = _told_by_spark(error)
                (found or error).add_note(f"in batch {batch.id}, attempt {attempt}, ranges:\n{batch.lines()}"[:2000])
                if found is not None:
                    raise found from error
                raise
            log.warning("batch %s, attempt %d of %d failed: %s", batch.id, attempt, self.pace.attempts, error)
            return False
        return True

    def _attempt(self, batch: Batch) -> None:
        """Read, write and commit one batch in the order its guarantee asks for."""
        frame = self.transform(self.reader.read(self.spark, batch.ranges), batch)
        if self._shared:
            finish = self.sink.stage(frame, batch)
            self._check_topics(batch)
            with self.ledger.transaction(batch) as connection:
                finish(connection)
        elif self._once:
            self._check_topics(batch)
            self.ledger.commit(batch)
            self.sink.write(frame, batch)
        else:
            if self.ledger.snapshot.pending is None:
                self.ledger.begin(batch)
            self.sink.write(frame, batch)
            self._check_topics(batch)
            self.ledger.commit(batch)

    def _check_topics(self, batch: Batch) -> None:
        """Check that no topic was made again since the plan: offsets alone would not show it."""
        topics = {r.topic for r in batch.ranges}
        now = self._patiently(BrokerUnavailable, lambda: self.cluster.describe(topics))
        for tp in (r.topic_partition for r in batch.ranges):
            planned = self.ledger.snapshot.positions[tp].topic_id
            if tp.topic not in now or now[tp.topic].topic_id != planned is not None:
                raise RangeGone(f"topic {tp.topic} was deleted or made again while batch {batch.id} was read")

    @property
    def _once(self) -> bool:
        """Whether no batch may be written a second time, not even in part."""
        return self.guarantee is Guarantee.AT_MOST_ONCE and not self._shared

    def _patiently(self, on: type[Exception] | tuple[type[Exception], ...], call: Callable[[], T]) -> T:
        """Call until it does not raise `on`, for as long as the patience lasts."""
        seconds = self.pace.patience_s
        for attempt in stamina.retry_context(
            on=on, attempts=None if seconds else 1, timeout=seconds or None, wait_initial=0.1, wait_max=2.0
        ):
            with attempt:
                return call()
        raise AssertionError("unreachable: the loop above returns or raises")  # pragma: no cover

    def _release(self) -> None:
        try:
            self.ledger.release(reason="end")
        except Fenced:
            pass  # the newer owner has the group, and its own word on it
        except OffsetkeeperError as error:
            log.warning("group %s could not be released, the next run takes it over: %s", self.ledger.group, error)


def _told_by_spark(error: Exception) -> OffsetkeeperError | None:
    """Return our own error that an executor raised: Spark tells it as text.

    What the connector raises stays as it is: an output to Kafka raises the same.
    """
    ours = not isinstance(error, OffsetkeeperError) and f"{OffsetkeeperError.__module__}." in str(error)
    return reading_error(error) if ours else None


def _ends(plan: Plan) -> dict[TopicPartition, int]:
    return {row.topic_partition: row.found.end for row in plan.rows if row.found is not None}


def _unreadable(wanted: OffsetRange, row: Row | None) -> str:
    if row is None or row.start is None:
        return f"{wanted.topic_partition} is not read any more"
    if row.start != wanted.start or row.verdict is Verdict.GIVEN:
        return f"'{wanted}' was begun, but reading goes on at {row.start} ({row.verdict})"
    return ""
