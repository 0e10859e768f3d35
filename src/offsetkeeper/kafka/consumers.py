"""Reused consumers: for the offsets of Kafka's own groups, and for the records of the store in Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from string import whitespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offsetkeeper.core import environment
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.errors import Refused
from offsetkeeper.kafka.clients import library, open_client, redact, timed_out
from offsetkeeper.kafka.codes import NO_CONSUMER_GROUP, NO_GROUP_NEEDED, PARTITION_END, CodeVerdict, judge
from offsetkeeper.kafka.ledger_log import Line, read_line
from offsetkeeper.kafka.tls import refused

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import KafkaCluster

log = logging.getLogger("offsetkeeper")
T = TypeVar("T")
KEEP_S = 600.0
"""Seconds after which a publisher commits all offsets again: Kafka deletes those of a group without members."""
_WAIT_S = 10.0
_WAIT_AGAIN_S = 1.0  # after a wait for a coordinator timed out; otherwise each batch would take that long
_OLDEST = -2  # librdkafka's number for the beginning
_SHORT, _LONG = 0.5, 3.0  # seconds for one try
_CONSUMERS = 16  # reused: two for each group, and one to read records
_REQUEST = 2_000  # offsets in one request: the broker writes them as one batch, of at most 1 MiB
_MEMBER = {
    "isolation.level": "read_committed",
    "enable.auto.commit": "false",
    "session.timeout.ms": f"{_LONG * 1000:.0f}",  # time that a commit waits for the group's coordinator
}
_READER = {
    "group.id": "offsetkeeper",  # the client needs a group; nothing is committed for it
    "isolation.level": "read_uncommitted",  # the store's records are not in transactions, and must not wait for any
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "10",
}


class Gone(Exception):
    """The topic does not have the requested record: it lost its tail, was created again, or the record was deleted."""


class Mark(NamedTuple):
    """A record that was read: if it is still there, so are all before it, as a log is only ever cut at its end.

    Attributes:
        offset: offset of the record.
        key: its key, which has a token that no other record has.
    """

    offset: int
    key: bytes


class Read(NamedTuple):
    """What was read of a topic.

    Attributes:
        lines: the lines that were asked for.
        end: offset up to which the topic was read.
        last: the last record of any group that was read, or None if there was none.
    """

    lines: list[Line]
    end: int
    last: Mark | None


class Consumers:
    """Reused consumers of one cluster. Any thread may use them.

    The admin client is not used for requests to a coordinator: librdkafka 2.16 may crash while a coordinator starts,
    and hangs for ever when it closes a client after such a request timed out.

    Args:
        make: creates a consumer with the given settings.
        timeout: seconds that one request may take; it may be changed.
        objection: returns why a broker's certificate is not accepted, or nothing.
    """

    def __init__(
        self, make: Callable[[Mapping[str, str]], Any], timeout: float, objection: Callable[[], str] = str
    ) -> None:
        self._objection = objection
        self._make = make
        self.timeout = timeout
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._kept: dict[tuple[str, ...], Any] = {}

    def offsets(self, group: str, asked: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return a group's committed offsets of the requested partitions.

        Raises:
            KafkaException: the request took longer than the time limit, a transaction stayed open, or another error.
        """
        partitions = [library().TopicPartition(*tp) for tp in asked]
        if not partitions:
            return {}

        def committed(member: Any, seconds: float) -> dict[TopicPartition, int]:
            return dict(map(_offset, member.committed(partitions, seconds)))

        found = self._ask(_member(group), committed)
        return {tp: offset for tp, offset in found.items() if offset >= 0}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members.

        Raises:
            Refused: it is no consumer group.
            KafkaException: not all were committed.
        """
        rows = [library().TopicPartition(*tp, offset) for tp, offset in offsets.items()]

        def commit(member: Any, _: float) -> None:
            for start in range(0, len(rows), _REQUEST):
                list(map(_offset, member.commit(offsets=rows[start : start + _REQUEST], asynchronous=False)))

        try:
            self._ask(_member(group), commit)
        except library().KafkaException as error:
            if error.args[0].name() == NO_CONSUMER_GROUP:
                raise no_consumer_group(group) from error
            raise

    def exists(self, topic: str) -> bool:
        """Return whether a topic exists.

        Raises:
            KafkaException: the topic may not be described (a list of all topics would only leave it out); or another
                error.
        """

        def ask(consumer: Any, seconds: float) -> bool:
            error = consumer.list_topics(topic, seconds).topics[topic].error
            if error is not None and judge(error) is not CodeVerdict.UNKNOWN_TOPIC:
                raise named(error, f"topic {topic}")
            return error is None

        return self._ask(_READER, ask)

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic of the cluster."""
        return {name: len(topic.partitions) for name, topic in self.metadata().topics.items() if not topic.error}

    def metadata(self) -> Any:
        """Return the brokers' metadata on themselves and on all topics."""
        return self._ask(_READER, lambda consumer, seconds: consumer.list_topics(timeout=seconds))

    def end(self, topic: str) -> int:
        """Return the end offset of the topic's single partition."""
        asked = library().TopicPartition(topic, 0)
        found: int = self._ask(_READER, lambda reader, seconds: reader.get_watermark_offsets(asked, seconds))[1]
        return found

    def read(self, topic: str, group: str = "", start: int | Mark = _OLDEST) -> Read:
        """Read lines of the topic's single partition to its end.

        Args:
            topic: the topic to read.
            group: the group whose lines are wanted; empty for all.
            start: the first offset to read, or the record after which to read.

        Raises:
            Gone: the topic ends before that offset, or begins after it, or has another record there.
            KafkaException: no success within the time limit, or another error.
        """
        after = start if isinstance(start, Mark) else None

        def read(reader: Any, seconds: float) -> Read:
            partition = library().TopicPartition(topic, 0, after.offset if after else start)
            # For a moment a new leader may hide records that the old leader has shown; but then it gives no end.
            end = reader.get_watermark_offsets(partition, seconds)[1]
            return _read(reader, partition, end, group, after, seconds)

        with self._reading:
            try:
                return self._ask(_READER, read)
            except library().KafkaException as error:
                if judge(error.args[0]) is CodeVerdict.GONE:
                    raise Gone from error
                raise

    def close(self) -> None:
        """Close all consumers; they are created again when needed."""
        with self._lock:
            self._kept.clear()

    def _ask(self, settings: Mapping[str, str], ask: Callable[[Any, float], T]) -> T:
        """Use a consumer with these settings, until the time limit, or until no broker was reached in two tries.

        A permanent error ends it too, for example if consumers have joined the group, which then accepts only their
        offsets.

        After any error the consumer is closed: it may not reconnect to a restarted broker.
        """
        deadline, away = environment.monotonic() + self.timeout, 0
        while True:
            consumer = self._consumer(settings)
            try:
                return ask(consumer, min(max(deadline - environment.monotonic(), _SHORT), _LONG))
            except library().KafkaException as error:
                with self._lock:
                    self._kept = {key: held for key, held in self._kept.items() if held is not consumer}
                if settings is not _READER:
                    _check_group(consumer, settings["group.id"])
                verdict = judge(error.args[0])
                if verdict.passes and (why := self._objection()):
                    raise not_accepted(why) from None
                away += verdict is CodeVerdict.AWAY
                if deadline - environment.monotonic() < _SHORT or away > 1 or not verdict.passes:
                    raise

    def _consumer(self, settings: Mapping[str, str]) -> Any:
        key = tuple(settings.values())
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(settings)
                if len(self._kept) > _CONSUMERS:
                    self._kept.pop(next(iter(self._kept)))
            return self._kept[key]


