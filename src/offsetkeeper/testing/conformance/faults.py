"""What holds for a store on a server whatever happens between the two, and for the transactions it lends.

Connections break: the store does not guess, and goes on with a new one. Servers end or freeze: acknowledged changes
stay, and no wait is endless.
"""
# ruff: noqa: S101, PLR2004 - asserting is what a suite does, and literal numbers are its examples

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, ClassVar

import pytest

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.core.retry import retry
from offsetkeeper.core.store import Ability
from offsetkeeper.errors import AlreadyCommitted, OutcomeUnknown, StoreUnavailable
from offsetkeeper.testing.conformance.concurrent import DisturbedConformance
from offsetkeeper.testing.conformance.late import LateConformance
from offsetkeeper.testing.conformance.medium import with_setting
from offsetkeeper.testing.conformance.served import GROUP, Requests, Stage, commit_of, run_with
from offsetkeeper.testing.conformance.transactions import TransactionConformance
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import Server, free_port, wait_until

_AT_ONCE_S = 15.0
_BATCHES = 10  # committed before the server ends, and after it is back
_ENDLESS_S = 50.0
_LIMIT_S = 240


class FaultConformance(LateConformance, DisturbedConformance):
    """For stores on a server, see `ServedMedium` for what to fill in.

    Lost requests and replies, servers that end or freeze, and after each error the same store goes on.
    """

    def test_a_change_cut_off_is_told_for_what_it_is(
        self, ledger: Ledger, proxy: TcpProxy, url: str, cut: Cut, asked: bytes
    ) -> None:
        """Not written, or unknown: the store neither guesses nor asks again. Then it goes on as if nothing had been."""
        change, stage = commit_of(ledger), dict(self.requests)[asked]
        with proxy.cut(cut, asked), pytest.raises(stage.told) if stage.told else nullcontext():
            ledger.store.apply(change)
        written = stage.written(cut)
        shown = 0 if self.copies and stage is not Stage.SAFE else 10
        assert self.stored(url) == ((shown, 3) if written else (0, 2))
        assert (ledger.store.load(GROUP) == change.after) == written
        ledger.commit(next_batch(ledger, 10))
        assert self.stored(url) == (10, 3)
        assert ledger.store.load(GROUP) == ledger.snapshot

    def test_a_commit_through_a_cut_is_made_exactly_once(
        self, ledger: Ledger, proxy: TcpProxy, url: str, cut: Cut, asked: bytes
    ) -> None:
        """Batch after batch, each through a connection that breaks."""
        for number in (1, 2, 3):
            with proxy.cut(cut, asked):
                ledger.commit(next_batch(ledger, 10))
            assert self.stored(url) == (number * 10, 2 + number)

    def test_a_load_through_a_cut_is_tried_again(self, ledger: Ledger, proxy: TcpProxy, cut: Cut, read: bytes) -> None:
        """By the ledger, not by the store."""
        with proxy.cut(cut, read), pytest.raises(StoreUnavailable):
            ledger.store.load(GROUP)
        with proxy.cut(cut, read):
            assert ledger.load().positions == {PARTITION: Position(0)}

    def test_a_store_that_is_away_for_a_while_is_waited_for(self, ledger: Ledger, proxy: TcpProxy, url: str) -> None:
        """First a kept connection is broken, then there is none to be had, then all is well again."""
        proxy.refuse()
        store, change = ledger.store, commit_of(ledger)
        for act in (lambda: store.load(GROUP), lambda: store.load(GROUP), lambda: store.apply(change)):
            with pytest.raises(StoreUnavailable) as caught:
                act()
        assert store.address in str(caught.value)
        back = threading.Timer(0.3, proxy.heal)
        back.start()
        ledger.commit(next_batch(ledger, 10))
        back.join()
        assert self.stored(url) == (10, 3)

    @pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"], ids=["closed port", "unknown host"])
    def test_a_server_that_is_not_there_is_told_at_once(self, url: str, server: Server, host: str) -> None:
        """And not when the time for an answer is over."""
        away = url.replace(f"127.0.0.1:{server.port}", f"{host}:{free_port()}")
        store = self.opener()(with_setting(away, "timeout=30"))

        def seconds() -> float:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.load(GROUP)
            assert store.address in str(caught.value)
            return time.monotonic() - began

        assert any(seconds() < _AT_ONCE_S for _ in range(3))  # this machine may be busy for a while
        store.close()

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
                assert len(kept) > _BATCHES
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
        enough, numbers = threading.Event(), list[int]()

        def work() -> None:
            while not enough.is_set():
                self.commit_batch(ledger, len(numbers))
                numbers.append(len(numbers))

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)

            def more() -> None:
                goal = len(numbers) + _BATCHES
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


