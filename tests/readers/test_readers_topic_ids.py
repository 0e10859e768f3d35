"""A topic that is made again has other records under the old offsets: a read that knows its id refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import RangeGone
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import Admin
from offsetkeeper.readers import Source, consume, open_reader, reading_error
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.streaming import StreamStart
from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
Fill = Callable[..., None]
MakeSource = Callable[..., Source]

AT_ONCE = 1000


def make_again(server: KafkaServer, topic: str) -> None:
    """Delete a topic, and create one with its name."""
    server.delete_topic(topic)
    server.create_topic(topic, 1)


def ids_of(server: KafkaServer, *topics: str) -> dict[str, str]:
    """Return the ids that Kafka tells now."""
    with KafkaCluster(server.bootstrap) as cluster:
        return {name: str(found.topic_id) for name, found in cluster.describe(topics).items()}


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_records_of_the_topic_that_has_the_old_name_are_not_given(
    name: str, spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    orders, others = topic(), topic()
    for each in (orders, others):
        fill(kafka_server, each, 5)
    old, wanted = ids_of(kafka_server, orders, others), [OffsetRange(each, 0, 1, 5) for each in (orders, others)]
    reader = open_reader(name, KafkaCluster(kafka_server.bootstrap), group="test")
    assert reader.read(spark, wanted, old).count() == 8
    make_again(kafka_server, orders)
    fill(kafka_server, orders, 5)
    with pytest.raises(Exception, match="created again") as raised:
        reader.read(spark, wanted, old).collect()
    assert isinstance(reading_error(raised.value), RangeGone)
    assert f"topic {orders} was deleted" in str(raised.value)
    assert reader.read(spark, wanted, ids_of(kafka_server, orders, others)).count() == 8


def test_what_consumers_of_the_connector_fetched_ahead_is_not_given_of_the_topic_that_is_made_again(
    spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    """Spark's executors keep the records of a poll that no batch has read yet, for minutes."""
    orders, old, new = topic(), b"v", b"vv"
    reader = open_reader("connector", KafkaCluster(kafka_server.bootstrap), group="test")

    def records(start: int, end: int) -> list[tuple[int, bytes]]:
        frame = reader.read(spark, [OffsetRange(orders, 0, start, end)], ids_of(kafka_server, orders))
        return [(row["offset"], bytes(row["value"])) for row in frame.collect()]

    fill(kafka_server, orders, 6, len(old))
    assert records(0, 3) == [(n, old) for n in range(3)]
    make_again(kafka_server, orders)
    fill(kafka_server, orders, 6, len(new))
    assert records(0, 3) == [(n, new) for n in range(3)]
    assert records(3, 6) == [(n, new) for n in range(3, 6)]


def test_a_query_gets_nothing_that_consumers_of_the_connector_fetched_ahead(
    spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, tmp_path: Path
) -> None:
    orders, old, new = topic(), b"v", b"vv"
    reader = open_reader("connector", KafkaCluster(kafka_server.bootstrap), group="test")
    fill(kafka_server, orders, 6, len(old))
    assert reader.read(spark, [OffsetRange(orders, 0, 0, 3)]).count() == 3
    make_again(kafka_server, orders)
    fill(kafka_server, orders, 6, len(new))
    start = StreamStart(Topics.of([orders]), {TopicPartition(orders, 0): Position(3)})
    frame = reader.for_query(spark, start, lambda: True).stream(spark, start)
    writing = frame.writeStream.format("memory").queryName("ahead").trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(60)
    assert [bytes(row["value"]) for row in spark.table("ahead").collect()] == [new] * 3


def test_a_topic_made_again_while_it_is_read_fails_the_read_before_its_last_records(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource
) -> None:
    orders = topic()
    fill(kafka_server, orders, 2 * AT_ONCE)
    batches = read(
        source_of(kafka_server, batch_rows=AT_ONCE), [(orders, 0, 0, 2 * AT_ONCE)], ids_of(kafka_server, orders)
    )
    assert next(batches).num_rows <= AT_ONCE
    make_again(kafka_server, orders)
    fill(kafka_server, orders, 2 * AT_ONCE)
    with pytest.raises(RangeGone, match=f"topic {orders} was deleted and created again"):
        list(batches)


def test_the_next_task_of_a_process_asks_by_the_same_client_until_a_task_fails(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = topic()
    fill(kafka_server, orders, 5)
    source, ids = source_of(kafka_server), ids_of(kafka_server, orders)
    opened = Mock(wraps=Admin)
    monkeypatch.setattr(consume, "Admin", opened)
    monkeypatch.setattr(consume, "_kept", {})

    def rows(number: int) -> int:
        return sum(batch.num_rows for batch in read(source, [(orders, 0, 0, number)], ids))

    assert [rows(3), rows(5)] == [3, 5]
    assert opened.call_count == 1
    make_again(kafka_server, orders)
    fill(kafka_server, orders, 5)
    with pytest.raises(RangeGone):
        rows(5)
    ids = ids_of(kafka_server, orders)
    assert rows(5) == 5
    assert opened.call_count == 2
