"""What the values of a column must be, so that an output keeps each of them unchanged; executors check it row by row.

Executors get the code of this module together with the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from offsetkeeper.errors import RowMismatch

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = ("topic", "partition", "offset")
"""Columns that say of which record a row is, if the frame keeps them as Spark has them."""

RANK = "offsetkeeper_rank"
"""A last column for `check_ranks`: above 1 in the second row of a key, 0 in a row without a place in the order."""

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day of the year 1 and the last one of 9999, which Python knows, from 1970."""

_MICROSECOND_DIGITS = 6
_MOST_OF_A_VALUE = 200  # characters of a value that a message shows


class Limits(NamedTuple):
    """What the values of one column must be. Without arguments all values fit.

    Attributes:
        name: name of the column, for messages.
        type: its type, as the output writes it, for messages.
        nullable: whether a row may have no value.
        least, most: the least and the greatest number; None if there is none.
        digits: digits of fractional seconds that the column keeps.
        characters: most characters of a text.
        bytes: most bytes of a text in UTF-8.
        blanks: whether the column keeps and compares blanks at the end of a text.
        finite: whether NaN and infinity do not fit.
        negative_zero: whether -0.0 and 0.0 are two values.
        nan: whether NaN fits.
        far_dates: whether a date before the year 1 or after 9999 fits.
        form: regular expression of RE2 that a text must match as a whole; empty if there is none.
        bars: regular expression of RE2 for what no text may contain; empty if there is none.
        remedy: what to do about a text that `form` or `bars` refuses.
    """

    name: str
    type: str = ""
    nullable: bool = True
    least: int | Decimal | None = None
    most: int | Decimal | None = None
    digits: int = _MICROSECOND_DIGITS
    characters: int | None = None
    bytes: int | None = None
    blanks: bool = True
    finite: bool = False
    negative_zero: bool = True
    nan: bool = True
    far_dates: bool = True
    form: str = ""
    bars: str = ""
    remedy: str = ""


def all_nines(precision: int, scale: int) -> Decimal:
    """Return the greatest decimal of this precision and scale."""
    return Decimal((0, (9,) * precision, -scale))


def checked(batches: Iterator[pa.RecordBatch], limits: Sequence[Limits]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows, each when its values are checked; see `check`."""
    for batch in batches:
        if batch.num_rows:
            check(batch, limits)
            yield batch


def check(batch: pa.RecordBatch, limits: Sequence[Limits]) -> None:
    """Check the values of a batch, and that all its texts are UTF-8.

    Args:
        batch: the rows. Columns after those with limits have their own names, and any values.
        limits: limits of the batch's first columns, in their order.

    Raises:
        RowMismatch: a value does not fit; nothing was written.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    names = [each.name for each in limits]
    rest = [Limits(name, str(batch.schema.field(name).type)) for name in batch.schema.names[len(limits) :]]
    for array, each in zip(batch.columns, [*limits, *rest], strict=True):
        if not each.nullable and array.null_count:
            row = pc.index(array.is_null(), value=True).as_py()
            raise no_value(each, record_of(batch, row, names))
        _check_texts(array, each, lambda row: record_of(batch, row, names))
        values, rows = _within(array)
        for wrong, why in _wrong(values, each):
            found = pc.index(wrong, value=True).as_py()
            if found >= 0:
                record = record_of(batch, rows(found), names)
                raise RowMismatch(
                    f"{record}column {each.name} ({each.type}): {_shown(values[found])} {why}; nothing was written"
                )


def record_of(batch: pa.RecordBatch, row: int, names: Sequence[str]) -> str:
    """Return the record of a row, such as "orders 3 offset 17: "; empty if the batch does not say it.

    Args:
        batch: the rows.
        row: number of the row.
        names: names of the batch's first columns; the others have their own.
    """
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    places = {name: place for place, name in enumerate([*names, *batch.schema.names[len(names) :]])}
    if not set(PLACE) <= set(places):
        return ""
    topic, partition, offset = (batch.column(places[name]) for name in PLACE)
    if not (_is_text(topic.type) and all(pa.types.is_integer(each.type) for each in (partition, offset))):
        return ""
    return named(_bytes_of(topic[row]), partition[row].as_py(), offset[row].as_py())


def named(topic: bytes | None, partition: int | None, offset: int | None) -> str:
    """Return a record as it begins a message; empty if a part of its place is missing."""
    if topic is None or partition is None or offset is None:
        return ""
    text = topic.decode(errors="replace")
    return f"{text if text.isprintable() else repr(text)} {partition} offset {offset}: "[:_MOST_OF_A_VALUE]


def no_utf8(text: bytes) -> str:
    """Return what is wrong with a text that is not UTF-8."""
    return (
        f"has a text that is not UTF-8, {_cut(text)}, as a cast of bytes may give: use make_valid_utf8 in the frame, "
        "or a column of bytes"
    )


def no_value(limits: Limits, record: str = "") -> RowMismatch:
    """Return the error for a row without a value that it must have."""
    return RowMismatch(
        f"{record}column {limits.name} ({limits.type}) must have a value, but a row has none; nothing was written"
    )


def check_ranks(batch: pa.RecordBatch, limits: Sequence[Limits], same_key: str) -> None:
    """Check that each row is the last of its key.

    Args:
        batch: the rows, with the column `RANK`.
        limits: as of `check`.
        same_key: the message for a second row of a key.

    Raises:
        RowMismatch: a row is not.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    ranks = batch.column(RANK)
    if not len(ranks):
        return
    if pc.min(ranks).as_py() < 1:
        raise RowMismatch(
            "a row has no value in one of the columns topic, partition and offset, so it is unknown whether it is the "
            "last of its key: keep Kafka's values there, or remove these columns; nothing was written"
        )
    if pc.max(ranks).as_py() > 1:
        row = pc.index(pc.greater(ranks, 1), value=True).as_py()
        raise RowMismatch(f"{record_of(batch, row, [each.name for each in limits])}{same_key}")


def _shown(scalar: pa.Scalar) -> str:
    try:
        return _cut(scalar.as_py())
    except (OverflowError, ValueError):  # Python knows only these years
        return "a time before the year 1 or after 9999"


def _cut(value: Any) -> str:
    shown = repr(value[:_MOST_OF_A_VALUE]) if isinstance(value, str | bytes) else str(value)
    return shown[:_MOST_OF_A_VALUE]


def _check_texts(array: pa.Array, limits: Limits, record: Callable[[int], str]) -> None:
    for texts, rows in _texts(array, lambda row: row):
        found = _no_utf8(texts)
        if found is not None:
            why = no_utf8(_bytes_of(texts[found]) or b"")
            raise RowMismatch(f"{record(rows(found))}column {limits.name} ({limits.type}) {why}; nothing was written")


def _texts(array: pa.Array, rows: Callable[[int], int]) -> Iterator[tuple[pa.Array, Callable[[int], int]]]:
    """Yield the texts of an array or within its values, each time with a function that finds the row of one."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    kind = array.type
    if _is_text(kind):
        yield array, rows
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            yield from _texts(inner, rows)
    elif pa.types.is_map(kind):  # pyarrow 26 finds no parents in a map, and ends the process
        yield from _texts(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))), rows)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values, parents = _within(array)
        yield from _texts(values, lambda place: rows(parents(place)))


