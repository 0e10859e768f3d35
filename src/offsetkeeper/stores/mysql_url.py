"""What the URL of a store in MySQL says."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from offsetkeeper.errors import SettingsError
from offsetkeeper.stores.settings import StoreSettings, read_settings, refuse_unknown

_OWN = ("table", "history", "timeout")
_LONGEST_CONNECT = 10.0
_SWITCHES = {"true": True, "1": True, "false": False, "0": False}
_TEXTS = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
_FLAGS = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")


def read_url(url: str) -> tuple[StoreSettings, dict[str, Any]]:
    """Return a URL's own settings, and those for the library.

    Raises:
        SettingsError: the URL cannot be parsed, or has an unknown setting. No part of it that could be a password is in
            the message.
    """
    parts = urlsplit(url)
    settings, given = read_settings(parts.query, _OWN)
    refuse_unknown(given, (*_OWN, "connect_timeout", *_TEXTS, *_FLAGS))
    database = unquote(parts.path[1:])
    try:
        port = parts.port
    except ValueError:
        port = 0
    if not database or "/" in parts.path[1:] or parts.fragment or port == 0:
        raise SettingsError(
            "the MySQL URL names no database: write mysql://user:password@host:port/database, and special characters "
            "in the password as %XX"
        )
    connect, _ = read_settings(f"timeout={given.pop('connect_timeout', _LONGEST_CONNECT)}", ("timeout",))
    return settings._replace(schema=database), {
        **{name: _switch(name, text) if name in _FLAGS else text for name, text in given.items()},
        "host": parts.hostname,
        "port": port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or "").encode(),
        "database": database,
        "connect_timeout": min(connect.timeout, settings.timeout),
    }


def _switch(name: str, text: str) -> bool:
    if text not in _SWITCHES:
        raise SettingsError(f"{name}={text!r} in the store's URL: use true or false")
    return _SWITCHES[text]
