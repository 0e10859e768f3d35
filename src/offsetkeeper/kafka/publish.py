"""Offsets copied into Kafka's own consumer group, for the tools that look there; never read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offsetkeeper.kafka.settings import redact

if TYPE_CHECKING:
    from offsetkeeper.kafka.cluster import Cluster
    from offsetkeeper.model import TopicPartition

log = logging.getLogger("offsetkeeper")
_WAIT_S = 10.0


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

    def publish(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Put these offsets into the group; return whether that is done."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition  # noqa: PLC0415 - loaded when used
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - as above

        cluster = self._cluster
        try:
            if self._admin is None:
                self._admin = AdminClient({**cluster.options, "bootstrap.servers": cluster.brokers}, logger=log)
            wanted = [TopicPartition(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())]
            request = [ConsumerGroupTopicPartitions(self._group, wanted)]
            for future in self._admin.alter_consumer_group_offsets(request, request_timeout=_WAIT_S).values():
                refused = [each for each in future.result(2 * _WAIT_S).topic_partitions if each.error is not None]
                if refused:
                    raise RuntimeError(f"{refused[0].topic} {refused[0].partition}: {refused[0].error}")  # noqa: TRY301 - told below
        except Exception as error:  # noqa: BLE001 - tools may look at older offsets; the query must go on
            why = redact(str(error), cluster.options)
            log.warning("the offsets of group %s could not be put into Kafka's group: %s", self._group, why)
            return False
        return True
