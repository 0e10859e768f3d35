"""The store that reads a Spark checkpoint: checkpoints that Spark made, and what is left of them after an accident."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.checkpoint.store import open_checkpoint
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import CorruptStore, NotAllowed, Refused, SettingsError, StoreUnavailable
from offsetkeeper.stores import open_store
from offsetkeeper.testing.kafka import KafkaServer


class Made(NamedTuple):
    """A checkpoint of a query over two topics: two batches are committed, a third was begun and failed."""

    path: Path
    orders: str
    payments: str


class Failed(Exception):
    """Raised in a batch."""


def produce(server: KafkaServer, topic: str, counts: list[int]) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for partition, count in enumerate(counts):
        for _ in range(count):
            producer.produce(topic, b"x", partition=partition)
    producer.flush(30)


def run(spark: SparkSession, server: KafkaServer, path: Path, topics: tuple[str, ...], *, fail: bool = False) -> None:
    """Run a query over each topic as a source of its own, until all is read or a batch fails."""

    def batch(_: DataFrame, number: int) -> None:
        if fail:
            raise Failed(str(number))

    options = {"kafka.bootstrap.servers": server.bootstrap, "startingOffsets": "earliest"}
    frames = [spark.readStream.format("kafka").options(**options, subscribe=topic).load() for topic in topics]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.union(other)
    writer = frame.writeStream.option("checkpointLocation", str(path)).trigger(availableNow=True)
    with suppress(StreamingQueryException):
        writer.foreachBatch(batch).start().awaitTermination(120)


def make(spark: SparkSession, server: KafkaServer, path: Path) -> Made:
    topics = (f"orders-{path.name}", f"payments-{path.name}")
    for topic, partitions in zip(topics, (3, 1), strict=True):
        server.create_topic(topic, partitions)
    produce(server, topics[0], [5, 3, 0])
    run(spark, server, path, topics)
    produce(server, topics[0], [1, 0, 0])
    produce(server, topics[1], [4])
    run(spark, server, path, topics)
    produce(server, topics[0], [7, 7, 7])
    run(spark, server, path, topics, fail=True)
    return Made(path, *topics)


@pytest.fixture(scope="module")
def made(spark: SparkSession, kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint in the format that Spark writes by itself."""
    return make(spark, kafka_server, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def made_v2(spark: SparkSession, kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint with the second format of the offset log."""
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    try:
        return make(spark, kafka_server, tmp_path_factory.mktemp("second"))
    finally:
        spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Made:
    """The first one, to be spoilt."""
    shutil.copytree(made.path, tmp_path / "copy")
    return made._replace(path=tmp_path / "copy")


def load(path: Path, group: str = "g") -> Snapshot:
    return open_store(f"checkpoint://{path}").load(group)


def positions(made: Made, *orders: int, payments: int) -> Snapshot:
    found = {TopicPartition(made.orders, number): Position(offset) for number, offset in enumerate(orders)}
    return Snapshot("g", positions=found | {TopicPartition(made.payments, 0): Position(payments)})


@pytest.mark.parametrize("version", [1, 2])
def test_the_end_of_the_newest_committed_batch_is_found(version: int, request: pytest.FixtureRequest) -> None:
    """Not that of the batch that was begun: its offsets are written, and its records may not be processed."""
    made: Made = request.getfixturevalue("made" if version == 1 else "made_v2")
    texts = {name: (made.path / name).read_text() for name in ("offsets/1", "offsets/2", "commits/1")}
    assert not (made.path / "commits" / "2").exists()
    assert texts["offsets/2"].startswith(f"v{version}\n")
    assert load(made.path) == positions(made, 6, 3, 0, payments=4)
    [line] = [line for line in texts["offsets/1"].splitlines() if made.orders in line]
    assert json.loads(line[line.index("{") :])[made.orders] == {"0": 6, "1": 3, "2": 0}


def test_as_long_as_no_batch_is_committed_it_is_where_the_first_begins(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, made: Made
) -> None:
    """Nothing has been processed yet."""
    run(spark, kafka_server, tmp_path / "new", (made.orders, made.payments), fail=True)
    assert (tmp_path / "new" / "offsets" / "0").exists()
    assert load(tmp_path / "new") == positions(made, 0, 0, 0, payments=0)


def test_two_sources_of_one_topic_give_the_lower_offset(copy: Made) -> None:
    """So that no record is taken for processed that one of them has not seen."""
    _edit(copy.path / "offsets" / "1", lambda text: text.replace(copy.payments, copy.orders))
    assert load(copy.path).positions[TopicPartition(copy.orders, 0)] == Position(4)


def test_a_source_of_another_kind_is_left_out(copy: Made) -> None:
    """A folder of files, whose own log of files lies where Kafka's first offsets do."""
    lines = (copy.path / "offsets" / "1").read_text().splitlines()
    (copy.path / "offsets" / "1").write_text("\n".join([*lines, '{"logOffset":7}', "12", "-"]))
    (copy.path / "sources" / "2").mkdir()
    (copy.path / "sources" / "2" / "0").write_text('v1\n{"path":"a"}\n{"path":"b"}')
    assert load(copy.path) == positions(copy, 6, 3, 0, payments=4)


def test_a_source_that_had_nothing_yet_stands_at_its_beginning(copy: Made) -> None:
    _edit(copy.path / "offsets" / "1", lambda text: "\n".join([*text.splitlines()[:-1], "-"]))
    assert load(copy.path) == positions(copy, 6, 3, 0, payments=0)


def test_other_names_are_no_batches(copy: Made) -> None:
    """Backups, checksums, and what is being written."""
    for name in ("9.bak", ".9.crc", "_tmp", "9.tmp", "²"):
        for folder in ("offsets", "commits"):
            (copy.path / folder / name).write_text("garbage")
    assert load(copy.path) == positions(copy, 6, 3, 0, payments=4)


def test_offsets_that_were_deleted_leave_the_batch_before(copy: Made) -> None:
    """A commit without its offsets says nothing about where to go on; the batch before does."""
    (copy.path / "offsets" / "1").unlink()
    assert load(copy.path) == positions(copy, 5, 3, 0, payments=0)
    (copy.path / "offsets" / "0").unlink()
    with pytest.raises(CorruptStore, match="batch 1 is committed, but its offsets are gone"):
        load(copy.path)


def _edit(file: Path, change: Callable[[str], str]) -> None:
    file.write_text(change(file.read_text()))


CONTENTS: dict[str, Callable[[str], str]] = {
    "nothing": lambda _: "",
    "a newer format": lambda text: "v9" + text[2:],
    "no format": lambda text: text.partition("\n")[2],
    "garbage": lambda _: "my notes",
    "cut off": lambda text: text[:-3],
    "cut off after the first line": lambda text: text.partition("\n")[0],
    "no metadata": lambda text: text.partition("\n")[0] + "\n[]\n[]",
}


def test_a_commit_that_is_only_its_format_counts_as_it_does_for_spark(copy: Made) -> None:
    _edit(copy.path / "commits" / "1", CONTENTS["cut off after the first line"])
    assert load(copy.path) == positions(copy, 6, 3, 0, payments=4)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (name, content)
        for name in ("offsets/1", "commits/1")
        for content in CONTENTS
        if (name, content) != ("commits/1", "cut off after the first line")
    ],
)
def test_a_torn_or_foreign_file_is_told(copy: Made, name: str, content: str) -> None:
    _edit(copy.path / name, CONTENTS[content])
    with pytest.raises(CorruptStore, match=rf"copy, {name}, is not what Spark writes there.*correct or delete"):
        load(copy.path)


