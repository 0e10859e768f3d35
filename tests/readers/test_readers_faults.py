"""What cannot be read is an error that says so, and what can be read after all is."""

import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Theirs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from offsetkeeper.core.offsets import OffsetRange, TopicPartition
from offsetkeeper.errors import (
    BrokerError,
    BrokerUnavailable,
    MissingExtra,
    OffsetkeeperError,
    RangeGone,
    ReadStalled,
    SettingsError,
    UnknownTopic,
)
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.readers import Source, open_reader, reading_error, task_error
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.sample import sample
from offsetkeeper.testing.kafka import KafkaServer

MakeTopic = Callable[..., str]
Fill = Callable[..., None]
MakeSource = Callable[..., Source]

# So little is fetched ahead, and given out at once, that most records are still at the broker after the first batch: a
# busy machine may fetch as fast as it reads.
AT_ONCE = 1000
LITTLE_AHEAD = {
    "queued.max.messages.kbytes": "64",
    "fetch.max.bytes": "65536",
    "fetch.message.max.bytes": "16384",
    "message.max.bytes": "65536",
    "queued.min.messages": "100",
}


def error_of(
    spark: SparkSession, server: KafkaServer, name: str, wanted: OffsetRange, stall_s: float
) -> OffsetkeeperError | None:
    """Return offsetkeeper's error when a reader reads `wanted`."""
    reader = open_reader(name, KafkaCluster(server.bootstrap), group="test", stall_s=stall_s)
    try:
        reader.read(spark, [wanted]).collect()
    except Exception as error:  # noqa: BLE001 - what Spark raises is of many kinds
        return reading_error(error)
    return None


