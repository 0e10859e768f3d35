"""How a group is doing, in one word, by rules that are all here. Pure.

Asked in this order; the first that holds is the status:

    losing data   retention has taken unread records, or the first unread one has had 90 % of its time
    refused       no run could start: a position is beyond the end, its topic was made again, or all topics are gone
    rewound       the newest move of a position was a reset, and nothing was committed since
    failing       records wait, and three runs in a row ended without a commit that could have read them
    stopped       records wait, and nobody holds the group
    stalled       records wait, a run holds the group, and it has been silent for three times its habit
    growing       the first unread record is older than the habit, and the least that waited rose from habit to habit,
                  four in a row, to more than the most of the first
    behind        the first unread record is older than three times the habit
    ok            all else

The habit is learned from the group's own history: the longest pause between two commits among the newest, so a group
that commits once a day is not stalled at noon. Until there are enough commits to know it, nothing is stalled or behind.
What is refused goes by the policies that a pipeline has unless told otherwise; a topic that is gone beside others is
kept by them, and stands in the lag only.
Between two commits more records wait from look to look, and how long after a commit a look comes is chance: so whole
habits are compared, or looks where these are rarer. What grows more slowly is told by `behind`.
Offsets without a ledger, as in a Spark checkpoint, do not tell whether anybody is there: they are never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, takewhile

from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.operate.lag import Lag

ENOUGH = 5  # commits, to know a habit
_FAR = 3  # times the habit
_LEAST_S = 10.0  # a pause no longer than this is none, however busy the group is
_GREW = 4  # habits in a row
_EARLY = 0.05  # of a habit: looks do not come to the second
_UNKNOWN_HABIT_S = 60.0  # of a group whose habit is not known yet
_APART = 1 / 6  # of a habit, between the looks that are kept
_KEPT = 30  # of them: more than four habits
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
    """A group at one look.

    Attributes:
        at_ms: when, milliseconds since 1970.
        waiting: offsets unread; None where Kafka could not be asked.
    """

    at_ms: int
    waiting: int | None


def status(
    snapshot: Snapshot, lags: Sequence[Lag], entries: Sequence[Entry], now_ms: int, looks: Sequence[Point] = ()
) -> Status:
    """Return the status of a group.

    Args:
        snapshot: its ledger.
        lags: of its partitions, measured after the snapshot was read.
        entries: its newest history, newest first; the more, the better the habit is known.
        now_ms: milliseconds since 1970.
        looks: the looks before this one, oldest first; `thinned` ones will do.
    """
    waiting = sum(lag.records or 0 for lag in lags)
    habit = habit_s(entries)
    far_s = _FAR * (habit or math.inf)
    rules = {
        Status.LOSING_DATA: any(lag.lost or (lag.retention_used or 0) >= _NEARLY for lag in lags),
        Status.REFUSED: _refused(lags),
        Status.REWOUND: _rewound(entries),
        Status.FAILING: bool(waiting) and _fruitless(snapshot, lags, entries, now_ms) >= _FRUITLESS,
        Status.STOPPED: bool(waiting) and snapshot.owner is None and snapshot.version > 0,
        Status.STALLED: bool(waiting) and _silence_s(entries, now_ms) > far_s,
        Status.GROWING: _waits(lags, _apart_s(entries)) and _grown([*looks, Point(now_ms, waiting)], _apart_s(entries)),
        Status.BEHIND: any((lag.seconds or 0.0) > far_s for lag in lags),
    }
    return next((name for name, holds in rules.items() if holds), Status.OK)


def habit_s(entries: Sequence[Entry]) -> float | None:
    """Return the longest pause between two of the newest commits, in seconds, or None where it is not known yet.

    Pauses in which the group was acquired anew are none of a run's habit.
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


def thinned(looks: Sequence[Point], look: Point, entries: Sequence[Entry]) -> Sequence[Point]:
    """Return the looks that growth will be told from: few, however many are made, that reach far enough for any habit.

    Args:
        looks: so far, oldest first.
        look: the newest.
        entries: the group's newest history, newest first.
    """
    near_ms = _apart_s(entries) * 1000 * _APART
    near = bool(looks) and 0 <= look.at_ms - looks[-1].at_ms < near_ms  # less than 0 where a clock was set back
    return looks if near or look.waiting is None else (*looks[-_KEPT + 1 :], look)


def _apart_s(entries: Sequence[Entry]) -> float:
    return habit_s(entries) or _UNKNOWN_HABIT_S


def _waits(lags: Sequence[Lag], apart_s: float) -> bool:
    """Return whether a record has waited for longer than a habit, as none does that the next commit takes."""
    ages = [lag.seconds for lag in lags if lag.records]
    return any(age is None or age > apart_s for age in ages)


def _grown(looks: Sequence[Point], apart_s: float) -> bool:
    """Return whether the least that waited rose from habit to habit, to more than the most of the first."""
    answered = [look for look in looks if look.waiting is not None]
    gaps = (other.at_ms - one.at_ms for one, other in pairwise(answered))
    long_ms = max(apart_s * 1000, *gaps, 1.0)
    habits: list[list[int]] = [[] for _ in range(_GREW)]  # newest first
    for look in answered:
        back = int((looks[-1].at_ms - look.at_ms) / long_ms + _EARLY)
        if 0 <= back < _GREW:
            habits[back].append(look.waiting or 0)
    rose = all(habits) and all(min(newer) > min(older) for newer, older in pairwise(habits))
    return rose and min(habits[0]) > max(habits[-1])


def _refused(lags: Sequence[Lag]) -> bool:
    remarks = {lag.remark for lag in lags}
    return remarks == {"gone"} or not remarks.isdisjoint({"recreated", "beyond the end"})


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
