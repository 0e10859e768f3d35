"""Messages of a client of confluent-kafka, and which of them are wanted. Runs on executors.

`readers/native` does the same without a Python object for each record, where that is there.
"""

from __future__ import annotations

import gc
import re
from bisect import bisect_left
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from offsetkeeper.core.environment import monotonic
from offsetkeeper.kafka.clients import library
from offsetkeeper.kafka.codes import PARTITION_END
from offsetkeeper.readers.flow import Flow
from offsetkeeper.readers.headers import sizes_of
from offsetkeeper.readers.held import Held
from offsetkeeper.readers.source import open_consumer, record_batch
from offsetkeeper.readers.turns import Range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from offsetkeeper.readers.source import Source

Partition = tuple[str, int]
Event = tuple[Any, Partition | None, int]
NO_EPOCHS: dict[Partition, int] = {}
_STEP = 32
_NEXT_OFFSET = re.compile(r'"next_offset":(-?\d+)')


class Taken(NamedTuple):
    """What came in one call, and the records whose turn it was.

    Attributes:
        batch: the records, as one `pyarrow.RecordBatch`; None where there are none.
        events: errors and ends of partitions: a `KafkaError`, its partition, an offset, which is negative where there
            is none. A record that is wanted and has a later leader epoch than its range is an error too: the log was
            cut and written again.
        waited_s: seconds that nothing came.
        arrived: whether records that are wanted have come, or all of a range, or the client has fetched on: it gives
            nothing of aborted transactions. The batch may have other records.
    """

    batch: Any
    events: Sequence[Event]
    waited_s: float
    arrived: bool


class Rest(Protocol):
    """What has not come of a range: the next offset wanted, and its end."""

    position: int
    end: int


class Messages(Protocol):
    """A client that reads ranges, at most one of each partition, and gives their records in the order of `turns`.

    Attributes:
        unread: what has not come of each range. `take` moves the positions; a range is taken out when an offset at or
            past its last one was seen, or its partition was said to end there.
        awaited: the partition whose turn it is; None where all was given.
    """

    unread: dict[Partition, Rest]

    @property
    def awaited(self) -> Partition | None:
        """See above."""
        ...

    def take(self, wait_s: float) -> Taken:
        """Wait for a message where none can be given, and take besides what is there already, up to about one batch."""
        ...

    def cluster_id(self, wait_s: float) -> str | None:
        """Return Kafka's id of the cluster that the client reads; None if it has none, or does not tell it in time."""
        ...

    def consumer(self) -> Any:
        """Return a consumer of confluent-kafka, to ask Kafka by it."""
        ...

    def close(self) -> None:
        """Close the client."""
        ...