@pytest.mark.parametrize("text", ["", "\0", "\0v1", "\0v1\n{", "\0v2\n{}"])
def test_a_torn_file_of_first_offsets_is_told(copy: Made, text: str) -> None:
    shutil.rmtree(copy.path / "commits")
    (copy.path / "sources" / "0" / "0").write_text(text)
    with pytest.raises(CorruptStore, match="sources/0/0"):
        load(copy.path)


@pytest.mark.parametrize(
    "offsets", ['{"a":{"0":-1}}', '{"a":{"0":"1"}}', '{"no topic":{"0":1}}', '{"a":{"9999999999":1}}']
)
def test_offsets_that_cannot_be_are_told(copy: Made, offsets: str) -> None:
    (copy.path / "offsets" / "1").write_text(f"v1\n{{}}\n{offsets}")
    with pytest.raises(CorruptStore, match="source 0"):
        load(copy.path)


def test_bytes_that_are_no_text_are_told(copy: Made) -> None:
    (copy.path / "offsets" / "1").write_bytes(b"v1\n{}\n\xff\xfe")
    with pytest.raises(CorruptStore, match="is not text"):
        load(copy.path)


def test_a_file_that_the_query_deletes_meanwhile_is_worth_another_try(
    copy: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is listed, and gone when it is to be read."""
    store = open_checkpoint(f"checkpoint://{copy.path}")
    names, before = store._files.names, ["1"]
    monkeypatch.setattr(
        store._files, "names", lambda folder: names(folder) + ([before.pop()] if folder == "offsets" and before else [])
    )
    (copy.path / "offsets" / "1").unlink()
    with pytest.raises(StoreUnavailable, match="deleted it meanwhile"):
        store.load("g")


def test_it_is_read_under_any_name_and_never_written(made: Made) -> None:
    """One group, called as the folder; a run that would keep its offsets there is refused."""
    store = open_store(f"checkpoint://{made.path}")
    before = {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()}
    assert store.abilities == frozenset()
    assert store.groups() == [made.path.name]
    assert list(store.history("g")) == []
    ledger = Ledger(store, "any name", retry_timeout_s=1)
    assert ledger.load().positions == load(made.path).positions
    with pytest.raises(NotAllowed, match="a Spark checkpoint is read-only"):
        ledger.acquire()
    with pytest.raises(NotAllowed, match="another store"):
        ledger.rewind({}, "again")
    assert {path: path.read_bytes() for path in made.path.rglob("*") if path.is_file()} == before
    store.close()


def test_a_folder_whose_name_is_no_groups_is_called_by_the_querys_id(copy: Made) -> None:
    path = copy.path.rename(copy.path.with_name("x" * 250))
    assert open_store(f"checkpoint://{path}").groups() == [json.loads((path / "metadata").read_text())["id"]]
    path = path.rename(path.with_name("date=1:2"))
    assert open_store(f"checkpoint://{str(path).replace(':', '%3A')}").groups() == ["date=1:2"]


def test_a_folder_that_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path, tmp_path / "none", tmp_path / "notes"):
        store = open_store(f"checkpoint://{path}")
        with pytest.raises(Refused, match="has no checkpoint: give the folder"):
            store.load("g")
        with pytest.raises(Refused, match="has no checkpoint: give the folder"):
            store.groups()


@pytest.mark.parametrize(
    "url",
    [
        "checkpoint://",
        "checkpoint://x",
        "checkpoint://host/x",
        "checkpoint:///x?timeout=1",
        "checkpoint+s3://",
        "checkpoint+webhdfs:///x",
        "checkpoint+s3://bucket/x?colour=red",
    ],
)
def test_a_url_that_names_no_checkpoint_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        open_store(url)
