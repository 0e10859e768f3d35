"""How long a batch takes into a topic of Kafka: exactly once by `Topic`, and by Spark's own sink.

    python benchmarks/topic_sink.py --rows 200000 --runs 5

The rows are the same cached frame for all, with values of 100 bytes, in two partitions. The ways take turns, after
rounds that do not count. A look at the mark before the batch counts, as each batch has one. Seconds of CPU are those of
driver, JVM and Python workers, without the broker. The last line is JSON: medians, and ratios to Spark's sink, tuned.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.kafka import KafkaServer
from reading import open_session, say

KEY = MarkKey("bench", "")
TUNED = {"kafka.linger.ms": "20", "kafka.batch.size": "500000", "kafka.compression.type": "none"}
TICKS = os.sysconf("SC_CLK_TCK")
Way = Callable[[], object]


def cpu_s(without: int) -> float:
    """Return the seconds of CPU of this process and all below it, but for one of them and all below that."""
    parents: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total = 0
    for pid, (_, ticks) in parents.items():
        line = [pid]
        while line[-1] in parents and line[-1] not in {os.getpid(), without}:
            line.append(parents[line[-1]][0])
        total += ticks if line[-1] == os.getpid() else 0
    return total / TICKS


def by_topic(frame: DataFrame, brokers: str, topic: str) -> Way:
    """Return the way of the engine, without its ledger."""
    way = Topic(brokers, topic).prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)

    def write() -> None:
        seen = way.seen(KEY)
        sequence = seen.mark.sequence + 1 if seen.mark else 1
        batch = Batch("bench", "token", sequence, ())
        way.land(KEY, seen, OutputMark.of(batch), way.stage(frame, batch))

    return write


def by_spark(frame: DataFrame, brokers: str, topic: str, options: Mapping[str, str]) -> Way:
    """Return the way of Spark's own sink."""
    every = {"kafka.bootstrap.servers": brokers, "topic": topic, **options}
    return lambda: frame.write.format("kafka").options(**every).save()


def measure(ways: Mapping[str, Way], runs: int, warm: int, broker: int) -> dict[str, dict[str, float]]:
    """Return the medians of each way, in seconds by the clock and of CPU."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for run in range(-warm, runs):
        for name, way in ways.items():
            began, cpu = time.perf_counter(), cpu_s(broker)
            way()
            took = time.perf_counter() - began, cpu_s(broker) - cpu
            say(f"{'warm up' if run < 0 else f'run {run}'}: {name} {took[0]:.2f} s, {took[1]:.2f} s of CPU")
            if run >= 0:
                found[name].append(took)
    return {
        name: {
            "wall_s": round(statistics.median(each[0] for each in all_), 2),
            "best_wall_s": round(min(each[0] for each in all_), 2),
            "cpu_s": round(statistics.median(each[1] for each in all_), 2),
        }
        for name, all_ in found.items()
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2)
    given = parser.parse_args()
    with KafkaServer() as kafka, open_session() as spark:
        for name in ("once", "tuned", "plain"):
            kafka.create_topic(name, 2)
        columns = ("cast(id as string) as key", "lpad(cast(id as string), 100, 'x') as value")
        frame = spark.range(0, given.rows, 1, 2).selectExpr(*columns).persist()
        frame.count()
        ways = {
            "topic, exactly once": by_topic(frame, kafka.bootstrap, "once"),
            "spark, tuned": by_spark(frame, kafka.bootstrap, "tuned", TUNED),
            "spark, as it comes": by_spark(frame, kafka.bootstrap, "plain", {}),
        }
        process: Any = kafka._process  # noqa: SLF001 - its CPU does not count
        medians = measure(ways, given.runs, given.warm, process.pid)
    base = medians["spark, tuned"]
    ratios = {name: {key: round(each[key] / base[key], 2) for key in each} for name, each in medians.items()}
    print(json.dumps({"rows": given.rows, "medians": medians, "over_spark_tuned": ratios}))


if __name__ == "__main__":
    main()