class Publisher:
    """Copies offsets into a consumer group of Kafka, for tools that read them there. Errors are logged, not raised.

    The offsets are never read back.

    Args:
        cluster: the cluster with the brokers and settings to use.
        group: the consumer group; it must have no members.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._consumers: Consumers | None = None
        self._wait_s = _WAIT_S
        self._lock = threading.Lock()  # keeps the order of reads and writes
        self._stop = threading.Event()

    def publish(self, positions: Callable[[], Positions]) -> bool:
        """Commit the positions to the group; return whether this succeeded."""
        try:
            with self._lock:
                if self._stop.is_set():
                    return False
                offsets = {tp: at.offset for tp, at in sorted(positions().items())}
                if offsets:
                    self._put(offsets)
                    self._wait_s = _WAIT_S
        except Exception as error:  # noqa: BLE001 - tools may see older offsets; the query must go on
            self._wait_s = _WAIT_AGAIN_S
            why = redact(str(error), self._cluster.options)
            log.warning("the offsets of group %r could not be committed to Kafka's group: %s", self._group, why)
            return False
        return True

    def keep(self, positions: Callable[[], Positions]) -> None:
        """Commit all positions to the group now, and again every `KEEP_S` seconds until `close`, from a thread."""

        def go_on() -> None:
            self.publish(positions)
            while not self._stop.wait(KEEP_S):
                self.publish(positions)

        threading.Thread(target=go_on, name="offsetkeeper-publish", daemon=True).start()

    def close(self) -> None:
        """Finish the current commit, and stop."""
        self._stop.set()
        if self._lock.acquire(timeout=2 * _WAIT_S):
            self._lock.release()

    def _put(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumers = self._consumers or group_consumers(self._cluster, self._wait_s)
        self._consumers.timeout = self._wait_s
        self._consumers.commit(self._group, offsets)


def group_consumers(cluster: KafkaCluster, timeout: float) -> Consumers:
    """Return consumers for the groups of a cluster; `timeout` as for `Consumers`."""
    objection = partial(refused, cluster.brokers, cluster.options)
    return Consumers(
        lambda settings: open_client("Consumer", cluster.brokers, cluster.options, settings), timeout, objection
    )


def no_consumer_group(group: str) -> Refused:
    """Return the error for a group of another type than consumer groups, which has no committed offsets."""
    return Refused(
        f"{group!r} is the name of a share group in Kafka, or of a group of another type, and not of a consumer group: "
        "Kafka itself keeps its place, and no offsets can be read or committed for it. Nothing was written. Choose "
        "another group for this pipeline"
    )


def can_be_asked(group: str) -> bool:
    """Whether Kafka can be asked for a group of this name.

    librdkafka drops white space at the beginning of a name, so it asks for another group; if nothing is left, the
    process dies.
    """
    return group[:1] not in {*whitespace}


def _member(group: str) -> dict[str, str]:
    if not can_be_asked(group):
        raise Refused(
            f"{group!r} begins with white space, which Kafka's client library drops: the offsets of another group "
            "would be used. Nothing was asked"
        )
    return {**_MEMBER, "group.id": group}


def not_accepted(why: str) -> Any:
    """Return librdkafka's exception for a broker whose certificate is not accepted."""
    kafka = library()
    return kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._AUTHENTICATION, why))  # noqa: SLF001 - its name


