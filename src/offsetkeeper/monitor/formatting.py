"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from offsetkeeper.core.duration import duration
from offsetkeeper.operate.status import Status

UNKNOWN = "\u2013"
_DECIMALS_BELOW = 10
_SMALL = 0.1

MEANINGS = {
    Status.LOSING_DATA: "Retention has taken unread records, or is about to.",
    Status.REFUSED: "No run could start: a position is beyond the end, or its topic is gone or was made again.",
    Status.TOPIC_GONE: "A topic or a partition is not in Kafka any more: its unread records, if it had any, are lost.",
    Status.REWOUND: "A reset has moved positions back, and nothing has been committed since.",
    Status.FAILING: "Records wait, and one run after the other has ended without a commit.",
    Status.STOPPED: "Records wait, no run holds the group, and no scheduled run is expected.",
    Status.OUTPUT_AWAY: "The run that holds the group waits for an output. The newest change says since when and why.",
    Status.STALLED: "Records wait, and the run that holds the group has been silent for three usual commit intervals.",
    Status.HELD_BACK: "A transaction has been open for 15 minutes, and no record behind it can be read.",
    Status.GROWING: "The number of waiting records rose over four commit intervals in a row.",
    Status.BEHIND: "The first unread record is older than three usual commit intervals.",
    Status.OK: "No problem was found.",
}


def number(value: float | None) -> str:
    """Return a number with its thousands apart; small ones with one decimal where it matters."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and 0 < value < _DECIMALS_BELOW:
        return f"{value:.1f}" if value >= _SMALL else f"<{_SMALL}"
    return f"{round(value):,}"


def share(value: float | None) -> str:
    """Return a share as a percentage."""
    if value is None:
        return UNKNOWN
    return "<1 %" if 0 < value < 0.01 else f"{value:.0%}".replace("%", " %")  # noqa: PLR2004 - one per cent


def span(seconds: float | None) -> str:
    """Return a time span such as `3 h 20 min`."""
    return UNKNOWN if seconds is None else duration(seconds)


def clock(at_ms: int | None) -> str:
    """Return a time of day, UTC."""
    return UNKNOWN if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S}"


def moment(at_ms: int | None) -> str:
    """Return date and time, UTC."""
    return UNKNOWN if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def iso(at_ms: int) -> str:
    """Return a time as HTML wants it."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


def ago(at_ms: int | None, now_ms: int, *, never: bool = False) -> str:
    """Return how long ago it was, in the largest unit; "never" where it is known that it never was."""
    if at_ms is None:
        return "never" if never else UNKNOWN
    count, unit = span(max(0, now_ms - at_ms) / 1000).split()[:2]
    return f"{count} {unit} ago"


def told(text: str) -> str:
    """Return a text, and in place of the dash in tables the word: alone, a dash could mean anything."""
    return "unknown" if text == UNKNOWN else text


def catch_up(seconds: float | None) -> str:
    """Return the time until nothing waits: `now`, a time span, `never` where it is infinite, or a dash."""
    if seconds is None or math.isfinite(seconds):
        return "now" if seconds == 0 else span(seconds)
    return "never"


def word(status: Status | None) -> str:
    """Return the status in a word."""
    return "unknown" if status is None else status.value


def meaning(status: Status | None) -> str:
    """Return what the status means, in a sentence."""
    return "Kafka could not be asked." if status is None else MEANINGS[status]
