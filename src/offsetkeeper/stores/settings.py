"""What stores take from the query of their URL for themselves, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from offsetkeeper.errors import SettingsError

_MOST = 1_000_000_000
_DAY = 86_400.0
_LONGEST = 50  # PostgreSQL cuts names at 63 bytes without a word, and those of the tables beside are longer by 8


class StoreSettings(NamedTuple):
    """The settings that stores share.

    Attributes:
        history: number of history entries kept for each group, at least 1.
        timeout: seconds that one request may take.
        table: name of the table, or of what the store has in place of one, that holds the positions.
        schema: that the table lies in; empty means the current one of the database's user.
    """

    history: int = 1000
    timeout: float = 30.0
    table: str = "kafka_offsets"
    schema: str = ""


def read_settings(query: str, own: Collection[str]) -> tuple[StoreSettings, dict[str, str]]:
    """Return the settings of a URL's query, and what is in it beside those named in `own`.

    Raises:
        SettingsError: a setting is given twice, is not UTF-8, or its value cannot be one.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeError:  # its message quotes the setting
        raise SettingsError("the store's URL has a setting that is not UTF-8: write its characters as UTF-8") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise SettingsError("the store's URL gives a setting twice: write each one once")
    taken = {name: given.pop(name) for name in own if name in given}
    return StoreSettings()._replace(**{name: _READERS[name](name, text) for name, text in taken.items()}), given


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Check that no setting is left over.

    Raises:
        SettingsError: one is; the message lists the known ones.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise SettingsError(f"the store's URL has an unknown setting {unknown[0]!r}; known are {', '.join(known)}")


def _count(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise SettingsError(f"{name}={text!r} in the store's URL: use a whole number from 1 on")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _DAY:
        raise SettingsError(f"{name}={text!r} in the store's URL: use seconds, more than 0 and at most 86400")
    return seconds


def _identifier(name: str, text: str) -> str:
    if not 1 <= len(text.encode("utf-8", "replace")) <= _LONGEST or not text.isprintable() or "%" in text:
        raise SettingsError(f"{name}={text!r} in the store's URL: use 1 to 50 printable characters, and no %")
    return text


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "history": _count,
    "timeout": _seconds,
    "table": _identifier,
    "schema": _identifier,
}
