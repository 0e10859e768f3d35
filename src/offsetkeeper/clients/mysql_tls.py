"""TLS with MySQL, for the driver and for tasks: checks that PyMySQL leaves out.

By its own settings it leaves the server's name unchecked, and gives the password in clear to whoever asks for it in one
of two ways. In a third, `caching_sha2_password`, it encrypts it for a key, or for TLS, that may be anybody's.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from offsetkeeper.errors import MissingExtra

_ASKED = 0x0800 | 0x0200 | 0x8000  # CLIENT_SSL, CLIENT_PROTOCOL_41, CLIENT_SECURE_CONNECTION
_LARGEST, _UTF8 = 1 << 24, 45
_SAFE = (1, 2)
_CLEAR = ("mysql_clear_password", "dialog")  # ways of a server to ask for the password itself
_NOT_LOADED = 2059  # the library's number for a way that it does not have
IN_CLEAR = (
    "the server asks for the password in clear, and it was not sent: without TLS that is checked, anybody on the way "
    "could read it. Give the CA of the server's certificate as ssl_ca"
)


def connectable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyMySQL's settings, of those in which the setting `tls` has an object of `Tls` or None.

    Only a server whose certificate is checked, or one on this machine's own socket, gets a password that it asks for by
    `mysql_clear_password` or `dialog`.

    Raises:
        SettingsError: a file for TLS is missing or wrong.
        MissingExtra: PyMySQL is older than 1.2, and goes on without TLS if a server says that it has none.
    """
    import pymysql  # noqa: PLC0415 - of an extra

    library = dict(settings)
    tls = library.pop("tls", None)
    if not (tls and tls.verify) and "unix_socket" not in library:
        library["auth_plugin_map"] = dict.fromkeys(_CLEAR, _Silent)
    if tls is None:
        return library
    if pymysql.VERSION[:2] < _SAFE:
        raise MissingExtra(f"TLS needs PyMySQL 1.2 or newer, and here is {pymysql.__version__}: pip install -U PyMySQL")
    return {**library, "ssl": tls.context()}


class _Silent:
    """Answers no question for the password. PyMySQL makes one of each connection."""

    def __init__(self, connection: object) -> None:
        """Keep nothing of it."""

    def authenticate(self, _: object) -> None:
        """Refuse."""
        import pymysql  # noqa: PLC0415 - of an extra

        raise pymysql.OperationalError(_NOT_LOADED, IN_CLEAR)


def objection(settings: Mapping[str, Any]) -> str:
    """Return why the certificate of the server in these settings is not accepted; see `Tls.objection`."""
    tls = settings.get("tls")
    return "" if tls is None else str(tls.objection(settings["host"], settings["port"], _begin))


def _begin(connection: socket.socket) -> None:
    """Read the server's greeting, and ask it for TLS."""
    size = int.from_bytes(_read(connection, 4)[:3], "little")
    _read(connection, size)
    connection.sendall(b"\x20\x00\x00\x01" + struct.pack("<IIB23x", _ASKED, _LARGEST, _UTF8))


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise OSError("the server has closed the connection")
        found += part
    return found
