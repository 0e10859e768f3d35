"""What Spark finds in tables of Iceberg: `python iceberg_reader.py SETTINGS`. Its last line is that, as JSON.

It runs by another release's own Python, with nothing of these tests but this file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(given: dict[str, Any]) -> None:
    """Print what each query finds; a catalog that speaks REST is `lake`."""
    settings = {
        "spark.jars": given["jars"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": given["uri"],
    }
    builder: SparkSession.Builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master("local[1]").getOrCreate()
    found = {name: [list(row) for row in spark.sql(query).collect()] for name, query in given["queries"].items()}
    spark.stop()
    print(json.dumps(found, default=str))  # noqa: T201 - for the test


main(json.loads(sys.argv[1]))
