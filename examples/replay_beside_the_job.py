"""A range that orders_to_table.py has read is read again; its offsets stay as they are, also while it runs.

The history knows the exact ranges of each batch. Here all orders of the last hour are counted again.
"""

from contextlib import closing
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from offsetkeeper import Ledger, OffsetRange, Pipeline, open_store

BROKERS, ORDERS = "localhost:9092", "orders"
SHOP = "shop.db"


def ranges_since(group: str, since: datetime) -> list[OffsetRange]:
    """Return the ranges of the batches that the group has committed since."""
    with closing(open_store(f"sqlite:///{SHOP}")) as store:
        entries = Ledger(store, group).history(limit=1000)
    at_ms = since.timestamp() * 1000
    if entries and entries[-1].version > 1 and entries[-1].at_ms > at_ms:
        raise SystemExit("the history does not reach back so far: use offsetkeeper replay, which reads by time")
    return [each for entry in entries if entry.event == "commit" and entry.at_ms >= at_ms for each in entry.ranges]


def main() -> None:
    """Read the ranges again, and count the orders in them."""
    spark = SparkSession.builder.appName("replay").getOrCreate()
    pipeline = Pipeline(group="orders", store=f"sqlite:///{SHOP}", brokers=BROKERS, topics=[ORDERS])
    again = pipeline.read(spark, ranges_since("orders", datetime.now(UTC) - timedelta(hours=1)))
    again.selectExpr("get_json_object(cast(value as string), '$.item') as item").groupBy("item").count().show()


if __name__ == "__main__":
    main()
