"""How long exact ranges take to read: Spark's Kafka connector as it comes, the same tuned, and the packed reader.

All read the same ranges of one real broker into Spark's `noop` sink, in turns, in one session of two cores. The first
turn warms up and does not count, except for a reader so slow that it has no second. What takes longer than the limit is
cut off, and said to be.
Memory is the peak of a process that reads as one task does, Python and its libraries included: for some records and
for ten times as many, and where values are large, have large headers, or become many times as large when unpacked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.model import OffsetRange
from offsetkeeper.kafka.clients import NO_OPTIONS
from offsetkeeper.readers import open_reader
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.kafka import KafkaServer

Read = Callable[[list[OffsetRange]], DataFrame]

TASK = """
import json, re, sys
from pathlib import Path
from offsetkeeper.readers import Source
from offsetkeeper.readers.consume import read
brokers, topic, partitions, end, headers, options = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
source = Source(brokers, options, "offsetkeeper-benchmark", "read_committed", headers=headers)
rows = sum(batch.num_rows for batch in read(source, [(topic, number, 0, end) for number in range(partitions)]))
assert rows == partitions * end, rows
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


class Shape(NamedTuple):
    """How many partitions, how many records in each, and of how many bytes."""

    partitions: int
    records: int
    size: int = 100

    @property
    def name(self) -> str:
        """`partitions x records`, with the size where it is not 100 bytes."""
        return f"{self.partitions}x{self.records}" + ("" if self.size == 100 else f"x{self.size}B")  # noqa: PLR2004

    @property
    def topic(self) -> str:
        """Name of the topic that has the records."""
        return f"shape-{self.name}"

    def ranges(self) -> list[OffsetRange]:
        """Return the ranges of all its records."""
        return [OffsetRange(self.topic, number, 0, self.records) for number in range(self.partitions)]


SMALL, SPREAD, WIDE, BULK = Shape(8, 1_000), Shape(100, 100), Shape(1_000, 20), Shape(8, 100_000)
LARGE = Shape(8, 1_000, 20_000)


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


def fill(server: KafkaServer, shape: Shape) -> None:
    """Make a shape's topic and write its records."""
    server.create_topic(shape.topic, shape.partitions)
    value = os.urandom(shape.size)
    with Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20, "log_level": 0}) as producer:
        for count in range(shape.records):
            for partition in range(shape.partitions):
                producer.produce(shape.topic, value, partition=partition)
            if count % 100 == 0 or len(producer) > 50_000:  # noqa: PLR2004 - half of what the producer holds
                producer.poll(0.05 if len(producer) > 20_000 else 0)  # noqa: PLR2004 - the same
        producer.flush(60)


def open_session(*sets: str) -> SparkSession:
    """Start Spark with two cores, its Kafka connector, and further sets of jars."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = [str(jar) for each in ("connector", *sets) for jar in fetch_jars(each)]
    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.driver.memory", "2g").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "OFF")
    return builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()


def as_it_comes(spark: SparkSession, brokers: str, ranges: list[OffsetRange]) -> DataFrame:
    """Return the frame that Spark's documentation would lead to."""
    topic = ranges[0].topic
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers)
    reader = reader.option("assign", json.dumps({topic: [r.partition for r in ranges]}))
    reader = reader.option("startingOffsets", json.dumps({topic: {str(r.partition): r.start for r in ranges}}))
    return reader.option("endingOffsets", json.dumps({topic: {str(r.partition): r.end for r in ranges}})).load()


def seconds(spark: SparkSession, read: Read, ranges: list[OffsetRange], limit_s: float) -> float | None:
    """Return how long planning and reading took, or None where it was cut off at the limit."""
    context = spark.sparkContext
    context.setJobGroup("turn", "a turn that may be cut off", interruptOnCancel=True)
    cut = threading.Timer(limit_s, context.cancelJobGroup, ["turn"])
    cut.start()
    began = time.perf_counter()
    try:
        read(ranges).write.format("noop").mode("overwrite").save()
    except Py4JJavaError:
        if time.perf_counter() - began < limit_s:
            raise
        return None
    else:
        return time.perf_counter() - began
    finally:
        cut.cancel()
        wait_until_idle(spark)


