"""Lands batches into an Iceberg table, again and again killed: `iceberg_kills.py FOLDER KILLS`.

Each driver is a fork of this process, so that it begins at once. It is killed at a moment of its own within a landing.
The next one finds the mark, and goes on with the batch that may be there. Prints the number of the last batch.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.sinks import MarkKey
from offsetkeeper.sinks.iceberg import landing, task
from offsetkeeper.sinks.iceberg.catalog import RELEASE
from offsetkeeper.sinks.once import Once
from offsetkeeper.testing.conformance.landers import batch_of, records
from sinks.icebergs import Lake

NAMES = ["batch", "topic", "partition", "offset"]
KINDS = [pa.string(), pa.string(), pa.int32(), pa.int64()]
SCHEMA = pa.schema(list(zip(NAMES, KINDS, strict=True)))
LONGEST_S = 0.8


def drive(lake: Lake, count: int) -> None:
    """Land this many batches: first the last one that may be there, as a run that finds it pending."""
    way, key = lake.lander("orders"), MarkKey("billing", "")
    mark = way.seen(key).mark
    for sequence in range(mark.sequence if mark else 1, (mark.sequence if mark else 1) + count):
        batch = batch_of(sequence)
        if Once(way, "").landing(way.seen(key).mark, batch) is Landing.LANDED:
            continue
        table = lake.table("orders")
        plan = task.FilePlan(table.metadata.model_dump_json(), SCHEMA, ())
        rows = pa.RecordBatch.from_pylist([dict(zip(NAMES, row, strict=True)) for row in records(batch)], SCHEMA)
        [reply] = task.write_files(task.Place("orders", table.location(), {}, RELEASE), plan, iter([rows]))
        files = [pickle.loads(each) for each in reply["file"].to_pylist()]  # noqa: S301 - ours
        staged = landing.Staged(landing.Shape.of(table), files, batch.lines())
        way.land(key, way.seen(key), OutputMark.of(batch), staged)


def main(folder: Path, kills: int) -> None:
    """Kill so many drivers, and let the last one finish its batch."""
    lake = Lake.at(folder)
    chance = random.Random(kills)  # noqa: S311 - so that each run is the same, as far as clocks go
    for _ in range(kills):
        driver = os.fork()
        if not driver:
            drive(lake, 1_000_000)
        time.sleep(chance.uniform(0, LONGEST_S))
        os.kill(driver, signal.SIGKILL)
        os.waitpid(driver, 0)
    drive(lake, 2)
    mark = lake.lander("orders").seen(MarkKey("billing", "")).mark
    print(mark.sequence if mark else 0)  # noqa: T201 - its result


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
