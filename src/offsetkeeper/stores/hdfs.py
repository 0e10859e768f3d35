"""The store in a folder of HDFS, reached through WebHDFS: `webhdfs://user@namenode:9870/folder`, with TLS `swebhdfs://`.

A file of HDFS can be seen before it has its content, so each is written under another name and then renamed, which
fails where the new name is taken.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from offsetkeeper.errors import OutcomeUnknown, StoreError, StoreUnavailable
from offsetkeeper.stores.files import File, FileStore
from offsetkeeper.stores.hdfs_connections import WebHdfs, read_place

_OWN = ("history", "timeout")
_HISTORY = 100  # the NameNode keeps each file in its memory
_TEMPORARY = ".tmp"
_ABANDONED_MS = 3_600_000


class HDFSStore(FileStore):
    """Ledgers in a folder of HDFS, a subfolder for each group; see `stores.files`.

    The folder is made if it is missing. A file of a crashed write stays in `.tmp` for an hour.

    Args:
        url: `webhdfs://user@namenode:9870/folder`, of several NameNodes `webhdfs://user@one:9870,two:9870/folder`; with
            `?ca_bundle=` (file of certificates, for `swebhdfs://`), `?history=` (entries, and so files, kept for each
            group, 100) and `?timeout=` (seconds to wait for a connection, and then for an answer, 30). The user is
            taken on trust by a cluster without Kerberos; Kerberos is not spoken.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        place = read_place(url, _OWN)
        history = place.settings.history if "history=" in url.partition("?")[2] else _HISTORY
        super().__init__(place.address, _Folder(place.client, place.path), history)


class _Folder:
    """See `files.Files`."""

    def __init__(self, client: WebHdfs, root: str) -> None:
        self._client = client
        self._root = root
        self._made: set[str] = set()

    def folders(self) -> Sequence[str]:
        return [each["pathSuffix"] for each in self._list("") if each["type"] == "DIRECTORY" and each["childrenNum"]]

    def names(self, folder: str, after: str) -> Sequence[str]:  # noqa: ARG002 - a folder is listed whole
        return [each["pathSuffix"] for each in self._list(folder)]

    def read(self, folder: str, name: str) -> File | None:
        stamp = self.stamp(folder, name)
        answer = self._client.call("GET", self._path(folder, name), "OPEN", missing=True) if stamp else None
        return File(answer.content, stamp) if answer else None

    def stamp(self, folder: str, name: str) -> str:
        answer = self._client.call("GET", self._path(folder, name), "GETFILESTATUS", missing=True)
        return _stamp(answer.json()["FileStatus"]) if answer else ""

    def create(self, folder: str, name: str, content: bytes) -> str:
        if folder not in self._made:
            self._client.call("PUT", self._path(folder), "MKDIRS")
            self._made.add(folder)
        temporary, path = self._path(_TEMPORARY, secrets.token_hex(8)), self._path(folder, name)
        self._client.call("PUT", temporary, "CREATE", content=content, overwrite="false")
        try:
            renamed = self._client.call(
                "PUT", temporary, "RENAME", taken=True, lost=OutcomeUnknown, destination=path, renameoptions="NONE"
            )
        except StoreUnavailable:
            self._made.discard(folder)  # somebody may have deleted it
            raise
        if not renamed:
            with suppress(StoreError):
                self._client.call("DELETE", temporary, "DELETE")
            return ""
        status = self._client.call("GET", path, "GETFILESTATUS", lost=OutcomeUnknown, late=True)
        return _stamp(status.json()["FileStatus"]) if status else ""

    def delete(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self._client.call("DELETE", self._path(folder, name), "DELETE")

    def clean(self) -> None:
        oldest = time.time() * 1000 - _ABANDONED_MS
        self.delete(_TEMPORARY, [e["pathSuffix"] for e in self._list(_TEMPORARY) if e["modificationTime"] < oldest])

    def close(self) -> None:
        self._client.close()

    def _list(self, folder: str) -> list[dict[str, Any]]:
        answer = self._client.call("GET", self._path(folder), "LISTSTATUS", missing=True)
        return answer.json()["FileStatuses"]["FileStatus"] if answer else []

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names)).rstrip("/")


def _stamp(status: dict[str, Any]) -> str:
    return f"{status.get('fileId', '')} {status['modificationTime']}"
