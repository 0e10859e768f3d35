"""Errors that executors raised: Spark gives the driver only their text. The one way home for those of all tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from offsetkeeper.errors import OffsetkeeperError, RowMismatch

TRACEBACK = "Traceback (most recent call last):"
"""How the text of an error begins that Python code has raised in a task."""
_ERROR = r"offsetkeeper\.errors\.(?P<name>[A-Za-z]+): (?P<message>[^\r\n]*(?:\n  [^\r\n]*)*)"
_OURS = re.compile(_ERROR)
# What Spark writes before an error of Python whose traceback it hides, and before one of `raise_error`.
_HIDDEN = re.compile(
    r"(?:org\.apache\.spark\.api\.python\.PythonException: |\[PYTHON_EXCEPTION\] "
    rf"|An exception was thrown from the Python worker[^\n]*?[:.]\s+)+{_ERROR}"
)
_BY_SQL = re.compile(rf"(?:(?:[\w$]+\.)+[\w$]+: )*(?:\[USER_RAISED_EXCEPTION\] )?{_ERROR}")
# Only these bring the text of another error. The text of any other may have a value with all that is looked for here.
_SPARK = ("pyspark.", "py4j.")
OF_ANYBODY = "java.lang.RuntimeException"
"""The class of errors with the words of anybody: `raise_error` of Spark 3.5 says a value with it."""
_ABORTED = "org.apache.spark.SparkException: Job aborted"
_MOST_BEHIND = 20
# Where an error of Java begins in a text: where Spark, Java or py4j write one. A value may have one elsewhere.
_JAVA = re.compile(
    r"\A|^: |^Caused by: |^JVM stacktrace:\n|finished unsuccessfully\.\n|terminated with exception: "
    r"|\(\S+ executor \w+\): ",
    re.MULTILINE,
)
# The conditions of Spark whose words may be those of a value, of any number of lines.
_OF_VALUE = re.compile(
    r"(?:\A|[:)] )\[(?:USER_RAISED|CAST|CONVERSION|CANNOT_(?:PARSE|DECODE)|FAILED_(?:PARSE|ROW)|MALFORMED|INVALID"
    r"|DUPLICATED?|NUMERIC|DATETIME|ILLEGAL|(?:BINARY_)?ARITHMETIC|CHECK|MERGE|VARIANT|WKB)_[A-Z0-9_.]+\]"
)
_BEGIN = re.compile(rf"^[^'\"\n]*{re.escape(TRACEBACK)}", re.MULTILINE)  # not within a value
# Python draws the errors of a group in a frame: each line behind a margin, and rules between them.
_GROUP = re.compile(rf"^[^'\"\n]*Exception Group {re.escape(TRACEBACK)}", re.MULTILINE)
_MARGIN = re.compile(r"^ *[|+] ", re.MULTILINE)
_RULE = re.compile(r"^ *\+-.*\n?", re.MULTILINE)
_GROUPS = frozenset({"ExceptionGroup", "BaseExceptionGroup"})
_LAST = re.compile(r"(?<=\n)(?! )[^\n]*\S")
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
    return _ours_of_python(_raised_by_python(error)) or _ours_of_java(told_by_java(error))


def told_by_java(error: BaseException) -> Iterator[str]:
    """Yield what each error of the JVM says from its class on, the outermost first; none if Python code has raised.

    They come from the JVM itself where the driver has one that can be asked, else from the text.
    """
    if not _is_of_spark(error) or raised(error) is not None:
        return
    said = _chain(error)
    # the failure of a barrier stage has no cause: only its text tells it
    yield from _heads(error_text(error)) if not said or said[-1].startswith(_ABORTED) else said


def _is_of_spark(error: BaseException) -> bool:
    return any(f"{kind.__module__}.".startswith(_SPARK) for kind in type(error).__mro__)


def _chain(error: Any) -> list[str]:
    """Return what the errors of the JVM say; empty if there is no JVM, or if it does not answer."""
    said: list[str] = []
    try:
        each = getattr(error, "java_exception", None)
        each = getattr(error, "_origin", None) if each is None else each
        while each is not None and len(said) < _MOST_BEHIND:
            said.append(str(each.toString()))
            each = each.getCause()
    except Exception:  # noqa: BLE001 - of py4j, or of the `toString` of anybody
        return []
    return said


def _heads(text: str) -> Iterator[str]:
    """Yield the text from each error of Java on, up to a value."""
    most = _begin_of_value(text)
    for place in _JAVA.finditer(text):
        if place.end() > most:
            return
        yield text[place.end() :].lstrip()


def _begin_of_value(text: str) -> int:
    """Return from where on a text may be that of a value, of any number of lines; its length if none is known."""
    found = _OF_VALUE.search(text)
    return len(text) if found is None else found.start()


def _ours_of_python(ends: Iterable[str]) -> OffsetkeeperError | None:
    """Return our error if Python code has raised it, or another one of Spark that has it in its text."""
    for each in ends:
        found = _ours(_OURS.match(each))
        if found is None and each.startswith(_SPARK):
            behind = each.partition(": ")[2]
            within = [*_in_turn(behind)]
            found = _ours_of_python(within) if within else _ours_of_java(_heads(behind))
        if found is not None:
            return found
    return None


def _ours_of_java(said: Iterable[str]) -> OffsetkeeperError | None:
    """Return our error of Java's last cause that is one.

    `raise_error` makes a `RowMismatch` only. A value may do that too, and nothing else: it is its record's fault.
    """
    found = None
    for each in said:
        by_sql = _BY_SQL.match(each)
        is_one = by_sql is not None and by_sql["name"] == RowMismatch.__name__
        found = _ours(by_sql if is_one else _HIDDEN.match(each)) or found
    return found


def _ours(match: re.Match[str] | None) -> OffsetkeeperError | None:
    return _KINDS[match["name"]](match["message"]) if match is not None and match["name"] in _KINDS else None


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
    yield from map(_first_line, _raised_by_python(error))


def _raised_by_python(error: BaseException) -> Iterator[str]:
    if _is_of_spark(error) and not "".join(_chain(error)[-1:]).startswith(f"{OF_ANYBODY}: "):
        yield from _in_turn(error_text(error))


def _in_turn(text: str) -> Iterator[str]:
    """Yield the text from the last line of each traceback on; see `raised_in_turn`."""
    text = _unframed(text)
    begin = _BEGIN.search(text)
    if begin is None or begin.end() > _begin_of_value(text):
        return
    most = 0 if _GROUP.search(text) else 1  # otherwise the rest is Spark's, or a value's
    for part in reversed(_CHAINED.split(text)):
        found = [end for each in _BEGIN.split(part, most)[1:] if (end := _end_of(each))]
        if not found:
            return
        yield from [each for each in found if _first_line(each).name not in _GROUPS] or found


def _end_of(traceback: str) -> str:
    """Return a traceback from the error on that ends it; empty if it is cut before."""
    found = _LAST.search(traceback)
    return traceback[found.start() :] if found else ""


def _first_line(end: str) -> Raised:
    name, _, message = next(iter(end.splitlines())).partition(":")
    return Raised(name.strip(), message.strip())


def _unframed(text: str) -> str:
    """Return a text with the errors of a group as those of no group are."""
    return _MARGIN.sub("", _RULE.sub("", text)) if _GROUP.search(text) else text
