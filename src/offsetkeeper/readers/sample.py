"""The mean size of records, from a few of them: Kafka does not give sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetkeeper.core.environment import monotonic
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import RecordUnreadable
from offsetkeeper.kafka.clients import library, redact
from offsetkeeper.kafka.closing import close
from offsetkeeper.kafka.codes import CodeVerdict, broker_error, judge
from offsetkeeper.readers.headers import sizes_of
from offsetkeeper.readers.source import open_consumer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetkeeper.readers.source import Source

_TIME_S = 10.0
_RECORDS = 2_000
_POLL_S = 0.02  # the client waits for all of it where fewer records come
# Bytes asked for of each partition. A larger batch of a producer comes whole, but only one such in each answer.
_ENOUGH = 65_536
_FEW = {"fetch.message.max.bytes": str(_ENOUGH), "queued.min.messages": "1"}
_PASSED = frozenset(
    {CodeVerdict.NOTHING, CodeVerdict.GONE, CodeVerdict.UNKNOWN_TOPIC}
)  # reading itself says what is wrong


def _size_of_headers(message: Any) -> int:
    try:
        return sum(sizes_of([message]))
    except RecordUnreadable:  # reading itself says so
        return 0


def sample(source: Source, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
    """Return for each partition how many records were looked at from the offset on, and how many bytes they have.

    That is keys, values and headers, without compression. At least one record of each partition is looked at, and
    about 64 kB; a partition is absent where there is none, or none comes in time: so behind many records of aborted
    transactions.

    Args:
        source: where the records are.
        offsets: where to look, by partition.

    Raises:
        BrokerUnavailable, NotAuthorized, BrokerError: see `offsetkeeper.errors`. That no record comes is none of them.
    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    waiting = set(offsets)
    reports: list[Any] = []
    consumer = open_consumer(source, reports.append, _FEW)
    try:
        consumer.assign([library().TopicPartition(*tp, offset) for tp, offset in offsets.items()])
        deadline = monotonic() + min(_TIME_S, source.stall_s)
        while waiting and monotonic() < deadline:
            for message in consumer.consume(_RECORDS, _POLL_S):
                tp = TopicPartition(message.topic(), message.partition())
                if error := message.error():
                    if tp not in waiting or judge(error).passes:
                        reports.append(error)
                        continue
                    if judge(error) not in _PASSED:
                        raise broker_error(
                            error, redact(error.str(), source.options), f"partition {tp}", source.brokers
                        )
                else:
                    records, size = found.get(tp, (0, 0))
                    if size < _ENOUGH:  # later records say less about the next batch
                        size += len(message.key() or b"") + len(message.value() or b"")
                        found[tp] = records + 1, size + (_size_of_headers(message) if source.headers else 0)
                waiting.discard(tp)
    finally:
        close(consumer.close)
    trouble = [each for each in reports if judge(each).passes]
    if waiting and not found and trouble:
        raise broker_error(trouble[-1], redact(trouble[-1].str(), source.options), "a look at sizes", source.brokers)
    return found
