"""The session with ZooKeeper and its requests: with limited waits and with errors of offsetkeeper."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from kazoo import exceptions
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from offsetkeeper.clients.pool import SENSELESS, Lost, senseless
from offsetkeeper.clients.url import ClientUrl, read_choice
from offsetkeeper.core import environment
from offsetkeeper.core.tls import Tls, of_all, spoken_hint, unspoken_hint
from offsetkeeper.errors import Refused, SettingsError, StoreUnavailable, VersionConflict
from offsetkeeper.stores.zookeeper.nodes import Rows

_OWN = ("cert", "key", "key_password")
TLS = ("tls", "ca", *_OWN)
_BROKEN = (
    exceptions.ConnectionLoss,
    exceptions.ConnectionClosedError,
    exceptions.SessionExpiredError,
    exceptions.SessionMovedError,
    exceptions.OperationTimeoutError,
    exceptions.NotReadOnlyCallError,
    KazooTimeoutError,
)
_FORBIDDEN = (exceptions.NoAuthError, exceptions.AuthFailedError, exceptions.InvalidACLError)
_MOVED_ON = (exceptions.BadVersionError, exceptions.NodeExistsError, exceptions.NoNodeError)
_TRIES = 5
_MOST = 64 << 20  # bytes of an answer: servers take no node of more than a few MiB, and list children
_ASKED = 3  # servers that are asked whether they speak TLS
_ANY = -1  # version of a node


class _Senseless(Exception):
    """An answer makes no sense; the cause says why."""


@contextmanager
def sensible() -> Iterator[None]:
    """Read an answer in the block. An error elsewhere in a request is our own mistake."""
    try:
        yield
    except SENSELESS as error:
        raise _Senseless from error


class Request(NamedTuple):
    """One request: its client, and its deadline (by `environment.monotonic`, in seconds)."""

    client: Any
    deadline: float

    def wait(self, result: Any) -> Any:
        """Wait for kazoo's asynchronous result and return its value."""
        left = max(self.deadline - environment.monotonic(), 0.001)
        with sensible():
            return result.get(timeout=left)

    def agree(self, path: str) -> Any:
        """Ask a majority of the servers, so that the next answers have all changes that were acknowledged before.

        Therefore it sends a multi, like a write. A `sync` would be answered by the leader alone, even by one that was
        cut off and does not know of the next leader yet.

        Args:
            path: a node that may be read; it need not exist.
        """
        nothing = self.client.transaction()
        nothing.check(path, _ANY)
        return nothing.commit_async()

    def found(self, result: Any) -> Any:
        """Wait for a result and return its value, or None if the node does not exist."""
        try:
            return self.wait(result)
        except exceptions.NoNodeError:
            return None

    def existing(self, paths: Iterable[str]) -> set[str]:
        """Return which of the nodes exist, possibly with others beside them; missing parents are created."""
        parents = {path.rpartition("/")[0] for path in paths}
        asked = {parent: self.client.get_children_async(parent) for parent in parents}
        found: set[str] = set()
        for parent, answer in asked.items():
            children = self.found(answer)
            found.update(f"{parent}/{child}" for child in children or ())
            if children is None:
                self.wait(self.client.ensure_path_async(parent))
        return found

    def change(self, head: Callable[[Any], object], rows: Rows, known: Collection[str] | None = None) -> Any:
        """Send a multi with the operation that `head` adds and the writes of the rows; return the result of `head`.

        Args:
            head: adds one operation.
            rows: data by path, of nodes that may exist or not.
            known: nodes that probably exist; if this is wrong, or None, it is looked up.

        Raises:
            KazooException: the operation of `head` failed, or others kept creating and deleting the nodes.
        """
        for _ in range(_TRIES):
            known = self.existing(rows) if known is None else known
            transaction = self.client.transaction()
            head(transaction)
            for path, data in rows.items():
                (transaction.set_data if path in known else transaction.create)(path, data)
            results = self.wait(transaction.commit_async())
            with sensible():
                failed = [(number, result) for number, result in enumerate(results) if _is_cause(result)]
                if not failed:
                    return results[0]
            number, cause = failed[0]
            if number == 0 or not isinstance(cause, exceptions.NoNodeError | exceptions.NodeExistsError):
                raise cause
            known = None
        raise cause


