"""A task that writes a topic knows whether it has all rows: an end is behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from offsetkeeper.kafka.transactions import Saying
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.topic import ends, several, task
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import KEY, mark, values

NewTopic = Callable[..., str]
SAYING = Saying(None, 1, str(mark(1)))
MISSING = "the task did not get all rows of the batch: Spark has ended it, or a part of its input is gone"


def given(texts: list[str], **more: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield a batch for each text, and then the end, as Spark gives them."""
    for text in [*texts, None]:
        columns = {"value": pa.array([text], pa.string()), **more, ends.END: pa.array([text is None])}
        yield pa.record_batch(columns)


def test_rows_whose_end_is_missing_are_not_written(kafka_server: KafkaServer, topic: NewTopic) -> None:
    """Also if there are none at all; a further try has each once."""
    name = topic()
    slot = Topic(kafka_server.bootstrap, name)._slot(KEY)
    whole = [*given(["a", "b", "c"])]
    for rows in (whole[:2], whole[:0]):
        [answer] = task.answer(slot, SAYING, name, task.NO_TOPICS, iter(rows))
        assert answer["error"].to_pylist() == ["SinkError"]
        assert MISSING in answer["message"][0].as_py()
        assert (slot.said(), values(kafka_server.bootstrap, name)) == (None, [])
    [answer] = task.answer(slot, SAYING, name, task.NO_TOPICS, iter(whole))
    assert answer.to_pylist() == [{"error": None, "message": None}]
    assert (slot.said(), values(kafka_server.bootstrap, name)) == (SAYING.text, ["a", "b", "c"])


class OneSlot:
    """Spark's context of the only task of a stage."""

    @staticmethod
    def get() -> OneSlot:
        """Return it."""
        return OneSlot()

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        """Return the number of its slot."""
        return 0

    def allGather(self, text: str = "") -> list[str]:  # noqa: N802 - Spark's name
        """Return what all tasks say."""
        return [text]


def test_a_slot_whose_end_is_missing_writes_nothing(
    kafka_server: KafkaServer, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 3.5 may let the tasks of a job that was cancelled agree."""
    monkeypatch.setattr(BarrierTaskContext, "get", OneSlot.get)
    name = topic()
    slot = Topic(kafka_server.bootstrap, name)._slot(KEY)
    share = several.Share([slot], SAYING, name, frozenset({("orders", 0)}))
    told = {"source_topic": pa.array(["orders"]), "source_partition": pa.array([0], pa.int32()), "slot": pa.array([0])}
    whole = [*given(["a", "b", "c"], **told)]
    for rows in (whole[:2], whole[:0]):
        [answer] = several.answer(share, iter(rows))
        assert answer["error"].to_pylist() == ["SinkError"]
        assert MISSING in answer["message"][0].as_py()
        assert (slot.said(), values(kafka_server.bootstrap, name)) == (None, [])
    [answer] = several.answer(share, iter(whole))
    assert answer["error"].to_pylist() == [None]
    assert (slot.said(), values(kafka_server.bootstrap, name)) == (SAYING.text, ["a", "b", "c"])


def test_the_end_is_behind_all_rows_and_these_keep_their_order(spark: SparkSession) -> None:
    """Whatever Spark's shuffle does."""
    texts = [f"{number:03}" for number in range(200)]
    frame = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
    shuffled = ends.with_ends(frame).repartition(7, ends.ORDER).coalesce(1)
    assert shuffled.collect()[-1]["value"] is not None, "the end is among the rows"
    found = ends.in_order(shuffled).collect()
    assert [tuple(row) for row in found] == [*((text, False) for text in texts), (None, True)]


def test_each_slot_gets_an_end_however_many_there_are(spark: SparkSession) -> None:
    nothing = spark.createDataFrame([], "value string, source_topic string, source_partition int")
    made = several.with_ends_of_slots(nothing, 100).selectExpr(
        "source_partition", "hash(source_topic, source_partition)"
    )
    hashes = [found for _, found in sorted(made.collect())]
    each = len(hashes) // 100
    for slots in range(2, 101):
        assert {found % slots for found in hashes[: each * slots]} == {*range(slots)}, slots
