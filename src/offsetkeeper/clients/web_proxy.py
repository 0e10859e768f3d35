"""Says in an error that a request went by way of the HTTP proxy of a company, which the environment names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from offsetkeeper.errors import OffsetkeeperError


def by_way(proxy: str, scheme: str) -> str:
    """Return the words for an error: the proxy without user and password, and the variable that names it.

    Args:
        proxy: the URL of the proxy that the client used; empty if it used none.
        scheme: of the URL that was asked for.
    """
    if not proxy:
        return ""
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    names = [f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"]
    source = next((name for name in names if parts.netloc and parts.netloc in os.environ.get(name, "")), "the system")
    where = parts.netloc.rpartition("@")[2]
    return f"; asked by way of the proxy {where} (from {source}); NO_PROXY with the server's name leads past it"


def told_by_way(error: OffsetkeeperError, way: str) -> OffsetkeeperError:
    """Return the error with the words of `by_way` after its own."""
    return type(error)(f"{error}{way}") if way else error
