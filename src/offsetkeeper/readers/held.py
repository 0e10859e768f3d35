"""Messages of confluent-kafka that wait for their turn. Runs on executors; `native/` does the same in C."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsetkeeper.readers.turns import turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetkeeper.readers.turns import Range

_OBJECT = 200  # bytes that a message takes besides what is in it, about
_FORGET = 1000


@dataclass
class Unread:
    """See `Rest`."""

    position: int
    end: int


class _Queue:
    """Messages of one range, in its order; those before `at` were given."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.at = 0

    def forget(self) -> None:
        """Drop the messages that were given, many at a time."""
        if self.at == len(self.messages) or (self.at > _FORGET and 2 * self.at > len(self.messages)):
            for each in (self.messages, self.offsets, self.sizes):
                del each[: self.at]
            self.at = 0


class Held:
    """Messages that have come, and are given in the order of `turns`.

    Args:
        ranges: that are read.

    Attributes:
        rests: of each range, what has not come; who puts messages moves the positions.
        sizes: bytes that wait, of each range.
        total: their sum.
        awaited: the number of the range whose turn it is; None where all turns are over.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._queues = [_Queue() for _ in ranges]
        self._turns = turns(ranges)
        self.rests = [Unread(*rest) for _, _, *rest in ranges]
        self.sizes = [0] * len(ranges)
        self.total = 0
        self.awaited: int | None
        self.awaited, self._until = next(self._turns, (None, 0))

    def put(self, number: int, messages: list[Any], offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Keep messages of a range, which follow on those before."""
        queue, size = self._queues[number], sum(sizes) + _OBJECT * len(messages)
        queue.messages += messages
        queue.offsets += offsets
        queue.sizes += sizes
        self.sizes[number] += size
        self.total += size

    def give(self, most: int, most_bytes: int) -> list[Any]:
        """Return the messages whose turn it is, in order, up to so many and about so many bytes, but at least one."""
        given: list[Any] = []
        bytes_left = most_bytes
        while (number := self.awaited) is not None and len(given) < most and bytes_left > 0:
            queue = self._queues[number]
            behind = bisect_left(queue.offsets, self._until, queue.at)
            stop = min(behind, queue.at + most - len(given))
            size = sum(queue.sizes[queue.at : stop])
            if size > bytes_left:
                stop, size = _fitting(queue, bytes_left)
            given += queue.messages[queue.at : stop]
            held = size + _OBJECT * (stop - queue.at)
            self.sizes[number] -= held
            self.total -= held
            bytes_left -= size
            queue.at = stop
            queue.forget()
            if stop < behind or self.rests[number].position < self._until:
                break
            self.awaited, self._until = next(self._turns, (None, 0))
        return given


def _fitting(queue: _Queue, most_bytes: int) -> tuple[int, int]:
    """Return up to where messages have so many bytes, the last one maybe more, and how many they have."""
    stop, size = queue.at, 0
    while size < most_bytes:
        size += queue.sizes[stop]
        stop += 1
    return stop, size
