"""What holds for a store on a server while connections break: it does not guess, and goes on with a new one."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import threading
import time
from contextlib import nullcontext

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Position
from offsetkeeper.errors import StoreUnavailable
from offsetkeeper.testing.conformance.medium import with_setting
from offsetkeeper.testing.conformance.served import GROUP, ServedMedium, commit_of
from offsetkeeper.testing.proxy import Cut, TcpProxy
from offsetkeeper.testing.rivals import PARTITION, next_batch
from offsetkeeper.testing.server import Server, free_port

_AT_ONCE_S = 7.0


class CutConformance(ServedMedium):
    """Part of `FaultConformance`."""

    def test_a_change_cut_off_is_told_for_what_it_is(
        self, ledger: Ledger, proxy: TcpProxy, url: str, cut: Cut, asked: bytes
    ) -> None:
        """Not written, or unknown: the store neither guesses nor asks again. Then it goes on as if nothing had been."""
        change, stage = commit_of(ledger), dict(self.requests)[asked]
        with proxy.cut(cut, asked), pytest.raises(stage.told) if stage.told else nullcontext():
            ledger.store.apply(change)
        written = stage.written(cut)
        assert self.stored(url) == ((0 if self.copies else 10, 3) if written else (0, 2))
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
        store = self.opener()(with_setting(away, "timeout=8"))

        def seconds() -> float:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                store.load(GROUP)
            assert store.address in str(caught.value)
            return time.monotonic() - began

        assert any(seconds() < _AT_ONCE_S for _ in range(3))  # this machine may be busy for a while
        store.close()
