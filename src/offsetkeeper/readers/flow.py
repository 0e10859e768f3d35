"""Decides which partitions of a task are fetched: few records wait, and the awaited partition always comes. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper.readers.turns import LANES, Range, largest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

LIMIT = 16 * 2**20
"""Bytes of records that may wait for their turn. One call, and the partition that is awaited, may go beyond it."""
_AHEAD = 20_000  # offsets that are fetched at once, so that small partitions come together


class Change(NamedTuple):
    """What is to be done, for numbers of ranges.

    Attributes:
        begin: to be fetched from their beginning.
        pause: to be fetched no more, for now or for ever.
        resume: to be fetched on, from the next offset wanted.
    """

    begin: list[int]
    pause: list[int]
    resume: list[int]


_NOTHING = Change([], [], [])


class Flow:
    """The ranges that are fetched, by their numbers.

    Args:
        ranges: of a task; none is empty, and no partition comes twice.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._sizes = [end - start for *_, start, end in ranges]
        self._waiting = deque(largest_first(ranges))
        self._open: dict[int, None] = {}  # and not arrived, in the order of first turns
        self._ahead = 0  # offsets of those
        self._paused: set[int] = set()
        self._room = LIMIT // 4

    def change(self, awaited: int | None, arrived: Collection[int], held: Callable[[int], int], total: int) -> Change:
        """Return what is to be done now.

        Args:
            awaited: the range whose turn it is; None where all was given.
            arrived: those that have arrived to their end since the last call.
            held: tells how many bytes of a range wait.
            total: their sum.
        """
        pause = [number for number in arrived if number not in self._paused]
        for number in arrived:
            self._open.pop(number, None)
            self._ahead -= self._sizes[number]
        self._paused.difference_update(arrived)
        begin = self._begin(awaited, total)
        if total <= self._room and not self._paused:
            return Change(begin, pause, []) if begin or pause else _NOTHING
        resume = []
        for place, number in enumerate(self._open):
            most = LIMIT if place < LANES else LIMIT // 2  # those whose turn comes last stop first
            if number in self._paused:
                if number == awaited or (held(number) <= self._room // 2 and 4 * total <= 3 * most):
                    resume.append(number)
            elif number != awaited and (held(number) > self._room or total > most):
                pause.append(number)
                self._paused.add(number)
        self._paused.difference_update(resume)
        return Change(begin, pause, resume)

    def _begin(self, awaited: int | None, total: int) -> list[int]:
        """Open ranges in the order of their first turns: enough for all lanes, and small ones many at once."""
        begun: list[int] = []
        few = len(self._open) < LANES or self._ahead <= _AHEAD // 2
        while self._waiting:
            size = self._sizes[self._waiting[0]]
            fits = few and total <= LIMIT // 2 and (len(self._open) < LANES or self._ahead + size <= _AHEAD)
            if not fits and awaited not in self._waiting:
                break
            number = self._waiting.popleft()
            self._open[number] = None
            self._ahead += size
            begun.append(number)
        return begun
