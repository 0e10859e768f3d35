"""Orders get their price by a look-up and go to another topic, exactly once.

A batch and its mark are one transaction in Kafka: consumers with isolation.level=read_committed see each order once.
"""

import sqlite3

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import Topic

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"
PRICES = "create table if not exists prices (item text primary key, price real)"


def prices() -> list[tuple[str, float]]:
    """Return the prices of this moment."""
    with sqlite3.connect(SHOP) as database:
        return database.execute("select item, price from prices").fetchall()


def enrich(orders: DataFrame, batch: Batch) -> DataFrame:
    """Return the columns of Spark's Kafka sink; the prices are read anew for each batch."""
    table = orders.sparkSession.createDataFrame(prices(), "item string, price double")
    parsed = orders.selectExpr("key", "from_json(cast(value as string), 'id int, item string, count int') as o")
    priced = parsed.select("key", "o.*").where("id is not null").join(broadcast(table), "item", "left")
    print(batch.id, batch.size)
    return priced.selectExpr("key", "to_json(struct(id, item, count, count * price as total)) as value")


def main() -> None:
    """Read the new orders."""
    with sqlite3.connect(SHOP) as database:
        database.execute(PRICES)
        database.execute("insert or ignore into prices values ('tea', 2.5), ('milk', 1.25)")
    spark = SparkSession.builder.appName("enrichment to a topic").getOrCreate()
    pipeline = Pipeline(group="pricing", store=f"sqlite:///{SHOP}", brokers=BROKERS, topics=[ORDERS])
    priced = Topic(BROKERS, f"{ORDERS}.priced")
    pipeline.run(spark, enrich, sink=priced, guarantee="exactly_once", until="caught_up")


if __name__ == "__main__":
    main()
