"""The URLs that users give: taken apart, checked, and shown without what may be a secret. Pure.

An error about a URL shows its scheme alone. Where a URL is wrong, nobody knows which part of it is the password:
`s3:/key:secret@bucket` has no host, and a path with both keys in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from offsetkeeper.errors import SettingsError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,19}):/")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(\d{0,5}))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # `urlsplit` takes some of them out without a word
_ESCAPED = re.compile("%(3a|40)", re.IGNORECASE)
_OF_PATHS = {"sqlite", "file", "checkpoint"}
_HIGHEST_PORT = 2**16 - 1
_SHORTEST_SECRET = 4


def scheme_of(url: object) -> str:
    """Return the scheme of what may be a URL, as in `s3://`; empty where there is none, as in `user:password`."""
    match = _SCHEME.match(url) if isinstance(url, str) else None
    return f"{match[1]}://" if match else ""


def is_url(text: str) -> bool:
    """Whether a text is a URL, perhaps a wrong one, and not a path: a path of Spark has no colon in its first part."""
    return text.startswith("//") or ":" in text.partition("/")[0]


def url_error(url: object, why: str) -> SettingsError:
    """Return the error for a wrong URL. It shows the scheme, and nothing else of it."""
    scheme = scheme_of(url)
    return SettingsError(f"the {scheme} URL {why}" if scheme else f"the URL {why}")


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL; they may have a password in them.

    Raises:
        SettingsError: it cannot be parsed, or it is not certain which part is the password.
    """
    if _CONTROL.search(url):
        raise url_error(url, "has a control character in it, such as a line break: take it out")
    try:
        parts = urlsplit(url)
    except ValueError:  # its message quotes the URL
        raise url_error(url, "cannot be parsed: check its brackets and special characters") from None
    _check_utf8(url, parts)
    if not (_has_clear_host(parts) if parts.netloc else _has_clear_path(url, parts)):
        raise url_error(
            url,
            "is not clear: its user, password, host, port and path cannot be told apart. Write // after the scheme, "
            "and / as %2F, ? as %3F, # as %23, : as %3A and @ as %40 in a user or a password, and @ as %40 after the "
            "host",
        )
    if "%00" in parts.path:
        raise url_error(url, "has %00 in its path: take it out")
    return parts


def without_credentials(url: str) -> str:
    """Return a URL that may be shown: without user, password and query.

    Raises:
        SettingsError: see `split_url`.
    """
    return address_of(split_url(url))


def shown_location(location: str) -> str:
    """Return what may be shown of a path or a URL that another program opens: a wrong URL is its scheme alone."""
    try:
        return without_credentials(location) if is_url(location) else location
    except SettingsError:
        return f"{scheme_of(location)}…"


def address_of(parts: SplitResult) -> str:
    """Return what may be shown of a URL that `split_url` took apart."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `***` in the place of each secret; those of fewer than 4 characters any text has by chance."""
    for secret in sorted({each for each in secrets if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def port_of(parts: SplitResult) -> int | None:
    """Return the port of a URL with one host, None where it names none, and 0 where it is wrong."""
    try:
        return parts.port
    except ValueError:
        return 0


def _check_utf8(url: str, parts: SplitResult) -> None:
    for what, text in (("path", parts.path), ("user, password or host", parts.netloc)):
        try:
            unquote_to_bytes(text).decode()
        except UnicodeError:  # `unquote` reads every such byte as the same sign, so that two paths would be one
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
    """Whether a URL without a host has no user and password in its path. A path may have an @, as people's names do."""
    if not parts.path and "@" not in url:  # as `memory:`, which has nothing to hide
        return True
    before, at, _ = parts.path.partition("@")
    if not url.startswith(f"{parts.scheme}://") and (at or parts.scheme not in _OF_PATHS or before[:1] != "/"):
        return False
    return not at or (parts.scheme in _OF_PATHS and ":" not in before)
