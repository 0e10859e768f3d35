"""More accidents: names, several sources and topics, files of another query, state and lists that do not fit.

As in the tests of accidents, Spark itself says what each checkpoint is worth, and a query goes on with batch 2.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from checkpoints.queries import LIMIT_S, NO_CONFS, ROCKSDB, Queries, copy, do, produce, records
from checkpoints.test_checkpoint_accidents import (
    DOUBLES,
    FAILS,
    RIGHT,
    Change,
    Spoil,
    beside,
    done,
    edit,
    folder,
    gone,
    line,
    read_files,
    says_wrong,
    to,
)
from checkpoints.written import put, write
from offsetkeeper.checkpoint import LocalFiles, apply, plan_move, plan_truncate, read_checkpoint, verify
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.errors import Fenced, NotAllowed
from offsetkeeper.testing.kafka import KafkaServer

HEAD = b'{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


class Case(NamedTuple):
    """What Spark does, how it comes to that, and what `verify` says where that does not follow from it."""

    spark: str
    spoil: Spoil
    wrong: bool | None = None
    soak: bool = False


def replaced(old: bytes, new: bytes) -> Change:
    return lambda content: content.replace(old, new)


def both(*spoils: Spoil) -> Spoil:
    def spoil(files: LocalFiles) -> None:
        for each in spoils:
            each(files)

    return spoil


def again(batch: int, of: int) -> Spoil:
    """Copy a batch's files, with their checksums, over another one's."""

    def spoil(files: LocalFiles) -> None:
        for name in ("offsets", "commits"):
            shutil.copy(files.path / name / str(of), files.path / name / str(batch))
            shutil.copy(files.path / name / f".{of}.crc", files.path / name / f".{batch}.crc")

    return spoil


def settings(text: bytes) -> Spoil:
    return edit("offsets/1", line(1, text))


PLAIN: dict[str, Case] = {
    "a copy named +3": Case(FAILS, beside("offsets/+3", b"v1")),
    "a commit named +2": Case(FAILS, beside("commits/+2", b"v1\n{}")),
    "a name in digits of another script": Case(FAILS, beside("offsets/\uff13", b"v1")),
    "a name below nothing": Case(RIGHT, beside("offsets/-1", b"v1"), soak=True),
    "an upload that was cut off": Case(RIGHT, beside("offsets/2._COPYING_", b"v"), soak=True),
    "compact files in the logs": Case(
        RIGHT, both(beside("offsets/3.compact", b"v1"), beside("sources/0/3.compact", b"v1")), soak=True
    ),
    "a space after the version": Case(FAILS, edit("offsets/1", replaced(b"v1\n", b"v1 \n"))),
    "a space after the version of a commit": Case(RIGHT, edit("commits/1", replaced(b"v1\n", b"v1 \n"))),
    "a mark of the order of bytes": Case(
        FAILS, edit("offsets/1", lambda content: b"\xef\xbb\xbf" + content), soak=True
    ),
    "two empty lines at the end": Case(FAILS, edit("offsets/1", lambda content: content + b"\n\n"), soak=True),
    "an offset that is a text": Case(FAILS, edit("offsets/1", replaced(b"4", b'"4"')), soak=True),
    "a query id that is no UUID": Case(FAILS, edit("metadata", to(b'{"id":"orders"}'))),
    "a query id with more beside it": Case(
        RIGHT, edit("metadata", to(b'{"id":"00000000-0000-0000-0000-000000000001","x":1}')), soak=True
    ),
    "an empty query id": Case(FAILS, edit("metadata", to(b"")), soak=True),
    "metadata of another query": Case(
        RIGHT, edit("metadata", to(b'{"id":"00000000-0000-0000-0000-000000000002"}')), soak=True
    ),
    "a watermark that is a text": Case(FAILS, settings(HEAD.replace(b"0", b'"0"'))),
    "a watermark that is null": Case(RIGHT, settings(HEAD.replace(b"0", b"null")), soak=True),
    "a time that is a text": Case(FAILS, settings(HEAD.replace(b"1", b'"1"')), soak=True),
    "a time of the future": Case(
        RIGHT, edit("offsets/1", replaced(b'"batchTimestampMs":', b'"batchTimestampMs":9')), soak=True
    ),
    "settings that are a list": Case(FAILS, settings(HEAD.replace(b"{}", b"[]"))),
    "settings that are null": Case(RIGHT, settings(HEAD.replace(b"{}", b"null")), soak=True),
    "a setting that is a list": Case(FAILS, settings(HEAD.replace(b"{}", b'{"x":[7]}')), soak=True),
    "offsets and commits are gone": Case(DOUBLES, gone("offsets", "commits")),
    # As a query leaves it that waits for its first record: that is a note.
    "offsets and commits are empty": Case(
        DOUBLES, both(gone("offsets", "commits"), folder("offsets"), folder("commits")), wrong=False
    ),
    "the newest batch is older than the one before": Case(
        DOUBLES, edit("offsets/1", line(2, b'{"checkpoints":{"0":4,"1":1}}'))
    ),
    "an older batch is copied in as the newest": Case(DOUBLES, again(2, of=0)),
    # Only the query knows how many sources it has: that is a note.
    "another number of sources in the last two": Case(
        FAILS,
        both(again(2, of=1), *(edit(f"offsets/{n}", lambda c: c + b"\n-") for n in (1, 2))),
        wrong=False,
        soak=True,
    ),
}


def marked(cases: dict[str, Case]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.soak if case.soak else []) for name, case in cases.items()]


@pytest.mark.parametrize("name", marked(PLAIN))
def test_the_verdict_on_a_mixture_is_what_spark_does(name: str, queries: Queries, plain: Path, tmp_path: Path) -> None:
    case = PLAIN[name]
    files = copy(plain, tmp_path / "checkpoint")
    gone("commits/2", "offsets/2")(files)
    case.spoil(files)
    told = says_wrong(files)
    assert done(queries, files, records((0, 4, 6), (1, 4, 6))) == case.spark
    assert told == (case.wrong if case.wrong is not None else case.spark != RIGHT)


def test_an_own_move_is_no_old_batch(plain: Path, tmp_path: Path) -> None:
    """A move ends before the batch before it on purpose, also where it replaces a batch that was planned."""
    for gone_before in ([], ["commits/2"]):
        files = copy(plain, tmp_path / f"checkpoint{len(gone_before)}")
        gone(*gone_before)(files)
        found = read_checkpoint(files)
        do(files, plan_move(found, dict.fromkeys(found.next().positions, 1)))
        assert verify(files) == []


@dataclass
class Two:
    """A query over two topics of two partitions, as two sources or as one.

    Attributes:
        a, b: the topics.
        joined: whether one source reads both.
    """

    spark: SparkSession
    server: KafkaServer
    a: str
    b: str
    joined: bool

    def run(self, path: Path) -> list[tuple[object, ...]]:
        """Run until all is read; return (topic, partition, offset) of its records."""
        rows: list[tuple[object, ...]] = []
        frame = self._frame(f"{self.a},{self.b}", 8) if self.joined else self._frame(self.a).union(self._frame(self.b))
        writer = frame.select("topic", "partition", "offset").writeStream.trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, _: rows.extend(tuple(row) for row in batch.collect()))
        assert writer.option("checkpointLocation", str(path)).start().awaitTermination(LIMIT_S)
        return sorted(rows, key=str)

    def _frame(self, topics: str, limit: int = 4) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.server.bootstrap)
        reader = reader.option("maxOffsetsPerTrigger", limit).option("startingOffsets", "earliest")
        return reader.option("subscribe", topics).load()


@pytest.fixture(scope="module")
def two(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, tuple[Two, Path]]:
    """The query as two sources and as one, each with its checkpoint."""
    for name in ("two-a", "two-b"):
        kafka_server.create_topic(name, 2)
        produce(kafka_server, name, 6)
    made = {}
    for joined in (False, True):
        query, path = Two(spark, kafka_server, "two-a", "two-b", joined), tmp_path_factory.mktemp("two") / "checkpoint"
        assert len(query.run(path)) == 24
        made[joined] = (query, path)
    return made


def swapped(content: bytes) -> bytes:
    *head, first, second = content.split(b"\n")
    return b"\n".join([*head, second, first])


def shorter(content: bytes) -> bytes:
    return content.rpartition(b"\n")[0]


ALL = ("offsets/0", "offsets/1")
SOURCES: dict[str, Case] = {
    "nothing has happened": Case(RIGHT, lambda _: None),
    "the sources are swapped": Case(FAILS, edit("offsets/1", swapped)),
    "the second source is gone": Case(FAILS, edit("offsets/1", shorter), soak=True),
    "the second source is gone in all batches": Case(FAILS, both(*(edit(name, shorter) for name in ALL)), wrong=False),
    "the second source has no offsets": Case(DOUBLES, edit("offsets/1", line(3, b"-")), soak=True),
    "the second source never had offsets": Case(DOUBLES, both(*(edit(name, line(3, b"-")) for name in ALL)), soak=True),
    "the second source's first offsets are gone": Case(RIGHT, gone("sources/1"), soak=True),
    "a source more": Case(FAILS, edit("offsets/1", lambda content: content + b"\n-"), soak=True),
    "the second source is a copy of the first": Case(
        FAILS, edit("offsets/1", lambda content: shorter(content) + b"\n" + content.split(b"\n")[2]), soak=True
    ),
}
TOPICS: dict[str, Case] = {
    "nothing has happened": Case(RIGHT, lambda _: None),
    "a topic is gone": Case(DOUBLES, edit("offsets/1", line(2, b'{"two-a":{"0":4,"1":4}}'))),
    "a topic is renamed": Case(FAILS, edit("offsets/1", replaced(b"two-b", b"two-c")), soak=True),
    # What only the query and Kafka know: `diff --brokers` tells it.
    "a topic is renamed everywhere": Case(
        FAILS,
        both(*(edit(name, replaced(b"two-b", b"two-c")) for name in (*ALL, "sources/0/0"))),
        wrong=False,
        soak=True,
    ),
}


@pytest.mark.parametrize(
    ("joined", "name"),
    [
        pytest.param(joined, name, marks=pytest.mark.soak if case.soak else [])
        for joined, cases in enumerate((SOURCES, TOPICS))
        for name, case in cases.items()
    ],
)
def test_the_verdict_on_two_topics_is_what_spark_does(
    joined: int, name: str, two: dict[bool, tuple[Two, Path]], tmp_path: Path
) -> None:
    query, made = two[bool(joined)]
    case = (SOURCES, TOPICS)[joined][name]
    files = copy(made, tmp_path / "checkpoint")
    gone("commits/2", "offsets/2")(files)
    case.spoil(files)
    told = says_wrong(files)
    wanted = [(topic, p, o) for topic in (query.a, query.b) for p in (0, 1) for o in (4, 5)]
    try:
        outcome = RIGHT if query.run(files.path) == wanted else DOUBLES
    except Exception:  # noqa: BLE001 - of several kinds
        outcome = FAILS
    assert outcome == case.spark
    assert told == (case.wrong if case.wrong is not None else case.spark != RIGHT)


def other_ids(files: LocalFiles) -> None:
    """Let the newest commit name versions of the state that another query has."""
    edit("commits/1", lambda content: re.sub(rb"[0-9a-f]{8}-[0-9a-f-]{27}", str(uuid.uuid4()).encode(), content))(files)


STATE: dict[str, tuple[str, bool, Spoil]] = {
    "the commit names the state of another query": (FAILS, True, other_ids),
    "offsets and commits are gone, and state is there": (FAILS, False, gone("offsets", "commits")),
    "all logs are gone, and state is there": (FAILS, False, gone("offsets", "commits", "metadata")),
}


@pytest.mark.parametrize("name", STATE)
def test_the_verdict_on_state_that_does_not_fit_is_what_spark_does(
    name: str, queries: Queries, counting: Path, rocks: Path, tmp_path: Path
) -> None:
    expected, has_ids, spoil = STATE[name]
    files = copy(rocks if has_ids else counting, tmp_path / "checkpoint")
    do(files, plan_truncate(read_checkpoint(files), 1, query_id="keep"))
    spoil(files)
    told = says_wrong(files)
    assert done(queries, files, [], counting=True, confs=ROCKSDB if has_ids else NO_CONFS) == expected
    assert told


def test_a_batch_whose_state_has_other_ids_cannot_be_the_last(rocks: Path, tmp_path: Path) -> None:
    files = copy(rocks, tmp_path / "checkpoint")
    other_ids(files)
    with pytest.raises(NotAllowed, match=r"state/0/0 no longer has version 2.*Batches with their state: 0, 2"):
        plan_truncate(read_checkpoint(files), 1, query_id="keep")


def test_the_way_back_is_one_that_can_be_gone(rocks: Path, tmp_path: Path) -> None:
    """No remedy names a batch that truncate refuses, such as one before the first."""
    files = copy(rocks, tmp_path / "checkpoint")
    edit("commits/2", to(b""))(files)
    [problem] = verify(files)
    assert problem.remedy.endswith(", or truncate to batch 1: later batches run again")
    do(files, plan_truncate(read_checkpoint(files), 0, query_id="keep"))
    edit("commits/0", to(b""))(files)
    [problem] = verify(files)
    assert "truncate" not in problem.remedy


def test_a_first_batch_that_is_torn_goes_with_the_state_that_it_has_begun(
    queries: Queries, counting: Path, tmp_path: Path
) -> None:
    files = copy(counting, tmp_path / "checkpoint")
    gone("offsets/1", "offsets/2", "commits")(files)
    edit("offsets/0", to(b""))(files)
    [problem] = verify(files)
    assert problem.remedy.startswith("Delete it and its .crc, and the folder state, which that batch created")
    gone("offsets/0", "state")(files)
    assert queries.run(files.path, counting=True) == {n: [(0, 2 * n + 2), (1, 2 * n + 2)] for n in range(3)}


def test_the_state_of_an_operator_that_is_gone_is_missed(queries: Queries, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    _deduplicated(queries, path)
    files = copy(path, tmp_path / "copy")
    gone("commits/2", "offsets/2", "state/0")(files)
    assert [(each.file, each.harmless) for each in verify(files)] == [("state/0", False)]
    with pytest.raises(StreamingQueryException):
        _deduplicated(queries, files.path)


def _deduplicated(queries: Queries, path: Path) -> None:
    """Run a query with two operators that keep state."""
    frame = queries.frame().select("partition", "offset", "timestamp").withWatermark("timestamp", "1 day")
    frame = frame.dropDuplicates(["partition", "offset", "timestamp"]).groupBy("partition").count()
    writer = frame.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(path)).start().awaitTermination(LIMIT_S)


@pytest.fixture(scope="module")
def files_read(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a query that has read five files, with lists 3.compact and 4; beside it the folder of six."""
    path = tmp_path_factory.mktemp("files")
    (path / "read").mkdir()
    for number in range(5):
        (path / "read" / f"{number}.txt").write_text(str(number))
    assert len(read_files(spark, path / "checkpoint", path / "read")) == 5
    (path / "read" / "5.txt").write_text("5")
    return path


