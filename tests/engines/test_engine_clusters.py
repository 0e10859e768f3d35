"""The name of the brokers leads to another Kafka cluster, which has a topic of that name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.databases import connect, do
from engines.lab import Lab
from offsetkeeper import Batch, Pipeline, Policies
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import RangeGone, StartRefused
from offsetkeeper.kafka import KafkaCluster, cluster
from offsetkeeper.sinks import Idempotent, Table
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import TcpProxy

NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def other_server() -> Iterator[KafkaServer]:
    """A second cluster."""
    with KafkaServer() as server:
        yield server


@dataclass
class Led:
    """Two clusters with a topic of one name, and brokers' addresses that lead to the first, and then to the second.

    Attributes:
        lab: of the first cluster.
        other: the second one.
        brokers: where they lead.
        led: the topic, once they lead elsewhere.
    """

    lab: Lab
    other: KafkaServer
    brokers: TcpProxy
    led: list[Any] = field(default_factory=list)

    def fill(self, name: str, partitions: int = 2) -> None:
        """Make the topic in the second cluster, with other records; the first gets records in partition 0."""
        self.other.create_topic(name, partitions)
        replace(self.lab, kafka=self.other).produce_all(name, [(p, f"x{p}") for p in range(partitions) for _ in "1234"])
        self.lab.produce(name, "a", "b")

    def pipeline(self, *names: str, **settings: Any) -> Pipeline:
        """Return a pipeline that reads where the brokers lead."""
        return self.lab.pipeline(*names, **{"brokers": self.brokers.address, "attempts": 1, **settings})

    def then(self, name: str, pipeline: Pipeline) -> Callable[[Any], None]:
        """Return what is called after each batch: it leads elsewhere after the first, and stops after the next."""

        def then(_: Any) -> None:
            if self.led:
                pipeline.stop()
            self.lead(name)

        return then

    def lead(self, name: str) -> None:
        """Let the name lead to the second cluster, once; the first lives on, and gets a record in partition 1."""
        if not self.led:
            self.led.append(name)
            self.brokers.lead_to("127.0.0.1", self.other.port)
            self.lab.produce(name, "c", partition=1)


@pytest.fixture
def led(lab: Lab, other_server: KafkaServer) -> Iterator[Led]:
    with TcpProxy("127.0.0.1", lab.kafka.port) as brokers:
        yield Led(lab, other_server, brokers)


@pytest.fixture(params=[True, False], ids=["with ids", "without ids"])
def ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let brokers tell the ids of topics, or none, as old ones do."""
    if not request.param:
        monkeypatch.setattr(cluster, "topic_id", lambda _: None)
    return bool(request.param)


READERS: dict[str, dict[str, Any]] = {
    "C": {"kafka": {"offsetkeeper.native": "required"}},
    "Python": {"kafka": {"offsetkeeper.native": "never"}},
    "connector": {"reader": "connector"},
}
ELSEWHERE = "the addresses of the brokers lead to the Kafka cluster .* now"


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("how", READERS.values(), ids=READERS)
def test_a_run_whose_brokers_lead_elsewhere_gives_no_record_of_there(led: Led, topic: NewTopic, how: Any) -> None:
    """Clients that are connected stay where they are, and are asked; a consumer of another partition goes there."""
    name = topic(2)
    led.fill(name)
    pipeline = led.pipeline(name, **how)
    with pytest.raises(RangeGone, match=ELSEWHERE):
        pipeline.run(led.lab.spark, led.lab.keep, on_batch=led.then(name, pipeline))
    assert led.lab.values == ["a", "b"]
    assert led.lab.offsets() == {0: 2, 1: 0}


