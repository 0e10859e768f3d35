"""A query with a Spark session of its own, to be killed: `python killed_child.py SETTINGS`.

It prints `second batch` when it has that in hand, staged or not, and waits.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from offsetkeeper import Pipeline
from offsetkeeper.core.retry import retry
from offsetkeeper.sinks import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetkeeper import Batch


def process(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return the table's columns, and wait for ever in the second batch."""
    if batch.sequence > 1:
        print("second batch", flush=True)  # noqa: T201 - for the test
        signal.sigwait([signal.SIGUSR1])
    return frame.selectExpr("partition", "offset", "cast(value as string) as value")


def main() -> None:
    """Run as the settings say."""
    settings = json.loads(sys.argv[1])
    session = SparkSession.builder.master("local[1]").config(map=settings["spark"]).getOrCreate()

    def run(_: float) -> None:
        query = Pipeline(**settings["pipeline"]).start(
            session,
            process,
            sink=Table(settings["pipeline"]["store"], "orders"),
            guarantee="exactly_once",
            checkpoint=settings["checkpoint"],
        )
        query.awaitTermination()

    # Again where Spark's Python was not there within its ten seconds.
    retry(lambda error: "worker failed to connect back" in str(error), 60, run)


if __name__ == "__main__":
    main()
