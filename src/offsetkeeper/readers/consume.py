"""The heart of the packed reader: exact ranges of many partitions, read by one consumer. Runs on executors.

A range is read to its end when an offset at or past its last one was seen, or when the partition was said to end at or
past it. Counting records would not do: compaction and transaction markers leave holes.
"""

from __future__ import annotations

import gc
import math
from bisect import bisect_left
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeVar

from offsetkeeper.core.environment import monotonic
from offsetkeeper.errors import BrokerError, RangeGone, ReadStalled
from offsetkeeper.kafka.clients import Admin, library, redact
from offsetkeeper.kafka.codes import NO_GROUP_NEEDED, PARTITION_END, CodeVerdict, broker_error, judge
from offsetkeeper.kafka.topic_ids import NO_IDS, TopicIds
from offsetkeeper.readers.headers import size_of
from offsetkeeper.readers.source import cut, open_consumer, record_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from offsetkeeper.readers.source import Source

Range = tuple[str, int, int, int]  # an OffsetRange, as executors without offsetkeeper know it
Partition = tuple[str, int]
R = TypeVar("R", bound=Range)
_PATIENCE_S = 0.5
_QUESTION_S = 10.0
_DOUBT_S = 5.0
_STEP = 32
_SHOWN = 5
_DOUBTFUL = frozenset({CodeVerdict.NOT_SEEN, CodeVerdict.UNKNOWN_TOPIC})


