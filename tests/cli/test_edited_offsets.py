"""Somebody has moved the group with Kafka's own tool, where the ledger is in Kafka: all who look are told."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from typer.testing import CliRunner, Result

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.errors import NotAllowed, Refused
from offsetkeeper.stores import memory
from offsetkeeper.testing.kafka import KafkaServer

LIMIT_S, ORDERS = 30, TopicPartition("orders", 0)


class Publishes(memory.MemoryStore):
    """Another program has gone on to offset 1000."""

    def published_offsets(self, _group: str) -> dict[TopicPartition, int]:
        """See `Publishing`."""
        return {ORDERS: 1000}


class Moved(NamedTuple):
    """A group that stands at offset 9 of its topic's first partition, and at 2 in what Kafka's tools see."""

    store: str
    brokers: str
    topic: str

    def look(self, *arguments: str, code: int = 0) -> Result:
        """Run a command."""
        given = ("--store", self.store, "--brokers", self.brokers, *arguments[1:])
        result = CliRunner().invoke(app, (arguments[0], "shop", *given))
        assert result.exit_code == code, result.output
        return result

    def commit(self, offset: int) -> None:
        """Do as `kafka-consumer-groups --reset-offsets` does."""
        other = Consumer({"bootstrap.servers": self.brokers, "group.id": "shop"})
        other.commit(offsets=[KafkaPartition(self.topic, 0, offset)], asynchronous=False)
        other.close()


@pytest.fixture
def moved(
    kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Moved:
    monkeypatch.chdir(tmp_path)
    name, brokers = topic(2), kafka_server.bootstrap
    producer = Producer({"bootstrap.servers": brokers})
    for _ in range(10):
        producer.produce(name, b"x", partition=0)
    assert producer.flush(LIMIT_S) == 0
    found = Moved(f"kafka://{brokers}?topic={name}-ledgers", brokers, name)
    with closing(open_store(found.store)) as store:
        ledger = Ledger(store, "shop")
        ledger.acquire()
        ledger.place({TopicPartition(name, number): Position(0) for number in range(2)})
        ledger.commit(ledger.batch([OffsetRange(name, 0, 0, 9)]))
        ledger.release()
    found.commit(2)
    return found


def test_who_looks_is_told_of_offsets_that_another_tool_has_moved(moved: Moved) -> None:
    words = f"{moved.topic} 0: 2 in Kafka, 9 in the ledger"
    expected = [{"topic": moved.topic, "partition": 0, "published": 2, "ledger": 9}]
    for command in ("show", "lag", "plan"):
        assert words in moved.look(command).stderr
        assert json.loads(moved.look(command, "--json").stdout)["edited"] == expected
    said = moved.look("doctor", "--reader", "packed").stdout
    assert words in said
    assert "offsets-edited" in said
    moved.commit(9)
    for command in ("show", "lag", "plan"):
        assert words not in moved.look(command).stderr
    assert "offsets-edited" not in moved.look("doctor", "--reader", "packed").stdout


def test_a_start_tells_it_once_and_puts_the_ledger_s_offsets_there_again(
    moved: Moved, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(moved.store)) as store, caplog.at_level(logging.WARNING):
        ledger = Ledger(store, "shop")
        ledger.load()
        ledger.acquire()
        ledger.release()
    assert sum("2 in Kafka, 9 in the ledger" in each.message for each in caplog.records) == 1
    assert "edited" not in json.loads(moved.look("show", "--json").stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        ("reset", "shop", "--all-topics", "--to-current", "--export"),
        ("checkpoint", "seed", "new", "--group", "shop", "--execute"),
        ("copy", "shop", "--to", "sqlite:///offsets.db", "--execute"),
    ],
)
def test_positions_that_another_program_has_passed_go_nowhere(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were taken in silence, and all that the other program had read came twice."""
    monkeypatch.chdir(tmp_path)
    # A class of its own: Python remembers for ever that a class once was `Publishing`.
    monkeypatch.setattr(memory, "MemoryStore", Publishes)
    url = f"memory://{tmp_path.name}"
    with closing(open_store(url)) as store:
        Ledger(store, "shop").rewind({ORDERS: Position(62)}, "as it was")
    asked = (*arguments, "--store", url)
    result = CliRunner().invoke(app, asked)
    assert isinstance(result.exception, NotAllowed), result.output
    assert "offsetkeeper reset shop --from-file FILE, with the lines orders,0,1000" in str(result.exception)
    assert not any(tmp_path.glob("new/**/0"))
    result = CliRunner().invoke(app, (*asked, "--force"))
    assert result.exit_code == 0, result.output
    assert "orders 0: 1000 in Kafka, 62 in the ledger" in result.stderr  # --force may be given for a run that died


def test_with_force_it_does_not_matter_whether_kafka_can_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who may not describe the group could still copy it before."""

    class Forbidden(Publishes):
        def published_offsets(self, _group: str) -> dict[TopicPartition, int]:
            """See `Publishing`."""
            raise Refused("may not describe the group")

    monkeypatch.setattr(memory, "MemoryStore", Forbidden)
    url = f"memory://{tmp_path.name}"
    with closing(open_store(url)) as store:
        Ledger(store, "shop").rewind({ORDERS: Position(62)}, "as it was")
    result = CliRunner().invoke(app, ("copy", "shop", "--store", url, "--to", f"sqlite:///{tmp_path}/o.db", "--force"))
    assert result.exit_code == 0, result.output
    assert "were not compared: may not describe the group" in result.stderr
