"""Which partitions the page of a group lists, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.monitor.cells import behind
from offsetkeeper.monitor.order import Column, Order
from offsetkeeper.operate.lag import Lag, Speed

WORST = "worst"
_NO_SPEED = Speed(None, None)


class Row(NamedTuple):
    """A partition in the table, and how fast it is read."""

    lag: Lag
    speed: Speed


COLUMNS: Sequence[Column[Row]] = (
    Column("topic", "Topic", lambda row: row.lag.topic_partition),
    Column("partition", "Partition", lambda row: row.lag.topic_partition[::-1], number=True),
    Column("position", "Position", lambda row: row.lag.position, number=True),
    Column("end", "End", lambda row: row.lag.end, number=True),
    Column("waiting", "Waiting", lambda row: row.lag.records, descending=True, number=True),
    Column("oldest", "Oldest unread", lambda row: row.lag.seconds, descending=True, number=True),
    Column("read", "Read/s", lambda row: row.speed.processed, descending=True, number=True),
    Column("retention", "Retention used", lambda row: row.lag.retention_used, descending=True, number=True),
    Column(WORST, "Remark", lambda row: behind(row.lag)),
)
USUAL = Order(WORST)


def ordered(
    lags: Iterable[Lag], speeds: Mapping[TopicPartition, Speed], order: Order = USUAL, most: int | None = None
) -> list[Row]:
    """Return the first partitions in an order, so many at the most; the worst first, unless told otherwise."""
    rows = (Row(lag, speeds.get(lag.topic_partition, _NO_SPEED)) for lag in lags)
    return order.sorted(rows, COLUMNS)[:most]
