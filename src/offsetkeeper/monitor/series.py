"""How a group's lag went on from look to look. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offsetkeeper.speed import Look

_FAR_MS = 60_000


@dataclass(frozen=True, slots=True)
class Point:
    """A group at one look, as the picture shows it.

    Attributes:
        at_ms: when, milliseconds since 1970.
        waiting: offsets unread; None where Kafka could not be asked.
    """

    at_ms: int
    waiting: int | None


def spaced(points: Sequence[Point], apart_s: float) -> list[int]:
    """Return how many waited at earlier looks that lie apart by a group's habit or more, oldest first.

    Between two commits more records wait from look to look: only looks that far apart tell whether the lag grows.

    Args:
        points: of the looks before this one, oldest first.
        apart_s: seconds.
    """
    chosen: list[int] = []
    last_ms = None
    for point in reversed(points):
        if point.waiting is not None and (last_ms is None or last_ms - point.at_ms >= apart_s * 1000):
            chosen.append(point.waiting)
            last_ms = point.at_ms
    return chosen[::-1]


def anchored(anchors: Sequence[Look], look: Look) -> tuple[Look, ...]:
    """Return the looks that speed will be measured from: two, a minute or more apart, as lags are many.

    Speed over two looks in a row would be that of the batch which happened to end between them.

    Args:
        anchors: so far, oldest first.
        look: the newest.
    """
    if anchors and look.at_ms - anchors[-1].at_ms < _FAR_MS:
        return tuple(anchors)
    return (*anchors[-1:], look)
