"""What one task takes that reads as Spark's do, in a process of its own: memory at its peak, and CPU for a record."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from confluent_kafka import Producer

from offsetkeeper.kafka.clients import NO_OPTIONS
from offsetkeeper.testing.kafka import KafkaServer
from shapes import BULK, Shape

TASK = """
import json, re, sys, time
from pathlib import Path
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
brokers, topic, partitions, end, headers, options = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
source = Source(brokers, options, "offsetkeeper-benchmark", "read_committed", headers=headers)
before = time.process_time()
rows = sum(batch.num_rows for batch in read(source, [(topic, number, 0, end) for number in range(partitions)]))
assert rows == partitions * end, rows
peak_mb = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
print(json.dumps([peak_mb, (time.process_time() - before) * 1e6 / rows]))
"""


class Heavy(NamedTuple):
    """Records of one partition whose memory is measured.

    Attributes:
        name: of the case.
        records: how many.
        size: of a value, in bytes.
        repeats: how often a piece of random bytes is repeated in a value; None for zeros only.
        headers: bytes of a record's header.
        codec: of the producer.
        options: of the reader.
    """

    name: str
    records: int
    size: int
    repeats: int | None = 1
    headers: int = 0
    codec: str = "none"
    options: Mapping[str, str] = NO_OPTIONS

    @property
    def topic(self) -> str:
        """Name of the topic that has the records."""
        return "heavy-" + self.name.replace(" ", "-").replace(",", "")

    def value(self) -> bytes:
        """Return the value of a record."""
        return bytes(self.size) if self.repeats is None else os.urandom(self.size // self.repeats) * self.repeats


_ONE_BY_ONE = {"fetch.message.max.bytes": "4096"}
HEAVY = (
    Heavy("large headers", 4_000, 100, headers=60_000),
    Heavy("expanding values, 50 times", 40_000, 5_000, repeats=50, codec="zstd"),
    Heavy("expanding values, zeros", 20_000, 100_000, repeats=None, codec="zstd"),
    Heavy("expanding values, zeros, small fetches", 20_000, 100_000, None, codec="zstd", options=_ONE_BY_ONE),
    Heavy("one record of 60 MB", 1, 60 * 2**20),
    Heavy("five records of 60 MB", 5, 60 * 2**20),
    Heavy("ten records of 60 MB of zeros", 10, 60 * 2**20, None, codec="zstd"),
    Heavy("ten records of 60 MB of zeros, small fetches", 10, 60 * 2**20, None, codec="zstd", options=_ONE_BY_ONE),
)


def say(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def fill_heavy(server: KafkaServer, heavy: Heavy) -> None:
    """Make a case's topic and write its records."""
    server.create_topic(heavy.topic, 1, {"max.message.bytes": str(2**27)})
    settings: dict[str, Any] = {"message.max.bytes": 2**27, "queue.buffering.max.kbytes": 2**19, "linger.ms": 20}
    settings |= {"bootstrap.servers": server.bootstrap, "compression.type": heavy.codec, "log_level": 0}
    headers = [("header", b"h" * heavy.headers)] if heavy.headers else None
    with Producer(settings) as producer:
        for _ in range(heavy.records):
            while len(producer) * (heavy.size + heavy.headers) > 2**27:
                producer.poll(0.01)
            producer.produce(heavy.topic, heavy.value(), partition=0, headers=cast("Any", headers))
        producer.flush(60)


def memory(server: KafkaServer, shapes: list[Shape], options: Mapping[str, str]) -> dict[str, int]:
    """Return the peak MB of a task that reads all of a shape, and of BULK a tenth; and of each heavy case."""

    def peak(*given: Any, **more: Any) -> int:
        return alone(server, *given, **more)[0]

    even = [shape for shape in shapes if shape.first is None]
    peaks = {shape.name: peak(shape.topic, shape.partitions, shape.records, options=options) for shape in even}
    if BULK in shapes:
        peaks["a tenth of it"] = peak(BULK.topic, BULK.partitions, BULK.records // 10, options=options)
    for heavy in HEAVY:
        fill_heavy(server, heavy)
        given, headers = {**options, **heavy.options}, heavy.headers > 0
        peaks[heavy.name] = peak(heavy.topic, 1, heavy.records, headers=headers, options=given)
        server.delete_topic(heavy.topic)
        say(f"{heavy.name}: {peaks[heavy.name]} MB")
    return peaks


def alone(
    server: KafkaServer,
    topic: str,
    partitions: int,
    end: int,
    *,
    headers: bool = False,
    options: Mapping[str, str] = NO_OPTIONS,
) -> tuple[int, float]:
    """Return the peak MB and the CPU microseconds a record of a process that reads `end` records of each partition."""
    given = [json.dumps(each) for each in (partitions, end, headers, dict(options))]
    command = [sys.executable, "-c", TASK, server.bootstrap, topic, *given]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    peak, cpu_us = json.loads(done.stdout)
    return peak, cpu_us


def cpu_of_a_record(server: KafkaServer, options: Mapping[str, str]) -> float:
    """Return the CPU microseconds that one task takes for a record of BULK."""
    taken_us = [alone(server, BULK.topic, BULK.partitions, BULK.records, options=options)[1] for _ in range(3)]
    return round(statistics.median(taken_us), 2)
