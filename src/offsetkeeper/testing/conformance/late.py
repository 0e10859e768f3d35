"""What holds for a request of `apply` that lands late: it counts once, or, where anything changed before, not at all.

That is what a compare-and-set is for, and what the ledger relies on when it asks after a lost reply.
"""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from enum import Enum

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Entry
from offsetkeeper.core.offsets import Position
from offsetkeeper.core.store import Ability, Store
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.testing.conformance.medium import ledger_of, with_setting
from offsetkeeper.testing.conformance.served import GROUP, ServedMedium, Stage, commit_of
from offsetkeeper.testing.held import HeldRequest
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.rivals import PARTITION

_LIMIT_S = 60.0


class Meanwhile(Enum):
    """What another store, on a connection of its own, is asked while the request is on its way."""

    NOTHING = "nothing"
    SAME = "the same change, as one who got no answer sends it again"
    ANOTHER = "another change of the same ledger"


class LateConformance(ServedMedium):
    """For stores on a server: a request of `apply` is held on its way, and lands when much has happened."""

    @pytest.mark.parametrize("meanwhile", Meanwhile)
    def test_a_request_that_lands_when_its_sender_is_gone_counts_once_or_not_at_all(
        self, ledger: Ledger, proxy: TcpProxy, url: str, late: bytes, meanwhile: Meanwhile
    ) -> None:
        """It counts if it decides and no other was faster. The sender knows that it may count, or that it cannot."""
        change, entries, stage = commit_of(ledger), _entries(ledger.store), dict(self.requests)[late]
        with self._sent(ledger, proxy, url, late, change) as (rival, held, sent):
            proxy.refuse()
            held.abandon()
            with pytest.raises(stage.told or OutcomeUnknown):
                sent.result(_LIMIT_S)
            made = self._change(rival, change, late, meanwhile)
            held.land()
            counts = made or (None if stage is Stage.PREPARES else change)
            proxy.heal()
            self._found(ledger, rival, counts, entries)

    @pytest.mark.parametrize("meanwhile", [Meanwhile.SAME, Meanwhile.ANOTHER])
    def test_a_request_that_lands_while_its_sender_waits_is_refused_where_another_was_faster(
        self, ledger: Ledger, proxy: TcpProxy, url: str, late: bytes, meanwhile: Meanwhile
    ) -> None:
        """And the sender learns this, even if the other one made the same change."""
        change, entries = commit_of(ledger), _entries(ledger.store)
        with self._sent(ledger, proxy, url, late, change) as (rival, held, sent):
            made = self._change(rival, change, late, meanwhile)
            held.land()
            with pytest.raises(VersionConflict) if made else nullcontext():
                sent.result(_LIMIT_S)
            self._found(ledger, rival, made or change, entries)

    @contextmanager
    def _sent(
        self, ledger: Ledger, proxy: TcpProxy, url: str, late: bytes, change: Change
    ) -> Iterator[tuple[Store, HeldRequest, Future[None]]]:
        """Let a store apply a change until its request is held; yield another store, the request and the call."""
        with closing(self.opener()(with_setting(url, "timeout=2") if late in self.locking else url)) as rival:
            assert ledger_of(rival, GROUP).load() == change.before
            with ThreadPoolExecutor(1) as pool:
                held = proxy.keep_back(late)
                sent = pool.submit(ledger.store.apply, change)
                try:
                    held.wait()
                    yield rival, held, sent
                finally:
                    proxy.heal()
                    held.let_go()

    def _change(self, rival: Store, change: Change, late: bytes, meanwhile: Meanwhile) -> Change | None:
        """Return the change of the other store, if any: it times out if the sender has locked the ledger."""
        if meanwhile is Meanwhile.NOTHING:
            return None
        author = rules.Author("rival", "rival", 0, "of the rival")
        other = rules.decide(change.before, rules.Rewind({PARTITION: Position(7)}, force=True), author)
        wanted = change if meanwhile is Meanwhile.SAME else other
        if late in self.locking:
            with pytest.raises(StoreUnavailable):
                rival.apply(wanted)
            return None
        rival.apply(wanted)
        return wanted

    def _found(self, ledger: Ledger, rival: Store, made: Change | None, entries: list[Entry]) -> None:
        """Check that this change, and no other, was made since, as both stores see it."""
        snapshot = made.after if made else ledger.snapshot
        for store in (rival, ledger.store):
            assert ledger_of(store, GROUP).load() == snapshot
            if Ability.HISTORY in store.abilities:
                assert _entries(store) == ([made.entry, *entries] if made else entries)


def _entries(store: Store) -> list[Entry]:
    return list(store.history(GROUP))
