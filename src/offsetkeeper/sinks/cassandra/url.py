"""Reads the URL of a Cassandra cluster. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from offsetkeeper.clients.tls import NAMES, read_tls
from offsetkeeper.clients.url import ClientUrl, read_choice, read_url
from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.cassandra.connection import Place

_PORT = 9042
_FORM = "cassandra://user:password@host:port,host:port/keyspace"
_LOCAL = {"quorum": False, "local_quorum": True}
_SWITCHES = {"true": True, "false": False}


def read_place(url: str) -> tuple[Place, str]:
    """Return the cluster of a URL and its keyspace, which may be empty.

    Raises:
        SettingsError: the text is not such a URL. The message shows no part that could be a password.
    """
    if not isinstance(url, str) or not url.startswith("cassandra://"):
        raise SettingsError(f"the URL of a Cassandra cluster is {_FORM}")
    read = read_url(url, ("timeout",), ("consistency", "ssl", *NAMES))
    parts, given = read.parts, read.given
    keyspace = unquote(parts.path[1:])
    hosts = tuple(_host(read, each) for each in parts.netloc.rpartition("@")[2].split(","))
    if "/" in keyspace or parts.fragment:
        raise read.error(f"has more than a keyspace after its hosts: write {_FORM}")
    asked = read_choice("ssl", given["ssl"], _SWITCHES) if "ssl" in given else None
    place = Place(
        address=f"{read.address}",
        hosts=hosts,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        timeout=read.settings.timeout,
        local=read_choice("consistency", given.get("consistency", "quorum"), _LOCAL),
        tls=read_tls(given, asked=asked),
    )
    return place, keyspace


def _host(url: ClientUrl, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise url.error(f"has no hosts: write {_FORM}")
    return host, port or _PORT
