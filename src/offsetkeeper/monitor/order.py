"""In which order rows are shown, as an address asks: `waiting`, or `-waiting` for the reverse. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Row = TypeVar("Row")


class Column(NamedTuple, Generic[Row]):
    """A column that rows can be sorted by.

    Attributes:
        key: in the address.
        label: above the column.
        value: what is compared; a row without a value comes last.
        descending: whether the largest value is the first, unless the address reverses it.
        number: whether its values are at the right.
    """

    key: str
    label: str
    value: Callable[[Row], Any]
    descending: bool = False
    number: bool = False


class Order(NamedTuple):
    """An order of rows.

    Attributes:
        key: of the column that they are sorted by.
        reversed: whether its order is turned round.
    """

    key: str
    reversed: bool = False

    @classmethod
    def of(cls, asked: str, columns: Sequence[Column[Any]], usual: str) -> Order:
        """Return the order that an address asks for; the usual one where no column has that key."""
        key = asked.removeprefix("-")
        return cls(key, asked.startswith("-")) if any(key == each.key for each in columns) else cls(usual)

    @property
    def text(self) -> str:
        """The order as an address has it."""
        return f"-{self.key}" if self.reversed else self.key

    def turned(self, column: Column[Any]) -> Order:
        """Return what a click on the head of a column asks for: that order, or its reverse where it is that already."""
        return Order(column.key, self.key == column.key and not self.reversed)

    def direction(self, column: Column[Any]) -> str:
        """Return the order of a column in words of ARIA; `none` where the rows are sorted by another."""
        if column.key != self.key:
            return "none"
        return "descending" if column.descending is not self.reversed else "ascending"

    def sorted(self, rows: Iterable[Row], columns: Sequence[Column[Row]]) -> list[Row]:
        """Return the rows in this order; of equal ones, the first stays first."""
        [column] = [each for each in columns if each.key == self.key]
        every = [(column.value(row), row) for row in rows]
        known = [pair for pair in every if pair[0] is not None]
        known.sort(key=lambda pair: pair[0], reverse=column.descending is not self.reversed)
        return [row for _, row in known] + [row for value, row in every if value is None]
