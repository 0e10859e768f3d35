"""Which requests are answered: the host (DNS rebinding), the site (forged requests), the token. Pure."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Mapping
from ipaddress import IPv6Address, ip_address, ip_network

from offsetkeeper.errors import SettingsError

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_BODY_BYTES = 1_000_000
_LEAST_TOKEN = 16
_BASE = re.compile("(/[A-Za-z0-9._~-]+)*")
_OF_CLIENT = 64  # bits of an IPv6 address that tell one client from another


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def check_proxy(address: str) -> str:
    """Return the address of a proxy, or a network such as 10.0.0.0/8 that it is in.

    Raises:
        SettingsError: it is neither, or is the network of all addresses: whoever asks could say who asks.
    """
    try:
        network = ip_network(address)
    except ValueError:
        network = None
    if network is None or network.prefixlen == 0:
        raise SettingsError(f"--trust-proxy {address!r} is wrong: give the address of the proxy, such as 10.0.0.7")
    return address


def check_base(path: str) -> str:
    """Return the path under which browsers reach the server, without a slash at the end.

    Raises:
        SettingsError: it is no such path.
    """
    base = path.rstrip("/")
    if not _BASE.fullmatch(base) or {".", ".."} & {*base.split("/")}:
        raise SettingsError(f"--base-path {path!r} is wrong: give the path that browsers use, such as /offsetkeeper")
    return base


def is_in(address: str, network: str) -> bool:
    """Whether an address is the other, or in it; a name is in none."""
    return _is_address(address) and ip_address(address) in ip_network(network)


def counted_as(address: str) -> str:
    """Return what a limit for each address counts: of IPv6 the first 64 bits, as one client has all the others."""
    found = ip_address(address.partition("%")[0]) if _is_address(address) else None
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or ip_network((found, _OF_CLIENT), strict=False))


def knows_host(header: str, names: Collection[str]) -> bool:
    """Return whether the Host header of a request names this server.

    The DNS of another site may point its name at this server, and its pages then reach us: so only known names are
    accepted. An address cannot be pointed elsewhere, so every address is accepted.

    Args:
        header: `host` or `host:port`.
        names: under which this machine is known, in small letters, besides localhost.
    """
    host = _hostname(header).lower().rstrip(".")
    return _is_address(host) or host == "localhost" or host in names


def is_same_site(headers: Mapping[str, str]) -> bool:
    """Whether a request that changes something comes from our own page, or from no page at all."""
    if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request has the right token; compared in constant time."""
    given = headers.get("authorization", "")
    return bool(token) and hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def refused_body(headers: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the status and the reason where the body of a request is not read, else None.

    The reason for chunks is their price: some take six bytes each, and a thousand times the time to parse.
    """
    length, chunks = headers.get("content-length"), "transfer-encoding" in headers
    if length is not None and chunks:  # a proxy may have read another request
        return 400, "the request has a length and a transfer encoding: send the length alone"
    if chunks:
        return 411, "the request has a transfer encoding: send its length, as Content-Length"
    if length is not None and int(length) > _BODY_BYTES:
        return 413, f"the request has more than {_BODY_BYTES:,} bytes"
    return None


def check_token(token: str) -> str:
    """Return the token without white space around it.

    Raises:
        SettingsError: it is too short, or has characters that no header can carry.
    """
    token = token.strip()
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token needs {_LEAST_TOKEN} or more ASCII characters and no spaces: `openssl rand -hex 24` makes one"
        )
    return token


def _hostname(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
