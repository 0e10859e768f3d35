"""Reads data from outside that may have any content: files, JSON, names of settings.

Whatever the content is, the caller gets a value or one kind of error.
"""

from __future__ import annotations

import errno
import grp
import json
import math
import os
import pwd
import re
import stat
import tomllib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from offsetkeeper.errors import SettingsError

_PLACE = re.compile(r"\((at (?:line \d+, column \d+|end of document))\)$")
_MARK = "\ufeff"  # the byte order mark of some editors; loading the codec for it may fail for a user without rights
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_NAME = re.compile(r"[a-z]{1,20}([._-][a-z0-9]{1,20}){1,8}")
_FILE = re.compile(
    r"ca|cert|key|passfile|ca_bundle|ssl_?(ca|cert|key|rootcert|crl|ca_certs|certfile|keyfile)"
    r"|.*\.(location|file|keytab)"
)
LARGEST_TEXT = 2**20
"""Bytes of the largest file of settings or with a token."""
LARGEST_TABLE = 2**26
"""Bytes of the largest plan, list of offsets or file of another program's settings."""
LARGEST_STORED = 2**26
"""Bytes of the largest file in a store or a checkpoint: some 400,000 partitions."""
MOST_VALUES = 4_000_000
"""Values of the largest JSON text: some 100,000 partitions, each in a topic of its own, in a change of all of them."""
LONGEST = 2_000
"""Characters of the longest reason that a history keeps."""
_WAY = getattr(os, "O_PATH", os.O_RDONLY)  # for a folder that may be entered and not listed
_LIST = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # opening a FIFO may wait for ever
_RIGHTS = "system.posix_acl_access"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_REASONS = {
    KeyError: "a key is missing",
    TypeError: "a value is of another type",
    AttributeError: "a value is of another type",
    RecursionError: "it is nested too deeply",
}
_NESTED = (dict, list)
_DEEPEST = 100  # deeper JSON can be parsed, but breaks code that walks through it


class TooManyValues(ValueError):
    """A JSON text has so many values that they would take gigabytes: three bytes of text may become two hundred."""

    def __init__(self, most: int) -> None:
        super().__init__(f"it has more than {most:,} values")


class UnfitFile(OSError):
    """What a path names is not a file that is read here: a link, a FIFO, a device, too large, or open to others.

    `strerror` says which, and `filename` is the path.

    Attributes:
        is_link: whether it is a link.
    """

    def __init__(self, path: Path, why: str, *, is_link: bool = False) -> None:
        super().__init__(errno.EINVAL, why, str(path))
        self.is_link = is_link


def open_file(path: Path, most: int, *, root: Path | None = None) -> tuple[BinaryIO, os.stat_result]:
    """Open a regular file to read it, and return it with the status of the one that was opened.

    Args:
        path: path of the file.
        most: the most bytes that such a file may have.
        root: a folder above the file. Other programs write in it, so nothing below it may be a link.

    Raises:
        UnfitFile: it is not such a file.
        OSError: it does not exist, is a folder, or cannot be read.
    """
    opened = _opened(path, root)
    try:
        found = os.fstat(opened)
        _check_kind(path, found, most)
        return os.fdopen(opened, "rb"), found
    except BaseException:
        os.close(opened)
        raise


def read_file(path: Path, most: int, *, root: Path | None = None) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and its status; for arguments and errors see `open_file`."""
    file, found = open_file(path, most, root=root)
    with file:
        content = file.read(found.st_size + 1) or b""
        if len(content) > found.st_size:  # it grows, or is one of the kernel's, which tell no size
            content += file.read(most + 1 - len(content)) or b""
    if len(content) > most:
        raise _too_large(path, len(content), most)
    return content, found


def unpack(data: bytes, most: int = LARGEST_STORED) -> bytes:
    """Return what zlib has packed, of at most `most` bytes: a few bytes may become a thousand times as many.

    Raises:
        zlib.error: the data is damaged, or is not packed.
        ValueError: it has more bytes.
    """
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(data, most + 1)
    if len(found) > most:
        raise ValueError(f"it has more than {most} bytes")
    if not unpacking.eof:
        raise zlib.error("incomplete")
    return found


def open_folder(path: Path, root: Path, *, make: bool = False) -> int:
    """Return a descriptor of a folder below another one, for `dir_fd`: nothing on the way to it is a link.

    Args:
        path: path of the folder.
        root: the folder above it, which may be a link.
        make: whether to make the folders below `root` that do not exist.

    Raises:
        UnfitFile: it is a link, or below one.
        OSError: it does not exist, or is not a folder.
    """
    return _below(root, path.relative_to(root).parts, _WAY | os.O_DIRECTORY, make=make)


def list_folder(path: Path, root: Path) -> list[str]:
    """Return the names in a folder below another one, by one system call, which misses none.

    Raises:
        UnfitFile, OSError: see `open_folder`; also if it may not be listed.
    """
    opened = _below(root, path.relative_to(root).parts, _LIST)
    try:
        return os.listdir(opened)  # noqa: PTH208 - by descriptor
    finally:
        os.close(opened)


def walk_folder(path: Path, root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files in a folder below another one and in its subfolders, each with its own status.

    What is deleted meanwhile is left out.

    Raises:
        UnfitFile: the folder is a link or below one, a link is in it, or a subfolder is too deep.
        OSError: it does not exist, is not a folder, or may not be listed; or a subfolder may not be listed.
    """
    opened = _below(root, path.relative_to(root).parts, _LIST)
    try:
        yield from _walk(path, opened, _DEEPEST)
    finally:
        os.close(opened)


