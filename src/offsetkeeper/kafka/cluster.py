"""What a Kafka cluster knows about topics and offsets, asked through one admin client."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

from offsetkeeper.core.bounds import Found
from offsetkeeper.core.model import TopicPartition, check_topic
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import BrokerError, BrokerUnavailable, SettingsError
from offsetkeeper.kafka.codes import Verdict, judge
from offsetkeeper.kafka.failures import broker_error
from offsetkeeper.kafka.settings import NO_OPTIONS, Isolation, check_brokers, check_isolation, check_options, redact

_log = logging.getLogger("offsetkeeper.kafka")
K = TypeVar("K", str, TopicPartition)
T = TypeVar("T")
_AT_ONCE = 1_000  # partitions in one request: librdkafka's time for one grows with their square
_DOUBTFUL = {Verdict.NOT_SEEN, Verdict.UNKNOWN_TOPIC}
Ask = Callable[[list[K], float], Mapping[K, "Future[Any]"]]


class Bounds(NamedTuple):
    """Where a partition begins and ends: the offset of its first record, and the one after its last."""

    beginning: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it is now.

    Attributes:
        topic: its name.
        topic_id: Kafka's id of it, in Kafka's own form (22 characters of url-safe base64); None where it has none.
        partitions: the numbers of its partitions, ascending.
        replicas, in_sync: how many replicas the partition with the fewest has, in all and in sync.
    """

    topic: str
    topic_id: str | None
    partitions: tuple[int, ...]
    replicas: int = 0
    in_sync: int = 0


