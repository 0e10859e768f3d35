"""What holds for a store on a server whatever happens between the two, and for the transactions it lends."""
# ruff: noqa: S101, PLR2004 - asserting is what a suite does, and literal numbers are its examples

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Batch
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import AlreadyCommitted, OutcomeUnknown, StoreUnavailable
from offsetkeeper.testing.conformance.cuts import CutConformance
from offsetkeeper.testing.conformance.medium import with_setting
from offsetkeeper.testing.conformance.outages import OutageConformance, frozen
from offsetkeeper.testing.conformance.served import Requests, Stage, run_with
from offsetkeeper.testing.conformance.transactions import TransactionConformance
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import next_batch
from offsetkeeper.testing.server import Server


class FaultConformance(CutConformance, OutageConformance):
    """For stores on a server, see `ServedMedium` for what to fill in.

    Lost requests and replies, servers that end or freeze, and after each error the same store goes on.
    """


class TransactionFaultConformance(FaultConformance, TransactionConformance):
    """For each `TransactionalStore` on a server.

    Attributes:
        statements: the requests of a transaction in their order, each with what it does.
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
        batch, deadline = next_batch(ledger, 10), time.monotonic() + 240
        away: tuple[type[Exception], ...] = (StoreUnavailable, OutcomeUnknown, *self.broken)
        while time.monotonic() < deadline:
            try:
                self._commit_row(ledger, batch, str(number))
            except away:
                continue
            except AlreadyCommitted:
                return
            return
        pytest.fail("the store stayed away")

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
        """And who runs the block is told which of the two it was."""
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
            ledger._patience_s = 1  # noqa: SLF001 - only now: a busy server may be slow to get the group from
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
