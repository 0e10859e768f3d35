"""`Topic` tells other programs which offsets its last batch has, and `holds` compares them with the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from offsetkeeper.cli.main import app
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.errors import Refused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.transactions import Saying, Slot, Turn
from offsetkeeper.sinks import MarkKey, Topic
from offsetkeeper.sinks.held import Held
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer
from sinks.topics import LIMIT_S, lander, values

NewTopic = Callable[..., str]
KEY = MarkKey("billing", "")
RANGES = (OffsetRange("orders", 0, 3, 7), OffsetRange("orders", 1, 0, 2))
BATCH = Batch("billing", "token", 5, RANGES)
ABOUT = {
    "offsetkeeper.group": "billing",
    "offsetkeeper.batch": "billing/token/5",
    "offsetkeeper.offsets": "orders 0 3 7\norders 1 0 2",
}


def texts(brokers: str, topic: str, group: str = "offsetkeeper.billing/") -> list[str | None]:
    """Return the texts that Kafka's own client finds beside the offsets of a group."""
    with closing(Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 0})) as consumer:
        asked = [TopicPartition(topic, number) for number in range(3)]
        found = consumer.committed(asked, LIMIT_S)
    return [each.metadata if each.offset >= 0 else None for each in found]


@pytest.fixture
def write(spark: SparkSession) -> Callable[..., None]:
    """`write(sink, batch, output)` lands a row for each range."""

    def landed(sink: Topic, batch: Batch, output: str = "") -> None:
        rows = [(str(r), r.topic, r.partition) for r in batch.ranges]
        frame = spark.createDataFrame(rows, "value string, source_topic string, source_partition int")
        if sink.slots == 1:
            frame = frame.select("value")
        Once(lander(sink), output).write(frame, batch)

    return landed


def held(sink: Topic) -> Held:
    return sink.held(KEY)


@pytest.mark.parametrize("slots", [1, 2])
def test_any_client_reads_the_offsets_of_the_last_batch(
    kafka_server: KafkaServer, topic: NewTopic, write: Callable[..., None], slots: int
) -> None:
    """The mark itself is as release 0.2 wrote it."""
    name = topic(2)
    sink = Topic(kafka_server.bootstrap, name, slots=slots)
    write(sink, BATCH)
    mark, about, nothing = texts(kafka_server.bootstrap, name)
    assert mark == f"{OutputMark.of(BATCH, name)}{'' if slots == 1 else ' slots=2'}"
    assert (json.loads(about or ""), nothing) == (ABOUT, None)
    later = replace(BATCH, sequence=6, ranges=(OffsetRange("orders", 0, 7, 9),))
    write(sink, later)
    assert json.loads(texts(kafka_server.bootstrap, name)[1] or "")["offsetkeeper.offsets"] == "orders 0 7 9"
    [found] = held(sink).batches
    assert (found.place, found.batch, found.ranges) == ("slot 0", "billing/token/6", later.ranges)
    Once(lander(sink), "").make_void(replace(BATCH, sequence=7))
    assert json.loads(texts(kafka_server.bootstrap, name)[1] or "") == {
        "offsetkeeper.group": "billing",
        "offsetkeeper.batch": "billing/token/7",
        "offsetkeeper.dropped": "true",
    }
    [found] = held(sink).batches
    assert (found.batch, found.dropped) == ("billing/token/7", True)


def _many(count: int) -> Batch:
    return replace(BATCH, ranges=tuple(OffsetRange("orders", number, 0, 1_000_000) for number in range(count)))


@pytest.mark.parametrize(
    ("partitions", "batch", "shown", "tells"),
    [
        pytest.param(2, _many(60), {}, "offsets", id="60 ranges"),
        pytest.param(2, _many(200), {}, "batch", id="too many ranges"),
        pytest.param(2, BATCH, {"1": {"offset.metadata.max.bytes": "100"}}, "batch", id="a broker's own limit"),
        pytest.param(2, BATCH, {"1": {"offset.metadata.max.bytes": "50"}}, "", id="a limit of nearly nothing"),
        pytest.param(1, BATCH, {}, "", id="one partition"),
    ],
)
def test_what_is_told_never_fails_a_batch(
    kafka_server: KafkaServer,
    topic: NewTopic,
    write: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    batch: Batch,
    shown: Mapping[str, Mapping[str, str]],
    tells: str,
) -> None:
    if shown:
        monkeypatch.setattr(KafkaCluster, "shown_by_brokers", lambda *_: shown)
    name = topic(partitions)
    sink = Topic(kafka_server.bootstrap, name)
    write(sink, batch)
    assert len(values(kafka_server.bootstrap, name)) == len(batch.ranges)
    _, about, _ = texts(kafka_server.bootstrap, name)
    told = {name.rpartition(".")[2] for name in json.loads(about or "{}")}
    assert told == {"offsets": {"group", "batch", "offsets"}, "batch": {"group", "batch"}, "": set()}[tells]
    [found] = held(sink).batches
    assert (found.batch, found.ranges) == ("billing/token/5", batch.ranges if tells == "offsets" else None)


@pytest.mark.parametrize("native", ["never", "required"])
def test_a_text_that_a_broker_does_not_take_says_what_to_do(
    kafka_server: KafkaServer, topic: NewTopic, native: str
) -> None:
    """Nothing is written, and the mark stays."""
    name = topic(2)
    at = Slot("offsetkeeper.billing/", name, kafka_server.bootstrap, {"offsetkeeper.native": native}, 10.0)
    turn = Turn(at)
    assert turn.take() is None
    with pytest.raises(Refused, match=r"_TOO_LARGE.*Nothing was written\. Raise offset\.metadata\.max\.bytes"):
        turn.write([], Saying(None, 1, "1 token digest", "x" * 5_000))
    assert texts(kafka_server.bootstrap, name) == [None, None, None]


