"""A checkpoint on HDFS, through WebHDFS.

A file on HDFS is visible before it has its content, so each file is written with another name, hidden from Spark, and
then renamed: over the existing file, or, to create it, only if the name is free. The NameNode does both in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from offsetkeeper.checkpoint.files import ServerClock, Stamp, checksum_of, no_more
from offsetkeeper.clients.hdfs import MISSING, OWN, WebHdfs, statuses
from offsetkeeper.clients.url import read_url
from offsetkeeper.core import environment
from offsetkeeper.errors import Refused, StoreError

_DEEPEST = 100


class HdfsFiles:
    """A folder on HDFS; see `Files`. Backups are beside it, and their content passes through this machine.

    Args:
        client: client of the cluster.
        path: path of the folder, from the root.
        clock: clock of the NameNode.
    """

    def __init__(self, client: WebHdfs, path: str, clock: ServerClock | None = None) -> None:
        self.address = f"{client.host}{path}"
        self._client = client
        self._path = path
        self._clock = clock or ServerClock()

    def __repr__(self) -> str:
        return f"HdfsFiles({self.address!r})"

    def names(self, folder: str) -> list[str]:
        """See `Files.names`."""
        return sorted(each["pathSuffix"] for each in self._list(folder) if each["pathSuffix"])

    def stamps(self, folder: str) -> dict[str, Stamp]:
        """See `Files.stamps`."""
        return dict(no_more(self._walk(folder), f"{self.address}/{folder}"))

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        return self._client.read(self._of(name))

    def write(self, name: str, content: bytes) -> None:
        """See `Files.write`."""
        self._put(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """See `Files.create`; a crash never leaves a part of the file."""
        return self._rename(self._temporary(name, content), name, "NONE")

    def delete(self, name: str) -> None:
        """See `Files.delete`."""
        self._delete(checksum_of(name))
        self._delete(name)

    def backups(self) -> list[str]:
        """See `Files.backups`."""
        parent, _, own = self._path.rpartition("/")
        beside = HdfsFiles(self._client, parent).names("")
        return sorted(name.removeprefix(f"{own}.") for name in beside if name.startswith(f"{own}.backup-"))

    def backup(self, name: str) -> HdfsFiles:
        """See `Files.backup`."""
        return HdfsFiles(self._client, f"{self._path}.{name}", self._clock) if name else self

    def copy(self, name: str, source: str, target: str) -> None:
        """See `Files.copy`."""
        for each in (name, checksum_of(name)):
            path = self.backup(source)._of(each)  # noqa: SLF001 - of this class
            if (size := self._client.size(path)) is not None:
                self.backup(target)._put(each, self._client.parts(path, size), size)  # noqa: SLF001 - as above

    def close(self) -> None:
        """See `Files.close`."""
        self._client.close()

    def _put(self, name: str, content: bytes | Iterator[bytes], size: int | None = None) -> None:
        self._delete(checksum_of(name))
        if not self._rename(self._temporary(name, content, size), name, "OVERWRITE"):
            raise Refused(
                f"{self.address}/{name} was not written: the server does not rename over a file, as HttpFS. Give the "
                "HTTP port of the NameNode (9870)"
            )

    def _walk(self, folder: str) -> Iterator[tuple[str, Stamp]]:
        for each in self._list(folder):
            name = f"{folder}/{each['pathSuffix']}".strip("/")
            if name.count("/") > _DEEPEST:
                raise Refused(f"{self.address}/{name} is more than {_DEEPEST} folders deep: remove it")
            if each["type"] == "DIRECTORY":
                yield from self._walk(name)
            else:
                yield name, Stamp(self._clock.here(each["modificationTime"] / 1000), each["length"])

    def _list(self, folder: str) -> list[dict[str, Any]]:
        answer = self._client.call("LISTSTATUS", self._of(folder), none_if=MISSING)
        if answer is None:
            return []
        self._clock.told(answer.headers.get("Date", ""))
        return self._client.told(answer, statuses)

    def _temporary(self, name: str, content: bytes | Iterator[bytes], size: int | None = None) -> str:
        folder, _, own = name.rpartition("/")
        temporary = f"{folder}/.{own}.{environment.token(4)}.tmp".lstrip("/")  # Spark ignores such names
        try:
            self._client.call("CREATE", self._of(temporary), content=content, size=size, overwrite="false")
        except StoreError:
            with suppress(StoreError):
                self._delete(temporary)
            raise
        return temporary

    def _rename(self, temporary: str, name: str, option: str) -> bool:
        renamed = False
        try:
            renamed = self._client.rename(self._of(temporary), self._of(name), option)
        finally:
            if not renamed:
                with suppress(StoreError):
                    self._delete(temporary)
        return renamed

    def _delete(self, name: str) -> None:
        self._client.call("DELETE", self._of(name))

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}".rstrip("/") or "/"


def open_hdfs(location: str) -> HdfsFiles:
    """Return the folder of `webhdfs://user@namenode:9870/folder`, with the settings of the store on HDFS.

    Raises:
        SettingsError: the URL is wrong.
    """
    client = WebHdfs(read_url(location, ("timeout",), OWN))
    return HdfsFiles(client, client.path)
