"""The core pipelines on each release of Spark, installed from the wheel: `make sparks`, which takes minutes."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from offsetkeeper.readers.releases import packed_streams
from offsetkeeper.testing.kafka import KafkaServer
from sparks import releases
from sparks.releases import LIMIT_S, RELEASES

DRIVER = Path(__file__).with_name("driver.py")
PAIRS = 12  # in each of two partitions: two records after one another have the same value
WARNED = "PySpark does not yet fully support pandas"

pytestmark = [
    pytest.mark.skipif(not releases.asked(), reason="make sparks installs the releases of Spark and runs it"),
    pytest.mark.timeout(1200),  # the first test of a release installs it
]
each_release = pytest.mark.parametrize("release", releases.asked() or [*RELEASES])


@dataclass
class Topic:
    """A topic, and what a user would count in it.

    Attributes:
        rows: partition, offset, value, key, timestamp in ms, type of the timestamp, headers as JSON.
        ends: of both partitions.
    """

    name: str
    server: KafkaServer
    rows: list[list[Any]] = field(default_factory=list)
    ends: tuple[int, int] = (0, 0)

    def values(self) -> list[list[Any]]:
        """Return partition, offset and value of each record."""
        return sorted(row[:3] for row in self.rows)


@pytest.fixture(scope="module")
def topic() -> Iterator[Topic]:
    """Two partitions; in the first, records of an aborted transaction, which leave a hole."""
    with KafkaServer() as server:
        made = Topic("orders", server)
        server.create_topic(made.name, 2, {"retention.ms": "-1"})  # the records are years old
        produce(made, range(PAIRS))
        abort(made)
        produce(made, range(PAIRS, 2 * PAIRS))
        made.ends = (max(row[1] for row in made.rows if not row[0]) + 1, 2 * PAIRS)
        assert made.ends[0] >= 2 * PAIRS + 3, "there is a hole"
        yield made


def produce(topic: Topic, numbers: range) -> None:
    """Produce a record into each partition for each of these numbers."""
    producer = Producer({"bootstrap.servers": topic.server.bootstrap})
    for number in numbers:
        for partition in (0, 1):
            key = None if number % 3 else f"key {number}"
            timestamp, value = 1_700_000_000_000 + number, str(number // 2)
            headers: list[tuple[str, str | bytes | None]] = [("h", b"\x01" * (number % 2))]
            shown = json.dumps([{"key": "h", "value": "AQ==" if number % 2 else ""}], separators=(",", ":"))
            row = [value, key, timestamp, 0, shown]
            producer.produce(
                topic.name, value, key, partition, noting(topic, row), timestamp=timestamp, headers=headers
            )
    assert producer.flush(LIMIT_S) == 0


def noting(topic: Topic, row: list[Any]) -> Callable[[Any, Message], None]:
    """Return what notes where Kafka put a record."""
    return lambda _, message: topic.rows.append([message.partition(), message.offset(), *row])


def abort(topic: Topic) -> None:
    """Produce records that nobody is to read."""
    producer = Producer({"bootstrap.servers": topic.server.bootstrap, "transactional.id": "aborted"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic.name, "aborted", partition=0)
    assert producer.flush(LIMIT_S) == 0
    producer.abort_transaction(LIMIT_S)


@dataclass
class Work:
    """What one test asks of a release: pipelines of one group, with one store and one checkpoint."""

    release: str
    topic: Topic
    folder: Path
    group: str = field(default_factory=lambda: f"group-{secrets.token_hex(4)}")

    @property
    def database(self) -> Path:
        """The file with the ledger and the table."""
        return self.folder / "shop.db"

    @property
    def checkpoint(self) -> Path:
        """The query's."""
        return self.folder / "checkpoint"

    def do(self, works: str, *, jars: bool = True, status: int = 0, more: Any = None, **pipeline: Any) -> Any:
        """Do this in a process of the release's; return what it told, if it was to end by itself."""
        given = {
            "jars": releases.jars(self.release) if jars else "",
            "folder": str(self.folder),
            "checkpoint": str(self.checkpoint),
            "pipeline": {
                "group": self.group,
                "store": f"sqlite:///{self.database}",
                "brokers": self.topic.server.bootstrap,
                "topics": [self.topic.name],
                **pipeline,
            },
            **(more or {}),
        }
        settings = self.folder / "settings.json"
        settings.write_text(json.dumps(given), "utf-8")
        lines = releases.run(self.release, DRIVER, works, str(settings), status=status)
        if status:
            return None
        found = json.loads(lines[-1])
        assert found["spark"] == RELEASES[self.release].pyspark
        assert not [each for each in found["warned"] if WARNED in each]
        return found

    def make_table(self) -> None:
        """Make the table that takes values."""
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute("create table orders (partition int, offset int, value text)")

    def rows(self) -> list[list[Any]]:
        """Return what is in the table."""
        with closing(sqlite3.connect(self.database)) as connection:
            return [[*row] for row in connection.execute("select * from orders order by partition, offset")]

    def lag(self) -> int:
        """Return how many records the command says that the group is behind."""
        python = releases.environment(self.release)
        where = ["--store", f"sqlite:///{self.database}", "--brokers", self.topic.server.bootstrap]
        command = [str(python), "-m", "offsetkeeper", "lag", self.group, *where, "--json"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout
        return int(json.loads(told)["records"])


@pytest.fixture
def work(release: str, topic: Topic, tmp_path: Path) -> Work:
    """What the test's release does, in a folder of its own."""
    return Work(release, topic, tmp_path)


@each_release
def test_exact_ranges_have_the_records_that_were_produced(work: Work, topic: Topic) -> None:
    """All of a record: key, value, offset, time, headers. And Spark's death is told for what it is."""
    ranges = [[topic.name, 0, 1, topic.ends[0]], [topic.name, 1, 0, topic.ends[1] - 1]]
    found = work.do("read,split,gone", more={"ranges": ranges})
    wanted = sorted(row for row in topic.rows if row[:2] not in ([0, 0], [1, topic.ends[1] - 1]))
    assert len(wanted) == 4 * PAIRS - 2
    assert found["read"] == {"packed": wanted, "connector": wanted}
    assert found["split"] == (2 if work.release == "3.5" else 6), "3.5's connector does not split"
    assert found["gone"] == ["SparkGone"]


@each_release
@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_run_that_dies_between_two_batches_has_each_row_once(work: Work, topic: Topic, reader: str) -> None:
    work.make_table()
    how: dict[str, Any] = {"reader": reader, "max_records": 20}
    work.do("run", status=-signal.SIGKILL, more={"dies_in": 2}, **how)
    assert 0 < len(work.rows()) < len(topic.rows)
    assert work.do("run", **how)["run"] == ["caught_up"]
    assert work.rows() == topic.values()
    assert work.lag() == 0


@each_release
def test_a_query_with_state_that_dies_goes_on_with_its_state(work: Work) -> None:
    """Each value is there four times, and gets through once; a batch ends between two of the same value."""
    work.make_table()
    work.do("start", status=-signal.SIGKILL, more={"dies_in": 3}, max_records=18)  # the packed one's first is empty
    before = work.rows()
    assert before
    [source] = work.do("start", max_records=18)["start"]
    assert ("Kafka" in source) is not packed_streams(RELEASES[work.release].pyspark)
    assert sorted(int(row[2]) for row in work.rows()) == [*range(PAIRS)]
    assert {*map(tuple, before)} < {*map(tuple, work.rows())}
    assert work.lag() == 0


@each_release
def test_a_query_that_loses_its_checkpoint_counts_its_windows_as_one_that_does_not(work: Work, topic: Topic) -> None:
    name = f"windows-{secrets.token_hex(4)}"
    topic.server.create_topic(name, 2, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": topic.server.bootstrap})
    lost, whole = f"{work.group}-lost", f"{work.group}-whole"
    for minute in (0, 1, 4):
        for number in range(6):  # the window of minute 1 is open when the checkpoint goes, and one record is late
            at = 1_700_000_040_000 + minute * 60_000 - number * 11_000
            producer.produce(name, str(number), partition=number % 2, timestamp=at)
        assert producer.flush(LIMIT_S) == 0
        if minute == 4:
            shutil.rmtree(work.folder / lost)
        found = {
            group: work.do("windows", topics=[name], group=group, more={"checkpoint": str(work.folder / group)})
            for group in (lost, whole)
        }
    assert found[lost]["windows"] == found[whole]["windows"]
    assert len(found[lost]["windows"]) > 1


@each_release
def test_a_query_of_ones_own_has_each_record_once(work: Work, topic: Topic) -> None:
    assert work.do("stream")["stream"] == topic.values()


@each_release
def test_sources_that_change_places_in_a_planned_batch_are_refused(work: Work, topic: Topic) -> None:
    """Spark tells them only within: each release must."""
    beside = f"beside-{secrets.token_hex(4)}"
    topic.server.create_topic(beside, 1)
    producer = Producer({"bootstrap.servers": topic.server.bootstrap})
    producer.produce(beside, "x")
    assert producer.flush(LIMIT_S) == 0
    found = work.do("misplaced", reader="connector", more={"beside": beside})
    assert found["misplaced"] == ["ZeroDivisionError", "CheckpointMismatch"]


@each_release
def test_without_the_connector_a_query_is_refused_before_anything_is_touched(work: Work) -> None:
    """Or, where the packed reader can do it, it runs: with `auto` too."""
    found = {reader: tuple(each) for reader, each in work.do("refused", jars=False)["refused"].items()}
    kinds = {reader: kind for reader, (kind, _) in found.items()}
    if packed_streams(RELEASES[work.release].pyspark):
        assert kinds == {"packed": "", "auto": "", "connector": "MissingExtra"}
        return
    assert kinds == {"packed": "SparkTooOld", "auto": "MissingExtra", "connector": "MissingExtra"}
    coordinates = f":spark-sql-kafka-0-10_{'2.12' if work.release < '4' else '2.13'}:{RELEASES[work.release].pyspark}"
    assert all(coordinates in text for _, text in found.values())
    assert "reader='packed'" not in found["auto"][1]
    assert not work.database.exists()
    assert not work.checkpoint.exists()


@pytest.mark.parametrize("since", [(3, 5), (4, 2)], ids=["connector", "packed"])
def test_a_query_goes_on_when_spark_is_upgraded(topic: Topic, tmp_path: Path, since: tuple[int, int]) -> None:
    """One group, one checkpoint, one state, through the releases, oldest first. It keeps the reader it began with."""
    asked = [name for name in releases.asked() if releases.number(name) >= since]
    if len(asked) < 2:
        pytest.skip("an upgrade needs two releases")
    work = Work(asked[0], topic, tmp_path)
    work.make_table()
    counts, first = [0], 2 + (since == (4, 2))  # the packed reader begins with an empty batch
    for number, release in enumerate(asked, first):
        work.release = release
        dies = {"dies_in": number} if number < first + len(asked) - 1 else {}
        found = work.do("start", status=-signal.SIGKILL if dies else 0, more=dies, max_records=10)
        counts.append(len(work.rows()))
    assert counts == sorted({*counts}), "each release adds rows"
    assert sorted(int(row[2]) for row in work.rows()) == [*range(PAIRS)]
    [source] = found["start"]
    assert ("Kafka" in source) is not packed_streams(RELEASES[asked[0]].pyspark)
