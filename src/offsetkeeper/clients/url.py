"""URLs of stores and outputs, taken apart, and their settings: checked before anything is opened. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote

from offsetkeeper.core.outside import LARGEST_STORED, check_files, names_file, unknown_setting
from offsetkeeper.core.urls import address_of, redacted, split_url, url_error
from offsetkeeper.errors import Refused, SettingsError

T = TypeVar("T")
_MOST = 1_000_000_000
_DAY = 86_400.0
_CA = re.compile(r"ca(_bundle)?|ssl_?(ca|rootcert|ca_certs)")
_LONGEST = 50  # PostgreSQL silently cuts names at 63 bytes, and names of the other tables are 8 bytes longer


class UrlSettings(NamedTuple):
    """The settings that stores share.

    Attributes:
        history: number of history entries kept for each group, at least 1.
        timeout: seconds that one request may take.
        table: name of the table with the positions, or of what the store has instead of a table.
        schema: schema of the table; empty means the current schema of the database's user.
    """

    history: int = 1000
    timeout: float = 30.0
    table: str = "kafka_offsets"
    schema: str = ""


class ClientUrl(NamedTuple):
    """The URL of a store, parsed.

    Attributes:
        address: the URL without credentials and settings, for messages.
        parts: the parts of the URL; they may contain a password.
        settings: the settings that stores share.
        given: the other settings, by name.
    """

    address: str
    parts: SplitResult
    settings: UrlSettings
    given: dict[str, str]

    def __repr__(self) -> str:
        return f"ClientUrl({self.address!r})"

    def error(self, why: str) -> SettingsError:
        """Return the error for a wrong URL; it shows only the scheme of the URL."""
        return url_error(f"{self.parts.scheme}://", why)

    def redact(self, error: object) -> str:
        """Return the text of another library's error, with `***` in place of the password and quoted settings.

        Paths of files stay: the reader must know which one is missing.
        """
        password = self.parts.password or ""
        settings = [value for name, value in self.given.items() if not names_file(name)]
        return redacted(str(error), [*settings, password, unquote(password)])

    def cause(self, error: Exception) -> Exception | None:
        """Return the error of another library if it may be shown: it must not quote a password or a setting."""
        return error if self.redact(error) == str(error) else None


def read_url(
    url: str, shared: Collection[str], own: Collection[str] | None = (), usual: UrlSettings | None = None
) -> ClientUrl:
    """Parse the URL of a store.

    Args:
        url: the URL; a plus in its settings is not a space.
        shared: names of the fields of `UrlSettings` that the URL may give.
        own: names of the store's own settings; None accepts all.
        usual: default values.

    Raises:
        SettingsError: a setting is unknown, given twice, not UTF-8, or has an invalid value, such as an empty path.
    """
    parts = split_url(url)
    settings, given = read_settings(parts.query, shared, usual)
    if own is not None:
        refuse_unknown(given, (*shared, *own))
    for name, value in given.items():
        if _CA.fullmatch(name) and not value:  # for some libraries, as for boto3, it means to check no certificate
            raise SettingsError(f"{name} in the store's URL is empty: give the path of a file, or leave it out")
    check_files(given)
    return ClientUrl(address_of(parts), parts, settings, given)


def read_settings(
    query: str, shared: Collection[str], usual: UrlSettings | None = None
) -> tuple[UrlSettings, dict[str, str]]:
    """Return the settings in a URL's query that are named in `shared`, and the other settings.

    Raises:
        SettingsError: a setting is given twice, is not UTF-8, or has an invalid value.
    """
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, errors="strict")
    except UnicodeError:  # the original message quotes the setting
        raise SettingsError("the store's URL has a setting that is not UTF-8: write its characters as UTF-8") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise SettingsError("the store's URL gives a setting twice: give each setting once")
    taken = {name: _READERS[name](name, given.pop(name)) for name in shared if name in given}
    return (usual or UrlSettings())._replace(**taken), given


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Check that all settings are known.

    Raises:
        SettingsError: a setting is unknown; the message lists the known settings, but does not show the unknown one.
    """
    if error := unknown_setting("the store's URL", given, known):
        raise error


def check_size(size: int, where: str) -> None:
    """Check the size in bytes of a file on a server before it is read.

    Raises:
        Refused: no ledger and no log of a checkpoint is as large.
    """
    if size > LARGEST_STORED:
        raise Refused(
            f"{where} was not read: it has {size} bytes or more, and no such file has more than {LARGEST_STORED}"
        )


def read_number(name: str, text: str, least: int = 1, most: int = _MOST) -> int:
    """Return the whole number in a setting.

    Raises:
        SettingsError: the text is not a whole number, or is outside these limits.
    """
    if not re.fullmatch("0*[0-9]{1,18}", text) or not least <= int(text[-18:]) <= most:
        raise SettingsError(f"{name} in the store's URL is wrong: use a whole number from {least} to {most}")
    return int(text[-18:])


def read_choice(name: str, text: str, known: Mapping[str, T]) -> T:
    """Return the meaning of a setting's word.

    Raises:
        SettingsError: the word is unknown.
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
