"""How far the ranges of one consumer are read: pure. Runs on executors.

A range is read to its end when an offset at or past its last one was seen, or when the partition was said to end at or
past it. Counting records would not do: compaction and transaction markers leave holes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Range = tuple[str, int, int, int]  # an OffsetRange, as executors without offsetkeeper know it
Partition = tuple[str, int]
R = TypeVar("R", bound=Range)


def rounds(ranges: Iterable[R]) -> list[list[R]]:
    """Part sorted `ranges` so that no partition comes twice in one part: a consumer can be at one place of it only."""
    parts: list[list[R]] = []
    seen: Counter[Partition] = Counter()
    for each in ranges:
        number = seen[each[:2]]
        seen[each[:2]] += 1
        if number == len(parts):
            parts.append([])
        parts[number].append(each)
    return parts


@dataclass
class Unread:
    """What is left of a range.

    Attributes:
        position: the next offset wanted.
        end: the range's end.
        log_end: the end of the partition, where it was met.
    """

    position: int
    end: int
    log_end: int | None = None


class Positions:
    """The ranges that are not read to their end, at most one for each partition.

    Attributes:
        unread: by partition; who is missing is read.
    """

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.unread = {(topic, partition): Unread(start, end) for topic, partition, start, end in ranges}

    def select(self, partitions: Sequence[Partition], offsets: Sequence[int]) -> Iterator[slice]:
        """Yield which records are wanted, and move the positions past them.

        Args:
            partitions: of each record; a partition's records come in its order.
            offsets: of each record.
        """
        for partition, indexes in groupby(range(len(partitions)), partitions.__getitem__):
            run = [*indexes]
            yield self._advance(partition, offsets, run[0], run[-1] + 1)

    def meet_end(self, partition: Partition, log_end: int) -> None:
        """Take note that a partition ends at `log_end`, and that all before has been seen."""
        unread = self.unread.get(partition)
        if unread is not None:
            unread.log_end = log_end
            if log_end >= unread.end:
                del self.unread[partition]

    def describe(self, most: int) -> str:
        """Say what is unread; of partitions, at most so many one by one."""
        lines = [
            f"{topic} {number} at {unread.position} of {unread.end}"
            + ("" if unread.log_end is None else f" (the partition ends at {unread.log_end})")
            for (topic, number), unread in sorted(self.unread.items())
        ]
        return "; ".join(lines[:most]) + (f" and {len(lines) - most} more" if len(lines) > most else "")

    def _advance(self, partition: Partition, offsets: Sequence[int], first: int, last: int) -> slice:
        unread = self.unread.get(partition)
        if unread is None:
            return slice(0, 0)
        seen = offsets[last - 1] + 1
        first = bisect_left(offsets, unread.position, first, last)
        last = bisect_left(offsets, unread.end, first, last)
        unread.position = max(unread.position, min(seen, unread.end))
        if seen >= unread.end:
            del self.unread[partition]
        return slice(first, last)
