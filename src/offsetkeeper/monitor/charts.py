"""Shapes of the charts: lag over time, and batches on a time line. Pure. The page has the numbers as text too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from offsetkeeper.core.model import Entry
from offsetkeeper.monitor.formatting import clock, moment, number, span
from offsetkeeper.operate.status import Point

WIDE, HIGH = 1000.0, 200.0
COLUMNS = 400  # points drawn; more could not be distinguished
_SPANS = (2, 4, 10, 20, 60, 120, 240, 600, 1_200, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)  # seconds


class Value(NamedTuple):
    """A moment of a picture, for whoever points at it.

    Attributes:
        at_ms: when, milliseconds since 1970.
        x: from 0 to 1000.
        heights: of the points there, from 0 at the upper edge to 200.
        text: its values in words.
    """

    at_ms: int
    x: float
    heights: tuple[float, ...]
    text: str


class Curve(NamedTuple):
    """Unread records and their age over time, in a box of 1000 x 200.

    Attributes:
        lines, areas: what waited, as SVG paths; a poll at which it was not known leaves a gap.
        ages: the age of the oldest unread record, as an SVG path; empty where it is not known.
        top, top_s: what the upper edge stands for, records and seconds.
        first_ms, last_ms: what the left and the right edge stand for.
        values: of the points that are drawn.
    """

    lines: str
    areas: str
    ages: str
    top: int
    top_s: int
    first_ms: int
    last_ms: int
    values: tuple[Value, ...]


class Mark(NamedTuple):
    """One entry of the history on the time line.

    Attributes:
        kind: commit, or another event that moved positions or changed the owner.
        x: from 0 to 1000.
        height: of a commit, by its records; of others all.
    """

    kind: str
    x: float
    height: float


class TimeLine(NamedTuple):
    """Batches and other events on a time line, in a box of 1000 x 200; `last_ms` is now, `values` are the marks."""

    marks: tuple[Mark, ...]
    first_ms: int
    last_ms: int
    top: int
    values: tuple[Value, ...]


def curve(points: Sequence[Point], columns: int = COLUMNS) -> Curve | None:
    """Return the chart of unread records, or None before the second poll.

    Args:
        points: of the polls, oldest first.
        columns: points drawn at the most.
    """
    known = [point for point in points if point.waiting is not None]
    if len(known) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    first_ms, last_ms = points[0].at_ms, points[-1].at_ms
    top = nice(max(point.waiting or 0 for point in known))
    top_s = nice_span(max(point.seconds or 0.0 for point in known))
    drawn = _thinned(points, columns)
    waited = [(_x(p.at_ms, first_ms, last_ms), None if p.waiting is None else _y(p.waiting, top)) for p in drawn]
    aged = [(_x(p.at_ms, first_ms, last_ms), None if p.seconds is None else _y(p.seconds, top_s)) for p in drawn]
    heights = [tuple(y for y in (one[1], other[1]) if y is not None) for one, other in zip(waited, aged, strict=True)]
    values = (Value(p.at_ms, x, ys, _waited(p)) for p, (x, _), ys in zip(drawn, waited, heights, strict=True))
    lines, ages = _paths(waited), _paths(aged)
    areas = (f"M{run[0][0]:.1f} {HIGH:g}L{_path(run)}L{run[-1][0]:.1f} {HIGH:g}Z" for run in _runs(waited))
    return Curve(lines, "".join(areas), ages, top, top_s, first_ms, last_ms, tuple(values))


def time_line(
    entries: Sequence[Entry], now_ms: int, took_s: Mapping[int, float] = MappingProxyType({}), limit: int = 150
) -> TimeLine | None:
    """Return the chart of the newest entries until now, or None if there are no entries.

    Args:
        entries: newest first.
        now_ms: milliseconds since 1970.
        took_s: seconds from the begin of a batch to its commit, by version.
        limit: how many are drawn.
    """
    chosen = [entry for entry in entries if entry.event != "begin"][:limit][::-1]
    if not chosen:
        return None
    first_ms, last_ms = chosen[0].at_ms, max(now_ms, chosen[-1].at_ms)  # clocks differ
    top = nice(max(_size(entry) for entry in chosen))
    marks = tuple(Mark(entry.event, _x(entry.at_ms, first_ms, last_ms), _height(entry, top)) for entry in chosen)
    values = (
        Value(entry.at_ms, mark.x, (HIGH - mark.height,), _told(entry, took_s.get(entry.version)))
        for entry, mark in zip(chosen, marks, strict=True)
    )
    return TimeLine(marks, first_ms, last_ms, top, tuple(values))


def nice(value: int) -> int:
    """Return the next of 2, 4, 10, 20, 40, 100, … at or above a number: its half is a whole number too."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if value <= step * size:
                return step * size
        size *= 10


def nice_span(seconds: float) -> int:
    """Return a round time span at or above a number of seconds, of which the half is round too."""
    return next((step for step in _SPANS if seconds <= step), 86_400 * nice(math.ceil(seconds / 86_400)))


def _thinned(points: Sequence[Point], columns: int) -> Sequence[Point]:
    """Return at most so many points that each has its column; of those in one column the highest."""
    if len(points) <= columns:
        return points
    step = len(points) / columns
    parts = (points[int(index * step) : int((index + 1) * step)] for index in range(columns))
    return [max(part, key=lambda point: -1 if point.waiting is None else point.waiting) for part in parts]


def _runs(dots: Sequence[tuple[float, float | None]]) -> Iterator[list[tuple[float, float]]]:
    for known, run in groupby(dots, key=lambda dot: dot[1] is not None):
        if known:
            yield [(x, y) for x, y in run if y is not None]


def _path(run: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in run)


def _paths(dots: Sequence[tuple[float, float | None]]) -> str:
    return "".join(f"M{_path(run)}" for run in _runs(dots))


def _y(value: float, top: int) -> float:
    return HIGH - min(1.0, value / top) * (HIGH - 2) - 1


def _x(at_ms: int, first_ms: int, last_ms: int) -> float:
    share = (at_ms - first_ms) / (last_ms - first_ms) if last_ms > first_ms else 0.5
    return max(0.0, min(1.0, share)) * (WIDE - 8) + 4


def _size(entry: Entry) -> int:
    return sum(r.size for r in entry.ranges) if entry.event == "commit" else 0


def _height(entry: Entry, top: int) -> float:
    return max(4.0, _size(entry) / top * HIGH) if entry.event == "commit" else HIGH


def _waited(point: Point) -> str:
    if point.waiting is None:
        return f"{clock(point.at_ms)}: not known"
    age = "age not known" if point.seconds is None else f"oldest {span(point.seconds)}"
    return f"{clock(point.at_ms)}: {number(point.waiting)} waiting" + (f", {age}" if point.waiting else "")


def _told(entry: Entry, took_s: float | None) -> str:
    size = f", {number(_size(entry))} offsets" if entry.ranges else ""
    size += "" if took_s is None else f" in {span(took_s)}"
    return (
        f"{moment(entry.at_ms)}: {entry.event}{size}, version {entry.version}{f': {entry.reason}' * bool(entry.reason)}"
    )
