"""Beginnings and ends of thousands of partitions, for frequent requests.

The admin client creates a future for each partition, which takes most of its time. A consumer has one call for the
offsets of many partitions, with the times -2 and -1 for beginning and end, as brokers have them. Its errors say less:
then the admin client is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offsetkeeper.core.cluster import Isolation
from offsetkeeper.kafka.clients import library, open_client

_BEGINNING, _END = -2, -1
_TIMEOUT_S = 5.0
_SETTINGS = {"group.id": "offsetkeeper-offsets", "enable.auto.commit": "false", "enable.auto.offset.store": "false"}


class Ends(NamedTuple):
    """Offsets of a topic's partitions, in the order of the request.

    Attributes:
        beginnings: offsets of the first records.
        ends: offsets after the last records that can be read.
        log_ends: offsets after the last records, including open transactions.
    """

    beginnings: Sequence[int]
    ends: Sequence[int]
    log_ends: Sequence[int]


class ManyOffsets:
    """Asks for offsets through one client for each isolation level, kept until `close`. Safe for several threads.

    Args:
        brokers: `host:port,…`.
        options: settings of librdkafka.
        isolation: the isolation level of the ends.
    """

    def __init__(self, brokers: str, options: Mapping[str, str], isolation: Isolation) -> None:
        self._brokers, self._options, self._isolation = brokers, options, isolation
        self._clients: dict[Isolation, Any] = {}
        self._lock = threading.Lock()

    def of_topic(self, topic: str, partitions: Sequence[int]) -> Ends | None:
        """Return the offsets of a topic's partitions; None if one of them has no answer.

        Args:
            topic: its name.
            partitions: numbers; some hundreds, as librdkafka's time grows with their square.

        Raises:
            SettingsError, MissingExtra, TokenUnavailable: see `open_client`.
        """
        beginnings = self._ask(topic, partitions, _BEGINNING, self._isolation)
        ends = beginnings and self._ask(topic, partitions, _END, self._isolation)
        log_ends = ends and self._ask(topic, partitions, _END, "read_uncommitted")
        return Ends(beginnings, ends, log_ends) if beginnings and ends and log_ends else None

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, isolation: Isolation) -> Any:
        with self._lock:
            if isolation not in self._clients:
                settings = {**_SETTINGS, "isolation.level": isolation}
                self._clients[isolation] = open_client("Consumer", self._brokers, self._options, settings)
            return self._clients[isolation]

    def _ask(self, topic: str, partitions: Sequence[int], time: int, isolation: Isolation) -> list[int] | None:
        kafka = library()
        asked = [kafka.TopicPartition(topic, number, time) for number in partitions]
        try:
            found = self._client(isolation).offsets_for_times(asked, timeout=_TIMEOUT_S)
        except (kafka.KafkaException, RuntimeError):  # RuntimeError if it was closed meanwhile
            return None
        offsets = {each.partition: each.offset for each in found if each.error is None}
        # librdkafka uses numbers below 0 for no offset, also after a broken connection.
        known = [offsets.get(number, -1) for number in partitions]
        return known if min(known, default=-1) >= 0 else None
