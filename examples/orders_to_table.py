"""Orders go into a table. Rows and offsets are one transaction, so each order is there exactly once.

The same with postgresql://, mysql:// or mariadb:// in the place of sqlite:///.
"""

import sqlite3

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import Table

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"
TABLE = "create table if not exists orders (id integer, item text, count integer)"


def parse(orders: DataFrame, batch: Batch) -> DataFrame:
    """Return the columns of the table; `batch.ranges` has the exact ranges of the frame."""
    print(batch.id, batch.lines(), sep="\n")
    parsed = orders.selectExpr("from_json(cast(value as string), 'id int, item string, count int') as o").select("o.*")
    return parsed.where("id is not null")


def main() -> None:
    """Read the new orders."""
    with sqlite3.connect(SHOP) as database:
        database.execute(TABLE)
    spark = SparkSession.builder.appName("orders to a table").getOrCreate()
    shop = f"sqlite:///{SHOP}"
    pipeline = Pipeline(group="orders", store=shop, brokers=BROKERS, topics=[ORDERS], max_records=20)
    # Without `until` it runs until it is stopped.
    summary = pipeline.run(spark, parse, sink=Table(shop, "orders"), guarantee="exactly_once", until="caught_up")
    print(summary.batches, "batches,", summary.offsets, "orders")


if __name__ == "__main__":
    main()
