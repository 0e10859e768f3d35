"""Clients of a Kafka cluster for the store in it: made once and kept, every wait limited, every failure translated."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # public, says its manual

from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SettingsError, StoreUnavailable
from offsetkeeper.model import TopicPartition

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
_SHORT, _LONG = 0.5, 5.0  # seconds that one try to read may take
_CONSUMERS = 16  # kept: two for each group, to see its offsets, and two to read records
# By default what follows a transaction closely, to read or to write, waits 100 ms for it to be visible everywhere. Not
# for admin clients: with this, one of librdkafka 2.16 never comes back from a coordinator that is just starting.
_CLOSELY = {"retry.backoff.ms": "10", "retry.backoff.max.ms": "500"}
_MEMBER = {"isolation.level": "read_committed", "enable.auto.commit": "false", **_CLOSELY}
_READER = {
    "group.id": "offsetkeeper",  # the client wants one; nothing is committed for it
    "isolation.level": "read_uncommitted",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "10",
}


class Record(NamedTuple):
    """A record of the store's topic."""

    key: bytes
    value: bytes
    offset: int


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
        self._lock, self._reading = threading.RLock(), threading.RLock()
        self._consumers: dict[tuple[str, ...], Any] = {}

    def offsets(
        self, group: str, asked: Collection[TopicPartition], limit: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return a group's committed offsets of the partitions asked for.

        While a transaction of the group is open, or not yet visible everywhere, its end is waited for.

        Raises:
            KafkaException: it took longer than `limit` seconds, by default the timeout; and all others.
        """
        # Not through the admin client: in librdkafka 2.16 it crashes the process while the coordinator starts.
        partitions = [KafkaPartition(*tp) for tp in asked]
        if not partitions:
            return {}
        found = self._ask({**_MEMBER, "group.id": group}, lambda member, s: member.committed(partitions, s), limit)
        return {TopicPartition(*each): offset for each, offset in map(_offset, found) if offset >= 0}

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

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        found = self._admin().list_topics(timeout=self.timeout).topics
        return {name: len(topic.partitions) for name, topic in found.items() if not topic.error}

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

    def record(self, topic: str, offset: int) -> Record | None:
        """Return the record at an offset, committed or not; None where it is not there any more."""

        def read(consumer: Any, seconds: float) -> Record | None:
            try:
                found = next(_records(consumer, topic, offset, seconds), None)
            except KafkaException as error:
                if error.args[0].name() not in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
                    raise
                return None
            return found if found and found.offset == offset else None

        with self._reading:
            return self._ask(_READER, read)

    def newest(self, topic: str, wanted: Callable[[bytes], bool], *, committed: bool) -> dict[bytes, Record]:
        """Read the whole topic and return the newest record of each key that is wanted, and not deleted.

        Args:
            topic: with one partition.
            wanted: tells of a key whether it is.
            committed: whether to leave out records of transactions that are open or were aborted.
        """

        def read(consumer: Any, seconds: float) -> dict[bytes, Record]:
            records = _records(consumer, topic, OFFSET_BEGINNING, seconds)
            return {record.key: record for record in records if wanted(record.key)}

        with self._reading:
            found = self._ask(_READER | ({"isolation.level": "read_committed"} if committed else {}), read)
        return {key: record for key, record in found.items() if record.value}

    def membership(self, group: str) -> Any:
        """Return what a producer names a group by when it sends offsets."""
        return self._ask({**_MEMBER, "group.id": group}, lambda member, _: member.consumer_group_metadata())

    def producer(self, transactional_id: str) -> Any:
        """Return a new producer of transactions, which has fenced all before it that have the same id."""
        producer = self._make(Producer, {"transactional.id": transactional_id, "linger.ms": "0", **_CLOSELY})
        producer.list_topics(timeout=self.timeout)  # connected first, or else it may take another half second
        producer.init_transactions(self.timeout)
        return producer

    def close(self) -> None:
        """Close all clients; they are made again when used."""
        with self._lock:
            consumers = list(self._consumers.values())
            self._consumers.clear()
        for consumer in consumers:
            consumer.close()

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

    def _ask(self, settings: Mapping[str, str], ask: Callable[[Any, float], T], limit: float | None = None) -> T:
        """Ask a consumer with these settings, for at most `limit` seconds, by default the timeout.

        After any error it is thrown away: it may not find its way back to a broker that was started again.
        """
        deadline = time.monotonic() + (limit or self.timeout)
        while True:
            left = deadline - time.monotonic()
            consumer = self._consumer(settings)
            try:
                return ask(consumer, min(max(left, _SHORT), _LONG))
            except KafkaException:
                with self._lock:
                    self._consumers = {key: held for key, held in self._consumers.items() if held is not consumer}
                consumer.close()
                if left < _LONG:
                    raise

    def _consumer(self, settings: Mapping[str, str]) -> Any:
        key = tuple(settings.values())
        with self._lock:
            if key not in self._consumers:
                self._consumers[key] = self._make(Consumer, settings)
                if len(self._consumers) > _CONSUMERS:
                    self._consumers.pop(next(iter(self._consumers))).close()
            return self._consumers[key]

    def _make(self, kind: Callable[..., T], settings: Mapping[str, str]) -> T:
        try:
            return kind({**self.options, **settings})
        except KafkaException as error:
            raise SettingsError(
                f"{self._address}: {self.failure(error, 'the URL')}. librdkafka's CONFIGURATION.md lists all settings"
            ) from None


def _offset(found: Any) -> tuple[tuple[str, int], int]:
    if found.error:
        raise KafkaException(found.error)
    return (found.topic, found.partition), found.offset


def _records(consumer: Any, topic: str, start: int, timeout: float) -> Iterator[Record]:
    """Read the topic's one partition from an offset to its end; each wait is limited by `timeout` seconds."""
    consumer.assign([KafkaPartition(topic, 0, start)])
    while True:
        message = consumer.poll(timeout)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - how librdkafka names it
        if message.error() is None:
            yield Record(message.key() or b"", message.value() or b"", message.offset())
        elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - as above
            return
        else:
            raise KafkaException(message.error())


def _result(answer: Future[T], seconds: float) -> T:
    try:
        return answer.result(seconds + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None  # noqa: SLF001 - how librdkafka names it
