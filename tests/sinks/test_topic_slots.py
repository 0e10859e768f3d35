"""`Topic` with several slots keeps what every output with a mark must keep, and says what it cannot do."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit, when

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing, OutputMark, landing
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import BatchVoid, MarkMoved, Refused, RowMismatch, SettingsError, SinkMismatch
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.topic import several
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import Record, records
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import LIMIT_S, committed

NewTopic = Callable[..., str]
SLOTS = 2
SCHEMA = "key string, value string, source_topic string, source_partition int"
KEY = MarkKey("billing", "")
BATCH = Batch("billing", "token", 5, tuple(OffsetRange("orders", number, 0, 3) for number in range(8)))
TEXT = f"{OutputMark.of(BATCH)} slots={SLOTS}"


def frame_of(spark: SparkSession, rows: Sequence[Record]) -> DataFrame:
    """Return a frame of the rows, each with its source; the simulator's rows name the topic with its id."""
    found = [(row[1], json.dumps(row), row[1].partition(".")[0], row[2]) for row in rows]
    return spark.createDataFrame(found, SCHEMA)


class TestTopicWithSlots(LanderConformance):
    """The suite, with a topic of two partitions for each output."""

    server: KafkaServer
    histories = 2

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_server: KafkaServer) -> None:
        type(self).server = kafka_server

    def make(self, name: str) -> None:
        """See `LanderConformance.make`."""
        self.server.create_topic(name, 2)

    def open(self, name: str) -> Topic:
        """See `LanderConformance.open`."""
        return Topic(self.server.bootstrap, name, slots=SLOTS)

    def read(self, name: str) -> Iterable[Record]:
        """See `LanderConformance.read`."""
        return [tuple(json.loads(each.value or b"")) for each in committed(self.server.bootstrap, name)]

    def frame(self, spark: SparkSession, rows: Sequence[Record]) -> DataFrame:
        """See `LanderConformance.frame`."""
        return frame_of(spark, rows)


@pytest.fixture
def name(topic: NewTopic) -> str:
    """A topic of three partitions."""
    return topic(3)


@pytest.fixture
def once(kafka_server: KafkaServer, name: str) -> Callable[..., Once]:
    """`once(slots)` opens the topic anew, as a program of its own does."""

    def opened(slots: int = SLOTS) -> Once:
        sink = Topic(kafka_server.bootstrap, name, slots=slots)
        return Once(sink.prepare(MemoryStore("memory://"), Guarantee.EXACTLY_ONCE), "")

    return opened


@pytest.fixture
def rows(kafka_server: KafkaServer, name: str) -> Callable[[], Counter[Record]]:
    """`rows()` counts what a reader of committed records finds."""
    return lambda: Counter(tuple(json.loads(each.value or b"")) for each in committed(kafka_server.bootstrap, name))


@pytest.fixture
def partly(spark: SparkSession, kafka_server: KafkaServer, name: str) -> Callable[[], None]:
    """`partly()` lets a run die when the first slot has landed."""

    def landed() -> None:
        sink = Topic(kafka_server.bootstrap, name, slots=SLOTS)
        saying = Saying(None if (said := sink._slot(KEY).said()) is None else said, BATCH.sequence, TEXT)
        slots = [sink._slot(KEY, number) for number in range(SLOTS)]
        share = several.Share(slots, saying, name, frozenset((r.topic, r.partition) for r in BATCH.ranges))
        rows = several.placed(frame_of(spark, records(BATCH)), SLOTS).where("slot = 0").toArrow()
        several.land(share, 0, rows.to_batches(), several.Accord(lambda said: [said]))

    return landed


def test_a_batch_that_is_partly_there_is_finished_with_rows_of_another_try(
    spark: SparkSession, once: Callable[..., Once], partly: Callable[[], None], rows: Callable[[], Counter[Record]]
) -> None:
    """The second try makes other rows of the records: those of each partition are all of one try."""
    partly()
    assert landing(once().mark("billing"), BATCH) is Landing.PARTLY
    first = rows()
    assert 0 < len(first) < BATCH.size
    again = [(f"{row[0]} again", *row[1:]) for row in records(BATCH)]
    once().write(frame_of(spark, again), BATCH)
    assert once().mark("billing") == OutputMark.of(BATCH)
    there = {row[1:] for row in first}
    assert rows() == first + Counter(row for row in again if row[1:] not in there)


def test_what_lacks_of_a_batch_can_be_dropped_and_never_lands_then(
    spark: SparkSession, once: Callable[..., Once], partly: Callable[[], None], rows: Callable[[], Counter[Record]]
) -> None:
    partly()
    first = rows()
    for _ in range(2):
        assert once().make_void(BATCH).landing is Landing.CUT
    with pytest.raises(BatchVoid):
        once().write(frame_of(spark, records(BATCH)), BATCH)
    later = replace(BATCH, sequence=BATCH.sequence + 1)
    once().write(frame_of(spark, records(later)), later)
    assert rows() == first + Counter(records(later))
    assert once().make_void(BATCH).landing is Landing.PASSED


