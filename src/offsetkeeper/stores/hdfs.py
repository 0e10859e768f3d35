"""The store in a folder of HDFS, reached through WebHDFS: `webhdfs://user@namenode:9870/folder`, with TLS `swebhdfs://`.

A file of HDFS can be seen before it has its content, so each is written under another name and then renamed, which
fails where the new name is taken.

`WebHdfs` and `read_place` are for checkpoints as well. For the requests see
https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

import secrets
import ssl
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httpx

from offsetkeeper.core.store import without_credentials
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SettingsError, StoreError, StoreUnavailable
from offsetkeeper.stores.files import File, FileStore
from offsetkeeper.stores.settings import StoreSettings, read_settings, refuse_unknown

_OWN = ("history", "timeout")
_HISTORY = 100  # the NameNode keeps each file in its memory
_TEMPORARY = ".tmp"
_ABANDONED_MS = 3_600_000
_MISSING, _REDIRECT, _SERVER_ERROR = 404, 307, 500
_TAKEN = "FileAlreadyExistsException"
_STANDBY = "StandbyException"
# Surely not done, and worth another try: a start, safe mode, a change of NameNodes, another's lease, a full quota.
_PASSING = {
    "RetriableException",
    "SafeModeException",
    "AlreadyBeingCreatedException",
    "FileNotFoundException",
    "NSQuotaExceededException",
    "DSQuotaExceededException",
    "LeaseExpiredException",
    _STANDBY,
}
# Surely not done, and hopeless until somebody changes something. Any other is that of a server behind the one asked,
# such as a DataNode that has lost its NameNode: whether the request went through is not known.
_HOPELESS = {
    "AccessControlException",
    "SecurityException",
    "AuthenticationException",
    "AuthorizationException",
    "IllegalArgumentException",
    "HadoopIllegalArgumentException",
    "InvalidPathException",
    "InvalidToken",
    "ParentNotDirectoryException",
    "PathComponentTooLongException",
    "MaxDirectoryItemsExceededException",
    "UnsupportedOperationException",
}


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


class WebHdfs:
    """A client of one HDFS. Safe to use from several threads.

    Args:
        servers: `http://host:port` of each NameNode.
        user: name of the user; empty means none.
        timeout: seconds to wait for a connection, and then for an answer.
        address: of the store, for messages.
        ca_bundle: file of certificates; empty means the system's.
    """

    def __init__(self, servers: list[str], user: str, timeout: float, address: str, ca_bundle: str) -> None:
        self._servers = servers
        self._user = {"user.name": user} if user else {}
        self._timeout = timeout
        self._address = address
        self._ca_bundle = ca_bundle
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    def call(
        self,
        method: str,
        path: str,
        operation: str,
        *,
        content: bytes = b"",
        lost: type[OffsetkeeperError] = StoreUnavailable,
        missing: bool = False,
        taken: bool = False,
        late: bool = False,
        **parameters: str,
    ) -> httpx.Response | None:
        """Send one request to the NameNode, and on to the DataNode it names; return the answer.

        Args:
            method: see WebHDFS.
            path: see WebHDFS.
            operation: see WebHDFS.
            content: of a file to create.
            lost: what to raise where the request was sent and no answer came.
            missing: whether None is returned where there is no such file.
            taken: whether None is returned where there is one.
            late: something was written before, so that whatever fails is `lost`.
            parameters: see WebHDFS.

        Raises:
            StoreUnavailable: surely not done, and worth another try.
            SettingsError: HDFS refused for good.
        """
        try:
            answer = self._ask(method, path, {"op": operation, **self._user, **parameters})
            if answer.status_code == _REDIRECT:
                # The NameNode normalizes names in the address it gives, and the DataNode would look for another file.
                there = urlsplit(answer.headers["Location"])._replace(path=f"/webhdfs/v1{quote(path)}").geturl()
                answer = self._open().request(method, there, content=content)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise self._broken(error, lost, late=late) from error
        if answer.is_success and not _is_page(answer):
            return answer
        name, message = _exception(answer)
        if (missing and name == "FileNotFoundException") or (taken and name == _TAKEN):
            return None
        raise self._refused(answer.status_code, name, message, lost, late=late)

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def _ask(self, method: str, path: str, parameters: dict[str, str]) -> httpx.Response:
        """Ask the NameNodes in turn, the one that answered last first, until one is active."""
        servers = self._servers
        for number, server in enumerate(servers, 1):
            last = number == len(servers)
            try:
                answer = self._open().request(method, f"{server}/webhdfs/v1{quote(path)}", params=parameters)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if last:
                    raise
                continue
            if last or _exception(answer)[0] != _STANDBY:
                # A new list, as other threads may be going through the old one.
                self._servers = sorted(self._servers, key=lambda each: each != server)
                return answer
        raise httpx.UnsupportedProtocol("no NameNode is named")  # pragma: no cover

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                verify: Any = ssl.create_default_context(cafile=self._ca_bundle) if self._ca_bundle else True
                self._client = httpx.Client(timeout=self._timeout, verify=verify)
            return self._client

    def _broken(self, error: Exception, lost: type[OffsetkeeperError], *, late: bool) -> OffsetkeeperError:
        text = f"{self._address}: {type(error).__name__}: {error}"
        if late:
            return lost(text)
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            if "CERTIFICATE" in str(error):
                return SettingsError(f"{text}; give the certificates with ?ca_bundle=")
            return StoreUnavailable(f"{self._address} cannot be connected: {type(error).__name__}: {error}")
        if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol):
            return lost(f"{text}: the connection broke, or no answer came for {self._timeout:g} s")
        return SettingsError(f"{text}; check the URL and its settings")

    def _refused(
        self, status: int, name: str, message: str, lost: type[OffsetkeeperError], *, late: bool
    ) -> OffsetkeeperError:
        text = f"{self._address}: {name or f'status {status}'}: {message:.500}"
        if name in _PASSING and not late:
            return StoreUnavailable(f"{text}; nothing was written")
        if late or (name and name not in _HOPELESS) or (not name and status >= _SERVER_ERROR):
            return lost(text)
        return SettingsError(
            f"{text}; nothing was written. Check that this is the HTTP port of the NameNode (9870), and what the user "
            "may do in the folder"
        )


class Place(NamedTuple):
    """What a URL names.

    Attributes:
        address: the URL without secrets, for messages.
        host: what comes before the path in it, without the user.
        path: of the folder, from the root.
        settings: shared by all stores.
        client: of the cluster.
    """

    address: str
    host: str
    path: str
    settings: StoreSettings
    client: WebHdfs


def read_place(url: str, own: Collection[str]) -> Place:
    """Return what `webhdfs://user@namenode:9870/folder?ca_bundle=…` names.

    Args:
        url: to be read.
        own: names of the settings that it may have beside `ca_bundle`.

    Raises:
        SettingsError: it is wrong.
    """
    address, parts = without_credentials(url), urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    settings, given = read_settings(parts.query, tuple(own))
    refuse_unknown(given, ("ca_bundle", *own))
    path = unquote(parts.path).rstrip("/")
    if not all(hosts.split(",")) or parts.fragment or not path or "//" in path or ":" in user:
        raise SettingsError(f"{address} names no folder: write webhdfs://user@namenode:9870/folder, no password")
    scheme = "https" if parts.scheme == "swebhdfs" else "http"
    servers = [f"{scheme}://{host}" for host in hosts.split(",")]
    client = WebHdfs(servers, unquote(user), settings.timeout, address, given.get("ca_bundle", ""))
    return Place(address, f"{parts.scheme}://{hosts}", path, settings, client)


def _is_page(answer: httpx.Response) -> bool:
    """Whether it was no WebHDFS that answered: a NameNode's RPC port does so with a sentence, and status 200 or 404."""
    return "text/" in answer.headers.get("Content-Type", "")


def _exception(answer: httpx.Response) -> tuple[str, str]:
    """Return the name of the exception an answer tells of, and its message."""
    if answer.is_success:
        return "", answer.text if _is_page(answer) else ""
    try:
        told = answer.json()["RemoteException"]
        return str(told["exception"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return "", answer.text
