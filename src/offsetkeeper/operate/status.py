"""How a group is doing, in one word, by rules that are all here. Pure.

Asked in this order; the first that holds is the status:

    losing data   unread records are lost to retention, or the first unread one has had 90 % of its time
    refused       no run could start: a position is beyond the end, its topic was made again, or all topics are gone
    rewound       the newest move of a position was a reset, and nothing was committed since
    failing       records wait, and three runs in a row ended without a commit that could have read them
    stopped       records wait, and nobody holds the group
    stalled       records wait, a run holds the group, and it has been silent for three usual commit intervals
    growing       the first unread record is older than the usual commit interval, and the least that waited rose from
                  interval to interval, four in a row, to more than the most of the first
    behind        the first unread record is older than three usual commit intervals
    ok            all else

The usual commit interval is learned from the group's own history: the longest pause between two commits among the
newest. So a group that commits once a day is not stalled at noon. Until there are enough commits to know it, nothing is
stalled or behind.
What is refused goes by the policies that a pipeline has unless told otherwise; a topic that is gone beside others is
kept by them, and stands in the lag only.
Between two commits more records wait from sample to sample, and how long after a commit a sample comes is chance: so
whole intervals are compared, or samples where these are rarer. What grows more slowly is told by `behind`.
Offsets without a ledger, as in a Spark checkpoint, do not tell whether anybody is there: they are never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, takewhile

from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.operate.lag import Lag

ENOUGH = 5  # commits, to know the usual interval between them
_FAR = 3  # usual intervals
_LEAST_S = 10.0  # a pause no longer than this is none, however busy the group is
_GREW = 4  # intervals in a row
_EARLY = 0.05  # of an interval: samples do not come to the second
_UNKNOWN_S = 60.0  # where the usual interval is not known yet
_APART = 1 / 6  # of an interval, between the points that are kept
_KEPT = 30  # of them: more than four intervals
_NEARLY = 0.9
_FRUITLESS = 3  # runs in a row


class Status(StrEnum):
    """See the rules above; worst first."""

    LOSING_DATA = "losing data"
    REFUSED = "refused"
    REWOUND = "rewound"
    FAILING = "failing"
    STOPPED = "stopped"
    STALLED = "stalled"
    GROWING = "growing"
    BEHIND = "behind"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Point:
    """A sample of how much waits for a group.

    Attributes:
        at_ms: when, milliseconds since 1970.
        waiting: offsets unread; None where Kafka could not be asked.
    """

    at_ms: int
    waiting: int | None


def status(
    snapshot: Snapshot, lags: Sequence[Lag], entries: Sequence[Entry], now_ms: int, points: Sequence[Point] = ()
) -> Status:
    """Return the status of a group.

    Args:
        snapshot: its ledger.
        lags: of its partitions, measured after the snapshot was read.
        entries: its newest history, newest first; the more, the better the usual interval is known.
        now_ms: milliseconds since 1970.
        points: those before this one, oldest first; `thinned` ones will do.
    """
    waiting = sum(lag.records or 0 for lag in lags)
    interval_s = commit_interval_s(entries)
    far_s, apart_s = _FAR * (interval_s or math.inf), interval_s or _UNKNOWN_S
    rules = {
        Status.LOSING_DATA: any(lag.lost or (lag.retention_used or 0) >= _NEARLY for lag in lags),
        Status.REFUSED: _refused(lags),
        Status.REWOUND: _rewound(entries),
        Status.FAILING: bool(waiting) and _fruitless(snapshot, lags, entries, now_ms) >= _FRUITLESS,
        Status.STOPPED: bool(waiting) and snapshot.owner is None and snapshot.version > 0,
        Status.STALLED: bool(waiting) and _silence_s(entries, now_ms) > far_s,
        Status.GROWING: _waits(lags, apart_s) and _grown([*points, Point(now_ms, waiting)], apart_s),
        Status.BEHIND: any((lag.seconds or 0.0) > far_s for lag in lags),
    }
    return next((name for name, holds in rules.items() if holds), Status.OK)


def commit_interval_s(entries: Sequence[Entry]) -> float | None:
    """Return the usual commit interval: the longest pause between two of the newest commits, in seconds.

    None where it is not known yet. Pauses in which the group was acquired anew do not count.
    """
    pauses, last = [], None
    for entry in entries:
        if entry.event == "commit":
            if last is not None:
                pauses.append((last - entry.at_ms) / 1000)
            last = entry.at_ms
        elif entry.event in {"acquire", "release"}:
            last = None
    return max(*pauses, _LEAST_S) if len(pauses) >= ENOUGH - 1 else None


def thinned(points: Sequence[Point], newest: Point, entries: Sequence[Entry]) -> Sequence[Point]:
    """Return the points that growth will be told from: few, however many there are, over enough intervals.

    Args:
        points: so far, oldest first.
        newest: one more.
        entries: the group's newest history, newest first.
    """
    near_ms = (commit_interval_s(entries) or _UNKNOWN_S) * 1000 * _APART
    near = bool(points) and 0 <= newest.at_ms - points[-1].at_ms < near_ms  # less than 0 where a clock was set back
    return points if near or newest.waiting is None else (*points[-_KEPT + 1 :], newest)


def _waits(lags: Sequence[Lag], apart_s: float) -> bool:
    """Return whether a record has been unread for longer than one commit interval: a commit has missed it."""
    ages = [lag.seconds for lag in lags if lag.records]
    return any(age is None or age > apart_s for age in ages)


def _grown(points: Sequence[Point], apart_s: float) -> bool:
    """Return whether the least that waited rose from interval to interval, to more than the most of the first."""
    answered = [point for point in points if point.waiting is not None]
    gaps = (other.at_ms - one.at_ms for one, other in pairwise(answered))
    long_ms = max(apart_s * 1000, *gaps, 1.0)
    waited: list[list[int]] = [[] for _ in range(_GREW)]  # in each interval, newest first
    for point in answered:
        back = int((points[-1].at_ms - point.at_ms) / long_ms + _EARLY)
        if 0 <= back < _GREW:
            waited[back].append(point.waiting or 0)
    rose = all(waited) and all(min(newer) > min(older) for newer, older in pairwise(waited))
    return rose and min(waited[0]) > max(waited[-1])


def _refused(lags: Sequence[Lag]) -> bool:
    standings = {lag.standing for lag in lags}
    return standings == {Standing.GONE} or not standings.isdisjoint({Standing.RECREATED, Standing.BEYOND_END})


def _fruitless(snapshot: Snapshot, lags: Sequence[Lag], entries: Sequence[Entry], now_ms: int) -> int:
    """Return how many runs have ended since the newest commit or reset that had something to read from their start."""
    waiting_s = max((lag.seconds for lag in lags if lag.seconds is not None), default=0.0)
    since = takewhile(lambda entry: entry.event not in {"commit", "rewind"}, entries)
    begun = sum(entry.event == "acquire" and now_ms - entry.at_ms <= waiting_s * 1000 for entry in since)
    return begun - (snapshot.owner is not None)


def _rewound(entries: Sequence[Entry]) -> bool:
    moved = next((entry for entry in entries if entry.event in {"commit", "rewind"}), None)
    return moved is not None and moved.event == "rewind"


def _silence_s(entries: Sequence[Entry], now_ms: int) -> float:
    return (now_ms - entries[0].at_ms) / 1000 if entries else 0.0
