"""Errors that executors raised: Spark gives the driver only their text. The one way home for those of all tasks."""

from __future__ import annotations

import re
from typing import NamedTuple

from offsetkeeper import errors
from offsetkeeper.errors import OffsetkeeperError

TRACEBACK = "Traceback (most recent call last):"
"""How the text of an error begins that Python code has raised in a task."""
_KINDS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, OffsetkeeperError)
}
_OURS = re.compile(r"offsetkeeper\.errors\.(?P<name>[A-Za-z]+): (?P<message>[^\r\n]*(?:\n  [^\r\n]*)*)")


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


def raised(error: BaseException) -> Raised | None:
    """Return what Python code has raised in a task, from what Spark raises; None if no such code has."""
    text = str(error)
    if TRACEBACK not in text:
        return None
    lines = text.rpartition(TRACEBACK)[2].splitlines()[1:]
    line = next((line for line in lines if line.strip() and not line.startswith(" ")), "")
    name, _, message = line.partition(":")
    return Raised(name.strip(), message.strip()) if line else None
