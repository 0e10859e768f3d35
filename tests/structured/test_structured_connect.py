"""Spark Connect: batches are written by a process beside the server, for the owner that the client acquired."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pymysql
import pytest

from engines.lab import LIMIT_S, QUICK
from offsetkeeper import TopicPartition
from offsetkeeper.core import environment
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.server import wait_until
from offsetkeeper.testing.spark import SparkConnectServer
from sinks.topics import values
from structured import connect_child
from structured.lab import StructuredLab

NewTopic = Callable[..., str]
SETTINGS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
}


class Client:
    """A child with a session of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.answer() == "ready"

    def run(self, order: str, checkpoint: Path | str) -> str:
        """Give an order for a checkpoint, or "none" for a run without a query; return the answer."""
        assert self.process.stdin
        self.process.stdin.write(f"{order} {checkpoint}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """Return the next answer."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def server() -> Iterator[SparkConnectServer]:
    """The server of this file."""
    with SparkConnectServer(settings=SETTINGS) as server:
        yield server


@pytest.fixture
def name(topic: NewTopic) -> str:
    """The topic that queries read."""
    return topic(2)


@pytest.fixture
def out(topic: NewTopic) -> str:
    """The topic that queries and runs write."""
    return topic(1)


@pytest.fixture
def shop(mariadb_server: MariaDBServer) -> str:
    """The URL of a MySQL database, with tables that queries and runs write."""
    database = mariadb_server.create_database()
    for table in ("orders", "all_orders"):
        in_shop(
            mariadb_server,
            f"create table {database}.{table} (topic text, `partition` int, `offset` bigint, value varchar(9))",
        )
    return mariadb_server.url(database)


@pytest.fixture
def connect(
    lab: StructuredLab, server: SparkConnectServer, name: str, out: str, shop: str, tmp_path: Path
) -> Iterator[Callable[..., Client]]:
    """Start clients, in this working folder or another one."""
    pipeline = {**QUICK, "store": lab.store, "brokers": lab.kafka.bootstrap, "topics": [name], "attempts": 1}
    settings = {"pipeline": pipeline, "spark": server.url, "notes": str(tmp_path / "notes"), "out": out, "shop": shop}
    command = [sys.executable, connect_child.__file__, json.dumps(settings)]
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        connection.execute('create table orders (topic text, partition int, "offset" int, value text)')
    with ExitStack() as stack:

        def start(folder: Path | None = None) -> Client:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
            stack.enter_context(process)
            stack.callback(process.kill)
            return Client(process)

        yield start


def in_shop(server: MariaDBServer, statement: str) -> list[Any]:
    """Return what a statement finds in MySQL."""
    with (
        pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return [*cursor.fetchall()]


def orders(lab: StructuredLab) -> list[str]:
    """Return the values in the table."""
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"))) as connection:
        return [value for (value,) in connection.execute("select value from orders order by value").fetchall()]


def notes(tmp_path: Path) -> list[dict[str, Any]]:
    """Return what the function has noted."""
    return [json.loads(line) for line in (tmp_path / "notes").read_text("utf-8").splitlines()]


def check_rebuilt(lab: StructuredLab, spark: Client, name: str, tmp_path: Path) -> None:
    """A query with state loses its checkpoint, and the records that it has seen are still seen."""
    at_ms = environment.now_ms()  # later than all before, which would else be the newest
    for checkpoint, value in (("five", "m"), ("six", "n"), ("six", "o")):
        lab.produce(name, value, "m", timestamp_ms=at_ms)
        assert spark.run("once", tmp_path / checkpoint).startswith("ended well")
    assert [each for note in notes(tmp_path) for each in note["values"]][-3:] == ["m", "n", "o"]


def test_queries_and_runs_on_connect(
    lab: StructuredLab, connect: Callable[[], Client], name: str, out: str, tmp_path: Path
) -> None:
    """One client, since it takes long to start: one thing after the other."""
    spark = connect()
    lab.produce_all(name, [(0, "a"), (1, "b")])
    assert spark.run("table", tmp_path / "one") == "ended well after 2"
    assert orders(lab) == ["a", "b"]
    assert (lab.offsets(), lab.snapshot().owner) == ({0: 1, 1: 1}, None)

    lab.produce(name, "c")  # it goes on
    assert spark.run("table", tmp_path / "one") == "ended well after 1"
    assert orders(lab) == ["a", "b", "c"]

    lab.produce(name, "d")  # also where the checkpoint is another, and the output fails before
    assert spark.run("fail", tmp_path / "two").startswith("ended StreamingQueryException")
    assert lab.snapshot().pending is not None
    assert spark.run("note", tmp_path / "two") == "ended well after 0"  # read before the query began
    assert notes(tmp_path) == [{"values": ["d"], "lines": f"{name} 0 2 3", "retry": True}]

    with lab.ledger() as ledger:  # a hole stops it, with our own error
        tp = TopicPartition(name, 0)
        ledger.rewind({tp: ledger.snapshot.positions[tp]._replace(offset=1)}, "test")
    lab.produce(name, "e")
    answer = spark.run("note", tmp_path / "two")
    assert answer.startswith("ended CheckpointMismatch")
    assert "the checkpoint is at 3, the ledger is at 1: a hole" in answer

    assert spark.run("distinct", tmp_path / "three").startswith("ended CheckpointMismatch")  # state would be lost
    assert spark.run("note", tmp_path / "three") == "ended well after 3"
    assert notes(tmp_path)[1:] == [{"values": ["c", "d", "e"], "lines": f"{name} 0 1 4", "retry": False}]
    assert (lab.offsets(), lab.snapshot().owner) == ({0: 4, 1: 1}, None)

    lab.produce(name, "f")  # several outputs, from one frame
    assert spark.run("several", tmp_path / "three") == "ended well after 1"
    assert [note["values"] for note in notes(tmp_path)[2:]] == [["f"], ["f"]]
    assert lab.events()[-4:] == ["begin", "mark", "commit", "release"]

    lab.produce(name, "g")  # files that the server's executors write, and the process beside it renames
    assert spark.run("files", tmp_path / "three") == "ended well after 1"
    found = [path for path in (tmp_path / "notes-files").glob("batch=*/part-*") if pq.read_metadata(path).num_rows]
    assert [pq.read_table(path)["value"].to_pylist() for path in found] == [["g"]]

    for order, value in (
        ("table", "h"),
        ("several", "i"),
        ("files", "j"),
    ):  # without a query, from the client's process
        lab.produce(name, value)
        assert spark.run(order, "none") == "ended caught_up 1"
    assert orders(lab) == ["a", "b", "c", "h"]
    assert [note["values"] for note in notes(tmp_path)[-2:]] == [["i"], ["i"]]
    assert sum(pq.read_metadata(path).num_rows for path in (tmp_path / "notes-files").glob("batch=*/part-*")) == 2

    lab.produce(name, "k")  # a transaction, by an executor
    assert spark.run("topic", "none") == "ended caught_up 1"
    lab.produce(name, "l")
    assert spark.run("topic", tmp_path / "four") == "ended well after 1"
    assert values(lab.kafka.bootstrap, out) == ["k", "l"]

    check_rebuilt(lab, spark, name, tmp_path)

    answer = spark.run("hdfs", tmp_path / "three")
    assert answer.startswith("ended GuaranteeRefused")
    assert "classic Spark" in answer
    spark.process.communicate(timeout=LIMIT_S)
    assert spark.process.returncode == 0


def test_a_client_of_another_release_than_the_servers_is_refused(
    lab: StructuredLab, connect: Callable[[], Client], name: str, tmp_path: Path
) -> None:
    """At the start of the query: its settings could mean something else there."""
    spark = connect()
    lab.produce(name, "a")
    answer = spark.run("other-release", tmp_path / "one")
    assert answer.startswith("ended SettingsError the client has offsetkeeper 0.0.1, and the Python of Spark Connect's")
    assert not (tmp_path / "notes").exists()
    assert (lab.snapshot().pending, lab.snapshot().owner) == (None, None)
    assert spark.run("note", tmp_path / "one") == "ended well after 1"


def test_rows_into_mysql(
    lab: StructuredLab,
    connect: Callable[[], Client],
    name: str,
    shop: str,
    mariadb_server: MariaDBServer,
    tmp_path: Path,
) -> None:
    """Executors stage them; apart from the ledger with a mark, and then in one transaction with it."""
    spark, database = connect(), shop.rpartition("/")[2]

    def rows(table: str) -> list[Any]:
        columns = f"select topic, `partition`, `offset`, value from {database}"  # noqa: S608 - a word
        return in_shop(mariadb_server, f"{columns}.{table} order by value")

    lab.produce_all(name, [(0, "a"), (1, "b")])
    assert spark.run("mysql", "none") == "ended caught_up 2"
    lab.produce(name, "c")
    assert spark.run("mysql", tmp_path / "one") == "ended well after 1"
    found = [(name, 0, 0, "a"), (name, 1, 0, "b"), (name, 0, 1, "c")]
    assert rows("orders") == found

    assert spark.run("mysql-store", "none") == "ended caught_up 3"
    assert rows("all_orders") == found


def test_a_checkpoint_of_that_name_on_the_clients_machine_is_another_one(
    lab: StructuredLab, connect: Callable[..., Client], name: str, tmp_path: Path
) -> None:
    """Linux has a name for the working folder of each process, so that one path is two folders, as on two machines."""
    here = tmp_path / "client"
    here.mkdir()
    spark, place = connect(here), "/proc/self/cwd"
    lab.produce(name, "a", "b", "c")
    assert spark.run("given", f"{place}/one") == "ended well after 2"
    lab.produce(name, "d")
    answer = spark.run("given", f"{place}/one")  # by a supervisor
    assert answer.startswith("ended StartRefused")
    assert f"{name} 0: given again" in answer
    assert lab.offsets() == {0: 3, 1: 0}
    assert spark.run("note", f"{place}/one") == "ended well after 1"
    assert [note["values"] for note in notes(tmp_path)] == [["b", "c"], ["d"]]

    assert spark.run("once", f"{place}/two").startswith("ended well")
    lab.produce(name, "e", timestamp_ms=environment.now_ms())
    assert spark.run("once", f"{place}/two").startswith("ended well")  # its state is seen
    answer = spark.run("once", f"{place}/three")
    assert answer.startswith("ended SettingsError")
    assert "three can only be read from here, so no state can be rebuilt" in answer
    assert [*here.iterdir()] == []


@pytest.mark.soak
def test_a_client_that_is_killed_is_followed_by_another(
    lab: StructuredLab, connect: Callable[[], Client], name: str, tmp_path: Path
) -> None:
    """Its query goes on in the server, until another one takes the group; every record is written once.

    The other has a checkpoint of its own: with the same one, Spark itself stops the query that it finds running.
    """
    first = connect()
    assert first.run("follow", tmp_path / "one") == "started"
    lab.produce_all(name, [(0, "a"), (1, "b")])
    wait_until(lambda: lab.offsets() == {0: 1, 1: 1}, "the first query has committed", LIMIT_S)
    first.process.kill()
    first.process.wait(LIMIT_S)
    second = connect()
    assert second.run("note", tmp_path / "two") == "ended well after 0"
    for value in "cd":
        lab.produce(name, value)
        assert second.run("note", tmp_path / "two") == "ended well after 1"
    assert (lab.offsets(), lab.snapshot().owner) == ({0: 3, 1: 1}, None)
    assert sorted(value for note in notes(tmp_path) for value in note["values"]) == ["a", "b", "c", "d"]


def test_a_server_that_dies_is_told_and_loses_nothing(
    lab: StructuredLab, connect: Callable[[], Client], server: SparkConnectServer, name: str, tmp_path: Path
) -> None:
    """The last test of this file, as it takes the server with it."""
    spark = connect()
    assert spark.run("await", tmp_path / "one") == "started"
    lab.produce_all(name, [(0, "a"), (1, "b")])
    wait_until(lambda: lab.offsets() == {0: 1, 1: 1}, "the query has committed", LIMIT_S)
    server.kill()
    lab.produce(name, "c")
    assert spark.answer().startswith(
        "ended SparkGone Spark is gone: the server of Spark Connect does not answer. Committed batches stay committed"
    )
    assert (lab.offsets(), lab.snapshot().owner) == ({0: 1, 1: 1}, None)
    assert lab.read(name) == ["c"]  # by classic Spark: the ledger alone says what is left
    assert sorted(value for note in notes(tmp_path) for value in note["values"]) == ["a", "b"]
