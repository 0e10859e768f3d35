"""Reads data from outside that may have any content: files, JSON, names of settings.

Whatever the content is, the caller gets a value or one kind of error.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from offsetkeeper.errors import SettingsError

_PLACE = re.compile(r"\((at (?:line \d+, column \d+|end of document))\)$")
_MARK = "\ufeff"  # the byte order mark of some editors; loading the codec for it may fail for a user without rights
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_NAME = re.compile(r"[a-z]{1,20}([._-][a-z0-9]{1,20}){1,8}")
_FILE = re.compile(
    r"ca|cert|key|passfile|ca_bundle|ssl_?(ca|cert|key|rootcert|crl|ca_certs|certfile|keyfile)|.*\.location"
)
_NESTED = (dict, list)
_DEEPEST = 100  # deeper JSON can be parsed, but breaks code that walks through it


def read_text(path: Path, name: str = "") -> str:
    """Return the text of a file without its byte order mark.

    Args:
        path: path of the file.
        name: name of the option that gave the path, for the error.

    Raises:
        SettingsError: the file is not regular, cannot be read, or is not UTF-8. The message shows nothing of its text.
    """
    where = f"{name} {path}".strip()
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        text = path.read_text("utf-8-sig") if regular else ""  # reading a FIFO may wait for ever
    except OSError as error:
        raise SettingsError(f"{where} cannot be read: {error.strerror}. Check the path and its permissions") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{where} cannot be read: byte {error.start + 1} is not UTF-8. Save the file as UTF-8"
        ) from None
    except ValueError:
        raise SettingsError(f"{name or 'the path of a file'} cannot be a path: it has a NUL or is not UTF-8") from None
    if not regular:
        raise SettingsError(f"{where} is not a regular file: give the path of one")
    return text


def check_files(settings: Mapping[str, str]) -> None:
    """Check that no file named in settings is a FIFO: a client library would wait for its content for ever.

    Raises:
        SettingsError: a file is a FIFO. Missing files are found later, when they are read, perhaps on other machines.
    """
    for name, value in settings.items():
        if names_file(name) and _is_fifo(value):
            raise SettingsError(f"{name} is the path of a FIFO: give the path of a regular file")


def names_file(name: str) -> bool:
    """Whether the value of a setting with this name is the path of a file."""
    return _FILE.fullmatch(name) is not None


def load_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON in UTF-8, has a number that is not finite or half a surrogate pair, or is
            nested more than 100 levels deep.
    """
    text = _decoded(text)
    text.encode()
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        deep = _is_deep(found)
    except RecursionError:
        deep = True
    if deep:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if _HALF.search(text):  # it can be parsed, but not printed or stored
        json.dumps(found, ensure_ascii=False).encode()
    return found


def load_stored(text: str | bytes) -> Any:
    """Return the value of a stored JSON text.

    Half a surrogate pair becomes a question mark, as in `whole_text`: an earlier program may have written it, and a
    group must stay readable.

    Raises:
        ValueError: the text is not JSON in UTF-8, has a number that is not finite, or is nested more than 100 levels
            deep.
    """
    text = _decoded(text)
    try:
        return load_json(text)
    except UnicodeEncodeError:
        return load_json(json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace"))


def whole_text(text: str) -> str:
    """Return a text that can be stored and printed: half a surrogate pair (from Latin-1) becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def load_toml(text: str, where: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        SettingsError: the text is not TOML. The message shows the place, but no text: it may be a password.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:  # also for a number of thousands of digits
        place = _PLACE.search(str(error))
        why = f"see the error {place[1]}" if place else "it has an invalid number or text"
    raise SettingsError(f"{where} is not TOML: {why}. Correct it there")


def unknown_setting(where: str, given: Iterable[str], known: Collection[str]) -> SettingsError | None:
    """Return the error for an unknown setting, or None if all are known.

    It does not show the unknown name, which may be part of a password. It shows the known names and the most similar
    one.
    """
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return None
    alike = get_close_matches(unknown, known, n=1) if len(unknown) < 100 else []  # noqa: PLR2004 - slow for long texts
    meant = f": did you mean {alike[0]}?" if alike else "."
    return SettingsError(f"{where} has an unknown setting{meant} Known settings: {', '.join(known) or 'none'}")


def shown_name(name: object) -> str:
    """Return the name of a Kafka setting if it looks like a name: without the = a password may be taken as the name."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) else "(a name that is not shown)"


def _decoded(text: str | bytes) -> str:
    return text.decode().removeprefix(_MARK) if isinstance(text, bytes) else text


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 - the text may not be a valid path
    except (OSError, ValueError):
        return False


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("it has a number that is not finite")
    return number


def _is_deep(found: Any) -> bool:
    level = [found] if type(found) in _NESTED else []
    for _ in range(_DEEPEST):
        level = [child for each in level for child in _children(each) if type(child) in _NESTED]
        if not level:
            return False
    return True


def _children(nested: Any) -> Iterable[Any]:
    return nested.values() if type(nested) is dict else nested
