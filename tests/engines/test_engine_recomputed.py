"""A stage that Spark computes again with other rows: of a batch nothing lands that is of two computations."""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from engines import recomputed_driver
from engines.lab import Lab
from engines.lost_shuffle import lose_shuffled
from fixtures.clusters import CLUSTER_SESSION
from offsetkeeper import Batch
from offsetkeeper.engines import recomputed
from offsetkeeper.engines.recomputed import watched
from offsetkeeper.errors import ComputedAgain
from offsetkeeper.sinks import Table
from offsetkeeper.testing.java import java
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.spark import SparkCluster

LIMIT_S = 450  # against a hang: on a busy machine a cluster takes minutes
PARTITIONS, RECORDS = 4, 500
SESSION = {
    **CLUSTER_SESSION,
    # What a dead executor has shuffled is gone, as with its host.
    "spark.shuffle.readHostLocalDisk": "false",
    "spark.shuffle.io.retryWait": "10ms",
    # Spark 4.2 would find the other rows by itself.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    """A standalone cluster of two workers with a core each."""
    with SparkCluster(workers=2, memory="512m") as cluster:
        yield cluster


def test_no_row_is_lost_or_doubled_where_spark_computes_a_stage_again_with_other_rows(
    tmp_path: Path, cluster: SparkCluster, kafka_server: KafkaServer, topic: Callable[..., str], database: str
) -> None:
    """With one attempt: what Spark computes again uses up none."""
    orders, aside = topic(partitions=PARTITIONS), f"sqlite:///{tmp_path}/offsets.db"
    produce(kafka_server, orders)
    stores = {"marked": aside, "joined": database, "query": aside}
    with psycopg.connect(database) as connection:
        for name in stores:
            connection.execute(f'create table {name} (topic text, partition int, "offset" bigint)')
    given = {
        "spark": {**SESSION, "spark.master": cluster.url},
        "folder": str(tmp_path),
        "database": database,
        "pipeline": {"brokers": kafka_server.bootstrap, "topics": [orders]},
        "stores": stores,
    }
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
    command = [sys.executable, recomputed_driver.__file__, json.dumps(given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("is staged anew (1 of 10)") == len(stores)
    wanted = PARTITIONS * RECORDS
    with psycopg.connect(database) as connection:
        select = 'select count(*), count(distinct (partition, "offset")) from {}'
        counted = {name: connection.execute(select.format(name)).fetchone() for name in stores}
    assert counted == dict.fromkeys(stores, (wanted, wanted))


def produce(server: KafkaServer, topic: str) -> None:
    """Write the records."""
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(PARTITIONS):
        for offset in range(RECORDS):
            producer.produce(topic, f"order {offset}", partition=number)
    assert producer.flush(LIMIT_S) == 0


@pytest.mark.parametrize("rows", ["rows", "offsets"])
def test_what_spark_computes_again_in_the_function_is_staged_anew(
    lab: Lab, topic: Callable[..., str], rows: str
) -> None:
    """Into a database of its own, and in the transaction that commits the offsets."""
    orders, database = topic(), Path(lab.store.removeprefix("sqlite:///")).with_name(f"{rows}.db")
    lab.produce(orders, "tea", "milk")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("create table orders (value text)")
    retries: list[bool] = []

    def counted(frame: DataFrame, batch: Batch) -> DataFrame:
        if not retries:
            lose_shuffled(frame.repartition(2, "value"))
        retries.append(batch.retry)
        return frame.selectExpr("cast(value as string) as value")

    sink = Table(f"sqlite:///{database}", "orders")
    pipeline = lab.pipeline(orders, attempts=1)
    pipeline.run(lab.spark, counted, sink=sink, guarantee="exactly_once", until="caught_up")
    assert retries == [False, True]
    with closing(sqlite3.connect(database)) as connection:
        assert sorted(connection.execute("select value from orders")) == [("milk",), ("tea",)]


def test_what_spark_computes_anew_in_a_later_job_is_noticed(spark: SparkSession) -> None:
    """An executor that dies between two jobs: each stage has one attempt then."""
    with watched(spark.range(1)) as check:
        check()
        lose_shuffled(spark.range(100).repartition(2, "id"))
        with pytest.raises(ComputedAgain, match=r"stage \d+ computes again what stage \d+ has shuffled"):
            check()


def test_what_follows_code_that_clears_the_tags_of_its_jobs_is_noticed(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """What came before cannot be found, and that is told."""
    recomputed._cannot_tell.cache_clear()
    with watched(spark.range(1)) as check:
        spark.sparkContext.clearJobTags()
        check()
        [text] = caplog.messages
        assert "has cleared the tags of its jobs" in text
        lose_shuffled(spark.range(100).repartition(2, "id"))
        with pytest.raises(ComputedAgain, match=r"stage \d+ computes again what stage \d+ has shuffled"):
            check()


def test_what_is_lost_of_a_persisted_frame_is_computed_again_without_a_stage_that_shows_it(
    spark: SparkSession,
) -> None:
    """As when its executor has died between two outputs."""

    def by_chance(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [secrets.randbelow(2**60) for _ in range(batch.num_rows)]})

    context: Any = spark.sparkContext
    with watched(spark.range(1)) as check:
        kept = spark.range(100).mapInArrow(by_chance, "n bigint").persist()
        first = kept.collect()
        assert kept.collect() == first
        for number in context._jsc.getPersistentRDDs():
            context._jsc.sc().env().blockManager().removeRdd(number)
        assert kept.collect() != first
        check()
        kept.unpersist()


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_jobs_that_share_what_was_shuffled_or_cached_are_none_that_compute_again(
    spark: SparkSession, adaptive: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        with watched(spark.range(1)) as check:
            frame = spark.range(1000).repartition(3, "id").persist()
            counted = frame.groupBy((frame.id % 7).alias("k")).count()
            assert counted.join(broadcast(counted), "k").count() == 7
            assert counted.orderBy("k").toArrow().num_rows == 7
            assert len([*counted.rdd.toLocalIterator(prefetchPartitions=True)]) == 7
            assert len(counted.collect()) == len(counted.collect())
            frame.repartition(2).write.parquet(str(tmp_path / "rows"))
            frame.unpersist()
            check()
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", str(before))
    assert not spark.sparkContext._jsc.getJobTags()
    assert not caplog.messages
