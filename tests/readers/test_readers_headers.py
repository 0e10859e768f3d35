"""Headers that are odd: keys that are no text, which other clients write, and large ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from confluent_kafka import Producer, cimpl
from pyspark.sql import SparkSession

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import RecordUnreadable
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source, consume, messages, open_reader
from offsetkeeper.readers.sample import sample
from offsetkeeper.readers.source import record_batch
from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
MakeSource = Callable[..., Source]
TOPIC, VALUE, HEADERS, END = 1, 4, 10, 0  # of rd_kafka_producev, see rdkafka.h


def produce(server: KafkaServer, topic: str, *records: list[bytes]) -> None:
    """Produce records with these header keys to a topic of one partition; confluent-kafka takes no such keys.

    The C functions are those of the librdkafka that confluent-kafka has loaded.
    """
    library, pointer, size = ctypes.CDLL(cimpl.__file__), ctypes.c_void_p, ctypes.c_size_t
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = pointer
    said = ctypes.create_string_buffer(200)
    settings = pointer(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", server.bootstrap.encode(), said, size(200)) == 0
    producer = pointer(library.rd_kafka_new(0, settings, said, size(200)))
    for keys in records:
        headers = pointer(library.rd_kafka_headers_new(size(len(keys))))
        for key in keys:
            assert library.rd_kafka_header_add(headers, key, size(len(key)), b"v", size(1)) == 0
        given = (TOPIC, topic.encode(), VALUE, b"x", size(1), HEADERS, headers, END)
        assert library.rd_kafka_producev(producer, *given) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


def test_a_key_that_is_not_utf_8_is_given_as_spark_gives_it(
    spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    orders = topic(partitions=1)
    records = [[b"plain"], [b"\xff\xfe"], [b"<NULL>", b"caf\xe9", b"caf\xc3\xa9"]]
    produce(kafka_server, orders, *records * 50)  # so often that Python optimises the calls
    found = {}
    for name in ("packed", "connector"):
        reader = open_reader(name, KafkaCluster(kafka_server.bootstrap), group="test", headers=True)
        rows = reader.read(spark, [OffsetRange(orders, 0, 0, 150)]).select("offset", "headers").collect()
        found[name] = {row.offset: [(h.key, bytes(h.value)) for h in row.headers] for row in rows}
    keys = [["plain"], ["\ufffd\ufffd"], ["<NULL>", "caf\ufffd", "café"]] * 50
    assert found["packed"] == {offset: [(key, b"v") for key in some] for offset, some in enumerate(keys)}
    assert found["packed"] == found["connector"]


def test_headers_count_in_what_is_taken_at_once(
    kafka_server: KafkaServer, topic: MakeTopic, source_of: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, size, most = topic(partitions=1), 10_000, 200_000
    with Producer({"bootstrap.servers": kafka_server.bootstrap}) as producer:
        for _ in range(400):
            producer.produce(orders, b"v", partition=0, headers=[("h", b"x" * size)])
        assert producer.flush(60) == 0
    taken = []

    def counted(some: list[Any], **more: Any) -> Any:
        taken.append(len(some))
        return record_batch(some, **more)

    monkeypatch.setattr(messages, "record_batch", counted)
    source = source_of(kafka_server, headers=True, batch_bytes=most)
    batches = [*consume.read(source, [(orders, 0, 0, 400)])]
    assert sum(batch.num_rows for batch in batches) == 400
    taken = taken or [batch.num_rows for batch in batches]  # the compiled reader does not take what does not fit
    assert max(taken) <= most // size + 1


def test_a_record_whose_keys_the_client_library_does_not_give_is_named(
    kafka_server: KafkaServer, topic: MakeTopic, source_of: MakeSource, implementation: dict[str, str]
) -> None:
    orders = topic(partitions=1)
    produce(kafka_server, orders, *[[b"\xff", b"plain"]] * 99, [b"\xff", b"\xfe"])
    wanted = [(orders, 0, 0, 100)]
    says = f"{orders} 0: the record at offset 99 has header keys that are not UTF-8"
    gives_it = implementation["offsetkeeper.native"] == "required"
    given = source_of(kafka_server, headers=True)
    with nullcontext() if gives_it else pytest.raises(RecordUnreadable, match=says):
        list(consume.read(given, wanted))
    before = [*consume.read(given, [(orders, 0, 98, 99)])]  # the client fetches the next record too
    assert sum(batch.num_rows for batch in before) == 1
    last = TopicPartition(orders, 0)
    assert sample(given, {last: 99})[last][0] == 1
    assert sum(batch.num_rows for batch in consume.read(source_of(kafka_server), wanted)) == 100
