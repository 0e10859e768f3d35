"""Partitions, offset ranges and positions, as Kafka has them.

Offsets are integers from 0, one per record, with holes after compaction and at transaction markers. A position is the
next offset to read. A range is half-open: it includes `start`, but not `end`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from offsetkeeper.errors import SettingsError

MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPartition(NamedTuple):
    """One partition of one topic. Sorts by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}"


class OffsetRange(NamedTuple):
    """The records of one partition from offset `start` up to, but not including, offset `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets, an upper bound of the number of records."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic} {self.partition} {self.start} {self.end}"


class Position(NamedTuple):
    """Where reading of one partition resumes.

    Attributes:
        offset: the next offset to read.
        topic_id: Kafka's id of the topic that the offset belongs to, or None if unknown.
            A topic that is deleted and created again gets a new id.
        cluster_id: Kafka's id of the cluster that the topic is in, or None if unknown.
        leader_epoch: the partition's leader epoch when Kafka last held all records before the offset, or None if
            unknown. An election of a replica that lacks records is noticed by it.
    """

    offset: int
    topic_id: str | None = None
    cluster_id: str | None = None
    leader_epoch: int | None = None


Positions = Mapping[TopicPartition, Position]
NO_POSITIONS: Positions = MappingProxyType({})


def topics_of(positions: Positions) -> set[str]:
    """Return the names of the topics that have positions."""
    return {tp.topic for tp in positions}


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's Kafka source writes them, `{"orders": {"0": 15}}`, sorted by topic and partition."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def digest_of(offsets: Mapping[TopicPartition, int]) -> str:
    """Return a text that tells offsets given for a start from all others; empty if there are none."""
    text = json.dumps(by_topic(offsets)).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest() if offsets else ""


def check_topic(name: str) -> str:
    """Return `name` if Kafka allows it as a topic name.

    Raises:
        SettingsError: Kafka does not allow it.
    """
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise SettingsError(f"{name!r} is not a topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    return name


def check_partition(tp: TopicPartition) -> TopicPartition:
    """Return `tp` if Kafka allows the topic's name, and the partition is a number from 0 to 2**31 - 1.

    Raises:
        SettingsError: the name or the number is not valid.
    """
    check_topic(tp.topic)
    if type(tp.partition) is not int or not 0 <= tp.partition <= MAX_PARTITION:
        raise SettingsError(f"{tp.partition!r} is not a partition of {tp.topic}: use an integer from 0 to 2**31 - 1")
    return tp


def check_offset(offset: int) -> int:
    """Return `offset` if it is an integer from 0 to 2**63 - 1.

    Raises:
        SettingsError: it is not such an integer.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MAX_OFFSET:
        raise SettingsError(f"{offset!r} is not an offset: use an integer from 0 to 2**63 - 1")
    return offset
