"""The store in a folder on this machine or on a shared file system: `file:///absolute/folder`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from offsetkeeper.core import environment
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable
from offsetkeeper.stores.base import read_url
from offsetkeeper.stores.files import NAME, File, FileStore

_TEMPORARY = ".tmp"
_MARKER = ".offsetkeeper"
_MARKED = b"This folder is a store of offsetkeeper. An empty folder without this file counts as not mounted.\n"
_ABANDONED_S = 3600.0
# Errors that may pass by themselves or when space is freed. All others stay until someone changes something.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
_PASSING |= {errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.ECONNRESET, errno.ENOENT}


class FolderStore(FileStore):
    """Ledgers in a folder that `init` has made, with a subfolder for each group; see `stores.files`.

    The file system must have hard links and keep synced data. A file of a crashed write stays in `.tmp` for an hour.

    Args:
        url: `file:///absolute/folder`, with `?history=` (entries, and so files, kept for each group, 1000).

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history",))
        parts = read.parts
        if parts.netloc or parts.fragment or not parts.path.startswith("/"):
            raise read.error("has no folder: write file:///absolute/folder")
        self._folder = _Folder(Path(unquote(parts.path)), read.address)
        super().__init__(read, self._folder)

    def init(self) -> bool:
        """Make the folder a store, and return whether it was none before; the folder above it must exist.

        Raises:
            Refused: the file system refuses; nothing was written.
            StoreUnavailable: it may pass, such as a full disk.
        """
        return self._folder.init()


class _Folder:
    """See `files.Files`."""

    def __init__(self, root: Path, address: str) -> None:
        self._root = root
        self._address = address
        self._synced: set[Path] = set()
        self._known = False

    def init(self) -> bool:
        with self._failures(StoreUnavailable):
            with suppress(FileExistsError):
                os.mkdir(self._root)  # noqa: PTH102 - as all of this file, by os
            new = not self._is_store()
            self._mark()
            sync(self._root.parent)
        return new

    def folders(self) -> Sequence[str]:
        with self._failures(StoreUnavailable):
            folders = [each for each in self._root.iterdir() if each.name != _TEMPORARY and each.is_dir()]
            return [each.name for each in folders if any(NAME.fullmatch(name) for name in os.listdir(each))]  # noqa: PTH208

    def names(self, folder: str, after: str) -> Sequence[str]:  # noqa: ARG002 - listing all is as cheap
        with self._failures(StoreUnavailable):
            try:
                return os.listdir(self._root / folder)  # noqa: PTH208 - one system call misses no name
            except FileNotFoundError:
                os.stat(self._root)  # noqa: PTH116 - raises if it is not mounted
                return []

    def read(self, folder: str, name: str) -> File | None:
        with (
            self._failures(StoreUnavailable),
            suppress(FileNotFoundError),
            (self._root / folder / name).open("rb") as file,
        ):
            return File(file.read(), _stamp(os.fstat(file.fileno())))
        return None

    def stamp(self, folder: str, name: str) -> str:
        with self._failures(StoreUnavailable), suppress(FileNotFoundError):
            return _stamp(os.stat(self._root / folder / name))  # noqa: PTH116 - as all of this file, by os
        return ""

    def create(self, folder: str, name: str, content: bytes) -> str:
        self._check()
        with self._failures(StoreUnavailable):
            self._make(self._root / _TEMPORARY)
            self._make(self._root / folder)
            temporary = self._root / _TEMPORARY / environment.token()
        try:
            with self._failures(StoreUnavailable):
                stamp = _write(temporary, content)
                try:
                    os.link(temporary, self._root / folder / name)
                except FileExistsError:
                    return ""
            with self._failures(OutcomeUnknown):
                sync(self._root / folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - as all of this file, by os
        return stamp

    def delete(self, folder: str, names: Sequence[str]) -> None:
        with self._failures(StoreUnavailable):
            for name in names:
                (self._root / folder / name).unlink(missing_ok=True)

    def clean(self) -> None:
        oldest = environment.now_ms() / 1000 - _ABANDONED_S
        with self._failures(StoreUnavailable):
            for each in (self._root / _TEMPORARY).iterdir():
                with suppress(FileNotFoundError):
                    if each.stat().st_mtime < oldest:
                        each.unlink()

    def close(self) -> None:
        pass

    def _check(self) -> None:
        """Refuse an empty folder without a marker: the place of a mount looks like that while nothing is mounted."""
        if self._known:
            return
        with self._failures(StoreUnavailable):
            self._known = self._is_store()
            if not self._known and self.folders():  # of an older release
                self._known = True
                with suppress(PermissionError):
                    self._mark()
        if not self._known:
            raise Refused(
                f"{self._address}: the folder {self._root} has no ledger, and no mark of a store; nothing was written. "
                "If a program has kept offsets there, its file system is not mounted: mount it. If the store is new, "
                f"make it: offsetkeeper init --store '{self._address}'"
            )

    def _is_store(self) -> bool:
        return os.path.exists(self._root / _MARKER)  # noqa: PTH110 - as all of this file, by os

    def _mark(self) -> None:
        with suppress(FileExistsError):
            _write(self._root / _MARKER, _MARKED)
        sync(self._root)

    def _make(self, folder: Path) -> None:
        try:
            os.mkdir(folder)  # noqa: PTH102 - as all of this file, by os
        except FileExistsError:
            if folder in self._synced:
                return
        sync(self._root)  # the process that made it may have died before its sync
        self._synced.add(folder)

    @contextmanager
    def _failures(self, passing: type[OffsetkeeperError]) -> Iterator[None]:
        """Translate errors of the operating system in the block."""
        try:
            yield
        except FileNotFoundError as error:
            if not self._root.is_dir():
                raise Refused(
                    f"{self._address}: the folder {self._root} does not exist. Mount it; or if the store is new, make "
                    f"it: offsetkeeper init --store '{self._address}'"
                ) from error
            raise passing(f"{self._address}: {error}; another process deleted it") from error
        except OSError as error:
            if passing is StoreUnavailable and error.errno not in _PASSING:
                raise Refused(
                    f"{self._address}: {error}; nothing was written. Check the folder's permissions, "
                    "and that its file system can be written and has hard links"
                ) from error
            raise passing(f"{self._address}: {error}") from error


def _write(path: Path, content: bytes) -> str:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return _stamp(os.fstat(file.fileno()))


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_ino} {found.st_mtime_ns}"


def sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