def test_a_text_of_another_program_or_batch_tells_nothing(
    kafka_server: KafkaServer, topic: NewTopic, write: Callable[..., None]
) -> None:
    """An older release leaves the text of the batch before where it is."""
    name = topic(2)
    sink = Topic(kafka_server.bootstrap, name)
    write(sink, BATCH)
    at = sink._slot(KEY)
    texts_beside: Sequence[str] = ("", "no JSON", "[1]", "{}", json.dumps({**ABOUT, "offsetkeeper.offsets": "1 2"}))
    for number, text in enumerate(texts_beside, 6):
        turn = Turn(at, writes=False)
        turn.write([], Saying(turn.take(), number, f"{number} token {'0' * 16}", text))
        [found] = held(sink).batches
        assert (found.batch, found.ranges) == (f"billing/token/{number}", None)


def test_a_part_of_the_last_batch_is_told_as_that(
    kafka_server: KafkaServer, topic: NewTopic, write: Callable[..., None]
) -> None:
    name = topic(2)
    sink = Topic(kafka_server.bootstrap, name, slots=2)
    write(sink, BATCH)
    turn = Turn(sink._slot(KEY), writes=False)
    turn.write([], Saying(turn.take(), 6, f"6 token {'0' * 16} slots=2"))
    found = held(sink)
    assert [(each.place, each.batch) for each in found.batches] == [
        ("slot 1", "billing/token/5"),
        ("slot 0", "billing/token/6"),
    ]
    assert found.lacks == "a topic tells of its last batch alone; not in slot 1 yet"


@pytest.fixture
def ask(kafka_server: KafkaServer) -> Callable[..., tuple[int, Any]]:
    """`ask(topic, words)` returns the exit code, and what is printed as JSON."""

    def asked(topic: str, *words: str) -> tuple[int, Any]:
        given = ["holds", topic, "--brokers", kafka_server.bootstrap, "--group", "billing", "--json"]
        done = CliRunner().invoke(app, [*given, "--kafka", "isolation.level=read_committed", *words])
        assert done.exit_code in {0, 1}, done.output
        return done.exit_code, json.loads(done.stdout)

    return asked


def test_the_last_batch_is_held_against_the_ledger(
    kafka_server: KafkaServer,
    topic: NewTopic,
    write: Callable[..., None],
    ask: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    """Landed and not committed, committed, and behind a ledger that has gone on."""
    name, url = topic(2), f"sqlite:///{tmp_path}/offsets.db"
    sink = Topic(kafka_server.bootstrap, name, prefix="shop")
    words = ("--store", url, "--output", "good", "--prefix", "shop")
    with closing(open_store(url)) as store:
        run = Ledger(store, "billing")
        run.acquire()
        run.place({r.topic_partition: Position(r.start) for r in RANGES})
        code, found = ask(name, *words)
        assert (code, found["outputs"][0]["batches"]) == (0, [])
        assert "shop.billing/good has no mark" in found["lacks"]
        batch = run.batch(RANGES)
        run.begin(batch, ["good"])
        write(sink, batch, "good")
        code, found = ask(name, *words)
        [output] = found["outputs"]
        assert (code, output["findings"]) == (0, [])
        assert [each["ranges"] for each in output["batches"]] == [[[*each] for each in RANGES]]
        run.commit(batch)
        assert ask(name, *words)[0] == 0
        run.commit(run.batch([OffsetRange("orders", 0, 7, 9)]))
        run.release()
    code, found = ask(name, *words)
    lacking = {"kind": "lacks", "topic": "orders", "partition": 0, "start": 7, "end": 9, "batches": []}
    assert (code, found["outputs"][0]["findings"]) == (1, [lacking])


def test_a_batch_that_the_ledger_does_not_have_is_ahead(
    kafka_server: KafkaServer,
    topic: NewTopic,
    write: Callable[..., None],
    ask: Callable[..., tuple[int, Any]],
    tmp_path: Path,
) -> None:
    name, url = topic(2), f"sqlite:///{tmp_path}/offsets.db"
    with closing(open_store(url)) as store:
        run = Ledger(store, "billing")
        run.acquire()
        run.place({r.topic_partition: Position(r.start) for r in RANGES})
        run.release()
    write(Topic(kafka_server.bootstrap, name), BATCH)
    code, found = ask(name, "--store", url)
    ahead = {(each["kind"], each["partition"], each["start"], each["end"]) for each in found["outputs"][0]["findings"]}
    assert (code, ahead) == (1, {("ahead", 0, 3, 7), ("ahead", 1, 0, 2)})


@pytest.mark.parametrize("words", [(), ("--group", "billing", "--catalog", "shop")])
def test_a_topic_needs_its_group_and_no_catalog(words: Sequence[str]) -> None:
    done = CliRunner().invoke(app, ["holds", "orders", "--brokers", "localhost:1", *words])
    assert str(done.exception) == "--brokers is for a topic: give --group too, and no --catalog"


def test_a_topic_gives_no_ends_for_a_reset() -> None:
    """Its last batch may have another name of the output, and not all partitions."""
    done = CliRunner().invoke(app, ["holds", "orders", "--brokers", "localhost:1", "--group", "billing", "--export"])
    assert "--export: a topic tells of its last batch alone" in str(done.exception)
