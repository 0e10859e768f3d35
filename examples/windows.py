"""Orders are counted by the minute, with a watermark, by a Structured Streaming query.

Spark keeps the state in its checkpoint. The ledger says which batch is in the table.
"""

import sqlite3
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from offsetkeeper import Pipeline
from offsetkeeper.sinks import Table

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"
CHECKPOINT = "data/windows-checkpoint"
TABLE = "create table if not exists minutes (minute text, item text, orders integer, primary key (minute, item))"


def by_minute(orders: DataFrame) -> DataFrame:
    """Return the number of orders so far, for each minute and item."""
    parsed = orders.withColumn("item", f.get_json_object(f.col("value").cast("string"), "$.item"))
    minutes = parsed.where("item is not null").withWatermark("timestamp", "10 minutes")
    counted = minutes.groupBy(f.window("timestamp", "1 minute"), "item").count()
    return counted.selectExpr("window.start as minute", "item", "count as orders")


def main() -> None:
    """Read the new orders, and end."""
    with sqlite3.connect(SHOP) as database:
        database.execute(TABLE)
    spark = SparkSession.builder.appName("windows").getOrCreate()
    shop = f"sqlite:///{SHOP}"
    pipeline = Pipeline(group="minutes", store=shop, brokers=BROKERS, topics=[ORDERS])
    query = pipeline.start(
        spark,
        query=by_minute,
        sink=Table(shop, "minutes", mode="upsert", key=("minute", "item")),
        guarantee="exactly_once",
        checkpoint=str(Path(CHECKPOINT).absolute()),
        output_mode="update",  # a minute is written again whenever its count changes
        trigger={"availableNow": True},
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
