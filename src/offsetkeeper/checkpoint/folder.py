"""Opens the folder of a checkpoint: by its location, or through the Spark session that uses it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from offsetkeeper.checkpoint.files import Files, Folder, LocalFiles
from offsetkeeper.clients.url import check_size
from offsetkeeper.core import environment
from offsetkeeper.core.outside import LARGEST_STORED
from offsetkeeper.core.spark_session import is_connect
from offsetkeeper.core.store import needing_extra
from offsetkeeper.core.urls import is_url, scheme_of, shown_location, split_url, url_error
from offsetkeeper.errors import Refused, SettingsError, StoreUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOR_GOOD = (
    "org.apache.hadoop.security.AccessControlException",
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
    "java.net.UnknownHostException",
)


def open_files(location: str) -> Files:
    """Return the folder of a checkpoint; it connects when it is first used.

    Args:
        location: a path, or `file:///path` as Spark writes it; `webhdfs://user@namenode:9870/path` and
            `s3://bucket/prefix`, each with the settings of the store of that name. `s3a://` is the same as `s3://`:
            Spark's own settings for it are not known here.

    Raises:
        SettingsError: the file system cannot be reached from here, or the URL is wrong.
        MissingExtra: the client library is not installed.
    """
    scheme = scheme_of(location).removesuffix("://")
    if scheme in {"webhdfs", "swebhdfs", "s3", "s3a"}:
        return _open_remote(scheme, location)
    if scheme == "hdfs":
        raise url_error(
            location,
            "has the port of Hadoop's own protocol, which is not supported here. Write "
            "webhdfs://user@namenode:9870/path, the NameNode's host and HTTP port",
        )
    wrong = split_url(location).netloc if scheme == "file" else scheme or is_url(location)
    if wrong:
        raise url_error(
            location,
            "cannot be opened: only local folders, webhdfs:// and s3:// can. Copy the checkpoint to this machine with "
            "the tools of its file system, while the query is stopped, and copy it back afterwards",
        )
    return LocalFiles(Path(unquote(split_url(location).path)) if scheme else Path(location))


def open_folder(spark: SparkSession, path: str) -> Folder:
    """Return the folder of a checkpoint from the path in `option("checkpointLocation", path)`.

    With Spark Connect the server reads it, as a folder of that name on this machine may be another one; unless it is
    proved to be the same.
    """
    folder = RemoteFolder(spark, path) if is_connect(spark) else HadoopFolder(spark, path)
    return folder.local() or folder


class HadoopFolder:
    """A folder on any file system of classic Spark, through Spark's own classes; see `Folder`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.address, self._path = shown_location(path), path
        self._java: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public access
        settings = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        with self._failures():
            self._files = self._of("").getFileSystem(settings)

    def local(self) -> LocalFiles | None:
        """Return the same folder if it is local."""
        with self._failures():
            found = self._files.makeQualified(self._of("")).toUri()
        return LocalFiles(Path(found.getPath())) if found.getScheme() == "file" else None

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`."""
        with self._failures():
            path = self._of(folder)
            there = self._files.listStatus(path) if self._files.exists(path) else []
            return sorted(each.getPath().getName() for each in there)

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        with self._failures():
            path = self._of(name)
            if not self._files.exists(path):
                return None
            size = self._files.getFileStatus(path).getLen()
            check_size(size, f"{self.address}/{name}")
            stream = self._files.open(path)
            try:
                return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream, size))
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        """See `WritableFolder.write`."""
        with self._failures():
            path, new = self._of(name), self._of(f"{name}.{environment.token(8)}.tmp")
            stream = self._files.create(new, True)  # noqa: FBT003 - Java's order: it makes folders too
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()
            self._files.delete(path, False)  # noqa: FBT003 - as above; it renames onto no file
            if not self._files.rename(new, path):
                raise StoreUnavailable(f"{self.address}/{name} could not be written")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Translate errors of the JVM in the block. A dead JVM is handled elsewhere."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - loaded with Spark
        from pyspark.errors import IllegalArgumentException  # noqa: PLC0415 - as above

        try:
            yield
        except IllegalArgumentException as error:
            raise SettingsError(f"{self.address}: {error}; check the address of the checkpoint") from error
        except Py4JJavaError as error:
            told = str(error.java_exception.toString()).partition("\n")[0]
            if told.startswith(_FOR_GOOD):
                raise Refused(f"{self.address}: {told}; check the address of the checkpoint and its rights") from error
            raise StoreUnavailable(f"{self.address}: {told}") from error

    def _of(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self._path}/{name}" if name else self._path)


class RemoteFolder:
    """A folder that the server of Spark Connect reads as data; see `Folder`."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.address, self._path = shown_location(path), path
        self._spark = spark

    def local(self) -> LocalFiles | None:
        """Return the same folder if it is on this machine too: the server finds a file that is written here."""
        path = Path(unquote(split_url(self._path).path)) if scheme_of(self._path) else Path(self._path)
        if scheme_of(self._path) not in {"", "file://"} or not path.is_absolute() or not path.parent.exists():
            return None
        here, new, name = LocalFiles(path), not path.exists(), f"offsetkeeper-{environment.token(16)}.tmp"
        same = False
        with suppress(Refused, StoreUnavailable):  # such as without the right to write: then the server reads
            try:
                same = here.create(name, b"proof") and bool(self._files(name))
            finally:
                here.delete(name)
                if new and not same:
                    _remove_empty(path)
        return here if same else None

    def names(self, folder: str) -> list[str]:
        """See `Folder.names`; hidden ones, and subfolders without a file, are left out."""
        files = (unquote(path).rpartition(f"/{folder}/")[2] for path in self._files(folder))
        return sorted({path.partition("/")[0] for path in files})

    def read(self, name: str) -> bytes | None:
        """See `Folder.read`."""
        found = self._column(name, "content", f"length <= {LARGEST_STORED}")  # Spark opens no file that is left out
        if found:
            return bytes(found[0])
        check_size(max(self._column(name, "length"), default=0), f"{self.address}/{name}")
        return b"" if self._files(name) else None

    def _files(self, name: str) -> list[str]:
        """Return the URLs of a file, or of all files below a folder; Spark has no row for an empty one."""
        with _none_missing():
            return [*self._load(name).inputFiles()]
        return []

    def _column(self, name: str, column: str, where: str = "true") -> list[Any]:
        with _none_missing():
            return [row[0] for row in self._load(name).where(where).select(column).collect()]
        return []

    def _load(self, name: str) -> DataFrame:
        # The server keeps the files of an equal frame of its session, where other clients number their frames alike.
        apart = {"recursiveFileLookup": "true", "offsetkeeper": environment.token(16)}
        return self._spark.read.format("binaryFile").options(**apart).load(_literal(f"{self._path}/{name}"))


@contextmanager
def _none_missing() -> Iterator[None]:
    """End the block where Spark finds no file of that name."""
    try:
        yield
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise


def _literal(path: str) -> str:
    """Return a pattern of Hadoop for this one path."""
    return re.sub(r"([][{}*?\\])", r"\\\1", path)


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


def _open_remote(scheme: str, location: str) -> Files:
    """Each file system's client is loaded only when it is used."""
    extra = "s3" if scheme in {"s3", "s3a"} else "hdfs"
    with needing_extra(f"{scheme}:// needs the library", extra):
        if extra == "s3":
            from offsetkeeper.checkpoint.s3 import open_s3  # noqa: PLC0415 - as above

            return open_s3(f"s3{location.removeprefix(scheme)}")
        from offsetkeeper.checkpoint.hdfs import open_hdfs  # noqa: PLC0415 - as above

        return open_hdfs(location)
