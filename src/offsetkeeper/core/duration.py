"""Time spans and times as text for people, and how far clocks may differ. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise

from offsetkeeper.errors import SettingsError

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_SIZES = (604_800, 86_400, 3_600, 60, 1)  # seconds in a week, day, hour, minute and second
_NUMBER = r"(\d{1,12}(?:[.,]\d{1,9})?)"
_ISO = re.compile(
    f"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE | re.ASCII
)
_SHORT = re.compile(
    f"(?:{_NUMBER}w)?(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?:in)?)?(?:{_NUMBER}s)?", re.IGNORECASE | re.ASCII
)
_THOUSANDS = re.compile(r"(?<!\d)[1-9]\d{0,2}[.,]\d{3}(?!\d)")  # 1,500 may be meant for 1500 or for 1.5


CLOCKS_APART_MS = 60_000
"""A time that is ahead of a clock by more is in the future, by less is now: clocks differ a little."""


def is_future(at_ms: int, now_ms: int) -> bool:
    """Whether a time is ahead of a clock by more than clocks differ."""
    return at_ms > now_ms + CLOCKS_APART_MS


def duration(seconds: float) -> str:
    """Return a time span in the two largest units that matter, such as `3 h 20 min`."""
    if 0 < seconds < 1:
        return "<1 s"
    rest = round(seconds)
    for (name, size), (smaller, small) in pairwise(_UNITS):
        if rest >= size:
            count, below = rest // size, rest % size // small
            return f"{count} {name} {below} {smaller}" if below else f"{count} {name}"
    return f"{rest} s"


def time_text(at_ms: int) -> str:
    """Return a time, in milliseconds since 1970, as text in ISO 8601; one that has no date as a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms after 1970"


def read_duration(text: str, option: str) -> float:
    """Return the seconds of a time span: an ISO 8601 duration such as `PT1.5H` or `P1W`, or short, such as `1h30m`.

    Args:
        text: the time span, without years and months, which have no fixed length.
        option: name of the option, for the message.

    Raises:
        SettingsError: the text is not a time span.
    """
    match = _ISO.fullmatch(text) or _SHORT.fullmatch(text)
    if _THOUSANDS.search(text) and not text.upper().startswith("P"):
        raise SettingsError(f"{option} {text:.40}: 1,500 may be 1500 or 1.5: write 1500s or PT1.5S")
    if match is None or not any(match.groups()):
        raise SettingsError(f"{option} {text:.40}: write a time span without years and months: PT5M, P1DT2H30M or 5m")
    numbers = (float((number or "0").replace(",", ".")) for number in match.groups())
    return sum(number * size for number, size in zip(numbers, _SIZES, strict=True))
