"""Offsets copied into Kafka's own consumer group, for the tools that look there; never read back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from offsetkeeper.core.model import Positions, TopicPartition, kafka_positions
from offsetkeeper.kafka.settings import redact

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import Cluster
    from offsetkeeper.kafka.consumers import Consumers

log = logging.getLogger("offsetkeeper")
KEEP_S = 600.0
"""Seconds after which all offsets are put there again: Kafka forgets each of a group without members in time."""
_WAIT_S = 10.0
_WAIT_AGAIN_S = 1.0  # for who was waited for in vain: or else each batch would take so much longer


class Publisher:
    """Puts offsets into a consumer group of Kafka. What goes wrong is logged, and raises nothing.

    Args:
        cluster: whose brokers and settings to use.
        group: the consumer group; it must have no members.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._consumers: Consumers | None = None
        self._wait_s = _WAIT_S
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
                    self._wait_s = _WAIT_S
        except Exception as error:  # noqa: BLE001 - tools may look at older offsets; the query must go on
            self._wait_s = _WAIT_AGAIN_S
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

    def _put(self, offsets: Mapping[TopicPartition, int]) -> None:
        from confluent_kafka import Consumer  # noqa: PLC0415 - loaded when used

        from offsetkeeper.kafka.consumers import Consumers  # noqa: PLC0415 - as above

        if self._consumers is None:
            options = {**self._cluster.options, "bootstrap.servers": self._cluster.brokers, "log_level": "0"}
            self._consumers = Consumers(lambda settings: Consumer({**options, **settings}), self._wait_s)
        self._consumers.timeout = self._wait_s
        self._consumers.commit(self._group, offsets)