class TransactionFaultConformance(FaultConformance, TransactionConformance):
    """For each `TransactionalStore` on a server.

    Attributes:
        statements: the requests of a transaction in their order, each with its purpose.
        broken: what the client library raises in a block whose connection is broken.
    """

    statements: ClassVar[Requests]
    broken: ClassVar[tuple[type[Exception], ...]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the tests with each of what the author named."""
        super().pytest_generate_tests(metafunc)
        run_with(metafunc, {"statement": dict(self.statements)})

    def commit_batch(self, ledger: Ledger, number: int) -> None:
        """Commit one batch of many, every other one with a row."""
        if number % 2:
            super().commit_batch(ledger, number)
            return
        batch = next_batch(ledger, 10)
        away: tuple[type[Exception], ...] = (StoreUnavailable, OutcomeUnknown, *self.broken)
        with suppress(AlreadyCommitted):
            retry(away, _LIMIT_S, lambda _: self._commit_row(ledger, batch, str(number)))

    def test_what_was_acknowledged_survives_the_server(
        self, server: Server, url: str, outage: Callable[[Any], object]
    ) -> None:
        """And with it the rows, each once."""
        super().test_what_was_acknowledged_survives_the_server(server, url, outage)
        committed = self.stored(url)[0] // 10
        assert sorted(map(int, self.read_rows(url))) == list(range(0, committed, 2))

    def test_a_transaction_cut_anywhere_is_whole_or_nothing(
        self, ledger: Ledger, proxy: TcpProxy, url: str, cut: Cut, statement: bytes
    ) -> None:
        """And the caller of the block learns which of the two it was."""
        self._commit_row(ledger, next_batch(ledger, 5), "first")  # makes the connection, which is not what is cut
        stage, batch = dict(self.statements)[statement], next_batch(ledger, 10)
        written = stage.written(cut)
        errors = () if written else self.broken if stage is Stage.BLOCK else (stage.told or StoreUnavailable,)
        with ExitStack() as all_of:
            all_of.enter_context(pytest.raises(errors)) if errors else None
            all_of.enter_context(proxy.cut(cut, statement))
            self._commit_row(ledger, batch, "second")
        assert (self.stored(url), len(self.read_rows(url))) == (((15, 4), 2) if written else ((5, 3), 1))
        if not written:
            self._commit_row(ledger, batch, "second")
        assert (self.stored(url), sorted(self.read_rows(url))) == ((15, 4), ["first", "second"])
        assert ledger.store.load(ledger.group) == ledger.snapshot

    def test_a_transaction_does_not_wait_endlessly_for_a_frozen_server(self, server: Server, url: str) -> None:
        """Neither at its end, nor when the block fails and must be rolled back."""
        with self.holding(with_setting(url, self.hurried)) as ledger:
            ledger._retry_timeout_s = 1  # noqa: SLF001 - only now: a busy server may be slow to get the group from
            began = time.monotonic()
            with ExitStack() as thaw, pytest.raises(StoreUnavailable), ledger.transaction(next_batch(ledger, 10)):
                thaw.enter_context(frozen(server))

            def fail(_: float) -> None:
                fails = pytest.raises(ZeroDivisionError)
                with ExitStack() as thaw, fails, ledger.transaction(next_batch(ledger, 10)):
                    thaw.enter_context(frozen(server))
                    raise ZeroDivisionError

            retry(StoreUnavailable, 45, fail)  # before the block, for that reason
            assert time.monotonic() - began < 50
            assert self.stored(url) == (0, 2)

    def _commit_row(self, ledger: Ledger, batch: Batch, row: str) -> None:
        with ledger.transaction(batch) as connection:
            self.row_writer(row)(connection)


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Freeze the server."""
    server.pause()
    try:
        yield
    finally:
        server.resume()
