"""What a text means in a type of PostgreSQL, worked out in Python: two texts of one value have the same meaning."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from ipaddress import ip_interface
from typing import Any

from hypothesis import strategies as st

_SECOND = 1_000_000
"""Microseconds of a second."""
_DAY = 86_400 * _SECOND
_UNITS = {
    "year": (12, 0, 0),
    "mon": (1, 0, 0),
    "week": (0, 7, 0),
    "day": (0, 1, 0),
    "hour": (0, 0, 3600 * _SECOND),
    "min": (0, 0, 60 * _SECOND),
    "sec": (0, 0, _SECOND),
}
"""Months, days and microseconds of each unit."""
_WORDS = {"y": "year", "month": "mon", "d": "day", "h": "hour", "minute": "min", "": "sec", "s": "sec", "second": "sec"}
_PART = re.compile(
    r"[\s,_@]*(?P<sign>[+-]?)\s*((?P<hour>\d+):(?P<minute>\d+)(:(?P<second>\d+(\.\d*)?))?"
    r"|(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>[A-Za-z]*))"
)
_ISO = re.compile(r"([+-]?[\d.]+)([A-Z])")
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d(?:\.\d*)?))?(Z|[+-]\d\d(?::?\d\d)?(?::\d\d)?)?")


def _microseconds(hour: str, minute: str, second: str | None) -> Fraction:
    return (int(hour) * 3600 + int(minute) * 60 + Fraction(second or 0)) * _SECOND


def _offset(text: str | None) -> int:
    """Return the seconds east of UTC."""
    if not text or text == "Z":
        return 0
    hour, minute = text[1:3], text[3:].replace(":", "") or "0"
    return (int(hour) * 3600 + int(minute) * 60) * (-1 if text[0] == "-" else 1)


def _clock(text: str) -> tuple[Fraction, int]:
    found = _CLOCK.fullmatch(text)
    assert found, text
    return _microseconds(*found.groups()[:3]), _offset(found[4])


def _days(text: str) -> int:
    """Return the number of a day, in the calendar that PostgreSQL has for all times: any origin will do."""
    year, month, day = map(int, text.split("-"))
    year, month = year - (month < 3), (month + 9) % 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day


def _instant(text: str) -> Any:
    """Return microseconds since any origin, in UTC."""
    if text.endswith("infinity"):
        return text
    day, _, clock = text.replace("T", " ").partition(" ")
    passed, east = _clock(clock)
    return _days(day) * _DAY + passed - east * _SECOND


def _interval(text: str) -> tuple[int, int, Fraction]:
    """Return months, days and microseconds; a sign belongs to its own field.

    Parts of a month are parts of 30 days, and parts of a day are parts of 24 hours.
    """
    fields = [
        [amount * each for each in _UNITS[unit]] for amount, unit in (_iso(text) if text[0] == "P" else _fields(text))
    ]
    days, passed = (sum((field[place] for field in fields), Fraction(0)) for place in (1, 2))
    days += sum((field[0] - int(field[0])) * 30 for field in fields)  # of the months
    return sum(int(field[0]) for field in fields), int(days), passed + (days - int(days)) * _DAY


def _fields(text: str) -> list[tuple[Fraction, str]]:
    fields, place = [], 0
    while text[place:].strip(" \t\n\r\v\f,_@"):
        found = _PART.match(text, place)
        assert found, text
        sign = -1 if found["sign"] == "-" else 1
        if found["hour"]:
            fields.append((sign * _microseconds(*found.group("hour", "minute", "second")) / _SECOND, "sec"))
        else:
            word = found["unit"].lower()
            word = word if word in _WORDS else word.removesuffix("s")
            fields.append((sign * Fraction(found["number"]), _WORDS.get(word, word)))
        place = found.end()
    return fields


def _iso(text: str) -> list[tuple[Fraction, str]]:
    date, _, clock = text[1:].partition("T")
    dates = {"Y": "year", "M": "mon", "W": "week", "D": "day"}
    times = {"H": "hour", "M": "min", "S": "sec"}
    fields = [(Fraction(number), dates[unit]) for number, unit in _ISO.findall(date)]
    if ":" in clock:
        return fields + _fields(clock)
    clock = clock if clock[-1:].isalpha() else f"{clock}H"
    return fields + [(Fraction(number), times[unit]) for number, unit in _ISO.findall(clock)]


def _range(text: str, end: Callable[[str], Any], step: int) -> Any:
    """Return both ends, and whether they belong to the range; those of whole numbers as [ and )."""
    if text.strip().lower() == "empty":
        return None
    text = text.strip()
    lower, _, upper = text[1:-1].replace('"', "").partition(",")
    least, most = (end(part.strip()) if part.strip() else None for part in (lower, upper))
    opens, closes = text[0] == "[" and least is not None, text[-1] == "]" and most is not None
    if step and isinstance(least, int) and not opens:
        least, opens = least + step, True
    if step and isinstance(most, int) and closes:
        most, closes = most + step, False
    if not (opens and closes) and type(least) is type(most) and least is not None and least >= most:
        return None
    return least, most, opens, closes


def _ranges(text: str, end: Callable[[str], Any], step: int) -> Any:
    """Return the ranges in order; the drawn ones do not touch."""
    parts = [_range(part, end, step) for part in re.findall(r"empty|[\[(][^\])]*[\])]", text)]
    return sorted((part for part in parts if part), key=repr)


def _document(text: str) -> Any:
    """Return a document of jsonb: of a name that is there twice the last stays, and numbers keep all their digits."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def _floats(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+\w.]+", text)]


def _day(text: str) -> Any:
    return text if text.endswith("infinity") else _days(text)


