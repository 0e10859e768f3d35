"""A time span is told in its two largest units."""

from __future__ import annotations

import pytest

from offsetkeeper.core.duration import duration, is_future, read_duration, time_text
from offsetkeeper.errors import SettingsError


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


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000+00:00"),
        (1_700_000_000_001, "2023-11-14T22:13:20.001+00:00"),
        (2**63 - 1, "9223372036854775807 ms after 1970"),
    ],
)
def test_a_time_is_told_as_a_date_or_if_it_has_none_as_a_number(at_ms: int, text: str) -> None:
    assert time_text(at_ms) == text


def test_a_time_is_in_the_future_if_it_is_ahead_by_more_than_a_minute() -> None:
    assert [is_future(1_000_000 + ahead, 1_000_000) for ahead in (-1, 60_000, 60_001)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0.1S", 0.1),
        ("PT0,1S", 0.1),
        ("P1W", 604_800),
        ("PT1.5H", 5400),
        ("P1DT2H30M", 95_400),
        ("pt5m", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("90s", 90),
        ("2d", 172_800),
        ("PT36H", 129_600),
        ("PT1.500S", 1.5),
        ("1.25h", 4500),
        ("0.250s", 0.25),
        ("0.125h", 450),
    ],
)
def test_a_time_span_is_read_as_iso_8601_writes_it_and_short(text: str, seconds: float) -> None:
    assert read_duration(text, "--max-age") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1M",
        "P1Y",
        "5",
        "m",
        "-PT1S",
        "1m5h",
        "PT1H30",
        "9" * 5000 + "s",
        "PT٣S",
        "1,500s",
        "1.500s",
        "2h1,000s",
    ],
)
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--max-age") as caught:
        read_duration(text, "--max-age")
    assert len(str(caught.value)) < 200
