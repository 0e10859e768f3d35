"""What depends on the release of the brokers: `make kafkas`, which runs the suites of ARGS with each of them too.

docs/kafka-releases.md has these answers as a table.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from engines.elections import SETTINGS, elect_follower, lose_follower, make_topics
from kafka.test_kafka_late import TOPIC, check_late_row
from offsetkeeper import Ledger, TopicPartition, open_store
from offsetkeeper.errors import Refused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.artifacts import fetch_jars
from offsetkeeper.testing.kafka import RELEASES, KafkaServer, KafkaServers
from offsetkeeper.testing.server import wait_until
from sinks.topics import committed

DRIVER = Path(__file__).with_name("driver.py")
LIMIT_S = 30.0
RECORDS = 60
END_OF_A_TRANSACTION = b"\x00\x1a\x00\x01"  # the request EndTxn, version 1
# By release: whether brokers verify transactions, their newest protocol of transactions, and share groups.
VERIFIES = {"2.8": False, "3.9": True, "4.0": True, "4.3": True, "4.4": True}
PROTOCOL = {"2.8": None, "3.9": None, "4.0": 2, "4.3": 2, "4.4": 2}
SHARES = {"2.8": False, "3.9": False, "4.0": False, "4.3": True, "4.4": True}


ASKED = os.environ.get("OFFSETKEEPER_KAFKA", "")
alone = pytest.mark.skipif(not ASKED, reason="make kafkas runs pipelines with each release of Kafka")
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def release() -> str:
    """The release line: that of `make kafkas`, or the oldest."""
    return ASKED or next(iter(RELEASES))


@pytest.fixture(scope="module")
def server(release: str) -> Iterator[KafkaServer]:
    """A broker of the release, with a topic of two partitions."""
    with KafkaServer(release=release) as server:
        server.create_topic(TOPIC)
        server.create_topic("orders-in", 2)
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for number in range(RECORDS):
            producer.produce("orders-in", str(number), partition=number % 2)
        assert producer.flush(LIMIT_S) == 0
        yield server


def begin(server: KafkaServer, folder: Path, **settings: Any) -> subprocess.Popen[str]:
    """Start the pipeline of `driver.py` in a process of its own, with children that end with it."""
    given = {
        "jars": ",".join(map(str, fetch_jars("connector"))),
        "table": f"sqlite:///{folder}/shop.db",
        "brokers": server.bootstrap,
        "dies_in": 0,
        **settings,
    }
    kept = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(DRIVER), json.dumps(given)]
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=kept, cwd=folder, start_new_session=True, **pipes)


def run(server: KafkaServer, folder: Path, status: int = 0, **settings: Any) -> None:
    """Run it until it ends, which must be with this code."""
    with begin(server, folder, **settings) as process:
        _, said = process.communicate(timeout=200)
    assert process.returncode == status, said[-4000:]


@alone
@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_run_that_dies_has_each_row_once(server: KafkaServer, tmp_path: Path, reader: str) -> None:
    """Rows and offsets are one transaction of SQLite; `lag` and `doctor` agree that all is read."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table orders (value text)")
    how: dict[str, Any] = {"reader": reader, "group": f"shop-{reader}", "store": f"sqlite:///{tmp_path}/shop.db"}
    run(server, tmp_path, -signal.SIGKILL, **how, dies_in=2)
    run(server, tmp_path, **how)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        rows = sorted(int(value) for (value,) in database.execute("select value from orders"))
    assert rows == [*range(RECORDS)]
    where = ["--store", how["store"], "--brokers", server.bootstrap, "--json"]
    assert told("lag", how["group"], *where)["records"] == 0
    findings = told("doctor", how["group"], *where)["findings"]
    assert not [each for each in findings if each["severity"] == "error"]


@alone
def test_a_run_that_dies_between_write_and_commit_leaves_each_row_once_in_a_topic(
    server: KafkaServer, tmp_path: Path
) -> None:
    """The ledger is in Kafka too. The commit is on its way when all processes die, and arrives at the very end."""
    name = f"orders-out-{secrets.token_hex(4)}"
    server.create_topic(name)
    store = f"kafka://{server.bootstrap}"
    with server.proxy() as proxy:
        how: dict[str, Any] = {
            "reader": "packed",
            "group": "copies",
            "store": store,
            "topic": name,
            "writes_to": proxy.address,
        }
        commit = proxy.keep_back(END_OF_A_TRANSACTION)
        with begin(server, tmp_path, **how) as process:
            commit.wait(100)
            os.killpg(process.pid, signal.SIGKILL)
        commit.abandon()
        run(server, tmp_path, **how)
        commit.land()
    assert sorted(int(each.value or b"") for each in committed(server.bootstrap, name)) == [*range(RECORDS)]
    assert told("lag", "copies", "--store", store, "--brokers", server.bootstrap, "--json")["records"] == 0


def test_a_row_that_is_late_is_never_counted(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It arrives when its transaction has ended, with any release: `Topic` waits, or the brokers verify."""
    check_late_row(server, monkeypatch)


def test_brokers_that_do_not_verify_transactions_are_named(server: KafkaServer, release: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/offsets.db"
    Ledger(open_store(url), "shop").acquire()
    where = ["--store", url, "--brokers", server.bootstrap, "--topic", "orders-in", "--output", "orders-in", "--json"]
    found = {each["rule"]: each for each in told("doctor", "shop", *where)["findings"]}
    assert ("transactions-unverified" in found) is not VERIFIES[release]
    if not VERIFIES[release]:
        assert "inter.broker.protocol.version=2.8" in found["transactions-unverified"]["what"]


def test_the_newer_protocol_of_transactions_is_of_no_use_to_librdkafka(
    server: KafkaServer, release: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends transactions as before, even where the brokers have the newer protocol."""
    assert finalized(server, "transaction.version") == PROTOCOL[release]
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "spoken", "debug": "protocol"})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce("orders-in", b"aborted", partition=0)
    producer.flush(LIMIT_S)
    producer.abort_transaction(LIMIT_S)
    said = capfd.readouterr().err
    assert "Sent EndTxnRequest (v1," in said
    assert "Sent AddPartitionsToTxnRequest (v0," in said


