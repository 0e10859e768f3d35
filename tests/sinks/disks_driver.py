"""Pipelines into outputs of files, on a cluster where an executor lacks their mount: `disks_driver.py SETTINGS`.

The path of the mount leads to `disk` in the folder in which a process runs, and each executor has a folder of its own.
There a link to the driver's disk stands for the mount, and another folder for a mount that is missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.errors import SinkError
from offsetkeeper.sinks import DeltaTable, Files, IcebergTable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch


def mount(folder: str, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Mount the driver's disk on the machine of this task, where it is not missing."""
    disk = Path("disk")
    if Path.cwd().name == "1" and not Path(folder, "mended").exists():
        Path(disk, "lake").mkdir(parents=True)
        Path(folder, "lacks").touch()
    else:
        disk.symlink_to(Path(folder, "driver", "disk"))
    yield from records


def process(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the place of each record."""
    return frame.select("partition", "offset")


def main() -> None:
    """Write into each output, and say the error of each that fails."""
    given = json.loads(sys.argv[1])
    folder, path = given["folder"], given["mount"]
    spark = SparkSession.builder.config(map=given["spark"]).getOrCreate()
    both = spark.range(0, 2, 1, 2).mapInArrow(partial(mount, folder), "id long", barrier=True)  # one task on each
    assert both.count() == 2
    told = {}
    sinks: dict[str, Any] = {
        "files": Files(f"{path}/files", shared=True),
        "query": Files(f"{path}/query", shared=True),
        "lake": DeltaTable(f"{path}/lake"),
        "iceberg": IcebergTable("shop.orders", catalog="lake", properties=given["catalog"]),
    }
    for name, sink in sinks.items():
        pipeline = Pipeline(**given["pipeline"], group=name)
        try:
            if name == "query":
                checkpoint, trigger = f"{folder}/checkpoint", {"availableNow": True}
                exactly: Any = {"guarantee": "exactly_once", "checkpoint": checkpoint, "trigger": trigger}
                pipeline.start(spark, process, sink=sink, **exactly).awaitTermination()
            else:
                pipeline.run(spark, process, sink=sink, guarantee="exactly_once", until="caught_up")
        except SinkError as error:
            told[name] = str(error)
    print(json.dumps(told), flush=True)  # noqa: T201 - for the test
    spark.stop()


if __name__ == "__main__":
    main()
