"""Where records come from, and what they become: the consumer of a task, and its messages as Arrow. Runs on executors.

The columns are those of Spark's own Kafka source, see Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from offsetkeeper.kafka.clients import open_client
from offsetkeeper.readers.headers import headers_of
from offsetkeeper.readers.unreadable import BAD_TIME, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from offsetkeeper.core.cluster import Isolation

_COLUMNS = (  # of Spark's source, whatever spark.sql.timestampType makes of a plain "timestamp"
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, timestampType int"
)
_MOST = 2**63
_HEADERS = "headers array<struct<key: string, value: binary>>"
_TUNING = {
    # One second by default: what a consumer waits before it fetches on when its queue was full.
    "fetch.queue.backoff.ms": "5",
    # How long a broker may sit on a request for a partition that has nothing more.
    "fetch.wait.max.ms": "10",
    # They bound the memory of a task. The queue is filled up to so many records (each takes half a kilobyte besides its
    # bytes) or so many bytes, and may then get one more answer. The queue counts bytes as they are unpacked. An answer
    # counts them as they are packed, so it is kept small: it may become a hundred times as large.
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "fetch.max.bytes": "1000000",
    "fetch.message.max.bytes": "262144",
    # How long a topic that a broker does not know is asked for again.
    "topic.metadata.propagation.max.ms": "5000",
    # No record is too large to be received.
    "receive.message.max.bytes": "2147483647",
    # Spark decides when the next batch is wanted.
    "max.poll.interval.ms": "86400000",
}
# The limit of bytes does not count headers, which may be 60 kB each: so few records do as well.
_FEW = {"queued.min.messages": "1000"}
# Records of several partitions wait for their turn behind the queue, which may be shorter then. What is in it of a
# partition that is paused is fetched once more.
_SHORT_QUEUE = {"queued.min.messages": "20000"}
# How often a client tells how far it has fetched until a read counts as stalled, if it is to tell.
_TOLD = 4
_DAY_MS = 86_400_000
# Of a record in the format before Kafka 0.10: its time is 0 to librdkafka, and -1 to the Java client, and so to Spark.
_NO_TIME = 0
_NO_TUNING: dict[str, str] = {}
_FIXED = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
}


@dataclass(frozen=True)
class Source:
    """What a task needs to know to read.

    Attributes:
        brokers: `host:port,host:port,…`.
        options: settings of librdkafka; they win over the reader's tuning.
        group: a label for the brokers' logs and quotas; the group is never joined.
        isolation: read_committed or read_uncommitted.
        headers: whether to deliver the records' headers.
        raw_times: whether `timestamp` is what Kafka holds: milliseconds since 1970, as a long. Spark's own timestamp
            cannot hold all of them.
        stall_s: seconds without any progress after which to give up.
        batch_bytes: size of one record batch; only a batch of one record may have more.
        batch_rows: number of rows in one record batch, at most.
    """

    brokers: str
    options: dict[str, str] = field(repr=False)
    group: str
    isolation: Isolation
    headers: bool = False
    raw_times: bool = False
    stall_s: float = 60
    batch_bytes: int = 8 * 2**20
    batch_rows: int = 10_000

    @property
    def columns(self) -> str:
        """The schema of what is read, as Spark writes it."""
        columns = _COLUMNS.replace("timestamp_ltz", "bigint") if self.raw_times else _COLUMNS
        return f"{columns}, {_HEADERS}" if self.headers else columns


def for_ranges(source: Source, count: int) -> Source:
    """Return the source, tuned for a task with so many ranges."""
    return source if count == 1 or source.headers else replace(source, options={**_SHORT_QUEUE, **source.options})


def open_consumer(
    source: Source,
    report: Callable[[Any], None],
    tuning: Mapping[str, str] = _NO_TUNING,
    make: Callable[[dict[str, Any]], Any] | None = None,
) -> Any:
    """Return a consumer that reads as `source` says.

    Args:
        source: where the records are.
        report: called with each `KafkaError` beside the messages.
        tuning: settings that go before the reader's.
        make: see `open_client`.

    Raises:
        SettingsError, MissingExtra: see `open_client`.
    """
    told = str(max(1, min(_DAY_MS, int(source.stall_s * 1000 / _TOLD))))  # by them a long wait is known to go on
    settings = {"group.id": source.group, "isolation.level": source.isolation, "statistics.interval.ms": told}
    usual = _TUNING | _FEW if source.headers else _TUNING
    options = {**usual, **source.options, **tuning}
    return open_client("Consumer", source.brokers, options, _FIXED | settings, report, make)


def record_batch(messages: Sequence[Any], *, headers: bool, raw_times: bool = False) -> pa.RecordBatch:
    """Return `messages`, each a `confluent_kafka.Message` and none an error, as one record batch in the same order.

    Raises:
        RecordUnreadable: Spark cannot hold a record's time; or see `headers_of`.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    from confluent_kafka import Message  # noqa: PLC0415 - only executors need it
    from pyarrow import compute  # noqa: PLC0415 - only executors need it

    types, milliseconds = zip(*map(Message.timestamp, messages), strict=True)
    if _NO_TIME in types:
        milliseconds = tuple(-1 if kind == _NO_TIME else ms for kind, ms in zip(types, milliseconds, strict=True))
    columns = {
        "key": pa.array(list(map(Message.key, messages)), pa.binary()),
        "value": _binary(list(map(Message.value, messages))),
        "topic": pa.array(list(map(Message.topic, messages)), pa.string()),
        "partition": pa.array(list(map(Message.partition, messages)), pa.int32()),
        "offset": pa.array(list(map(Message.offset, messages)), pa.int64()),
        "timestamp": pa.array(milliseconds, pa.int64()) if raw_times else _times(messages, milliseconds),
        # librdkafka counts 0 none, 1 create time, 2 append time; the Java client, and so Spark, one less.
        "timestampType": compute.subtract(pa.array(types, pa.int32()), pa.scalar(1, pa.int32())),
    }
    if headers:
        columns["headers"] = headers_of(messages)
    return pa.RecordBatch.from_pydict(columns)


def _times(messages: Sequence[Any], milliseconds: Sequence[int]) -> pa.Array:
    """Return times as Spark holds them, in microseconds.

    Raises:
        RecordUnreadable: it cannot hold one.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    try:
        return pa.array(milliseconds, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        at = next(number for number, ms in enumerate(milliseconds) if not -_MOST <= ms * 1000 < _MOST)
        message = messages[at]
        place = message.topic(), message.partition(), message.offset()
        raise unreadable(place, BAD_TIME.format(milliseconds[at])) from None


def _binary(values: list[bytes | None]) -> pa.Array:
    """Return values as Arrow; one alone is not copied, since it may be of any size."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    if len(values) != 1 or values[0] is None:
        return pa.array(values, pa.binary())
    places = pa.array([0, len(values[0])], pa.int32())
    return pa.Array.from_buffers(pa.binary(), 1, [None, places.buffers()[1], pa.py_buffer(values[0])])


def cut(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in pieces of at most `limit` bytes; only a piece of one row may have more."""
    if batch.nbytes <= limit or batch.num_rows == 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from cut(batch.slice(0, half), limit)
        yield from cut(batch.slice(half), limit)