_ENDS: dict[str, tuple[Callable[[str], Any], int]] = {
    **dict.fromkeys(("int4", "int8"), (int, 1)),
    "num": (Decimal, 0),
    "date": (_day, 1),
    "ts": (_instant, 0),
    "tstz": (_instant, 0),
}
_MEANINGS: dict[str, Callable[[str], Any]] = {
    "character": lambda text: text.rstrip(" "),
    "jsonb": _document,
    "uuid": lambda text: uuid.UUID(text.strip("{}")),
    "inet": ip_interface,
    "macaddr": lambda text: re.sub(r"[^0-9a-f]", "", text.lower()),
    "macaddr8": lambda text: re.sub(r"[^0-9a-f]", "", text.lower()),
    "point": _floats,
    "time without time zone": _clock,
    "time with time zone": _clock,
    "interval": _interval,
    "pg_lsn": lambda text: [int(part, 16) for part in text.split("/")],
    **{f"{of}range": partial(_range, end=end, step=step) for of, (end, step) in _ENDS.items()},
    **{f"{of}multirange": partial(_ranges, end=end, step=step) for of, (end, step) in _ENDS.items()},
}
SERVER_ALONE = frozenset({"box", "circle", "line", "lseg", "path", "polygon", "cidr", "jsonpath", "tsquery"})
"""Types of texts that the server alone reads: other words for the same shape, query or network."""
SERVER_ALONE |= {"txid_snapshot", "pg_snapshot"}


def meaning(kind: str, text: str) -> Any:
    """Return what a text means in a type of this name, without modifier; the text itself where any other is another."""
    return _MEANINGS.get(kind, str)(text)


_FIELDS = (["1y", "2 years"], ["3mon", "0.5 mon"], ["4d", "1.5 days"], ["5h", "6:07", "06:07:08.123", "0:0:0.000001"])
DIGITS = st.sampled_from(["", "", ".5", ".12", ".120", ".123", ".1239", ".12345", ".123456", ".1234567", ".0000004"])
"""Digits of a second, also more than a type keeps."""
CLOCKS = st.builds("{}{}".format, st.sampled_from(["10:00:00", "23:59:59", "00:00:00"]), DIGITS)
TIMES = CLOCKS | st.sampled_from(["10:00", "24:00:00", "now", "allballs", "10:00:00 PM", "T10:00"])
ZONED = st.builds("{}{}".format, CLOCKS, st.sampled_from(["+02", "-05:30", "Z", "+0545", ""]))
_AT = st.builds("{} {}".format, st.sampled_from(["2024-07-01", "1582-10-10", "10000-01-01"]), CLOCKS)
_NUMBERS = st.sampled_from(
    ["1", "1.5", "1.50", "1.55", "0.1", "-3", "100000000000000000000", "1e2", "0.30000000000000004"]
)
_NAMES = st.sampled_from(["a", "b", "A", "é"])
DOCUMENTS = st.recursive(
    st.one_of(_NUMBERS, st.sampled_from(["null", "true", '"a"', '"a "', '"\\u00e9"', '"\\u0000"', '"1"'])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(_NAMES, inner), max_size=3).map(
            lambda items: "{" + ", ".join(f'"{name}": {item}' for name, item in items) + "}"
        ),
    ),
    max_leaves=6,
)


def spans() -> st.SearchStrategy[str]:
    """Return texts of intervals: fields with or without a sign, and what may stand between them."""
    fields = st.tuples(*(st.sampled_from(["", "", *each]) for each in _FIELDS)).map(lambda each: [*filter(None, each)])
    signs = st.lists(st.sampled_from(["", "", "", "-", "+"]), min_size=len(_FIELDS), max_size=len(_FIELDS))
    plain = st.builds(
        lambda first, fields, signs, between: first + between.join(map("".join, zip(signs, fields, strict=False))),
        st.sampled_from(["", "-", "-", "@ -"]),
        fields,
        signs,
        st.sampled_from(["", " ", " ", ",", "_"]),
    )
    seconds = st.builds("{}{}{}".format, st.sampled_from(["", "-", "P1DT", "PT-"]), CLOCKS | st.just("3"), DIGITS)
    return st.one_of(plain, plain, seconds, seconds.map(lambda text: f"{text}S"))


def _bounded(ends: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def put(pair: list[str], opens: str, closes: str) -> str:
        return f"{opens}{pair[0]},{pair[1]}{closes}"

    pairs = st.lists(ends | st.just(""), min_size=2, max_size=2)
    return st.builds(put, pairs, st.sampled_from("[("), st.sampled_from("])"))


TEXTS_OF = {
    "time": TIMES,
    "timetz": ZONED,
    "interval": spans(),
    "jsonb": DOCUMENTS,
    "json": DOCUMENTS,
    "numrange": _bounded(_NUMBERS),
    "int4range": _bounded(st.integers(-2, 5).map(str)),
    "int8multirange": _bounded(st.integers(-2, 5).map(str)).map(lambda text: f"{{{text}}}"),
    "daterange": _bounded(st.sampled_from(["2024-07-01", "2024-07-31", "10000-12-31", "infinity"])),
    "tsrange": _bounded(_AT),
    "tstzrange": _bounded(st.builds("{}{}".format, _AT, st.sampled_from(["+00", "+02", "Z", ""]))),
    "point": st.builds("({},{})".format, _NUMBERS, _NUMBERS),
    "bit(3)": st.text("01", min_size=2, max_size=4),
    "varbit(3)": st.text("01", max_size=4),
    "xid8": st.sampled_from(["1", "010", "0x1", "-1"]),
}
"""Texts for types, many of which a type takes, some of which it would round."""
