"""How long exact ranges take to read: Spark's Kafka connector as it comes, the same tuned, and the packed reader.

That one reads in Python, and compiled where offsetkeeper-native is installed. All read the same ranges of one real
broker into Spark's `noop` sink, in turns, in one session of two cores. The first turn warms up and does not count,
except for a reader so slow that it has no second. What takes longer than the limit is cut off, and said to be. CPU is
that of Spark's JVM and its Python workers, all threads; the broker's does not count.
With `--checksums` the packed reader is also held against itself without a look at the checksums of records.
Memory is the peak of a process that reads as one task does, Python and its libraries included: for some records and
for ten times as many, and where values are large, have large headers, or become many times as large when unpacked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import open_reader
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.kafka import KafkaServer
from shapes import BULK, SHAPES, Shape
from tasks import cpu_of_a_record, memory, say

Read = Callable[[list[OffsetRange]], DataFrame]
PACKED = {"compiled": {"offsetkeeper.native": "required"}, "python": {"offsetkeeper.native": "never"}}
"""The packed reader's two ways to read, with the settings for each."""
if find_spec("offsetkeeper_native") is None:
    del PACKED["compiled"]
UNCHECKED = "{}, without checksums"
"""The name of the same reader that does not hold records against the checksum of their producer."""


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


class Taken(NamedTuple):
    """What a reading took, in seconds."""

    wall: float
    cpu: float


def cpu_seconds() -> float:
    """Return the CPU seconds that the JVM of Spark and its Python workers have taken so far."""
    found, children = {}, dict[int, list[int]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = sum(map(int, fields[11:15]))  # also of its children that have ended
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    spark: Any = SparkContext._gateway  # noqa: SLF001 - nothing else knows its process
    waiting, ticks = [spark.proc.pid], 0
    while waiting:
        process = waiting.pop()
        ticks += found.get(process, 0)
        waiting += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")


def taken(spark: SparkSession, read: Read, ranges: list[OffsetRange], limit_s: float) -> Taken | None:
    """Return what planning and reading took, or None where it was cut off at the limit."""
    context = spark.sparkContext
    context.setJobGroup("turn", "a turn that may be cut off", interruptOnCancel=True)
    cut = threading.Timer(limit_s, context.cancelJobGroup, ["turn"])
    cut.start()
    began, before = time.perf_counter(), cpu_seconds()
    try:
        read(ranges).write.format("noop").mode("overwrite").save()
    except Py4JJavaError:
        if time.perf_counter() - began < limit_s:
            raise
        return None
    else:
        return Taken(time.perf_counter() - began, cpu_seconds() - before)
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
) -> dict[str, Taken | None]:
    """Return each reader's median seconds for a shape; None for one that was cut off."""
    times: dict[str, list[Taken | None]] = {name: [] for name in readers}
    slow: set[str] = set()
    for number in range(rounds + 1):
        for name, read in readers.items():
            if name in slow:
                continue
            found = taken(spark, read, shape.ranges(), limit_s)
            times[name].append(found)
            if found is None or (number and found.wall > limit_s / 4):
                slow.add(name)
            took = f"{found.wall:.2f} s, {found.cpu:.2f} s of CPU" if found else "cut off"
            say(f"{shape.name}, turn {number} of {rounds}: {name} {took}; load {os.getloadavg()[0]:.1f}")
    return {name: median(of_reader) for name, of_reader in times.items()}


def median(times: list[Taken | None]) -> Taken | None:
    """Return the medians of all but the first, or the first if there is no other; None if one was cut off."""
    counted = [each for each in times[1:] or times if each is not None]
    return None if None in times else Taken(*(round(statistics.median(each), 3) for each in zip(*counted, strict=True)))


def ratio(one: Taken | None, other: Taken | None, limit_s: float) -> dict[str, float | str] | None:
    """Return one by the other; where the other was cut off, what it is at most."""
    if one is None:
        return None
    if other is None:
        return {"wall": f"< {one.wall / limit_s:.4f}"}
    return {"wall": round(one.wall / other.wall, 2), "cpu": round(one.cpu / other.cpu, 2)}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns that count, for each reader and shape")
    parser.add_argument("--limit-s", type=float, default=60, help="seconds after which a reading is cut off")
    parser.add_argument("--shapes", nargs="*", default=None, help="only these, such as 8x1000")
    parser.add_argument("--readers", nargs="*", default=None, help="only these: compiled, python, tuned, as_it_comes")
    parser.add_argument("--checksums", action="store_true", help="the packed reader beside itself without checksums")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="measure memory too")
    chosen = parser.parse_args()
    if chosen.checksums:
        PACKED.update({UNCHECKED.format(name): {**some, "check.crcs": "false"} for name, some in [*PACKED.items()]})
    warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
    shapes = [shape for shape in SHAPES if chosen.shapes is None or shape.name in chosen.shapes]
    with KafkaServer(settings={"socket.request.max.bytes": str(2**28)}) as server:
        for shape in shapes:
            say(f"writing {shape.name}")
            shape.fill(server)
        spark = open_session()
        readers = {
            name: read
            for name, read in readers_of(spark, server.bootstrap).items()
            if chosen.readers is None or name.partition(",")[0] in chosen.readers
        }
        found = {s.name: compare(spark, readers, s, chosen.rounds, chosen.limit_s) for s in shapes}
        spark.stop()
        kinds = {name: options for name, options in PACKED.items() if name in readers}
        cpu_us = {name: cpu_of_a_record(server, options) for name, options in kinds.items() if BULK in shapes}
        peaks = {name: memory(server, shapes, options) for name, options in kinds.items() if chosen.memory}
    report(found, peaks, cpu_us, chosen.limit_s)


def readers_of(spark: SparkSession, brokers: str) -> dict[str, Read]:
    """Return all readers, by name."""
    tuned = open_reader("connector", KafkaCluster(brokers), group="benchmark")
    found: dict[str, Read] = {
        name: partial(open_reader("packed", KafkaCluster(brokers, options), group="benchmark").read, spark)
        for name, options in PACKED.items()
    }
    return found | {
        "tuned": lambda ranges: tuned.read(spark, ranges),
        "as_it_comes": lambda ranges: as_it_comes(spark, brokers, ranges),
    }


def report(
    found: dict[str, dict[str, Taken | None]],
    peaks: dict[str, dict[str, int]],
    cpu_us: dict[str, float],
    limit_s: float,
) -> None:
    """Print the figures, with the ratios to the connector's, as one line of JSON."""
    ratios = {
        f"{name} / {connector}, {shape}": ratio(some[name], some[connector], limit_s)
        for shape, some in found.items()
        for name, connector in product(PACKED, ("tuned", "as_it_comes"))
        if name in some and connector in some
    }
    ratios |= {
        f"{name} / {UNCHECKED.format(name)}, {shape}": ratio(some[name], some[UNCHECKED.format(name)], limit_s)
        for shape, some in found.items()
        for name in some
        if UNCHECKED.format(name) in some
    }
    memory_found = {
        name: {
            "peak_mb": some,
            "ratio": round(some[BULK.name] / some["a tenth of it"], 2) if BULK.name in some else None,
        }
        for name, some in peaks.items()
    }
    seconds = {
        shape: {name: taken and taken._asdict() for name, taken in some.items()} for shape, some in found.items()
    }
    printed = {"median_s": seconds, "cut_off_s": limit_s, "ratios": ratios, "cpu_us_a_record": cpu_us}
    print(json.dumps({**printed, "memory": memory_found}))


if __name__ == "__main__":
    main()