class _Reasons(logging.Logger):
    """The log of one client, written nowhere: kazoo logs credentials at DEBUG.

    Attributes:
        last: the last warning, which says why no server could be reached.
    """

    def __init__(self) -> None:
        super().__init__("kazoo", logging.CRITICAL + 1)
        self.last = ""

    def warning(self, msg: object, *args: object, **_: Any) -> None:
        """Keep the text, except that of the summary, which has no cause."""
        self.last = str(msg) % args if args else self.last


class _Threads(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's threads; the one with the connection is watched.

    Attributes:
        settled: set when the client is connected, and when it has given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.settled = threading.Event()

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        """Run kazoo's loop around the connection."""

        def run() -> None:
            with contextlib.suppress(Exception):  # the waiting request gets the error
                func(*args, **kwargs)
            self.settled.set()

        thread: threading.Thread = super().spawn(run)
        return thread


class Sessions:
    """The session of one store, shared by all its threads.

    Args:
        url: URL of the store; its timeout is also the timeout of the session.

    Raises:
        SettingsError: a setting is wrong.
    """

    def __init__(self, url: ClientUrl) -> None:
        self._address = url.address
        self._timeout = url.settings.timeout
        self._tls = _tls(url.given)
        self._settings = _client_settings(url, self._tls)
        self._lock = threading.Lock()
        self._held: Any = None

    @contextmanager
    def request(self, lost: Lost = StoreUnavailable) -> Iterator[Request]:
        """Lend the session for one request and translate its errors; after a broken connection it is closed.

        Raises:
            StoreUnavailable: no server can be reached.
            Refused: the server refuses the request.
            VersionConflict: another writer has changed the node first.
            StoreError: `lost`, if the connection broke, no answer came in time, or it made no sense.
        """
        client = self._client()
        try:
            yield Request(client, environment.monotonic() + self._timeout)
        except _BROKEN as error:
            self._drop(client)
            raise lost(
                f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error!r}"
            ) from error
        except _FORBIDDEN as error:
            raise self._forbidden(error) from error
        except _MOVED_ON as error:
            raise VersionConflict(f"{self._address}: nothing was written: {error!r}") from error
        except exceptions.KazooException as error:
            raise Refused(f"{self._address}: ZooKeeper refused, and nothing was written: {error!r}") from error
        except _Senseless as found:
            self._drop(client)
            cause = found.__cause__
            raise lost(senseless(self._address, cause, "the port of ZooKeeper (2181)")) from cause

    def close(self) -> None:
        """End the session."""
        with self._lock:
            client, self._held = self._held, None
        if client:
            _end(client)

    def _client(self) -> Any:
        with self._lock:
            if self._held and not self._held.connected:
                _end_later(self._held)
                self._held = None
            if self._held is None:
                self._held = self._connect()
            return self._held

    def _connect(self) -> Any:
        if self._tls is not None:
            self._tls.context()  # kazoo asks the terminal for a key's password
        # One try over all hosts, also after a break: the ledger decides about waiting and retrying.
        once, log, threads = KazooRetry(max_tries=1), _Reasons(), _Threads()
        client = KazooClient(
            handler=threads, timeout=self._timeout, connection_retry=once, logger=log, **self._settings
        )
        client._connection._read = partial(_limited, client._connection._read)  # noqa: SLF001 - it has no other limit
        client.add_listener(lambda state: threads.settled.set() if state == KazooState.CONNECTED else None)
        client.start_async()
        threads.settled.wait(self._timeout)
        if client.connected:
            return client
        state = client.client_state
        _end_later(client)
        if state == KeeperState.AUTH_FAILED:
            raise self._forbidden(exceptions.AuthFailedError())
        if why := self._objection():
            raise Refused(f"{self._address}: nothing was written: {why}")
        why = log.last or "no server answered in time"
        raise StoreUnavailable(f"{self._address}: cannot connect: {why}{self._hint(why)}")

    def _hint(self, why: str) -> str:
        if self._tls is not None:
            return unspoken_hint(why)
        hosts, _ = collect_hosts(self._settings["hosts"])
        return next(
            filter(None, (spoken_hint(host, port, "add tls=true to the URL") for host, port in hosts[:_ASKED])), ""
        )

    def _objection(self) -> str:
        """Return why no certificate of the servers is accepted; empty if one may be, and without TLS."""
        if self._tls is None:
            return ""
        hosts, _ = collect_hosts(self._settings["hosts"])
        return of_all(self._tls.objection(host, port) for host, port in hosts)

    def _drop(self, client: Any) -> None:
        with self._lock:
            if self._held is client:
                self._held = None
        _end_later(client)

    def _forbidden(self, error: Exception) -> Refused:
        return Refused(
            f"{self._address}: ZooKeeper refuses these credentials: {error!r}. Check them, and the ACLs of "
            "/consumers and below. The page on rights lists what is needed"
        )


