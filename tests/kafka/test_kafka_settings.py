"""Settings of the client are checked before anything is touched, and secrets stay hidden."""

import logging

import pytest

from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.clients import check_brokers, redact

PASSWORD = "correct-horse-battery"


@pytest.mark.parametrize(
    "brokers", ["localhost", "localhost:9092", "a:1,b:2, c:3", "[::1]:9092", "SASL_SSL://kafka-1.example.org:65535"]
)
def test_lists_of_brokers_are_taken_as_they_are(brokers: str) -> None:
    assert check_brokers(brokers) == brokers


@pytest.mark.parametrize(
    "brokers", ["", ",", "a,,b", "host:port", "host:0", "host:65536", "a b:1", "a:1;b:1", "user@a:1"]
)
def test_what_is_no_list_of_brokers_is_refused(brokers: str) -> None:
    with pytest.raises(SettingsError, match="host:port,host:port"):
        KafkaCluster(brokers)


def test_an_option_that_librdkafka_does_not_know_is_named() -> None:
    with pytest.raises(SettingsError, match=r"fetch\.max\.wait\.ms"):
        KafkaCluster("localhost:9092", {"fetch.max.wait.ms": "5"})


def test_a_value_that_librdkafka_does_not_take_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"security\.protocol"):
        KafkaCluster("localhost:9092", {"security.protocol": "carrier-pigeon"})


@pytest.mark.parametrize(
    "name", ["bootstrap.servers", "group.id", "isolation.level", "auto.offset.reset", "allow.auto.create.topics"]
)
def test_an_option_that_is_offsetkeepers_own_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"take the Kafka option {name} out"):
        KafkaCluster("localhost:9092", {name: "earliest"})


def test_an_option_that_is_no_text_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"fetch\.wait\.max\.ms.* must be a text"):
        KafkaCluster("localhost:9092", {"fetch.wait.max.ms": 5})  # type: ignore[dict-item]  # that is the point


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(SettingsError, match="read_committed, read_uncommitted"):
        KafkaCluster("localhost:9092", isolation="serializable")  # type: ignore[arg-type]  # that is the point


def test_a_cluster_shows_the_names_of_its_options_only() -> None:
    cluster = KafkaCluster("localhost:9092", {"sasl.password": PASSWORD, "sasl.username": "sesame-user"})
    assert repr(cluster) == (
        "KafkaCluster('localhost:9092', options=['sasl.password', 'sasl.username'], isolation='read_committed')"
    )


def test_a_secret_is_taken_out_of_a_text() -> None:
    options = {"sasl.password": PASSWORD, "client.id": "shop"}
    assert redact(f"shop failed with {PASSWORD}", options) == "shop failed with ***"


def test_a_refused_option_does_not_show_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(SettingsError) as refused:
        KafkaCluster("localhost:9092", {"sasl.jaas.config": PASSWORD, "sasl.password": PASSWORD, PASSWORD: "1"})
    assert PASSWORD not in str(refused.value) + caplog.text


def test_a_closed_cluster_says_so() -> None:
    with KafkaCluster("localhost:9092") as cluster:
        pass
    with pytest.raises(SettingsError, match="closed"):
        cluster.describe(["orders"])


@pytest.mark.parametrize("options", [{"client.id": "\udce4"}, {"client\udce4": "x"}, {"client.id": "a\0b"}])
def test_an_option_that_no_client_can_take_is_refused(options: dict[str, str]) -> None:
    """A byte of the command line that is not UTF-8 comes so; the library would crash the process."""
    with pytest.raises(SettingsError, match="a Kafka option"):
        KafkaCluster("localhost:9092", options)


@pytest.mark.parametrize("name", ["default.topic.config", "logger", "error_cb", "on_commit"])
def test_an_option_that_is_an_object_of_python_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="is not a text but an object of Python"):
        KafkaCluster("localhost:9092", {name: "x"})
