"""What the author of a store on a server tells the suites of faults: how requests look, and what each of them does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, ClassVar

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import OutcomeUnknown, StoreError, StoreUnavailable
from offsetkeeper.testing.conformance.medium import Medium
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import Server

GROUP = "orders"
_PATIENCE_S = 240.0  # a server of several processes may take minutes to start on a busy machine


class Stage(Enum):
    """What a request is for, and so what is known when the connection breaks at it."""

    PREPARES = "nothing can have been written: StoreUnavailable"
    DECIDES = "it writes: OutcomeUnknown"
    CONFIRMS = "all is written, but this is not known yet: OutcomeUnknown"
    SAFE = "all is known to be written, or the client asks again by itself: no error"
    BLOCK = "it is a statement of a transaction's block, which gets the client library's own error"

    def written(self, cut: Cut) -> bool:
        """Whether a change is there after its connection was cut at this request."""
        return self in {Stage.CONFIRMS, Stage.SAFE} or (self is Stage.DECIDES and cut is not Cut.REQUEST)

    @property
    def told(self) -> type[StoreError] | None:
        """The error that a store raises where the connection breaks here."""
        return {Stage.PREPARES: StoreUnavailable, Stage.DECIDES: OutcomeUnknown, Stage.CONFIRMS: OutcomeUnknown}.get(
            self
        )


Requests = Sequence[tuple[bytes, Stage]]


def killed(server: Server) -> None:
    """Kill the server and start it again."""
    server.restart()


def stopped(server: Server) -> None:
    """Ask the server to end, and start it again."""
    server.stop()
    server.restart()


class ServedMedium(Medium):
    """For stores whose medium is a server, which is to be killed and frozen, and is reached through a proxy.

    Attributes:
        requests: the requests of `apply`, in their order: bytes that identify a request, and its purpose.
        reads: bytes that are in the requests of `load`.
        outages: what ends the server, or a part of it, and starts it again.
        deaths: how often that is done in the middle of commits.
        hurried: the setting with which no wait for an answer is longer than half a second or so.
        locking: those of the requests before which the ledger is locked on the server, so that other writers wait.
        copies: whether the rows are a copy, published by a request of its own after the one that decides.
    """

    requests: ClassVar[Requests]
    reads: ClassVar[Sequence[bytes]]
    outages: ClassVar[Sequence[Callable[[Any], object]]] = (killed, stopped)
    deaths: ClassVar[int] = 2
    hurried: ClassVar[str] = "timeout=0.5"
    locking: ClassVar[Collection[bytes]] = ()
    copies: ClassVar[bool] = False

    @pytest.fixture
    def server(self) -> Server:
        """Return the server, running; it is running again after the test."""
        raise NotImplementedError

    def read_version(self, url: str, group: str) -> int:
        """Return the version of the group's ledger; better, where it can be seen, as another program reads it."""
        store = self.opener()(url)
        version = Ledger(store, group, retry_timeout_s=_PATIENCE_S).load().version
        store.close()
        return version

    def through(self, url: str, server: Server, proxy: TcpProxy) -> str:
        """Return the URL of the same medium, reached through the proxy."""
        return url.replace(f":{server.port}", f":{proxy.port}")

    @pytest.fixture
    def proxy(self, server: Server) -> Iterator[TcpProxy]:
        """Return a proxy in front of the server."""
        with TcpProxy("127.0.0.1", server.port) as proxy:
            yield proxy

    @pytest.fixture
    def ledger(self, url: str, server: Server, proxy: TcpProxy) -> Iterator[Ledger]:
        """Return a ledger that holds the group, at offset 0, and reaches the server through the proxy."""
        with self.holding(self.through(url, server, proxy)) as ledger:
            yield ledger

    @contextmanager
    def holding(self, url: str, *, retry_timeout_s: float = _PATIENCE_S) -> Iterator[Ledger]:
        """Open a ledger that holds the group, at offset 0: its version is 2."""
        ledger = Ledger(self.opener()(url), GROUP, retry_timeout_s=retry_timeout_s)
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        try:
            yield ledger
        finally:
            ledger.store.close()

    def stored(self, url: str) -> tuple[int, int]:
        """Return the group's offset and version, as they are seen without proxy and store."""
        return self.read_positions(url, GROUP)[PARTITION], self.read_version(url, GROUP)

    def late_requests(self) -> Sequence[bytes]:
        """Return the bytes of the requests that may land late: those before anything is known to be written."""
        early = {Stage.PREPARES, Stage.DECIDES}
        return [containing for containing, stage in self.requests if containing and stage in early]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the tests with each of what the author named."""
        cases = {"cut": list(Cut), "outage": self.outages, "asked": dict(self.requests), "read": self.reads}
        run_with(metafunc, {**cases, "late": self.late_requests()})


def run_with(metafunc: pytest.Metafunc, cases: Mapping[str, Iterable[Any]]) -> None:
    """Run a test with each case of each of its arguments that has some."""
    for name, each in cases.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, each, ids=_name)


def _name(case: Cut | Callable[[Any], object] | bytes) -> str | None:
    if isinstance(case, Cut):
        return case.name.lower()
    return None if isinstance(case, bytes) else case.__name__


def commit_of(ledger: Ledger) -> Change:
    """Return the change that commits the next ten offsets; `ledger` makes the same one when it commits them."""
    return ledger._decide(rules.Commit(next_batch(ledger, 10).ranges))  # noqa: SLF001 - to see what the store does alone
