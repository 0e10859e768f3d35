"""A folder on HDFS, reached through the JVM of the driver: its settings, users and Kerberos are those of Spark.

The NameNode refuses `FileContext.rename` without options in one step if the name is taken. `FileSystem.rename` would
move the folder into the existing one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from offsetkeeper.clients.url import check_size
from offsetkeeper.errors import GuaranteeRefused, OffsetkeeperError, OutcomeUnknown, Refused, SettingsError, SinkError

_FOR_GOOD = (
    *("org.apache.hadoop.security.AccessControlException", "org.apache.hadoop.fs.InvalidPathException"),
    *("org.apache.hadoop.fs.ParentNotDirectoryException", "java.net.UnknownHostException"),
)
# With this text, the NameNode has answered and changed nothing.
_REFUSED = "org.apache.hadoop.ipc.RemoteException("
_NOT_DONE = (
    *("java.io.FileNotFoundException", "org.apache.hadoop.fs.FileAlreadyExistsException"),
    *(
        "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException",
        "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException",
    ),
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
)


class HdfsTree:
    """See `Tree`. Closed files are on the disks, or in the memory, of all their DataNodes.

    Args:
        address: `hdfs://namenode:8020/path`.
        context: the SparkContext of classic Spark.
    """

    def __init__(self, address: str, context: Any) -> None:
        self.address = address.rstrip("/")
        self._java, settings = context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001 - no public way to it
        self._gateway = context._gateway  # noqa: SLF001 - as above
        with self._failures():
            root = self._path("")
            self._files = root.getFileSystem(settings)
            self._context = self._java.org.apache.hadoop.fs.FileContext.getFileContext(root.toUri(), settings)

    def make(self, path: str) -> None:
        """See `Tree.make`."""
        with self._failures():
            self._files.mkdirs(self._path(path))

    def names(self, path: str) -> Sequence[str]:
        """See `Tree.names`."""
        with self._failures():
            found = self._files.listStatus(self._path(path))
            paths = self._java.org.apache.hadoop.fs.FileUtil.stat2Paths(found)
            # One call of the JVM for all names. Py4J does not find Java's own Arrays.toString for paths.
            text = str(self._java.scala.runtime.ScalaRunTime.stringOf(paths))
        return [each.rpartition("/")[2] for each in text.removeprefix("Array(")[:-1].split(", ") if each]

    def read(self, path: str) -> bytes | None:
        """See `Tree.read`."""
        with self._failures():
            if not self._files.exists(self._path(path)):
                return None
            size = self._files.getFileStatus(self._path(path)).getLen()
            check_size(size, f"{self.address}/{path}")
            stream = self._files.open(self._path(path))
            try:
                return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream, size))
            finally:
                stream.close()

    def write(self, path: str, content: bytes) -> None:
        """See `Tree.write`."""
        with self._failures():
            target = self._path(path)
            stream = self._files.createNonRecursive(
                target,
                True,  # noqa: FBT003 - Java has no argument names: overwrite
                4096,
                self._files.getDefaultReplication(target),
                self._files.getDefaultBlockSize(target),
                None,
            )
            stream.write(content)
            stream.close()

    def sync(self, path: str) -> None:
        """See `Tree.sync`; tasks have closed their files."""

    def move(self, source: str, target: str) -> None:
        """See `Tree.move`."""
        rename = getattr(self._java.org.apache.hadoop.fs, "Options$Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.NONE
        with self._failures(lost=OutcomeUnknown):
            self._context.rename(self._path(source), self._path(target), options)

    def delete(self, path: str) -> None:
        """See `Tree.delete`."""
        with self._failures():
            self._files.delete(self._path(path), True)  # noqa: FBT003 - as above: recursive

    def folds(self, path: str) -> bool:  # noqa: ARG002 - as in the protocol
        """See `Tree.folds`."""
        return False

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self.address}/{path}" if path else self.address)

    @contextmanager
    def _failures(self, lost: type[OffsetkeeperError] = SinkError) -> Iterator[None]:
        """Translate errors of the JVM in the block. A dead JVM is handled elsewhere."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - loaded with Spark
        from pyspark.errors import IllegalArgumentException  # noqa: PLC0415 - as above

        try:
            yield
        except IllegalArgumentException as error:
            raise SettingsError(f"{self.address}: {error}; nothing was written. Check the address") from error
        except Py4JJavaError as error:
            told = str(error.java_exception.toString()).partition("\n")[0]
            name, text = told.partition(": ")[0], f"{self.address}: {told}"
            if name in _FOR_GOOD:
                raise Refused(f"{text}; nothing was written. Check the address and its permissions") from error
            if name in _NOT_DONE or name.startswith(_REFUSED):
                raise SinkError(f"{text}; nothing was written") from error
            raise lost(text) from error


def open_hdfs(address: str) -> HdfsTree:
    """Return the folder.

    Raises:
        GuaranteeRefused: this process has no JVM, as with Spark Connect.
        SettingsError: the address is wrong.
        SinkError: HDFS could not be reached.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - loaded with Spark

    context = SparkContext._active_spark_context  # noqa: SLF001 - there is no public access
    if context is None:
        raise GuaranteeRefused(
            f"{address}: the rename on HDFS needs the JVM of classic Spark, but this process has none: "
            "with Spark Connect give a mounted folder, with shared=True"
        )
    return HdfsTree(address, context)