def _limited(read: Callable[[int, float], bytes], length: int, timeout: float) -> bytes:
    if not 0 <= length <= _MOST:
        raise exceptions.ConnectionLoss(f"an answer of {length} bytes: check the port of ZooKeeper (2181)")
    return read(length, timeout)


def _is_cause(result: object) -> bool:
    """Whether this result made a multi fail; kazoo returns an error for each operation and raises none."""
    aftermath = exceptions.RolledBackError | exceptions.RuntimeInconsistency
    return isinstance(result, Exception) and not isinstance(result, aftermath)


def _end_later(client: Any) -> None:
    """End a session without waiting: with a frozen server, the end takes seconds."""
    threading.Thread(target=_end, args=(client,), name="zookeeper-end", daemon=True).start()


def _end(client: Any) -> None:
    with contextlib.suppress(Exception):  # the session is dropped in any case
        client.stop()
        client.close()


def _client_settings(url: ClientUrl, tls: Tls | None) -> dict[str, Any]:
    user, _, hosts = url.parts.netloc.rpartition("@")
    try:
        collect_hosts(hosts)
    except ValueError:
        raise url.error("has no server: write zookeeper://host:2181,host2:2181/path") from None
    settings: dict[str, Any] = {"hosts": hosts, "default_acl": OPEN_ACL_UNSAFE}
    if tls is not None:
        settings |= {"use_ssl": True, "verify_certs": True, "check_hostname": True, "ca": tls.ca or None}
        # Without a key, kazoo would show no certificate.
        settings |= {"certfile": tls.cert, "keyfile": tls.key or tls.cert, "keyfile_password": tls.password}
    digest = read_choice("auth", url.given.get("auth", "digest"), {"digest": True, "sasl": False})
    if not user:
        return settings
    name, _, password = (unquote(part) for part in user.partition(":"))
    if digest:
        settings["auth_data"] = [("digest", f"{name}:{password}")]
    else:
        settings["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": name, "password": password}
    return {**settings, "default_acl": [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]}


def _tls(given: Mapping[str, str]) -> Tls | None:
    tls = given.get("tls", "false")
    if tls not in {"true", "false"} or (tls == "false" and not given.keys().isdisjoint(TLS[1:])):
        raise SettingsError("in the store's URL, use tls=true or tls=false, and ca, cert and key only with tls=true")
    if tls == "false":
        return None
    for name in given.keys() & {"ca", "cert", "key"}:
        if not os.path.isfile(given[name]):  # noqa: PTH113 - it never raises
            raise SettingsError(f"{name} in the store's URL is not a file: check its path, and that it may be read")
    ca, cert, key, password = (given.get(name, "") for name in TLS[1:])
    return Tls("ca", ca=ca, own=_OWN, cert=cert, key=key, password=password)
