"""The settings file: what may be in it, and what is said of the rest."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

from offsetkeeper.errors import SettingsError

CONFIG = "offsetkeeper.toml"


class _Wanted(NamedTuple):
    """A setting: its type, that of its items where it is a list, and how it is written."""

    kind: type | UnionType
    items: type[object] | None
    write: str

    def fits(self, value: Any) -> bool:
        items = value if isinstance(value, list) else ()
        return isinstance(value, self.kind) and (self.items is None or all(type(each) is self.items for each in items))


_SETTINGS = {
    "store": _Wanted(str, None, 'a text, as store = "sqlite:///offsets.db"'),
    "brokers": _Wanted(str, None, 'a text, as brokers = "kafka:9092"'),
    "topics": _Wanted(list, str, 'a list of texts, as topics = ["orders"]'),
    "kafka": _Wanted(dict, None, 'librdkafka\'s settings below [kafka], as "security.protocol" = "SSL"'),
    "alerts": _Wanted(dict, None, 'webhook = "https://…" below [alerts], and each rule below [[alerts.rules]]'),
}
_ALERTS = {
    "webhook": _Wanted(str, None, 'a text, as webhook = "https://…"'),
    "rules": _Wanted(list, dict, "each rule below [[alerts.rules]]"),
}
_OPTION = _Wanted(
    str | int,  # and so true and false
    None,
    'the name in quotes, and a text, a whole number, true or false, as "security.protocol" = "SSL"',
)


def read_config(named: str) -> dict[str, Any]:
    """Return the settings of a file, each of the type that is wanted; librdkafka's as texts.

    Args:
        named: its path; empty for offsetkeeper.toml in the current folder, which need not be there.

    Raises:
        SettingsError: it cannot be read, or a setting is unknown or of another type; the message names both.
    """
    path = Path(named or CONFIG)
    if not named and not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    _check(str(path), found, _SETTINGS)
    _check(f"{path}, [kafka]", found.get("kafka", {}), dict.fromkeys(found.get("kafka", {}), _OPTION), secret=True)
    _check(f"{path}, [alerts]", found.get("alerts", {}), _ALERTS)
    return found | {"kafka": {name: _text(value) for name, value in found.get("kafka", {}).items()}}


def _text(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(where: str, found: Mapping[str, Any], known: Mapping[str, _Wanted], *, secret: bool = False) -> None:
    for key, value in found.items():
        if key not in known:
            raise SettingsError(f"{where} has an unknown setting {key!r}; known are {', '.join(sorted(known))}")
        if not known[key].fits(value):
            told = "a table" if isinstance(value, dict) else "of another type" if secret else repr(value)
            raise SettingsError(f"{where}: {key} is {told}: write {known[key].write}")
