"""Asks brokers whether a log still has the records that were read, or was cut by an election (KIP-320).

A consumer that is assigned an offset with the leader epoch of its record asks the leader where that epoch ended, before
it gets a record. librdkafka tells a cut by a text alone, and an intact log by nothing: a record, or the end of the
partition, shows that the question was answered. The texts are those of rd_kafka_handle_OffsetForLeaderEpoch in
librdkafka 2.16 (rdkafka_offset.c); the codes are those of a position that is out of range.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from offsetkeeper.core.environment import monotonic
from offsetkeeper.core.offsets import Positions, TopicPartition
from offsetkeeper.kafka.clients import library, open_client
from offsetkeeper.kafka.closing import close
from offsetkeeper.kafka.codes import NO_GROUP_NEEDED, CodeVerdict, broker_error, judge

_SETTINGS = {
    "group.id": "offsetkeeper-cuts",  # not a real group: the client neither joins nor commits
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # an open transaction would hide the record that is waited for
    "max.partition.fetch.bytes": "65536",
    "queued.min.messages": "1",
    "fetch.queue.backoff.ms": "5",
    "fetch.wait.max.ms": "10",
}
_MESSAGES = 2_000
_CUT = re.compile(
    r"log truncation detected at offset \d+ \(leader epoch (\d+)\): "
    r"broker end offset is (\d+) \(offset leader epoch (\d+)\)"
)
_NO_EPOCH = "No epoch found less or equal"


def find_cuts(
    brokers: str, options: Mapping[str, str], positions: Positions, timeout_s: float
) -> dict[TopicPartition, int]:
    """Return `Bounds.common` of each partition whose log was cut before the position; the others are intact.

    Args:
        brokers: some brokers of the cluster.
        options: settings of librdkafka.
        positions: positions with leader epochs; the log must hold them, or end before them.
        timeout_s: seconds for all of them together.

    Raises:
        BrokerUnavailable, UnknownTopic, NotAuthorized: see `Cluster`.
        SettingsError: an option is wrong.
    """
    waiting = {tp: at for tp, at in positions.items() if at.leader_epoch is not None}
    if not waiting:
        return {}
    consumer = open_client("Consumer", brokers, options, _SETTINGS)
    try:
        made = library().TopicPartition
        # A consumer that is assigned a second time does not ask again: it is a new one each time.
        consumer.assign([made(*tp, at.offset, leader_epoch=at.leader_epoch) for tp, at in waiting.items()])
        return _answers(consumer, waiting, brokers, monotonic() + timeout_s)
    finally:
        close(consumer.close)


def _answers(
    consumer: Any, waiting: dict[TopicPartition, Any], brokers: str, deadline: float
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    last = ""
    while waiting:
        if monotonic() > deadline:
            what = f"whether the log of {min(waiting)} was cut, and of {len(waiting) - 1} more"
            raise broker_error(CodeVerdict.AWAY, last or "no answer came in time", what, brokers)
        for message in consumer.consume(_MESSAGES, 0.1):
            tp, error = TopicPartition(message.topic(), message.partition()), message.error()
            verdict = None if error is None or error.name() == NO_GROUP_NEEDED else judge(error)
            if verdict in {CodeVerdict.REFUSED, CodeVerdict.FATAL}:
                raise broker_error(error, error.str(), f"partition {tp}", brokers)
            if tp not in waiting or verdict not in {None, CodeVerdict.NOTHING, CodeVerdict.GONE}:
                last = error.str() if error is not None else last
                continue
            common = None if error is None else common_offset(error.str())
            if common is not None:
                found[tp] = common
            del waiting[tp]
            consumer.pause([library().TopicPartition(*tp)])
    return found


def common_offset(text: str) -> int | None:
    """Return `Bounds.common` from librdkafka's text of an error; None if the text does not report a cut.

    The leader answers where the epoch ended, or an older one that it has. Only the first is surely the last common
    offset: of an older epoch the leader may have records that were never read.
    """
    cut = _CUT.search(text)
    if cut is not None:
        return int(cut[2]) if cut[1] == cut[3] else -1
    return -1 if _NO_EPOCH in text or "truncation" in text else None
