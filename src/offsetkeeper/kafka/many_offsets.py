"""Beginnings and ends of thousands of partitions, asked again and again.

The admin client makes a future for each partition, which is most of the time that its answer takes. A consumer has one
call for the offsets of many partitions, and takes the times -2 and -1 for the beginning and the end, as brokers do.
It tells less about what went wrong: then the admin client is asked.
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
    """Offsets of a topic's partitions, in the order in which they were asked for.

    Attributes:
        beginnings: of the first records.
        ends: after the last records that can be read.
        log_ends: after the last records, whatever transactions are open.
    """

    beginnings: Sequence[int]
    ends: Sequence[int]
    log_ends: Sequence[int]


class ManyOffsets:
    """Asks for offsets, through one client for each isolation; they are kept until `close`. Safe for several threads.

    Args:
        brokers: `host:port,…`.
        options: settings of librdkafka.
        isolation: what the end of a partition is.
    """

    def __init__(self, brokers: str, options: Mapping[str, str], isolation: Isolation) -> None:
        self._brokers, self._options, self._isolation = brokers, options, isolation
        self._clients: dict[Isolation, Any] = {}
        self._lock = threading.Lock()

    def of_topic(self, topic: str, partitions: Sequence[int]) -> Ends | None:
        """Return the offsets of a topic's partitions; None where one of them cannot be told.

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
        except (kafka.KafkaException, RuntimeError):  # the second where it was closed meanwhile
            return None
        offsets = {each.partition: each.offset for each in found if each.error is None}
        # Below 0 is a name of librdkafka's for no offset, which it also gives where a connection breaks.
        known = [offsets.get(number, -1) for number in partitions]
        return known if min(known, default=-1) >= 0 else None
