"""The direct engine: plan, read exactly these ranges, process, commit. The ledger is the only truth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from offsetkeeper.engines.deliver import Delivery, Pace, without_mark
from offsetkeeper.engines.output import Output
from offsetkeeper.engines.planning import Subscription, make_plan
from offsetkeeper.engines.signals import Stop
from offsetkeeper.errors import BrokerUnavailable, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.kafka import Cluster
from offsetkeeper.ledger import Ledger
from offsetkeeper.model import Batch, Guarantee, OffsetRange, TopicPartition
from offsetkeeper.plan import Plan, Row, Verdict
from offsetkeeper.readers import Reader
from offsetkeeper.shares import share
from offsetkeeper.sinks import Outputs, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetkeeper.sinks.functions import Process

log = logging.getLogger("offsetkeeper")

Until = Literal["stopped", "caught_up"]


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


@dataclass(slots=True)
class Direct:
    """One run of a pipeline; setting `stop`, or all being read where `until` is "caught_up", ends it after a batch."""

    spark: SparkSession
    ledger: Ledger
    cluster: Cluster
    subscription: Subscription
    reader: Reader
    sink: Sink | Outputs
    guarantee: Guarantee
    pace: Pace
    stop: Stop
    until: Until = "stopped"
    given: Mapping[TopicPartition, int] = field(default_factory=dict)
    transform: Process | None = None
    on_batch: Callable[[Progress], None] = lambda _: None
    summary: Summary = field(default_factory=Summary)
    delivery: Delivery = field(init=False)
    _told: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Bring together what delivers."""
        output = Output(self.sink, self.transform)
        self.delivery = Delivery(self.ledger, self.cluster, output, self.guarantee, self.pace, self.stop)

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
        plan = self.take()
        with self._giving_back():
            self._work(_ends(plan) if self.until == "caught_up" else None)
        self.delivery.release()
        return self.summary

    def take(self, *, recover: bool = True) -> Plan:
        """Take the group where its plan allows, store where reading begins, and return the plan.

        Args:
            recover: finish a batch that an earlier run began, with the same ranges; otherwise it stays pending.

        Raises:
            See `run`; the group is given back, where it was taken.
        """
        self.delivery.check()
        self.ledger.load()
        self._plan(self.given).check()  # so that a start that must be refused fences nobody
        self.ledger.acquire(reason="start")
        with self._giving_back():
            plan = self._plan(self.given).check()
            self._recover(plan, finish=recover)
        return plan

    @contextmanager
    def _giving_back(self) -> Iterator[None]:
        """Give the group back if the block fails."""
        try:
            yield
        except (StoreUnavailable, OutcomeUnknown):
            raise  # to give the group back would be to wait once more: the next run takes it over
        except BaseException:
            self.delivery.release()
            raise

    def _work(self, ends: Mapping[TopicPartition, int] | None) -> None:
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
        plan = self.delivery.patiently(
            BrokerUnavailable, lambda: make_plan(self.cluster, self.subscription, group, positions, given)
        )
        found = {(row.topic_partition, row.verdict) for row in plan.rows if row.verdict is not Verdict.RESUME}
        if not found <= self._told or not self._told:
            log.info("plan of %s", plan)
        self._told = found or {None}
        return plan

    def _recover(self, plan: Plan, *, finish: bool) -> None:
        """Finish the batch an earlier run began, with the same ranges, or drop it where they cannot be read again."""
        pending = self.ledger.snapshot.pending
        if pending is not None and self._dropped(pending if finish else without_mark(pending), plan):
            pending = None
        busy = {r.topic_partition for r in pending.ranges} if pending else set()
        self.ledger.place({tp: at for tp, at in plan.places.items() if tp not in busy}, reason="plan")
        if pending is not None and self.delivery.once:
            self.delivery.count_as_done(pending)
        elif pending is not None and finish:
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
        if not self.delivery.deliver(batch, self._records, lambda: not self._dropped(batch, self._plan().check())):
            return
        self.summary.batches += 1
        self.summary.offsets += batch.size
        progress = Progress(batch, time.monotonic() - began, left)
        log.info("batch %s: %d offsets in %.2f s, %d left", batch.id, batch.size, progress.seconds, left)
        self.on_batch(progress)

    def _records(self, batch: Batch) -> DataFrame:
        return self.reader.read(self.spark, batch.ranges)


def _ends(plan: Plan) -> dict[TopicPartition, int]:
    return {row.topic_partition: row.found.end for row in plan.rows if row.found is not None}


def _unreadable(wanted: OffsetRange, row: Row | None) -> str:
    if row is None or row.start is None:
        return f"{wanted.topic_partition} is not read any more"
    if row.start != wanted.start or row.verdict is Verdict.GIVEN:
        return f"'{wanted}' was begun, but reading goes on at {row.start} ({row.verdict})"
    return ""
