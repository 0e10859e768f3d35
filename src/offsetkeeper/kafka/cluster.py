"""Topics, offsets and times of a Kafka cluster."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.cluster import Cluster, Isolation, TopicDescription
from offsetkeeper.core.duration import is_future
from offsetkeeper.core.environment import monotonic, now_ms
from offsetkeeper.core.offsets import Positions, TopicPartition, check_topic
from offsetkeeper.errors import SettingsError
from offsetkeeper.kafka.clients import (
    NO_OPTIONS,
    Admin,
    check_brokers,
    check_isolation,
    check_options,
    library,
    open_client,
)
from offsetkeeper.kafka.closing import close
from offsetkeeper.kafka.codes import CodeVerdict, broker_error, judge
from offsetkeeper.kafka.log_cuts import find_cuts
from offsetkeeper.kafka.many_offsets import ManyOffsets
from offsetkeeper.kafka.topic_ids import describe_topics, topic_id
from offsetkeeper.kafka.verification import unverified

if TYPE_CHECKING:
    from concurrent.futures import Future

_AT_ONCE = 1_000  # partitions in one request: librdkafka's time grows with their square
_ROUNDS = 6  # each round halves the time span in which the record was written
_MESSAGES = 2_000
_QUICK_S = 3.0
_LOOKED_AT = 100  # records of a partition whose times are in the future; about as many as one fetch brings
_NO_RECORD = {None, CodeVerdict.NOTHING, CodeVerdict.GONE}  # results after which waiting ends
_READ_ONE = {
    "group.id": "offsetkeeper-lag",  # not a real group: the client neither joins nor commits
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    # Bytes to fetch of each partition. A larger record batch comes too, but only one in each answer.
    "max.partition.fetch.bytes": "65536",
    "queued.min.messages": "1",
    "fetch.queue.backoff.ms": "5",
    "fetch.wait.max.ms": "10",
}


_HIDDEN = "their settings may not be read (allow DESCRIBE_CONFIGS)"
_BY_SIZE = "they delete records by size too (retention.bytes)"


class Timestamps(NamedTuple):
    """Milliseconds since 1970 by partition, the topics that may not be read, and the time of the answer."""

    times_ms: dict[TopicPartition, int]
    refused: frozenset[str]
    at_ms: int


class Retentions(NamedTuple):
    """For how long topics keep their records.

    Attributes:
        ms: by topic, in milliseconds; topics that keep them for ever, or that are not known, are left out.
        unjudged: topics whose records may be deleted earlier than `ms` says, each with the reason in words.
    """

    ms: Mapping[str, int]
    unjudged: Mapping[str, str] = MappingProxyType({})

    @property
    def surely_ms(self) -> Mapping[str, int]:
        """The `ms` of the topics of which it is known that no record is deleted earlier, but by an operator."""
        return {topic: ms for topic, ms in self.ms.items() if topic not in self.unjudged}


class KafkaCluster(Cluster):
    """A Kafka cluster, through one client that is kept until `close`. It connects at the first request.

    Every request is repeated while leaders move or brokers restart, for at most `timeout_s` seconds.

    Args:
        brokers: `host:port,host:port,…`, some brokers of the cluster.
        options: settings of librdkafka, as in its CONFIGURATION.md: security.protocol, sasl.*, ssl.* and all others;
            and ours: offsetkeeper.token.*, offsetkeeper.rack.env, offsetkeeper.native (docs/running.md).
        isolation: the end of a partition. For `read_committed` it is the last stable offset, where the first
            transaction still open begins; for `read_uncommitted` the high watermark.
        timeout_s: seconds after which a request without an answer is an error.

    Raises:
        SettingsError: a setting is wrong, or librdkafka does not know it.
        TokenUnavailable: the token provider failed.
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
        self._open: Admin | None = Admin(self.brokers, self.options, timeout_s)
        self._many: ManyOffsets | None = None
        self._lock = threading.Lock()

    def describe(self, topics: Iterable[str], *, required: bool = False) -> dict[str, TopicDescription]:
        """See `Cluster.describe`."""
        names = sorted({check_topic(topic) for topic in topics})
        if not names:
            return {}
        cluster_id = self._admin.ask_cluster_id()
        found = describe_topics(self._admin, names, required=required)
        here = cluster_id()
        return {name: _description(answer, here) for name, answer in found.items() if answer is not None}

    def topic_names(self) -> list[str]:
        """See `Cluster.topic_names`."""
        found = self._admin.call(lambda seconds: self._admin.client.list_topics(timeout=seconds).topics)
        return sorted(name for name, topic in found.items() if topic.error is None)

    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, isolation: Isolation | None = None
    ) -> dict[TopicPartition, Bounds]:
        """See `Cluster.bounds`."""
        wanted = sorted(set(topic_partitions))
        level = check_isolation(isolation or self.isolation)
        specs = library().admin.OffsetSpec
        beginnings = self._offsets(dict.fromkeys(wanted, specs.earliest()), level)
        ends = self._list(dict.fromkeys(wanted, specs.latest()), level)
        return {tp: Bounds(beginnings[tp], ends[tp].offset, leader_epoch=ends[tp].leader_epoch) for tp in wanted}

    def leader_epochs(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Cluster.leader_epochs`."""
        latest = dict.fromkeys(sorted(set(topic_partitions)), library().admin.OffsetSpec.latest())
        return {tp: answer.leader_epoch for tp, answer in self._list(latest, self.isolation).items()}

    def cuts(self, positions: Positions) -> dict[TopicPartition, int]:
        """See `Cluster.cuts`. A consumer of its own asks, because the admin client cannot."""
        return find_cuts(self.brokers, self.options, positions, self.timeout_s)

    def bounds_quickly(self, topic: TopicDescription) -> dict[TopicPartition, Bounds] | None:
        """Return the bounds of a topic's partitions with the ends of their logs, for a tenth of the CPU time.

        Args:
            topic: a described topic, with some hundred partitions.

        Returns:
            None if a partition has no answer; then `bounds_of` gives the cause.

        Raises:
            SettingsError, TokenUnavailable: see `KafkaCluster`.
        """
        with self._lock:
            if self._many is None:
                self._many = ManyOffsets(self.brokers, self.options, self.isolation)
        found = self._many.of_topic(topic.topic, topic.partitions)
        if found is None:
            return None
        rows = zip(topic.partitions, *found, strict=True)
        return {
            TopicPartition(topic.topic, n): Bounds(first, end, topic.topic_id, last, topic.cluster_id)
            for n, first, end, last in rows
        }

    def anew(self) -> KafkaCluster:
        """See `Cluster.anew`. It takes a connection of its own."""
        return KafkaCluster(self.brokers, self.options, isolation=self.isolation, timeout_s=self.timeout_s)

    def with_log_ends(self, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Bounds]:
        """Return `bounds` with the ends of the logs, which include open transactions.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        latest = dict.fromkeys(bounds, library().admin.OffsetSpec.latest())
        ends = self._offsets(latest, "read_uncommitted") if self.isolation == "read_committed" else {}
        return {tp: here._replace(log_end=ends.get(tp, here.end)) for tp, here in bounds.items()}

    def offsets_for_times(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """See `Cluster.offsets_for_times`."""
        if timestamp_ms < 0:
            raise SettingsError(f"the timestamp {timestamp_ms} is negative: give milliseconds since 1970")
        wanted = sorted(set(topic_partitions))
        # Read the ends first: records that arrive in between are then after the answer, and are read.
        specs = library().admin.OffsetSpec
        ends = self._offsets(dict.fromkeys(wanted, specs.latest()), self.isolation)
        found = self._offsets(dict.fromkeys(wanted, specs.for_timestamp(timestamp_ms)), self.isolation)
        return {tp: offset if offset >= 0 else ends[tp] for tp, offset in found.items()}

    def first_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp of each partition's first record at or after a time; left out if there is none.

        The answer comes from an index of the broker; no record is read, so no permission to read is needed.

        Args:
            times_ms: the time for each partition, milliseconds since 1970.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        specs = library().admin.OffsetSpec
        asked = {tp: specs.for_timestamp(time_ms) for tp, time_ms in times_ms.items()}
        found = self._list(asked, self.isolation)
        return {tp: (answer.offset, answer.timestamp) for tp, answer in found.items() if answer.offset >= 0}

    def retentions(self, topics: Iterable[str]) -> Retentions:
        """Return for how long topics keep their records.

        Raises:
            BrokerUnavailable: see `Cluster`.
        """
        asked = list(topics)
        settings = self.settings("topic", asked)
        hidden = {topic: _HIDDEN for topic in asked if topic not in settings}
        deleted = {topic: each for topic, each in settings.items() if "delete" in each.get("cleanup.policy", "")}
        kept_ms = {topic: int(each.get("retention.ms") or -1) for topic, each in deleted.items()}
        by_size = {topic: _BY_SIZE for topic, each in deleted.items() if int(each.get("retention.bytes") or -1) >= 0}
        return Retentions({topic: ms for topic, ms in kept_ms.items() if ms >= 0}, hidden | by_size)

    def settings(self, kind: Literal["topic", "broker"], names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics, or of brokers by their ids; left out if they may not be read.

        Raises:
            BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        admin = library().admin

        def ask(some: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            resources = [admin.ConfigResource(admin.ConfigResource.Type[kind.upper()], name) for name in some]
            futures = self._admin.client.describe_configs(resources, request_timeout=seconds) if some else {}
            return {resource.name: future for resource, future in futures.items()}

        absent = {CodeVerdict.UNKNOWN_TOPIC, CodeVerdict.REFUSED}
        found = self._admin.gather(list(dict.fromkeys(names)), ask, f"settings of {kind} {{}}", absent=absent)
        known = {name: answer for name, answer in found.items() if answer is not None}
        return {name: {setting: entry.value for setting, entry in answer.items()} for name, answer in known.items()}

    def unverified(self) -> dict[str, str]:
        """Return the brokers that do not verify transactions, each with the setting that tells; see `verification`.

        One whose settings are not known is left out; see `shown_by_brokers`.

        Raises:
            BrokerUnavailable, NotAuthorized: see `Cluster`; no broker tells which there are.
        """
        nodes = self.nodes()
        return unverified(nodes, self.shown_by_brokers(nodes))

    def shown_by_brokers(self, nodes: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings of brokers by their ids.

        Each is asked once. One that does not answer within 3 seconds, or does not show its settings, is left out.

        Args:
            nodes: their ids.
        """
        admin, told = library().admin, {}
        asked = {id_: admin.ConfigResource(admin.ConfigResource.Type.BROKER, id_) for id_ in nodes}
        futures = {
            id_: self._admin.client.describe_configs([resource], request_timeout=_QUICK_S)[resource]
            for id_, resource in asked.items()
        }
        for id_, future in futures.items():
            with suppress(library().KafkaException):
                told[id_] = {name: entry.value for name, entry in future.result().items()}
        return told

    def nodes(self) -> dict[str, tuple[str, int]]:
        """Return the advertised host and port of each broker, by its id.

        The first broker that answers gives all, even if none of these addresses can be reached.

        Raises:
            BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        found = self._admin.call(lambda seconds: self._admin.client.list_topics(timeout=seconds).brokers)
        return {str(node.id): (node.host, node.port) for node in found.values()}

    def cluster_id(self) -> str | None:
        """Return Kafka's id of the cluster, which does not depend on the addresses given; None if it has none.

        Raises:
            BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        return self._admin.ask_cluster_id()()

    def unreached(self) -> dict[str, tuple[str, int]]:
        """Return the advertised host and port of the brokers that could not be reached so far, by their ids."""
        return self._admin.unreached()

    def record_timestamps(
        self, offsets: Mapping[TopicPartition, int], *, timeout_s: float = 10.0, isolation: Isolation | None = None
    ) -> Timestamps:
        """Return the timestamp of the first record at or after each offset, in milliseconds since 1970.

        Records whose times are in the future are passed over, up to 100 of them; if there is no other, the lowest of
        their times is returned. One consumer fetches all records. A partition is left out if it has no such record, if
        the record has no timestamp, may not be read, or was not read in time.

        Args:
            offsets: the offset to start from, by partition.
            timeout_s: seconds for all of them together.
            isolation: the isolation level, if it differs from the cluster's own.

        Raises:
            SettingsError: an option is wrong, or the isolation level is unknown.
        """
        if not offsets:
            return Timestamps({}, frozenset(), now_ms())
        settings = {**_READ_ONE, "isolation.level": check_isolation(isolation or self.isolation)}
        consumer = open_client("Consumer", self.brokers, self.options, settings)
        try:
            consumer.assign([library().TopicPartition(*tp, offset) for tp, offset in offsets.items()])
            return _read(consumer, set(offsets), monotonic() + timeout_s)
        finally:
            close(consumer.close)

    def held_since(
        self, bounds: Mapping[TopicPartition, Bounds], *, timeout_s: float = 10.0
    ) -> dict[TopicPartition, int]:
        """Return the timestamp of the first record after an open transaction, for each partition that has one.

        Args:
            bounds: bounds with the ends of the logs; see `with_log_ends`.
            timeout_s: seconds for all of them together.

        Raises:
            SettingsError: an option is wrong.
        """
        held = {tp: here.end for tp, here in bounds.items() if here.held_back}
        return self.record_timestamps(held, timeout_s=timeout_s, isolation="read_uncommitted").times_ms

    def estimate_timestamps(self, offsets: Mapping[TopicPartition, int], before_ms: int) -> dict[TopicPartition, int]:
        """Return an estimated time of the record at each offset, in milliseconds since 1970; no record is read.

        It uses the times of other records from the brokers' index. A partition is left out if no record before the
        offset has a time, or if one of these times is in the future.

        Args:
            offsets: offsets of records that Kafka holds, by partition.
            before_ms: time before which they were written, in milliseconds since 1970.

        Raises:
            UnknownTopic, BrokerUnavailable, NotAuthorized: see `Cluster`.
        """
        begun = self.first_since(dict.fromkeys(offsets, 0))
        points = {tp: [begun[tp]] for tp in offsets if tp in begun}
        until = dict.fromkeys(points, before_ms)  # the record is not newer than this
        for _ in range(_ROUNDS):
            middle = {tp: (points[tp][-1][1] + until[tp]) // 2 for tp in points}
            found = self.first_since(middle)
            for tp, known in points.items():
                if tp in found and found[tp][0] <= offsets[tp]:
                    known.append(found[tp])
                else:
                    until[tp] = middle[tp]
        # The record after the wanted one is assumed to be at the end of that time.
        times = {tp: interpolate([*known, (offsets[tp] + 1, until[tp])], offsets[tp]) for tp, known in points.items()}
        wrong = {tp for tp, known in points.items() if any(is_future(at, before_ms) for _, at in known)}
        return {tp: at for tp, at in times.items() if at is not None and tp not in wrong}

    def close(self) -> None:
        """Close the client; no further request is possible."""
        self._open = None
        if self._many is not None:
            self._many.close()
            self._many = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(KafkaCluster, isolation=self.isolation, timeout_s=self.timeout_s)
        return made, (self.brokers, dict(self.options))

    def __repr__(self) -> str:
        return f"KafkaCluster({self.brokers!r}, options={sorted(self.options)}, isolation={self.isolation!r})"

    @property
    def _admin(self) -> Admin:
        if self._open is None:
            raise SettingsError(f"the cluster at {self.brokers} is closed: create a new KafkaCluster")
        return self._open

    def _offsets(self, specs: Mapping[TopicPartition, Any], isolation: Isolation) -> dict[TopicPartition, int]:
        return {tp: answer.offset for tp, answer in self._list(specs, isolation).items()}

    def _list(self, specs: Mapping[TopicPartition, Any], isolation: Isolation) -> dict[TopicPartition, Any]:
        level = library().IsolationLevel[isolation.upper()]

        def ask(partitions: list[TopicPartition], seconds: float) -> Mapping[TopicPartition, Future[Any]]:
            futures: dict[Any, Future[Any]] = {}
            for some in (partitions[at : at + _AT_ONCE] for at in range(0, len(partitions), _AT_ONCE)):
                asked = {library().TopicPartition(*tp): specs[tp] for tp in some}
                futures |= self._admin.client.list_offsets(asked, isolation_level=level, request_timeout=seconds)
            return {TopicPartition(tp.topic, tp.partition): future for tp, future in futures.items()}

        return self._admin.gather(list(specs), ask, "partition {}", check_exist=self._check_exist)

    def _check_exist(self, partitions: Collection[TopicPartition]) -> None:
        """Raise UnknownTopic for a partition that does not exist, and not for one that only some brokers know yet."""
        known = self.describe({tp.topic for tp in partitions}, required=True)
        for tp in sorted(partitions):
            if tp.partition not in known[tp.topic].partitions:
                raise broker_error(CodeVerdict.UNKNOWN_TOPIC, "", f"partition {tp}", self.brokers)


def _description(answer: Any, cluster_id: str | None) -> TopicDescription:
    partitions = tuple(sorted(p.id for p in answer.partitions))
    replicas, in_sync = (
        min((len(getattr(p, name)) for p in answer.partitions), default=0) for name in ("replicas", "isr")
    )
    return TopicDescription(answer.name, topic_id(answer), partitions, replicas, in_sync, cluster_id)


def _read(consumer: Any, waiting: set[TopicPartition], deadline: float) -> Timestamps:
    found: dict[TopicPartition, int] = {}
    future: dict[TopicPartition, int] = {}
    refused: set[str] = set()
    while waiting and monotonic() < deadline:
        before = set(waiting)
        for message in consumer.consume(_MESSAGES, 0.1):
            tp = TopicPartition(message.topic(), message.partition())
            error = message.error()
            verdict = None if error is None else judge(error)
            if verdict is CodeVerdict.REFUSED and tp.topic in {each.topic for each in waiting}:
                refused.add(tp.topic)
                waiting -= {each for each in waiting if each.topic == tp.topic}
            if tp not in waiting or verdict not in _NO_RECORD:
                continue
            kind, timestamp_ms = message.timestamp()
            if error is None and kind != library().TIMESTAMP_NOT_AVAILABLE and timestamp_ms > 0:
                found[tp] = min(timestamp_ms, found.get(tp, timestamp_ms))
            if error is None and tp in found and is_future(found[tp], now_ms()):
                future[tp] = future.get(tp, 0) + 1
                if future[tp] < _LOOKED_AT:
                    continue
            waiting.discard(tp)
        if done := before - waiting:
            consumer.pause([library().TopicPartition(*tp) for tp in done])
    return Timestamps(found, frozenset(refused), now_ms())


def interpolate(points: Sequence[tuple[int, int]], offset: int) -> int | None:
    """Return when the record at `offset` was written, interpolated between records with known times.

    Args:
        points: (offset, milliseconds since 1970), sorted.
        offset: offset of the record.

    Returns:
        Milliseconds since 1970; None if the offset is not between two points.
    """
    after = bisect_right(points, offset, key=lambda point: point[0])
    if after and points[after - 1][0] == offset:
        return points[after - 1][1]
    if not 0 < after < len(points):
        return None
    (low, low_ms), (high, high_ms) = points[after - 1], points[after]
    return low_ms + (high_ms - low_ms) * (offset - low) // (high - low)
