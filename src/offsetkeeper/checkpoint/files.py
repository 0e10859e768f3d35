"""The folder of a checkpoint. Another file system needs one more class with the methods of `Files`."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar, runtime_checkable

from offsetkeeper.core import environment
from offsetkeeper.core.outside import (
    LARGEST_STORED,
    UnfitFile,
    list_folder,
    open_file,
    open_folder,
    read_file,
    sync,
    walk_folder,
)
from offsetkeeper.errors import Refused, StoreUnavailable

MOST_FILES = 10_000_000
"""Files below a folder: a join of two streams with thousands of partitions of state has some million."""
_NO_PLACE = {errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR}  # a file can never exist there

_Any = TypeVar("_Any")


class Stamp(NamedTuple):
    """The time of a file's last write, in seconds since 1970, and its size in bytes."""

    at_s: float
    size: int


class Folder(Protocol):
    """A checkpoint's folder for reading. Names are relative to it, with slashes."""

    @property
    def address(self) -> str:
        """The folder, for messages."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, including hidden ones, sorted; empty if the folder does not exist."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        ...


@runtime_checkable
class WritableFolder(Folder, Protocol):
    """A checkpoint's folder that files can be written into. A write is complete or not visible."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file durably; replace an existing one."""
        ...


class Files(WritableFolder, Protocol):
    """A checkpoint's folder that can be changed, and the backups beside it.

    Hadoop's checksum of a file (`.<name>.crc` beside it) is deleted and copied with the file: Spark fails if a checksum
    without a file is left.
    """

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Return all files below a folder, by name."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return whether it was written. A crash may leave a part of it."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        ...

    def backups(self) -> list[str]:
        """Return the names of the backups, oldest first."""
        ...

    def backup(self, name: str) -> Files:
        """Return the folder of a backup, which need not exist yet; "" is this folder itself."""
        ...

    def copy(self, name: str, source: str, target: str) -> None:
        """Copy a file and its checksum, if it exists, from one backup to another; "" is this folder itself."""
        ...

    def close(self) -> None:
        """Close connections, also those of backups; a later call opens new ones."""
        ...


def no_more(found: Iterable[_Any], where: str, most: int = MOST_FILES) -> Iterator[_Any]:
    """Yield the entries of a folder, up to a limit.

    Raises:
        Refused: it is more than `most`, so it may have no end.
    """
    for number, each in enumerate(found):
        if number == most:
            raise Refused(f"{where} has more than {most:,} files, and offsetkeeper reads no more")
        yield each