NEWEST = "sources/0/4"
COMPACT = "sources/0/3.compact"
LISTS: dict[str, tuple[str, Spoil]] = {
    "nothing has happened": (RIGHT, lambda _: None),
    "lists that a compact one has are gone": (RIGHT, gone("sources/0/0", "sources/0/1.compact", "sources/0/2")),
    "the compact list is gone": (FAILS, gone(COMPACT)),
    "the compact list is empty": (FAILS, edit(COMPACT, to(b""))),
    "the compact list is torn": (FAILS, edit(COMPACT, lambda content: content[:-5])),
    "the compact list has no file": (DOUBLES, edit(COMPACT, to(b"v1"))),
    "the compact list is of a newer Spark": (FAILS, edit(COMPACT, lambda content: b"v9" + content[2:])),
    "the newest list is empty": (FAILS, edit(NEWEST, to(b""))),
    "the newest list is torn": (FAILS, edit(NEWEST, lambda content: content[:-5])),
    "a compact list without a file is copied in": (DOUBLES, beside("sources/0/5.compact", b"v1")),
    "the list's number is a text": (FAILS, edit("offsets/4", replaced(b'Offset":4', b'Offset":"4"'))),
    "the list's number has gone back": (FAILS, edit("offsets/4", replaced(b'Offset":4', b'Offset":2'))),
}


