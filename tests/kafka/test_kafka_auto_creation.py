"""What was deleted stays deleted, also where brokers make each topic that a client asks for, as they do by default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from fixtures.implementations import implementations
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import SinkError
from offsetkeeper.kafka import KafkaCluster, clients
from offsetkeeper.kafka.own_settings import JAVA
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.readers import Source, consume, open_reader
from offsetkeeper.sinks.topic import task
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.server import wait_until
from sinks.topics import mark, said, slot

if TYPE_CHECKING:
    from offsetkeeper.kafka.clients import Admin

LIMIT_S = 60.0
GIVE_UP = {"message.timeout.ms": "3000", "topic.metadata.propagation.max.ms": "1000"}
QUICKLY = {"topic.metadata.refresh.interval.ms": "100", "statistics.interval.ms": "100"}


@pytest.fixture(scope="module")
def willing_server() -> Iterator[KafkaServer]:
    """A broker that makes topics which clients ask for."""
    with KafkaServer(settings={"auto.create.topics.enable": "true", "num.partitions": "3"}) as server:
        yield server


def fill(server: KafkaServer, topic: str, count: int) -> None:
    """Write so many records of 1 kB."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for _ in range(count):
        producer.produce(topic, b"v" * 1000)
    assert producer.flush(LIMIT_S) == 0


class Asked:
    """How often a client has asked a broker for topics, as its statistics say.

    Attributes:
        settings: those by which the client tells, and asks ten times a second.
    """

    def __init__(self) -> None:
        self._count = 0
        self.settings: dict[str, Any] = {**QUICKLY, "stats_cb": self._see}

    def _see(self, statistics: str) -> None:
        self._count = sum(each["req"].get("Metadata", 0) for each in json.loads(statistics)["brokers"].values())

    def wait(self, client: Any) -> None:
        """Wait until the client has asked some more."""
        client.poll(0.2)
        enough = self._count + 3

        def has() -> bool:
            client.poll(0)
            return self._count >= enough

        wait_until(has, "the client asked for its topics again", LIMIT_S)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("AdminClient", {}), ("Producer", {}), ("Consumer", {"allow.auto.create.topics": "true"})],
)
def test_a_topic_that_a_client_has_asked_for_is_not_made_again(
    willing_server: KafkaServer, kind: Any, options: Mapping[str, str]
) -> None:
    name, asked = f"orders-{kind}", Asked()
    willing_server.create_topic(name)
    ours = {"group.id": "x"} if kind == "Consumer" else {}
    client = clients.open_client(kind, willing_server.bootstrap, options, {**ours, **asked.settings})
    assert len(client.list_topics(name, LIMIT_S).topics[name].partitions) == 1
    willing_server.delete_topic(name)
    asked.wait(client)
    assert client.list_topics(name, LIMIT_S).topics[name].error is not None
    assert name not in willing_server.topics()


def test_a_topic_that_was_read_and_deleted_is_not_made_again_by_the_client_that_stays(
    willing_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    real: Any = clients.open_client

    def make(kind: Any, *given: Any, **named: Any) -> Any:
        return real(kind, *given, **({"settings": asked.settings} if kind == "AdminClient" else {}), **named)

    monkeypatch.setattr(clients, "open_client", make)
    kept: dict[Any, Admin] = {}
    monkeypatch.setattr(consume, "_kept", kept)
    willing_server.create_topic("read", 1)
    fill(willing_server, "read", 2)
    with KafkaCluster(willing_server.bootstrap) as cluster:
        ids = {"read": str(cluster.describe(["read"])["read"].topic_id)}
    source = Source(willing_server.bootstrap, {}, "test", "read_committed")
    assert sum(batch.num_rows for batch in consume.read(source, [("read", 0, 0, 2)], ids)) == 2
    [admin] = kept.values()
    willing_server.delete_topic("read")
    asked.wait(admin.client)
    with KafkaCluster(willing_server.bootstrap) as cluster:
        assert cluster.describe(["read"]) == {}


@pytest.mark.parametrize("implementation", implementations("offsetkeeper_native.producer"))
def test_a_topic_that_is_deleted_before_a_row_is_sent_is_not_made_for_it(
    willing_server: KafkaServer, monkeypatch: pytest.MonkeyPatch, implementation: dict[str, str]
) -> None:
    class Deleting(Turn):
        def partitions(self, topic: str) -> int:
            found = super().partitions(topic)
            willing_server.delete_topic(topic)
            return found

    monkeypatch.setattr(task, "Turn", Deleting)
    willing_server.create_topic("written")
    if "marks" not in willing_server.topics():
        willing_server.create_topic("marks")
    at = slot(willing_server.bootstrap, "marks", options=GIVE_UP | implementation)
    with pytest.raises(SinkError, match=r"Nothing was written"):
        task.land(at, Saying(None, 1, str(mark(1))), "written", [pa.record_batch({"value": ["a"]})])
    assert willing_server.topics() & {"written", "marks"} == {"marks"}
    assert said(at) is None


def test_the_consumers_of_the_connector_make_no_topic_again(
    spark: SparkSession, willing_server: KafkaServer, tmp_path: Path
) -> None:
    """A task that has read a part, and asks for more when the topic is gone."""
    began, deleted, count = tmp_path / "began", tmp_path / "deleted", 20_000
    willing_server.create_topic("connected")
    fill(willing_server, "connected", count)

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            began.touch()
            while not deleted.exists():
                sleep(0.02)
            yield batch

    soon = {f"{JAVA}{name}.timeout.ms": "4000" for name in ("request", "default.api")}
    cluster = KafkaCluster(willing_server.bootstrap, soon)
    reader = open_reader("connector", cluster, group="test", stall_s=4)
    frame = reader.read(spark, [OffsetRange("connected", 0, 0, count)]).select("value").mapInArrow(held, "value binary")
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(frame.count)
        wait_until(lambda: began.exists() or counted.done(), "the task had its first records", LIMIT_S)
        assert not counted.done(), counted.exception()
        willing_server.delete_topic("connected")
        deleted.touch()
        assert counted.exception(LIMIT_S) is not None
    assert "connected" not in willing_server.topics()
