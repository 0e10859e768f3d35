"""What has not changed is neither asked nor made again, and what has changed is seen."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from monitor.scene import HOSTILE, LIMIT_S, Scene, Served
from offsetkeeper import TopicPartition
from offsetkeeper.core import environment
from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.cluster import Isolation
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.operate.status import Status
from offsetkeeper.testing.server import wait_until


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Names of the questions to a cluster, and the offsets whose records were read."""
    found: list[Any] = []

    def noted(name: str) -> Callable[..., Any]:
        original = getattr(KafkaCluster, name)

        def ask(self: KafkaCluster, *arguments: Any, **more: Any) -> Any:
            if name != "record_timestamps":
                found.append(name)
            elif arguments[0]:
                found.append({tp.partition: offset for tp, offset in arguments[0].items()})
            return original(self, *arguments, **more)

        return ask

    for name in ("describe", "bounds", "retentions", "record_timestamps"):
        monkeypatch.setattr(KafkaCluster, name, noted(name))
    return found


def test_what_has_not_changed_is_not_asked_again(scene: Scene, asked: list[Any]) -> None:
    topic = scene.topic(3, 10)
    scene.group("shop", topic, [4, 10, 6], held=True)
    asked.clear()
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
        assert asked == ["describe", "retentions", {0: 4, 2: 6}]
        first = collector.view.groups["shop"]
        asked.clear()
        collector.poll()
        assert asked == []
        later = collector.view.groups["shop"]
        passed_s = (later.at_ms - first.at_ms) / 1000
        for one, other in zip(first.lags or (), later.lags or (), strict=True):
            assert (one.records, one.retention_used is None) == (other.records, other.retention_used is None)
            assert other.seconds == pytest.approx((one.seconds or 0) + passed_s * bool(one.records), abs=1)
        scene.commit("shop", topic, [4, 10, 9])
        collector.poll()
        assert asked == [{2: 9}]
        lags = collector.view.groups["shop"].lags or ()
        assert [lag.records for lag in lags] == [6, 0, 1]
        assert (lags[0].seconds or 0) - (lags[2].seconds or 0) == pytest.approx(5, abs=0.1)  # a record is a second
        scene.produce(topic, 2, 1)
        asked.clear()
        collector.poll()
        assert asked == [{1: 10}]
        assert collector.view.groups["shop"].waiting == 9


def test_records_from_the_future_are_looked_past_again_as_soon_as_others_follow(scene: Scene, asked: list[Any]) -> None:
    topic = scene.topic(1, 1, {"message.timestamp.after.max.ms": str(2**62)})
    scene.group("shop", topic, [1], held=True)
    producer = Producer({"bootstrap.servers": scene.server.bootstrap})
    producer.produce(topic, b"x", timestamp=environment.now_ms() + 86_400_000)
    assert producer.flush(LIMIT_S) == 0
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
        asked.clear()
        collector.poll()
        [lag] = collector.view.groups["shop"].lags or ()
        assert (asked, lag.seconds, lag.ahead) == ([], None, True)
        scene.produce(topic, 1, 1)
        collector.poll()
        [lag] = collector.view.groups["shop"].lags or ()
        assert (asked, lag.ahead) == ([{0: 1}], False)
        assert 0 <= (lag.seconds or 0) < LIMIT_S


def test_a_topic_that_is_made_again_is_seen_at_once_where_its_end_goes_back(scene: Scene) -> None:
    topic = scene.topic(1, 10)
    scene.group("shop", topic, [4])
    with KafkaCluster(scene.server.bootstrap) as cluster:
        collector = Collector(scene.open(), cluster)
        collector.poll()
        collector.poll()
        scene.server.delete_topic(topic)
        scene.server.create_topic(topic, 1)
        scene.produce(topic, 1, 5)
        collector.poll()
        sample = collector.view.groups["shop"]
    assert [lag.standing for lag in sample.lags or ()] == [Standing.RECREATED]
    assert sample.status is Status.REFUSED


def test_quick_answers_are_those_of_the_admin_client(scene: Scene) -> None:
    """Also behind a transaction that is open; but for the leader epochs, which nobody tells so quickly."""
    topic = scene.topic(3, 4)
    producer = Producer({"bootstrap.servers": scene.server.bootstrap, "transactional.id": secrets.token_hex(4)})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=1)
    assert producer.flush(LIMIT_S) == 0
    try:
        levels: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
        for isolation in levels:
            with KafkaCluster(scene.server.bootstrap, isolation=isolation) as cluster:
                described = cluster.describe([topic])[topic]
                quick = cluster.bounds_quickly(described)
                slow = cluster.with_log_ends(cluster.bounds_of([described]))
                assert quick == {tp: here._replace(leader_epoch=None) for tp, here in slow.items()}
                ends = [here.end for _, here in sorted((quick or {}).items())]
                assert ends == [4, 4 if isolation == "read_committed" else 5, 4]
                assert [here.held_back for _, here in sorted((quick or {}).items())] == [0, 5 - ends[1], 0]
                missing = described.__class__("no-such-topic", None, (0,))
                assert cluster.bounds_quickly(missing) is None
    finally:
        producer.abort_transaction(LIMIT_S)


def test_metrics_may_be_of_groups_and_topics_alone(shop: Scene) -> None:
    with Served(shop.store, shop.server.bootstrap, "--metrics", "groups") as server:
        text = server.text("/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert not [sample for sample in samples if "partition" in sample.labels]
    sums = {s.labels["group"]: s.value for s in samples if s.name == "kafka_consumergroup_group_topic_sum_lag"}
    assert (sums["shop"], sums[HOSTILE]) == (6, 0)


def test_whatever_a_group_is_named_its_metrics_can_be_parsed(shop: Scene, served: Served) -> None:
    wait_until(lambda: "read_offsets_per_second{" in served.text("/metrics"), "speed was measured", LIMIT_S)
    found: dict[str, dict[TopicPartition, float]] = {}
    for family in text_string_to_metric_families(served.text("/metrics")):
        for sample in family.samples:
            if sample.name == "kafka_consumergroup_group_lag":
                tp = TopicPartition(sample.labels["topic"], int(sample.labels["partition"]))
                found.setdefault(sample.labels["group"], {})[tp] = sample.value
    [topic] = shop.ids
    assert found["shop"] == {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 0}
    assert found[HOSTILE] == dict.fromkeys(found["shop"], 0)
