"""One pipeline under one release of Spark: `python driver.py WORK SETTINGS`. What it found is its last line, as JSON.

It runs by that release's own Python, with nothing of these tests but this file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from offsetkeeper import Batch, OffsetRange, OnMismatch, Pipeline
from offsetkeeper.engines.progress import QueryProgress
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("partition", "offset", "cast(value as string) as value")


class Driver:
    """Does each kind of work.

    Attributes:
        given: the settings: those of the pipeline, the jars, and what the work needs.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.spark = _session(given["jars"], given["folder"])

    def pipeline(self, **more: Any) -> Pipeline:
        """Return the pipeline of the settings."""
        return Pipeline(**{**self.given["pipeline"], **more})

    def read(self) -> dict[str, list[list[Any]]]:
        """Return by reader the rows of exact ranges."""
        ranges = [OffsetRange(*each) for each in self.given["ranges"]]
        columns = (*COLUMNS, "cast(key as string) as key", "unix_millis(timestamp) as timestamp", "timestampType")
        found = {}
        for reader in ("packed", "connector"):
            frame = self.pipeline(reader=reader, headers=True).read(self.spark, ranges)
            rows = frame.selectExpr(*columns, "to_json(headers) as headers").collect()
            found[reader] = [[*row] for row in sorted(rows)]
        return found

    def split(self) -> int:
        """Return in how many tasks the connector reads the ranges, if ten offsets are enough for one."""
        ranges = [OffsetRange(*each) for each in self.given["ranges"]]
        return self.pipeline(reader="connector", split=10).read(self.spark, ranges).rdd.getNumPartitions()

    def run(self) -> list[str]:
        """Run until all is read, into the table and the ledger at once; die in the batch that the settings name."""
        summary = self.pipeline().run(
            self.spark, self._rows, sink=self._table(), guarantee="exactly_once", until="caught_up"
        )
        return [summary.ended]

    def start(self) -> list[str]:
        """Run a query with state in the same way: of equal values only the first gets through. Return its sources."""
        told: list[QueryProgress] = []
        query = self.pipeline().start(
            self.spark,
            self._rows,
            query=lambda records: records.dropDuplicates(["value"]),
            sink=self._table(),
            guarantee="exactly_once",
            checkpoint=self.given["checkpoint"],
            trigger={"availableNow": True},
            publish=True,
            on_progress=told.append,
        )
        query.awaitTermination()
        return sorted({source["description"] for each in told for source in json.loads(each.json)["sources"]})

    def windows(self) -> list[str]:
        """Run a query that counts by minute, into a file of lines, which it returns; build a lost state again."""
        lines = Path(self.given["folder"]) / f"{self.given['pipeline']['group']}.lines"

        def keep(frame: DataFrame, _: Batch) -> None:
            with lines.open("a", encoding="utf-8") as file:
                file.writelines(f"{row.w.start} {row['count']}\n" for row in frame.collect())

        self.pipeline().start(
            self.spark,
            keep,
            query=lambda records: (
                records.withWatermark("timestamp", "90 seconds").groupBy(f.window("timestamp", "60 seconds").alias("w"))
            ).count(),
            checkpoint=self.given["checkpoint"],
            trigger={"availableNow": True},
            on_mismatch=OnMismatch(state="rebuild"),
        ).awaitTermination()
        return sorted(lines.read_text("utf-8").splitlines())

    def stream(self) -> list[list[Any]]:
        """Run a query of one's own; return the rows of its batches."""
        rows: list[list[Any]] = []

        def keep(frame: DataFrame, _: Batch) -> None:
            rows.extend([*row] for row in frame.selectExpr(*COLUMNS).collect())

        with self.pipeline().stream(self.spark, keep, checkpoint=self.given["checkpoint"]) as stream:
            writer = stream.records.writeStream.foreachBatch(stream.write).trigger(availableNow=True)
            writer.option("checkpointLocation", stream.checkpoint).start().awaitTermination()
        return sorted(rows)

    def misplaced(self) -> list[str]:
        """Begin a batch of two sources, which fails, and run it again with both in another order; return the errors."""
        other = self.spark.readStream.format("kafka").option("subscribe", self.given["beside"])
        other = other.option("kafka.bootstrap.servers", self.given["pipeline"]["brokers"])
        other = other.option("startingOffsets", "earliest")
        told = []

        def fail(_: DataFrame, __: Batch) -> None:
            raise ZeroDivisionError

        for ours in (0, 1):
            try:
                with self.pipeline(attempts=1).stream(self.spark, fail, checkpoint=self.given["checkpoint"]) as stream:
                    frames = [other.load()]
                    frames.insert(ours, stream.records)
                    one, two = (frame.selectExpr(*COLUMNS) for frame in frames)
                    writer = one.union(two).writeStream.foreachBatch(stream.write)
                    writer.option("checkpointLocation", stream.checkpoint).start().awaitTermination()
            except (OffsetkeeperError, ZeroDivisionError) as error:
                told.append(type(error).__name__)
        return told

    def refused(self) -> dict[str, list[str]]:
        """Start a query with each reader, in a session without the connector; return how that was refused."""
        found = {}
        for reader in ("packed", "auto", "connector"):
            try:
                with self.pipeline(reader=reader).start(
                    self.spark, lambda _, __: None, checkpoint=self.given["checkpoint"], trigger={"availableNow": True}
                ) as query:
                    query.awaitTermination()
                found[reader] = ["", ""]
            except OffsetkeeperError as error:
                found[reader] = [type(error).__name__, str(error)]
        return found

    def gone(self) -> list[str]:
        """Kill Spark's JVM within a batch; return what the run raised."""
        jvm: Any = self.spark.sparkContext._jvm
        number = jvm.java.lang.ProcessHandle.current().pid()

        def kill(frame: DataFrame, _: Batch) -> None:
            os.kill(number, signal.SIGKILL)
            frame.count()

        try:
            self.pipeline().run(self.spark, kill, until="caught_up")
        except OffsetkeeperError as error:
            return [type(error).__name__]
        return []

    def _table(self) -> Table:
        return Table(self.given["pipeline"]["store"], "orders")

    def _rows(self, frame: DataFrame, batch: Batch) -> DataFrame:
        if batch.sequence == self.given.get("dies_in"):
            os.kill(os.getpid(), signal.SIGKILL)
        return frame.selectExpr(*COLUMNS)


def _session(jars: str, folder: str) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.warehouse.dir", folder)
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    spark = (builder.config("spark.jars", jars) if jars else builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Do what is asked, and tell what came out, and what this Python warned of."""
    _, works, settings = sys.argv
    given = json.loads(Path(settings).read_text("utf-8"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", FutureWarning)
        driver = Driver(given)
        found = {work: getattr(driver, work)() for work in works.split(",")}
    told = [str(each.message) for each in warned]
    print(json.dumps({"spark": pyspark.__version__, "warned": told, **found}))  # noqa: T201 - for the test


if __name__ == "__main__":
    main()
