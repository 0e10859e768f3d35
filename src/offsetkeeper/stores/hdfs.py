"""The store in a folder on HDFS, through WebHDFS: `webhdfs://user@namenode:9870/folder`, with TLS `swebhdfs://`.

A file on HDFS is visible before it has its content, so each file is written with another name and then renamed; the
rename fails if the new name is taken.

`WebHdfs` is also used for checkpoints. For its requests see
https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from offsetkeeper.clients.hdfs import MISSING, OWN, WebHdfs, file_status, statuses
from offsetkeeper.clients.url import UrlSettings, read_url
from offsetkeeper.core import environment
from offsetkeeper.errors import OutcomeUnknown, StoreError, StoreUnavailable
from offsetkeeper.stores.files import File, FileStore

_TEMPORARY = ".tmp"
_ABANDONED_MS = 3_600_000


class HDFSStore(FileStore):
    """Ledgers in a folder on HDFS, with a subfolder for each group; see `stores.files`.

    The folder is created if it is missing. A file of a crashed write stays in `.tmp` for an hour.

    Args:
        url: `webhdfs://user@namenode:9870/folder`, of several NameNodes `webhdfs://user@one:9870,two:9870/folder`; with
            `?ca_bundle=` (file of certificates, for `swebhdfs://`), `?history=` (entries, and so files, kept for each
            group, 100) and `?timeout=` (seconds to wait for a connection, and then for an answer, 30). The user is
            without Kerberos trusts the user name. Kerberos is not supported.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history", "timeout"), OWN, UrlSettings(history=100))  # files use NameNode memory
        self._folder = _Folder(WebHdfs(read))
        super().__init__(read, self._folder)

    def server_settings(self) -> dict[str, str | None]:
        """See `Examined.server_settings`."""
        return {"dfs.replication": least} if (least := self._folder.replication()) else {}


class _Folder:
    """See `files.Files`."""

    def __init__(self, client: WebHdfs) -> None:
        self._client = client
        self._made: set[str] = set()

    def folders(self) -> Sequence[str]:
        return [each["pathSuffix"] for each in self._list("") if each["type"] == "DIRECTORY" and each["childrenNum"]]

    def names(self, folder: str, after: str) -> Sequence[str]:  # noqa: ARG002 - a listing always has all
        return [each["pathSuffix"] for each in self._list(folder) if each["type"] == "FILE"]

    def read(self, folder: str, name: str) -> File | None:
        stamp = self.stamp(folder, name)
        content = self._client.read(self._path(folder, name)) if stamp else None
        return None if content is None else File(content, stamp)

    def stamp(self, folder: str, name: str) -> str:
        answer = self._client.call("GETFILESTATUS", self._path(folder, name), none_if=MISSING)
        return _stamp(self._client.told(answer, file_status)) if answer else ""

    def replication(self) -> str:
        """Return the fewest replicas that a group's files have; empty if there is no file."""
        files = [each for folder in self.folders() for each in self._list(folder) if each["type"] == "FILE"]
        return str(min((each["replication"] for each in files), default=""))

    def create(self, folder: str, name: str, content: bytes) -> str:
        if folder not in self._made:
            self._client.call("MKDIRS", self._path(folder))
            self._made.add(folder)
        temporary, path = self._path(_TEMPORARY, environment.token()), self._path(folder, name)
        self._client.call("CREATE", temporary, content=content, overwrite="false")
        try:
            renamed = self._client.rename(temporary, path, "NONE", OutcomeUnknown)
        except StoreUnavailable:
            self._made.discard(folder)  # it may have been deleted
            raise
        if not renamed:
            with suppress(StoreError):
                self._client.call("DELETE", temporary)
            return ""
        answer = self._client.call("GETFILESTATUS", path, lost=OutcomeUnknown, late=True)
        return _stamp(self._client.told(answer, file_status, OutcomeUnknown)) if answer else ""

    def delete(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self._client.call("DELETE", self._path(folder, name))

    def clean(self) -> None:
        oldest = environment.now_ms() - _ABANDONED_MS
        self.delete(_TEMPORARY, [e["pathSuffix"] for e in self._list(_TEMPORARY) if e["modificationTime"] < oldest])

    def close(self) -> None:
        self._client.close()

    def _list(self, folder: str) -> list[dict[str, Any]]:
        answer = self._client.call("LISTSTATUS", self._path(folder), none_if=MISSING)
        return self._client.told(answer, statuses) if answer else []

    def _path(self, *names: str) -> str:
        return "/".join((self._client.path, *names)).rstrip("/")


def _stamp(status: dict[str, Any]) -> str:
    return f"{status.get('fileId', '')} {status['modificationTime']}"
