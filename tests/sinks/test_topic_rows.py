"""What becomes of a frame's rows in a topic, and which frames, rows and settings are refused."""

from __future__ import annotations

import logging
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from offsetkeeper.core.batch import Batch
from offsetkeeper.errors import MissingExtra, Refused, RowMismatch, SettingsError, SinkError, SinkMismatch
from offsetkeeper.kafka.clients import _room
from offsetkeeper.kafka.transactions import Saying
from offsetkeeper.sinks import MarkKey, Seen, Topic
from offsetkeeper.sinks.topic import ends, task
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import free_port
from sinks.topics import KEY, committed, lander, mark, values

NewTopic = Callable[..., str]
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH = Batch("billing", "token", 1, ())
SCHEMA = (
    "key binary, value binary, headers array<struct<key string, value binary>>, topic string, partition int, "
    "timestamp timestamp"
)
AT = datetime.now(UTC).replace(microsecond=678000) - timedelta(hours=1)  # older ones would fall to retention
AT_MS = int(AT.timestamp()) * 1000 + 678


def land(sink: Topic, frame: DataFrame, sequence: int = 1) -> None:
    """Land a frame under the next mark."""
    way = lander(sink)
    way.land(KEY, way.seen(KEY), mark(sequence), way.stage(frame, BATCH))


