"""The broker starts, dies and comes back with its data."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from offsetkeeper.testing.errors import ServerError
from offsetkeeper.testing.kafka import KafkaServer


@pytest.fixture(scope="module")
def own_server() -> Iterator[KafkaServer]:
    """A broker that the tests of this file may kill; the last of them closes it."""
    with KafkaServer() as server:
        yield server


def write(bootstrap: str, topic: str, value: str) -> None:
    """Write one record and wait until the broker has it."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def read_first(bootstrap: str, topic: str) -> bytes | None:
    """Read the first record of partition 0."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        return message.value()
    finally:
        consumer.close()


def test_a_killed_broker_comes_back_on_its_port_with_its_data(own_server: KafkaServer) -> None:
    own_server.create_topic("orders")
    write(own_server.bootstrap, "orders", "before")
    bootstrap, pid = own_server.bootstrap, own_server.process.pid

    own_server.kill()
    own_server.restart()

    assert own_server.bootstrap == bootstrap
    assert own_server.process.pid != pid
    assert read_first(bootstrap, "orders") == b"before"


def test_a_paused_broker_answers_once_it_is_resumed(own_server: KafkaServer) -> None:
    admin = own_server.admin()
    own_server.pause()
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
        admin.list_topics(timeout=2)
    own_server.resume()
    assert admin.list_topics(timeout=30).brokers


def test_a_stopped_broker_comes_back_and_its_folder_is_gone_at_the_end(own_server: KafkaServer) -> None:
    own_server.create_topic("stopped")
    own_server.stop()
    own_server.restart()
    assert "stopped" in own_server.topics()
    folder = own_server.folder
    own_server.close()
    assert not folder.exists()


def test_a_topic_of_a_thousand_partitions_can_be_written_at_once(
    kafka_server: KafkaServer, topic: Callable[..., str]
) -> None:
    name = topic(1000)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "retries": 0, "log_level": 0})
    errors: list[object] = []
    for partition in range(1000):
        producer.produce(name, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * 1000


def test_a_topic_has_the_settings_it_was_made_with_and_is_another_when_made_again(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("made-again", config={"retention.ms": "1000"})
    write(kafka_server.bootstrap, "made-again", "old")
    kafka_server.delete_topic("made-again")
    assert "made-again" not in kafka_server.topics()

    kafka_server.create_topic("made-again")
    write(kafka_server.bootstrap, "made-again", "new")
    assert read_first(kafka_server.bootstrap, "made-again") == b"new"
    kafka_server.delete_topic("made-again")


def test_a_topic_that_exists_cannot_be_made(kafka_server: KafkaServer, topic: Callable[..., str]) -> None:
    name = topic()
    with pytest.raises(ServerError, match=f"did not create topic {name}.*already exists"):
        kafka_server.create_topic(name)


def test_a_wrong_setting_is_told_with_the_end_of_the_log_of_kafka() -> None:
    with pytest.raises(ServerError, match=r"(?s)kafka did not start.*no\.such\.Reporter"):
        KafkaServer(settings={"metric.reporters": "no.such.Reporter"}).start()


def test_clients_of_the_proxy_reach_the_broker_through_it_and_nothing_else(
    kafka_server: KafkaServer, topic: Callable[..., str]
) -> None:
    name = topic()
    with kafka_server.proxy() as proxy:
        write(proxy.address, name, "through")
        admin = AdminClient({"bootstrap.servers": proxy.address, "log_level": 0})
        [broker] = admin.list_topics(timeout=30).brokers.values()
        assert f"{broker.host}:{broker.port}" == proxy.address
    assert read_first(kafka_server.bootstrap, name) == b"through"
