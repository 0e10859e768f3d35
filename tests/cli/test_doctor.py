"""The doctor on real servers: facts that a broker, a Redis and a PostgreSQL show."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from fixtures.groups import commit
from fixtures.guarded import Guarded, options
from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.cli.main import app
from offsetkeeper.core.environment import using
from offsetkeeper.core.offsets import NO_POSITIONS
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.operate.doctor.collect import cluster_facts, examine
from offsetkeeper.testing.clock import SetClock
from offsetkeeper.testing.kafka import KafkaServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.redis import RedisServer
from offsetkeeper.testing.server import wait_until

LIMIT_S = 30
MakeTopic = Callable[..., str]


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the findings by their rule."""
    result = CliRunner().invoke(app, ["doctor", "shop", *arguments, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, {each["rule"]: each for each in json.loads(result.stdout)["findings"]}


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/offsets.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFSETKEEPER_STORE", url)
    return url


def stand(url: str, topic: str, topic_id: str | None = None, *, release: bool = False) -> Ledger:
    ledger = Ledger(open_store(url), "shop")
    ledger.acquire()
    ledger.place({TopicPartition(topic, 0): Position(0, topic_id)})
    if release:
        ledger.release()
    return ledger


def test_a_sound_pipeline_has_nothing_wrong(kafka_server: KafkaServer, topic: MakeTopic, url: str) -> None:
    stand(url, topic())
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert (code, list(found)) == (0, ["one-replica"])
    assert found["one-replica"]["severity"] == "note"
    told = CliRunner().invoke(app, ["doctor", "shop", "--brokers", kafka_server.bootstrap]).stdout
    assert "one-replica: raise its replication factor" in told
    assert "nothing found" in CliRunner().invoke(app, ["doctor", "shop"]).stdout


@pytest.mark.parametrize("deleted", [0, 4])
def test_the_doctor_and_lag_agree(kafka_server: KafkaServer, topic: MakeTopic, url: str, deleted: int) -> None:
    """Ten unread records and no run: stopped. Then four of them are deleted: data is lost, and both end with 1."""
    name = topic()
    stand(url, name, release=True)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for _ in range(10):
        producer.produce(name, b"x", partition=0)
    assert producer.flush(LIMIT_S) == 0
    if deleted:
        admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
        [cut] = admin.delete_records([KafkaPartition(name, 0, deleted)]).values()
        cut.result(LIMIT_S)
    lag = CliRunner().invoke(app, ["lag", "shop", "--brokers", kafka_server.bootstrap, "--json"])
    code, found = doctor("--brokers", kafka_server.bootstrap)
    status = "losing data" if deleted else "stopped"
    assert json.loads(lag.stdout)["status"] == status
    assert code == lag.exit_code == bool(deleted)
    said = found[status.replace(" ", "-")]
    assert (said["severity"], said["where"]) == ("error" if deleted else "warning", "group shop")
    assert ("4 are lost" in said["what"]) is bool(deleted)


def test_a_topic_made_again_or_gone_is_an_error(kafka_server: KafkaServer, topic: MakeTopic, url: str) -> None:
    name = topic()
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        before = cluster.describe([name])[name].topic_id
    stand(url, name, before)
    assert "topic-recreated" not in doctor("--brokers", kafka_server.bootstrap)[1]
    kafka_server.delete_topic(name)
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert (code, list(found)) == (1, ["topic-gone"])
    kafka_server.create_topic(name)
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert code == 1
    assert found["topic-recreated"]["where"] == f"topic {name}"


def test_a_position_that_no_record_will_reach_is_an_error(
    kafka_server: KafkaServer, topic: MakeTopic, url: str
) -> None:
    ledger = stand(url, topic())
    ledger.commit(ledger.batch([OffsetRange(next(iter(ledger.snapshot.positions)).topic, 0, 0, 7)]))
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert code == 1
    assert found["position-beyond"]["what"].startswith("1 positions")


def test_a_topic_that_keeps_records_for_less_than_a_pause_is_an_error(
    kafka_server: KafkaServer, topic: MakeTopic, url: str
) -> None:
    stand(url, topic(config={"retention.ms": "1"}), release=True)
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert code == 1
    assert "retention-short" in found


def test_a_topic_whose_bytes_reach_back_less_than_a_pause_is_an_error(
    kafka_server: KafkaServer, topic: MakeTopic, url: str
) -> None:
    name = topic(config={"retention.bytes": "1", "segment.ms": "1"})
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    with KafkaCluster(kafka_server.bootstrap) as cluster:

        def deleted() -> bool:
            producer.produce(name, b"x")
            assert producer.flush(LIMIT_S) == 0
            return cluster.bounds([TopicPartition(name, 0)])[TopicPartition(name, 0)].beginning > 0

        wait_until(deleted, "its first records were deleted", LIMIT_S)
    stand(url, name, release=True)
    with using(SetClock(lambda: time.time_ns() // 1_000_000 + 600_000)):  # a pause as long as the oldest record is old
        found = doctor("--brokers", kafka_server.bootstrap)[1]
    assert "keeps 1 bytes of a partition" in found["retention-bytes"]["what"]


def test_settings_of_a_topic_that_lose_records_are_found(kafka_server: KafkaServer, topic: MakeTopic, url: str) -> None:
    stand(url, topic(config={"unclean.leader.election.enable": "true", "min.insync.replicas": "2"}))
    code, found = doctor("--brokers", kafka_server.bootstrap)
    assert code == 0
    assert set(found) == {"unclean-election", "one-replica"}  # one replica alone is asked for no second one


def test_records_from_the_future_tell_that_clocks_differ(kafka_server: KafkaServer, topic: MakeTopic, url: str) -> None:
    name = topic(2)
    stand(url, name)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce(name, b"x", partition=1, timestamp=time.time_ns() // 1_000_000 + 1_800_000)
    assert producer.flush(LIMIT_S) == 0
    assert "s from the future" in doctor("--brokers", kafka_server.bootstrap)[1]["clock-skew"]["what"]


def test_brokers_that_do_not_answer_are_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand(url, "orders")
    monkeypatch.setattr("offsetkeeper.cli.options._RETRY_TIMEOUT_S", 0.5)
    code, found = doctor("--brokers", "127.0.0.1:1")
    assert (code, list(found)) == (1, ["brokers-away"])


def test_a_broker_that_sends_its_clients_to_where_nobody_is_is_an_error(
    kafka_server: KafkaServer, topic: MakeTopic, url: str
) -> None:
    """The listener's advertised address is that of a proxy, which is not started."""
    stand(url, topic())
    code, found = doctor("--brokers", f"127.0.0.1:{kafka_server._proxied_port}")
    assert (code, list(found)) == (1, ["listener-unreachable"])
    assert found["listener-unreachable"]["where"] == f"broker 127.0.0.1:{kafka_server._proxy_port}"


class Overtaken(TcpProxy):
    """Never passes on an answer with a topic's name: the client hears of the brokers, and goes over to them first."""

    topic = ""

    async def _pass_replies(self, server: Any, client: Any, answers: Any) -> None:  # noqa: ARG002 - as in TcpProxy
        with suppress(asyncio.IncompleteReadError):
            while size := await server.readexactly(4):
                answer = await server.readexactly(int.from_bytes(size))
                if self.topic.encode() not in answer:
                    client.write(size + answer)
                    await client.drain()


def test_where_the_client_goes_over_to_an_address_before_it_has_its_answer_that_address_is_told(
    kafka_server: KafkaServer, topic: MakeTopic, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine librdkafka leaves the given address each time before its answer is there."""
    monkeypatch.setattr("offsetkeeper.cli.options._RETRY_TIMEOUT_S", 1.0)
    name = topic()
    stand(url, name)
    with Overtaken("127.0.0.1", kafka_server._proxied_port) as way:
        way.topic = name
        code, found = doctor("--brokers", way.address)
    assert (code, list(found)) == (1, ["listener-unreachable"])
    assert found["listener-unreachable"]["where"] == f"broker 127.0.0.1:{kafka_server._proxy_port}"


def test_what_the_credentials_may_not_do_is_found(guarded: Guarded, url: str) -> None:
    name = f"hidden-{time.time_ns()}"
    guarded.server.create_topic(name)
    producer = Producer({"bootstrap.servers": guarded.server.bootstrap})
    producer.produce(name, b"x")
    assert producer.flush(LIMIT_S) == 0
    stand(url, name)
    arguments = ["--brokers", guarded.brokers]
    arguments += [word for pair in options().items() for word in ("--kafka", "=".join(pair))]
    code, found = doctor(*arguments)
    assert code == 1
    assert found["not-permitted"]["severity"] == "note"  # that of the settings, the last of them
    for operation, expected in (("DESCRIBE", 1), ("READ", 0)):
        guarded.allow(name, operation)
        with KafkaCluster(guarded.brokers, options()) as cluster:
            refused = cluster_facts(cluster, "shop", NO_POSITIONS, [name]).refused
        assert sum(each.needed for each in refused) == expected
        assert any("DESCRIBE_CONFIGS" in each.what for each in refused)


def test_whether_the_group_has_offsets_in_kafka_and_for_how_long_is_known(
    kafka_server: KafkaServer, topic: MakeTopic
) -> None:
    name, group = topic(), f"group-{time.time_ns()}"
    with KafkaCluster(kafka_server.bootstrap) as cluster:
        before = cluster_facts(cluster, group, NO_POSITIONS, [name])
        assert (before.published, before.offsets_retention_s) == (False, 7 * 86_400)
        commit(kafka_server.bootstrap, group, {(name, 0): 0})
        assert cluster_facts(cluster, group, NO_POSITIONS, [name]).published


def test_a_redis_that_forgets_is_found() -> None:
    with RedisServer(settings={"appendonly": "no", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        url = f"{server.url()}?ttl=1000"
        ledger = stand(url, "orders")
        assert "ttl-short" not in doctor("--store", url)[1]
        ledger.release()
        ledger.acquire()
        code, found = doctor("--store", server.url())
    assert (code, set(found)) == (1, {"redis-not-durable", "redis-evicts"})


def test_a_redis_that_keeps_all_has_nothing_wrong(redis_url: str) -> None:
    stand(redis_url, "orders")
    assert doctor("--store", redis_url) == (0, {})
    facts = examine(Ledger(open_store(redis_url), "shop"), None)
    assert facts.store.settings["ttl"] == "0"
    assert facts.store.settings["appendfsync"] == "always"
    assert facts.store.ahead_s == 0


def test_a_store_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetkeeper.cli.options._RETRY_TIMEOUT_S", 0.3)
    code, found = doctor("--store", "redis://127.0.0.1:1/0")
    assert (code, list(found)) == (1, ["store-away"])


def test_a_clock_that_differs_is_measured_as_what_it_differs_at_least(database: str) -> None:
    store = open_store(database)
    ledger = Ledger(store, "shop")
    assert examine(ledger, None).store.ahead_s == 0
    with using(SetClock(lambda: time.time_ns() // 1_000_000 - 3_600_000)):
        ahead_s = examine(ledger, None).store.ahead_s
    assert ahead_s is not None
    assert 3500 < ahead_s <= 3600
    with using(SetClock(lambda: time.time_ns() // 1_000_000 + 3_600_000)):
        behind_s = examine(ledger, None).store.ahead_s
    assert behind_s is not None
    assert -3601 < behind_s < -3500
    store.close()


def test_a_batch_under_way_has_its_age(url: str) -> None:
    ledger = stand(url, "orders")
    ledger.begin(ledger.batch([OffsetRange("orders", 0, 0, 1)]))
    pending_s = examine(Ledger(open_store(url), "shop"), None).runs.pending_s
    assert pending_s is not None
    assert 0 <= pending_s < LIMIT_S