def sync(path: Path | str, folder: int | None = None) -> None:
    """Make a file durable, or the names in a folder; the path is relative to an open folder if one is given."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)  # a FIFO in its place would be waited for
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path, name: str = "", *, most: int = LARGEST_TEXT, private: bool = False, own: bool = False) -> str:
    """Return the text of a file that the user names, without its byte order mark. The path may be a link.

    Args:
        path: path of the file.
        name: name of the option that gave the path, for the error.
        most: the most bytes that it may have.
        private: whether others must not be able to write it.
        own: whether the file, and a link to it, must belong to the user or to root.

    Raises:
        SettingsError: the file is not such a file, cannot be read, or is not UTF-8. The message shows nothing of its
            text.
    """
    where = f"{name} {path}".strip()
    try:
        content, found = read_file(path, most)
        _check_owner(path, found, private=private, own=own)
        return content.decode("utf-8-sig")
    except UnfitFile as error:
        pipe = ": a pipe, such as <(command), is not read; save its output as a file first"
        raise SettingsError(f"{where} {error.strerror}{pipe if 'a FIFO' in str(error.strerror) else ''}") from None
    except IsADirectoryError:
        raise SettingsError(f"{where} is not a regular file but a folder") from None
    except OSError as error:
        raise SettingsError(f"{where} cannot be read: {error.strerror}. Check the path and its permissions") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{where} cannot be read: byte {error.start + 1} is not UTF-8. Save the file as UTF-8"
        ) from None
    except ValueError:
        raise SettingsError(f"{name or 'the path of a file'} cannot be a path: it has a NUL or is not UTF-8") from None


def reason(error: Exception) -> str:
    """Return why a stored text could not be read, with nothing of the text: it may be of a file with secrets."""
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON from line {error.lineno}, column {error.colno} on"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} is not UTF-8"
    if isinstance(error, TooManyValues):
        return str(error)
    return next((told for kind, told in _REASONS.items() if isinstance(error, kind)), "a value is wrong")


def check_files(settings: Mapping[str, str]) -> None:
    """Check that client libraries can read the files that settings name: of some they would read for ever.

    Raises:
        SettingsError: a file is a FIFO, a device (but /dev/null) or too large. Missing files are found later, when they
            are read, perhaps on other machines.
    """
    for name, value in settings.items():
        if names_file(name) and value != os.devnull and (wrong := _unfit(value)):
            raise SettingsError(f"{name} is the path of what {wrong}: give the path of a regular file")


def names_file(name: str) -> bool:
    """Whether the value of a setting with this name is the path of a file."""
    return _FILE.fullmatch(name) is not None


def load_json(text: str | bytes, most: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the text.
        most: about the most values that it may have.

    Raises:
        TooManyValues: it has more.
        ValueError: the text is not JSON in UTF-8, has a number that is not finite or half a surrogate pair, or is
            nested more than 100 levels deep.
    """
    check_values(text, most)
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
        TooManyValues: it has more than `MOST_VALUES`.
        ValueError: the text is not JSON in UTF-8, has a number that is not finite, or is nested more than 100 levels
            deep.
    """
    text = _decoded(text)
    try:
        return load_json(text)
    except UnicodeEncodeError:
        return load_json(json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace"))


def check_values(text: str | bytes, most: int = MOST_VALUES) -> None:
    """Check about how many values a JSON text has, before any of them is made.

    A comma or an open bracket comes before each value. Those in texts count too.

    Raises:
        TooManyValues: it has more than `most`.
    """
    marks = (b",", b"[", b"{") if isinstance(text, bytes) else ",[{"
    if len(text) > most and sum(map(text.count, marks)) > most:  # type: ignore[arg-type]
        raise TooManyValues(most)


def whole_text(text: str) -> str:
    """Return a text that can be stored and printed: half a surrogate pair (from Latin-1) becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def short_text(text: str) -> str:
    """Return a text for people, such as a reason: of a long one its begin, and its end, which often says by whom."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[3 - LONGEST // 2 :]}"


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


def _opened(path: Path, root: Path | None) -> int:
    try:
        return os.open(path, _READ) if root is None else _below(root, path.relative_to(root).parts, _READ)
    except OSError as error:
        if error.errno in {errno.ENXIO, errno.ENODEV}:  # a socket, or a device that is not there
            raise UnfitFile(path, "is not a regular file") from None
        raise


def _walk(path: Path, folder: int, left: int) -> Iterator[tuple[Path, os.stat_result]]:
    for name in os.listdir(folder):
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            below = os.open(name, _LIST | os.O_NOFOLLOW, dir_fd=folder) if stat.S_ISDIR(found.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            continue
        if below is None:
            if stat.S_ISLNK(found.st_mode):
                raise link_error(path / name)
            yield path / name, found
            continue
        try:
            if not left:
                raise UnfitFile(path / name, f"is a folder {_DEEPEST} levels deep")
            yield from _walk(path / name, below, left - 1)
        finally:
            os.close(below)


def _opened_or_made(name: str, flags: int, above: int) -> int:
    """Open a folder, and make it durably if it is not there. Some file systems refuse to make one that is."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        with suppress(PermissionError):  # one that may be passed through and not be read cannot be synced
            sync(".", above)
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)


