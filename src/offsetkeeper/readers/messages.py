"""Messages of a client of confluent-kafka, and which of them are wanted. Runs on executors.

`readers/native` does the same without a Python object for each record, where that is there.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from offsetkeeper.core.environment import monotonic
from offsetkeeper.kafka.clients import library
from offsetkeeper.readers.headers import size_of
from offsetkeeper.readers.source import open_consumer, record_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from offsetkeeper.readers.source import Source

Range = tuple[str, int, int, int]
"""An OffsetRange, as executors without offsetkeeper know it."""
Partition = tuple[str, int]
_STEP = 32


class Taken(NamedTuple):
    """Records and events that were taken in one call.

    Attributes:
        batch: the records that are wanted, as one `pyarrow.RecordBatch`; None where there are none.
        events: errors and ends of partitions, in order: a `KafkaError`, its partition, an offset.
        waited_s: seconds that nothing came.
    """

    batch: Any
    events: Sequence[tuple[Any, Partition | None, int]]
    waited_s: float


class Rest(Protocol):
    """What is left of a range: the next offset wanted, and its end."""

    position: int
    end: int


class Messages(Protocol):
    """A client that reads ranges, at most one of each partition.

    Attributes:
        unread: what is left of each range. `take` moves the positions; a range is taken out when an offset at or past
            its last one was seen.
    """

    unread: dict[Partition, Rest]

    def take(self, wait_s: float) -> Taken:
        """Wait for one message, and take besides what is there already, up to about one batch."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None:
        """Fetch no more of these partitions."""
        ...

    def consumer(self) -> Any:
        """Return a consumer of confluent-kafka, to ask Kafka by it."""
        ...

    def close(self) -> None:
        """Close the client."""
        ...


@dataclass
class Unread:
    """See `Rest`."""

    position: int
    end: int


class PythonMessages:
    """See `Messages`.

    Args:
        source: where the records are.
        ranges: to read.
        report: called with each `KafkaError` beside the messages.

    Raises:
        SettingsError, MissingExtra, TokenUnavailable: see `open_client`.
    """

    def __init__(self, source: Source, ranges: Sequence[Range], report: Callable[[Any], None]) -> None:
        self._source = source
        self._kafka = library()
        self.unread: dict[Partition, Rest] = {(topic, number): Unread(*rest) for topic, number, *rest in ranges}
        self._consumer = open_consumer(source, report)
        self._consumer.assign([self._kafka.TopicPartition(*each[:3]) for each in ranges])

    def take(self, wait_s: float) -> Taken:
        """See `Messages.take`. No message outlives this call."""
        with _no_garbage_collection():
            messages, waited_s = self._take(wait_s)
            events = [message for message in messages if message.error() is not None]
            records = [message for message in messages if message.error() is None] if events else messages
            wanted = self._wanted(records)
            batch = record_batch(wanted, headers=self._source.headers) if wanted else None
            told = [(each.error(), (each.topic(), each.partition()), each.offset()) for each in events]
            return Taken(batch, told, waited_s)

    def pause(self, partitions: Sequence[Partition]) -> None:
        """See `Messages.pause`."""
        self._consumer.pause([self._kafka.TopicPartition(*partition) for partition in partitions])

    def consumer(self) -> Any:
        """See `Messages.consumer`."""
        return self._consumer

    def close(self) -> None:
        """See `Messages.close`."""
        self._consumer.close()

    def _take(self, wait_s: float) -> tuple[list[Any], float]:
        """In steps: more may arrive while messages are taken, without end where they are large."""
        before = monotonic()
        messages: list[Any] = self._consumer.consume(1, wait_s)
        waited_s = monotonic() - before
        size = self._size(messages)
        step = len(messages)
        while step and size < self._source.batch_bytes and len(messages) < self._source.batch_rows:
            fitting = (self._source.batch_bytes - size) * len(messages) // max(1, size)
            limit = min(_STEP, fitting + 1, self._source.batch_rows - len(messages))
            more = self._consumer.consume(limit, 0)
            messages += more
            size += self._size(more)
            step = len(more)
        return messages, waited_s

    def _size(self, messages: list[Any]) -> int:
        keys = map(self._kafka.Message.key, messages)
        size = sum(map(len, messages)) + sum(map(len, filter(None, keys)))
        return size + size_of(messages) if self._source.headers else size

    def _wanted(self, records: list[Any]) -> list[Any]:
        message = self._kafka.Message  # unbound methods, mapped: half the time of calls one by one
        partitions = [*zip(map(message.topic, records), map(message.partition, records), strict=True)]
        offsets = [*map(message.offset, records)]
        return [*chain.from_iterable(records[some] for some in self._select(partitions, offsets))]

    def _select(self, partitions: Sequence[Partition], offsets: Sequence[int]) -> Iterator[slice]:
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
