"""What holds for a store that outlives its process: reopening, other processes, and garbage found in it."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from offsetkeeper.core import codec
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import CorruptStore
from offsetkeeper.testing.conformance.medium import Medium, ledger_of
from offsetkeeper.testing.conformance.transactions import TransactionConformance
from offsetkeeper.testing.rivals import PARTITION, next_batch, owner, racer, rival, writer


class DurableConformance(Medium):
    """For stores whose content other processes see."""

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """Return by name what spoils a stored group, one record each, so that it can be no ledger any more."""
        raise NotImplementedError

    def dump(self, url: str) -> object:
        """Return everything the medium holds, to be compared."""
        raise NotImplementedError

    def test_a_store_goes_on_where_it_was_closed(self, store: Store, url: str) -> None:
        """Another store, as after a restart, finds all of it; a closed store opens again by itself."""
        ledger = ledger_of(store)
        ledger.acquire()
        ledger.place({PARTITION: Position(3, "id")})
        store.close()
        again = self.opener()(url)
        assert again.load("orders") == ledger.snapshot
        assert list(again.history("orders")) == list(store.history("orders"))
        again.close()
        again.close()

    def test_garbage_is_told_and_left_as_it_is(self, store: Store, url: str) -> None:
        """The message names the group; neither reading nor acquiring changes anything."""
        names = list(self.spoilers(url, "any"))
        assert names
        for number, name in enumerate(names):
            group = f"spoiled {number}"
            ledger = ledger_of(store, group)
            ledger.acquire()
            ledger.place({PARTITION: Position(3)})
            self.spoilers(url, group)[name]()
            before = self.dump(url)
            with pytest.raises(CorruptStore, match=group) as caught:
                ledger_of(store, group).acquire()
            assert "correct or delete" in str(caught.value) or "upgrade" in str(caught.value), name
            assert self.dump(url) == before, name

    def test_a_ledger_of_the_next_format_is_refused_and_left_as_it_is(
        self, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A newer version has written it, whole and right; one that does not know its format must not touch it."""
        with monkeypatch.context() as newer:
            newer.setattr(codec, "FORMAT", codec.FORMAT + 1)
            ledger = ledger_of(store)
            ledger.acquire()
            ledger.place({PARTITION: Position(3, "id")})
            ledger.begin(next_batch(ledger, 10))
            assert store.load("orders") == ledger.snapshot
        before = self.dump(url)
        older = self.opener()(url)
        with pytest.raises(CorruptStore, match="newer offsetkeeper"):
            older.load("orders")
        with pytest.raises(CorruptStore, match="newer offsetkeeper"):
            ledger_of(older).acquire()
        older.close()
        assert self.dump(url) == before

    def test_of_racing_processes_exactly_one_wins_each_version(self, store: Store, url: str) -> None:
        """Each win adds one to the position, so a lost or doubled one would show."""
        rounds = 40
        arguments = (self.opener(), url, "orders", rounds)
        with rival(racer, *arguments) as one, rival(racer, *arguments) as two, rival(racer, *arguments) as three:
            racers = (one, two, three)
            assert [each.hear() for each in racers] == ["ready"] * 3
            for each in racers:
                each.go_on()
            won = sorted(version for each in racers for version in each.hear())
        assert won == list(range(1, rounds + 1))
        assert self.read_positions(url, "orders") == {PARTITION: rounds}
        assert store.load("orders").version == rounds

    def test_of_two_owners_in_two_processes_the_older_is_fenced(self, store: Store, url: str) -> None:
        """It finds out when it commits, and what the newer one committed stays."""
        with rival(owner, self.opener(), url, "orders") as older:
            assert older.hear() == "committed"
            newer = ledger_of(store)
            newer.acquire()
            newer.commit(newer.batch([OffsetRange(*PARTITION, 10, 15)]))
            older.go_on()
            assert older.hear() == "Fenced"
        assert store.load("orders") == newer.snapshot
        assert self.read_positions(url, "orders") == {PARTITION: 15}

    def test_a_process_killed_inside_a_transaction_leaves_nothing_half_done(self, store: Store, url: str) -> None:
        """The next owner finds the batch uncommitted and without rows, and commits it."""
        if not isinstance(self, TransactionConformance):
            assert not isinstance(store, TransactionalStore)
            return
        with rival(writer, self.opener(), url, "orders", self.row_writer("lost")) as victim:
            assert victim.hear() == "inside"
            victim.kill()
        ledger = ledger_of(store)
        ledger.acquire()
        assert list(self.read_rows(url)) == []
        with ledger.transaction(next_batch(ledger, 10)) as connection:
            self.row_writer("kept")(connection)
        assert list(self.read_rows(url)) == ["kept"]
        assert self.read_positions(url, "orders") == {PARTITION: 10}
