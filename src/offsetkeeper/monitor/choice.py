"""What the address of a group's page asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from offsetkeeper.monitor.cells import shade_of
from offsetkeeper.monitor.order import Order
from offsetkeeper.monitor.partitions import COLUMNS, USUAL

_FIRST_SHADE = shade_of("")


class Choice(NamedTuple):
    """What is shown of a group.

    Attributes:
        whole: whether a thousand partitions are in the table, or two hundred: the first ones in the order.
        shade: what the cells tell, a key of `cells.SHADES`.
        order: of the partitions in the table.
        day: whether the lag of a day is drawn, or that of an hour.
    """

    whole: bool = False
    shade: str = _FIRST_SHADE
    order: Order = USUAL
    day: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Return what the query of an address asks for; what is not known is as usual."""
        order = Order.of(query.get("sort", ""), COLUMNS, USUAL.key)
        return cls("all" in query, shade_of(query.get("shade", "")), order, query.get("lag") == "day")

    def but(self, **changes: Any) -> Choice:
        """Return it with other values."""
        return self._replace(**changes)

    @property
    def query(self) -> str:
        """The end of the address that asks for it; empty as usual."""
        parts = (
            self.whole and "all",
            self.shade != _FIRST_SHADE and f"shade={self.shade}",
            self.order != USUAL and f"sort={self.order.text}",
            self.day and "lag=day",
        )
        asked = "&".join(part for part in parts if part)
        return f"?{asked}" if asked else ""
