"""Clients of a Kafka cluster for the store in it: created once and reused, with limited waits and our errors."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar, cast
from urllib.parse import unquote

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, NewTopic  # type: ignore[attr-defined]  # public, says its manual

from offsetkeeper.clients.pool import Lost
from offsetkeeper.clients.url import ClientUrl
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError, StoreUnavailable, TokenUnavailable
from offsetkeeper.kafka.clients import open_client, redact, timed_out
from offsetkeeper.kafka.codes import CERTIFICATE, TOO_FEW_BROKERS, TOPIC_EXISTS, judge
from offsetkeeper.kafka.consumers import Consumers, named, not_accepted
from offsetkeeper.kafka.ledger_log import Line
from offsetkeeper.kafka.own_settings import check_own
from offsetkeeper.kafka.replication import KafkaFacts, TopicFacts
from offsetkeeper.kafka.tls import refused, speaks_tls
from offsetkeeper.kafka.trusted import refuse_code

T = TypeVar("T")
_SHORTEST = 0.5  # the least seconds for one try of several
_WITHOUT_MEMBERS = {ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD}
_OURS = re.compile(
    r"bootstrap\.servers|metadata\.broker\.list|group\..*|transactional\.id|isolation\.level|auto\.offset\.reset"
    r"|acks|request\.required\.acks|allow\.auto\.create\.topics|enable\.(auto\.commit|auto\.offset\.store|partition\.eof|idempotence)"
)
_DEFAULTS = {
    "reconnect.backoff.max.ms": "1000",
    "socket.nagle.disable": "true",
}


class Clients:
    """The clients of one store. Any thread may use them.

    Args:
        url: URL of the store; `given` has only settings of librdkafka.

    Raises:
        SettingsError: the URL has no brokers, or an option is wrong or set by offsetkeeper itself.
    """

    def __init__(self, url: ClientUrl) -> None:
        user, _, brokers = url.parts.netloc.rpartition("@")
        if not all(broker.partition(":")[0] for broker in brokers.split(",")):
            raise url.error("has no brokers: write kafka://host:9092,host2:9092")
        if any(map(_OURS.fullmatch, url.given)):
            raise SettingsError(
                "the store's URL has a setting that offsetkeeper sets itself (brokers, group.…, acks, isolation.level "
                "and the like): remove it"
            )
        name, _, password = (unquote(part) for part in user.partition(":"))
        login = {"sasl.username": name, "sasl.password": password} if user else {}
        self.options: dict[str, Any] = {**_DEFAULTS, **login, **url.given}
        try:
            check_own(self.options)
            refuse_code(url.given, "the store's URL")
        except SettingsError as error:
            raise SettingsError(f"{url.address}: {error}") from None
        self._brokers = brokers
        self.timeout = url.settings.timeout
        self._address = url.address
        self._admin: Any = None
        self._producer: Any = None
        self._appending = threading.Lock()
        self._objection = partial(refused, brokers, self.options)
        self.consumers = Consumers(lambda settings: self._make("Consumer", settings), self.timeout, self._objection)

    def groups(self) -> list[str]:
        """Return the names of all consumer groups of the cluster."""
        return [group.group_id for group in self._groups()]

    def is_consumer_group(self, group: str) -> bool:
        """Return whether a group is a consumer group, or can become one as there is none of this name.

        Share groups (KIP-932) are in no list of consumer groups, and are described by no client that asks for those.
        """

        def ask(left_s: float) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the newer way lists only consumer groups
                return self._make("AdminClient", {}).list_groups(group, timeout=max(left_s, _SHORTEST))

        listed = retry(_passes, self.timeout, ask)
        other = any(each.id == group and not each.protocol_type for each in listed)
        # Asked last: another process may make the consumer group just now, and what is listed once stays so.
        return not other or any(each.group_id == group for each in self._groups())

    def has_members(self, group: str, topic: str) -> bool:
        """Return whether consumers are in the group; `topic` is a topic that may be described.

        All groups are listed. To describe one, librdkafka 2.16 asks its coordinator, and ends the process by an
        assertion (`eonce->refcnt > 0`) if the connection breaks just then.
        """
        self.consumers.offsets(group, [TopicPartition(topic, 0)])  # afterwards the group has a coordinator
        return any(each.group_id == group and _is_active(each) for each in self._groups())

    def create_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Create a topic with one partition, if it does not exist, and return when it is known.

        It has three replicas, or as many as there are brokers, and works while one of them is away. Of three replicas,
        two must have acknowledged records, so that these survive the loss of a broker; of two, this would need both.
        """
        for replicas in (3, 2, 1):  # tried in turn: brokers that are away cannot be counted
            least = {"min.insync.replicas": str(max(1, replicas - 1))}
            if self._created(NewTopic(topic, 1, replicas, config={**config, **least}), last=replicas == 1):
                return

    def _groups(self) -> Sequence[Any]:
        found = self._ask(lambda admin, seconds: admin.list_consumer_groups(request_timeout=seconds))
        return cast("Sequence[Any]", found.valid)

    def describe(self, topic: str) -> KafkaFacts:
        """Return the facts about a topic with one partition, if it exists, and about the live brokers."""
        found = self.consumers.metadata()
        nodes = {f"{node.host}:{node.port}": "" for node in found.brokers.values()}
        partitions = found.topics[topic].partitions.values() if topic in found.topics else ()
        topics = [
            TopicFacts(topic, replicas=len(one.replicas), in_sync=len(one.isrs), settings=self._config(topic))
            for one in partitions
        ]
        return KafkaFacts(self._address, nodes=nodes, topics=topics)

    def _created(self, topic: NewTopic, *, last: bool) -> bool:
        """Create the topic unless it exists; return whether it exists; False if there are too few brokers."""
        try:
            self._ask(lambda admin, seconds: admin.create_topics([topic], request_timeout=seconds))
        except KafkaException as error:
            name = error.args[0].name()
            if name == TOO_FEW_BROKERS and not last:
                return False
            if name != TOPIC_EXISTS:
                raise named(error.args[0], f"topic {topic.topic}") from error
        return True

    def _config(self, topic: str) -> dict[str, str]:
        wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
        try:
            found = self._ask(lambda admin, seconds: admin.describe_configs(wanted, request_timeout=seconds))
        except KafkaException as error:
            raise named(error.args[0], f"the configuration of topic {topic}") from error
        return {name: entry.value for name, entry in found.items()}

    def append(self, topic: str, line: Line, deleted: Sequence[Line] = ()) -> int:
        """Append a line to the topic's one partition, and return its offset when it is durable.

        Args:
            topic: topic of the store.
            line: the line to append.
            deleted: lines to delete after it, without waiting for the result.

        Raises:
            KafkaException: the line may be appended.
        """
        with self._appending:
            try:
                if self._producer is None:
                    # A line is sent once, and the ledger tries again with another: compaction keeps the later of two
                    # copies. An idempotent producer would need a right of its own where a cloud has its own rights.
                    once = {"acks": "all", "message.send.max.retries": "0"}
                    waits = {"linger.ms": "0", "message.timeout.ms": str(int(self.timeout * 1000))}
                    self._producer = self._make("Producer", {**once, **waits})
                    self._producer.list_topics(topic, self.timeout)  # connect first, which may save a second
                offset = _append(self._producer, topic, line, self.timeout)
            except KafkaException:
                self._producer = None  # it may not reconnect to a restarted broker
                raise
            for old in deleted:
                self._producer.produce(topic, None, old.key, 0)
            return offset

    def failure(self, error: Any, what: str, lost: Lost = StoreUnavailable) -> OffsetkeeperError:
        """Return our error for an error of librdkafka or a `KafkaException`."""
        found = error.args[0] if isinstance(error, KafkaException) else error
        text = redact(found.str(), self.options)
        if CERTIFICATE in text:
            return Refused(f"{self._address}: {what}: nothing was written: {found.str()}")
        if judge(found).unwritten:
            return Refused(f"{self._address}: {what}: Kafka refused ({found.name()}: {text}), and nothing was written")
        at = speaks_tls(self._brokers, self.options) if judge(found).passes else ""
        hint = f". {at} speaks TLS: add security.protocol=ssl or sasl_ssl to the URL" if at else ""
        return lost(f"{self._address}: {what}: no success (timeout {self.timeout:g} s): {found.name()}: {text}{hint}")

    def close(self) -> None:
        """Close all clients; they are created again when needed."""
        self.consumers.close()
        self._admin = None
        with self._appending:
            if self._producer is not None:
                self._producer.flush(self.timeout)
            self._producer = None

    def _ask(self, ask: Callable[[Any, float], Any]) -> Any:
        """Send one request with the admin client. After an error it is closed: see `Consumers`."""

        def ask_once(left_s: float) -> Any:
            admin = self._admin = self._admin or self._make("AdminClient", {})
            seconds = max(left_s, _SHORTEST)
            try:
                answer = ask(admin, seconds)
                [future] = answer.values() if isinstance(answer, Mapping) else [answer]
                return _result(future, seconds)
            except KafkaException as error:
                self._admin = None
                if judge(error.args[0]).passes and (why := self._objection()):
                    raise not_accepted(why) from None
                raise

        return retry(_passes, self.timeout, ask_once)

    def _make(self, kind: Literal["AdminClient", "Consumer", "Producer"], settings: Mapping[str, str]) -> Any:
        try:
            return open_client(kind, self._brokers, self.options, settings)
        except SettingsError as error:
            raise SettingsError(f"{self._address}: {error}") from None
        except TokenUnavailable as error:  # the request was not sent
            raise StoreUnavailable(f"{self._address}: {error}") from None