def test_each_column_goes_where_it_goes_with_spark(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name, other = topic(3), topic(3)
    rows = [
        (b"k", b"v", [("h", b"1"), ("h", None), ("", b"")], None, 2, AT),
        (None, None, None, other, 1, None),
        (b"", b"", [], name, 0, AT),
    ]
    land(Topic(kafka_server.bootstrap, name, kafka=implementation), spark.createDataFrame(rows, SCHEMA))
    found = sorted(committed(kafka_server.bootstrap, name))
    assert found[0][:4] == (0, b"", b"", AT_MS)
    assert found[1] == (2, b"k", b"v", AT_MS, [("h", b"1"), ("h", None), ("", b"")])
    [tombstone] = committed(kafka_server.bootstrap, other)
    assert tombstone[:3] == (1, None, None)
    assert abs(tombstone.timestamp_ms / 1000 - datetime.now(UTC).timestamp()) < 600


def test_where_the_broker_sets_the_times_the_rows_are_there_once_with_its_times(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic(1, {"message.timestamp.type": "LogAppendTime"})
    land(
        Topic(kafka_server.bootstrap, name, kafka=implementation),
        spark.createDataFrame([(b"v", AT)], "value binary, timestamp timestamp"),
    )
    [found] = committed(kafka_server.bootstrap, name)
    assert found.value == b"v"
    assert found.timestamp_ms > AT_MS + 3_000_000  # AT is an hour ago


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows in many batches."""
    spark.conf.set(BATCH_ROWS, "70")
    yield
    spark.conf.unset(BATCH_ROWS)


@pytest.mark.usefixtures("small_batches")
def test_the_rows_are_those_that_sparks_own_sink_writes(
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: NewTopic,
    implementation: dict[str, str],
) -> None:
    """Row by row. So records of a key stay in one partition, whoever writes them."""
    ours, sparks = topic(7), topic(7)
    texts = (
        "concat('schlüssel ', n) as key, case n when 2 then null when 3 then X'' else cast('v' as binary) end as value"
    )
    frame = (
        spark.range(0, 1500, 1, 3)
        .where("id % 3 < 2 or id < 900")
        .selectExpr(
            "case id % 7 when 0 then '' else concat('kéy ', id) end as key",
            "case id % 5 when 0 then null when 1 then '' else concat('ä', id, repeat('x', int(id % 90))) end as value",
            "case id % 4 when 0 then null when 1 then array() "
            f"else transform(sequence(1, id % 3 + 1), n -> struct({texts})) end as headers",
            "case id % 6 when 0 then int(id % 7) end as partition",
        )
    )
    land(Topic(kafka_server.bootstrap, ours, kafka=implementation), frame)
    options = {"kafka.bootstrap.servers": kafka_server.bootstrap, "topic": sparks, "includeHeaders": "true"}
    frame.coalesce(1).write.format("kafka").options(**options).save()
    found = [
        [each._replace(timestamp_ms=0) for each in committed(kafka_server.bootstrap, name)] for name in (ours, sparks)
    ]
    assert sorted(found[0], key=repr) == sorted(found[1], key=repr)
    assert len(found[0]) == frame.count() > 1000


def test_a_text_goes_out_with_the_bytes_that_it_has(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """Also if they are no UTF-8, as a cast of a record's value may be."""
    name = topic()
    frame = spark.sql("select cast(X'6BFF' as string) as key, cast(X'00FE' as string) as value")
    land(Topic(kafka_server.bootstrap, name, kafka=implementation), frame)
    assert [each[1:3] for each in committed(kafka_server.bootstrap, name)] == [(b"k\xff", b"\x00\xfe")]


def test_rows_of_one_partition_of_the_frame_keep_their_order(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic()
    frame = spark.range(0, 30_000, 1, 3).selectExpr(
        "cast(spark_partition_id() as string) as key", "cast(id as string) as value"
    )
    land(Topic(kafka_server.bootstrap, name, kafka=implementation), frame)
    found = committed(kafka_server.bootstrap, name)
    numbers: dict[bytes | None, list[int]] = {}
    for each in found:
        numbers.setdefault(each.key, []).append(int(each.value or b""))
    assert [len(each) for each in numbers.values()] == [10_000] * 3
    assert all(each == sorted(each) for each in numbers.values())


def test_rows_may_name_topics_and_the_mark_is_kept_in_one(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    """Of a batch for several topics, all or nothing shows, whichever of them is looked at."""
    one, two, marks = topic(), topic(), topic()
    sink = Topic(kafka_server.bootstrap, mark_topic=marks, kafka=implementation)
    frame = spark.createDataFrame([(one, "1"), (two, "2")], "topic string, value string")
    land(sink, frame)
    with pytest.raises(RowMismatch, match=r"column topic: a row has no topic, and Topic\(…\) has no name"):
        land(sink, frame.union(spark.createDataFrame([(None, "3")], frame.schema)), 2)
    assert [values(kafka_server.bootstrap, name) for name in (one, two, marks)] == [["1"], ["2"], []]
    group = "offsetkeeper.billing/"
    assert kafka_server.group_offsets(group, [(name, 0) for name in (one, two, marks)]) == {(marks, 0): 1}


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (["1 as value"], "column value: int does not fit; cast it to string or binary"),
        (["'k' as key"], "column value is missing"),
        (["'v' as value", "1 as key"], "column key: int does not fit"),
        (["'v' as value", "1L as partition"], "column partition: bigint does not fit; cast it to int"),
        (
            ["'v' as value", "map('a', 'b') as headers"],
            "column headers: map<string,string> does not fit",
        ),
        (["'v' as value", "timestamp_ntz'2026-01-01' as timestamp"], "column timestamp: timestamp_ntz does not fit"),
        (["'v' as value", "5L as offset"], "column offset: not a column for Kafka"),
        (["'v' as value", "'w' as value"], "column value occurs more than once"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_its_columns(
    spark: SparkSession, kafka_server: KafkaServer, topic: NewTopic, columns: list[str], told: str
) -> None:
    way = lander(Topic(kafka_server.bootstrap, topic()))
    with pytest.raises(SinkMismatch, match=told):
        way.stage(spark.range(1).selectExpr(*columns), BATCH)


@pytest.mark.parametrize(
    ("value", "column", "told"),
    [
        ("2", "partition", r"column partition: a row has 2, but topic topic-\w+ has 2 partitions"),
        ("-1", "partition", "column partition: a row has -1"),
        ("timestamp'1969-12-31'", "timestamp", "column timestamp: times up to 1970-01-01T00:00:00Z cannot be written"),
        ("timestamp'1970-01-01 00:00:00Z'", "timestamp", "column timestamp: times up to 1970-01-01T00:00:00Z cannot"),
        (
            "array(cast((null, null) as struct<key: string, value: binary>))",
            "headers",
            "column headers: a header has no key",
        ),
        (
            "timestamp'2026-01-01 00:00:00.0001'",
            "timestamp",
            r"column timestamp .*has more digits of a second than 3: use date_trunc",
        ),
        ("''", "topic", r"column topic \(string\): '' is not a topic name"),
        ("'a b'", "topic", r"column topic \(string\): 'a b' is not a topic name"),
        ("'..'", "topic", r"column topic \(string\): '..' is not a topic name"),
        (
            "array(cast((cast(X'FF' as string), null) as struct<key: string, value: binary>))",
            "headers",
            "column headers .* is not UTF-8",
        ),
        (
            "array(cast((decode(X'610062', 'UTF-8'), null) as struct<key: string, value: binary>))",
            "headers",
            "column headers: a header's key has the character U",
        ),
        ("'no-such-topic'", "topic", "has no topic no-such-topic, which a row names"),
    ],
)
def test_a_row_that_kafka_cannot_take_is_told_and_none_is_written(
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: NewTopic,
    value: str,
    column: str,
    told: str,
    implementation: dict[str, str],
) -> None:
    name = topic(2)
    sink, right = Topic(kafka_server.bootstrap, name, kafka=implementation), spark.range(5).selectExpr("'v' as value")
    frame = right.withColumn(column, f.expr(value))
    with pytest.raises(SinkError, match=told) as found:
        land(sink, frame)
    assert "othing was written" in str(found.value)
    assert not committed(kafka_server.bootstrap, name)
    land(sink, right)
    assert len(committed(kafka_server.bootstrap, name)) == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"message.max.bytes": "1000"},
            "MSG_SIZE_TOO_LARGE.* Raise message.max.bytes in kafka=.*, and max.message.bytes of",
        ),
        ({"queue.buffering.max.kbytes": "1"}, "a message is larger than queue.buffering.max.kbytes.* Raise it"),
    ],
)
def test_a_message_that_is_too_large_names_the_setting_and_is_not_waited_for(
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: NewTopic,
    options: dict[str, str],
    told: str,
    implementation: dict[str, str],
) -> None:
    name = topic(1)
    frame = spark.createDataFrame([(b"v" * size,) for size in (1, 2000)], "value binary")
    with pytest.raises(RowMismatch, match=told):
        land(Topic(kafka_server.bootstrap, name, kafka=options | implementation), frame)
    assert committed(kafka_server.bootstrap, name) == []


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_small_rows_go_into_a_topic_that_takes_only_small_batches(
    spark: SparkSession,
    kafka_server: KafkaServer,
    topic: NewTopic,
    compression: str,
    implementation: dict[str, str],
) -> None:
    """Together they are larger than it takes, also where they are compressed."""
    name, rows = topic(1, {"max.message.bytes": "20000"}), [secrets.token_hex(500) for _ in range(500)]
    options = {"compression.type": compression} | implementation
    land(
        Topic(kafka_server.bootstrap, name, kafka=options),
        spark.createDataFrame([(row,) for row in rows], "value string"),
    )
    assert values(kafka_server.bootstrap, name) == sorted(rows)


def test_a_size_of_batches_that_is_given_is_the_one_that_is_taken(kafka_server: KafkaServer, topic: NewTopic) -> None:
    small, usual = topic(1, {"max.message.bytes": "20000"}), topic()

    def taken(sink: Topic) -> str | None:
        lander(sink)
        return sink._slot(KEY).options.get("batch.size")

    brokers = kafka_server.bootstrap
    assert taken(Topic(brokers, small)) == "20000"
    assert taken(Topic(brokers, small, kafka={"batch.size": "5000"})) == "5000"
    assert taken(Topic(brokers, usual)) is taken(Topic(brokers, mark_topic=small)) is None


def test_a_message_as_large_as_the_settings_allow_has_room() -> None:
    """Else none of more than 64 MB could be sent."""
    assert _room({"message.max.bytes": "100000000"}) == {"queue.buffering.max.kbytes": "97657"}
    assert _room({"message.max.bytes": "1000000"}) == _room({}) == _room({"message.max.bytes": "many"}) == {}


def test_names_of_all_kinds_keep_a_mark_each(kafka_server: KafkaServer, topic: NewTopic) -> None:
    way = lander(Topic(kafka_server.bootstrap, topic()))
    keys = [MarkKey("a.b", "c"), MarkKey("a", "b.c"), MarkKey("a", "b/c"), MarkKey("a%2F", ""), MarkKey("ä 'ö", '"/%')]
    keys += [MarkKey("ü" * 124, "ß" * 100)]
    for number, key in enumerate(keys, 1):
        way.land(key, way.seen(key), mark(number), None)
    assert [way.seen(key).mark for key in keys] == [mark(number) for number in range(1, len(keys) + 1)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "has no topic: give its name"),
        ({"name": "a b"}, "is not a topic name"),
        ({"name": "a", "prefix": ""}, "use printable ASCII"),
        ({"name": "a", "timeout_s": 0}, "use a number above 0"),
        ({"name": "a", "kafka": {"acks": "1"}}, "remove the Kafka option acks"),
        ({"name": "a", "kafka": {"transactional.id": "x"}}, "use prefix="),
        ({"name": "a", "prefix": " team"}, "begin with another character than a blank"),
        ({"name": "a", "kafka": {"group.id": "x"}}, "take the Kafka option group.id out"),
        ({"name": "a", "kafka": "sasl.password=secret"}, "a dict of texts"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as found:
        Topic("127.0.0.1:9092", **arguments)
    assert "secret" not in str(found.value)


def test_what_is_missing_is_found_before_anything_is_read(kafka_server: KafkaServer, topic: NewTopic) -> None:
    with pytest.raises(Refused, match="has no topic orders-out: create it first"):
        lander(Topic(kafka_server.bootstrap, "orders-out"))
    with pytest.raises(SettingsError, match=r"No such configuration property: no\.such"):
        lander(Topic(kafka_server.bootstrap, topic(), kafka={"no.such": "1"}))
    with pytest.raises(SinkError, match="no answer from"):
        lander(Topic(f"127.0.0.1:{free_port()}", "orders", timeout_s=0.2))


def test_a_sink_travels_and_shows_no_secret() -> None:
    sink = Topic("h:1", "out", kafka={"sasl.password": "correct-horse"}, mark_topic="marks", prefix="p", timeout_s=3)
    again = pickle.loads(pickle.dumps(sink))  # noqa: S301 - its own
    assert vars(again) == vars(sink)
    assert "correct-horse" not in repr(again) + repr(again._slot(KEY))


@pytest.mark.parametrize("dynamic", ["true", "false"])
def test_where_executors_come_and_go_spark_has_no_barrier_stage_and_is_asked_for_none(
    dynamic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of the task end each other's transactions then; no row is there twice all the same."""
    for name in ("with_ends", "in_order"):
        monkeypatch.setattr(ends, name, lambda frame: frame)
    frame = MagicMock(schema=StructType([StructField("value", BinaryType())]))
    frame.sparkSession.conf.get.side_effect = {"spark.dynamicAllocation.enabled": dynamic}.get
    map_in_arrow = frame.repartition.return_value.mapInArrow
    monkeypatch.setattr("offsetkeeper.sinks.topic.collected", lambda _: [{"error": None, "message": None}])
    sink = Topic("h:1", "out")
    sink._land(KEY, Seen(None), mark(1), sink._stage(frame, BATCH))
    assert map_in_arrow.call_args.kwargs["barrier"] is (dynamic == "false")
    assert frame.repartition.call_args == ((1,),)


def test_batches_without_rows_write_nothing(
    kafka_server: KafkaServer, topic: NewTopic, implementation: dict[str, str]
) -> None:
    name = topic()
    rows = pa.record_batch({"value": ["a", None, "b"]})
    sink = Topic(kafka_server.bootstrap, name, kafka=implementation)
    task.land(sink._slot(KEY), Saying(None, 1, str(mark(1))), name, [rows[:0], rows[1:], rows[3:], rows[:1]])
    assert [each.value for each in committed(kafka_server.bootstrap, name)] == [None, b"b", b"a"]


def test_the_log_says_which_producer_writes_and_why(
    kafka_server: KafkaServer, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A release of offsetkeeper-native without a producer, or with another one, is not used."""
    producer: Any = pytest.importorskip("offsetkeeper_native.producer")
    name = topic()
    caplog.set_level(logging.INFO, "offsetkeeper.producers")

    def said(native: str) -> tuple[str, str]:
        caplog.clear()
        at = Topic(kafka_server.bootstrap, name, kafka={"offsetkeeper.native": native})._slot(KEY)
        before = at.said()
        task.land(
            at,
            Saying(before, 1, "1 said" if before is None else before + "."),
            name,
            [pa.record_batch({"value": ["v"]})],
        )
        [record] = [each for each in caplog.records if each.name == "offsetkeeper.producers"]
        return record.levelname, record.getMessage()

    version = producer.__version__
    assert said("auto") == ("INFO", f"the compiled producer writes: offsetkeeper-native {version}")
    assert said("never") == ("INFO", "the producer in Python writes: offsetkeeper.native is never")
    told = f"offsetkeeper-native {version} is not of this release of offsetkeeper"
    with monkeypatch.context() as other:
        other.setattr(producer, "INTERFACE", 0)
        assert said("auto") == ("WARNING", f"the producer in Python writes: {told}")
    with monkeypatch.context() as older:
        older.setitem(sys.modules, "offsetkeeper_native.producer", None)
        assert said("auto") == ("WARNING", f"the producer in Python writes: {told}")
        with pytest.raises(MissingExtra, match=f"the compiled producer cannot be used .*{told}"):
            said("required")
    monkeypatch.setitem(sys.modules, "offsetkeeper_native", None)
    assert said("auto") == ("INFO", "the producer in Python writes: offsetkeeper-native is not installed")
    assert len(committed(kafka_server.bootstrap, name)) == 5
