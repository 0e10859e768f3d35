"""What all stores share: what their URLs say, checked before anything is opened, and what they can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote

from offsetkeeper.core.outside import check_files, unknown_setting
from offsetkeeper.core.store import Ability
from offsetkeeper.core.urls import address_of, redacted, split_url, url_error
from offsetkeeper.errors import SettingsError

T = TypeVar("T")
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


class StoreUrl(NamedTuple):
    """What the URL of a store says.

    Attributes:
        address: the URL without credentials and settings, for messages.
        parts: of the URL; they may have a password in them.
        settings: that stores share.
        given: the other settings, by name.
    """

    address: str
    parts: SplitResult
    settings: StoreSettings
    given: dict[str, str]

    def __repr__(self) -> str:
        return f"StoreUrl({self.address!r})"

    def error(self, why: str) -> SettingsError:
        """Return the error for a URL that names no store; it shows the scheme, and nothing else of it."""
        return url_error(f"{self.parts.scheme}://", why)

    def redact(self, error: object) -> str:
        """Return the text of another library's error, with `***` for the password and the settings that it quotes."""
        password = self.parts.password or ""
        return redacted(str(error), [*self.given.values(), password, unquote(password)])

    def cause(self, error: Exception) -> Exception | None:
        """Return the error of another library if it may be shown as a cause: it quotes no password and no setting."""
        return error if self.redact(error) == str(error) else None


class BaseStore:
    """A store that commits, fences and keeps a history.

    Args:
        url: as it was read.
    """

    abilities = frozenset({Ability.COMMIT, Ability.FENCE, Ability.HISTORY})

    def __init__(self, url: StoreUrl) -> None:
        self.address = url.address
        self._settings = url.settings

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"


def read_url(
    url: str, shared: Collection[str], own: Collection[str] | None = (), usual: StoreSettings | None = None
) -> StoreUrl:
    """Return what the URL of a store says.

    Args:
        url: to be read; a plus in its settings is no space.
        shared: names of the fields of `StoreSettings` that it may give.
        own: names of the store's own settings; None lets all through.
        usual: values where it gives none.

    Raises:
        SettingsError: a setting is unknown, given twice, not UTF-8, or its value cannot be one.
    """
    parts = split_url(url)
    settings, given = read_settings(parts.query, shared, usual)
    if own is not None:
        refuse_unknown(given, (*shared, *own))
    check_files(given)
    return StoreUrl(address_of(parts), parts, settings, given)


def read_settings(
    query: str, shared: Collection[str], usual: StoreSettings | None = None
) -> tuple[StoreSettings, dict[str, str]]:
    """Return the settings of a URL's query that are named in `shared`, and the others.

    Raises:
        SettingsError: a setting is given twice, is not UTF-8, or its value cannot be one.
    """
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, errors="strict")
    except UnicodeError:  # its message quotes the setting
        raise SettingsError("the store's URL has a setting that is not UTF-8: write its characters as UTF-8") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise SettingsError("the store's URL gives a setting twice: write each one once")
    taken = {name: _READERS[name](name, given.pop(name)) for name in shared if name in given}
    return (usual or StoreSettings())._replace(**taken), given


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Check that no setting is left over.

    Raises:
        SettingsError: one is; the message lists the known ones, and does not show it.
    """
    if error := unknown_setting("the store's URL", given, known):
        raise error


def read_number(name: str, text: str, least: int = 1, most: int = _MOST) -> int:
    """Return the whole number that a setting is.

    Raises:
        SettingsError: it is none, or not within these bounds.
    """
    if not re.fullmatch("0*[0-9]{1,18}", text) or not least <= int(text[-18:]) <= most:
        raise SettingsError(f"{name} in the store's URL is wrong: use a whole number from {least} to {most}")
    return int(text[-18:])


def read_choice(name: str, text: str, known: Mapping[str, T]) -> T:
    """Return what the word that a setting is stands for.

    Raises:
        SettingsError: it is none of the known ones.
    """
    if text not in known:
        raise SettingsError(f"{name} in the store's URL is wrong: use {' or '.join(known)}")
    return known[text]


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _DAY:
        raise SettingsError(f"{name} in the store's URL is wrong: use seconds, more than 0 and at most 86400")
    return seconds


def _identifier(name: str, text: str) -> str:
    if not 1 <= len(text.encode("utf-8", "replace")) <= _LONGEST or not text.isprintable() or "%" in text:
        raise SettingsError(f"{name} in the store's URL is wrong: use 1 to 50 printable characters, and no %")
    return text


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "history": read_number,
    "timeout": _seconds,
    "table": _identifier,
    "schema": _identifier,
}
