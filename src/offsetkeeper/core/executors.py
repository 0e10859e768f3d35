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
# Python draws the errors of a group in a frame: each line behind a margin, and rules between them.
_GROUP = re.compile(rf"^[^'\"\n]*Exception Group {re.escape(TRACEBACK)}", re.MULTILINE)
_MARGIN = re.compile(r"^ *[|+] ", re.MULTILINE)
_RULE = re.compile(r"^ *\+-.*\n?", re.MULTILINE)
_GROUPS = frozenset({"ExceptionGroup", "BaseExceptionGroup"})
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


def error_text(error: BaseException) -> str:
    """Return the text of an error of any code; of one whose text cannot be made, that it cannot, as Python does."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` of anybody
        return f"<the text of {type(error).__name__} cannot be made>"


def our_error(error: BaseException) -> OffsetkeeperError | None:
    """Return the error of offsetkeeper that a task has raised, from what Spark raises; None if it is another one."""
    found = [each for each in _OURS.finditer(_unframed(error_text(error))) if each["name"] in _KINDS]
    return _KINDS[found[-1]["name"]](found[-1]["message"]) if found else None


def _below(kind: type[OffsetkeeperError]) -> dict[str, type[OffsetkeeperError]]:
    """Return a public error and those below it. Executors may lack the modules of others, whoever has loaded them."""
    public = [sub for sub in kind.__subclasses__() if sub.__module__ == OffsetkeeperError.__module__]
    return {kind.__name__: kind} | {name: each for sub in public for name, each in _below(sub).items()}


_KINDS = _below(OffsetkeeperError)


def raised(error: BaseException) -> Raised | None:
    """Return what Python code has raised in a task, from what Spark raises; None if no such code has."""
    return next(raised_in_turn(error), None)


def raised_in_turn(error: BaseException) -> Iterator[Raised]:
    """Yield what Python code has raised in a task, and then the errors before it that it was raised from.

    In place of a group of errors come those that are in it.
    """
    text = _unframed(error_text(error))
    most = 0 if _GROUP.search(text) else 1  # otherwise the rest is Spark's, or a value's
    for part in reversed(_CHAINED.split(text)):
        found = [one for each in _BEGIN.split(part, most)[1:] if (one := _last_line(each)) is not None]
        if not found:
            return
        yield from [each for each in found if each.name not in _GROUPS] or found


def _last_line(traceback: str) -> Raised | None:
    """Return the error that ends a traceback, without what follows it; None if it is cut before."""
    line = next((line for line in traceback.splitlines()[1:] if line.strip() and not line.startswith(" ")), "")
    name, _, message = line.partition(":")
    return Raised(name.strip(), message.strip()) if line else None


def _unframed(text: str) -> str:
    """Return a text with the errors of a group as those of no group are."""
    return _MARGIN.sub("", _RULE.sub("", text)) if _GROUP.search(text) else text
