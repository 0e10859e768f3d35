"""The store in a folder on this machine or on a shared file system: `file:///absolute/folder`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from offsetkeeper.clients.url import read_url
from offsetkeeper.core import environment
from offsetkeeper.core.outside import LARGEST_STORED, UnfitFile, list_folder, open_folder, read_file, sync
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable
from offsetkeeper.stores.files import NAME, File, FileStore

_TEMPORARY = ".tmp"
_MARKER = ".offsetkeeper"
_MARKED = b"This folder is a store of offsetkeeper. An empty folder without this file counts as not mounted.\n"
_OF_THE_SYSTEM = "lost+found"  # where a file system begins
_ABANDONED_S = 3600.0
# Errors that may pass by themselves or when space is freed. All others stay until someone changes something.
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
_PASSING |= {errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.ECONNRESET, errno.ENOENT}
# Errors of a file system over the network that may have done what it was asked, and has lost its answer.
_UNTOLD = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.ECONNRESET, errno.EINTR}


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
        self._unsynced: set[str] = set()  # folders in which a name may be that is not on the disk

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
            found = self._ledgers()
            if not found and not self._is_store():
                raise self._not_mounted()
            return found

    def names(self, folder: str, after: str) -> Sequence[str]:  # noqa: ARG002 - listing all is as cheap
        with self._failures(StoreUnavailable):
            try:
                found = list_folder(self._root / folder, self._root)
            except FileNotFoundError:
                if not self._is_store():
                    self.folders()  # raises if it is not mounted
                return []
        if folder in self._unsynced:  # else a change would count that a loss of power takes back
            self._sync(folder)
        return found

    def read(self, folder: str, name: str) -> File | None:
        with self._failures(StoreUnavailable), suppress(FileNotFoundError):
            content, found = read_file(self._root / folder / name, LARGEST_STORED, root=self._root)
            return File(content, _stamp(found))
        return None

    def stamp(self, folder: str, name: str) -> str:
        with self._failures(StoreUnavailable), suppress(FileNotFoundError), self._entered(folder) as opened:
            return _stamp(os.stat(name, dir_fd=opened, follow_symlinks=False))
        return ""

    def create(self, folder: str, name: str, content: bytes) -> str:
        self._check()
        with self._failures(StoreUnavailable):
            self._make(self._root / _TEMPORARY)
            self._make(self._root / folder)
        with self._noted(folder), self._failures(StoreUnavailable):
            stamp = self._linked(folder, name, content)
        if stamp:
            self._sync(folder)
        return stamp

    def delete(self, folder: str, names: Sequence[str]) -> None:
        with self._failures(StoreUnavailable), suppress(FileNotFoundError), self._entered(folder) as opened:
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)

    def clean(self) -> None:
        oldest = environment.now_ms() / 1000 - _ABANDONED_S
        with self._failures(StoreUnavailable), self._entered(_TEMPORARY) as opened:
            for name in list_folder(self._root / _TEMPORARY, self._root):
                with suppress(FileNotFoundError):
                    if os.stat(name, dir_fd=opened, follow_symlinks=False).st_mtime < oldest:
                        os.unlink(name, dir_fd=opened)

    def close(self) -> None:
        pass

    @contextmanager
    def _entered(self, folder: str) -> Iterator[int]:
        """Lend the descriptor of a folder, not of a link: else files elsewhere would be read, written and deleted."""
        opened = open_folder(self._root / folder, self._root)
        try:
            yield opened
        finally:
            os.close(opened)

    def _linked(self, folder: str, name: str, content: bytes) -> str:
        """Write a file apart, give it its name, and return its stamp; empty if the name is taken."""
        with self._entered(_TEMPORARY) as apart, self._entered(folder) as opened:
            temporary = environment.token()
            try:
                stamp = _write(temporary, content, apart)
                try:
                    os.link(temporary, name, src_dir_fd=apart, dst_dir_fd=opened, follow_symlinks=False)
                except FileExistsError:
                    return ""
                except OSError as error:
                    if error.errno in _UNTOLD:
                        raise OutcomeUnknown(f"{self._address}: {error}; {name} may have been made") from error
                    raise
                return stamp
            finally:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=apart)

    def _sync(self, folder: str) -> None:
        self._unsynced.discard(folder)
        with self._noted(folder), self._failures(OutcomeUnknown):
            sync(self._root / folder)

    @contextmanager
    def _noted(self, folder: str) -> Iterator[None]:
        """Note after an error in the block that a folder has to be synced before its names count."""
        try:
            yield
        except BaseException:
            self._unsynced.add(folder)
            raise

    def _has_ledger(self, folder: str) -> bool:
        """Return whether a folder has a file of ours; yes if it may not be read, as the next request has the reason."""
        try:
            return any(NAME.fullmatch(name) for name in list_folder(self._root / folder, self._root))
        except (UnfitFile, PermissionError):
            return folder != _OF_THE_SYSTEM

    def _check(self) -> None:
        """Refuse an empty folder without a marker: the place of a mount looks like that while nothing is mounted.

        Before each file, as a mount may go away at any time, and a program may keep a store for weeks.
        """
        with self._failures(StoreUnavailable):
            known = self._is_store()
            if not known and self._ledgers():  # of an older release
                known = True
                with suppress(PermissionError):
                    self._mark()
        if not known:
            raise self._not_mounted()

    def _not_mounted(self) -> Refused:
        return Refused(
            f"{self._address}: the folder {self._root} has no ledger, and no mark of a store; nothing was written. "
            "If a program has kept offsets there, its file system is not mounted: mount it. If the store is new, "
            f"make it: offsetkeeper init --store '{self._address}'"
        )

    def _ledgers(self) -> list[str]:
        names = [name for name in os.listdir(self._root) if name != _TEMPORARY]  # noqa: PTH208 - as all of this file
        return [name for name in names if os.path.isdir(self._root / name) and self._has_ledger(name)]  # noqa: PTH112 - as above

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
        except UnfitFile as error:
            raise Refused(
                f"{self._address}: {error.filename} was not opened: it {error.strerror}. Somebody who may write there "
                "has put it there: take it away"
            ) from None
        except OSError as error:
            if passing is StoreUnavailable and error.errno not in _PASSING:
                raise Refused(
                    f"{self._address}: {error}; nothing was written. Check the folder's permissions, "
                    "and that its file system can be written and has hard links"
                ) from error
            raise passing(f"{self._address}: {error}") from error


def _write(path: Path | str, content: bytes, folder: int | None = None) -> str:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    with os.fdopen(opened, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return _stamp(os.fstat(file.fileno()))


def _stamp(found: os.stat_result) -> str:
    return f"{found.st_ino} {found.st_mtime_ns}"