def delete_before(server: KafkaServer, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before `offset`."""
    admin = server.admin()
    admin.delete_records([Theirs(topic, 0, offset)])[Theirs(topic, 0)].result(30)


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_deleted_records_are_named_on_the_driver(
    name: str, spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    orders = topic()
    fill(kafka_server, orders, 10)
    delete_before(kafka_server, orders, 4)
    error = error_of(spark, kafka_server, name, OffsetRange(orders, 0, 3, 8), stall_s=20)
    assert isinstance(error, RangeGone)
    assert f"{orders} 0: offsets 3 up to 8 are to be read, but Kafka holds 4 up to 10." in str(error)


@pytest.mark.parametrize("name", ["packed", "connector"])
def test_a_range_past_the_end_is_given_up_in_time_and_named(
    name: str, spark: SparkSession, kafka_server: KafkaServer, topic: MakeTopic, fill: Fill
) -> None:
    orders = topic()
    fill(kafka_server, orders, 10)
    before = time.monotonic()
    error = error_of(spark, kafka_server, name, OffsetRange(orders, 0, 3, 12), stall_s=4)
    assert time.monotonic() - before < 50
    assert isinstance(error, ReadStalled)
    assert f"{orders} 0" in str(error)
    assert "the partition ends at 10" in str(error)


def test_records_deleted_while_a_range_is_read_are_named(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource
) -> None:
    orders = topic()
    fill(kafka_server, orders, 20_000)
    batches = read(source_of(kafka_server, LITTLE_AHEAD, batch_rows=AT_ONCE), [(orders, 0, 0, 20_000)])
    assert next(batches).num_rows <= AT_ONCE
    delete_before(kafka_server, orders, 20_000)
    with pytest.raises(RangeGone, match=rf"{orders} 0: .* up to 20000 .* Kafka holds 20000 up to 20000"):
        list(batches)


def test_a_start_beyond_the_end_is_not_taken_for_an_empty_range(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource
) -> None:
    orders = topic()
    fill(kafka_server, orders, 10)
    with pytest.raises(RangeGone, match=r"offsets 11 up to 12 .* Kafka holds 0 up to 10"):
        list(read(source_of(kafka_server), [(orders, 0, 11, 12)]))


def test_a_stall_names_the_ranges_and_their_positions_and_counts_the_rest(
    kafka_server: KafkaServer, topic: MakeTopic, source_of: MakeSource
) -> None:
    orders = topic(partitions=8)
    ranges = [(orders, partition, 0, 5) for partition in range(8)]
    with pytest.raises(ReadStalled, match=rf"{orders} 0 at 0 of 5 .the partition ends at 0.;.* and 3 more"):
        list(read(source_of(kafka_server, stall_s=4), ranges))


def test_aborted_records_that_take_longer_than_a_stall_are_no_stall(
    kafka_server: KafkaServer, topic: MakeTopic, source_of: MakeSource
) -> None:
    """The client gives nothing of them: here for about four seconds."""
    orders = topic()
    small = {"batch.num.messages": 10, "log_level": 0}  # records of a batch come, and are passed over, together
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": orders, **small})
    producer.init_transactions(30)
    for count, end in ((2000, producer.abort_transaction), (3, producer.commit_transaction)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(orders, b"v" * 1000)
        assert producer.flush(30) == 0
        end(30)
    with kafka_server.proxy() as proxy:
        proxy.reply_rate = 500_000
        options = {**LITTLE_AHEAD, "statistics.interval.ms": "0"}  # as pasted from elsewhere: ours counts
        source = replace(source_of(kafka_server, options, stall_s=1), brokers=proxy.address)
        found = [offset for batch in read(source, [(orders, 0, 0, 2004)]) for offset in batch["offset"].to_pylist()]
    assert found == [2001, 2002, 2003]


def test_a_look_at_sizes_says_that_brokers_are_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        brokers = "{}:{}".format(*closed.getsockname())
    with pytest.raises(BrokerUnavailable, match=f"a look at sizes: no answer from {brokers}"):
        sample(Source(brokers, {}, "test", "read_committed", stall_s=2), {TopicPartition("orders", 0): 0})


def test_slow_work_between_two_batches_is_no_stall(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time counts only while a record is waited for, as here for those of the second half."""
    orders = topic()
    fill(kafka_server, orders, 1000)
    worked_s, now = [0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(worked_s))
    batches = read(source_of(kafka_server, stall_s=20), [(orders, 0, 0, 2000)])
    rows = next(batches).num_rows
    worked_s.append(1000)
    later = threading.Timer(1, fill, (kafka_server, orders, 1000))
    later.start()
    try:
        rows += sum(batch.num_rows for batch in batches)
    finally:
        later.join()  # before its topic is deleted
    assert rows == 2000


def test_a_range_is_read_through_the_brokers_crash(own_server: KafkaServer, fill: Fill, source_of: MakeSource) -> None:
    own_server.create_topic("orders")
    fill(own_server, "orders", 20_000)
    batches = read(source_of(own_server, LITTLE_AHEAD, batch_rows=AT_ONCE), [("orders", 0, 0, 20_000)])
    found = next(batches).column("offset").to_pylist()
    assert len(found) <= AT_ONCE
    own_server.kill()
    own_server.restart()
    for batch in batches:
        found += batch.column("offset").to_pylist()
    assert found == list(range(20_000))


def test_a_broker_that_stays_away_is_said_to_be_away(
    own_server: KafkaServer, fill: Fill, source_of: MakeSource
) -> None:
    own_server.create_topic("orders")
    fill(own_server, "orders", 20_000)
    batches = read(source_of(own_server, LITTLE_AHEAD, batch_rows=AT_ONCE, stall_s=5), [("orders", 0, 0, 20_000)])
    next(batches)
    own_server.kill()
    with pytest.raises(BrokerUnavailable, match=r"no record came for 5 s.*(refused|Disconnected|brokers are down)"):
        list(batches)


def test_a_topic_deleted_while_it_is_read_is_named(
    kafka_server: KafkaServer, topic: MakeTopic, fill: Fill, source_of: MakeSource
) -> None:
    orders = topic()
    fill(kafka_server, orders, 20_000)
    batches = read(source_of(kafka_server, LITTLE_AHEAD, batch_rows=AT_ONCE), [(orders, 0, 0, 20_000)])
    next(batches)
    kafka_server.delete_topic(orders)
    with pytest.raises(UnknownTopic, match=f"topic {orders}: it does not exist"):
        list(batches)


def test_a_topic_that_never_was_is_named(kafka_server: KafkaServer, source_of: MakeSource) -> None:
    with pytest.raises(UnknownTopic, match="topic no-such-topic: it does not exist"):
        list(read(source_of(kafka_server), [("no-such-topic", 0, 0, 1)]))


def test_a_partition_that_never_was_is_named(
    kafka_server: KafkaServer, topic: MakeTopic, source_of: MakeSource
) -> None:
    orders = topic(partitions=2)
    with pytest.raises(UnknownTopic, match=f"partition {orders} 2: it does not exist"):
        list(read(source_of(kafka_server), [(orders, 2, 0, 1)]))


def test_options_that_fail_where_the_task_runs_are_named(kafka_server: KafkaServer, source_of: MakeSource) -> None:
    options = {"security.protocol": "ssl", "ssl.ca.location": "no-such-file.pem"}
    with pytest.raises(SettingsError, match=r"ssl\.ca\.location"):
        list(read(source_of(kafka_server, options), [("orders", 0, 0, 1)]))


def test_a_client_library_that_is_missing_where_the_task_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, kafka_server: KafkaServer, source_of: MakeSource
) -> None:
    """None in `sys.modules` is Python's own way to say that a module cannot be imported."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtra, match=r"confluent-kafka is not installed in .*reader='connector'"):
        list(read(source_of(kafka_server), [("orders", 0, 0, 1)]))


def test_an_error_of_another_kind_is_not_taken_for_a_readers() -> None:
    assert reading_error(ValueError("offsetkeeper.errors.NoSuchError: what")) is None
    refused = SettingsError("it is itself")
    assert reading_error(refused) is refused


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "CorruptRecordException: Record batch for partition my-topic-7 at offset 2 is invalid, cause: CRC (1)",
            r"partition my-topic 7: offset 2: CRC \(1\)",
        ),
        (
            "KafkaException: Received exception when fetching the next record from my-topic-7. If needed, please seek",
            "partition my-topic 7: a record batch cannot be read",
        ),
    ],
)
def test_what_the_connector_says_of_a_damaged_record_names_its_partition(text: str, told: str) -> None:
    """Of other errors of Kafka's Java client it is unknown whether they are of the source or of an output."""
    raised = PySparkException(f"Job aborted\nCaused by: org.apache.kafka.common.errors.{text}")
    for error in (reading_error(raised), task_error(raised)):
        assert type(error) is BrokerError
        assert re.match(told, str(error))
    assert task_error(PySparkException("org.apache.kafka.common.errors.TimeoutException")) is None


def test_a_value_with_the_words_of_sparks_connector_is_no_error_of_it() -> None:
    line = "Record at topic orders partition 0 offset 5 has timestamp value 99999 that overflows"
    assert task_error(ValueError(f"not JSON: 'WARN {line}'")) is None
    kind = "org.apache.spark.sql.kafka010.KafkaIllegalArgumentException"
    assert task_error(PySparkException(f"a job failed\nCaused by: {kind}: {line}")) is not None
    assert task_error(PySparkException(f"a job failed\nCaused by: java.lang.RuntimeException: {line}")) is None
