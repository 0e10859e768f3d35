"""A server that sends a byte now and then holds no client: a call ends within about its timeout, with an error of ours.

The servers are fakes, as no real one answers so.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from monitor.test_monitor_webhook import SECRET, notice
from offsetkeeper.core.environment import using
from offsetkeeper.core.patience import LEAST, Patience
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, StoreUnavailable
from offsetkeeper.monitor.webhook import Webhook
from offsetkeeper.stores import open_store
from offsetkeeper.testing.clock import StillEnvironment
from stores.test_foreign_answers import CHANGE, Listener, http
from stores.test_senseless_answers import NOT_THERE, PACKET, TRUE, Telling, Web

TIMEOUT_S = 0.5
SOON_S = 3.0
PATIENT_S = 8.0  # of the server, so that a client that waits for it fails the test
EVERY_S = 0.05
BEGUN = b"begun: "
HEAD = b"HTTP/1.1 200 OK\r\nX: "
BODY = b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Type: application/json\r\nContent-Length: 500000\r\n\r\n"
S3 = f"s3://key:secret@bucket/x?endpoint_url=http://127.0.0.1:{{}}&region=us-east-1&timeout={TIMEOUT_S}"
WEBHDFS = f"webhdfs://u@127.0.0.1:{{}}/store?timeout={TIMEOUT_S}"
MYSQL = f"mysql://u:p@127.0.0.1:{{}}/shop?timeout={TIMEOUT_S}"
LIST = http(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>", "application/xml")
THERE = http(b"", "a/b", "307 Temporary Redirect", "Location: http://127.0.0.1:PORT/webhdfs/v1/x?op=WRITE")
PUT = http(b"", "a/b", "200 OK", 'ETag: "x"')
EXISTS = http(b"", "a/b", "412 Precondition Failed")


class Slow(socket.socket):
    """A server's end of a connection, which ends no message that has `BEGUN` in it: a byte comes at times."""

    over: threading.Event

    def sendall(self, data: Any, *_: Any) -> None:
        """Send it, or begin to."""
        parts = bytes(data).partition(BEGUN)
        mark = parts[1]
        super().sendall(parts[0])
        until = time.monotonic() + PATIENT_S
        while mark and not self.over.wait(EVERY_S) and time.monotonic() < until:
            super().sendall(b"1")
        if mark:
            self.shutdown(socket.SHUT_RDWR)


class _Slowly:
    """A `Listener` whose answers may have no end."""

    def __enter__(self) -> Self:
        self._over = threading.Event()
        return super().__enter__()  # type: ignore[misc, no-any-return]

    def __exit__(self, *left: object) -> None:
        self._over.set()
        super().__exit__(*left)  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        slow = Slow(client.family, client.type, client.proto, client.detach())
        slow.over = self._over
        with contextlib.suppress(OSError, ValueError):  # the second where a client looks whether this is TLS
            super()._serve(slow)  # type: ignore[misc]


class SlowWeb(_Slowly, Web):
    """See `Web`."""


class SlowMySQL(_Slowly, Telling):
    """See `Telling`."""


class SlowGreeting(_Slowly, Listener):
    """A MySQL that does not end its greeting."""


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """The block takes little longer than the timeout."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S


def gets(answer: bytes) -> SlowWeb:
    return SlowWeb({"GET": [answer], "GET LISTSTATUS": [answer]})


def puts(answer: bytes) -> SlowWeb:
    """Return a server of S3 whose answer to the first change is this one."""
    return SlowWeb({"GET": [LIST], "PUT": [PUT, EXISTS, answer]})


def renames(answer: bytes) -> SlowWeb:
    return SlowWeb(
        {
            "GET LISTSTATUS": [NOT_THERE],
            "PUT MKDIRS": [TRUE],
            "PUT CREATE": [THERE],
            "PUT WRITE": [http(b"", "a/b", "201 Created")],
            "PUT RENAME": [answer],
        }
    )


CHECKED = [b"\0\0\0\x0b\0\0\0", b"\0\1\0\3\0\0\0"]  # a transaction has begun, and a row was changed
LARGE = BEGUN + bytes(5000)


def mysql(word: bytes) -> SlowMySQL:
    """Return a server that does not end its answer to what has this word in it."""
    return SlowMySQL({word: [LARGE], b"@@max_allowed_packet": PACKET, b"START TRANSACTION": CHECKED})


def load(store: Any) -> object:
    return store.load("g")


def change(store: Any) -> object:
    return store.apply(CHANGE)


HELD: dict[str, tuple[str, Callable[[], Any], Callable[[Any], object], type[OffsetkeeperError]]] = {
    "s3, headers": (S3, lambda: gets(HEAD + BEGUN), load, StoreUnavailable),
    "s3, content": (S3, lambda: gets(BODY + BEGUN), load, StoreUnavailable),
    "s3, a change": (S3, lambda: puts(HEAD + BEGUN), change, OutcomeUnknown),
    "webhdfs, headers": (WEBHDFS, lambda: gets(HEAD + BEGUN), load, StoreUnavailable),
    "webhdfs, content": (WEBHDFS, lambda: gets(BODY + BEGUN), load, StoreUnavailable),
    "mysql, greeting": (MYSQL, lambda: SlowGreeting(b"\xff\xff\0\0" + BEGUN, more=False), load, StoreUnavailable),
    "mysql, rows": (MYSQL, lambda: mysql(b"@@global.read_only"), load, StoreUnavailable),
    "mysql, a change": (MYSQL, lambda: mysql(b";COMMIT"), change, OutcomeUnknown),
    "webhdfs, a change": (WEBHDFS, lambda: renames(HEAD + BEGUN), change, OutcomeUnknown),
}


@pytest.mark.parametrize("held", HELD)
def test_a_byte_now_and_then_holds_no_client(held: str) -> None:
    url, serve, ask, error = HELD[held]
    with serve() as server, soon():
        store: Any = open_store(url.format(server.port))
        store._ready = True  # MySQL's has no tables that could be looked at
        with pytest.raises(error, match=r"no answer came|cannot connect") as told:
            ask(store)
        assert type(told.value) is error
        store.close()


def test_a_byte_now_and_then_holds_no_webhook() -> None:
    with SlowWeb({"POST": [HEAD + BEGUN]}) as server, soon(), pytest.raises(OffsetkeeperError, match="no answer"):
        Webhook(f"http://127.0.0.1:{server.port}/{SECRET}", timeout_s=TIMEOUT_S)._post(notice(1))


def test_what_comes_steadily_may_take_longer_than_the_timeout_and_waits_in_between_do_not_count() -> None:
    """Else a long history would not come over a slow line, and a program could not work on rows while it reads."""
    clock = StillEnvironment()
    patience = Patience(2.0)

    def read(size: int) -> int:
        clock.wait(1.0)
        return size

    with using(clock):
        for _ in range(10):
            assert patience.read(read, LEAST) == LEAST
            clock.wait(60)
        assert patience.read(read, 100 * LEAST)  # it buys no longer wait for what follows
        assert [patience.read(read, 1) for _ in range(3)] == [1, 1, 1]
        with pytest.raises(TimeoutError):
            patience.read(read, 1)
        patience.begin(2.0)
        assert patience.read(read, 1)
