"""A time span is told in its two largest units."""

from __future__ import annotations

import pytest

from offsetkeeper.core.duration import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "<1 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599.6, "1 h"),
        (3725, "1 h 2 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 400, "400 d"),
    ],
)
def test_time_spans_are_told_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
