"""What holds for a store that lends its connection: rows and offsets are committed together, or neither is."""
# ruff: noqa: S101, PLR2004, PT012 - asserting is what a suite does, and literal numbers are its examples

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, cast

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import Position
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import Fenced, NotAllowed, VersionConflict
from offsetkeeper.testing.clock import no_waiting
from offsetkeeper.testing.conformance.medium import Medium, ledger_of, with_setting
from offsetkeeper.testing.faults import Fault, faulty, transact
from offsetkeeper.testing.rivals import PARTITION, next_batch

Writer = Callable[[str], Callable[[Any], object]]


class Failed(Exception):
    """Raised in a block."""


class TransactionConformance(Medium):
    """For each `TransactionalStore`."""

    def row_writer(self, row: str) -> Callable[[Any], object]:
        """Return what writes a row on a lent connection. It can be pickled: `operator.methodcaller` will do."""
        raise NotImplementedError

    def read_rows(self, url: str) -> Sequence[str]:
        """Return the rows that another program finds, in any order."""
        raise NotImplementedError

    def leave_open(self, connection: Any) -> Sequence[Any]:
        """Write the row "kept open" twice, leave a result unread, and return the cursors, which stay open."""
        raise NotImplementedError

    @pytest.fixture
    def ready(self, store: Store) -> Ledger:
        """Return a ledger that holds the group, at offset 0."""
        ledger = ledger_of(store)
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        return ledger

    def test_rows_and_offsets_are_committed_together(self, ready: Ledger, store: Store, url: str) -> None:
        """Twice, on what may be the same connection."""
        for number in (1, 2):
            with ready.transaction(next_batch(ready, 10)) as connection:
                self.row_writer(f"row {number}")(connection)
                assert len(self.read_rows(url)) == number - 1
            assert sorted(self.read_rows(url)) == [f"row {n}" for n in range(1, number + 1)]
            assert self.read_positions(url, "orders") == {PARTITION: number * 10}
            assert store.load("orders") == ready.snapshot

    def test_what_the_block_raises_comes_out_as_it_is_and_nothing_is_written(self, ready: Ledger, url: str) -> None:
        """And the same batch can be tried again."""
        failure = Failed("mine")
        with pytest.raises(Failed) as caught, ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("lost")(connection)
            raise failure
        assert caught.value is failure
        self._nothing_was_written(ready, url)
        with ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("kept")(connection)
        assert list(self.read_rows(url)) == ["kept"]

    @pytest.mark.parametrize("end", ["raises", "closes", "returns"])
    def test_a_block_that_leaves_cursors_open_holds_no_lock_afterwards(self, ready: Ledger, url: str, end: str) -> None:
        """Its function keeps them, as a traceback does: other groups go on at once, and so does its own."""
        kept: list[Any] = []
        stored = ["kept open", "kept open"] if end == "returns" else []
        failure = {"raises": pytest.raises(Failed), "closes": pytest.raises(Exception, match=r"(?i)transaction")}
        with failure.get(end, nullcontext()), ready.transaction(next_batch(ready, 10)) as connection:
            kept += self.leave_open(connection)
            if end == "raises":
                raise Failed
            if end == "closes":
                connection.close()
        assert list(self.read_rows(url)) == stored
        impatient = self.opener()(with_setting(url, "timeout=10"))
        other = Ledger(impatient, "others", retry_timeout_s=0)
        other.acquire()
        other.place({PARTITION: Position(0)})
        with other.transaction(next_batch(other, 10)) as connection:
            self.row_writer("of another group")(connection)
        impatient.close()
        ready.release()
        ready.acquire()
        with ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("later")(connection)
        assert sorted(self.read_rows(url)) == sorted([*stored, "of another group", "later"])
        assert self.read_positions(url, "orders") == {PARTITION: 20 if end == "returns" else 10}
        for cursor in kept:
            with suppress(Exception):  # of a connection that is closed
                cursor.close()

    def test_a_stale_change_is_refused_before_the_block_runs(self, ready: Ledger, store: Store, url: str) -> None:
        """Work that cannot be committed is not begun."""
        ledger_of(store).acquire()
        with pytest.raises(Fenced), ready.transaction(next_batch(ready, 10)):
            pytest.fail("the block ran")
        assert self.read_positions(url, "orders") == {PARTITION: 0}

    def test_an_edit_by_another_program_rolls_the_rows_back(self, ready: Ledger, url: str) -> None:
        """It is found at the latest when the offsets are written."""
        batch = next_batch(ready, 10)
        self.write_position(url, "orders", PARTITION, 3)
        with pytest.raises(VersionConflict), ready.transaction(batch) as connection:
            self.row_writer("lost")(connection)
        assert list(self.read_rows(url)) == []
        assert self.read_positions(url, "orders") == {PARTITION: 3}

    @pytest.mark.parametrize("end", ["commit", "rollback", "close"])
    def test_a_block_that_ends_the_transaction_itself_stores_nothing(self, ready: Ledger, url: str, end: str) -> None:
        """The client library refuses it, or the store finds out."""
        with pytest.raises(Exception, match=r"(?i)transaction"), ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("lost")(connection)
            getattr(connection, end)()
        self._nothing_was_written(ready, url)
        with ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("kept")(connection)
        assert list(self.read_rows(url)) == ["kept"]

    @pytest.mark.parametrize("statements", [["COMMIT"], ["ROLLBACK"], ["ROLLBACK", "BEGIN"], ["COMMIT", "BEGIN"]])
    def test_a_block_that_ends_the_transaction_by_sql_does_not_commit_the_offsets(
        self, ready: Ledger, store: Store, url: str, statements: list[str]
    ) -> None:
        """No library can refuse that; it is found out."""
        with pytest.raises(NotAllowed), ready.transaction(next_batch(ready, 10)) as connection:
            for statement in statements:
                connection.execute(statement)
        assert self.read_positions(url, "orders") == {PARTITION: 0}
        assert store.load("orders") == ready.snapshot
        with ready.transaction(next_batch(ready, 10)) as connection:
            self.row_writer("kept")(connection)
        assert (list(self.read_rows(url)), self.read_positions(url, "orders")) == (["kept"], {PARTITION: 10})

    def test_other_calls_go_on_while_a_block_runs(self, ready: Ledger, store: Store) -> None:
        """Even in the same thread; they do not see what is not committed."""
        with ready.transaction(next_batch(ready, 10)):
            assert store.load("orders").positions == {PARTITION: Position(0)}
            assert store.groups() == ["orders"]
        assert store.load("orders").positions == {PARTITION: Position(10)}

    def test_the_database_is_the_same_for_each_store_on_it(self, store: Store, url: str) -> None:
        """The identity tells whether a sink can share the transaction."""
        other = cast("TransactionalStore", self.opener()(with_setting(url, "history=7")))
        assert cast("TransactionalStore", store).identity() == other.identity()
        other.close()

    @pytest.mark.parametrize("fault", Fault)
    def test_a_fault_at_any_call_neither_loses_nor_doubles_rows(self, store: Store, url: str, fault: Fault) -> None:
        """The same run with its first call failing, then its second, and so on until none fails."""
        nth, fired, expected = 1, True, list[str]()
        while fired:
            group = f"fault-{nth}"
            expected += [f"{group} {start}" for start in (0, 10, 20)]
            fired = commit_rows(store, self.row_writer, group, fault, nth)
            assert sorted(self.read_rows(url)) == sorted(expected)
            assert self.read_positions(url, group) == {PARTITION: 30}
            nth += 1
        assert nth > 6

    def _nothing_was_written(self, ledger: Ledger, url: str) -> None:
        assert list(self.read_rows(url)) == []
        assert self.read_positions(url, "orders") == {PARTITION: 0}
        assert ledger.store.load("orders") == ledger.snapshot


def commit_rows(store: Store, writer: Writer, group: str, fault: Fault, nth: int) -> bool:
    """Commit three batches in transactions, the second with an intent; return whether the fault fired."""
    failing = faulty(store)
    failing.arm(fault, nth)
    ledger = ledger_of(failing, group)
    with no_waiting():
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        for start in (0, 10, 20):
            if start == 10:
                ledger.begin(next_batch(ledger, 10))
            transact(ledger, next_batch(ledger, 10), writer(f"{group} {start}"))
        ledger.release()
    assert store.load(group) == ledger.snapshot
    return failing.armed is None
