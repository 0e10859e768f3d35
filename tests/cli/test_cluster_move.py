"""A group moves to another Kafka cluster by time: the commands of docs/recover.md."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from docs.pages import ROOT
from offsetkeeper import Ledger, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.errors import Refused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.testing.kafka import KafkaServer

AT_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


def produce(kafka: KafkaServer, topic: str, *times: int) -> None:
    """Produce a record for each time, in minutes from the one on the page."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for each in times:
        producer.produce(topic, b"x", partition=0, timestamp=AT_MS + each * 60_000)
    assert producer.flush(30) == 0


def offsetkeeper(command: str) -> tuple[int, str]:
    """Run a command, and return its exit code and what it prints."""
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize("known", [True, False], ids=["the ledger knows its cluster", "an older ledger"])
def test_a_group_moves_to_another_cluster_by_time(
    kafka_server: KafkaServer,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Records have other offsets there. Without the reset a start is refused, and each command says where it is."""
    name = topic(1, {"retention.ms": "-1"})
    monkeypatch.setenv("OFFSETKEEPER_STORE", f"sqlite:///{tmp_path}/offsets.db")
    produce(kafka_server, name, -2, -1, 0, 1)
    a = TopicPartition(name, 0)
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        topic_id, cluster_id = cluster.describe([name])[name].topic_id, cluster.cluster_id() if known else None
    with closing(open_store(f"sqlite:///{tmp_path}/offsets.db")) as store:
        ledger = Ledger(store, "orders")
        ledger.acquire()
        ledger.place({a: Position(2, topic_id, cluster_id)})
        ledger.release()
    page = (ROOT / "docs" / "recover.md").read_text("utf-8").replace("--topic orders", f"--topic {name}")
    with KafkaServer() as other:
        other.create_topic(name, 1, {"retention.ms": "-1"})
        produce(other, name, -1, 0, 1)
        plan = f"offsetkeeper plan orders --brokers {other.bootstrap}"
        code, shown = offsetkeeper(plan)
        assert code == 1
        assert (f"another cluster, stored 2 in cluster {cluster_id}" if known else "recreated") in shown
        if known:
            assert "another cluster" in offsetkeeper(f"offsetkeeper lag orders --brokers {other.bootstrap}")[1]
            assert "another-cluster" in offsetkeeper(f"offsetkeeper doctor orders --brokers {other.bootstrap}")[1]
            reset = f"offsetkeeper reset orders --brokers {other.bootstrap} --topic {name}"
            with pytest.raises(Refused, match=f"the position is of {cluster_id}: offset 2 means another record there"):
                offsetkeeper(f"{reset} --to-current")
            assert f"the positions are of the Kafka cluster {cluster_id};" in offsetkeeper(f"{reset} --to-earliest")[1]
        for line in re.findall(r"^ *(offsetkeeper .*new:9092.*)$", page, re.MULTILINE):
            assert offsetkeeper(line.replace("new:9092", other.bootstrap))[0] == 0
        code, shown = offsetkeeper(plan)
    assert code == 0
    assert "resume" in shown
    with closing(open_store(f"sqlite:///{tmp_path}/offsets.db")) as store:
        assert Ledger(store, "orders").load().positions[a].offset == 1
    assert "another cluster" in offsetkeeper(f"offsetkeeper lag orders --brokers {kafka_server.bootstrap}")[1]
