"""Consumers of the store in Kafka: what groups have committed, and the records of the store's topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from offsetkeeper.model import TopicPartition

T = TypeVar("T")
# By default what follows a transaction closely, to read or to write, waits 100 ms for it to be visible everywhere. Not
# for admin clients: with this, one of librdkafka 2.16 never comes back from a coordinator that is just starting.
CLOSELY = {"retry.backoff.ms": "10", "retry.backoff.max.ms": "500"}
_SHORT, _LONG = 0.5, 5.0  # seconds that one try to read may take
_CONSUMERS = 16  # kept: two for each group, to see its offsets, and two to read records
_MEMBER = {"isolation.level": "read_committed", "enable.auto.commit": "false", **CLOSELY}
_READER = {
    "group.id": "offsetkeeper",  # the client wants one; nothing is committed for it
    "isolation.level": "read_uncommitted",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "10",
}


class Record(NamedTuple):
    """A record of the store's topic."""

    key: bytes
    value: bytes
    offset: int


class Consumers:
    """The consumers of one store, kept. Any thread may use them.

    Args:
        make: makes one with the settings given.
        timeout: seconds that one request may take.
    """

    def __init__(self, make: Callable[[Mapping[str, str]], Any], timeout: float) -> None:
        self._make = make
        self._timeout = timeout
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._kept: dict[tuple[str, ...], Any] = {}

    def offsets(
        self, group: str, asked: Collection[TopicPartition], limit: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return a group's committed offsets of the partitions asked for.

        While a transaction of the group is open, or not yet visible everywhere, its end is waited for.

        Raises:
            KafkaException: it took longer than `limit` seconds, by default the timeout; and all others.
        """
        # Not through the admin client: in librdkafka 2.16 it crashes the process while the coordinator starts.
        partitions = [KafkaPartition(*tp) for tp in asked]
        if not partitions:
            return {}

        def committed(member: Any, seconds: float) -> dict[TopicPartition, int]:
            return dict(map(_offset, member.committed(partitions, seconds)))

        found = self._ask({**_MEMBER, "group.id": group}, committed, limit)
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic of the cluster."""
        found = self._ask(_READER, lambda consumer, seconds: consumer.list_topics(timeout=seconds)).topics
        return {name: len(topic.partitions) for name, topic in found.items() if not topic.error}

    def record(self, topic: str, offset: int) -> Record | None:
        """Return the record at an offset, committed or not; None where it is not there any more."""

        def read(consumer: Any, seconds: float) -> Record | None:
            try:
                found = next(_records(consumer, topic, offset, seconds), None)
            except KafkaException as error:
                if error.args[0].name() not in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                    raise
                return None
            return found if found and found.offset == offset else None

        with self._reading:
            return self._ask(_READER, read)

    def newest(self, topic: str, wanted: Callable[[bytes], bool], *, committed: bool) -> dict[bytes, Record]:
        """Read the whole topic and return the newest record of each key that is wanted, and not deleted.

        Args:
            topic: with one partition.
            wanted: tells of a key whether it is.
            committed: whether to leave out records of transactions that are open or were aborted.
        """

        def read(consumer: Any, seconds: float) -> dict[bytes, Record]:
            records = _records(consumer, topic, OFFSET_BEGINNING, seconds)
            return {record.key: record for record in records if wanted(record.key)}

        with self._reading:
            found = self._ask(_READER | ({"isolation.level": "read_committed"} if committed else {}), read)
        return {key: record for key, record in found.items() if record.value}

    def membership(self, group: str) -> Any:
        """Return what a producer names a group by when it sends offsets."""
        return self._ask({**_MEMBER, "group.id": group}, lambda member, _: member.consumer_group_metadata())

    def close(self) -> None:
        """Let all go; they are made again when used."""
        with self._lock:
            self._kept.clear()

    def _ask(self, settings: Mapping[str, str], ask: Callable[[Any, float], T], limit: float | None = None) -> T:
        """Ask a consumer with these settings, for at most `limit` seconds, by default the timeout.

        After any error it is thrown away: it may not find its way back to a broker that was started again.
        """
        deadline = time.monotonic() + (limit or self._timeout)
        while True:
            left = deadline - time.monotonic()
            consumer = self._consumer(settings)
            try:
                return ask(consumer, min(max(left, _SHORT), _LONG))
            except KafkaException:
                with self._lock:
                    self._kept = {key: held for key, held in self._kept.items() if held is not consumer}
                if left < _LONG:
                    raise

    def _consumer(self, settings: Mapping[str, str]) -> Any:
        key = tuple(settings.values())
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(settings)
                if len(self._kept) > _CONSUMERS:
                    self._kept.pop(next(iter(self._kept)))
            return self._kept[key]


def _offset(found: Any) -> tuple[TopicPartition, int]:
    if found.error:
        raise KafkaException(found.error)
    return TopicPartition(found.topic, found.partition), found.offset


def _records(consumer: Any, topic: str, start: int, timeout: float) -> Iterator[Record]:
    """Read the topic's one partition from an offset to its end; each wait is limited by `timeout` seconds."""
    consumer.assign([KafkaPartition(topic, 0, start)])
    try:
        while (message := consumer.poll(timeout)) is not None:
            if message.error() is None:
                yield Record(message.key() or b"", message.value() or b"", message.offset())
            elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - how librdkafka names it
                return
            else:
                raise KafkaException(message.error())
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - as above
    finally:
        consumer.unassign()  # or it goes on reading what nobody asks for