def test_topics_have_ids_and_ends_have_epochs(server: KafkaServer) -> None:
    with KafkaCluster(server.bootstrap) as cluster:
        assert cluster.describe(["orders-in"])["orders-in"].topic_id
        tp = TopicPartition("orders-in", 0)
        assert cluster.bounds([tp])[tp].leader_epoch is not None
        assert cluster.leader_epochs([tp])[tp] is not None


@alone
def test_a_log_that_was_cut_is_noticed(release: str, tmp_path: Path) -> None:
    """With ZooKeeper the epoch changes when a follower is lost, so that the offset of the cut is not known."""
    with KafkaServers(settings=SETTINGS) as servers:
        make_topics(servers, ["cut"])
        where = ["--store", f"sqlite:///{tmp_path}/shop.db", "--brokers", servers.bootstrap]
        produce(servers, 5)
        lose_follower(servers, ["cut"])
        produce(servers, 4)
        command("reset", "shop", *where, "--topic", "cut", "--to-latest", "--reason", "try", "--execute")
        elect_follower(servers, ["cut"])
        produce(servers, 7)
        said = command("plan", "shop", *where, status=1).stdout
    at = "" if release == "2.8" else " at offset 5"
    assert f"cut 0: cut, stored 9, Kafka holds 0..12 and was cut{at} by the election" in said


def produce(servers: KafkaServers, count: int) -> None:
    """Write records, and return when all replicas in sync have them."""
    producer = Producer({"bootstrap.servers": servers.bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce("cut", str(number), partition=0)
    assert producer.flush(LIMIT_S) == 0


def test_a_topic_that_is_created_again_is_noticed_though_kafkas_own_offsets_are_gone(
    server: KafkaServer,
) -> None:
    """A ledger knows the topic's id. A group of other programs has only offsets, which Kafka deletes with the topic."""
    name = f"again-{secrets.token_hex(4)}"
    partition = TopicPartition(name, 0)
    server.create_topic(name)
    url, where = f"kafka://{server.bootstrap}", ["--brokers", server.bootstrap]
    command("reset", "ours", "--store", url, *where, "--topic", name, "--to-latest", "--reason", "try", "--execute")
    member = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "theirs", "enable.auto.commit": False})
    member.commit(offsets=[KafkaPartition(name, 0, 0)], asynchronous=False)
    member.close()
    assert server.group_offsets("theirs", [partition]) == {partition: 0}
    server.delete_topic(name)
    server.create_topic(name)
    wait_until(lambda: server.group_offsets("theirs", [partition]) == {}, "Kafka has dropped the offsets", LIMIT_S)
    planned = command("plan", "ours", "--store", url, *where, status=1)
    assert f"{name} 0: recreated" in planned.stdout
    for each in ("show", "lag", "doctor"):
        said = command(each, "theirs", "--store", url, *where, status=2).stderr
        assert "Kafka has no committed offset of it: it deletes the offsets of each group with their topic" in said


def test_a_share_group_is_refused_where_there_are_any(server: KafkaServer, release: str) -> None:
    member = ShareConsumer({"bootstrap.servers": server.bootstrap, "group.id": "shared", "log_level": 0})
    member.subscribe(["orders-in"])
    with closing(open_store(f"kafka://{server.bootstrap}")) as store:

        def refused() -> bool:
            member.poll(0.1)
            try:
                store.load("shared")
            except Refused as error:
                return "is the name of a share group in Kafka" in str(error)
            return False

        if SHARES[release]:
            wait_until(refused, "the share group is refused", LIMIT_S)
        else:
            assert not any(refused() for _ in range(50))  # 5 s: where there are any, it takes less
    member.close()


def command(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, which must end with this code."""
    asked = [sys.executable, "-m", "offsetkeeper", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def told(*arguments: str) -> Mapping[str, Any]:
    """Return what a command says as JSON."""
    found: Mapping[str, Any] = json.loads(command(*arguments).stdout)
    return found


def finalized(server: KafkaServer, feature: str) -> int | None:
    """Return the level that a feature of the cluster has, as a broker tells in its ApiVersions; None if it has none."""
    body = struct.pack(">hhih4sb", 18, 3, 1, 4, b"test", 0) + b"\x05test\x021\x00"  # version 3 of the request
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as asked:
        asked.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", asked.recv(4, socket.MSG_WAITALL))
        answer = io.BytesIO(asked.recv(size, socket.MSG_WAITALL))
    answer.read(6)  # the number of the request, and no error
    answer.read(7 * (number(answer) - 1) + 4)  # what versions it takes of each request, and the throttle time
    fields = {number(answer): answer.read(number(answer)) for _ in range(number(answer))}
    features = io.BytesIO(fields.get(2, b"\1"))
    levels = {}
    for _ in range(number(features) - 1):
        name = features.read(number(features) - 1).decode()
        levels[name], _least, _ = struct.unpack(">hhb", features.read(5))
    return levels.get(feature)


def number(answer: io.BytesIO) -> int:
    """Read an unsigned varint."""
    found, shift = 0, 0
    while (byte := answer.read(1)[0]) & 0x80:
        found, shift = found | (byte & 0x7F) << shift, shift + 7
    return found | byte << shift
