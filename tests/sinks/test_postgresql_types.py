"""Which Spark type goes into which column of PostgreSQL; no server is needed to say."""

from dataclasses import replace

import pytest
from pyspark.sql import types as t

from offsetkeeper.sinks.postgresql.columns import PostgreSQLColumn, misfit, staged_type

WHOLE: dict[t.DataType, str] = {
    t.ByteType(): "int2",
    t.ShortType(): "int2",
    t.IntegerType(): "int4",
    t.LongType(): "int8",
}
NUMERIC_10_2, NUMERIC_5_MINUS_2 = 655_366, (5 << 16) + (-2 & 0x7FF) + 4  # as PostgreSQL packs precision and scale
CATEGORIES = {"bool": "B", "date": "D", "timestamp": "D", "timestamptz": "D", "interval": "T", "time": "D"}
CATEGORIES |= dict.fromkeys(("text", "varchar", "bpchar", "name", "citext"), "S")
CATEGORIES |= dict.fromkeys(("json", "jsonb", "uuid", "bytea"), "U") | {"inet": "I", "colour": "E", "int4range": "R"}


def column(kind: str, *, array: bool = False, modifier: int = -1) -> PostgreSQLColumn:
    """Return a column of a type of PostgreSQL."""
    return PostgreSQLColumn(
        name="c",
        type=kind,
        required=False,
        generated=False,
        nullable=True,
        schema="pg_catalog",
        name_of_type=kind,
        kind=kind,
        category=CATEGORIES.get(kind, "N"),
        array=array,
        modifier=modifier,
    )


@pytest.mark.parametrize("whole", WHOLE, ids=str)
@pytest.mark.parametrize("kind", ["int2", "int4", "int8", "numeric"])
def test_whole_numbers_go_into_whole_numbers(whole: t.DataType, kind: str) -> None:
    assert misfit(whole, column(kind)) == ""
    assert staged_type(whole) == WHOLE[whole]


@pytest.mark.parametrize(
    ("data_type", "kind"),
    [
        (t.LongType(), "float8"),
        (t.IntegerType(), "float4"),
        (t.DoubleType(), "float4"),
        (t.DoubleType(), "numeric"),
        (t.FloatType(), "int8"),
        (t.DecimalType(10, 0), "int8"),
        (t.DecimalType(10, 2), "float8"),
        (t.TimestampType(), "timestamp"),
        (t.TimestampType(), "date"),
        (t.TimestampNTZType(), "timestamptz"),
        (t.DateType(), "timestamptz"),
        (t.StringType(), "name"),
        (t.StringType(), "bytea"),
        (t.StringType(), "int4"),
        (t.StringType(), "bool"),
        (t.StringType(), "date"),
        (t.BooleanType(), "int4"),
        (t.BinaryType(), "text"),
        (t.ArrayType(t.LongType()), "int8"),
        (t.MapType(t.StringType(), t.LongType()), "jsonb"),
        (t.StructType([]), "jsonb"),
        (t.ArrayType(t.StructType([])), "jsonb"),
        (t.DayTimeIntervalType(), "interval"),
    ],
    ids=str,
)
def test_what_could_lose_something_is_refused(data_type: t.DataType, kind: str) -> None:
    assert misfit(data_type, column(kind))


@pytest.mark.parametrize(
    "kind", ["text", "varchar", "json", "uuid", "inet", "colour", "interval", "time", "int4range", "citext"]
)
def test_text_goes_into_what_postgresql_reads_from_text(kind: str) -> None:
    assert misfit(t.StringType(), column(kind)) == ""
    assert misfit(t.ArrayType(t.StringType()), column(kind, array=True)) == ""


@pytest.mark.parametrize(("kind", "why"), [("geometry", ""), ("geography", "make the column geometry or text")])
def test_a_place_of_postgis_is_taken_only_where_it_stays_where_it_is(kind: str, why: str) -> None:
    """`geography` makes POINT(0 80) of POINT(0 100)."""
    of_postgis = replace(column(kind), category="U", of_system=False)
    array = replace(of_postgis, array=True)
    for found in (misfit(t.StringType(), of_postgis), misfit(t.ArrayType(t.StringType()), array)):
        assert why in found
        assert bool(found) is bool(why)


def test_null_goes_into_everything() -> None:
    assert all(misfit(t.NullType(), column(kind, array=array)) == "" for kind in CATEGORIES for array in (False, True))


@pytest.mark.parametrize(
    ("scale", "modifier", "fits"),
    [(2, NUMERIC_10_2, True), (3, NUMERIC_10_2, False), (38, -1, True), (0, NUMERIC_5_MINUS_2, False)],
)
def test_a_decimal_keeps_its_scale(scale: int, modifier: int, fits: bool) -> None:  # noqa: FBT001 - a table's column
    for data_type in (t.DecimalType(38, scale), t.ArrayType(t.DecimalType(38, scale))):
        array = isinstance(data_type, t.ArrayType)
        assert (misfit(data_type, column("numeric", array=array, modifier=modifier)) == "") is fits


def test_an_array_goes_into_an_array_only() -> None:
    assert misfit(t.ArrayType(t.LongType()), column("int8", array=True)) == ""
    assert "only one of both is an array" in misfit(t.LongType(), column("int8", array=True))
    assert staged_type(t.ArrayType(t.LongType())) == "int8[]"
