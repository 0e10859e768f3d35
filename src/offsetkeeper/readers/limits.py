"""Decides how many of the waiting records the next batch has, and whether enough wait for a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from math import ceil
from types import UnionType
from typing import TypeVar

from offsetkeeper.core.environment import monotonic
from offsetkeeper.core.offsets import MAX_OFFSET, TopicPartition, check_topic
from offsetkeeper.errors import SettingsError
from offsetkeeper.readers.ranges import fair_share

Offsets = Mapping[TopicPartition, int]
Sample = Callable[[Offsets], Mapping[TopicPartition, tuple[int, int]]]
"""Returns the number of sampled records from each offset on, and their bytes."""

_Item = TypeVar("_Item")
_UNSEEN = 1000.0  # bytes of a record where none could be sampled: else a batch would have all that waits
_AT_ONCE = 32  # partitions to sample for one batch


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest and the smallest size of a batch.

    Attributes:
        max_records: the most offsets in one batch, or None for no limit.
        max_records_per_topic: the most offsets of a topic in one batch; other topics have no limit of their own.
        max_bytes: the approximate limit of bytes in one batch: keys, values and headers, uncompressed. Kafka gives no
            sizes, so some records at the start of each batch are sampled.
        min_records: a batch starts when this many offsets wait,
        max_delay_s: or when they have waited for this many seconds.

    Raises:
        SettingsError: a number is not valid, or only one of the last two is given.
    """

    max_records: int | None = None
    max_records_per_topic: Mapping[str, int] = field(default_factory=dict)
    max_bytes: int | None = None
    min_records: int | None = None
    max_delay_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        for name in ("max_records", "max_bytes", "min_records"):
            _check(name, getattr(self, name), int)
        _check("max_delay_s", self.max_delay_s, int | float)
        if not isinstance(self.max_records_per_topic, Mapping):
            raise SettingsError(f"max_records_per_topic={self.max_records_per_topic!r}: write {{'orders': 1000}}")
        for topic, limit in self.max_records_per_topic.items():
            _check(f"max_records_per_topic[{check_topic(topic)!r}]", 0 if limit is None else limit, int)
        if (self.min_records is None) is not (self.max_delay_s is None):
            raise SettingsError("min_records and max_delay_s go together: give both or neither")

    @property
    def rows(self) -> int | None:
        """The most offsets in one batch, for Spark; None without any limit."""
        return self.max_records or (None if self == Limits() else MAX_OFFSET)

    def share(self, backlogs: Offsets, turn: int, mean_bytes: Mapping[str, float]) -> dict[TopicPartition, int]:
        """Return how many offsets each partition may give to the batch; see `fair_share`.

        Args:
            backlogs: offsets waiting in each partition.
            turn: the number of the batch.
            mean_bytes: mean bytes of the records of each topic; for a missing topic, the largest mean of all is used,
                or 1 kB without any.
        """
        capped = dict(backlogs)
        for topic, limit in self.max_records_per_topic.items():
            of_topic = {tp: size for tp, size in backlogs.items() if tp.topic == topic}
            if of_topic:
                capped |= dict.fromkeys(of_topic, 0) | fair_share(of_topic, limit, turn)
        if self.max_bytes is None:
            return fair_share(capped, self.max_records, turn)

        largest = max(mean_bytes.values(), default=_UNSEEN)

        def size_of(records: int) -> int:
            shares = fair_share(capped, records, turn)
            return ceil(sum(size * mean_bytes.get(tp.topic, largest) for tp, size in shares.items()))

        waiting = sum(size for size in capped.values() if size > 0)
        most = waiting if self.max_records is None else min(waiting, self.max_records)
        return fair_share(capped, max(1, bisect_right(range(1, most + 1), self.max_bytes, key=size_of)), turn)


class BatchSize:
    """Decides the size of one batch after the other, for one run or query.

    Args:
        limits: limits of the batches.
        sample: samples some records.
    """

    def __init__(self, limits: Limits, sample: Sample) -> None:
        self._limits = limits
        self._sample = sample
        self._mean_bytes: dict[str, float] = {}
        self._since: float | None = None  # when waiting records were first seen

    def shares(self, backlogs: Offsets, starts: Offsets, turn: int, *, last: bool = False) -> dict[TopicPartition, int]:
        """Return how many offsets each partition gives to the batch; empty if it is too early for a batch.

        Args:
            backlogs: offsets waiting in each partition.
            starts: the next offset to read in each partition.
            turn: the number of the batch.
            last: whether no more records are awaited, so that the batch does not wait.

        Raises:
            BrokerUnavailable, NotAuthorized: Kafka could not be asked.
        """
        waiting = {tp: size for tp, size in backlogs.items() if size > 0}
        if not waiting or (not last and self._waits(sum(waiting.values()))):
            return {}
        if self._limits.max_bytes is not None:
            self._look({tp: starts[tp] for tp in waiting}, turn)
        return self._limits.share(backlogs, turn, self._mean_bytes)

    def _waits(self, records: int) -> bool:
        """Whether more records are waited for."""
        least, delay_s = self._limits.min_records, self._limits.max_delay_s
        now = monotonic()
        since = now if self._since is None else self._since
        waits = least is not None and delay_s is not None and records < least and now - since < delay_s
        self._since = since if waits else None
        return waits

    def _look(self, starts: Offsets, turn: int) -> None:
        """Look at records of some of the partitions: of other topics and partitions each time."""
        of_topic = defaultdict(list)
        for tp in sorted(starts):
            of_topic[tp.topic].append(tp)
        topics = _turned([_turned(each, turn) for each in of_topic.values()], turn * _AT_ONCE)
        chosen = islice((tp for tp in chain.from_iterable(zip_longest(*topics)) if tp is not None), _AT_ONCE)
        records, size = Counter[str](), Counter[str]()
        for tp, (number, bytes_) in self._sample({tp: starts[tp] for tp in chosen}).items():
            records[tp.topic] += number
            size[tp.topic] += bytes_
        for topic in records:
            found = size[topic] / records[topic]
            self._mean_bytes[topic] = (found + self._mean_bytes.get(topic, found)) / 2


def _turned(items: list[_Item], turn: int) -> list[_Item]:
    first = turn % len(items)
    return items[first:] + items[:first]


def _check(name: str, value: object, kind: type | UnionType) -> None:
    if value is None:
        return
    if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:  # type: ignore[operator] # a number
        raise SettingsError(
            f"{name}={value!r}: use a {'whole ' * (kind is int)}number {'from 1 on' if kind is int else 'above 0'}"
        )