class PythonMessages:
    """See `Messages`.

    Args:
        source: where the records are.
        ranges: to read; sorted, and none is empty.
        report: called with each `KafkaError` beside the messages.
        epochs: the leader epoch of each range, where it is known; see `read` of `consume`.

    Raises:
        SettingsError, MissingExtra, TokenUnavailable: see `open_client`.
    """

    def __init__(
        self,
        source: Source,
        ranges: Sequence[Range],
        report: Callable[[Any], None],
        epochs: Mapping[Partition, int] = NO_EPOCHS,
    ) -> None:
        self._source, self._epochs = source, epochs
        self._later: list[Event] = []
        self._kafka = library()
        self._partitions = [each[:2] for each in ranges]
        self._numbers = {partition: number for number, partition in enumerate(self._partitions)}
        self._held, self._flow = Held(ranges), Flow(ranges)
        self.unread: dict[Partition, Rest] = dict(zip(self._partitions, self._held.rests, strict=True))
        self._fetched: int | None = None
        self._fetches = False
        self._consumer = open_consumer(source, report, make=self._make)
        self._cluster_id: str | None = None
        self._steer([])

    @property
    def awaited(self) -> Partition | None:
        """See `Messages`."""
        return None if self._held.awaited is None else self._partitions[self._held.awaited]

    def take(self, wait_s: float) -> Taken:
        """See `Messages.take`."""
        most = self._source.batch_rows, self._source.batch_bytes
        with _no_garbage_collection():
            given = self._held.give(*most)
            messages, sizes, waited_s = ([], [], 0.0) if given or not self.unread else self._take(wait_s)
            events = [message for message in messages if message.error() is not None]
            if events:
                sizes = [size for message, size in zip(messages, sizes, strict=True) if message.error() is None]
                messages = [message for message in messages if message.error() is None]
            unread = {*self.unread}
            arrived = self._put(messages, sizes)
            for each in events:
                if each.error().name() == PARTITION_END:
                    self._move((each.topic(), each.partition()), each.offset())
            later, self._later = self._later, []
            given = given or self._held.give(*most)
            batch = self._record_batch(given) if given else None
            told = [(each.error(), (each.topic(), each.partition()), _offset(each)) for each in events] + later
            arrived |= len(unread) > len(self.unread) or self._fetches
            self._fetches = False
            self._steer([self._numbers[each] for each in unread - self.unread.keys()])
            return Taken(batch, told, waited_s, arrived)

    def cluster_id(self, wait_s: float) -> str | None:
        """See `Messages.cluster_id`. Where Kafka does not answer, it is the last answer."""
        with suppress(self._kafka.KafkaException):
            self._cluster_id = self._consumer.list_topics(self._partitions[0][0], wait_s).cluster_id
        return self._cluster_id

    def consumer(self) -> Any:
        """See `Messages.consumer`."""
        return self._consumer

    def close(self) -> None:
        """See `Messages.close`."""
        self._consumer.close()

    def _make(self, given: dict[str, Any]) -> Any:
        return self._kafka.Consumer({**given, "stats_cb": self._see_fetched})

    def _see_fetched(self, statistics: str) -> None:
        """See from the client's statistics whether it has fetched on since those before."""
        fetched = sum(map(int, _NEXT_OFFSET.findall(statistics)))
        self._fetches |= self._fetched is not None and fetched > self._fetched
        self._fetched = fetched

    def _take(self, wait_s: float) -> tuple[list[Any], list[int], float]:
        """Return messages and their sizes, in steps: more may arrive meanwhile, without end where they are large."""
        before = monotonic()
        messages: list[Any] = self._consumer.consume(1, wait_s)
        waited_s = monotonic() - before
        sizes = self._sizes(messages)
        size, step = sum(sizes), len(messages)
        while step and size < self._source.batch_bytes and len(messages) < self._source.batch_rows:
            fitting = (self._source.batch_bytes - size) * len(messages) // max(1, size)
            limit = min(_STEP, fitting + 1, self._source.batch_rows - len(messages))
            more = self._consumer.consume(limit, 0)
            messages += more
            of_more = self._sizes(more)
            sizes += of_more
            size += sum(of_more)
            step = len(more)
        return messages, sizes, waited_s

    def _sizes(self, messages: list[Any]) -> list[int]:
        keys = [*map(self._kafka.Message.key, messages)]
        sizes = [*map(len, messages)]
        if any(keys):
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        if self._source.headers:
            wanted = [*map(self._wants, messages)]  # of another record it does not matter whether they can be read
            more = iter(sizes_of([message for message, wants in zip(messages, wanted, strict=True) if wants]))
            sizes = [size + (next(more) if wants else 0) for size, wants in zip(sizes, wanted, strict=True)]
        return sizes

    def _wants(self, message: Any) -> bool:
        unread = self.unread.get((message.topic(), message.partition()))
        return message.error() is None and unread is not None and unread.position <= message.offset() < unread.end

    def _record_batch(self, messages: list[Any]) -> Any:
        return record_batch(messages, headers=self._source.headers, raw_times=self._source.raw_times)

    def _put(self, messages: list[Any], sizes: list[int]) -> bool:
        """Keep those that are wanted, move the positions past them, and return whether there are any.

        A partition's messages come in its order.
        """
        message = self._kafka.Message  # unbound methods, mapped: half the time of calls one by one
        partitions = [*zip(map(message.topic, messages), map(message.partition, messages), strict=True)]
        offsets = [*map(message.offset, messages)]
        arrived = False
        for partition, indexes in groupby(range(len(partitions)), partitions.__getitem__):
            run = [*indexes]
            unread = self.unread.get(partition)
            if unread is None:
                continue
            stop = run[-1] + 1
            first = bisect_left(offsets, unread.position, run[0], stop)
            last = bisect_left(offsets, unread.end, first, stop)
            if first < last:
                arrived = True
                self._compare(partition, messages[last - 1])
                self._held.put(self._numbers[partition], messages[first:last], offsets[first:last], sizes[first:last])
            self._move(partition, offsets[stop - 1] + 1)
        return arrived

    def _compare(self, partition: Partition, newest: Any) -> None:
        """Report a record that has a later leader epoch than its range; in a log, epochs never get less."""
        known, epoch = self._epochs.get(partition), newest.leader_epoch()
        if known is not None and epoch is not None and epoch > known:
            code, text = self._kafka.KafkaError._LOG_TRUNCATION, f"leader epoch {epoch}, and {known} was planned"  # noqa: SLF001 - its name
            self._later.append((self._kafka.KafkaError(code, text), partition, newest.offset()))

    def _move(self, partition: Partition, seen: int) -> None:
        """Move a partition's position: of what is before `seen`, nothing more will come."""
        unread = self.unread.get(partition)
        if unread is not None:
            unread.position = max(unread.position, min(seen, unread.end))
            if unread.position == unread.end:
                del self.unread[partition]

    def _steer(self, arrived: Sequence[int]) -> None:
        """Let the client fetch what is to be fetched now."""
        change = self._flow.change(self._held.awaited, arrived, self._held.sizes.__getitem__, self._held.total)
        if change.begin:
            places = [(*self._partitions[number], self._held.rests[number].position) for number in change.begin]
            self._consumer.incremental_assign([self._kafka.TopicPartition(*place) for place in places])
        if change.pause and self.unread:
            self._consumer.pause(self._some(change.pause))
        if change.resume:
            self._consumer.resume(self._some(change.resume))
            for number in change.resume:  # it wakes the broker's thread, which may sleep for a second, and does no more
                place = (*self._partitions[number], self._held.rests[number].position)
                with suppress(self._kafka.KafkaException):
                    self._consumer.seek(self._kafka.TopicPartition(*place))

    def _some(self, numbers: Sequence[int]) -> list[Any]:
        return [self._kafka.TopicPartition(*self._partitions[number]) for number in numbers]


def _offset(event: Any) -> int:
    """Return an event's offset; -1 where it has none, as a cut that is found while a task reads."""
    offset = event.offset()
    return -1 if offset is None else int(offset)


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
