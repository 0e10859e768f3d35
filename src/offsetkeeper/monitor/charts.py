"""Shapes of the pictures: lag over time, batches on a time line, partitions by lag. Pure; words stand beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.model import Entry
from offsetkeeper.monitor.formatting import clock, moment, number, span
from offsetkeeper.operate.lag import Lag
from offsetkeeper.operate.status import Point

WIDE, HIGH = 1000.0, 200.0
_SHADES = 5
_SLICES = 120
_WRONG = {Standing.BEYOND_END, Standing.RECREATED}
_COLUMNS = 400  # points drawn; more can't be told apart


class Curve(NamedTuple):
    """How many waited, over time, in a box of 1000 x 200.

    Attributes:
        lines, areas: as SVG paths; a poll at which it was not known leaves a gap.
        ages: the same for the age of the oldest unread record; empty where it never was more than nothing.
        top: what the upper edge stands for.
        top_s: what it stands for in seconds of age.
        first_ms, last_ms: what the left and the right edge stand for.
        slices: parts of the picture with what was known there, for whoever points at them.
    """

    lines: str
    areas: str
    ages: str
    top: int
    top_s: float
    first_ms: int
    last_ms: int
    slices: tuple[Slice, ...]


class Slice(NamedTuple):
    """A part of a picture: where it begins, how wide it is, and what it says."""

    x: float
    width: float
    text: str


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
    """One partition.

    `shade` 0 is caught up, 5 the oldest. Others are "lost", "wrong" (beyond the end, or the topic was made again) and
    "none" (no commit, or gone).
    """

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
    top_s = max((point.seconds or 0.0 for point in known), default=0.0)
    lines, areas, ages = [], [], []
    for run in _runs(_thinned(points)):
        xs = [_x(point.at_ms, first_ms, last_ms) for point in run]
        line = _line(xs, [(point.waiting or 0) / top for point in run])
        lines.append(f"M{line}")
        areas.append(f"M{xs[0]:.1f} {HIGH:g}L{line}L{xs[-1]:.1f} {HIGH:g}Z")
        ages.append(f"M{_line(xs, [(point.seconds or 0.0) / (top_s or 1.0) for point in run])}")
    return Curve(
        "".join(lines), "".join(areas), "".join(ages) if top_s else "", top, top_s, first_ms, last_ms, _slices(points)
    )


def _line(xs: Sequence[float], heights: Sequence[float]) -> str:
    """Return the corners of a line, whose heights are shares of the whole."""
    return "L".join(f"{x:.1f} {HIGH - height * (HIGH - 2) - 1:.1f}" for x, height in zip(xs, heights, strict=True))


def _slices(points: Sequence[Point]) -> tuple[Slice, ...]:
    """Return the picture in parts, each with the newest poll in it."""
    count = min(_SLICES, len(points))
    chosen = [points[(index + 1) * len(points) // count - 1] for index in range(count)]
    return tuple(Slice(index * WIDE / count, WIDE / count, _told_of(point)) for index, point in enumerate(chosen))


def _told_of(point: Point) -> str:
    if point.waiting is None:
        return f"{clock(point.at_ms)}: Kafka could not be asked"
    return f"{clock(point.at_ms)}: {number(point.waiting)} waiting, oldest unread {span(point.seconds)}"


def time_line(entries: Sequence[Entry], now_ms: int, limit: int = 150) -> TimeLine | None:
    """Return the picture of the newest entries up to now, or None where there is none.

    Args:
        entries: newest first.
        now_ms: where it ends, milliseconds since 1970.
        limit: how many are drawn.
    """
    chosen = [entry for entry in entries if entry.event != "begin"][:limit][::-1]
    if not chosen:
        return None
    first_ms, last_ms = chosen[0].at_ms, max(now_ms, chosen[-1].at_ms)
    top = nice(max(_size(entry) for entry in chosen))
    marks = tuple(
        Mark(entry.event, _x(entry.at_ms, first_ms, last_ms), _height(entry, top), _told(entry)) for entry in chosen
    )
    return TimeLine(marks, first_ms, last_ms, top)


def cells(lags: Sequence[Lag]) -> dict[str, list[Cell]]:
    """Return the partitions of each topic, shaded by the share of its retention that the oldest record has had.

    Where no retention is known, they are shaded by the age of that record, and else by how many wait.
    """
    weight = _weight(lags)
    most = max(map(weight, lags), default=0.0)
    found: dict[str, list[Cell]] = {}
    for lag in lags:
        tp = lag.topic_partition
        waiting = lag.remark if lag.records is None else f"{number(lag.records)} waiting, {span(lag.seconds)}"
        found.setdefault(tp.topic, []).append(Cell(tp.partition, _shade(lag, weight(lag), most), f"{tp}: {waiting}"))
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


def _weight(lags: Sequence[Lag]) -> Callable[[Lag], float]:
    """Return what partitions are shaded by: the same for all of a group."""
    if any(lag.retention_used is not None for lag in lags):
        return lambda lag: lag.retention_used or 0.0
    if any(lag.seconds for lag in lags):
        return lambda lag: lag.seconds or 0.0
    return lambda lag: float(lag.records or 0)


def _shade(lag: Lag, weight: float, most: float) -> str:
    if lag.lost:
        return "lost"
    if lag.standing in _WRONG:
        return "wrong"
    if lag.records is None:
        return "none"
    if not lag.records or not most:
        return "0"
    return str(max(1, math.ceil(_SHADES * math.sqrt(weight / most))))  # one far behind must not hide others
