"""Tables for notebooks, as HTML with all values escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_MOST = 20  # rows


def html_table(caption: object, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as HTML: the first twenty rows, and a line with the number of further rows.

    Args:
        caption: one line above the table.
        columns: names of the columns.
        rows: a value for each column; None is shown as `-`.
    """
    every = [*rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in every[:_MOST])
    more = f'<tr><td colspan="{len(columns)}">… and {len(every) - _MOST} more</td></tr>' if len(every) > _MOST else ""
    title = f'<caption style="text-align: left">{escape(str(caption))}</caption>'
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def _cell(value: object) -> str:
    return f"<td>{escape('-' if value is None else str(value))}</td>"
