"""Each row and each value in a topic, read by a consumer of committed records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from offsetkeeper.sinks import Topic
from offsetkeeper.testing.kafka import KafkaServer
from sinks.exactness import DRAWN, TEXTS, VALUES, land, made

BYTES = VALUES["binary"]
TIMES = st.datetimes(datetime(1971, 1, 1), datetime(2026, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))  # noqa: DTZ001 - a wall clock
WHOLE_MS = TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
HEADERS = st.lists(
    st.tuples(st.sampled_from(["", "a", "A", "é", "a b"]) | st.text(max_size=4), st.none() | BYTES), max_size=3
)
OPTIONAL: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "key": ("", st.none()),
    "headers": ("array<struct<key:string,value:binary>>", st.none() | HEADERS),
    "topic": ("string", st.none() | st.just("{}") | st.sampled_from(["{}", "{}", "", " ", "a b", "{}é", "."])),
    "partition": ("int", st.none() | st.sampled_from([0, 1, 0, 1, 2, -1])),
    "timestamp": ("timestamp", st.one_of(st.none(), WHOLE_MS, WHOLE_MS, TIMES)),
}
LIMIT_S = 30.0


class Reader:
    """Reads what is new in a topic with two partitions."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.topic, self.at = topic, {0: 0, 1: 0}
        settings = {"bootstrap.servers": brokers, "group.id": "reader", "enable.partition.eof": True}
        more = {"enable.auto.commit": False, "fetch.wait.max.ms": 5, "log_level": 0}
        self.consumer = Consumer({**settings, **more, "isolation.level": "read_committed"})
        self.looking = Consumer({**settings, **more, "isolation.level": "read_uncommitted"})

    def close(self) -> None:
        """Close both consumers."""
        self.consumer.close()
        self.looking.close()

    def new(self) -> list[Any]:
        """Return the messages since the last call.

        A commit is durable before it shows, so it waits for the end that a reader of all records sees: one of committed
        records is told the end before a transaction that still looks open.
        """
        parts = [TopicPartition(self.topic, number, offset) for number, offset in self.at.items()]
        ends = {each.partition: self.looking.get_watermark_offsets(each, LIMIT_S)[1] for each in parts}
        self.consumer.assign(parts)
        found = []
        while any(self.at[number] < end for number, end in ends.items()):
            message = self.consumer.poll(LIMIT_S)
            assert message is not None
            error = message.error()
            assert error is None or error.name() == "_PARTITION_EOF", error
            number, offset = message.partition() or 0, message.offset() or 0
            self.at[number] = max(self.at[number], offset if error else offset + 1)
            found += [] if error else [message]
        return found


@pytest.fixture
def reader(kafka_server: KafkaServer, topic: Any) -> Iterator[Reader]:
    """A reader of a new topic."""
    found = Reader(kafka_server.bootstrap, topic(2))
    with closing(found):
        yield found


def rows_of(data: st.DataObject, kinds: dict[str, tuple[str, st.SearchStrategy[Any]]], topic: str) -> list[Any]:
    rows = data.draw(st.lists(st.tuples(*(values for _, values in kinds.values())), min_size=1, max_size=5))
    place = [*kinds].index("topic") if "topic" in kinds else None
    if place is None:
        return rows
    return [(*row[:place], row[place] and row[place].replace("{}", topic), *row[place + 1 :]) for row in rows]


def expected(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return key, value and headers as bytes."""
    raw = [value.encode() if isinstance(value, str) else value for value in (row.get("key"), row["value"])]
    return (*raw, row.get("headers") or None)


def test_rows_come_out_as_they_went_in(spark: SparkSession, kafka_server: KafkaServer, reader: Reader) -> None:
    """Each row once, with its key, value, headers, partition and time; or none, and the message names the column."""
    tried, landed = [], []

    @DRAWN
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from([*OPTIONAL]), unique=True))
        kinds = {"value": ("", st.none()), **{name: OPTIONAL[name] for name in names}}
        for name in ("value", "key"):
            if name in kinds:
                kinds[name] = data.draw(st.sampled_from([("string", st.none() | TEXTS), ("binary", st.none() | BYTES)]))
        rows = rows_of(data, kinds, reader.topic)
        frame = made(spark, rows, ", ".join(f"{name} {kind}" for name, (kind, _) in kinds.items()))
        tried.append(rows)
        why = land(Topic(kafka_server.bootstrap, reader.topic), frame, f"rows{len(tried)}", 1)
        found = reader.new()
        if why is not None:
            assert any(f"column {name}" in str(why) for name in names), why
            assert not found
            return
        landed.append(rows)
        given_rows = [dict(zip(kinds, row, strict=True)) for row in rows]
        assert sorted(map(repr, map(expected, given_rows))) == sorted(
            repr((each.key(), each.value(), each.headers())) for each in found
        )
        for row in given_rows:
            same = [each for each in found if (each.key(), each.value(), each.headers()) == expected(row)]
            assert row.get("partition") in {None, *(each.partition() for each in same)}
            at = row.get("timestamp")
            assert at is None or round(at.timestamp() * 1000) in {each.timestamp()[1] for each in same}

    holds()
    assert len(landed) > 0.3 * len(tried), f"of {len(tried)} frames only {len(landed)} have landed"
