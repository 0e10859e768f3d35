"""The rights on the page are enough, and each of them is needed; who lacks one is soon told."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fixtures.guarded import PASSWORD, Guarded, Right
from fixtures.rights import Row, rows
from offsetkeeper import Batch, Ledger, OffsetRange, Pipeline, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.topics import Topics
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.consumers import Publisher
from offsetkeeper.kafka.start_plan import Subscription, ask_plan
from offsetkeeper.kafka.transactions import Saying, Turn
from offsetkeeper.monitor.app import _lag_json
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.operate.holds import held_in_topic
from offsetkeeper.readers.consume import read
from offsetkeeper.readers.source import Source
from offsetkeeper.sinks import Topic
from offsetkeeper.sinks.sink import MarkKey
from offsetkeeper.sinks.topic import task
from sinks.topics import lander, mark, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
SOON_S = 30.0  # each refused question to a group takes three; all of them once took a minute and more
NUMBERS = itertools.count()
ROWS = rows("Kafka")
TASKS = {row.task: [each for each in ROWS if each.task == row.task] for row in ROWS}


@dataclass
class Scene:
    """One try of a task: names of its own, and a user with rights."""

    guarded: Guarded
    number: int
    options: dict[str, str]
    folder: Path

    def name(self, word: str) -> str:
        """Return a name of the page as it is here; a prefix stays what it is, and so does the cluster."""
        return word if word.endswith("*") or word == "kafka-cluster" else f"{word}-{self.number}"

    @property
    def cluster(self) -> KafkaCluster:
        """Kafka, as the user."""
        return KafkaCluster(self.guarded.brokers, self.options)

    @property
    def orders(self) -> TopicPartition:
        """The partition with three orders."""
        return TopicPartition(self.name("orders"), 0)

    @property
    def kafka_store(self) -> str:
        """URL of the store in Kafka, as the user."""
        query = urlencode({**self.options, "topic": self.name("offsetkeeper")})
        return f"kafka://{self.guarded.brokers}?{query}"

    def command(self, *arguments: str, codes: Collection[int] = (0,)) -> str:
        """Return what a command says, with names as on the page; the group stands at the first order."""
        url, group = self.placed()
        words = [word for pair in self.options.items() for word in ("--kafka", "=".join(pair))]
        every = [*arguments[:1], group, *arguments[1:], "--store", url, "--brokers", self.guarded.brokers, *words]
        result = CliRunner().invoke(app, every)
        if isinstance(result.exception, OffsetkeeperError):
            raise result.exception
        assert result.exit_code in codes, result.output
        return result.output.replace(f"-{self.number}", "")

    def placed(self) -> tuple[str, str]:
        """Return the URL of a store that everybody may use, and the group that stands at the first order in it."""
        url, group = f"sqlite:///{self.folder}/{self.number}.db", self.name("shop")
        with closing(open_store(url)) as store:
            stand(Ledger(store, group), {self.orders: Position(1)})
        return url, group


def produce(scene: Scene, count: int) -> None:
    producer = Producer({"bootstrap.servers": scene.guarded.server.bootstrap})
    for _ in range(count):
        producer.produce(scene.orders.topic, b"x")
    assert producer.flush(30) == 0


def only_values(orders: DataFrame, _: Batch) -> DataFrame:
    return orders.select("value")


def stand(ledger: Ledger, positions: dict[TopicPartition, Position]) -> None:
    ledger.acquire("start")
    ledger.place(positions)
    ledger.release("end")


def reads(scene: Scene) -> None:
    subscription = Subscription(Topics((scene.orders.topic,)))
    with scene.cluster as cluster:
        [row] = ask_plan(cluster, subscription, Snapshot("shop")).rows
        ids = {scene.orders.topic: cluster.describe([scene.orders.topic])[scene.orders.topic].topic_id or ""}
    source = Source(scene.guarded.brokers, scene.options, "shop", "read_committed")
    found = [batch.num_rows for batch in read(source, [OffsetRange(*scene.orders, 0, 3)], ids)]
    assert row.start == 0
    assert sum(found) == 3


def publishes(scene: Scene) -> None:
    group = scene.name("shop")
    assert Publisher(scene.cluster, group).publish(lambda: {scene.orders: Position(2)})
    assert scene.guarded.server.group_offsets(group, [scene.orders]) == {scene.orders: 2}


def lags(scene: Scene) -> str:
    found = scene.command("lag", "--json")
    [each] = json.loads(found)["partitions"]
    assert each["records"] == 2
    return found


def lags_exactly(scene: Scene) -> str:
    found = lags(scene)
    assert json.loads(found)["estimated"] is False
    return found


def serves(scene: Scene) -> str:
    url, group = scene.placed()
    with closing(open_store(url)) as store, scene.cluster as cluster:
        collector = Collector(store, cluster)
        collector.poll()
    sample = collector.view.groups[group]
    assert sample.error or sample.waiting == 2
    return json.dumps(_lag_json(sample))


def replays(scene: Scene) -> None:
    first = ("--topic", f"{scene.orders.topic}:0", "--from-offset", "0", "--to-offset", "1")
    lines = scene.command("replay", *first, "--output", "-").splitlines()
    [record] = [json.loads(line) for line in lines if line.startswith("{")]
    assert record["value"] == "x"


def examines(scene: Scene) -> str:
    return scene.command("doctor", "--json", codes=(0, 1))


def resets(scene: Scene) -> None:
    scene.command("reset", "--all-topics", "--to-earliest", "--execute")


def lands(scene: Scene) -> None:
    sink = Topic(scene.guarded.brokers, scene.name("results"), kafka=scene.options, timeout_s=10)
    key = MarkKey(scene.name("shop"), "")
    way = lander(sink)
    seen = way.seen(key)
    assert seen.mark is None
    rows = pa.record_batch({"value": ["tea", "milk"]})
    saying = Saying(None, 1, str(mark(1)))
    task.land(sink._slot(key), saying, scene.name("results"), [rows])
    assert way.seen(key).mark == mark(1)
    assert values(scene.guarded.server.bootstrap, scene.name("results")) == ["milk", "tea"]


def shows(scene: Scene) -> None:
    results, key = scene.name("results"), MarkKey(scene.name("shop"), "")
    turn = Turn(Topic(scene.guarded.server.bootstrap, results)._slot(key), writes=False)
    turn.write([], Saying(turn.take(), 1, str(mark(1))))
    [found] = held_in_topic(results, key, scene.guarded.brokers, scene.options).batches
    assert found.batch == f"{key.group}/token/1"


def keeps(scene: Scene) -> None:
    group = scene.name("shop")
    with closing(open_store(scene.kafka_store)) as store:
        stand(Ledger(store, group), {scene.orders: Position(1)})
    with closing(open_store(scene.kafka_store)) as store:
        ledger = Ledger(store, group)
        assert ledger.load().positions[scene.orders].offset == 1
        ledger.acquire("again")
    assert scene.guarded.server.group_offsets(group, [scene.orders]) == {scene.orders: 1}


def looks(scene: Scene) -> None:
    topic = scene.name("offsetkeeper")
    with closing(open_store(f"kafka://{scene.guarded.server.bootstrap}?topic={topic}")) as store:
        stand(Ledger(store, scene.name("shop")), {scene.orders: Position(1)})
    with closing(open_store(scene.kafka_store)) as store:
        ledger = Ledger(store, scene.name("shop"))
        assert ledger.load().positions[scene.orders].offset == 1
        assert [entry.event for entry in ledger.history(10)] == ["release", "place", "acquire"]


DOES: dict[str, Callable[[Scene], object]] = {
    "read: `run`, `start`, `plan`": reads,
    "`publish=True`, beside reading": publishes,
    "`lag`": lags_exactly,
    "`lag` with estimates": lags,
    "`serve`": serves,
    "`replay`": replays,
    "`reset`, `undo`, `rewind`": resets,
    "`doctor`": examines,
    "sink `Topic`": lands,
    "`holds` of a `Topic`": shows,
    "store `kafka://`": keeps,
    "store `kafka://`, only looked at": looks,
}


@pytest.fixture
def try_with(guarded: Guarded, tmp_path: Path) -> Callable[[list[Row]], Scene]:
    def make(granted: list[Row]) -> Scene:
        number = next(NUMBERS)
        scene = Scene(guarded, number, {}, tmp_path)
        for topic in ("orders", "results"):
            guarded.server.create_topic(scene.name(topic))
        produce(scene, 3)
        rights = [Right(kind, scene.name(name), operation) for kind, name, operation in (row.words for row in granted)]
        scene.options = guarded.user(rights)
        return scene

    return make


def test_the_page_has_each_task_with_kafka() -> None:
    assert TASKS.keys() == DOES.keys()


@pytest.mark.parametrize("name", TASKS)
def test_the_rights_on_the_page_are_enough_for_kafka(
    name: str, try_with: Callable[[list[Row]], Scene], caplog: pytest.LogCaptureFixture
) -> None:
    said = DOES[name](try_with(TASKS[name]))
    assert [row for row in TASKS[name] if row.without in f"{said} {caplog.text}"] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.task} without {' '.join(row.words)}".replace("`", ""))
def test_without_a_right_of_the_page_it_is_told_at_once(
    row: Row, try_with: Callable[[list[Row]], Scene], caplog: pytest.LogCaptureFixture
) -> None:
    scene = try_with([each for each in TASKS[row.task] if each is not row])
    before = time.monotonic()
    try:
        said = str(DOES[row.task](scene))
    except OffsetkeeperError as error:
        said = f"{type(error).__name__}: {error}"
    except AssertionError:
        said = "(not done)"
    took = time.monotonic() - before
    assert row.without in f"{said} {caplog.text}"
    assert PASSWORD not in said + caplog.text
    assert took < SOON_S


def test_a_pipeline_runs_with_the_rights_on_the_page(
    try_with: Callable[[list[Row]], Scene], spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """From a topic into another, with the offsets in Kafka's own group, in Spark."""
    tasks = ("read: `run`, `start`, `plan`", "`publish=True`, beside reading", "sink `Topic`")
    scene = try_with([row for name in tasks for row in TASKS[name]])
    brokers, group, results = scene.guarded.brokers, scene.name("shop"), scene.name("results")
    pipeline = Pipeline(
        group=group,
        store=f"sqlite:///{scene.folder}/offsets.db",
        brokers=brokers,
        topics=[scene.orders.topic],
        kafka=scene.options,
    )
    how: dict[str, Any] = {"sink": Topic(brokers, results, kafka=scene.options), "guarantee": "exactly_once"}
    checkpoint = f"{scene.folder}/checkpoint"
    query = pipeline.start(
        spark, only_values, checkpoint=checkpoint, trigger={"availableNow": True}, publish=True, **how
    )
    query.awaitTermination(120)
    produce(scene, 2)
    pipeline.run(spark, only_values, until="caught_up", **how)
    assert values(scene.guarded.server.bootstrap, results) == ["x"] * 5
    assert scene.guarded.server.group_offsets(group, [scene.orders]) == {scene.orders: 3}  # of the query
    assert "uthorization" not in caplog.text
