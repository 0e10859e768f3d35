"""In which order a task gives its records: a function of its ranges alone. Pure.

Spark takes a frame that is read for determinate. If it computes a stage again, a function such as `rand(42)` gives each
record the same value as before only if the records come in the same order, whatever arrives first this time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Range = tuple[str, int, int, int]
"""An OffsetRange, as executors without offsetkeeper know it."""

LANES = 16
"""So many partitions take turns; the next one follows where one is at its end."""
_LEAST, _MOST, _ROUNDS = 8, 128, 256
# A range may have far more offsets than records: those of a compacted topic that is read from its beginning.
_MOST_TURNS = 2**21


def largest_first(ranges: Sequence[Range]) -> list[int]:
    """Return the numbers of ranges in the order in which they get their first turn."""
    return sorted(range(len(ranges)), key=lambda number: (ranges[number][2] - ranges[number][3], ranges[number][:2]))


def turns(ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yield the number of the range whose turn it is, and the offset before which the turn ends.

    A turn has so many offsets, not records: where records are is not known before they come. Short turns keep few
    records waiting, where they are large; long ones cost less. A large range has longer ones than a small range, so
    that all end at about the same time: a partition that is read alone is read slowly.

    Args:
        ranges: none is empty, and no partition comes twice.
    """
    sizes = [end - start for *_, start, end in ranges]
    largest, least = max(sizes, default=1), max(_LEAST, -(-sum(sizes) // _MOST_TURNS))
    longest = min(_MOST, largest // _ROUNDS)
    order = [
        (number, ranges[number][2], ranges[number][3], max(least, longest * sizes[number] // largest))
        for number in largest_first(ranges)
    ]
    lanes, waiting = deque(order[:LANES]), iter(order[LANES:])
    while lanes:
        number, at, end, length = lanes.popleft()
        until = min(at + length, end) if lanes else end  # who is left alone needs no turns
        yield number, until
        if until < end:
            lanes.append((number, until, end, length))
        else:
            lanes.extend(next_ for next_ in (next(waiting, None),) if next_ is not None)