def _within(array: pa.Array) -> tuple[pa.Array, Callable[[int], int]]:
    """Return the values in the lists of an array, however deep, and a function that finds the row of one."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    levels: list[pa.Array] = []
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        levels.insert(0, array)
        array = array.flatten()

    def row_of(place: int) -> int:
        for lists in levels:
            place = pc.list_parent_indices(lists)[place].as_py()
        return place

    return array, row_of


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _bytes_of(text: pa.Scalar) -> bytes | None:
    return bytes(text.as_buffer()) if text.is_valid else None


def _no_utf8(texts: pa.Array) -> int | None:
    """Return the place of the first text that is not UTF-8; None if there is none."""
    if _decodable(texts):
        return None
    start, size = 0, len(texts)
    while size > 1:
        half = size // 2
        if _decodable(texts.slice(start, half)):
            start, size = start + half, size - half
        else:
            size = half
    return start


def _decodable(texts: pa.Array) -> bool:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it

    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _wrong(values: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    """Yield which values are wrong, and why, for each limit that any value may pass."""
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    if limits.least is not None or limits.most is not None:
        yield from _out_of_range(values, limits)
    if limits.digits < _MICROSECOND_DIGITS:
        step = 10 ** (_MICROSECOND_DIGITS - limits.digits)
        numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
        yield (
            pa.array(numbers % step != 0),
            f"has more digits of a second than {limits.digits}: use date_trunc in the frame",
        )
    if limits.finite:
        yield (
            pc.invert(pc.fill_null(pc.is_finite(values), fill_value=True)),
            "cannot be stored there: replace it, for example with nanvl",
        )
    if not limits.far_dates:
        days = values.cast(pa.int32())
        far = pc.or_(pc.less(days, FIRST_DAY), pc.greater(days, LAST_DAY))
        yield pc.fill_null(far, fill_value=False), "in an upsert makes the table unreadable in Python: replace it"
    yield from _of_two_forms(values, limits)
    if limits.characters is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > limits.characters:
        yield pc.greater(pc.utf8_length(values), limits.characters), f"is longer than {limits.characters} characters"
    if limits.bytes is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > limits.bytes:
        yield pc.greater(pc.binary_length(values), limits.bytes), f"is longer than {limits.bytes} bytes"
    if not limits.blanks:
        yield pc.ends_with(values, " "), "ends with a blank, which the column ignores or drops: use rtrim in the frame"
    if limits.form:
        yield pc.invert(pc.match_substring_regex(values, rf"(?s)\A(?:{limits.form})\z")), limits.remedy
    if limits.bars:
        yield pc.match_substring_regex(values, limits.bars), limits.remedy


def _of_two_forms(values: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    import pyarrow as pa  # noqa: PLC0415 - only executors need it
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    if not limits.negative_zero:
        zeros = pc.and_(pc.equal(values, 0), pc.less(pc.divide(1.0, values.cast(pa.float64())), 0))
        yield pc.fill_null(zeros, fill_value=False), "is a key equal to 0.0 there: add 0.0 to it in the frame"
    if not limits.nan:
        nans = pc.fill_null(pc.is_nan(values), fill_value=False)
        yield nans, "is a key of its own for each form of its bits: replace it in the frame, for example with nanvl"


def _out_of_range(values: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    import pyarrow.compute as pc  # noqa: PLC0415 - only executors need it

    ends = pc.min_max(values).as_py()
    if ends["min"] is None:
        return
    if limits.least is not None and ends["min"] < limits.least:
        yield pc.equal(values, ends["min"]), f"is less than {limits.least}"
    if limits.most is not None and ends["max"] > limits.most:
        yield pc.equal(values, ends["max"]), f"is more than {limits.most}"
