"""The output of commands: tables for people, plain lines in a pipe, or one JSON document."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from offsetkeeper.core.duration import duration

if TYPE_CHECKING:
    from rich.console import Console

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_WRAPPED = 20  # least characters of a column of texts
# Names and reasons may have control codes, and signs that break a line or turn the order of what follows.
_SIGNS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), *_SIGNS], " ")
_CONTROL_IN_LINES = {code: blank for code, blank in _CONTROL.items() if chr(code) != "\n"}


def on_terminal() -> bool:
    """Whether the output is a terminal."""
    return sys.stdout.isatty()


class LogFormatter(logging.Formatter):
    """Shows a message without signs that control a terminal; only its first line begins at the left."""

    def __init__(self) -> None:
        super().__init__(_LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of `logging`
        """See `logging.Formatter`."""
        return super().formatMessage(record).translate(_CONTROL_IN_LINES).replace("\n", "\n  ")


def log_to_stderr(level: int) -> None:
    """Let log messages from a level on go to stderr, unless the process has decided otherwise."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def shown(name: str) -> str:
    """Return a name, or a line with names, as tables show it: in one line, and in the order of its letters."""
    return name.translate(_CONTROL)


def say(text: str) -> None:
    """Print a line for people; names of groups and topics are never read as markup."""
    typer.echo(text.translate(_CONTROL_IN_LINES))


def say_exactly(text: str) -> None:
    """Print what another command reads; a terminal gets it as `say` prints it."""
    say(text) if on_terminal() else typer.echo(text)


def complain(text: object) -> None:
    """Print a problem to stderr."""
    typer.echo(f"offsetkeeper: {text}".translate(_CONTROL_IN_LINES), err=True)


def say_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1 if on_terminal() else None, default=str))


def say_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    *,
    spare: Sequence[str] = (),
    wrap: Sequence[str] = (),
) -> None:
    """Print a table. In a pipe: tab-separated lines with a header, and the title after a `#`.

    No cell is cut. If the table is wider than the terminal, columns are left out and named: first those without a value
    in any row, then spare ones. If that is not enough, each row becomes a block of lines.

    Args:
        columns: names of the columns.
        rows: a cell for each column; None is shown as -.
        title: a line above the table.
        spare: columns that may be left out, in this order.
        wrap: columns whose texts may take several lines.
    """
    cells = [["-" if cell is None else str(cell).translate(_CONTROL) for cell in row] for row in rows]
    if not on_terminal():
        head = [f"# {title.translate(_CONTROL)}"] if title else []
        for line in (*head, *("\t".join(row) for row in (columns, *cells))):
            typer.echo(line)
        return
    from rich.console import Console  # noqa: PLC0415 - slow to load, and not needed in a pipe

    if title:
        say(title)
    console, widths = Console(), _widths(columns, cells, wrap)
    empty = [name for place, name in enumerate(columns) if cells and all(row[place] == "-" for row in cells)]
    ranked = [*empty, *(name for name in spare if name not in empty)]
    shown = _fitting(widths, ranked, console.width)
    if shown is None:
        _say_blocks(columns, cells)
        return
    _say_grid(console, [columns.index(name) for name in shown], columns, cells, wrap)
    if left := [name for name in ranked if name in columns and name not in shown]:
        say(f"Left out, because the terminal is too narrow: {', '.join(left)}")
        say("A wider terminal or a pipe (| cat) shows all")


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]], wrap: Sequence[str]) -> dict[str, int]:
    """Return how many characters each column needs, with its border and a space on both sides."""
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    longest = {name: max(map(cell_len, (name, *(row[place] for row in cells)))) for place, name in enumerate(columns)}
    return {name: (min(width, _WRAPPED) if name in wrap else width) + 3 for name, width in longest.items()}


def _fitting(widths: Mapping[str, int], spare: Sequence[str], terminal: int) -> list[str] | None:
    """Return the columns that fit; None if the terminal is too narrow even without the spare columns."""
    shown, waiting = [*widths], [name for name in spare if name in widths]
    while 1 + sum(widths[name] for name in shown) > terminal:
        if not waiting:
            return None
        shown.remove(waiting.pop(0))
    return shown


def _say_grid(
    console: Console, places: Sequence[int], columns: Sequence[str], cells: Sequence[Sequence[str]], wrap: Sequence[str]
) -> None:
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    table = Table()
    for place in places:
        table.add_column(columns[place], no_wrap=columns[place] not in wrap, overflow="fold")
    for row in cells:
        table.add_row(*(Text(row[place]) for place in places))
    console.print(table)


def _say_blocks(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as a block: one line with name and value for each column."""
    longest = max(map(len, columns))
    for row in cells:
        say("")
        for name, cell in zip(columns, row, strict=True):
            say(f"{name:<{longest}}  {cell}")


def counted(count: int, what: str) -> str:
    """Return a number with the name of what is counted, such as `1 group` or `2 groups`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def share(value: float | None) -> str:
    """Return a share in percent, or - if it is unknown."""
    return "-" if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    """Return a time span, or - if it is unknown."""
    return "-" if value is None else duration(value)
