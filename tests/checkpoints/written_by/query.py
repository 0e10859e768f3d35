"""Runs a query over a topic until all is read, with whatever Spark this Python has; needs nothing else.

The last line it prints is JSON: by batch the rows that it had, (partition, offset), or (partition, records so far) of
what changed where it counts.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 120
STATE = "spark.sql.streaming.stateStore"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BATCHES: dict[int, list[list[int]]] = {}


def collect(frame: DataFrame, number: int) -> None:
    """Keep the rows of a batch."""
    BATCHES[number] = sorted([int(value) for value in row] for row in frame.collect())


kind, checkpoint, brokers, topic, jars = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
if kind == "rocks":
    builder = builder.config(f"{STATE}.providerClass", ROCKSDB).config(f"{STATE}.checkpointFormatVersion", "2")
spark = builder.getOrCreate()
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4).load()
frame = frame.select("partition", "offset") if kind == "plain" else frame.groupBy("partition").count()
writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(collect)
writer = writer.outputMode("append" if kind == "plain" else "update").trigger(availableNow=True)
assert writer.start().awaitTermination(LIMIT_S)
spark.stop()
print(json.dumps({number: rows for number, rows in BATCHES.items() if rows}))  # noqa: T201 - its result
