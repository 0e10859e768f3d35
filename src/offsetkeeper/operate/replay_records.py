"""Reads the records of a replay without Spark: all that Kafka holds, also what Spark's frames cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.cluster import first_ms
from offsetkeeper.errors import MissingExtra, RecordUnreadable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.replay_plan import Replay
from offsetkeeper.readers import Source, consume
from offsetkeeper.readers.ranges import tidy
from offsetkeeper.readers.unreadable import Place, place_of

if TYPE_CHECKING:
    import pyarrow as pa

    from offsetkeeper.readers.turns import Range


def replay_records(replay: Replay, cluster: KafkaCluster) -> Iterator[dict[str, Any]]:
    """Yield each record that a replay wants, in order within each partition.

    The fields are the columns of the readers' frames, but that `timestamp` is milliseconds since 1970. A record whose
    headers cannot be read has none, and in the field `unreadable` the reason.

    Raises:
        MissingExtra: pyarrow is not installed.
        RangeGone, ReadStalled, NotAuthorized, BrokerError: see `errors`.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("reading needs pyarrow: pip install 'offsetkeeper[spark]'")
    group = f"offsetkeeper-{replay.group}"
    source = Source(cluster.brokers, dict(cluster.options), group, cluster.isolation, headers=True, raw_times=True)
    left: list[Range] = [(*r,) for r in tidy(replay.ranges)]  # one of each partition: a batch may have several
    while left:
        at = {each[:2]: each[2] for each in left}
        try:
            for batch in consume.read(source, left, replay.topic_ids):
                yield from _rows(replay, batch, at)
            left = []
        except RecordUnreadable as error:
            bad = place_of(error)
            if bad is None:
                raise
            yield from _around(replay, source, at, (bad, str(error)))
            left = [(*each[:2], at[each[:2]], each[3]) for each in left]


def _around(
    replay: Replay, source: Source, at: dict[tuple[str, int], int], found: tuple[Place, str]
) -> Iterator[dict[str, Any]]:
    """Yield what comes before a record that cannot be read, in its partition, and then its key and value."""
    (topic, partition, offset), why = found
    for batch in consume.read(source, [(topic, partition, at[topic, partition], offset)], replay.topic_ids):
        yield from _rows(replay, batch, at)
    bare = replace(source, headers=False)
    for batch in consume.read(bare, [(topic, partition, offset, offset + 1)], replay.topic_ids):
        yield from (row | {"unreadable": why} for row in _rows(replay, batch, at))


def _rows(replay: Replay, batch: pa.RecordBatch, at: dict[tuple[str, int], int]) -> Iterator[dict[str, Any]]:
    """Yield the wanted rows, and note up to where each partition was read."""
    places = zip(*(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    at.update({(topic, partition): offset + 1 for topic, partition, offset in places})
    yield from between(replay, batch).to_pylist()


def between(replay: Replay, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with a time that a replay wants."""
    import pyarrow as pa  # noqa: PLC0415 - loaded on use
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded on use

    for limit, compare in ((replay.since, pc.greater_equal), (replay.before, pc.less)):
        if limit is not None:
            batch = batch.filter(compare(batch.column("timestamp"), pa.scalar(first_ms(limit), pa.int64())))
    return batch
