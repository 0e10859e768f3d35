"""Share groups (KIP-932) have no committed offsets: each is named for what it is, and nothing is written for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import ShareConsumer
from typer.testing import CliRunner

from offsetkeeper import Ledger, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import Refused
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.consumers import Publisher
from offsetkeeper.stores.kafka import KafkaStore
from offsetkeeper.stores.kafka.clients import Clients
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until

LIMIT_S = 30.0
SHARED, PARTITION = "pickers", TopicPartition("orders", 0)
TOLD = f"'{SHARED}' is the name of a share group in Kafka"


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """A broker with a share group that has a member."""
    with KafkaServer() as server:
        server.create_topic(PARTITION.topic)
        member = ShareConsumer({"bootstrap.servers": server.bootstrap, "group.id": SHARED, "log_level": 0})
        member.subscribe([PARTITION.topic])

        def joined() -> bool:
            member.poll(0.1)
            with closing(KafkaStore(f"kafka://{server.bootstrap}")) as store:
                clients: Clients = store._clients
                return not clients.is_consumer_group(SHARED)

        wait_until(joined, f"Kafka lists {SHARED}", LIMIT_S)
        yield server
        member.close()


def run(*arguments: str) -> None:
    """Run a command."""
    CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    "command",
    [
        ["show", SHARED],
        ["lag", SHARED],
        ["plan", SHARED, "--topic", "orders"],
        ["reset", SHARED, "--topic", "orders", "--to-earliest", "--reason", "try", "--execute"],
    ],
    ids=lambda command: command[0],
)
def test_a_share_group_is_named_for_what_it_is(server: KafkaServer, command: list[str]) -> None:
    with pytest.raises(Refused, match=TOLD):
        run(*command, "--store", f"kafka://{server.bootstrap}", "--brokers", server.bootstrap)
    assert "offsetkeeper" not in server.topics(), "no ledger was made"


def test_a_run_of_its_name_is_refused_before_anything_is_written(server: KafkaServer) -> None:
    with closing(open_store(f"kafka://{server.bootstrap}")) as store, pytest.raises(Refused, match=TOLD):
        Ledger(store, SHARED).acquire()
    assert "offsetkeeper" not in server.topics(), "no ledger was made"


def test_no_offsets_are_published_for_it(server: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    with KafkaCluster(server.bootstrap) as cluster:
        publisher = Publisher(cluster, SHARED)
        assert not publisher.publish(lambda: {PARTITION: Position(5)})
        publisher.close()
    assert TOLD in caplog.text
    assert server.group_offsets(SHARED, [PARTITION]) == {}


def test_a_group_is_not_copied_to_its_name(server: KafkaServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/offsets.db"
    Ledger(open_store(url), SHARED).acquire()
    with pytest.raises(Refused, match=TOLD):
        run("copy", SHARED, "--store", url, "--to", f"kafka://{server.bootstrap}", "--execute")
    assert "offsetkeeper" not in server.topics(), "no ledger was made"
