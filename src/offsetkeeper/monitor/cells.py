"""The partitions of a group as cells, one shade for each step of age or of retention used. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from offsetkeeper.core.bounds import Standing
from offsetkeeper.monitor.formatting import number, share, span
from offsetkeeper.operate.lag import Lag

SHADES: Mapping[str, str] = {"age": "age of the oldest unread record", "retention": "share of retention used"}
_STEPS = {"age": (60, 600, 3_600, 86_400), "retention": (0.1, 0.25, 0.5, 0.8)}
_MARKS = {
    Standing.UNKNOWN: "none",
    Standing.GONE: "gone",
    Standing.ELSEWHERE: "elsewhere",
    Standing.RECREATED: "recreated",
    Standing.BEYOND_END: "beyond",
    Standing.BELOW_BEGINNING: "lost",
    Standing.CUT: "lost",
}
_ABOUT_TO_GO = 0.9  # of retention
_MOST = 1000  # cells of a topic


class Cell(NamedTuple):
    """One partition.

    Attributes:
        partition: its number.
        shade: 0 where nothing is unread, 1 to 5 for a step, `unknown`, or a mark: none, gone, elsewhere,
            recreated, beyond, lost.
        text: the same in words, with its numbers.
    """

    partition: int
    shade: str
    text: str


class Strip(NamedTuple):
    """The cells of a topic: all, or those that are worst; `every` is how many partitions it has."""

    topic: str
    cells: Sequence[Cell]
    every: int


def strips(lags: Sequence[Lag], by: str, most: int | None = None) -> list[Strip]:
    """Return the partitions of each topic.

    Args:
        lags: of the partitions, sorted.
        by: the measure behind the shade, a key of `SHADES`.
        most: topics that are returned, those with the worst partitions; None for all.
    """
    topics: dict[str, list[Lag]] = {}
    for lag in lags:
        topics.setdefault(lag.topic_partition.topic, []).append(lag)
    worst = sorted(topics, key=lambda topic: min(map(behind, topics[topic])))[:most]
    return [
        Strip(topic, [_cell(lag, by) for lag in worst_of(topics[topic], _MOST)], len(topics[topic]))
        for topic in sorted(worst)
    ]


def shade_of(asked: str) -> str:
    """Return what the cells tell: what is asked for, or the first if that is unknown."""
    return asked if asked in SHADES else next(iter(SHADES))


def legend(by: str) -> list[tuple[str, str]]:
    """Return the meaning of each shade."""
    steps, shown = _STEPS[by], span if by == "age" else share
    limits = [f"< {shown(step)}" for step in steps]
    return [("0", "all read"), *zip("1234", limits, strict=True), ("5", f"{shown(steps[-1])} or more")]


def marks(found: Sequence[Strip]) -> list[tuple[str, str]]:
    """Return the marks of these cells, each with its meaning."""
    words = {
        "lost": "records lost",
        "beyond": "beyond the end",
        "elsewhere": "another cluster",
        "recreated": "topic recreated",
        "gone": "gone",
        "none": "no commit",
        "unknown": "not known",
    }
    seen = {cell.shade for strip in found for cell in strip.cells}
    return [(mark, word) for mark, word in words.items() if mark in seen]


def behind(lag: Lag) -> tuple[bool, int, float, float, int]:
    """Return what sorts the worst partition first.

    Lost records or a wrong position, then what retention is about to delete, then age (an unknown one may be any), and
    records waiting.
    """
    wrong = lag.lost or lag.standing not in {Standing.WITHIN, Standing.UNKNOWN}
    used = lag.retention_used or 0.0
    age = inf if lag.undated else max(lag.seconds or 0.0, lag.held_back_s or 0.0)
    return not wrong, -lag.lost, -used if used >= _ABOUT_TO_GO else 0.0, -age, -(lag.records or 0)


def worst_of(lags: Iterable[Lag], most: int) -> list[Lag]:
    """Return the worst partitions, so many at the most, sorted by topic and number."""
    return sorted(sorted(lags, key=behind)[:most], key=lambda lag: lag.topic_partition)


def _cell(lag: Lag, by: str) -> Cell:
    known = f"{number(lag.records)} waiting, {'~ ' if lag.estimated else ''}{span(lag.seconds)}" if lag.records else ""
    used = f", {share(lag.retention_used)} of retention" if lag.records and lag.retention_used is not None else ""
    text = ", ".join(filter(None, (lag.remark, known))) or "all read"
    return Cell(lag.topic_partition.partition, _shade(lag, by), f"{lag.topic_partition}: {text}{used}")


def _shade(lag: Lag, by: str) -> str:
    if mark := _MARKS.get(lag.standing):
        return mark
    if not lag.records:
        return "0"
    value = lag.seconds if by == "age" else lag.retention_used
    return "unknown" if value is None else str(1 + bisect_right(_STEPS[by], value))
