"""Offsets copied into Kafka's own consumer group, for the tools that look there; never read back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import stamina

from offsetkeeper.kafka.settings import redact
from offsetkeeper.model import Positions, kafka_positions

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import Cluster

log = logging.getLogger("offsetkeeper")
KEEP_S = 600.0
"""Seconds after which all offsets are put there again: Kafka forgets each of a group without members in time."""
_WAIT_S = 10.0
# The first group of a cluster, and each one whose broker went away, has to wait for its coordinator.
_STARTING = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})


class _NotYet(RuntimeError):
    """The group's coordinator cannot take offsets for a moment."""


class Publisher:
    """Puts offsets into a consumer group of Kafka. What goes wrong is logged, and raises nothing.

    Args:
        cluster: whose brokers and settings to use.
        group: the consumer group; it must have no members.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._admin: Any = None
        self._lock = threading.Lock()  # so that what was read first is written first
        self._stop = threading.Event()

    def publish(self, positions: Callable[[], Positions]) -> bool:
        """Put the positions into the group; return whether that is done."""
        try:
            with self._lock:
                if self._stop.is_set():
                    return False
                offsets = {tp: at.offset for tp, at in sorted(kafka_positions(positions()).items())}
                if offsets:
                    self._put(offsets)
        except Exception as error:  # noqa: BLE001 - tools may look at older offsets; the query must go on
            why = redact(str(error), self._cluster.options)
            log.warning("the offsets of group %s could not be put into Kafka's group: %s", self._group, why)
            return False
        return True

    def keep(self, positions: Callable[[], Positions]) -> None:
        """Put all positions into the group now, and again every `KEEP_S` seconds until `close`, from a thread."""

        def go_on() -> None:
            self.publish(positions)
            while not self._stop.wait(KEEP_S):
                self.publish(positions)

        threading.Thread(target=go_on, name="offsetkeeper-publish", daemon=True).start()

    def close(self) -> None:
        """Put nothing more there, once what is under way is done."""
        self._stop.set()
        if self._lock.acquire(timeout=2 * _WAIT_S):
            self._lock.release()

    def _put(self, offsets: Mapping[Any, int]) -> None:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition  # noqa: PLC0415 - loaded when used
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - as above

        cluster = self._cluster
        if self._admin is None:
            self._admin = AdminClient({**cluster.options, "bootstrap.servers": cluster.brokers}, logger=log)
        wanted = [TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(self._group, wanted)]
        for attempt in stamina.retry_context(on=_NotYet, attempts=None, timeout=_WAIT_S, wait_max=1.0):
            with attempt:
                for future in self._admin.alter_consumer_group_offsets(request, request_timeout=_WAIT_S).values():
                    _check(future.result(2 * _WAIT_S).topic_partitions)


def _check(answers: Sequence[Any]) -> None:
    """Raise that an offset was not taken."""
    for each in answers:
        if each.error is not None:
            kind = _NotYet if each.error.name() in _STARTING else RuntimeError
            raise kind(f"{each.topic} {each.partition}: {each.error}")