def _is_active(group: Any) -> bool:
    """Return whether a listed group has members. The library does not know each state of the newer protocol."""
    unknown = group.state is ConsumerGroupState.UNKNOWN
    return group.type is ConsumerGroupType.CONSUMER if unknown else group.state not in _WITHOUT_MEMBERS


def _passes(error: Exception) -> bool:
    return isinstance(error, KafkaException) and judge(error.args[0]).passes


def _result(answer: Future[T], seconds: float) -> T:
    try:
        found = answer.result(seconds + 1)
    except TimeoutError:
        raise timed_out() from None
    # If a broker did not answer, its groups are missing in the list. By the manual, errors are exceptions.
    for error in getattr(found, "errors", ()):
        raise KafkaException(error) if isinstance(error, KafkaError) else error
    return found


def _append(producer: Any, topic: str, line: Line, seconds: float) -> int:
    placed: list[tuple[Any, int]] = []
    producer.produce(
        topic,
        line.value,
        line.key,
        partition=0,
        on_delivery=lambda error, at: placed.append((error, at.offset())),
        headers=[("previous", line.previous.encode())],
    )
    while not placed and producer.poll(seconds + 1):
        pass
    error, offset = placed[0] if placed else (timed_out().args[0], 0)
    if error:
        raise KafkaException(error)
    return offset
