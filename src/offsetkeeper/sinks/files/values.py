"""What the values of a frame must be so that files keep them. Spark writes the files, so the frame itself fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import functions as f

from offsetkeeper.errors import RowMismatch
from offsetkeeper.sinks.files.link import TIMES, Layout
from offsetkeeper.sinks.latest import col
from offsetkeeper.sinks.limits import PLACE
from offsetkeeper.sinks.table import says_record

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

_REBASE = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
_OURS = f"{RowMismatch.__module__}.{RowMismatch.__name__}"
_MOST_BYTES = 100  # of a text that a message shows
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""What Spark writes as %XX in the names of folders."""

_LONGEST = 255  # bytes of a name
_COPYING = "._COPYING_"
"""The end of the name of a file that Hadoop is still copying: readers skip it, and a folder with such a name too."""

_PARSER = "spark.sql.legacy.timeParserPolicy"
_lock = Lock()
_writing: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()
Wrong = Callable[[Any, Any], "Column | None"]


@contextmanager
def exact_times(frame: DataFrame, layout: Layout) -> Iterator[None]:
    """Let Spark write Parquet's times in microseconds in the block, unless the session has an own setting.

    A time before 1678 or after 2261 is another one for other readers in Spark's default, INT96. Parquet's writer has no
    option for it. The last of several writes in a session takes the setting back.
    """
    session = frame.sparkSession
    times = layout.format == "parquet" and any(
        "timestamp" in each.dataType.simpleString() for each in frame.schema.fields
    )
    with _lock:
        pinned = times and (session in _writing or session.conf.get(TIMES, None) is None)
        if pinned:
            _writing[session] = _writing.get(session, 0) + 1
            session.conf.set(TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        with _lock:
            if pinned:
                _writing[session] -= 1
                if not _writing[session]:
                    del _writing[session]
                    session.conf.unset(TIMES)


def checked(frame: DataFrame, layout: Layout) -> DataFrame:
    """Return the frame, which fails with the text of a `RowMismatch` at a value that the files would not keep."""
    spans = [*(_spans(frame) if layout.format == "parquet" else _spans_of_text(frame))]
    record = _record(frame)
    guarded: dict[str, Column] = {}
    for field in frame.schema.fields:
        for wrong, why in _problems(field, layout, spans):
            told = (
                f.lit(f"{_OURS}: "),
                record,
                f.lit(f"column {field.name} "),
                f.lit(why),
                f.lit("; nothing was written\n"),
            )
            error = f.raise_error(f.concat(*told))
            guarded[field.name] = f.when(wrong, error).otherwise(guarded.get(field.name, col(field.name)))
    return frame.withColumns(guarded) if guarded else frame


def _record(frame: DataFrame) -> Column:
    """Return the record of each row as it begins a message; empty if the frame does not say it."""
    if not says_record(frame.schema.fields):
        return f.lit("")
    topic, partition, offset = (col(name).cast("string") for name in PLACE)
    shown = f.regexp_replace(topic, r"\p{Cntrl}", " ")  # of the error's text only one line comes to the driver
    return f.coalesce(f.concat(shown, f.lit(" "), partition, f.lit(" offset "), offset, f.lit(": ")), f.lit(""))


def _problems(field: StructField, layout: Layout, spans: Sequence[_Span]) -> Iterator[tuple[Column, str | Column]]:
    """Yield a condition for each kind of wrong value that the column may have, and what is wrong."""
    column = col(field.name)
    if field.name in layout.partition_by and field.dataType.typeName() == "string":
        yield (
            column.isin("", _NULL),
            f"has an empty text or {_NULL}, which would become null as the name of a folder: put another text there",
        )
        yield (
            column.endswith(_COPYING),
            f"has a text that ends with {_COPYING}: readers skip folders with such names, so put another text there",
        )
        yield column.contains("\0"), "has the character NUL, which no name of a folder can have: leave it out"
        longest = _LONGEST - 1 - len(re.sub(_ESCAPED, "%00", field.name).encode())
        yield (
            f.octet_length(f.regexp_replace(column, _ESCAPED, "%00")) > longest,
            f"has a text that is too long for the name of a folder, which has {longest} bytes for it",
        )
    no_text = _any(column, field.dataType, _is_no_text)
    if no_text is not None:
        yield (
            no_text,
            f.concat(
                f.lit("has a text that is not UTF-8"),
                _bytes(column) if _is_text(field.dataType) else f.lit(""),
                f.lit(", as a cast of bytes may give: use make_valid_utf8 in the frame, or a column of bytes"),
            ),
        )
    twice = _any(column, field.dataType, _has_a_key_twice) if layout.format == "json" else None
    if twice is not None:
        yield (
            twice,
            "has a map with a key that is there twice, and readers of JSON find one of them: keep one in the frame",
        )
    for span in spans:
        outside = _any(column, field.dataType, span.leaves_out)
        if outside is not None:
            yield outside, f"has a {span.kind} {span.told}"


def _spans(frame: DataFrame) -> Iterator[_Span]:
    """Yield the times that readers other than Spark find as they are, with the settings of the frame's session."""
    settings = frame.sparkSession.conf
    legacy = [name for name in _REBASE if "LEGACY" in str(settings.get(name))]
    if legacy:
        told = (
            f"before {{}}, for which other readers than Spark find another day, as {legacy[0]} is LEGACY: set CORRECTED"
        )
        yield _Span("date", "1582-10-15", "", told.format("1582-10-15"))
        yield _Span("timestamp", "1900-01-01 00:00:00Z", "", told.format("1900"))
    if str(settings.get(TIMES)) == "INT96":
        told = f"before 1678 or after 2261, for which other readers than Spark find another time, as {TIMES} is INT96"
        yield _Span("timestamp", "1678-01-01 00:00:00Z", "2262-01-01 00:00:00Z", f"{told}: set TIMESTAMP_MICROS")


def _spans_of_text(frame: DataFrame) -> Iterator[_Span]:
    """Yield the times that Spark writes as they are into JSON, with the settings of the frame's session."""
    if str(frame.sparkSession.conf.get(_PARSER)).upper() == "LEGACY":
        told = f"before 1582-10-15, which Spark writes as another day, as {_PARSER} is LEGACY: set CORRECTED"
        yield _Span("date", "1582-10-15", "", told)
        yield _Span("timestamp", "1582-10-15 00:00:00Z", "", told)


class _Span(NamedTuple):
    """Values of a type from `least` until before `end`, if there is one; and what is wrong with others."""

    kind: str
    least: str
    end: str
    told: str

    def leaves_out(self, value: Column, kind: DataType) -> Column | None:
        """Return whether a value is not in the span; None if the span is of another type."""
        if kind.typeName() != self.kind:
            return None
        before = value < f.lit(self.least).cast(self.kind)
        return before | (value >= f.lit(self.end).cast(self.kind)) if self.end else before


def _any(value: Column, kind: Any, wrong: Wrong) -> Column | None:
    """Return whether a value, or one within it, is wrong; None if none can be."""
    match kind.typeName():
        case "struct":
            inner = [_any(value.getField(each.name), each.dataType, wrong) for each in kind.fields]
        case "array":
            inner = [_among(value, kind.elementType, wrong)]
        case "map":
            inner = [
                _among(f.map_keys(value), kind.keyType, wrong),
                _among(f.map_values(value), kind.valueType, wrong),
            ]
        case _:
            inner = []
    found = [each for each in (wrong(value, kind), *inner) if each is not None]
    return reduce(or_, found) if found else None


def _among(values: Column, kind: DataType, wrong: Wrong) -> Column | None:
    possible = _any(f.lit(None), kind, wrong) is not None
    return f.exists(values, lambda each: _any(each, kind, wrong)) if possible else None  # type: ignore[arg-type, return-value]


def _has_a_key_twice(value: Column, kind: DataType) -> Column | None:
    if kind.typeName() != "map":
        return None
    keys = f.map_keys(value)
    return f.size(f.array_distinct(keys)) < f.size(keys)


def _is_no_text(value: Column, kind: DataType) -> Column | None:
    if not _is_text(kind):
        return None
    if hasattr(f, "is_valid_utf8"):  # Spark 4
        return ~f.is_valid_utf8(value)
    return f.encode(value, "UTF-8") != value.cast("binary")


def _is_text(kind: DataType) -> bool:
    return kind.simpleString().startswith("string")


def _bytes(text: Column) -> Column:
    return f.concat(f.lit(", X'"), f.hex(f.substring(text.cast("binary"), 1, _MOST_BYTES)), f.lit("'"))
