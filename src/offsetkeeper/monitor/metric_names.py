"""Names, labels and meanings of metrics.

Names are those of kafka-lag-exporter where they mean the same, `offsetkeeper_…` otherwise; on request those of
kafka_exporter are beside them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Detail = Literal["partitions", "groups"]


class Name(NamedTuple):
    """Name, labels and meaning of a metric."""

    name: str
    labels: tuple[str, ...]
    help: str


_PARTITION = ("group", "topic", "partition")
_HELD = ("topic", "partition")
LAG = {
    "position": Name("kafka_consumergroup_group_offset", _PARTITION, "Next offset to read, as committed."),
    "records": Name("kafka_consumergroup_group_lag", _PARTITION, "Unread records of the group."),
    "seconds": Name("kafka_consumergroup_group_lag_seconds", _PARTITION, "Age of the first unread record."),
    "lost": Name("offsetkeeper_partition_lost_offsets", _PARTITION, "Offsets that retention deleted unread."),
    "retention_used": Name(
        "offsetkeeper_partition_retention_used_ratio", _PARTITION, "Used share of retention of the first unread record."
    ),
    "seconds_left": Name(
        "offsetkeeper_partition_retention_left_seconds",
        _PARTITION,
        "Seconds until retention deletes the first unread record.",
    ),
}
"""Metrics of each partition of a group, by attribute of `Lag`."""
BOUNDS = {
    "end": Name("kafka_partition_latest_offset", _HELD, "Offset after the last record."),
    "beginning": Name("kafka_partition_earliest_offset", _HELD, "Offset of the first record."),
}
"""Metrics of each partition of Kafka, by attribute of `Lag`."""
READABLE = Name(
    "offsetkeeper_group_readable", ("group",), "0 if the ledger of the group is damaged, or if Kafka refuses."
)
TOPIC_SUM = Name(
    "kafka_consumergroup_group_topic_sum_lag", ("group", "topic"), "Unread records of the group in the topic."
)


_OF_EXPORTER = ("consumergroup", "topic", "partition")
KAFKA_EXPORTER = (
    {
        "position": Name("kafka_consumergroup_current_offset", _OF_EXPORTER, "Next offset to read, as committed."),
        "records": Name("kafka_consumergroup_lag", _OF_EXPORTER, "Unread records of the group."),
    },
    {
        "end": Name("kafka_topic_partition_current_offset", _HELD, "Offset after the last record."),
        "beginning": Name("kafka_topic_partition_oldest_offset", _HELD, "Offset of the first record."),
    },
)
"""The names of kafka_exporter for metrics of each partition: of a group, and of Kafka."""
KAFKA_EXPORTER_SUMS = {
    "position": Name("kafka_consumergroup_current_offset_sum", _OF_EXPORTER[:2], "Next offsets, of all partitions."),
    "records": Name("kafka_consumergroup_lag_sum", _OF_EXPORTER[:2], "Unread records of the group in the topic."),
}
KAFKA_EXPORTER_TOPICS = Name("kafka_topic_partitions", ("topic",), "Number of partitions of a topic that is read.")
