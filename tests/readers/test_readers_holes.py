"""Logs that Kafka's cleaner really compacted, and records of many sizes."""

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer, admin
from pyspark.sql import SparkSession

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source, open_reader
from offsetkeeper.readers.consume import read
from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
Fill = Callable[..., None]
MakeSource = Callable[..., Source]

COMPACT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "50",
    "delete.retention.ms": "0",
    "min.compaction.lag.ms": "0",
}


def cleaner_without_pauses(server: KafkaServer) -> None:
    """Let the cleaner look for work all the time; it may be set while the broker runs."""
    client: Any = server.admin()
    names: Any = admin  # its stubs leave these out
    quick = names.ConfigEntry("log.cleaner.backoff.ms", "50", incremental_operation=names.AlterConfigOpType.SET)
    resource = names.ConfigResource(names.ConfigResource.Type.BROKER, "1", incremental_configs=[quick])
    client.incremental_alter_configs([resource])[resource].result(30)


def offsets(source: Source, ranges: list[tuple[str, int, int, int]]) -> list[int]:
    """Return the offsets that a task reads."""
    return [offset for batch in read(source, ranges) for offset in batch.column("offset").to_pylist()]


def compacted(server: KafkaServer, topic: str, source: Source) -> int:
    """Write few keys again and again until the cleaner has made a hole; return the end offset."""
    partition = TopicPartition(topic, 0)
    deadline = time.monotonic() + 240
    with Producer({"bootstrap.servers": server.bootstrap}) as producer, KafkaCluster(server.bootstrap) as cluster:
        while True:
            for number in range(20):
                producer.produce(topic, b"v", str(number % 7).encode(), partition=0)
            assert producer.flush(30) == 0
            end = cluster.bounds([partition])[partition].end
            found = offsets(source, [(topic, 0, 0, end)])
            holes = set(range(end)) - set(found)
            if {5, 20, 21} <= holes and found == sorted(found):
                return end
            assert time.monotonic() < deadline, "the cleaner made no hole"


def test_ranges_may_begin_and_end_in_the_holes_of_a_compacted_log(
    kafka_server: KafkaServer, spark: SparkSession, topic: MakeTopic, source_of: MakeSource
) -> None:
    """Both readers, without waiting for records that are gone."""
    orders = topic(config=COMPACT)
    cleaner_without_pauses(kafka_server)
    source = source_of(kafka_server, stall_s=20)
    end = compacted(kafka_server, orders, source)
    stretches = [(0, end), (0, 5), (5, 6), (5, 22), (20, 21), (end - 7, end)]
    readers = [
        open_reader(n, KafkaCluster(kafka_server.bootstrap), group="test", stall_s=20) for n in ("packed", "connector")
    ]
    while True:
        held = offsets(source, [(orders, 0, 0, end)])
        found = [
            [row.offset for row in reader.read(spark, [OffsetRange(orders, 0, *stretch)]).select("offset").collect()]
            for stretch in stretches
            for reader in readers
        ]
        if held == offsets(source, [(orders, 0, 0, end)]):
            break  # the cleaner may still have been at work before
    expected = [[offset for offset in held if start <= offset < stop] for start, stop in stretches]
    assert found == [each for each in expected for _ in readers]


def test_records_of_a_few_bytes_and_of_many_megabytes_come_in_one_range(
    kafka_server: KafkaServer, spark: SparkSession, topic: MakeTopic, fill: Fill
) -> None:
    orders = topic(config={"max.message.bytes": str(2**26)})
    sizes = [(500, 10), (1, 3 * 2**20), (300, 100), (3, 8 * 2**20), (1, 20 * 2**20), (200, 1000)]
    for count, size in sizes:
        fill(kafka_server, orders, count, size)
    total = sum(count for count, _ in sizes)
    expected = [size for count, size in sizes for _ in range(count)]
    for name in ("packed", "connector"):
        reader = open_reader(name, KafkaCluster(kafka_server.bootstrap), group="test")
        frame = reader.read(spark, [OffsetRange(orders, 0, 0, total)])
        rows = frame.selectExpr("offset", "length(value) as size", "replace(string(value), 'v', '') as rest").collect()
        assert [(row.offset, row.size, row.rest) for row in sorted(rows)] == [
            (offset, size, "") for offset, size in enumerate(expected)
        ]


def test_a_batch_has_one_record_where_records_are_larger_than_a_batch(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource
) -> None:
    orders = topic(config={"max.message.bytes": str(2**26)})
    fill(kafka_server, orders, 30, 10)
    fill(kafka_server, orders, 4, 9 * 2**20)
    fill(kafka_server, orders, 30, 10)
    batches: list[Any] = list(read(source_of(kafka_server), [(orders, 0, 0, 64)]))
    assert sum(batch.num_rows for batch in batches) == 64
    large = [batch for batch in batches if batch.nbytes > 8 * 2**20]
    assert [batch.num_rows for batch in large] == [1, 1, 1, 1]
