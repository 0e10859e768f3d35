"""Connections to Redis: reused for each node, with limited waits and with errors of offsetkeeper."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha1
from operator import index
from typing import Any, TypeVar
from urllib.parse import urlencode

from redis import Connection, exceptions
from redis.connection import parse_url

from offsetkeeper.clients.pool import SENSELESS, Lost, Pool, senseless
from offsetkeeper.clients.url import ClientUrl
from offsetkeeper.core import environment
from offsetkeeper.core.codec import REMEDY
from offsetkeeper.core.tls import Tls, may_be_objection, spoken_hint, unspoken_hint
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
)

_OWN = ("ssl_certfile", "ssl_keyfile", "ssl_password")
CLIENT = (
    *("db", "username", "password", "client_name", "socket_connect_timeout"),
    *("ssl_ca_certs", "ssl_ca_path", *_OWN),
    *("ssl_cert_reqs", "ssl_check_hostname"),
)
T = TypeVar("T")
Node = tuple[str, int]
Command = tuple[str | bytes | int, ...]

_LONGEST_CONNECT = 10.0
_MOST_MOVES = 5
_SCANNED = 1000
_SLOTS = 16_384  # of each cluster
_MOST = 512 << 20  # bytes of the answers to one request: fifty entries that move fifty thousand partitions
_SHOWN = 500  # characters of a server's message
_PORT = "the port of Redis (6379)"
# These are replies, although the library raises them like a broken connection.
_REPLIES = (exceptions.AuthenticationError, exceptions.BusyLoadingError)
# Surely not run, and worth a retry. A script's error has the code anywhere in its text, a command's at the start.
_PASSING = re.compile(
    r"\b(OOM|READONLY|LOADING|MISCONF|NOREPLICAS|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|BUSY|max number of clients)\b"
)
# Of these, what a server says that is no master, or was one: by now the address may lead to another server.
_DEMOTED = re.compile(r"\b(READONLY|NOREPLICAS)\b")
# What a proxy says when it has lost the server behind, perhaps after it has sent the request on.
_BEHIND = re.compile(
    r"(no )?upstream |(server )?connection (timed|reset|refused|closed|lost)|broken pipe", re.IGNORECASE
)
_DENIED = re.compile("no permissions|NOPERM|can't run this command|can't access")  # a script's error has no command
_PASSING_TYPES = (
    *(exceptions.BusyLoadingError, exceptions.OutOfMemoryError, exceptions.ReadOnlyError),
    *(exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError),
)


class _Answers:
    """A socket from which one request takes no more bytes, and little longer, than its answers can have.

    The library would read a line without an end for ever.
    """

    def __init__(self, opened: Any, seconds: float) -> None:
        self._socket, self._seconds = opened, seconds
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def begin(self) -> None:
        """Begin the answers to a request."""
        self._left, self._until = _MOST, environment.monotonic() + self._seconds

    def recv(self, size: int) -> bytes:
        """See the socket."""
        self._check()
        data: bytes = self._socket.recv(size)
        self._left -= len(data)
        return data

    def recv_into(self, buffer: Any) -> int:
        """See the socket; the library uses it with hiredis."""
        self._check()
        size: int = self._socket.recv_into(buffer)
        self._left -= size
        return size

    def _check(self) -> None:
        if self._left <= 0:
            raise OSError(f"an answer of more than {_MOST} bytes")
        if environment.monotonic() > self._until:
            raise TimeoutError


class _Bounded:
    """A connection of the library whose answers have an end."""

    socket_timeout: float

    def _connect(self) -> _Answers:
        self.answers = _Answers(super()._connect(), self.socket_timeout)  # type: ignore[misc]  # the library's
        return self.answers


class Connections:
    """Connections of one store to the server in its URL, or to the nodes of its cluster.

    Args:
        url: URL of the store; `given` has only settings of the client.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: ClientUrl) -> None:
        self._url = url
        self._address = url.address
        self._timeout = url.settings.timeout
        self._settings = _client_settings(url)
        self._tls = _tls(url.given, self._settings) if url.parts.scheme == "rediss" else None
        kind = self._settings.pop("connection_class", Connection)
        self._class = type(kind.__name__, (_Bounded, kind), {})
        self._home: Node = (self._settings.pop("host", "localhost"), self._settings.pop("port", 6379))
        self._nodes: dict[str, Node] = {}
        self._pools: dict[Node, Pool[Any]] = {}  # the library's connections have no types
        try:
            self._new(self._home)
        except (TypeError, ValueError, exceptions.RedisError):
            raise SettingsError(
                f"{self._address}: a setting of the URL does not fit; those of TLS need rediss://"
            ) from None

    def ask(self, group: str, commands: Sequence[Command], read: Callable[[list[Any]], T]) -> T:
        """Send commands in one request to the node that holds the group; return what `read` makes of their replies.

        Args:
            group: name of the group.
            commands: what to send.
            read: reads the replies, and raises one of `SENSELESS` if they are of another kind. The connection is not
                lent to others before, nor kept then: its next reply may be of an earlier request.

        Raises:
            StoreUnavailable, Refused, CorruptStore: the server could not be reached, refused, or made no sense.
        """
        with self._refusals(group):
            return self._ask(group, commands, read, StoreUnavailable)

    def run(
        self, group: str, script: str, keys: Sequence[str], arguments: Sequence[str | int], read: Callable[[Any], T]
    ) -> T:
        """Run a Lua script, which changes nothing if it fails; return what `read` makes of its reply, as in `ask`.

        Raises:
            OutcomeUnknown: the script was sent and no answer came, or none that makes sense.
            StoreUnavailable, Refused, CorruptStore: as for `ask`; the script did not run.
        """
        rest = (len(keys), *keys, *arguments)
        name = sha1(script.encode(), usedforsecurity=False).hexdigest()

        def only(replies: list[Any]) -> T:
            [reply] = replies
            return read(reply)

        with self._refusals(group, OutcomeUnknown):
            try:
                return self._ask(group, [("EVALSHA", name, *rest)], only, OutcomeUnknown)
            except exceptions.NoScriptError:  # the server is new, or its scripts were flushed
                return self._ask(group, [("EVAL", script, *rest)], only, OutcomeUnknown)

    def scan(self, pattern: str, group: str = "") -> Iterator[bytes]:
        """Yield the keys that match: those on the group's node, or all. Some may come twice."""
        with self._refusals(group):
            node = self._nodes.get(group) if group else None
            for each in [node or self._home] if group else self._masters():
                cursor: bytes | int = 0
                while cursor != b"0":
                    command = ("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED)
                    cursor, keys = self._exchange(each, [command], partial(_scanned, cursor), StoreUnavailable)
                    yield from keys

    def close(self) -> None:
        """Close the connections that are not lent."""
        for pool in list(self._pools.values()):
            pool.close()

    def _masters(self) -> set[Node]:
        try:
            return self._exchange(self._home, [("CLUSTER", "SLOTS")], self._nodes_of, StoreUnavailable)
        except exceptions.ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            return {self._home}

    def _nodes_of(self, replies: list[Any]) -> set[Node]:
        """Return the masters. A server without a known name gives none, or an empty one.

        Raises:
            StoreUnavailable: nobody serves some of the slots. Their groups would seem to be gone.
        """
        [slots] = replies
        served = sorted((index(first), index(last)) for first, last, *_ in slots)
        if [0, *(last + 1 for _, last in served)] != [*(first for first, _ in served), _SLOTS]:
            raise StoreUnavailable(
                f"{self._address}: some of the cluster's {_SLOTS} slots have no node, or several, so groups cannot be "
                "listed. Look at CLUSTER SLOTS: give each slot a node, or name another node in the URL"
            )
        nodes = [(host or b"", index(port)) for _, _, (host, port, *_), *_ in slots]
        return {(host.decode() or self._home[0], port) for host, port in nodes}

    def _ask(self, group: str, commands: Sequence[Command], read: Callable[[list[Any]], T], lost: Lost) -> T:
        for _ in range(_MOST_MOVES):
            try:
                return self._exchange(self._nodes.get(group, self._home), commands, read, lost)
            except exceptions.MovedError as moved:
                self._nodes[group] = (moved.host or self._home[0], moved.port)
            except exceptions.NoScriptError:
                raise
            except (OffsetkeeperError, exceptions.RedisError):
                self._nodes.pop(group, None)  # its node may be gone or another's: ask the first node for the new one
                raise
        raise StoreUnavailable(f"{self._address}: the nodes of the cluster do not agree on who holds {group!r}")

    def _exchange(self, node: Node, commands: Sequence[Command], read: Callable[[list[Any]], T], lost: Lost) -> T:
        pool = self._pools.setdefault(node, Pool(partial(self._open, node), _disconnect, usable=_is_open))
        with pool.lend() as connection:
            with self._broken(lost):
                connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                connection.answers.begin()
                replies = [_reply(connection) for _ in commands]
                refused = _refused(replies)
                if refused is None:
                    return read(replies)
            if _is_of_demoted(refused):
                raise refused  # so the connection is not kept
        raise refused

    @contextmanager
    def _broken(self, lost: Lost) -> Iterator[None]:
        """Translate a broken connection, and a reply of another kind, to `lost`."""
        try:
            yield
        except _REPLIES:
            raise
        except (exceptions.InvalidResponse, *SENSELESS) as error:
            raise lost(senseless(self._address, error, _PORT)) from error
        except exceptions.RedisError as error:
            raise lost(
                f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: "
                f"{_text(error)[:_SHOWN]}"
            ) from error

    def _open(self, node: Node) -> Any:
        connection = self._new(node)
        if self._tls is not None:
            self._tls.context()  # the library names no wrong file, and asks the terminal for a key's password
        try:
            connection.connect()
        except (exceptions.InvalidResponse, *SENSELESS) as error:
            connection.disconnect()
            raise StoreUnavailable(senseless(self._address, error, _PORT)) from None
        except exceptions.RedisError as error:
            raise self._unconnected(error, node) from None  # the original message may quote the password
        return connection

    def _new(self, node: Node) -> Any:
        host, port = node
        return self._class(host=host, port=port, **self._settings)

    def _unconnected(self, error: exceptions.RedisError, node: Node) -> OffsetkeeperError:
        text = _text(error)
        if self._tls is not None and may_be_objection(text) and (why := self._tls.objection(*node)):
            return Refused(f"{self._address}: nothing was written: {why}")
        hopeless = (
            isinstance(error, exceptions.AuthenticationError | exceptions.ResponseError)
            or "CERTIFICATE" in text
            or "WRONG_VERSION" in text
        )
        kind: type[OffsetkeeperError] = Refused if hopeless and not _passes(error) else StoreUnavailable
        plain = self._tls is None and isinstance(error, exceptions.ConnectionError)
        hint = spoken_hint(*node, "write rediss:// in the URL") if plain else unspoken_hint(text)
        return kind(f"{self._address}: cannot connect: {self._url.redact(text)}{hint}")

    @contextmanager
    def _refusals(self, group: str, lost: Lost = StoreUnavailable) -> Iterator[None]:
        """Translate the server's refusals; to `lost` those of a proxy that may have sent the request on."""
        try:
            yield
        except exceptions.RedisError as error:
            where, told = f"{self._address}: group {group!r}", _text(error)[:_SHOWN]
            if _BEHIND.match(told):
                raise lost(f"{where}: a proxy has lost the server behind it: {told}") from error
            if _passes(error):
                raise StoreUnavailable(f"{where}: nothing was written: {told}") from error
            if "WRONGTYPE" in str(error):
                raise CorruptStore(f"{where}: one of its keys holds another type than a hash. {REMEDY}") from error
            if isinstance(error, exceptions.ClusterCrossSlotError) or "hash to the same slot" in str(error):
                raise Refused(
                    f"{where}: nothing was written, because its keys are on several nodes of the cluster. "
                    "Give the key a hash tag: ?key=offset:{topic}:{{group}}"
                ) from error
            hint = ". The page on rights lists what is needed" * bool(_DENIED.search(str(error)))
            raise Refused(f"{where}: Redis refused, and nothing was written: {told}{hint}") from error


def _disconnect(connection: Any) -> None:
    connection.disconnect()


def _is_open(connection: Any) -> bool:
    """Whether the server has not closed a kept connection."""
    connection.answers.begin()
    try:
        return not connection.can_read()
    except exceptions.RedisError:
        return False


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error


def texts(reply: Any) -> list[bytes]:
    """Return a reply that is a list of texts; TypeError if it is of another kind."""
    if type(reply) is not list or not all(type(each) is bytes for each in reply):
        raise TypeError("the reply is not a list of texts")
    return reply


def _scanned(before: bytes | int, replies: list[Any]) -> tuple[bytes, list[bytes]]:
    [[cursor, keys]] = replies
    if type(cursor) is not bytes or cursor == before:  # it would never end
        raise TypeError("the cursor does not move")
    return cursor, texts(keys)


def _refused(replies: list[Any]) -> exceptions.RedisError | None:
    """Return the first error among replies, also within a transaction."""
    inside = replies[-1] if len(replies) > 1 and isinstance(replies[-1], list) else []
    return next((reply for reply in (*replies, *inside) if isinstance(reply, exceptions.RedisError)), None)


def _text(error: Exception) -> str:
    """Return the server's message without the quoted command, which may have a password."""
    return str(error).partition(", with args")[0]


def _passes(error: Exception) -> bool:
    return isinstance(error, _PASSING_TYPES) or bool(_PASSING.search(str(error)))


def _is_of_demoted(error: Exception) -> bool:
    return isinstance(error, exceptions.ReadOnlyError | exceptions.MasterDownError) or bool(_DEMOTED.search(str(error)))


def _client_settings(url: ClientUrl) -> dict[str, Any]:
    timeout, settings = url.settings.timeout, _parse(url)
    if url.parts.scheme == "rediss":  # older releases of the library leave the name unchecked unless they are told
        settings.setdefault("ssl_check_hostname", url.given.get("ssl_cert_reqs") != "none")
    connect = min(settings.pop("socket_connect_timeout", _LONGEST_CONNECT), timeout)
    return {**settings, "socket_timeout": timeout, "socket_connect_timeout": connect, "protocol": 2}


def _tls(given: Mapping[str, str], client: Mapping[str, Any]) -> Tls:
    ca, folder, cert, key, password = (given.get(name, "") for name in ("ssl_ca_certs", "ssl_ca_path", *_OWN))
    return Tls(
        "ssl_ca_path" if folder and not ca else "ssl_ca_certs",
        ca=ca,
        folder=folder,
        own=_OWN,
        cert=cert,
        key=key,
        password=password,
        verify=given.get("ssl_cert_reqs") != "none",
        identity=client["ssl_check_hostname"],
    )


def _parse(url: ClientUrl) -> dict[str, Any]:
    parts = url.parts
    with suppress(ValueError, exceptions.RedisError):  # the original messages may quote the URL
        if re.fullmatch(r"/?\d*", parts.path, re.ASCII) and not parts.fragment and parts.port != 0:
            return dict(parse_url(parts._replace(query=urlencode(url.given)).geturl()))  # type: ignore[no-untyped-call]
    raise url.error(
        "cannot be parsed: write redis://user:password@host:port/0 (the last part is the number of the database), "
        "and special characters in the password as %XX"
    )
