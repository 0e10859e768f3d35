"""The status of a group in one word, and all rules that decide it. Pure. docs/words.md explains the words to users.

The rules are checked in this order; the first one that holds gives the status:

    losing data   unread records are lost to retention, or the first unread one has had 90 % of its time
    refused       no run could start: a position is beyond the end, its topic was created again, all topics are gone, or
                  the store has lost a position
    topic gone    a topic or a partition with a position is not in Kafka any more: what was unread of it is lost
    rewound       resets since the newest commit have moved a position back from where that commit left it: what was
                  read before is unread again, unless its topic was made again; but a run that began since may be
                  failing or stalled, or ok if it waits for records
    failing       records are unread, and three runs in a row that could have read them ended without a commit; for a
                  job that a scheduler starts, one run is enough
    stopped       records are unread, and no run holds the group; a scheduled job between two runs is not stopped
    output away   a run holds the group and waits for an output; the newest entry of the history says since when, why.
                  After ten minutes, or three usual commit intervals if these are longer, it counts no more: a run that
                  waits writes one each five minutes
    stalled       records are unread, a run holds the group, and it has been silent for three usual commit intervals
    held back     a transaction has been open for 15 minutes, and no record after it can be read; one of unknown age
                  counts if no batch of the last 15 minutes has records of its partition: short ones come and go
    growing       the first unread record is older than the usual commit interval, and the lowest backlog rose from
                  interval to interval, four in a row, to more than the highest backlog of the first
    behind        the first unread record is older than three usual commit intervals, and older than 1.5 times the
                  usual time from run to run of a job
    ok            none of the above

Records of a partition that no run has begun to read are unread too: a run that was killed before does not read them. If
the age of an unread record is not known, it counts as old.
The usual commit interval comes from the group's history: nine of ten of the newest pauses between two commits, or
between the start of a run and its first commit, are not longer. So a group that commits once a day is not stalled at
noon. If fewer than four pauses are known, ten minutes replace the three intervals.
The silence of a run is never longer than the oldest unread record has waited: without records there are no commits.
A job counts as scheduled if its runs ended by themselves and began again at least twice, and no run held the group for
most of the time. Its usual time from run to run is the one that nine of ten do not exceed. If 1.5 times this time has
passed, the next run is missing.
`refused` assumes the default policies. They keep a topic that is gone while other topics exist. How many of its records
were unread nobody knows any more.
The backlog always rises between two commits, and the time from a commit to a sample is random. So whole intervals are
compared, or samples if these are rarer. A slower growth ends in `behind`.
The rules see the newest 1,000 changes of the history, and fewer for a group with more than 100 partitions.
Offsets without a ledger, such as those in a Spark checkpoint, do not show whether a run exists: they are never stopped.
15 minutes is the longest transaction that brokers allow by default.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, takewhile

from offsetkeeper.core.bounds import Standing
from offsetkeeper.core.model import RUN, START, Entry, Snapshot
from offsetkeeper.core.offsets import Position, Positions
from offsetkeeper.operate.lag import Lag

_MOST_ENTRIES, _LEAST_ENTRIES = 1_000, 20  # stores keep a thousand by default
_RANGES = 100_000  # limit of ranges in all entries that are read, about 15 MB
_ENOUGH = 4  # pauses needed to know the usual commit interval
_STOPPING = {Standing.ELSEWHERE, Standing.RECREATED, Standing.BEYOND_END}  # policies stop a start there
_FAR = 3  # usual intervals
_FAR_S = 600.0  # if the usual interval is unknown
_MISSING = 1.5  # multiple of the usual time from run to run
_USUAL = 0.9  # share of the pauses
OPEN_S = 900.0
"""Seconds that a transaction may be open: the longest that brokers allow by default."""
_LEAST_S = 10.0  # shorter pauses do not count, however busy the group is
_GREW = 4  # intervals in a row
_EARLY = 0.05  # share of an interval: samples do not come to the second
_UNKNOWN_S = 60.0  # if the usual interval is unknown
_APART = 1 / 6  # share of an interval between two kept points
_KEPT = 30  # points: more than four intervals
_NEARLY = 0.9
_FRUITLESS = 3  # runs in a row
_RUNS = 2  # pauses between runs needed to know the usual time from run to run
_PAUSES = {("commit", "commit"), ("acquire", "commit")}


class Status(StrEnum):
    """The status words; the rules are above. The worst comes first."""

    LOSING_DATA = "losing data"
    REFUSED = "refused"
    TOPIC_GONE = "topic gone"
    REWOUND = "rewound"
    FAILING = "failing"
    STOPPED = "stopped"
    OUTPUT_AWAY = "output away"
    STALLED = "stalled"
    HELD_BACK = "held back"
    GROWING = "growing"
    BEHIND = "behind"
    OK = "ok"


ALARMING = frozenset({Status.LOSING_DATA, Status.REFUSED, Status.TOPIC_GONE})
"""Statuses that are errors: records are lost, or no start goes on by itself."""


@dataclass(frozen=True, slots=True)
class Point:
    """A sample of a group's backlog.

    Attributes:
        at_ms: time of the sample, milliseconds since 1970.
        waiting: number of unread offsets; None if Kafka could not be asked.
        seconds: age of the oldest unread record; None if unknown.
    """

    at_ms: int
    waiting: int | None
    seconds: float | None = None


def status(
    snapshot: Snapshot, lags: Sequence[Lag], entries: Sequence[Entry], now_ms: int, points: Sequence[Point] = ()
) -> Status:
    """Return the status of a group.

    Args:
        snapshot: the group's ledger.
        lags: lag of its partitions, measured after the snapshot was read.
        entries: its newest history, newest first. More entries give a better usual interval.
        now_ms: milliseconds since 1970.
        points: earlier samples, oldest first; `thinned` ones are enough.
    """
    waiting = sum(lag.records or 0 for lag in lags)
    topics = {tp.topic for tp in snapshot.positions}  # a start reads their new partitions too
    unread = [lag for lag in lags if lag.records or (lag.without_commit and lag.topic_partition.topic in topics)]
    oldest_s = max((lag.seconds for lag in lags if lag.seconds is not None), default=0.0)
    interval_s, schedule_s, runs = commit_interval_s(entries), run_interval_s(entries), without_fences(entries)
    held, missing_s = snapshot.owner is not None, _MISSING * (schedule_s or 0.0)
    far_s = _FAR_S if interval_s is None else _FAR * interval_s
    between_runs = not held and schedule_s is not None and _ago_s(_newest_run(runs), now_ms) <= missing_s
    unread_s = math.inf if any(lag.seconds is None for lag in unread) else oldest_s
    fruitless = _fruitless(snapshot, unread_s, runs, now_ms)
    late = bool(waiting) or not between_runs  # a job that has nothing else to read gets to a new partition at its time
    failing = bool(unread) and late and fruitless >= (_FRUITLESS if schedule_s is None else 1)
    stalled = bool(unread) and held and _silence_s(unread_s, entries, now_ms) > far_s
    apart_s = interval_s or _UNKNOWN_S
    rules = {
        Status.LOSING_DATA: any(lag.lost or (lag.retention_used or 0) >= _NEARLY for lag in lags),
        Status.REFUSED: _refused(lags) or bool(snapshot.missing),
        Status.TOPIC_GONE: any(lag.standing is Standing.GONE for lag in lags),
        Status.REWOUND: _rewound(snapshot.positions, entries)
        and (bool(waiting) or not held)
        and not (failing or stalled),
        Status.FAILING: failing,
        Status.STOPPED: bool(unread) and not held and not between_runs and snapshot.version > 0,
        Status.OUTPUT_AWAY: held and _is_waiting(entries, far_s, now_ms),
        Status.STALLED: stalled,
        Status.HELD_BACK: _held_back(lags, entries, now_ms),
        Status.GROWING: not between_runs
        and _waits(lags, apart_s)
        and _grown([*points, Point(now_ms, waiting)], apart_s),
        Status.BEHIND: oldest_s > max(far_s, missing_s),
    }
    return next((name for name, holds in rules.items() if holds), Status.OK)


def entries_to_read(partitions: int) -> int:
    """Return how many history entries to read: fewer for a group with many partitions, as each entry has all ranges.

    Args:
        partitions: number of the group's partitions.
    """
    return max(_LEAST_ENTRIES, min(_MOST_ENTRIES, _RANGES // max(1, partitions)))


def commit_interval_s(entries: Sequence[Entry]) -> float | None:
    """Return the usual commit interval in seconds; None if it is not known yet. Pauses between runs do not count.

    Args:
        entries: the group's newest history, newest first.
    """
    steps = [entry for entry in entries if entry.event in {"acquire", "commit", "release"}]
    pauses = [_between_s(one, other) for other, one in pairwise(steps) if (one.event, other.event) in _PAUSES]
    return max(_usual(pauses), _LEAST_S) if len(pauses) >= _ENOUGH else None


def run_interval_s(entries: Sequence[Entry]) -> float | None:
    """Return the usual time from run to run of a scheduled job in seconds; None if the group is not such a job.

    Args:
        entries: the group's newest history, newest first.
    """
    steps = [entry for entry in without_fences(entries) if entry.event in {"acquire", "release"}][::-1]
    held_s = sum(_between_s(one, other) for one, other in pairwise(steps) if one.event == "acquire")
    pauses = [_between_s(*step) for step in pairwise(steps) if [each.event for each in step] == ["release", "acquire"]]
    if len(pauses) < _RUNS or held_s > sum(pauses):
        return None
    return _usual([_between_s(*step) for step in pairwise(each for each in steps if each.event == "acquire")])


def without_fences(entries: Sequence[Entry]) -> list[Entry]:
    """Return the history without the fences of operators: they take the group and give it back, and are no runs.

    Args:
        entries: entries of the history, in any order.
    """
    fences = {each.version for each in entries if each.event == "acquire" and each.reason not in {"", RUN, START}}
    given_back = {each.version for each in entries if each.event == "release" and each.version - 1 in fences}
    return [each for each in entries if each.version not in fences | given_back]


def thinned(points: Sequence[Point], newest: Point, entries: Sequence[Entry]) -> Sequence[Point]:
    """Return the points that show growth: a limited number of samples over enough intervals.

    Args:
        points: the points so far, oldest first.
        newest: the next sample.
        entries: the group's newest history, newest first.
    """
    near_ms = (commit_interval_s(entries) or _UNKNOWN_S) * 1000 * _APART
    near = bool(points) and 0 <= newest.at_ms - points[-1].at_ms < near_ms  # negative if a clock was set back
    return points if near or newest.waiting is None else (*points[-_KEPT + 1 :], newest)


def _held_back(lags: Sequence[Lag], entries: Sequence[Entry], now_ms: int) -> bool:
    held = [lag for lag in lags if lag.held_back]
    if any(lag.held_back_s is not None and lag.held_back_s > OPEN_S for lag in held):
        return True
    undated = {lag.topic_partition for lag in held if lag.held_back_s is None}
    newest = takewhile(lambda entry: _ago_s(entry, now_ms) <= OPEN_S, entries) if undated else ()
    return bool(undated - {each.topic_partition for entry in newest for each in entry.ranges})


def _is_waiting(entries: Sequence[Entry], far_s: float, now_ms: int) -> bool:
    """Return whether a run says that it waits for its output, and is not silent since: it may have died.

    It says so at a failure, so tries that take long are far apart.
    """
    waits = [*takewhile(lambda entry: entry.event == "wait", entries)]
    apart_s = (waits[0].at_ms - waits[1].at_ms) / 1000 if len(waits) > 1 else 0.0
    return bool(waits) and _ago_s(waits[0], now_ms) <= max(far_s, _FAR_S, _FAR * apart_s)


def _waits(lags: Sequence[Lag], apart_s: float) -> bool:
    """Return whether a record has been unread for longer than one commit interval: a commit has missed it."""
    ages = [lag.seconds for lag in lags if lag.records]
    return any(age is None or age > apart_s for age in ages)


def _grown(points: Sequence[Point], apart_s: float) -> bool:
    """Return whether the lowest backlog rose from interval to interval, to more than the highest of the first."""
    answered = [point for point in points if point.waiting is not None]
    gaps = (other.at_ms - one.at_ms for one, other in pairwise(answered))
    long_ms = max(apart_s * 1000, *gaps, 1.0)
    waited: list[list[int]] = [[] for _ in range(_GREW)]  # by interval, newest first
    for point in answered:
        back = int((points[-1].at_ms - point.at_ms) / long_ms + _EARLY)
        if 0 <= back < _GREW:
            waited[back].append(point.waiting or 0)
    rose = all(waited) and all(min(newer) > min(older) for newer, older in pairwise(waited))
    return rose and min(waited[0]) > max(waited[-1])


def _refused(lags: Sequence[Lag]) -> bool:
    standings = {lag.standing for lag in lags}
    return standings == {Standing.GONE} or not standings.isdisjoint(_STOPPING)


def _fruitless(snapshot: Snapshot, unread_s: float, entries: Sequence[Entry], now_ms: int) -> int:
    """Return how many runs have ended since the newest commit or reset although records waited at their start."""
    since = takewhile(lambda entry: entry.event not in {"commit", "rewind"}, entries)
    begun = sum(entry.event == "acquire" and _ago_s(entry, now_ms) <= unread_s for entry in since)
    return begun - (snapshot.owner is not None)


def _rewound(positions: Positions, entries: Sequence[Entry]) -> bool:
    """Return whether a position is below the one that it had before the first reset since the newest commit."""
    since = takewhile(lambda entry: entry.event != "commit", entries)
    resets = [entry for entry in since if entry.event == "rewind"]
    read = {tp: move.before for entry in resets for tp, move in entry.moves.items()}  # the oldest entry comes last
    return any(before and tp in positions and _again(before, positions[tp]) for tp, before in read.items())


def _again(before: Position, now: Position) -> bool:
    """Return whether what was read is unread again; records of a topic that was made again are others."""
    other = None not in (before.topic_id, now.topic_id) and before.topic_id != now.topic_id
    return now.offset < before.offset and not other


def _newest_run(entries: Sequence[Entry]) -> Entry:
    """Return the end of the newest run, or its beginning. Changes of an operator are not runs."""
    return next(entry for entry in entries if entry.event in {"acquire", "release"})


def _silence_s(unread_s: float, entries: Sequence[Entry], now_ms: int) -> float:
    """Return how long the history got no entry while records waited to be read."""
    return min(unread_s, _ago_s(entries[0], now_ms)) if entries else 0.0


def _usual(pauses: Sequence[float]) -> float:
    return sorted(pauses)[math.ceil(_USUAL * len(pauses)) - 1]


def _between_s(one: Entry, other: Entry) -> float:
    return (other.at_ms - one.at_ms) / 1000


def _ago_s(entry: Entry, now_ms: int) -> float:
    return (now_ms - entry.at_ms) / 1000
