"""Runs that last longer than their tokens: of a store in Kafka, a sink in Kafka, the records, and commands beside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from engines.lab import QUICK
from fixtures.guarded import Guarded, provider_options
from offsetkeeper import Batch, Pipeline
from offsetkeeper.cli.main import app
from offsetkeeper.errors import NotAuthorized
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import open_client
from offsetkeeper.sinks import Topic
from offsetkeeper.testing.server import wait_until
from sinks.topics import committed

pytestmark = pytest.mark.xdist_group("test_readers_security")  # the same broker
PROVIDER = Path(__file__).parents[1] / "fixtures" / "token_provider.py"
LIFE_S = 12.0  # a new one comes when four fifths of it have passed, and a slow machine may then stand still for 2 s


@pytest.fixture(scope="module")
def idle(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Any, Path]]]:
    """A client of each kind that has asked once, with the file of its calls for tokens."""
    folder = tmp_path_factory.mktemp("idle")
    clients: dict[str, tuple[Any, Path]] = {}
    kinds: Any = ("AdminClient", "Consumer", "Producer")
    for kind in kinds:
        options = provider_options(folder / kind, LIFE_S, provider="fixtures.token_provider:token")
        settings = {"group.id": "idle"} if kind == "Consumer" else {}
        clients[kind] = (open_client(kind, guarded.tokens, options, settings), folder / kind)
        assert clients[kind][0].list_topics(timeout=20).brokers
    yield clients
    clients.clear()


@dataclass
class Desk:
    """One test's pipelines: records, store, sink and commands, all with short tokens.

    Attributes:
        guarded: the broker.
        folder: of this test.
    """

    guarded: Guarded
    folder: Path

    def options(self, job: str) -> dict[str, str]:
        """Return Kafka settings; who asks for tokens with them is in a file of this name."""
        return provider_options(self.folder / job, LIFE_S)

    def renewed(self, job: str) -> int:
        """Return how many tokens the one client that a pipeline keeps in this process has had after its first."""
        return self.folder.joinpath(job).read_text().splitlines().count(str(os.getpid())) - 1

    @property
    def where(self) -> tuple[str, str]:
        """The URL of the store in Kafka, and the brokers."""
        return f"kafka://{self.guarded.tokens}?{urlencode(self.options('rest'))}", self.guarded.tokens

    def pipeline(self, topic: str) -> Pipeline:
        """Return a pipeline that reads one record in a batch."""
        store, brokers = self.where
        settings: dict[str, Any] = {**QUICK, "group": f"{topic}-group", "store": store, "brokers": brokers}
        return Pipeline(**settings, topics=[topic], kafka=self.options(topic), max_records=1)

    def topic(self, name: str, *values: str) -> str:
        """Make a topic with these values, and return its name."""
        self.guarded.server.create_topic(name)
        producer = Producer({"bootstrap.servers": self.guarded.server.bootstrap})
        for value in values:
            producer.produce(name, value)
        assert producer.flush(20) == 0
        return name


@pytest.fixture
def desk(guarded: Guarded, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The test's desk; executors can import the provider, and the URL of the store may name it."""
    monkeypatch.setenv("OFFSETKEEPER_TOKEN_PROVIDERS", "token_provider:token")
    spark.sparkContext.addPyFile(str(PROVIDER))
    return Desk(guarded, tmp_path)


@pytest.mark.usefixtures("idle")  # these grow older meanwhile
def test_a_run_outlasts_its_tokens(desk: Desk, spark: SparkSession) -> None:
    orders, out = desk.topic("token-orders", "a", "b"), desk.topic("token-out")

    def process(frame: DataFrame, batch: Batch) -> DataFrame:
        if batch.sequence == 1:
            wait_until(lambda: desk.renewed(orders) > 0, "the run had one more token", 60)
        return frame.select("value")

    sink = Topic(desk.guarded.tokens, out, kafka=desk.options("rest"))
    desk.pipeline(orders).run(spark, process, sink=sink, guarantee="exactly_once", until="caught_up")
    assert [found.value for found in committed(desk.guarded.server.bootstrap, out)] == [b"a", b"b"]

    store, brokers = desk.where
    settings = [word for name, value in desk.options("rest").items() for word in ("--kafka", f"{name}={value}")]
    for command, *more in (["lag"], ["doctor"], ["reset", "--all-topics", "--to-earliest"]):
        arguments = [command, f"{orders}-group", *more, "--store", store, "--brokers", brokers, *settings]
        done = CliRunner().invoke(app, arguments)
        assert orders in done.stdout, (command, done.output)
        assert "refused" not in done.stdout.replace("start is refused", "")


@pytest.mark.usefixtures("idle")
def test_a_query_outlasts_its_tokens(desk: Desk, spark: SparkSession) -> None:
    orders = desk.topic("token-receipts", "a", "b", "c")
    seen: list[bytes] = []

    def keep(frame: DataFrame, batch: Batch) -> None:
        seen.extend(bytes(row.value) for row in frame.select("value").collect())
        if batch.sequence == 1:  # Spark's planner has had one more by then, and plans once more
            wait_until(lambda: desk.renewed(orders) > 1, "the query had two more tokens", 60)

    checkpoint = str(desk.folder / "checkpoint")
    desk.pipeline(orders).start(spark, keep, checkpoint=checkpoint, trigger={"availableNow": True}).awaitTermination()
    assert seen == [b"a", b"b", b"c"]


def test_a_provider_that_fails_until_the_token_ends_is_named(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = provider_options(tmp_path / "calls", LIFE_S, provider="fixtures.token_provider:token")
    with KafkaCluster(guarded.tokens, options, timeout_s=20) as cluster:
        (tmp_path / "calls.broken").touch()
        told = r"the token provider fixtures\.token_provider:token raised RuntimeError in token"
        with pytest.raises(NotAuthorized, match=told):  # until then there are answers
            wait_until(lambda: bool(cluster.describe(["no-such-topic"])), "the token ended", 40)
        assert "correct-horse-battery" not in caplog.text


def test_clients_that_nobody_uses_outlast_their_tokens(idle: dict[str, tuple[Any, Path]]) -> None:
    for kind, (client, calls) in idle.items():

        def renewed_twice(calls: Path = calls) -> bool:
            return calls.read_text().count("\n") > len(["first", "second"])

        wait_until(renewed_twice, f"{kind} had a third token", 60)
        assert client.list_topics(timeout=20).brokers, kind