@pytest.mark.parametrize("name", LISTS)
def test_the_verdict_on_lists_of_files_of_a_mixture_is_what_spark_does(
    name: str, spark: SparkSession, files_read: Path, tmp_path: Path
) -> None:
    outcome, spoil = LISTS[name]
    files = copy(files_read / "checkpoint", tmp_path / "checkpoint")
    spoil(files)
    told = says_wrong(files)
    try:
        found = RIGHT if read_files(spark, files.path, files_read / "read") == ["5"] else DOUBLES
    except Exception:  # noqa: BLE001 - of several kinds
        found = FAILS
    assert found == outcome
    assert told == (outcome != RIGHT)


def test_nothing_destructive_is_advised_for_a_list_of_a_newer_format(files_read: Path, tmp_path: Path) -> None:
    files = copy(files_read / "checkpoint", tmp_path / "checkpoint")
    edit(COMPACT, lambda content: b"v9" + content[2:])(files)
    [problem] = verify(files)
    assert problem.remedy.startswith("Use a release of offsetkeeper that knows this format")


def test_one_partition_of_a_thousand_is_missed_and_moved(tmp_path: Path) -> None:
    files = write(tmp_path / "checkpoint")
    ends = [{"orders": {str(number): batch for number in range(1000)}} for batch in range(4)]
    del ends[3]["orders"]["777"]
    for batch, end in enumerate(ends):
        put(files, f"offsets/{batch}", f"v1\n{HEAD.decode().replace('1', str(batch))}\n{json.dumps(end)}")
    [problem] = verify(files)
    assert problem.what.startswith("source 0 has no offset of orders 777, which batch 2 had")
    do(files, plan_truncate(read_checkpoint(files), 2, query_id="keep"))
    assert verify(files) == []
    do(files, plan_move(read_checkpoint(files), {TopicPartition("orders", 777): 1}))
    assert read_checkpoint(files).next().positions == {
        TopicPartition("orders", number): 1 if number == 777 else 2 for number in range(1000)
    }


def test_a_file_of_the_future_is_told_as_one(tmp_path: Path) -> None:
    files = write(tmp_path / "checkpoint")
    later = time.time() + 7200
    os.utime(files.path / "offsets/3", (later, later))
    with pytest.raises(Fenced, match=r"offsets/3 is dated 7[12]\d\d s after now"):
        apply(files, plan_truncate(read_checkpoint(files), 1, query_id="new"), look_s=0)