def named(error: Any, what: str) -> Any:
    """Return librdkafka's exception for an error, with the object of the request in its text."""
    return library().KafkaException(library().KafkaError(error.code(), f"{what}: {error.str()}"))


def _check_group(member: Any, group: str) -> None:
    """Raise an error if the group may not be used: the client only reports it, and lets the request time out."""
    while (event := member.poll(0)) is not None:
        if event.error() is not None and judge(event.error()) is CodeVerdict.REFUSED:
            raise named(event.error(), f"group {group}")


def _offset(found: Any) -> tuple[TopicPartition, int]:
    if found.error:
        raise library().KafkaException(found.error)
    return TopicPartition(found.topic, found.partition), found.offset


def _read(reader: Any, partition: Any, end: int, group: str, after: Mark | None, timeout: float) -> Read:
    """Read a partition from its offset to its end, at least to `end`; each wait is limited by `timeout` seconds."""
    lines: list[Line] = []
    last: Mark | None = None
    reader.assign([partition])
    try:
        while (message := reader.poll(timeout)) is not None:
            if message.error() is None:
                first, last = last is None, Mark(message.offset(), message.key() or b"")
                if first and after not in {None, last}:
                    raise Gone
                if last != after:
                    lines += _lines(message, group)
                if last.offset + 1 >= end:
                    return Read(lines, last.offset + 1, last)
            elif message.error().name() == PARTITION_END:
                if after and not last:
                    raise Gone
                if message.offset() >= end:
                    return Read(lines, message.offset(), last)
            elif message.error().name() != NO_GROUP_NEEDED:
                raise named(message.error(), f"topic {partition.topic}")
        raise timed_out()
    finally:
        reader.unassign()  # otherwise it would continue to fetch


def _lines(message: Any, group: str) -> list[Line]:
    """Return the line in a record, if it is one of the group, or of any group if that is empty."""
    previous = dict(message.headers() or ()).get("previous") or b""
    line = read_line(message.offset(), message.key() or b"", previous, message.value() or b"")
    return [line] if line is not None and group in {"", line.group} else []
