"""Topics that are read by `make bench NAME=reading`: how many partitions, records and bytes."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from confluent_kafka import Producer

from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.testing.kafka import KafkaServer


class Shape(NamedTuple):
    """How many partitions, how many records in each, and of how many bytes.

    Attributes:
        partitions: how many.
        records: in each of them.
        size: of a value, in bytes.
        codec: of the producer; a value is one half of random bytes, twice, where there is one.
        first: records in the first partition, where it has more.
    """

    partitions: int
    records: int
    size: int = 100
    codec: str = "none"
    first: int | None = None

    @property
    def name(self) -> str:
        """`partitions x records`, with what is not as usual."""
        codec = "" if self.codec == "none" else f"-{self.codec}"
        skew = "" if self.first is None else f"-first-{self.first}"
        return f"{self.partitions}x{self.records}" + ("" if self.size == 100 else f"x{self.size}B") + codec + skew  # noqa: PLR2004

    @property
    def topic(self) -> str:
        """Name of the topic that has the records."""
        return f"shape-{self.name}"

    @property
    def total(self) -> int:
        """How many records there are."""
        return sum(each.size for each in self.ranges())

    def ranges(self) -> list[OffsetRange]:
        """Return the ranges of all its records."""
        ends = [self.first or self.records] + [self.records] * (self.partitions - 1)
        return [OffsetRange(self.topic, number, 0, end) for number, end in enumerate(ends)]

    def fill(self, server: KafkaServer) -> None:
        """Make the topic and write its records."""
        server.create_topic(self.topic, self.partitions)
        value = os.urandom(self.size) if self.codec == "none" else os.urandom(self.size // 2) * 2
        most = min(50_000, 2**28 // self.size)  # half of what the producer may hold
        settings: dict[str, Any] = {"queue.buffering.max.kbytes": 2**20, "compression.type": self.codec}
        settings |= {"bootstrap.servers": server.bootstrap, "linger.ms": 20, "log_level": 0}
        with Producer(settings) as producer:
            ranges = self.ranges()
            for count in range(max(each.end for each in ranges)):
                for each in ranges:
                    if count < each.end:
                        producer.produce(self.topic, value, partition=each.partition)
                if count % 100 == 0 or len(producer) > most:
                    producer.poll(0)
                    while len(producer) > most:
                        producer.poll(0.05)
            producer.flush(60)


SMALL, SPREAD, WIDE, BULK = Shape(8, 1_000), Shape(100, 100), Shape(1_000, 20), Shape(8, 100_000)
LARGE, HUGE = Shape(8, 1_000, 20_000), Shape(8, 250, 200_000)
TINY = Shape(12, 1_000_000, 20)
SKEWED = Shape(40, 2_500, first=900_000)
PACKED_WELL = Shape(8, 50_000, 1_000, "zstd")
SHAPES = (SMALL, SPREAD, WIDE, BULK, LARGE, HUGE, TINY, SKEWED, PACKED_WELL)
