"""TLS with PostgreSQL, for the driver and for tasks: checks that libpq leaves out.

If the client's certificate or the list of revoked certificates is missing, libpq goes on without it and says nothing.
If a key is encrypted, it asks the terminal for the password, for ever.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from offsetkeeper.core.tls import Tls, of_all
from offsetkeeper.errors import SettingsError

FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir")
"""Settings with files for TLS. The environment may have each too, as `PGSSLROOTCERT`."""
_OWN = ("sslcert", "sslkey", "sslpassword")
_PORT = 5432
_SSL_REQUEST = struct.pack("!II", 8, 80877103)


def check_files(libpq: Mapping[str, object]) -> None:
    """Check that the files for TLS in libpq's settings can be used on this machine.

    Raises:
        SettingsError: one is missing or wrong.
    """
    if _mode(libpq) == "disable":
        return
    for name, exists in (("sslcrl", os.path.isfile), ("sslcrldir", os.path.isdir)):
        if (path := _given(libpq, name)) and path != os.devnull and not exists(path):
            raise SettingsError(
                f"{name}={path} is not there, and no revoked certificate would be known: check its path"
            )
    _tls(libpq).check()


def objection(libpq: Mapping[str, object]) -> str:
    """Return why no certificate of the servers is accepted, or why none accepts ours; see `Tls.objection`."""
    given = {name: str(value) for name, value in libpq.items()}
    names = given.get("host", given.get("hostaddr", "")).split(",")
    addresses = given.get("hostaddr", given.get("host", "")).split(",")
    ports = [int(port or _PORT) for port in given.get("port", "").split(",")]
    ports *= len(names) if len(ports) == 1 else 1
    tls = _tls(libpq)
    servers = zip(names, ports, addresses, strict=False)
    return of_all(tls.objection(name, port, _ask_for_tls, address) for name, port, address in servers)


def _tls(libpq: Mapping[str, object]) -> Tls:
    ca, cert, key = (_given(libpq, name) for name in ("sslrootcert", "sslcert", "sslkey"))
    mode = _mode(libpq)
    if cert or key or _finds_own(libpq):
        cert, key = cert or _default("crt"), key or _default("key")
    return Tls(
        "sslrootcert",
        ca="" if ca == "system" else ca,
        own=_OWN,
        cert=cert,
        key=key,
        password=str(libpq.get("sslpassword", "")),
        der=True,
        verify=mode.startswith("verify") or (mode == "require" and bool(ca)),
        identity=mode == "verify-full",
    )


def _finds_own(libpq: Mapping[str, object]) -> bool:
    """Whether libpq shows a certificate that no setting names."""
    there = all(Path(_default(kind)).is_file() for kind in ("crt", "key"))
    return there and _given(libpq, "sslcertmode") != "disable"


def _given(libpq: Mapping[str, object], name: str) -> str:
    return str(libpq.get(name) or os.environ.get(f"PG{name.upper()}", ""))


def _default(kind: str) -> str:
    return str(Path("~/.postgresql").expanduser() / f"postgresql.{kind}")


def _mode(libpq: Mapping[str, object]) -> str:
    return _given(libpq, "sslmode") or "prefer"


def _ask_for_tls(connection: socket.socket) -> None:
    connection.sendall(_SSL_REQUEST)
    if connection.recv(1) != b"S":
        raise OSError("the server has no TLS")
