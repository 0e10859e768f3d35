"""Arrow's values arrive in a real PostgreSQL as they were."""

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsetkeeper.errors import RowMismatch
from offsetkeeper.sinks.postgresql import task
from offsetkeeper.sinks.postgresql.task import HEADER, TRAILER, encode

UTC = dt.UTC
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - without a zone on purpose
EARLY, LATE = dt.datetime(1, 1, 2, tzinfo=UTC), dt.datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)
BERLIN = pa.timestamp("us", "Europe/Berlin")
Copied = Callable[[str, pa.Array], list[Any]]


@pytest.fixture
def copied(connection: psycopg.Connection[tuple[Any, ...]]) -> Copied:
    """`copied(type, array)` returns what PostgreSQL has after a copy into a column of that type."""
    connection.execute("set timezone = 'UTC'")

    def copy(kind: str, array: pa.Array) -> list[Any]:
        connection.execute(f"create temp table copied (place serial, attempt bigint, value {kind})".encode())
        with connection.cursor().copy("copy copied (attempt, value) from stdin (format binary)") as stream:
            stream.write(HEADER)
            for data in encode(pa.record_batch({"value": array}), 7):
                stream.write(data)
            stream.write(TRAILER)
        found = connection.execute("select value from copied order by place").fetchall()
        connection.execute("drop table copied")
        return [value for (value,) in found]

    return copy


def same(found: Any, expected: Any) -> bool:
    """Whether two values are equal, not a number included."""
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == expected)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("boolean", pa.array([True, False, None])),
        ("int2", pa.array([-128, 127, 0, None], pa.int8())),
        ("int2", pa.array([-(2**15), 2**15 - 1, None], pa.int16())),
        ("int4", pa.array([-(2**31), 2**31 - 1, None], pa.int32())),
        ("int8", pa.array([-(2**63), 2**63 - 1, None], pa.int64())),
        ("float4", pa.array([math.nan, math.inf, -math.inf, 0.5, None], pa.float32())),
        ("float8", pa.array([math.nan, math.inf, -math.inf, 0.1, -0.0, 5e-324, None], pa.float64())),
        ("text", pa.array(["", None, 'quote " comma , back\\slash', "line\nbreak\t", "Zürich 東京 🎉", "\\N"])),
        ("text", pa.array(["", None, "large"], pa.large_string())),
        ("bytea", pa.array([b"", None, bytes(range(256))])),
        ("bytea", pa.array([b"", None, b"large"], pa.large_binary())),
        ("date", pa.array([FIRST.date(), None, dt.date(2000, 1, 1), LAST.date()])),
        ("timestamp", pa.array([FIRST, None, LAST], pa.timestamp("us"))),
        ("timestamptz", pa.array([EARLY, None, LATE], BERLIN)),
        ("int4[]", pa.array([[1, None, -3], [], None], pa.list_(pa.int32()))),
        ("text[]", pa.array([["a", None, ""], [], None, ['{},"']], pa.list_(pa.string()))),
        ("bytea[]", pa.array([[b"\x00"], [b""]], pa.list_(pa.binary()))),
        ("numeric[]", pa.array([[Decimal("1.50"), None], []], pa.list_(pa.decimal128(9, 2)))),
        ("timestamp[]", pa.array([[LAST], None], pa.list_(pa.timestamp("us")))),
        ("timestamptz[]", pa.array([[LATE], None], pa.list_(BERLIN))),
        ("boolean[]", pa.array([[True, None], []], pa.list_(pa.bool_()))),
    ],
    ids=lambda given: str(given if isinstance(given, str) else given.type),
)
def test_each_type_arrives_whole_in_parts_and_empty(copied: Copied, kind: str, array: pa.Array) -> None:
    """Slices, as Arrow shares buffers between arrays; without nulls, as that is another path."""
    for part in (array, array.slice(1), array.slice(0, 2), array.slice(0, 0), array.drop_null()):
        expected = part.to_pylist()
        found = copied(kind, part)
        assert len(found) == len(expected)
        assert all(map(same, found, expected)), (found, expected)


@pytest.mark.parametrize(
    ("precision", "scale"),
    [
        (1, 0),
        (1, 1),
        (4, 4),
        (5, 1),
        (10, 2),
        (17, 1),
        (18, 0),
        (18, 18),
        (19, 0),
        (20, 3),
        (38, 0),
        (38, 19),
        (38, 38),
    ],
)
def test_the_largest_and_smallest_decimals_arrive_digit_by_digit(copied: Copied, precision: int, scale: int) -> None:
    with localcontext(prec=80):
        most, least = Decimal(10**precision - 1).scaleb(-scale), Decimal(1).scaleb(-scale)
        numbers = [most, -most, least, -least, Decimal(0).scaleb(-scale), None]
        found = copied(f"numeric({precision}, {scale})", pa.array(numbers, pa.decimal128(precision, scale)))
    assert [str(number) for number in found] == [str(number) for number in numbers]


# The connection is the same for all examples: each makes and drops its own temporary table.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_decimals_arrive(copied: Copied, data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    with localcontext(prec=80):
        drawn = data.draw(st.lists(st.none() | unscaled, max_size=20))
        numbers = [None if number is None else Decimal(number).scaleb(-scale) for number in drawn]
        assert copied("numeric", pa.array(numbers, pa.decimal128(precision, scale))) == numbers


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.lists(st.none() | st.text(st.characters(exclude_characters="\x00", codec="utf-8")))))
def test_any_lists_of_texts_arrive(copied: Copied, lists: list[Any]) -> None:
    assert copied("text[]", pa.array(lists, pa.list_(pa.string()))) == lists


def test_a_large_batch_goes_in_pieces(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_MOST_BYTES", 1000)
    numbers = pa.array(range(1000))
    assert len(list(encode(pa.record_batch({"value": numbers}), 7))) == 8
    assert copied("int8", numbers) == numbers.to_pylist()


def test_a_row_that_is_larger_than_a_piece_goes_alone(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_MOST_BYTES", 1)
    assert copied("text", pa.array(["x" * 1000, None, "y"])) == ["x" * 1000, None, "y"]


def test_a_timestamp_beyond_postgresqls_range_does_not_come_round() -> None:
    earliest = pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(RowMismatch, match=r"column value: PostgreSQL cannot hold a value .*overflow"):
        list(encode(pa.record_batch({"value": earliest}), 7))


@pytest.mark.parametrize("days", [-(2**31) + 10_957, None])
def test_a_date_at_the_far_edge_does_not_become_infinity(days: int | None) -> None:
    earliest = pa.array([days], pa.int32()).cast(pa.date32())
    if days is None:
        assert list(encode(pa.record_batch({"value": earliest}), 7))
        return
    with pytest.raises(RowMismatch, match=r"column value: PostgreSQL cannot hold a value .*infinity"):
        list(encode(pa.record_batch({"value": earliest}), 7))


def test_a_row_is_the_number_of_its_fields_and_each_with_its_length() -> None:
    [data] = encode(pa.record_batch({"a": pa.array([1], pa.int32()), "b": pa.nulls(1, pa.string())}), 7)
    assert bytes(data) == struct.pack(">hiqiii", 3, 8, 7, 4, 1, -1)