@pytest.mark.usefixtures("ids")
def test_what_consumers_of_the_connector_read_elsewhere_never_lands(led: Led, topic: NewTopic, tmp_path: Path) -> None:
    """They cannot be asked where they are. So, before rows land, one is asked that connects after them."""
    name, shop = topic(2), f"sqlite:///{tmp_path}/offsets.db"
    led.fill(name)
    pipeline = led.pipeline(name, reader="connector")

    def rows(frame: DataFrame, _: Batch) -> DataFrame:
        if led.lab.values:
            led.brokers.lead_to("127.0.0.1", led.other.port)
        led.lab.values.append("a batch")
        return frame.selectExpr("cast(value as string) as value")

    def then(_: Any) -> None:
        led.lab.produce(name, "c", partition=1)
        if len(led.lab.values) > 1:
            pipeline.stop()

    with closing(connect(shop)) as connection:
        do(shop, "create table kept (value text)")
        with pytest.raises(RangeGone, match=ELSEWHERE):
            pipeline.run(led.lab.spark, rows, sink=Table(shop, "kept"), guarantee="exactly_once", on_batch=then)
        assert sorted(connection.execute("select value from kept")) == [("a",), ("b",)]
    assert led.lab.offsets() == {0: 2, 1: 0}


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("reader", ["packed", "connector"])
def test_a_query_whose_brokers_lead_elsewhere_gives_no_record_of_there(
    led: Led, topic: NewTopic, tmp_path: Path, reader: str
) -> None:
    name = topic(2)
    led.fill(name)
    pipeline = led.pipeline(name, reader=reader)
    how: dict[str, Any] = {"checkpoint": f"{tmp_path}/checkpoint", "trigger": {"processingTime": "100 milliseconds"}}
    query = pipeline.start(led.lab.spark, led.lab.keep, **how)
    query.processAllAvailable()
    led.lead(name)
    with pytest.raises(RangeGone, match=ELSEWHERE):
        query.awaitTermination(60)
    query.stop()
    assert led.lab.offsets() == {0: 2, 1: 0}
    if reader == "packed":  # of the connector a function may have seen a batch: what it wrote is not committed
        assert led.lab.values == ["a", "b"]


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("pattern", [False, True], ids=["by name", "by a pattern"])
def test_a_start_elsewhere_is_refused_with_both_clusters_until_it_is_meant(
    led: Led,
    topic: NewTopic,
    pattern: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Of two topics. A mirror may have each record at the same offset; other clusters are begun anew."""
    names = [topic(2), topic(2)]
    for name in names:
        led.fill(name)
    settings: dict[str, Any] = {"topics": re.compile("|".join(names)) if pattern else names}
    assert led.lab.read(**settings) == ["a", "b"] * 2
    before = led.lab.snapshot()
    with KafkaCluster(led.lab.kafka.bootstrap) as here, KafkaCluster(led.other.bootstrap) as there:
        ids = here.cluster_id(), there.cluster_id()
    assert {at.cluster_id for at in before.positions.values()} == {ids[0]}
    elsewhere = {"brokers": led.other.bootstrap, **settings}
    told = rf"{names[0]} 0: another cluster, stored 2 in cluster {ids[0]}, Kafka holds 0..4 in cluster {ids[1]}"
    with pytest.raises(StartRefused, match=told) as refused:
        led.lab.read(**elsewhere)
    assert "correct the brokers' address, or give policies=Policies(elsewhere=…)" in str(refused.value)
    assert led.lab.snapshot() == before
    mirror = led.lab.read(**elsewhere, policies=Policies(elsewhere="keep"))
    assert mirror == [*["x0"] * 2, *["x1"] * 4] * 2
    assert {at.cluster_id for at in led.lab.snapshot().positions.values()} == {ids[1]}
    assert led.lab.read(**elsewhere) == []
    back = {**settings, "policies": Policies(elsewhere="beginning")}
    assert led.lab.read(**back) == ["a", "b"] * 2


def test_an_older_ledger_takes_the_cluster_that_it_is_first_seen_with(led: Led, topic: NewTopic) -> None:
    name = topic()
    led.fill(name, 1)
    led.lab.read(name)
    with led.lab.ledger() as ledger:
        old = {tp: Position(at.offset, at.topic_id) for tp, at in ledger.snapshot.positions.items()}
        ledger.rewind(old, "as an older version has written it")
    assert led.lab.read(name) == []
    with pytest.raises(StartRefused, match=f"{name} 0: another cluster"):
        led.lab.read(name, brokers=led.other.bootstrap)


@pytest.mark.usefixtures("ids")
def test_a_run_whose_client_connects_elsewhere_plans_no_further_batch(
    led: Led, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first cluster is gone, or has closed its connections. No client is told that it is in another place."""
    name = topic()
    led.fill(name, 1)
    pipeline = led.pipeline(name)

    def lead(_: Any) -> None:
        monkeypatch.setattr(pipeline._cluster, "_open", pipeline._cluster.anew()._open)

    def process(frame: DataFrame, batch: Batch) -> None:
        led.lab.keep(frame, batch)
        led.brokers.lead_to("127.0.0.1", led.other.port)

    with pytest.raises((RangeGone, StartRefused), match="another cluster|" + ELSEWHERE):
        pipeline.run(led.lab.spark, process, on_batch=lead)
    assert led.lab.values == ["a", "b"]


@pytest.mark.usefixtures("ids")
def test_a_batch_that_was_begun_elsewhere_is_not_finished_here(led: Led, topic: NewTopic) -> None:
    """At least once it is dropped where going on is meant; exactly once only its user can drop it."""
    name = topic()
    led.fill(name, 1)

    def fail(_: DataFrame, __: Batch) -> None:
        raise RuntimeError("the output is away")

    with pytest.raises(RuntimeError, match="away"):
        led.pipeline(name).run(led.lab.spark, sink=Idempotent(fail), guarantee="exactly_once")
    before = led.lab.snapshot()
    there: dict[str, Any] = {"brokers": led.other.bootstrap, "policies": Policies(elsewhere="beginning")}
    told = f"'{name} 0 0 2' cannot be read: it is of the Kafka cluster .*, and the brokers are of"
    with pytest.raises(StartRefused, match=told):
        led.lab.pipeline(name, **there).run(led.lab.spark, sink=Idempotent(led.lab.keep), guarantee="exactly_once")
    assert led.lab.snapshot() == before
    assert led.lab.read(name, **there) == ["x0"] * 4
