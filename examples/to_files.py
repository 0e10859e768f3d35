"""Orders become Parquet files, whole batches only, whatever crashes.

Each batch is a folder `batch=<number>`; one rename puts it in place.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import Files

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"
FOLDER = "data/orders"


def parse(orders: DataFrame, batch: Batch) -> DataFrame:
    """Return the columns of the files."""
    print(batch.id, batch.size)
    value = "from_json(cast(value as string), 'id int, item string, count int') as o"
    return orders.selectExpr("partition", "offset", "timestamp", value).select(
        "partition", "offset", "timestamp", "o.*"
    )


def main() -> None:
    """Read the new orders; then count all."""
    spark = SparkSession.builder.appName("orders to files").getOrCreate()
    pipeline = Pipeline(
        group="files",
        store=f"sqlite:///{SHOP}",
        brokers=BROKERS,
        topics=[ORDERS],
        max_bytes=64_000_000,  # the approximate size of a batch, and so of its files
    )
    folder = str(Path(FOLDER).absolute())
    pipeline.run(spark, parse, sink=Files(folder), guarantee="exactly_once", until="caught_up")
    spark.read.parquet(folder).groupBy("batch").count().show()


if __name__ == "__main__":
    main()
