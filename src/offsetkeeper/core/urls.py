"""Parses and checks the URLs that users give, and shows them without secrets. Pure.

An error about a URL shows only its scheme. If a URL is wrong, it is unknown which part is the password:
`s3:/key:secret@bucket` has no host, and its path has both keys.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, unquote, unquote_plus, unquote_to_bytes, urlsplit

from offsetkeeper.errors import SettingsError

AZURE = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes with the container before the @ of an address, and the account after it."""

_SECRET = re.compile("key|secret|token|passw|passphrase|pwd|credential|sas|connection|authorization", re.IGNORECASE)
_PARAMETER = re.compile("[?&;]([^?&;=]+)=([^&;]*)")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,19}):/")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(\d{0,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # `urlsplit` silently removes some of them
_ESCAPED = re.compile("%(3a|40)", re.IGNORECASE)
_OF_PATHS = {"sqlite", "file", "checkpoint"}
_HIGHEST_PORT = 2**16 - 1
_SHORTEST_SECRET = 4
_SHORTEST_CODE = 8


def scheme_of(url: object) -> str:
    """Return the scheme of a text that may be a URL, such as `s3://`; empty without one, as in `user:password`."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    return f"{match[1]}://" if match else ""


def is_url(text: str) -> bool:
    """Whether a text is a URL, even a wrong one, and not a path: Spark paths have no colon in their first part."""
    return text.startswith("//") or ":" in text.partition("/")[0]


def url_error(url: object, why: str) -> SettingsError:
    """Return the error for a wrong URL. It shows only the scheme of the URL."""
    scheme = scheme_of(url)
    return SettingsError(f"the {scheme} URL {why}" if scheme else f"the URL {why}")


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL; they may contain a password.

    Raises:
        SettingsError: the URL cannot be parsed, or it is unclear which part is the password.
    """
    if _CONTROL.search(url):
        raise url_error(url, "contains a control character, such as a line break: remove it")
    try:
        parts = urlsplit(url)
    except ValueError:  # the original message quotes the URL
        raise url_error(url, "cannot be parsed: check its brackets and special characters") from None
    _check_utf8(url, parts)
    if not (_has_clear_host(parts) if parts.netloc else _has_clear_path(url, parts)):
        raise url_error(
            url,
            "is not clear: its user, password, host, port and path cannot be separated. Write // after the scheme, "
            "and / as %2F, ? as %3F, # as %23, : as %3A and @ as %40 in a user or a password, and @ as %40 after the "
            "host",
        )
    if "%00" in parts.path:
        raise url_error(url, "has %00 in its path: remove it")
    return parts


def without_credentials(url: str) -> str:
    """Return the URL without user, password and query, for messages.

    Raises:
        SettingsError: see `split_url`.
    """
    return address_of(split_url(url))


def shown_location(location: str) -> str:
    """Return a path or URL that another program opens, without secrets; of a wrong URL only the scheme."""
    try:
        return without_credentials(location) if is_url(location) else location
    except SettingsError:
        return f"{scheme_of(location)}…"


def address_of(parts: SplitResult) -> str:
    """Return a URL that `split_url` has parsed, without secrets."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return a text with each secret replaced by `***`, also where it is quoted, in a URL or in base 64.

    Secrets under 4 characters stay: any text may have them.
    """
    forms = {form for each in secrets if len(each) >= _SHORTEST_SECRET for form in _forms(each)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def secrets_of(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may be a secret in settings of a client: by their names, in their URIs, and within others."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from secrets_of(value)
        elif _SECRET.search(name) or (name == "uri" and "://" not in str(value)):
            yield from (
                str(value),
                str(value).partition(":")[2],
                str(value).partition(" ")[2],
            )  # id:secret, Bearer secret
        else:
            for found in _passwords(str(value)):
                yield from (found, unquote(found), unquote_plus(found))


def _passwords(uri: str) -> Iterator[str]:
    """Yield what may be a password in a URI, as different programs read one; it may be wrong, or of JDBC."""
    rest = uri.partition("://")[2]
    user, at, place = rest.rpartition("@")
    password = user.partition(":")[2]
    yield from (user if password else "", password, password.partition("@")[0])
    _, colon, port = re.split("[/?;]", place, maxsplit=1)[0].rpartition(":")
    if colon and not at and not port.isdecimal():  # a password without a host
        yield port
    yield from (value for name, value in _PARAMETER.findall(rest) if _SECRET.search(name))


def port_of(parts: SplitResult) -> int | None:
    """Return the port of a URL with one host; None without a port, 0 if the port is wrong."""
    try:
        return parts.port
    except ValueError:
        return 0


def _forms(secret: str) -> Iterator[str]:
    content = secret.encode(errors="replace")
    yield from (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(content), quote(content, safe=""))
    for before in range(3):  # bytes of other text in the group of three in which it begins
        code = b64encode(bytes(before) + content)[-(-before * 4 // 3) : (before + len(content)) * 4 // 3].decode()
        if len(code) >= _SHORTEST_CODE:
            yield code


def _check_utf8(url: str, parts: SplitResult) -> None:
    for what, text in (("path", parts.path), ("user, password or host", parts.netloc)):
        try:
            unquote_to_bytes(text).decode()
        except UnicodeError:  # `unquote` turns every such byte into the same character, so two paths would become one
            raise url_error(url, f"is not UTF-8 in its {what}: write each character as the %XX of UTF-8") from None
    try:
        url.encode()
    except UnicodeError:
        raise url_error(url, "is not UTF-8: write each character as the %XX of UTF-8") from None


def _has_clear_host(parts: SplitResult) -> bool:
    user, _, hosts = parts.netloc.rpartition("@")
    return "@" not in user + parts.path + parts.query + parts.fragment and all(map(_is_host, hosts.split(",")))


def _is_host(text: str) -> bool:
    match = _HOST.fullmatch(text)
    return match is not None and int(match[2] or 0) <= _HIGHEST_PORT and not _ESCAPED.search(text)


def _has_clear_path(url: str, parts: SplitResult) -> bool:
    """Whether the path of a URL without a host has no user and password. A path may have an @, as user names do."""
    if not parts.path and "@" not in url:  # such as `memory:`, which has no secret
        return True
    before, at, _ = parts.path.partition("@")
    if not url.startswith(f"{parts.scheme}://") and (at or parts.scheme not in _OF_PATHS or before[:1] != "/"):
        return False
    return not at or (parts.scheme in _OF_PATHS and ":" not in before)
