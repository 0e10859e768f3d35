"""The folder of a checkpoint, wherever Spark keeps it, read only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


class Folder(Protocol):
    """A checkpoint's folder."""

    def read(self, name: str) -> str | None:
        """Return the text of a file, or None where there is none."""
        ...

    def names(self, name: str) -> list[str]:
        """Return the names of what lies in a folder of it; none where there is no such folder."""
        ...


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return str(self._path)

    def read(self, name: str) -> str | None:
        """See `Folder.read`."""
        try:
            return (self._path / name).read_text("utf-8")
        except FileNotFoundError:
            return None

    def names(self, name: str) -> list[str]:
        """See `Folder.names`."""
        folder = self._path / name
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


class HadoopFolder:
    """A folder of any file system that classic Spark knows, through Spark's own classes."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._java: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to it
        self._path = path
        self._files = self._of(path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001 - as above

    def __repr__(self) -> str:
        return self._path

    def local(self) -> Path | None:
        """Return where it lies if it is a folder of this machine."""
        found = self._files.makeQualified(self._of(self._path)).toUri()
        return Path(found.getPath()) if found.getScheme() == "file" else None

    def read(self, name: str) -> str | None:
        """See `Folder.read`."""
        path = self._of(f"{self._path}/{name}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def names(self, name: str) -> list[str]:
        """See `Folder.names`."""
        path = self._of(f"{self._path}/{name}")
        return sorted(s.getPath().getName() for s in self._files.listStatus(path)) if self._files.exists(path) else []

    def _of(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)


class RemoteFolder:
    """A folder that only the server of Spark Connect can reach, read as data."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def __repr__(self) -> str:
        return self._path

    def read(self, name: str) -> str | None:
        """See `Folder.read`."""
        [row] = self._there(lambda: self._files(name).select("content").collect()) or [None]
        return None if row is None else bytes(row[0]).decode()

    def names(self, name: str) -> list[str]:
        """See `Folder.names`; folders in it are left out."""
        rows = self._there(lambda: self._files(name).select("path").collect())
        return sorted(unquote(row[0]).rpartition("/")[2] for row in rows)

    def _files(self, name: str) -> Any:
        return self._spark.read.format("binaryFile").load(f"{self._path}/{name}")

    def _there(self, collect: Callable[[], list[Any]]) -> list[Any]:
        try:
            return collect()
        except Exception as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            return []


def open_folder(spark: SparkSession, path: str) -> Folder:
    """Return the folder of a checkpoint as `option("checkpointLocation", path)` names it."""
    if not is_connect(spark):
        folder = HadoopFolder(spark, path)
        local = folder.local()
        return folder if local is None else LocalFolder(local)
    parts = urlsplit(path)
    here = Path(unquote(parts.path))
    if parts.scheme in {"", "file"} and here.is_absolute() and here.parent.exists():
        return LocalFolder(here)
    return RemoteFolder(spark, path)


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