class LocalFiles:
    """A checkpoint on this machine, or on a file system that is mounted here. Backups lie beside it.

    Spark and others write in it while somebody with more rights changes it, so nothing below it may be a link.

    Args:
        path: path of the checkpoint's folder, which may be a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays one, so that backups lie beside it
        self.address = str(self.path)
        self._root = self.path

    def __repr__(self) -> str:
        return f"LocalFiles({self.address!r})"

    def names(self, folder: str) -> list[str]:
        """See `Files.names`."""
        with self._failures():
            try:
                return sorted(list_folder(self.path / folder, self._root))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        with self._failures(), suppress(FileNotFoundError, NotADirectoryError):
            found = no_more(walk_folder(self.path / folder, self._root), f"{self.address}/{folder}")
            return {path.relative_to(self.path).as_posix(): Stamp(seen.st_mtime, seen.st_size) for path, seen in found}
        return {}

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        with self._failures():
            try:
                return read_file(self.path / name, LARGEST_STORED, root=self._root)[0]
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        with self._failures(), self._entered(name, make=True) as (folder, own):
            temporary = _temporary(own)
            try:
                _write_new(temporary, content, folder)
                _unlink(checksum_of(own), folder)
                os.replace(temporary, own, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                _unlink(temporary, folder)
            sync(".", folder)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`."""
        with self._failures(), self._entered(name, make=True) as (folder, own):
            try:
                _write_new(own, content, folder)
            except FileExistsError:
                return False
            sync(".", folder)
            return True

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        with self._failures(), suppress(FileNotFoundError), self._entered(name) as (folder, own):
            # The checksum first: a file without a checksum is valid, but a checksum without a file is not.
            _unlink(checksum_of(own), folder)
            _unlink(own, folder)
            sync(".", folder)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        with self._failures():
            start = f"{self.path.name}.backup-"
            if not self.path.parent.exists():  # a new checkpoint, whose folders are not there yet
                return []
            names = [path.name for path in self.path.parent.iterdir() if path.name.startswith(start)]
            return sorted(name.removeprefix(f"{self.path.name}.") for name in names)

    def backup(self, name: str) -> LocalFiles:
        """See `Files.backup`; a backup was made here, so it is not a link."""
        if not name:
            return self
        made = LocalFiles(self.path.with_name(f"{self.path.name}.{name}"))
        made._root = made.path.parent
        return made

    def copy(self, name: str, source: str, target: str) -> None:
        """See `Files.copy`."""
        of, to = self.backup(source), self.backup(target)
        with self._failures(), to._entered(name, make=True) as (folder, own):  # noqa: SLF001 - of this class
            for from_, each in ((name, own), (checksum_of(name), checksum_of(own))):
                with suppress(FileNotFoundError):
                    of._copy(from_, each, folder)  # noqa: SLF001 - as above
            sync(".", folder)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _copy(self, name: str, own: str, folder: int) -> None:
        """Copy a file durably into an open folder, with its mode and the time of its last write."""
        source, found = open_file(self.path / name, sys.maxsize, root=self._root)
        temporary = _temporary(own)
        try:
            with source, _opened_new(temporary, folder) as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode) & 0o777)  # no other user's setuid
                os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
                os.fsync(file.fileno())
            os.replace(temporary, own, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _unlink(temporary, folder)

    @contextmanager
    def _entered(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Lend the descriptor of a file's folder, and the file's own name in it."""
        path = self.path / name
        if make:
            self._root.mkdir(parents=True, exist_ok=True)
        folder = open_folder(path.parent, self._root, make=make)
        try:
            yield folder, path.name
        finally:
            os.close(folder)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Translate errors of the operating system in the block."""
        try:
            yield
        except UnfitFile as error:
            instead = ", or put what it leads to in its place if it is yours" if error.is_link else ""
            raise Refused(f"{error.filename} {error.strerror}: remove it{instead}") from None
        except PermissionError as error:
            raise Refused(f"{self.address}: {error}; check the folder's permissions") from error
        except OSError as error:
            if error.errno in _NO_PLACE:
                raise Refused(f"{self.address}: {error}; remove it") from error
            raise StoreUnavailable(f"{self.address}: {error}") from error


class ServerClock:
    """The clock of a server that stamps its files: the age of files shows whether a query runs.

    The first answer sets it, and it does not change after that, so that a file has the same stamp at every read.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def told(self, date: str) -> None:
        """Set the clock from the header `Date` of an answer."""
        if self._ahead_s is None and date:
            self._ahead_s = ahead_s(date, environment.now_ms() / 1000)

    def here(self, at_s: float) -> float:
        """Return a time of the server in this machine's time."""
        return at_s - (self._ahead_s or 0)


def ahead_s(date: str, now_s: float) -> int:
    """Return the whole seconds by which a server's `Date` is ahead of a time of this machine."""
    return round(parsedate_to_datetime(date).timestamp() - now_s)


def checksum_of(name: str) -> str:
    """Return the name of a file's checksum: HDFS and S3 create none, but copies of local folders have some."""
    folder, slash, own = name.rpartition("/")
    return f"{folder}{slash}.{own}.crc"


def _temporary(name: str) -> str:
    return f".{name}.{environment.token(4)}.tmp"  # Spark ignores such names


def _opened_new(name: str, folder: int) -> BinaryIO:
    return os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder), "wb")


def _write_new(name: str, content: bytes, folder: int) -> None:
    with _opened_new(name, folder) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _unlink(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
