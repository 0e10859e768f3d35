"""Texts of a batch: which are refused because they are not UTF-8, and which record and value the error names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.errors import RowMismatch
from offsetkeeper.sinks.limits import RANK, Limits, check, check_ranks

ODD = (
    *(b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\xaf", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80"),
    *(b"\xc3", b"\xa9", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf", b"\0"),
)
"""Surrogates, forms that are too long, numbers that are too large, parts; and the last characters that there are."""

BYTES = st.lists(st.sampled_from(ODD) | st.binary(max_size=4) | st.text(max_size=20).map(str.encode), max_size=3).map(
    b"".join
)


class Slot:
    """A value of a text column: its bytes, and whether it is null all the same."""

    def __init__(self, data: bytes, null: bool) -> None:  # noqa: FBT001 - as hypothesis builds it
        self.data, self.null = data, null

    def __repr__(self) -> str:
        return f"Slot({self.data!r}, {self.null})"

    @property
    def wrong(self) -> bool:
        """Whether Python finds no text in it."""
        try:
            self.data.decode()
        except UnicodeDecodeError:
            return not self.null
        return False


SLOTS = st.lists(st.builds(Slot, BYTES, st.booleans()), min_size=1, max_size=12)
KINDS = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def texts(slots: Sequence[Slot], kind: pa.DataType) -> pa.Array:
    """Return an array of a type of texts; its nulls have their bytes too, and nobody has looked at any."""
    known = pa.array([slot.data for slot in slots], KINDS[kind])
    valid = sum((not slot.null) << place for place, slot in enumerate(slots))
    buffers = [pa.py_buffer(valid.to_bytes(len(slots) // 8 + 1, "little")), *known.buffers()[1:]]
    return pa.Array.from_buffers(kind, len(slots), buffers)


SHAPES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "a text": lambda array: array,
    "a struct": lambda array: pa.StructArray.from_arrays([pa.nulls(len(array)), array], ["nothing", "text"]),
    "a list": lambda array: pa.ListArray.from_arrays(pa.array(range(len(array) + 1), pa.int32()), array),
    "a list of lists": lambda array: SHAPES["a list"](SHAPES["a list"](array)),
    "the keys of a map": lambda array: pa.MapArray.from_arrays(
        pa.array(range(len(array) + 1), pa.int32()), array, array
    ),
    "the values of a map": lambda array: pa.MapArray.from_arrays(
        pa.array(range(len(array) + 1), pa.int32()), pa.array(range(len(array))), array
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@given(kind=st.sampled_from(list(KINDS)), slots=SLOTS, cut=st.integers(0, 3))
def test_a_text_is_refused_if_and_only_if_it_is_not_utf_8(
    shape: str, kind: pa.DataType, slots: list[Slot], cut: int
) -> None:
    """Whatever is in nulls, or beside the part of a larger array that the batch has; the error names its row."""
    if shape == "the keys of a map":
        slots = [Slot(slot.data, null=False) for slot in slots]
    column = SHAPES[shape](texts(slots, kind)).slice(cut)
    place = [pa.array(["orders"] * len(column)), pa.array([3] * len(column), pa.int32()), pa.array(range(len(column)))]
    batch = pa.record_batch([column, *place], ["c0", "topic", "partition", "offset"])
    wrong = [row for row, slot in enumerate(slots[cut:]) if slot.wrong]
    if not wrong:
        check(batch, [Limits("item")])
        return
    with pytest.raises(RowMismatch) as told:
        check(batch, [Limits("item", "text")])
    shown = repr(slots[cut + wrong[0]].data)[:200]
    assert str(told.value).startswith(
        f"orders 3 offset {wrong[0]}: column item (text) has a text that is not UTF-8, {shown}, as"
    )


PLACE = {"topic": ["t"] * 3, "partition": pa.array([0] * 3, pa.int32()), "offset": [7, 8, 9]}


@pytest.mark.parametrize(
    ("column", "limits", "told"),
    [
        (["a", None, "b"], Limits("item", "text", nullable=False), "column item (text) must have a value"),
        (["a", "bcd", "b"], Limits("item", "text", characters=2), "column item (text): 'bcd' is longer than 2 char"),
        ([1, -5, 2], Limits("item", "int", least=0), "column item (int): -5 is less than 0"),
        (
            [["a"], [None, "b\n"], []],
            Limits("item", "text[]", bars="\n", remedy="has"),
            r"column item (text[]): 'b\n' has",
        ),
        (["a", "ab" * 999, "b"], Limits("item", "text", bytes=2), f"column item (text): '{'ab' * 99}a is longer"),
    ],
)
def test_an_error_of_a_value_names_its_record_and_shows_it_in_a_line_of_some_length(
    column: Sequence[Any], limits: Limits, told: str
) -> None:
    rest = {name: values for name, values in PLACE.items() if name != "offset"}
    numbered = {"c0": column, "c1": PLACE["offset"], **rest}  # a column has the name of its limits, if it has any
    with pytest.raises(RowMismatch) as error:
        check(pa.record_batch(numbered), [limits, Limits("offset")])
    assert str(error.value).startswith(f"t 0 offset 8: {told}")
    for other in ({}, rest, {**rest, "offset": ["7", "8", "9"]}, {**PLACE, "offset": [7, None, 9]}):
        with pytest.raises(RowMismatch) as error:
            check(pa.record_batch({"c0": column, **other}), [limits])
        assert str(error.value).startswith(told)


def test_a_row_with_the_key_of_another_names_its_record() -> None:
    with pytest.raises(RowMismatch, match=r"^t 0 offset 9: same key"):
        check_ranks(pa.record_batch({"c0": ["a", "b", "b"], **PLACE, RANK: [1, 1, 2]}), [Limits("key")], "same key")
