"""Kafka messages as Arrow record batches with the columns of Spark's own Kafka source. Runs on executors.

Source of the columns: Spark's "Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"


def record_batch(messages: Sequence[Any], *, headers: bool) -> pa.RecordBatch:
    """Return `messages`, each a `confluent_kafka.Message` and none an error, as one record batch in the same order."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    from confluent_kafka import Message  # noqa: PLC0415 - only executors need it
    from pyarrow import compute  # noqa: PLC0415 - only executors need it

    types, milliseconds = zip(*map(Message.timestamp, messages), strict=True)
    columns = {
        "key": pa.array(list(map(Message.key, messages)), pa.binary()),
        "value": pa.array(list(map(Message.value, messages)), pa.binary()),
        "topic": pa.array(list(map(Message.topic, messages)), pa.string()),
        "partition": pa.array(list(map(Message.partition, messages)), pa.int32()),
        "offset": pa.array(list(map(Message.offset, messages)), pa.int64()),
        "timestamp": pa.array(milliseconds, pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        # librdkafka counts 0 none, 1 create time, 2 append time; the Java client, and so Spark, one less.
        "timestampType": compute.subtract(pa.array(types, pa.int32()), pa.scalar(1, pa.int32())),
    }
    if headers:
        columns["headers"] = _headers(list(map(Message.headers, messages)))
    return pa.RecordBatch.from_pydict(columns)


def cut(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield `batch` in pieces of at most `limit` bytes; only a piece of one row may have more."""
    if batch.nbytes <= limit or batch.num_rows == 1:
        yield batch
    else:
        half = batch.num_rows // 2
        yield from cut(batch.slice(0, half), limit)
        yield from cut(batch.slice(half), limit)


def _headers(of_messages: list[Any]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    # A message without headers has null, not an empty list, as with Spark's source.
    ends = list(accumulate(len(each or ()) for each in of_messages))
    starts = [end - len(each) if each else None for each, end in zip(of_messages, ends, strict=True)]
    pairs = list(chain.from_iterable(each or () for each in of_messages))
    structs = pa.StructArray.from_arrays(
        [pa.array([key for key, _ in pairs], pa.string()), pa.array([value for _, value in pairs], pa.binary())],
        ["key", "value"],
    )
    return pa.ListArray.from_arrays(pa.array([*starts, len(pairs)], pa.int32()), structs)
