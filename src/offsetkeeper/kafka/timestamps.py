"""When the next record of each partition was written: one fetch for each partition, all in one consumer.

Where a record cannot be read, its time is estimated from the times of others, which the brokers' index tells.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.core.model import TopicPartition
from offsetkeeper.kafka.codes import Verdict, judge
from offsetkeeper.kafka.settings import Isolation, check_brokers, check_options

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import Cluster

_ROUNDS = 6  # each halves the time in which the record must have been written
_BATCH = 2_000
# Bytes asked for of each partition. A larger record batch comes too, but only one such in each answer.
_SMALL = 65_536
_NO_RECORD = {None, Verdict.NOTHING, Verdict.GONE}  # after which nothing more is to be waited for


class Timestamps(NamedTuple):
    """Milliseconds since 1970 by partition, and the topics that may not be read."""

    times_ms: dict[TopicPartition, int]
    refused: frozenset[str]


def record_timestamps(
    brokers: str,
    options: Mapping[str, str],
    offsets: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_committed",
    timeout_s: float = 10.0,
) -> Timestamps:
    """Return the timestamp of the first record at or after each offset, in milliseconds since 1970.

    A partition is absent where there is no such record, where it has no timestamp, where it may not be read, and where
    it was not read in time.

    Args:
        brokers: `host:port,…`.
        options: settings of librdkafka.
        offsets: where to look, by partition.
        isolation: whether records of open and aborted transactions count.
        timeout_s: seconds for all of them together.

    Raises:
        SettingsError: an option is wrong.
    """
    if not offsets:
        return Timestamps({}, frozenset())
    import confluent_kafka  # noqa: PLC0415 - `import offsetkeeper` must not load it

    consumer = confluent_kafka.Consumer(
        {
            **check_options(options),
            "bootstrap.servers": check_brokers(brokers),
            "group.id": "offsetkeeper-lag",  # of no group: it neither joins nor commits
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
            "max.partition.fetch.bytes": str(_SMALL),
            "queued.min.messages": "1",
            "fetch.queue.backoff.ms": "5",
            "fetch.wait.max.ms": "10",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()])
        return _read(consumer, confluent_kafka, set(offsets), time.monotonic() + timeout_s)
    finally:
        consumer.close()


def _read(consumer: Any, library: Any, waiting: set[TopicPartition], deadline: float) -> Timestamps:
    found: dict[TopicPartition, int] = {}
    refused: set[str] = set()
    while waiting and time.monotonic() < deadline:
        before = set(waiting)
        for message in consumer.consume(_BATCH, 0.1):
            tp = TopicPartition(message.topic(), message.partition())
            error = message.error()
            verdict = None if error is None else judge(error)
            if verdict is Verdict.REFUSED and tp.topic in {each.topic for each in waiting}:
                refused.add(tp.topic)
                waiting -= {each for each in waiting if each.topic == tp.topic}
            if tp not in waiting or verdict not in _NO_RECORD:
                continue
            kind, timestamp_ms = message.timestamp()
            if error is None and kind != library.TIMESTAMP_NOT_AVAILABLE and timestamp_ms > 0:
                found[tp] = timestamp_ms
            waiting.discard(tp)
        if done := before - waiting:
            consumer.pause([library.TopicPartition(*tp) for tp in done])
    return Timestamps(found, frozenset(refused))


def estimate_timestamps(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], now_ms: int
) -> dict[TopicPartition, int]:
    """Return about when the record at each offset was written, in milliseconds since 1970; no record is read.

    A partition is absent where no record before the offset has a time.

    Args:
        cluster: Kafka.
        offsets: of records that Kafka holds, by partition.
        now_ms: milliseconds since 1970, before which they were written.

    Raises:
        UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster.bounds`.
    """
    begun = cluster.first_since(dict.fromkeys(offsets, 0))
    points = {tp: [begun[tp]] for tp in offsets if tp in begun}
    until = dict.fromkeys(points, now_ms)  # the record is not newer than this
    for _ in range(_ROUNDS):
        middle = {tp: (points[tp][-1][1] + until[tp]) // 2 for tp in points}
        found = cluster.first_since(middle)
        for tp, known in points.items():
            if tp in found and found[tp][0] <= offsets[tp]:
                known.append(found[tp])
            else:
                until[tp] = middle[tp]
    # The next record after the wanted one is taken to be there at the end of that time.
    times = {tp: interpolate([*known, (offsets[tp] + 1, until[tp])], offsets[tp]) for tp, known in points.items()}
    return {tp: at for tp, at in times.items() if at is not None}


def interpolate(points: Sequence[tuple[int, int]], offset: int) -> int | None:
    """Return when the record at `offset` was written, going by records whose times are known.

    Args:
        points: (offset, milliseconds since 1970), sorted.
        offset: of the record.

    Returns:
        Milliseconds since 1970; None where the offset does not lie between two points.
    """
    after = bisect_right(points, offset, key=lambda point: point[0])
    if after and points[after - 1][0] == offset:
        return points[after - 1][1]
    if not 0 < after < len(points):
        return None
    (low, low_ms), (high, high_ms) = points[after - 1], points[after]
    return low_ms + (high_ms - low_ms) * (offset - low) // (high - low)
