"""The folder that a checkpoint lies in. Another file system is one more class with these methods."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from offsetkeeper.core.store import without_credentials
from offsetkeeper.errors import MissingExtra, SettingsError, StoreUnavailable


class Stamp(NamedTuple):
    """When a file was last written, in seconds since 1970, and its size in bytes."""

    at_s: float
    size: int


class Files(Protocol):
    """A checkpoint's folder, and the backups beside it. Names are relative to the folder, with slashes.

    A write is there as a whole or not at all. Hadoop's checksum of a file (`.<name>.crc` beside it) goes with the file:
    Spark fails where one is left that belongs to nothing.

    Attributes:
        address: the folder, for messages.
    """

    address: str

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, hidden ones too, sorted; none where there is no such folder."""
        ...

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """Return all files below a folder, by name."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None where there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file, over one that is there, and make it durable."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it is there, and return whether it was not. A crash may leave it torn."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        ...

    def backups(self) -> list[str]:
        """Return the names of the backups, oldest first."""
        ...

    def backup(self, name: str) -> Files:
        """Return the folder of a backup, which need not be there yet."""
        ...

    def keep(self, name: str, backup: str) -> None:
        """Copy a file into a backup, if it is there."""
        ...

    def restore(self, name: str, backup: str) -> None:
        """Copy a file back from a backup."""
        ...

    def close(self) -> None:
        """Give connections back, the backups' too; a later call opens new ones."""
        ...


class LocalFiles:
    """A checkpoint on this machine, or on a file system that is mounted here. Backups lie beside it.

    Args:
        path: of the checkpoint's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - a link stays one, so that backups lie beside it
        self.address = str(self.path)

    def __repr__(self) -> str:
        return f"LocalFiles({self.address!r})"

    def names(self, folder: str) -> list[str]:
        """See `Files.names`."""
        with self._failures():
            try:
                return sorted(os.listdir(self.path / folder))  # noqa: PTH208 - names, not paths
            except (FileNotFoundError, NotADirectoryError):
                return []

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        found = {}
        with self._failures():
            for root, _, names in os.walk(self.path / folder):
                for path in (Path(root) / name for name in names):
                    with suppress(FileNotFoundError):  # deleted by the query meanwhile
                        stat = path.stat()
                        found[path.relative_to(self.path).as_posix()] = Stamp(stat.st_mtime, stat.st_size)
        return found

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        with self._failures():
            try:
                return (self.path / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")  # Spark passes over such a name
        with self._failures():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                _checksum(path).unlink(missing_ok=True)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            _sync(path.parent)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`."""
        path = self.path / name
        with self._failures():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with path.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except FileExistsError:
                return False
            _sync(path.parent)
            return True

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        path = self.path / name
        with self._failures():
            _checksum(path).unlink(missing_ok=True)  # first: a file without one is sound, the reverse is not
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _sync(path.parent)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        with self._failures():
            start = f"{self.path.name}.backup-"
            names = [path.name for path in self.path.parent.iterdir() if path.name.startswith(start)]
            return sorted(name.removeprefix(f"{self.path.name}.") for name in names)

    def backup(self, name: str) -> LocalFiles:
        """See `Files.backup`."""
        return LocalFiles(self.path.with_name(f"{self.path.name}.{name}"))

    def keep(self, name: str, backup: str) -> None:
        """See `Files.keep`."""
        self._copy(self.path / name, self.backup(backup).path / name)

    def restore(self, name: str, backup: str) -> None:
        """See `Files.restore`."""
        self._copy(self.backup(backup).path / name, self.path / name)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _copy(self, source: Path, target: Path) -> None:
        with self._failures():
            target.parent.mkdir(parents=True, exist_ok=True)
            for one, other in ((source, target), (_checksum(source), _checksum(target))):
                temporary = other.with_name(f".{other.name}.{secrets.token_hex(4)}.tmp")
                with suppress(FileNotFoundError):
                    shutil.copy2(one, temporary)
                    _sync(temporary)
                    temporary.replace(other)
            _sync(target.parent)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Translate what the operating system raises in the block."""
        try:
            yield
        except PermissionError as error:
            raise SettingsError(f"{self.address}: {error}; check the folder's permissions") from error
        except OSError as error:
            raise StoreUnavailable(f"{self.address}: {error}") from error


def open_files(location: str) -> Files:
    """Return the folder of a checkpoint; nothing is connected before it is used.

    Args:
        location: a path, or `file:///path` as Spark writes it; `webhdfs://user@namenode:9870/path` and
            `s3://bucket/prefix`, each with the settings of the store of that name. `s3a://` is the same as `s3://`:
            what Spark's own settings say of it is not known here.

    Raises:
        SettingsError: it is on a file system that cannot be reached from here, or the URL is wrong.
        MissingExtra: the client library is not installed.
    """
    parts = urlsplit(location)
    if parts.scheme in {"webhdfs", "swebhdfs", "s3", "s3a"}:
        return _open_remote(parts.scheme, location)
    if parts.scheme == "hdfs":
        raise SettingsError(
            f"{without_credentials(location)}: hdfs:// names the port of Hadoop's own protocol, which is not spoken "
            f"here. Write webhdfs://user@namenode:9870{parts.path or '/path'}, the NameNode's host and HTTP port"
        )
    if parts.scheme not in {"", "file"} or parts.netloc:
        raise SettingsError(
            f"{without_credentials(location)}: only folders of this machine, webhdfs:// and s3:// can be opened. Copy "
            "the checkpoint here with the tools of its file system, while the query is stopped, and back again"
        )
    return LocalFiles(Path(unquote(parts.path)) if parts.scheme else Path(location))


def _open_remote(scheme: str, location: str) -> Files:
    """Each file system's client is loaded only when it is used."""
    try:
        if scheme in {"s3", "s3a"}:
            from offsetkeeper.checkpoint.s3 import open_s3  # noqa: PLC0415 - as above

            return open_s3(f"s3{location.removeprefix(scheme)}")
        from offsetkeeper.checkpoint.hdfs import open_hdfs  # noqa: PLC0415 - as above

        return open_hdfs(location)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("offsetkeeper"):
            raise
        extra = "s3" if scheme in {"s3", "s3a"} else "hdfs"
        raise MissingExtra(
            f"{scheme}:// needs the library {error.name!r}: pip install 'offsetkeeper[{extra}]'"
        ) from error


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _sync(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
