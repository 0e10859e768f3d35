"""A mark as numbers of applications, which are all that a table of Delta Lake keeps for ever."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.errors import MarkError
from offsetkeeper.sinks import MarkKey
from offsetkeeper.sinks.delta.marks import read, transactions

KEY = MarkKey("shop", "orders")
words = st.text(st.characters(codec="utf-8", exclude_characters=" \0"), min_size=1)
marks = st.builds(OutputMark, st.integers(0, 2**63 - 1), words, words, st.booleans(), partly=st.just(value=False))


@given(st.lists(marks, min_size=1, max_size=3))
def test_the_last_of_several_marks_is_read_back(written: list[OutputMark]) -> None:
    """A shorter one leaves pieces of the one before it behind."""
    table: dict[str, int] = {}
    for mark in written:
        table |= transactions(KEY, mark)
    assert read(table.get, KEY) == written[-1]
    assert all(0 <= number < 2**63 for number in table.values())


@example([MarkKey("a/b", ""), MarkKey("a", "b/")])
@example([MarkKey("a", "/0"), MarkKey("a", "")])
@given(st.lists(st.builds(MarkKey, st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_marks_of_two_groups_or_outputs_share_no_application(keys: list[MarkKey]) -> None:
    mark = OutputMark(1, "token" * 20, "digest")
    one, other = (transactions(key, mark).keys() for key in keys)
    assert not one & other


def test_a_usual_mark_takes_six_numbers() -> None:
    assert len(transactions(KEY, OutputMark(7, "0" * 16, "f" * 16))) == 6


@pytest.mark.parametrize("numbers", [{}, {"/0": -1}, {"/0": 2**56}, {"/0": 0}, {"/0": 0x41000000000000}])
def test_what_something_else_has_written_is_no_mark(numbers: dict[str, int]) -> None:
    name = KEY.path
    with pytest.raises(MarkError):
        read({name: 1, **{name + piece: number for piece, number in numbers.items()}}.get, KEY)
