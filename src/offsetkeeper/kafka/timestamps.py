"""When the next record of each partition was written: one fetch for each partition, all in one consumer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from offsetkeeper.errors import NotAuthorized
from offsetkeeper.kafka.settings import Isolation, check_brokers, check_options
from offsetkeeper.model import TopicPartition

_BATCH = 2_000
# Bytes asked for of each partition. A larger record batch comes too, but only one such in each answer.
_SMALL = 65_536
_REFUSED = {"TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED"}


def record_timestamps(
    brokers: str,
    options: Mapping[str, str],
    offsets: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = "read_committed",
    timeout_s: float = 10.0,
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each offset, in milliseconds since 1970.

    A partition is absent where there is no such record, where it has no timestamp, and where it was not read in time.

    Args:
        brokers: `host:port,…`.
        options: settings of librdkafka.
        offsets: where to look, by partition.
        isolation: whether records of open and aborted transactions count.
        timeout_s: seconds for all of them together.

    Raises:
        SettingsError: an option is wrong.
        NotAuthorized: the credentials lack a permission.
    """
    if not offsets:
        return {}
    import confluent_kafka  # noqa: PLC0415 - `import offsetkeeper` must not load it

    consumer = confluent_kafka.Consumer(
        {
            **check_options(options),
            "bootstrap.servers": check_brokers(brokers),
            "group.id": "offsetkeeper-lag",  # of no group: it neither joins nor commits
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
            "max.partition.fetch.bytes": str(_SMALL),
            "queued.min.messages": "1",
            "fetch.queue.backoff.ms": "5",
            "fetch.wait.max.ms": "10",
        }
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()])
        return _read(consumer, confluent_kafka, set(offsets), time.monotonic() + timeout_s)
    finally:
        consumer.close()


def _read(consumer: Any, library: Any, waiting: set[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    while waiting and time.monotonic() < deadline:
        done = []
        for message in consumer.consume(_BATCH, 0.1):
            error = message.error()
            if error is not None and error.name() in _REFUSED:
                raise NotAuthorized(f"the broker refuses to read {message.topic() or 'the topics'}: {error.str()}")
            tp = TopicPartition(message.topic(), message.partition())
            if tp not in waiting or (error is not None and error.name() != "_PARTITION_EOF"):
                continue
            kind, timestamp_ms = message.timestamp()
            if error is None and kind != library.TIMESTAMP_NOT_AVAILABLE:
                found[tp] = timestamp_ms
            waiting.discard(tp)
            done.append(library.TopicPartition(*tp))
        if done:
            consumer.incremental_unassign(done)
    return found
