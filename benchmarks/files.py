"""How long a batch takes into Parquet files: by `Files`, and by Spark's own writer with no guarantee at all.

    python benchmarks/files.py --rows 1000000 --runs 7

The rows are the same cached frame for both, of about 100 bytes each. The ways are run one after the other in each
round, after a round that does not count. The last line is JSON: medians of seconds, and of CPU seconds of this process
and its JVM, with ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.model import Batch, Guarantee, OffsetRange
from offsetkeeper.sinks import Files
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore

ROWS = (
    "id",
    "concat('customer ', id % 5000) as name",
    "rand(1) * 1000 as amount",
    "timestamp_micros(1700000000000000 + id * 1000003) as ts",
    "concat('note ', id, ' ', repeat('x', 50)) as note",
)


def session() -> SparkSession:
    """Return a session of two local cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: SparkSession.Builder = SparkSession.builder
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master("local[2]").getOrCreate()


def ways(frame: DataFrame, folder: Path) -> dict[str, Callable[[], None]]:
    """Return what writes one more batch, by its name."""
    numbers: Iterator[int] = count(1)
    lander = Files(folder / "files").prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE)
    once = Once(lander, "")

    def files() -> None:
        number = next(numbers)
        once.write(frame, Batch("benchmark", "token", number, (OffsetRange("orders", 0, number, number + 1),)))

    def plain() -> None:
        frame.write.parquet(str(folder / "plain" / f"batch={next(numbers)}"))

    return {"Files": files, "plain": plain}


def cpu_s(processes: list[int]) -> float:
    """Return the CPU seconds that processes have taken."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    spark = session()
    jvm: int = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
    frame = spark.range(given.rows, numPartitions=2).selectExpr(*ROWS).cache()
    frame.count()
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        of_both = ways(frame, Path(folder))
        for turn, name in product(range(given.runs + 1), of_both):
            before = time.monotonic(), cpu_s([os.getpid(), jvm])
            of_both[name]()
            if turn:
                wall, cpu = time.monotonic() - before[0], cpu_s([os.getpid(), jvm]) - before[1]
                taken.setdefault(name, []).append((wall, cpu))
    spark.stop()
    medians = {
        name: [round(statistics.median(each), 3) for each in zip(*found, strict=True)] for name, found in taken.items()
    }
    ratios = [round(mine / plain, 2) for mine, plain in zip(medians["Files"], medians["plain"], strict=True)]
    print(json.dumps({"rows": given.rows, "seconds, CPU seconds": medians, "Files / plain": ratios}))


if __name__ == "__main__":
    main()
