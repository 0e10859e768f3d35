"""Errors that executors raised: Spark gives the driver only their text. The one way home for those of all tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from offsetkeeper.errors import OffsetkeeperError

TRACEBACK = "Traceback (most recent call last):"
"""How the text of an error begins that Python code has raised in a task."""
# At the start of a line, or behind what Spark writes before: a value may have the same words.
_OURS = re.compile(
    r"^(?:Caused by: |\[USER_RAISED_EXCEPTION\] |(?:[\w$]+\.)+[\w$]+: )*offsetkeeper\.errors\.(?P<name>[A-Za-z]+): "
    r"(?P<message>[^\r\n]*(?:\n  [^\r\n]*)*)",
    re.MULTILINE,
)
_BEGIN = re.compile(rf"^[^'\"\n]*{re.escape(TRACEBACK)}", re.MULTILINE)  # not within a value
_CHAINED = re.compile(r"\n\n(?:The above exception was the direct|During handling of the above exception)[^\n]*:\n\n")


class Raised(NamedTuple):
    """What Python code has raised in a task.

    Attributes:
        name: the class with its module, as Python writes it: `ValueError`, `psycopg.errors.UniqueViolation`.
        message: the first line of its text.
    """

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def our_error(error: BaseException) -> OffsetkeeperError | None:
    """Return the error of offsetkeeper that a task has raised, from what Spark raises; None if it is another one."""
    found = [each for each in _OURS.finditer(str(error)) if each["name"] in _KINDS]
    return _KINDS[found[-1]["name"]](found[-1]["message"]) if found else None


def _below(kind: type[OffsetkeeperError]) -> dict[str, type[OffsetkeeperError]]:
    return {kind.__name__: kind} | {name: each for sub in kind.__subclasses__() for name, each in _below(sub).items()}


_KINDS = _below(OffsetkeeperError)


def raised(error: BaseException) -> Raised | None:
    """Return what Python code has raised in a task, from what Spark raises; None if no such code has."""
    return next(raised_in_turn(error), None)


def raised_in_turn(error: BaseException) -> Iterator[Raised]:
    """Yield what Python code has raised in a task, and then the errors before it that it was raised from."""
    for part in reversed(_CHAINED.split(str(error))):
        parts = _BEGIN.split(part, maxsplit=1)
        lines = parts[1].splitlines()[1:] if len(parts) > 1 else []
        line = next((line for line in lines if line.strip() and not line.startswith(" ")), "")
        name, _, message = line.partition(":")
        if not line:
            return
        yield Raised(name.strip(), message.strip())
