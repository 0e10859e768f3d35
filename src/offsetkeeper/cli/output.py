"""How commands answer: tables for people, plain when piped, or one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from offsetkeeper.core.duration import duration

_WIDE = 10_000


def say(text: str) -> None:
    """Print a line for people; names of groups and topics are text, never markup."""
    typer.echo(text)


def say_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=None if not sys.stdout.isatty() else 1, default=str))


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> None:
    """Print a table; where the output is no terminal, tab-separated lines with a header."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (columns, *cells):
            typer.echo("\t".join(line))
        return
    from rich.console import Console  # noqa: PLC0415 - slow to load, and of no use in a pipe
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*columns, title=Text(title) if title else None)
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def seconds(value: float | None) -> str:
    """Return a time span, or - where it is not known."""
    return "-" if value is None else duration(value)
