"""Good orders go into a table, bad ones to a topic of dead letters, all of them into files: each exactly once.

After a crash between two outputs, the one that has the batch is not written again.
"""

import sqlite3
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import Files, Outputs, Table, Topic

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"
FOLDER = "data/all-orders"
TABLE = "create table if not exists good_orders (id integer, item text, count integer)"


def split(orders: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Return a frame for each output, by its name."""
    print(batch.id, batch.size)
    text = orders.selectExpr("key", "topic", "partition", "offset", "cast(value as string) as text")
    parsed = text.selectExpr("*", "from_json(text, 'id int, item string, count int') as o")
    why = "to_json(struct(topic, partition, offset, text, 'not an order' as why)) as value"
    return {
        "good": parsed.where("o.id is not null").select("o.*"),
        "bad": parsed.where("o.id is null").selectExpr("key", why),
        "all": text,
    }


def main() -> None:
    """Read the new orders."""
    with sqlite3.connect(SHOP) as database:
        database.execute(TABLE)
    spark = SparkSession.builder.appName("several outputs").getOrCreate()
    shop = f"sqlite:///{SHOP}"
    outputs = Outputs(
        good=Table(shop, "good_orders"),  # in the store's database: one transaction with the offsets
        bad=Topic(BROKERS, f"{ORDERS}.bad"),
        all=Files(str(Path(FOLDER).absolute())),
    )
    pipeline = Pipeline(group="several", store=shop, brokers=BROKERS, topics=[ORDERS])
    pipeline.run(spark, split, sink=outputs, guarantee="exactly_once", until="caught_up")


if __name__ == "__main__":
    main()
