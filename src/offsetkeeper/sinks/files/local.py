"""A folder on this machine, or on a file system that is mounted here."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from offsetkeeper.core.outside import LARGEST_STORED, UnfitFile, link_error, list_folder, open_folder, read_file, sync
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, SinkError

_FOR_GOOD = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}
# After these errors, a file server may have done it or may still do it.
_UNCLEAR = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.ECONNRESET, errno.ENOTCONN}
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO would wait for a reader


class LocalTree:
    """See `Tree`. A rename replaces an empty folder, so every renamed folder contains a file."""

    def __init__(self, folder: str) -> None:
        self._root = Path(folder)
        self.address = f"file://{folder}"  # without the scheme, Spark would use its default file system

    def make(self, path: str) -> None:
        """See `Tree.make`."""
        with self._failures():
            with suppress(FileExistsError):  # it may be no folder: opening it tells
                self._root.mkdir(parents=True)
            os.close(open_folder(self._root / path, self._root, make=True))

    def names(self, path: str) -> Sequence[str]:
        """See `Tree.names`."""
        with self._failures():
            names = list_folder(self._root / path, self._root)
            sync(self._at(path))  # the process that renamed into it may have died before its sync
            return names

    def read(self, path: str) -> bytes | None:
        """See `Tree.read`."""
        with self._failures(), suppress(FileNotFoundError, NotADirectoryError):
            return read_file(self._root / path, LARGEST_STORED, root=self._root)[0]
        return None

    def write(self, path: str, content: bytes) -> None:
        """See `Tree.write`."""
        with self._failures(), self._entered(path) as (folder, own):
            with os.fdopen(os.open(own, _WRITE, 0o666, dir_fd=folder), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            sync((self._root / path).parent)

    def sync(self, path: str) -> None:
        """See `Tree.sync`. It follows links: to sync another file does no harm."""
        with self._failures():
            for folder, _, names in os.walk(self._at(path)):
                for name in names:
                    sync(Path(folder, name))
                sync(Path(folder))

    def move(self, source: str, target: str) -> None:
        """See `Tree.move`."""
        with (
            self._failures(lost=OutcomeUnknown),
            self._entered(source) as (of, old),
            self._entered(target) as (to, new),
        ):
            if stat.S_ISLNK(os.stat(old, dir_fd=of, follow_symlinks=False).st_mode):
                raise link_error(self._root / source)
            os.rename(old, new, src_dir_fd=of, dst_dir_fd=to)
            try:
                sync(".", to)
            except OSError as error:
                raise OutcomeUnknown(f"{self.address}/{target} exists, but may not be durable: {error}") from error

    def delete(self, path: str) -> None:
        """See `Tree.delete`."""
        with self._failures(), suppress(FileNotFoundError), self._entered(path) as (folder, own):
            shutil.rmtree(own, dir_fd=folder)

    def folds(self, path: str) -> bool:
        """See `Tree.folds`."""
        with self._failures(), suppress(FileNotFoundError):
            return (self._root / path).samefile(self._root / path.upper())
        return False

    @contextmanager
    def _entered(self, path: str) -> Iterator[tuple[int, str]]:
        """Lend the descriptor of the folder of a file or folder, and its own name there: a link put there is none."""
        whole = self._at(path)
        folder = open_folder(whole.parent, self._root)
        try:
            yield folder, whole.name
        finally:
            os.close(folder)

    def _at(self, path: str) -> Path:
        """Return the whole path. Others may write in the folder, so nothing below it may be a link."""
        found = self._root
        for part in Path(path).parts:
            found /= part
            if found.is_symlink():
                raise link_error(found)
        return found

    @contextmanager
    def _failures(self, lost: type[OffsetkeeperError] = SinkError) -> Iterator[None]:
        """Translate errors of the operating system in the block."""
        try:
            yield
        except OSError as error:
            text = f"{self.address}: {error}"
            if error.errno in _FOR_GOOD or isinstance(error, UnfitFile):
                raise Refused(f"{text}; nothing was written. Check the path and its permissions") from error
            if error.errno in _UNCLEAR:
                raise lost(text) from error
            raise SinkError(f"{text}; nothing was written") from error