def _below(root: Path, parts: Sequence[str], flags: int, *, make: bool = False) -> int:
    """Open a file or a folder part by part: a link in any of them, also one put there just now, is refused."""
    opened = os.open(root, (_WAY | os.O_DIRECTORY) if parts else flags)
    for number, part in enumerate(parts, 1):
        above, how = opened, flags if number == len(parts) else _WAY | os.O_DIRECTORY
        try:
            opened = _opened_or_made(part, how, above) if make else os.open(part, how | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK} and _is_link(part, above):
                raise link_error(root.joinpath(*parts[:number])) from None
            error.filename = str(root.joinpath(*parts[:number]))
            raise
        finally:
            os.close(above)
    return opened


def link_error(path: Path) -> UnfitFile:
    """Return the error for a path that is a link."""
    return UnfitFile(path, "is a link, and links are not followed here", is_link=True)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _check_kind(path: Path, found: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFile(path, f"is not a regular file but {_KINDS.get(stat.S_IFMT(found.st_mode), 'another thing')}")
    if found.st_size > most:
        raise _too_large(path, found.st_size, most)


def _check_owner(path: Path, found: os.stat_result, *, private: bool, own: bool) -> None:
    if private and _others_write(path, found):
        raise UnfitFile(
            path,
            f"can be written by others (mode {stat.S_IMODE(found.st_mode):o}), so it is not read: see who has changed "
            "it, and take the right from them with chmod go-w",
        )
    if own and not {found.st_uid, path.lstat().st_uid} <= {0, os.geteuid()}:
        raise UnfitFile(
            path,
            "belongs neither to you nor to root, and you have not named it, so it is not read: go to another folder, "
            "or name a file with OFFSETKEEPER_CONFIG",
        )


def _others_write(path: Path, found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and (_has_list(path) or not _is_own_group(found))


def _is_own_group(found: os.stat_result) -> bool:
    """Whether only the owner is in the group of a file: where each user has one, new files are writable by it.

    The group of root is nobody's own: containers run in it under numbers that are no users of the machine.
    """
    try:
        group, owner = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
    except KeyError:
        return False
    if not found.st_gid or group.gr_name != owner.pw_name or owner.pw_gid != found.st_gid:
        return False
    first = {each.pw_name for each in pwd.getpwall() if each.pw_gid == found.st_gid}
    return {*group.gr_mem, *first} <= {owner.pw_name}


def _has_list(path: Path) -> bool:
    """Whether a file has a list of rights: then its mode tells not those of the group, but the most of the list."""
    try:
        return bool(os.getxattr(path, _RIGHTS))
    except (OSError, AttributeError):  # it has none, or the file system, or the operating system
        return False


def _too_large(path: Path, size: int, most: int) -> UnfitFile:
    return UnfitFile(path, f"has {size} bytes or more, and no such file has more than {most}")


def _decoded(text: str | bytes) -> str:
    return text.decode().removeprefix(_MARK) if isinstance(text, bytes) else text


def _unfit(path: str) -> str:
    """Return why a library must not read a file; it may be a folder of certificates, or not there."""
    try:
        _check_kind(Path(path), os.stat(path), LARGEST_TABLE)  # noqa: PTH116 - the text may not be a valid path
    except UnfitFile as error:
        return str(error.strerror)
    except (OSError, ValueError):
        return ""
    return ""


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
