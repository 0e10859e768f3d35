"""Clients of a Kafka cluster for the store in it: made once and kept, every wait limited, every failure translated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # public, says its manual

from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.stores.kafka_consumers import CLOSELY, Consumers

T = TypeVar("T")
Lost = type[StoreUnavailable] | type[OutcomeUnknown]
_SECRET = re.compile(r"password|secret|token|jaas|credential|\bpem\b|sasl\.username", re.IGNORECASE)
_OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\..*|transactional\.id|isolation\.level|auto\.offset\.reset"
    r"|enable\.(auto\.commit|auto\.offset\.store|partition\.eof|idempotence)"
)
_DEFAULTS = {
    # What it would log is told in our errors. It stays with stderr: with a Python logger, a producer of librdkafka 2.16
    # hangs for ever, or crashes, when its broker ends.
    "log_level": "0",
    "reconnect.backoff.max.ms": "1000",
    "socket.nagle.disable": "true",
    "transaction.timeout.ms": "10000",
}
_REFUSED = {
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "MSG_SIZE_TOO_LARGE",
    "POLICY_VIOLATION",
    "INVALID_CONFIG",
    "INVALID_REPLICATION_FACTOR",
}


class Clients:
    """The clients of one store. Any thread may use them.

    Args:
        url: of the store.
        address: of the store, for messages.
        timeout: seconds that one request may take.
        options: settings of librdkafka.

    Raises:
        SettingsError: the URL names no brokers, or an option is not the user's to set.
    """

    def __init__(self, url: str, address: str, timeout: float, options: Mapping[str, str]) -> None:
        user, _, brokers = urlsplit(url).netloc.rpartition("@")
        if not all(broker.partition(":")[0] for broker in brokers.split(",")):
            raise SettingsError(f"{address} names no brokers: write kafka://host:9092,host2:9092")
        taken = sorted(filter(_OURS.fullmatch, options))
        if taken:
            raise SettingsError(f"take {taken[0]} out of the store's URL: offsetkeeper sets it itself")
        name, _, password = (unquote(part) for part in user.partition(":"))
        login = {"sasl.username": name, "sasl.password": password} if user else {}
        self.options: dict[str, Any] = {**_DEFAULTS, **login, **options, "bootstrap.servers": brokers}
        self.timeout = timeout
        self._address = address
        self.consumers = Consumers(lambda settings: self._make(Consumer, settings), timeout)

    def groups(self) -> list[str]:
        """Return the names of all consumer groups of the cluster."""
        admin = self._admin()
        answer = admin.list_consumer_groups(request_timeout=self.timeout)
        return [group.group_id for group in _result(answer, self.timeout).valid]

    def members(self, group: str) -> int:
        """Return how many consumers are in the group."""
        admin = self._admin()
        try:
            [answer] = admin.describe_consumer_groups([group], request_timeout=self.timeout).values()
            return len(_result(answer, self.timeout).members)
        except KafkaException as error:
            if error.args[0].name() == "GROUP_ID_NOT_FOUND":
                return 0
            raise

    def create_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Create a topic of one partition, if it is not there, and return when it is known."""
        admin = self._admin()
        [answer] = admin.create_topics([NewTopic(topic, 1, config=dict(config))], request_timeout=self.timeout).values()
        try:
            _result(answer, self.timeout)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return a topic's settings."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._admin()
        [answer] = admin.describe_configs([resource], request_timeout=self.timeout).values()
        return {name: entry.value for name, entry in _result(answer, self.timeout).items()}

    def producer(self, transactional_id: str) -> Any:
        """Return a new producer of transactions, which has fenced all before it that have the same id."""
        producer = self._make(Producer, {"transactional.id": transactional_id, "linger.ms": "0", **CLOSELY})
        producer.list_topics(timeout=self.timeout)  # connected first, or else it may take another half second
        producer.init_transactions(self.timeout)
        return producer

    def failure(self, error: Any, what: str, lost: Lost = StoreUnavailable) -> OffsetkeeperError:
        """Return the error to raise for one of librdkafka, or for a `KafkaException` around it."""
        found = error.args[0] if isinstance(error, KafkaException) else error
        text = found.str()
        for name, value in self.options.items():
            text = text.replace(value, "***") if _SECRET.search(name) and value else text
        if found.name() in _REFUSED:
            return SettingsError(f"{self._address}: {what}: Kafka refused ({text}), and nothing was written")
        return lost(f"{self._address}: {what}: no success within {self.timeout:g} s: {found.name()}: {text}")

    def _admin(self) -> Any:
        """Return a new client: what it is for is rare, and a kept one may not find a broker that was started again.

        It is to be kept until it has answered.
        """
        return self._make(AdminClient, {})

    def _make(self, kind: Callable[..., T], settings: Mapping[str, str]) -> T:
        try:
            return kind({**self.options, **settings})
        except KafkaException as error:
            raise SettingsError(
                f"{self._address}: {self.failure(error, 'the URL')}. librdkafka's CONFIGURATION.md lists all settings"
            ) from None


def _result(answer: Future[T], seconds: float) -> T:
    try:
        return answer.result(seconds + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - how librdkafka names it
