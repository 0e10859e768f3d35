"""What executors' look at each value costs, in CPU: no Spark and no server, so other work hardly changes it.

    python benchmarks/checks.py --rows 10000 --runs 7

The rows are those of `outputs.py`. The limits are those of three tables: of PostgreSQL, where all types keep all
values; of MySQL, with its limits for these types; and one where each column has a limit. The last line is JSON:
microseconds of CPU for a row, of the best run and of the median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from offsetkeeper.sinks.limits import Limits, check

TURNS = 20
TABLES: Mapping[str, Sequence[Limits]] = {
    "PostgreSQL": [Limits(name) for name in ("id", "name", "amount", "ts", "note")],
    "MySQL": [
        Limits("id"),
        Limits("name", characters=100),
        Limits("amount", finite=True),
        Limits("ts"),
        Limits("note", bytes=2**16 - 1),
    ],
    "a limit for each column": [
        Limits("id", least=-(2**31), most=2**31 - 1),
        Limits("name", characters=100, blanks=False),
        Limits("amount", finite=True),
        Limits("ts", digits=3),
        Limits("note", characters=200, bars=r"\A\z"),
    ],
}


def orders(rows: int) -> pa.RecordBatch:
    """Return rows of about 100 bytes each."""
    numbers = range(rows)
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "name": pa.array([f"customer {number % 5000}" for number in numbers]),
        "amount": pa.array([number / 7 for number in numbers]),
        "ts": pa.array([1700000000000000 + number * 1003000 for number in numbers], pa.timestamp("us", "UTC")),
        "note": pa.array([f"note {number} {'x' * 50}" for number in numbers]),
    }
    return pa.record_batch(columns)


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="of an Arrow batch; Spark's have 10,000")
    parser.add_argument("--runs", type=int, default=7)
    given = parser.parse_args()
    batch = orders(given.rows)
    found: dict[str, list[float]] = {name: [] for name in TABLES}
    for _ in range(given.runs):
        for name, limits in TABLES.items():
            before = time.process_time()
            for _ in range(TURNS):
                check(batch, limits)
            found[name].append((time.process_time() - before) * 1e6 / TURNS / given.rows)
    medians = {name: (round(min(each), 3), round(statistics.median(each), 3)) for name, each in found.items()}
    print(json.dumps({"rows": given.rows, "cpu_us_a_row": medians}))


if __name__ == "__main__":
    main()
