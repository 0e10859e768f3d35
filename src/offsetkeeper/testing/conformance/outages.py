"""What holds for a store on a server that ends or freezes: what was acknowledged stays, and no wait is endless."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.store import Ability
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable
from offsetkeeper.testing.conformance.medium import with_setting
from offsetkeeper.testing.conformance.served import GROUP, ServedMedium, commit_of
from offsetkeeper.testing.rivals import next_batch
from offsetkeeper.testing.server import Server, wait_until

_AT_ONCE = 10  # batches committed before the server ends, and after it is back
_ENDLESS_S = 50.0
_LIMIT_S = 240


class OutageConformance(ServedMedium):
    """Part of `FaultConformance`."""

    def commit_batch(self, ledger: Ledger, number: int) -> None:
        """Commit one batch of many."""
        del number
        ledger.commit(next_batch(ledger, 10))

    def test_what_was_acknowledged_survives_the_server(
        self, server: Server, url: str, outage: Callable[[Any], object]
    ) -> None:
        """It ends in the middle of commits and is started again; the run goes on and nothing is lost or doubled."""
        with self.holding(url) as ledger:
            committed = self._commit_while(ledger, lambda: outage(server))
            last = ledger.snapshot
            assert ledger.load() == last
            if Ability.HISTORY in ledger.store.abilities:
                kept = [entry.version for entry in ledger.history(last.version)]
                assert len(kept) > _AT_ONCE
                assert kept == list(range(last.version, last.version - len(kept), -1))
        assert self.stored(url) == (committed * 10, committed + 2)

    def test_no_wait_is_endless_while_the_server_is_frozen(self, server: Server, url: str) -> None:
        """It keeps all connections open and says nothing. Afterwards the run goes on, with every change made once."""
        with self.holding(with_setting(url, self.hurried)) as ledger:
            change, (_, first) = commit_of(ledger), self.requests[0]
            with frozen(server):
                began = time.monotonic()
                with pytest.raises(first.told or (OutcomeUnknown, StoreUnavailable), match=r"[0-9.]+ s\b"):
                    ledger.store.apply(change)
                with pytest.raises(StoreUnavailable):
                    ledger.store.load(GROUP)
                assert time.monotonic() - began < _ENDLESS_S
            ledger.commit(next_batch(ledger, 10))
            wait_until(lambda: self.stored(url) == (10, 3), "what was given up on is done with", _ENDLESS_S)
            committed = ledger.snapshot
            assert ledger.load() == committed  # patiently: a busy server may take longer than this store waits

    def _commit_while(self, ledger: Ledger, happens: Callable[[], object]) -> int:
        """Commit batch after batch until all has happened `deaths` times; return how many were committed."""
        enough, numbers = Event(), list[int]()

        def work() -> None:
            while not enough.is_set():
                self.commit_batch(ledger, len(numbers))
                numbers.append(len(numbers))

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)

            def more() -> None:
                goal = len(numbers) + _AT_ONCE
                wait_until(lambda: len(numbers) >= goal or working.done(), "more batches are committed", _LIMIT_S)

            try:
                for _ in range(self.deaths):
                    more()
                    happens()
                more()
            finally:
                enough.set()
            working.result(_LIMIT_S)
        return len(numbers)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Freeze the server."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
