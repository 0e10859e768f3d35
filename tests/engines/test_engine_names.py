"""Whatever Kafka takes as the name of a group runs, with each reader, and keeps its marks at each kind of output."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.sinks import DeltaTable, Files, Outputs, Table, Topic
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S = 60
GROUPS = (" team/orders:v2\n..'", "%20team%2Forders:v2%0A..'")


def rows(frame: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """What goes into each output: the value, and whose it is."""
    found = frame.selectExpr(f"'{GROUPS.index(batch.group)}' || cast(value as string) as value")
    return dict.fromkeys(("table", "files", "lake", "topic"), found)


@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_group_of_any_name_writes_each_record_once_into_each_kind_of_output(
    reader: str, spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Two groups, which a careless place would take for one, share all outputs; a start looks at their marks."""
    source, target = topic(1), topic(1)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("create table rows (value)")
    deltalake.DeltaTable.create(tmp_path / "lake", schema=pa.schema([("value", pa.string())]))
    store = FolderStore(f"file://{tmp_path}/offsets")
    store.init()
    for value in ("a", "b"):
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
        producer.produce(source, value)
        assert producer.flush(LIMIT_S) == 0
        for number, group in enumerate(GROUPS):
            outputs = Outputs(
                table=Table(f"sqlite:///{tmp_path}/rows.db", "rows"),
                files=Files(f"{tmp_path}/files{number}"),
                lake=DeltaTable(tmp_path / "lake"),
                topic=Topic(kafka_server.bootstrap, target),
            )
            pipeline = Pipeline(
                group=group, store=store, brokers=kafka_server.bootstrap, topics=[source], reader=reader
            )
            pipeline.run(spark, rows, sink=outputs, guarantee="exactly_once", until="caught_up")
    assert list(store.groups()) == sorted(GROUPS)
    store.close()
    wanted = ["0a", "0b", "1a", "1b"]
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        assert sorted(value for (value,) in connection.execute("select value from rows")) == wanted
    assert sorted(deltalake.DeltaTable(tmp_path / "lake").to_pyarrow_table()["value"].to_pylist()) == wanted
    files = [spark.read.parquet(f"{tmp_path}/files{number}").collect() for number in range(2)]
    assert sorted(row.value for each in files for row in each) == wanted
    settings = {"bootstrap.servers": kafka_server.bootstrap, "group.id": "reads", "auto.offset.reset": "earliest"}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([target])
        found = [message.value() or b"" for _ in wanted if (message := consumer.poll(LIMIT_S)) is not None]
    assert sorted(found) == [each.encode() for each in wanted]