def kafka(
    source: Source, tasks: Sequence[Iterable[Range]], topic_ids: Mapping[str, str], numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the tasks whose numbers are in the only column of `numbers`; see `read`."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read(source, tasks[number], topic_ids)


def read(source: Source, ranges: Iterable[Range], topic_ids: Mapping[str, str] = NO_IDS) -> Iterator[pa.RecordBatch]:
    """Yield the records of `ranges` as record batches, those of a partition in order.

    Args:
        source: where the records are.
        ranges: of offsets.
        topic_ids: the ids that topics must have, where they are known: before the first record is given, and once more
            before the last one is.

    Raises:
        RangeGone: Kafka no longer holds the beginning of a range, or a topic was made again.
        ReadStalled: a range was not read to its end within `stall_s` seconds without progress.
        BrokerUnavailable: the same, as brokers did not answer.
        UnknownTopic: a topic or partition does not exist.
        NotAuthorized: the credentials are wrong or lack a permission.
        BrokerError: a broker failed in another way.
        MissingExtra: confluent-kafka is not installed here.
    """
    wanted = sorted(ranges)
    ids = {topic: topic_ids[topic] for topic, *_ in wanted if topic in topic_ids}
    with ThreadPoolExecutor(1) as aside:  # as a client with a token provider takes a second to open
        opening = aside.submit(_check_of, source, ids)

        def check() -> None:
            opening.result()()

        for some in rounds(wanted):
            consumption = _Consumption(source, some, check)
            try:
                yield from consumption.batches()
            finally:
                consumption.close()


def _check_of(source: Source, ids: Mapping[str, str]) -> Callable[[], None]:
    return TopicIds(Admin(source.brokers, source.options, source.stall_s), ids).check if ids else lambda: None


def rounds(ranges: Iterable[R]) -> list[list[R]]:
    """Part sorted `ranges` so that no partition comes twice in one part: a consumer can be at one place of it only."""
    parts: list[list[R]] = []
    seen: Counter[Partition] = Counter()
    for each in ranges:
        number = seen[each[:2]]
        seen[each[:2]] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(each)
    return parts


def range_gone(topic: str, partition: int, wanted: tuple[int, int], held: tuple[Any, ...] | None) -> RangeGone:
    """Return the error for offsets `wanted` where Kafka holds only `held`, or None if that is not known."""
    but = "what Kafka still holds could not be asked" if held is None else "Kafka holds {} up to {}".format(*held)
    return RangeGone(
        f"{topic} {partition}: offsets {wanted[0]} up to {wanted[1]} are to be read, but {but}. Records were deleted, "
        "by retention or by hand, or the topic was made again: let the start be planned anew"
    )


@dataclass
class _Unread:
    """What is left of a range.

    Attributes:
        position: the next offset wanted.
        end: the range's end.
        log_end: the end of the partition, where it was met.
    """

    position: int
    end: int
    log_end: int | None = None


class _Positions:
    """The ranges that are not read to their end, at most one for each partition.

    Attributes:
        unread: by partition; who is missing is read.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.unread = {(topic, partition): _Unread(start, end) for topic, partition, start, end in ranges}

    def select(self, partitions: Sequence[Partition], offsets: Sequence[int]) -> Iterator[slice]:
        """Yield which records are wanted, and move the positions past them.

        Args:
            partitions: of each record; a partition's records come in its order.
            offsets: of each record.
        """
        for partition, indexes in groupby(range(len(partitions)), partitions.__getitem__):
            run = [*indexes]
            unread = self.unread.get(partition)
            if unread is None:
                continue
            seen = offsets[run[-1]] + 1
            first = bisect_left(offsets, unread.position, run[0], run[-1] + 1)
            yield slice(first, bisect_left(offsets, unread.end, first, run[-1] + 1))
            unread.position = max(unread.position, min(seen, unread.end))
            if seen >= unread.end:
                del self.unread[partition]

    def meet_end(self, partition: Partition, log_end: int) -> None:
        """Take note that a partition ends at `log_end`, and that all before has been seen."""
        unread = self.unread.get(partition)
        if unread is not None:
            unread.log_end = log_end
            if log_end >= unread.end:
                del self.unread[partition]

    def describe(self, most: int) -> str:
        """Say what is unread; of partitions, at most so many one by one."""
        lines = [
            f"{topic} {number} at {unread.position} of {unread.end}"
            + ("" if unread.log_end is None else f" (the partition ends at {unread.log_end})")
            for (topic, number), unread in sorted(self.unread.items())
        ]
        return "; ".join(lines[:most]) + (f" and {len(lines) - most} more" if len(lines) > most else "")


class _Consumption:
    """One consumer, and the ranges it has still to read."""

    def __init__(self, source: Source, ranges: list[Range], check_ids: Callable[[], None]) -> None:
        self._source, self._check_ids = source, check_ids
        self._positions = _Positions(ranges)
        self._reports: deque[Any] = deque(maxlen=20)
        self._trouble: Any = None  # the client's last report since a record came
        self._idle_s = 0.0
        self._doubt_s = min(_DOUBT_S, source.stall_s)
        self._question_s = min(_QUESTION_S, source.stall_s)
        self._kafka = library()
        self._consumer = open_consumer(source, self._reports.append)
        self._consumer.assign([self._kafka.TopicPartition(*each[:3]) for each in ranges])

    def batches(self) -> Iterator[pa.RecordBatch]:
        first = True
        while self._positions.unread:
            batch = self._next()
            if not self._positions.unread or (first and batch is not None):
                self._check_ids()  # what was taken before is of the topics that have these ids
                first = False
            if batch is not None:
                yield from cut(batch, self._source.batch_bytes)

    def _next(self) -> pa.RecordBatch | None:
        """Return the next records, or None where only other messages came; no message outlives this call."""
        with _no_garbage_collection():
            wanted = self._sort_out(self._take())
            return record_batch(wanted, headers=self._source.headers) if wanted else None

    def close(self) -> None:
        self._consumer.close()

    def _take(self) -> list[Any]:
        """Wait for one message, and take besides what is there already, up to about one batch.

        In steps: more may arrive while messages are taken, without end where they are large.
        """
        before = monotonic()
        messages: list[Any] = self._consumer.consume(1, _PATIENCE_S)
        self._idle_s += monotonic() - before
        size = self._size(messages)
        step = len(messages)
        while step and size < self._source.batch_bytes and len(messages) < self._source.batch_rows:
            fitting = (self._source.batch_bytes - size) * len(messages) // max(1, size)
            limit = min(_STEP, fitting + 1, self._source.batch_rows - len(messages))
            more = self._consumer.consume(limit, 0)
            messages += more
            size += self._size(more)
            step = len(more)
        return messages

    def _size(self, messages: list[Any]) -> int:
        keys = map(self._kafka.Message.key, messages)
        size = sum(map(len, messages)) + sum(map(len, filter(None, keys)))
        return size + size_of(messages) if self._source.headers else size

    def _sort_out(self, messages: list[Any]) -> list[Any]:
        """Return the records that are wanted, and see to all that is not a record."""
        unread = set(self._positions.unread)
        events = [message for message in messages if message.error() is not None]
        wanted = self._wanted([message for message in messages if message.error() is None] if events else messages)
        # After the records: that a partition ends is said behind them, and may be in the same messages.
        for event in events:
            self._hear(event)
        done = unread - self._positions.unread.keys()
        if wanted or done:
            self._idle_s, self._trouble = 0.0, None
        if done and self._positions.unread:
            self._consumer.pause([self._kafka.TopicPartition(*partition) for partition in done])
        self._check()
        return wanted

    def _wanted(self, records: list[Any]) -> list[Any]:
        message = self._kafka.Message  # unbound methods, mapped: half the time of calls one by one
        partitions = [*zip(map(message.topic, records), map(message.partition, records), strict=True)]
        offsets = [*map(message.offset, records)]
        return [*chain.from_iterable(records[some] for some in self._positions.select(partitions, offsets))]

    def _hear(self, event: Any) -> None:
        error, partition = event.error(), (event.topic(), event.partition())
        verdict = judge(error)
        if error.name() == PARTITION_END:
            self._positions.meet_end(partition, event.offset())
        elif verdict is CodeVerdict.NOTHING or error.name() == NO_GROUP_NEEDED:
            return
        elif partition not in self._positions.unread or verdict.passes or verdict in _DOUBTFUL:
            self._reports.append(error)
        elif verdict is CodeVerdict.GONE:
            raise self._gone(partition)
        else:
            raise self._failure(error, error.str(), "partition {} {}".format(*partition))

    def _check(self) -> None:
        """Raise what the client reports beside the messages and no waiting mends, or that nothing has come too long."""
        while self._reports:
            report = self._reports.popleft()
            self._trouble = report
            if judge(report) is CodeVerdict.REFUSED and report.name() != NO_GROUP_NEEDED:
                raise self._failure(report, report.str(), "the connection")
            if judge(report) in _DOUBTFUL:
                self._check_topics()
        if self._idle_s > self._doubt_s:
            self._doubt_s = math.inf
            self._check_topics()  # not all that is wrong with a topic is reported
        if self._positions.unread and self._idle_s > self._source.stall_s:
            raise self._stalled()

    def _stalled(self) -> BrokerError:
        unread = f"no record came for {self._source.stall_s:g} s. Unread: {self._positions.describe(_SHOWN)}"
        if self._trouble is not None and judge(self._trouble).passes:
            return self._failure(self._trouble, self._trouble.str(), unread)
        told = "" if self._trouble is None else f" ({redact(self._trouble.str(), self._source.options)})"
        return ReadStalled(
            f"{unread}. The brokers at {self._source.brokers} have nothing more to give{told}: the ranges end past the "
            "partitions' ends, or behind transactions that are still open"
        )

    def _check_topics(self) -> None:
        """Raise that a partition does not exist or may not be read, if the cluster says so, not one broker alone."""
        for topic in sorted({topic for topic, _ in self._positions.unread}):
            with suppress(self._kafka.KafkaException):
                known = self._consumer.list_topics(topic, self._question_s).topics[topic]
                if known.error is not None and judge(known.error) in {CodeVerdict.UNKNOWN_TOPIC, CodeVerdict.REFUSED}:
                    raise self._failure(known.error, known.error.str(), f"topic {topic}")
                numbers = {number for name, number in self._positions.unread if name == topic}
                missing = min(numbers - known.partitions.keys(), default=None)
                if missing is not None and known.error is None:
                    raise self._failure(CodeVerdict.UNKNOWN_TOPIC, "", f"partition {topic} {missing}")

    def _gone(self, partition: Partition) -> RangeGone:
        unread = self._positions.unread[partition]
        held = None
        with suppress(self._kafka.KafkaException):
            held = self._consumer.get_watermark_offsets(self._kafka.TopicPartition(*partition), self._question_s)
        return range_gone(*partition, (unread.position, unread.end), held)

    def _failure(self, error: Any, text: str, what: str) -> BrokerError:
        return broker_error(error, redact(text, self._source.options), what, self._source.brokers)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Thousands of messages that come and go make Python look for cycles all the time: 40 % of the reading's time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