def test_another_number_of_slots_may_begin_a_batch_and_not_finish_one(
    spark: SparkSession, once: Callable[..., Once], partly: Callable[[], None], rows: Callable[[], Counter[Record]]
) -> None:
    before = replace(BATCH, sequence=BATCH.sequence - 1)
    once(1).write(frame_of(spark, records(before)).drop(*several.SOURCE), before)
    partly()
    untraced = frame_of(spark, records(BATCH)).drop(*several.SOURCE)
    with pytest.raises(Refused, match=r"written with slots=2, and the rest needs the same number of slots"):
        once(1).write(untraced, BATCH)
    once().write(frame_of(spark, records(BATCH)), BATCH)
    later = replace(BATCH, sequence=BATCH.sequence + 1)
    once(1).write(frame_of(spark, records(later)).drop(*several.SOURCE), later)
    assert rows() == Counter(records(before) + records(BATCH) + records(later))
    assert once(1).mark("billing") == once().mark("billing") == OutputMark.of(later, once().lander.writes_to)


@pytest.mark.parametrize("broken", [0, 1])
def test_where_one_slot_cannot_write_none_does(
    spark: SparkSession, once: Callable[..., Once], rows: Callable[[], Counter[Record]], broken: int
) -> None:
    """Its own error is told, and the next try lands all."""
    made = frame_of(spark, records(BATCH))
    places = {row[several.PLACE]: row.value for row in several.placed(made, SLOTS).collect()}
    bad = made.withColumn("partition", when(col("value") == places[broken], 99).cast("int"))
    with pytest.raises(RowMismatch, match="column partition: a row has 99"):
        once().write(bad, BATCH)
    assert rows() == Counter()
    once().write(made, BATCH)
    assert rows() == Counter(records(BATCH))


def test_the_first_slot_lands_before_the_others(
    kafka_server: KafkaServer, spark: SparkSession, name: str, rows: Callable[[], Counter[Record]]
) -> None:
    """Both have written all when another run takes the first slot: neither commits."""
    sink = Topic(kafka_server.bootstrap, name, slots=SLOTS)
    slots = [sink._slot(KEY, number) for number in range(SLOTS)]
    share = several.Share(slots, Saying(None, 5, TEXT), name, frozenset({("orders", p) for p in range(8)}))
    made = several.placed(frame_of(spark, records(BATCH)), SLOTS)
    parts = [made.where(f"slot = {number}").toArrow().to_batches() for number in range(SLOTS)]
    said, meeting = [""] * SLOTS, Barrier(SLOTS, timeout=LIMIT_S)
    taken: list[str | None] = []

    def gather(number: int, text: str) -> list[str]:
        said[number] = text
        meeting.wait()
        found = list(said)
        if number == 0 and not taken:
            taken.append(Turn(slots[0]).take())
        meeting.wait()
        return found

    def land(number: int) -> str:
        accord = several.Accord(partial(gather, number))
        try:
            several.land(share, number, parts[number], accord)
        except MarkMoved as failure:
            accord.failed(failure)
            return str(failure)
        return ""

    with ThreadPoolExecutor(SLOTS) as pool:
        told = list(pool.map(land, range(SLOTS)))
    assert [text.endswith("'offsetkeeper.billing/'; nothing was written") for text in told] == [True, True]
    assert taken == [None]
    assert rows() == Counter()


def test_rows_that_cannot_be_traced_are_refused(
    spark: SparkSession, once: Callable[..., Once], rows: Callable[[], Counter[Record]]
) -> None:
    made = frame_of(spark, records(BATCH))
    with pytest.raises(SinkMismatch, match="column source_topic is missing; column source_partition is missing"):
        once().write(made.drop(*several.SOURCE), BATCH)
    with pytest.raises(SinkMismatch, match="column source_topic: not a column for Kafka"):
        once(1).write(made, BATCH)
    for wrong in (lit(8), lit(None)):
        with pytest.raises(
            SinkMismatch, match=r"the source of a row is partition (8|None) of topic orders, but the batch"
        ):
            once().write(made.withColumn("source_partition", wrong.cast("int")), BATCH)
    assert rows() == Counter()


def test_rows_in_a_place_that_is_not_theirs_are_refused(
    kafka_server: KafkaServer, spark: SparkSession, name: str, rows: Callable[[], Counter[Record]]
) -> None:
    """Spark may put all rows in one place where it sees that all have one source."""
    sink = Topic(kafka_server.bootstrap, name, slots=SLOTS)
    share = several.Share([sink._slot(KEY)], Saying(None, 5, TEXT), name, frozenset({("orders", p) for p in range(8)}))
    made = several.placed(frame_of(spark, records(BATCH)), SLOTS)
    with pytest.raises(SinkMismatch, match="Spark sent a row of slot 1 to slot 0; nothing was written"):
        several.land(share, 0, made.toArrow().to_batches(), several.Accord(lambda said: [said]))
    assert rows() == Counter()


def test_what_spark_cannot_run_is_refused(spark: SparkSession, once: Callable[..., Once]) -> None:
    made = frame_of(spark, records(BATCH))
    with pytest.raises(SettingsError, match=r"100 slots need as many cores, but Spark has local\["):
        once(100).write(made, BATCH)
    for slots in (0, 101, True, 1.5):
        with pytest.raises(SettingsError, match="use a number from 1 to 100"):
            Topic("localhost:1", "t", slots=slots)  # type: ignore[arg-type]  # what is under test
    copied = pickle.loads(pickle.dumps(Topic("localhost:1", "t", slots=3)))  # noqa: S301 - of our own making
    assert copied.slots == 3
