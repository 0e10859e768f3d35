"""Opening a reader: names, settings, and what the ranges given to it must be."""

from collections.abc import Callable

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from offsetkeeper.core.cluster import Isolation
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import AutoReader, ConnectorReader, PackedReader, open_reader
from offsetkeeper.testing.kafka import KafkaServer

NOWHERE = "127.0.0.1:1"


def test_readers_have_names() -> None:
    assert isinstance(open_reader("packed", KafkaCluster(NOWHERE), group="test"), PackedReader)
    assert isinstance(open_reader("connector", KafkaCluster(NOWHERE), group="test"), ConnectorReader)
    assert isinstance(open_reader("auto", KafkaCluster(NOWHERE), group="test"), AutoReader)
    with pytest.raises(SettingsError, match="use one of auto, packed, connector"):
        open_reader("fastest", KafkaCluster(NOWHERE), group="test")


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_wrong_settings_are_refused_before_anything_is_read(name: str) -> None:
    with pytest.raises(SettingsError, match="host:port"):
        open_reader(name, KafkaCluster("host:port"), group="test")
    with pytest.raises(SettingsError, match=r"take the Kafka option group\.id out"):
        open_reader(name, KafkaCluster(NOWHERE, {"group.id": "x"}), group="test")
    wrong: Isolation = "dirty"  # type: ignore[assignment]  # that is the point
    with pytest.raises(SettingsError, match="read_committed"):
        open_reader(name, KafkaCluster(NOWHERE, isolation=wrong), group="test")
    with pytest.raises(SettingsError, match="split=0"):
        open_reader(name, KafkaCluster(NOWHERE), group="test", split=0)


@pytest.mark.parametrize("name", ["packed", "connector"])
@pytest.mark.parametrize("headers", [True, False])
def test_no_ranges_are_an_empty_frame_with_all_columns(name: str, headers: bool, spark: SparkSession) -> None:  # noqa: FBT001 - pytest passes it by name
    frame = open_reader(name, KafkaCluster(NOWHERE), group="test", headers=headers).read(spark, [])
    columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert frame.columns == columns + ["headers"] * headers
    assert frame.collect() == []


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_ranges_that_overlap_are_refused_before_anything_is_read(name: str, spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match="overlap"):
        open_reader(name, KafkaCluster(NOWHERE), group="test").read(
            spark, [OffsetRange("orders", 0, 0, 5), OffsetRange("orders", 0, 4, 6)]
        )


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_what_is_no_range_is_not_read(name: str, spark: SparkSession) -> None:
    with pytest.raises(SettingsError, match=r"is not a range: write OffsetRange"):
        open_reader(name, KafkaCluster(NOWHERE), group="test").read(spark, [("orders", 0, 0, 5)])  # type: ignore[list-item]


def test_tasks_are_as_many_as_can_run_at_each_read(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors come and go, and a reader is kept."""
    reader = open_reader("packed", KafkaCluster(NOWHERE), group="test")
    ranges = [OffsetRange("orders", partition, 0, 10) for partition in range(8)]
    for cores in (1, 5, 2):
        monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", cores)
        assert reader.read(spark, ranges).rdd.getNumPartitions() == cores


def test_tasks_are_as_many_as_can_run_once_all_executors_have_come(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic allocation starts executors for tasks that wait, so there must be some that wait."""
    reader = open_reader("packed", KafkaCluster(NOWHERE), group="test")
    ranges = [OffsetRange("orders", partition, 0, 10) for partition in range(8)]
    named = {"dynamicAllocation.enabled": "true", "dynamicAllocation.maxExecutors": "3", "executor.cores": "2"}
    for less, tasks in ({}, 6), ({"task.cpus": "2"}, 3), ({"dynamicAllocation.enabled": "false"}, 2):
        conf = SparkConf(loadDefaults=False)
        conf.setAll([(f"spark.{name}", value) for name, value in {**named, **less}.items()])
        monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", 2)
        monkeypatch.setattr(spark, "conf", conf)
        assert reader.read(spark, ranges).rdd.getNumPartitions() == tasks


def test_executors_without_a_limit_do_not_make_tasks_without_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = open_reader("packed", KafkaCluster(NOWHERE), group="test", split=1_000_000)
    conf = SparkConf(loadDefaults=False)
    conf.setAll([("spark.dynamicAllocation.enabled", "true"), ("spark.dynamicAllocation.maxExecutors", f"{2**31 - 1}")])
    monkeypatch.setattr(spark, "conf", conf)
    assert reader.read(spark, [OffsetRange("orders", 0, 0, 100_000)]).rdd.getNumPartitions() == 200


def test_times_are_those_of_sparks_source_whatever_a_timestamp_is_called(
    spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], fill: Callable[..., None]
) -> None:
    """With TIMESTAMP_NTZ the packed reader's times were hours away from the connector's."""
    name = topic()
    fill(kafka_server, name, 3)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        packed, connector = (
            open_reader(each, KafkaCluster(kafka_server.bootstrap), group="test").read(
                spark, [OffsetRange(name, 0, 0, 3)]
            )
            for each in ("packed", "connector")
        )
        assert packed.schema == connector.schema
        assert packed.select("offset", "timestamp").collect() == connector.select("offset", "timestamp").collect()
        empty = open_reader("packed", KafkaCluster(NOWHERE), group="test").read(spark, [])
        assert empty.schema["timestamp"].dataType == packed.schema["timestamp"].dataType
    finally:
        spark.conf.unset("spark.sql.timestampType")
