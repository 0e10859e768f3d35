"""Shapes of the pictures: lag over time, batches on a time line, partitions by lag. Pure; words stand beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from offsetkeeper.core.model import Entry
from offsetkeeper.monitor.formatting import moment, number, span
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.status import Point

WIDE, HIGH = 1000.0, 200.0
_SHADES = 5
_COLUMNS = 400  # points drawn; more can't be told apart


class Curve(NamedTuple):
    """How many waited, over time, in a box of 1000 x 200.

    Attributes:
        lines, areas: as SVG paths; a poll at which it was not known leaves a gap.
        top: what the upper edge stands for.
        first_ms, last_ms: what the left and the right edge stand for.
    """

    lines: str
    areas: str
    top: int
    first_ms: int
    last_ms: int


class Mark(NamedTuple):
    """One entry of the history on the time line.

    Attributes:
        kind: commit, or what else moved or handed over the group.
        x: from 0 to 1000.
        height: of a commit, by its records; of others all.
        text: what it was, for whoever points at it.
    """

    kind: str
    x: float
    height: float
    text: str


class TimeLine(NamedTuple):
    """Batches and what happened between them, in a box of 1000 x 200."""

    marks: tuple[Mark, ...]
    first_ms: int
    last_ms: int
    top: int


class Cell(NamedTuple):
    """One partition: `shade` 0 is caught up, 5 the most behind, or it is "lost" or "none" (no commit, or gone)."""

    partition: int
    shade: str
    text: str


def curve(points: Sequence[Point]) -> Curve | None:
    """Return the picture of what waited, or None before there are two polls."""
    known = [point for point in points if point.waiting is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    first_ms, last_ms = points[0].at_ms, points[-1].at_ms
    top = nice(max(point.waiting or 0 for point in known))
    lines, areas = [], []
    for run in _runs(_thinned(points)):
        dots = [
            (_x(point.at_ms, first_ms, last_ms), HIGH - (point.waiting or 0) / top * (HIGH - 2) - 1) for point in run
        ]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in dots)
        lines.append(f"M{line}")
        areas.append(f"M{dots[0][0]:.1f} {HIGH:g}L{line}L{dots[-1][0]:.1f} {HIGH:g}Z")
    return Curve("".join(lines), "".join(areas), top, first_ms, last_ms)


def time_line(entries: Sequence[Entry], limit: int = 150) -> TimeLine | None:
    """Return the picture of the newest entries, or None where there is none.

    Args:
        entries: newest first.
        limit: how many are drawn.
    """
    chosen = [entry for entry in entries if entry.event != "begin"][:limit][::-1]
    if not chosen:
        return None
    first_ms, last_ms = chosen[0].at_ms, chosen[-1].at_ms
    top = nice(max(_size(entry) for entry in chosen))
    marks = tuple(
        Mark(entry.event, _x(entry.at_ms, first_ms, last_ms), _height(entry, top), _told(entry)) for entry in chosen
    )
    return TimeLine(marks, first_ms, last_ms, top)


def cells(lags: Sequence[Lag]) -> dict[str, list[Cell]]:
    """Return the partitions of each topic, shaded by how much waits."""
    most = max((lag.records or 0 for lag in lags), default=0)
    found: dict[str, list[Cell]] = {}
    for lag in lags:
        tp = lag.topic_partition
        waiting = lag.remark if lag.records is None else f"{number(lag.records)} waiting, {span(lag.seconds)}"
        found.setdefault(tp.topic, []).append(Cell(tp.partition, _shade(lag, most), f"{tp}: {waiting}"))
    return found


def nice(value: int) -> int:
    """Return the next of 2, 4, 10, 20, 40, 100, … at or above a number: its half is a whole number too."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if value <= step * size:
                return step * size
        size *= 10


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most so many points that each has its column; of those in one column the highest."""
    if len(points) <= _COLUMNS:
        return points
    step = len(points) / _COLUMNS
    columns = (points[int(index * step) : int((index + 1) * step)] for index in range(_COLUMNS))
    return [max(column, key=lambda point: -1 if point.waiting is None else point.waiting) for column in columns]


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    for known, run in groupby(points, key=lambda point: point.waiting is not None):
        if known:
            yield list(run)


def _x(at_ms: int, first_ms: int, last_ms: int) -> float:
    share = (at_ms - first_ms) / (last_ms - first_ms) if last_ms > first_ms else 0.5
    return max(0.0, min(1.0, share)) * (WIDE - 8) + 4


def _size(entry: Entry) -> int:
    return sum(r.size for r in entry.ranges) if entry.event == "commit" else 0


def _height(entry: Entry, top: int) -> float:
    return max(4.0, _size(entry) / top * HIGH) if entry.event == "commit" else HIGH


def _told(entry: Entry) -> str:
    size = f", {number(_size(entry))} offsets" if entry.ranges else ""
    return (
        f"{entry.event} {moment(entry.at_ms)}{size}, version {entry.version}{f': {entry.reason}' * bool(entry.reason)}"
    )


def _shade(lag: Lag, most: int) -> str:
    if lag.lost:
        return "lost"
    if lag.records is None:
        return "none"
    return str(math.ceil(_SHADES * math.sqrt(lag.records / most)) if most else 0)  # one far behind must not hide others