class Cluster:
    """A Kafka cluster, through one client that is kept until `close`. Nothing is connected before the first question.

    Every question is asked again while leaders move or brokers restart, for at most `timeout_s` seconds.

    Args:
        brokers: `host:port,host:port,…`, some brokers of the cluster.
        options: settings of librdkafka, as in its CONFIGURATION.md: security.protocol, sasl.*, ssl.* and all others.
        isolation: what the end of a partition is. For `read_committed` the last stable offset, where the first
            transaction still open begins; for `read_uncommitted` the high watermark.
        timeout_s: seconds after which a question without an answer is an error.

    Raises:
        SettingsError: a setting is wrong, or librdkafka does not know it.
    """

    def __init__(
        self,
        brokers: str,
        options: Mapping[str, str] = NO_OPTIONS,
        *,
        isolation: Isolation = "read_committed",
        timeout_s: float = 30,
    ) -> None:
        self.brokers = check_brokers(brokers)
        self.options: Mapping[str, str] = check_options(options)
        self.isolation = check_isolation(isolation)
        self.timeout_s = timeout_s
        self._reports: deque[Any] = deque(maxlen=100)
        self._admin = _admin_client(self.brokers, self.options, self._reports)

    def describe(self, topics: Iterable[str], *, required: bool = False) -> dict[str, TopicDescription]:
        """Return what is known of each of `topics`; one that does not exist is absent from the result.

        Args:
            topics: names of topics.
            required: raise UnknownTopic for a topic that does not exist.

        Raises:
            SettingsError: a name is no topic name.
            UnknownTopic: a topic does not exist, and was required.
            BrokerUnavailable: no answer within `timeout_s`.
            NotAuthorized: the credentials are wrong or lack a permission.
        """

        def ask(names: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            futures: Mapping[str, Future[Any]] = self._client.describe_topics(
                _library().TopicCollection(names), request_timeout=seconds
            )
            return futures

        names = sorted({check_topic(topic) for topic in topics})
        found = self._gather(names, ask, "topic {}", absent=() if required else {Verdict.UNKNOWN_TOPIC})
        return {name: _description(answer) for name, answer in found.items() if answer is not None}

    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, isolation: Isolation | None = None
    ) -> dict[TopicPartition, Bounds]:
        """Return the beginning and end offsets of each partition; thousands are asked for at once.

        Args:
            topic_partitions: the partitions to ask for.
            isolation: what the end is, where that differs from the cluster's own.

        Raises:
            SettingsError: there is no such isolation.
            UnknownTopic: a topic or partition does not exist.
            BrokerUnavailable: no answer within `timeout_s`.
            NotAuthorized: the credentials are wrong or lack a permission.
        """
        wanted = sorted(set(topic_partitions))
        level = check_isolation(isolation or self.isolation)
        specs = _library().admin.OffsetSpec
        beginnings = self._offsets(dict.fromkeys(wanted, specs.earliest()), level)
        ends = self._offsets(dict.fromkeys(wanted, specs.latest()), level)
        return {tp: Bounds(beginnings[tp], ends[tp]) for tp in wanted}

    def held(self, topics: Iterable[str]) -> dict[TopicPartition, Found]:
        """Return the bounds and the topic id of every partition of `topics`; one that does not exist is absent.

        Raises:
            SettingsError, BrokerUnavailable, NotAuthorized: see `describe` and `bounds`.
        """
        return self.held_of(self.describe(topics).values())

    def held_of(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, Found]:
        """Return the bounds and the topic id of every partition of topics that were described.

        Raises:
            BrokerUnavailable, NotAuthorized: see `bounds`.
        """
        ids = {TopicPartition(topic.topic, p): topic.topic_id for topic in topics for p in topic.partitions}
        return {tp: Found(bounds.beginning, bounds.end, ids[tp]) for tp, bounds in self.bounds(ids).items()}

    def offsets_for_times(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return for each partition the first offset whose record has a timestamp at or after `timestamp_ms`.

        Where there is no such record, it is the end offset.

        Args:
            topic_partitions: the partitions to ask for.
            timestamp_ms: milliseconds since 1970.

        Raises:
            SettingsError: the timestamp is negative.
            UnknownTopic: a topic or partition does not exist.
            BrokerUnavailable: no answer within `timeout_s`.
            NotAuthorized: the credentials are wrong or lack a permission.
        """
        if timestamp_ms < 0:
            raise SettingsError(f"the timestamp {timestamp_ms} is negative: give milliseconds since 1970")
        wanted = sorted(set(topic_partitions))
        # The ends first: what arrives in between then lies after the answer, and is read, never before it.
        specs = _library().admin.OffsetSpec
        ends = self._offsets(dict.fromkeys(wanted, specs.latest()), self.isolation)
        found = self._offsets(dict.fromkeys(wanted, specs.for_timestamp(timestamp_ms)), self.isolation)
        return {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}

    def first_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp of each partition's first record at or after a time; absent where there is none.

        Asks an index of the broker and reads no record, so it needs no permission to read.

        Args:
            times_ms: the time for each partition, milliseconds since 1970.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `bounds`.
        """
        specs = _library().admin.OffsetSpec
        asked = {tp: specs.for_timestamp(time_ms) for tp, time_ms in times_ms.items()}
        found = self._list(asked, self.isolation)
        return {tp: (answer.offset, answer.timestamp) for tp, answer in found.items() if answer.offset >= 0}

    def retentions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return for how many milliseconds each topic keeps its records; one that keeps them for ever is absent.

        Absent too is a topic whose settings may not be read.

        Raises:
            BrokerUnavailable: no answer within `timeout_s`.
        """
        found = {}
        for topic, settings in self.settings("topic", topics).items():
            kept_ms = int(settings.get("retention.ms") or -1)
            if kept_ms >= 0 and "delete" in settings.get("cleanup.policy", ""):
                found[topic] = kept_ms
        return found

    def settings(self, kind: Literal["topic", "broker"], names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics, or of brokers by their ids; absent where they may not be read.

        Raises:
            BrokerUnavailable: no answer within `timeout_s`.
            NotAuthorized: the credentials are wrong.
        """
        admin = _library().admin

        def ask(some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            resources = [admin.ConfigResource(admin.ConfigResource.Type[kind.upper()], name) for name in some]
            futures = self._client.describe_configs(resources, request_timeout=seconds) if some else {}
            return {resource.name: future for resource, future in futures.items()}

        absent = {Verdict.UNKNOWN_TOPIC, Verdict.REFUSED}
        found = self._gather(list(dict.fromkeys(names)), ask, f"settings of {kind} {{}}", absent=absent)
        return {
            name: {setting: entry.value for setting, entry in answer.items()}
            for name, answer in found.items()
            if answer is not None
        }

    def nodes(self) -> dict[str, tuple[str, int]]:
        """Return host and port of each broker, by its id: where clients are told to connect.

        It is told by the first broker that answers, also where none of these addresses can be reached.

        Raises:
            BrokerUnavailable, NotAuthorized: see `describe`.
        """
        self._forget_refusals()

        def ask(seconds: float) -> Any:
            try:
                return self._client.list_topics(timeout=seconds).brokers
            except _library().KafkaException as error:
                self._client.poll(0)
                refused = (report for report in self._reports if judge(report) is Verdict.REFUSED)
                raise self._failure(next(refused, error.args[0]), "the cluster") from None

        return {str(node.id): (node.host, node.port) for node in self._patiently(ask).values()}

    def close(self) -> None:
        """Close the client; nothing can be asked any more."""
        self._admin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(Cluster, isolation=self.isolation, timeout_s=self.timeout_s)
        return made, (self.brokers, dict(self.options))

    def __repr__(self) -> str:
        return f"Cluster({self.brokers!r}, options={sorted(self.options)}, isolation={self.isolation!r})"

    @property
    def _client(self) -> Any:
        if self._admin is None:
            raise SettingsError(f"the cluster at {self.brokers} is closed: make a new Cluster")
        return self._admin

    def _offsets(self, specs: Mapping[TopicPartition, Any], isolation: Isolation) -> dict[TopicPartition, int]:
        return {tp: answer.offset for tp, answer in self._list(specs, isolation).items()}

    def _list(self, specs: Mapping[TopicPartition, Any], isolation: Isolation) -> dict[TopicPartition, Any]:
        level = _library().IsolationLevel[isolation.upper()]

        def ask(partitions: list[TopicPartition], seconds: float) -> Mapping[TopicPartition, Future[Any]]:
            futures: dict[Any, Future[Any]] = {}
            for some in (partitions[at : at + _AT_ONCE] for at in range(0, len(partitions), _AT_ONCE)):
                asked = {_library().TopicPartition(*tp): specs[tp] for tp in some}
                futures |= self._client.list_offsets(asked, isolation_level=level, request_timeout=seconds)
            return {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}

        return self._gather(list(specs), ask, "partition {}")

    def _gather(self, keys: list[K], ask: Ask[K], what: str, *, absent: Collection[Verdict] = ()) -> dict[K, Any]:
        """Ask until every key has its answer, which is None where the error has one of the verdicts `absent`."""
        answers: dict[K, Any] = {}
        self._forget_refusals()

        def ask_rest(seconds: float) -> None:
            left = [key for key in keys if key not in answers]
            futures = ask(left, seconds)
            self._wait(futures.values())
            errors = {key: error for key in left if (error := _error(futures[key])) is not None}
            answers.update({key: futures[key].result() for key in left if key not in errors})
            for key, error in errors.items():
                if judge(error) in absent:
                    answers[key] = None
                elif isinstance(key, TopicPartition) and judge(error) in _DOUBTFUL:
                    self._require({each for each in left if isinstance(each, TopicPartition)})
                    raise self._failure(error, what.format(key), "_NOENT")
                else:
                    raise self._failure(error, what.format(key))

        self._patiently(ask_rest)
        self._reports.clear()
        return answers

    def _require(self, partitions: Collection[TopicPartition]) -> None:
        """Raise UnknownTopic for a partition that does not exist. One that does is only not known everywhere yet."""
        known = self.describe({tp.topic for tp in partitions}, required=True)
        for tp in sorted(partitions):
            if tp.partition not in known[tp.topic].partitions:
                raise broker_error("UNKNOWN_TOPIC_OR_PART", "", f"partition {tp}", self.brokers)

    def _patiently(self, ask: Callable[[float], T]) -> T:
        """Ask, each time with the seconds that are left, until there is an answer or an error that does not pass."""
        return retry(BrokerUnavailable, self.timeout_s, lambda left_s: ask(max(0.1, left_s)), first_s=0.05)

    def _wait(self, futures: Iterable[Future[Any]]) -> None:
        """Wait for all, which their own time limit ends, or for wrong credentials, which no waiting mends."""
        for future in futures:  # one by one: to wait for thousands together takes seconds
            while not future.done():
                wait([future], timeout=0.1)
                self._client.poll(0)
                for report in list(self._reports):
                    if judge(report) is Verdict.REFUSED:
                        raise self._failure(report, "the connection")

    def _forget_refusals(self) -> None:
        """Forget the refusals of earlier questions.

        Other reports stay until all is answered: librdkafka tells why it cannot connect when it tries, with ever longer
        pauses, and that is the reason for whatever fails meanwhile.
        """
        self._client.poll(0)
        for report in [report for report in self._reports if judge(report) is Verdict.REFUSED]:
            self._reports.remove(report)

    def _failure(self, error: Any, what: str, name: str = "") -> BrokerError:
        reports = [report.str() for report in self._reports if report.name() != "_ALL_BROKERS_DOWN"]
        text = "; ".join(dict.fromkeys([error.str(), *reports[-1:]]))
        return broker_error(name or error, redact(text, self.options), what, self.brokers)


def _library() -> Any:
    """Return confluent_kafka, loaded when first used; untyped, as its stubs lack much of what is used here."""
    import confluent_kafka.admin  # noqa: PLC0415 - `import offsetkeeper` must not load it

    return confluent_kafka


def _admin_client(brokers: str, options: Mapping[str, str], reports: deque[Any]) -> Any:
    config: dict[str, Any] = {**options, "bootstrap.servers": brokers, "error_cb": reports.append}
    try:
        return _library().admin.AdminClient(config, logger=_log)
    except _library().KafkaException as error:
        raise SettingsError(
            f"librdkafka refuses the Kafka options: {redact(error.args[0].str(), options)}. "
            "Its CONFIGURATION.md lists all names and values"
        ) from None


def _description(answer: Any) -> TopicDescription:
    # librdkafka writes the id in standard base64, Kafka itself in the url-safe form.
    topic_id = str(answer.topic_id).replace("+", "-").replace("/", "_").rstrip("=")
    known = topic_id.strip("A") != ""  # all zero: from a broker older than topic ids
    partitions = tuple(sorted(p.id for p in answer.partitions))
    replicas, in_sync = (
        min((len(getattr(p, name)) for p in answer.partitions), default=0) for name in ("replicas", "isr")
    )
    return TopicDescription(answer.name, topic_id if known else None, partitions, replicas, in_sync)


def _error(future: Future[Any]) -> Any:
    """Return the error of an answer, or None.

    An offset that is not set is one too. librdkafka 2.16 gives it, and no error, where the connection breaks before the
    broker has answered. It must not be taken for the -1 with which a broker says that it has no such record.
    """
    exception = future.exception()
    if exception is not None:
        return exception.args[0]
    unset = getattr(future.result(), "offset", 0) == _library().OFFSET_INVALID
    return _library().KafkaError(_library().KafkaError._TRANSPORT) if unset else None  # noqa: SLF001 - librdkafka's name
