"""A client of HDFS through WebHDFS, on the NameNodes of a URL such as `webhdfs://user@namenode:9870/folder`.

For its requests see https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import httpx

from offsetkeeper.clients.pool import SENSELESS, senseless
from offsetkeeper.clients.url import ClientUrl, check_size
from offsetkeeper.clients.web import open_client, way_of
from offsetkeeper.clients.web_proxy import told_by_way
from offsetkeeper.core.outside import LARGEST_STORED, check_values
from offsetkeeper.core.silence import silent
from offsetkeeper.core.tls import Tls, spoken_hint, unspoken_hint
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, Refused, StoreUnavailable

OWN = ("ca_bundle",)
MISSING, TAKEN = "FileNotFoundException", "FileAlreadyExistsException"  # of a file
_METHODS = {"CREATE": "PUT", "MKDIRS": "PUT", "RENAME": "PUT", "DELETE": "DELETE"}  # of other operations: GET
_REDIRECTS, _REDIRECT, _SERVER_ERROR = 300, 307, 500
_HTTP, _HTTPS = 80, 443
# They log addresses and headers; a NameNode's redirect has a delegation token in them.
_LOGGING = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy", "httpcore.socks")
_HEADERS = ("Content-Type", "Location", "Date")
_MOST = 128 << 20  # bytes of an answer: the names of half a million files, or twice the largest file
_MOST_VALUES = 8_000_000  # of an answer that is JSON: each name has a dozen
_LARGEST = 2**63  # no number of a file is as large
_PART = 16 << 20  # bytes of a part of a file that is copied
T = TypeVar("T")
_STANDBY = "StandbyException"
# Surely not done, and worth a retry: start, safe mode, failover of NameNodes, lease of another client, full quota.
_PASSING = {
    *("RetriableException", "SafeModeException", "AlreadyBeingCreatedException", MISSING),
    *("NSQuotaExceededException", "DSQuotaExceededException", "LeaseExpiredException", _STANDBY),
}
# Surely not done, and fails until somebody changes something. Any other error comes from a server behind, such as a
# DataNode that has lost its NameNode: the outcome is unknown.
_HOPELESS = {
    *("AccessControlException", "SecurityException", "AuthenticationException", "AuthorizationException"),
    *("IllegalArgumentException", "HadoopIllegalArgumentException", "InvalidPathException", "InvalidToken"),
    *("ParentNotDirectoryException", "PathComponentTooLongException", "MaxDirectoryItemsExceededException"),
    "UnsupportedOperationException",
}


def statuses(answer: Any) -> list[dict[str, Any]]:
    """Return the statuses of files in an answer; it raises whatever an answer of another kind makes Python raise.

    The status of a file that was listed itself has no name; that of a folder never has none: it would be its own child.
    """
    found = [_status_of(each) for each in answer["FileStatuses"]["FileStatus"]]
    if any(each["type"] == "DIRECTORY" and not each["pathSuffix"] for each in found):
        raise ValueError("a folder has no name")
    return found


def file_status(answer: Any) -> dict[str, Any]:
    """Return the status of a file in an answer; see `statuses`."""
    return _status_of(answer["FileStatus"])


def _status_of(status: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"pathSuffix": "", **status}
    name = known["pathSuffix"]
    if not isinstance(name, str) or "/" in name or known["type"] not in {"FILE", "DIRECTORY", "SYMLINK"}:
        raise ValueError("the status of a file has no name or no type")
    if not all(_is_number(known[name]) for name in ("modificationTime", "length", "replication")):
        raise ValueError("the status of a file has no time or no length")
    return {"childrenNum": 0, **known}


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_renamed(answer: Any) -> bool:
    """Whether HttpFS has renamed a file. It knows no `renameoptions`, and renames to no name that is taken."""
    if not isinstance(answer["boolean"], bool):
        raise TypeError("the answer is neither true nor false")
    return answer["boolean"]


class WebHdfs:
    """A client of one HDFS. Safe to use from several threads.

    Args:
        url: URL of a folder, `webhdfs://user@namenode:9870/folder?ca_bundle=…`. Its timeout is for a connection, and
            then for an answer.

    Attributes:
        host: the part of the URL before the path, without the user.
        path: path of the folder from the root.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: ClientUrl) -> None:
        parts = url.parts
        user, _, hosts = parts.netloc.rpartition("@")
        self.host = f"{parts.scheme}://{hosts}"
        self.path = unquote(parts.path).rstrip("/")
        if not all(hosts.split(",")) or parts.fragment or not self.path or "//" in self.path or ":" in user:
            raise url.error("has no folder: write webhdfs://user@namenode:9870/folder, no password")
        scheme = "https" if parts.scheme == "swebhdfs" else "http"
        self._servers = [f"{scheme}://{host}" for host in hosts.split(",")]
        self._user = {"user.name": unquote(user)} if user else {}
        self._timeout = url.settings.timeout
        self._address = url.address
        self._ca_bundle = url.given.get("ca_bundle", "")
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    def call(
        self,
        operation: str,
        path: str,
        *,
        content: bytes | Iterator[bytes] = b"",
        size: int | None = None,
        lost: type[OffsetkeeperError] = StoreUnavailable,
        none_if: str = "",
        late: bool = False,
        **parameters: str,
    ) -> httpx.Response | None:
        """Send one request to the NameNode, then to the DataNode of its answer; return the answer.

        Args:
            operation: see WebHDFS.
            path: see WebHDFS.
            content: content of a file to create.
            size: its bytes, if the content comes in parts.
            lost: the error to raise if the request was sent and no answer came.
            none_if: name of an exception (MISSING or TAKEN) for which None is returned.
            late: whether something was written before, so that every failure is `lost`.
            parameters: see WebHDFS.

        Raises:
            StoreUnavailable: surely not done, and worth another try.
            Refused: HDFS refused for good.
        """
        method = _METHODS.get(operation, "GET")
        try:
            answer = self._ask(method, path, {"op": operation, **self._user, **parameters})
            if answer.status_code == _REDIRECT:
                # The NameNode normalizes names in its address, so the DataNode would look for another file.
                there = urlsplit(answer.headers["Location"])._replace(path=f"/webhdfs/v1{quote(path)}")
                self._check_tls(there.scheme)
                answer = self._send(method, there.geturl(), content=content, headers=_length(size))
        except OffsetkeeperError:
            raise
        except MemoryError as error:
            raise lost(senseless(self._address, error, "the memory of this machine")) from None
        except (KeyError, ValueError) as error:
            raise lost(f"{self._address}: the NameNode leads to no DataNode: {error!r}; check the URL") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            way = way_of(self._open(), getattr(error, "_request", None))
            raise told_by_way(self._broken(error, lost, late=late), way) from error
        if answer.is_success and not _is_page(answer):
            return answer
        name, message = _exception(answer)
        if name and name == none_if:
            return None
        refused = self._refused(answer.status_code, name, message, lost, late=late)
        raise told_by_way(refused, way_of(self._open(), answer.request))

    def rename(self, path: str, to: str, option: str, lost: type[OffsetkeeperError] = StoreUnavailable) -> bool:
        """Rename a file and return whether that was done; with the option `NONE` it is not if the name is taken.

        HttpFS knows no options: it answers that it has not renamed, whenever the name is taken.

        Raises:
            OffsetkeeperError: see `call`; `lost` also if the answer makes no sense.
        """
        taken = TAKEN if option == "NONE" else ""
        answer = self.call("RENAME", path, none_if=taken, lost=lost, destination=to, renameoptions=option)
        if answer is None:
            return False
        return not answer.content or self.told(answer, _is_renamed, lost)  # a NameNode answers nothing

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist; of a too large one no more than that is read.

        Raises:
            StoreUnavailable, Refused: see `call`; also for a file that is too large.
        """
        answer = self.call("OPEN", path, none_if=MISSING, length=str(LARGEST_STORED + 1))
        if answer is not None:
            check_size(len(answer.content), f"{self.host}{path}")
        return answer.content if answer else None

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, or None if it does not exist."""
        answer = self.call("GETFILESTATUS", path, none_if=MISSING)
        return None if answer is None else int(self.told(answer, file_status)["length"])

    def parts(self, path: str, size: int) -> Iterator[bytes]:
        """Yield the content of a file of any size, in parts.

        Raises:
            StoreUnavailable: it no longer has this size.
        """
        for start in range(0, size, _PART):
            wanted = min(_PART, size - start)
            answer = self.call("OPEN", path, none_if=MISSING, offset=str(start), length=str(wanted))
            if answer is None or len(answer.content) != wanted:
                raise StoreUnavailable(f"{self.host}{path}: it has changed while it was copied, from {size} bytes")
            yield answer.content

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client:
            client.close()

    def _ask(self, method: str, path: str, parameters: dict[str, str]) -> httpx.Response:
        """Ask the NameNodes in turn until one is active; start with the one that answered last."""
        servers = self._servers
        for number, server in enumerate(servers, 1):
            last = number == len(servers)
            try:
                answer = self._send(method, f"{server}/webhdfs/v1{quote(path)}", params=parameters)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if last:
                    raise
                continue
            if last or _exception(answer)[0] != _STANDBY:
                # A new list, because other threads may iterate over the old one.
                self._servers = sorted(self._servers, key=lambda each: each != server)
                return answer
        raise httpx.UnsupportedProtocol("the URL has no NameNode")  # pragma: no cover

    def told(self, answer: httpx.Response, read: Callable[[Any], T], lost: type[OffsetkeeperError] = Refused) -> T:
        """Return what `read` finds in the JSON of an answer.

        Raises:
            OffsetkeeperError: `lost`, if the answer is of another kind.
        """
        try:
            return read(_json(answer))
        except SENSELESS as error:
            raise lost(
                f"{self._address}: the answer is not that of WebHDFS: {type(error).__name__}. Check that this is the "
                "HTTP port of the NameNode (9870)"
            ) from None

    def _check_tls(self, scheme: str) -> None:
        if scheme != "https" and self.host.startswith("swebhdfs:"):
            raise httpx.UnsupportedProtocol(
                "the NameNode speaks TLS and leads to a DataNode without it, to which nothing was sent: set "
                "dfs.http.policy to HTTPS_ONLY on each of them"
            )

    def _send(self, method: str, url: str, **request: Any) -> httpx.Response:
        """Return the answer to one request, if it is not too large."""
        with silent(_LOGGING), self._open().stream(method, url, **request) as answer:
            parts, size = [], 0
            for part in answer.iter_raw():
                parts.append(part)
                size += len(part)
                if size > _MOST:
                    raise httpx.DecodingError(f"the answer has more than {_MOST} bytes", request=answer.request)
            headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
            return httpx.Response(answer.status_code, headers=headers, content=b"".join(parts), request=answer.request)

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                verify: Any = Tls("ca_bundle", ca=self._ca_bundle).context() if self._ca_bundle else True
                self._client = open_client(
                    self._timeout,
                    verify=verify,
                    headers={"Accept-Encoding": "identity"},
                    event_hooks={"response": [_refuse_encoded]},
                )
            return self._client

    def _broken(self, error: Exception, lost: type[OffsetkeeperError], *, late: bool) -> OffsetkeeperError:
        text = f"{self._address}: {type(error).__name__}: {error}"
        if late or isinstance(error, httpx.DecodingError):  # that is of this file
            return lost(text)
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError):
            if "CERTIFICATE" in str(error):
                if why := self._objection(error.request.url):
                    return Refused(f"{self._address}: nothing was written: {why}")
                return Refused(f"{text}; give the certificates with ?ca_bundle=")
            hint = unspoken_hint(str(error))
            return StoreUnavailable(f"{self._address}: cannot connect: {type(error).__name__}: {error}{hint}")
        if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol):
            url, plain = error.request.url, self.host.startswith("webhdfs:")
            hint = spoken_hint(url.host, url.port or _HTTP, "write swebhdfs:// in the URL") if plain else ""
            return lost(f"{text}: the connection broke, or no answer came for {self._timeout:g} s{hint}")
        return Refused(f"{text}; check the URL and its settings")

    def _objection(self, url: httpx.URL) -> str:
        return Tls("ca_bundle", ca=self._ca_bundle).objection(url.host, url.port or _HTTPS)

    def _refused(
        self, status: int, name: str, message: str, lost: type[OffsetkeeperError], *, late: bool
    ) -> OffsetkeeperError:
        told = f"{name}: {message:.500}" if name else f"status {status}, and the answer is not that of WebHDFS"
        text = f"{self._address}: {told}"
        if name in _PASSING and not late:
            return StoreUnavailable(f"{text}; nothing was written")
        of_another = not name and (status >= _SERVER_ERROR or (status < _REDIRECTS and lost is OutcomeUnknown))
        if late or (name and name not in _HOPELESS) or of_another:
            return lost(text)
        return Refused(
            f"{text}; nothing was written. Check that this is the HTTP port of the NameNode (9870), and what the user "
            "may do in the folder"
        )


def _length(size: int | None) -> dict[str, str]:
    return {} if size is None else {"Content-Length": str(size)}


def _refuse_encoded(answer: httpx.Response) -> None:
    """Check that an answer is not compressed: none was asked for, and a few bytes may become any number."""
    if "Content-Encoding" in answer.headers:
        raise httpx.DecodingError("the answer is compressed, which was not asked for", request=answer.request)


def _is_page(answer: httpx.Response) -> bool:
    """Whether the answer is not from WebHDFS: a NameNode's RPC port answers with a sentence and status 200 or 404."""
    return "text/" in answer.headers.get("Content-Type", "")


def _json(answer: httpx.Response) -> Any:
    check_values(answer.content, _MOST_VALUES)
    return answer.json()


def _exception(answer: httpx.Response) -> tuple[str, str]:
    """Return the name and the message of the exception in an answer."""
    if answer.is_success:
        return "", ""
    try:
        told = _json(answer)["RemoteException"]
        return str(told["exception"]), str(told["message"])
    except SENSELESS:
        return "", ""  # a page, which may show anything
