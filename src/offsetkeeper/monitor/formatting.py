"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from offsetkeeper.core.duration import duration
from offsetkeeper.operate.status import Status
from offsetkeeper.operate.words import MEANINGS

UNKNOWN = "\u2013"
_DECIMALS_BELOW = 10
_SMALL = 0.1


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
    return "Kafka could not be asked." if status is None else sentence(MEANINGS[status])


def sentence(text: str) -> str:
    """Return the words of a table as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."