def wait_until_idle(spark: SparkSession) -> None:
    """Wait until no task runs: those of the connector go on for a while after they were cut off."""
    tracker = cast("Any", spark.sparkContext)._jsc.sc().statusTracker()  # noqa: SLF001 - Python's has no such count
    while any(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        time.sleep(0.01)


def compare(
    spark: SparkSession, readers: dict[str, Read], shape: Shape, rounds: int, limit_s: float
) -> dict[str, float | None]:
    """Return each reader's median seconds for a shape; None for one that was cut off."""
    times: dict[str, list[float | None]] = {name: [] for name in readers}
    slow: set[str] = set()
    for number in range(rounds + 1):
        for name, read in readers.items():
            if name in slow:
                continue
            taken = seconds(spark, read, shape.ranges(), limit_s)
            times[name].append(taken)
            if taken is None or (number and taken > limit_s / 4):
                slow.add(name)
            say(f"{shape.name}, turn {number} of {rounds}: {name} " + (f"{taken:.2f} s" if taken else "cut off"))
    return {name: median(of_reader) for name, of_reader in times.items()}


def median(times: list[float | None]) -> float | None:
    """Return the median of all but the first, or the first if there is no other; None if one was cut off."""
    counted = [taken for taken in times[1:] or times if taken is not None]
    return None if None in times else round(statistics.median(counted), 3)


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


def memory(server: KafkaServer, shapes: list[Shape]) -> dict[str, int]:
    """Return the peak MB of a task that reads all of a shape, and of BULK a tenth; and of each heavy case."""
    peaks = {shape.name: peak_mb(server, shape.topic, shape.partitions, shape.records) for shape in shapes}
    if BULK in shapes:
        peaks["a tenth of it"] = peak_mb(server, BULK.topic, BULK.partitions, BULK.records // 10)
    for heavy in HEAVY:
        fill_heavy(server, heavy)
        options, headers = heavy.options, heavy.headers > 0
        peaks[heavy.name] = peak_mb(server, heavy.topic, 1, heavy.records, headers=headers, options=options)
        server.delete_topic(heavy.topic)
        say(f"{heavy.name}: {peaks[heavy.name]} MB")
    return peaks


def peak_mb(
    server: KafkaServer,
    topic: str,
    partitions: int,
    end: int,
    *,
    headers: bool = False,
    options: Mapping[str, str] = NO_OPTIONS,
) -> int:
    """Return the peak MB of a process that reads the first `end` records of each partition."""
    given = [json.dumps(each) for each in (partitions, end, headers, dict(options))]
    command = [sys.executable, "-c", TASK, server.bootstrap, topic, *given]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return int(done.stdout) // 1024


def ratio(one: float | None, other: float | None, at_least: float) -> float | str | None:
    """Return one by the other; where the first was cut off, what it is at least."""
    if other is None:
        return None
    return f"> {at_least / other:.1f}" if one is None else round(one / other, 2)


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns that count, for each reader and shape")
    parser.add_argument("--limit-s", type=float, default=60, help="seconds after which a reading is cut off")
    parser.add_argument("--shapes", nargs="*", default=None, help="only these, such as 8x1000")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    shapes = [s for s in (SMALL, SPREAD, WIDE, BULK, LARGE) if chosen.shapes is None or s.name in chosen.shapes]
    with KafkaServer(settings={"socket.request.max.bytes": str(2**28)}) as server:
        for shape in shapes:
            say(f"writing {shape.name}")
            fill(server, shape)
        spark = open_session()
        tuned = open_reader("connector", brokers=server.bootstrap, group="benchmark")
        packed = open_reader("packed", brokers=server.bootstrap, group="benchmark")
        readers: dict[str, Read] = {
            "packed": lambda ranges: packed.read(spark, ranges),
            "tuned": lambda ranges: tuned.read(spark, ranges),
            "as_it_comes": lambda ranges: as_it_comes(spark, server.bootstrap, ranges),
        }
        found = {s.name: compare(spark, readers, s, chosen.rounds, chosen.limit_s) for s in shapes}
        peaks = memory(server, shapes)
        spark.stop()
    report(found, peaks, chosen.limit_s)


def report(found: dict[str, dict[str, float | None]], peaks: dict[str, int], limit_s: float) -> None:
    """Print the figures, with the ratios that matter, as one line of JSON."""
    none: dict[str, float | None] = {}
    at = {shape: found.get(shape.name, none).get for shape in (SMALL, SPREAD, WIDE, BULK, LARGE)}
    ratios = {
        "as_it_comes / packed at 100 partitions": ratio(at[SPREAD]("as_it_comes"), at[SPREAD]("packed"), limit_s),
        "tuned / packed at 100 partitions": ratio(at[SPREAD]("tuned"), at[SPREAD]("packed"), limit_s),
        "packed at 1,000 partitions / at 8": ratio(at[WIDE]("packed"), at[SMALL]("packed"), limit_s),
        "packed / tuned in bulk": ratio(at[BULK]("packed"), at[BULK]("tuned"), limit_s),
        "packed / tuned with large records": ratio(at[LARGE]("packed"), at[LARGE]("tuned"), limit_s),
    }
    few, many = peaks.get("a tenth of it", 0), peaks.get(BULK.name, 0)
    memory_found = {"peak_mb": peaks, "ratio": round(many / few, 2) if few else None}
    print(json.dumps({"median_s": found, "cut_off_s": limit_s, "ratios": ratios, "memory": memory_found}))


if __name__ == "__main__":
    main()
