"""What stores hold as JSON that people can read, and back, byte for byte."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

_WIDTH = 120
_ENTRY = re.compile(r"(\d+) (\{.*\})", re.DOTALL)


def readable(content: bytes | str) -> Any:
    """Return text as it is, compact JSON as its value, and other bytes as base64, each so that `written` undoes it.

    JSON may have a number before it, as entries of the history have their version, and may be compressed.
    """
    if isinstance(content, str):
        return _readable(content)
    try:
        return _readable(content.decode())
    except UnicodeDecodeError:
        pass
    try:
        packed = {"zlib": _readable(zlib.decompress(content).decode())}
    except (zlib.error, UnicodeDecodeError):
        packed = {}
    return packed if packed and written(packed) == content else {"base64": base64.b64encode(content).decode()}


def written(value: Any) -> bytes:
    """Return the bytes of which `readable` made this."""
    match value:
        case {"number": number, "json": inner}:
            return f"{number} {_dump(inner)}".encode()
        case {"json": inner}:
            return _dump(inner).encode()
        case {"zlib": inner}:
            return zlib.compress(written(inner), 1)
        case {"base64": inner}:
            return base64.b64decode(inner)
        case str():
            return value.encode()
    raise ValueError(f"{value!r} was not made by `readable`")


def shown(value: Any, indent: int = 0) -> str:
    """Return JSON text in which whatever fits is one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if indent + len(flat) < _WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    inner = "\n" + " " * (indent + 1)
    if isinstance(value, list):
        return "[" + ",".join(inner + shown(each, indent + 1) for each in value) + "]"
    keys = {json.dumps(key, ensure_ascii=False): each for key, each in value.items()}
    return "{" + ",".join(f"{inner}{key}: {shown(each, indent + 1)}" for key, each in keys.items()) + "}"


def _readable(text: str) -> Any:
    parts = _ENTRY.fullmatch(text)
    number, rest = (int(parts[1]), parts[2]) if parts else (None, text)
    try:
        value = json.loads(rest)
    except ValueError:
        return text
    found = {"json": value} if number is None else {"number": number, "json": value}
    return found if isinstance(value, dict | list) and written(found) == text.encode() else text


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
