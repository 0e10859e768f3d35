"""A time span as people read it. Pure."""

from __future__ import annotations

from itertools import pairwise

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


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
