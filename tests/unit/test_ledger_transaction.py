"""Output and offsets in one transaction, on a store that lends its connection."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from offsetkeeper.clients.sqlite import Connection
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import (
    AlreadyCommitted,
    Fenced,
    OutcomeUnknown,
    RangeMismatch,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.stores.sqlite import SQLiteStore

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
START = {A: Position(10, "id"), B: Position(20, "id")}
RANGES = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 20, 22))
DONE = {A: Position(15, "id"), B: Position(22, "id")}


class LostReply(SQLiteStore):
    """A SQLite file whose next commits lose their reply, after or before they took effect."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.faults: tuple[str, ...] = ()
        commit = self._connections.commit

        def commit_and_lose(connection: Connection) -> None:
            fault, *rest = self.faults or ("",)
            self.faults = tuple(rest)
            if fault != "before":
                commit(connection)
            if fault:
                raise OutcomeUnknown("the connection broke")

        self._connections.commit = commit_and_lose  # type: ignore[method-assign]


@pytest.fixture
def database(tmp_path: Path) -> LostReply:
    return LostReply(f"sqlite:///{tmp_path}/offsets.db")


@pytest.fixture
def sharing(database: LostReply) -> Ledger:
    """A ledger in a database that also has a table of results."""
    ledger = Ledger(database, "g", retry_timeout_s=5, name="me")
    ledger.acquire()
    ledger.place(START)
    with sqlite3.connect(database.path) as connection:
        connection.execute("CREATE TABLE results (value INTEGER PRIMARY KEY)")
    connection.close()
    return ledger


def results(database: LostReply) -> list[int]:
    connection = sqlite3.connect(database.path)
    try:
        return [value for (value,) in connection.execute("SELECT value FROM results ORDER BY value")]
    finally:
        connection.close()


def process(ledger: Ledger, value: int = 1) -> None:
    with ledger.transaction(ledger.batch(RANGES)) as connection:
        connection.execute("INSERT INTO results VALUES (?)", (value,))


def stored(store: Store) -> Snapshot:
    return store.load("g")


def impatient(ledger: Ledger) -> None:
    ledger._retry_timeout_s = 0


def test_output_and_offsets_are_committed_together(database: LostReply, sharing: Ledger) -> None:
    process(sharing)
    assert results(database) == [1]
    assert dict(stored(database).positions) == DONE
    assert stored(database) == sharing.snapshot


def test_a_pending_batch_can_be_committed_with_its_output(database: LostReply, sharing: Ledger) -> None:
    batch = sharing.batch(RANGES)
    sharing.begin(batch)
    with sharing.transaction(batch) as connection:
        connection.execute("INSERT INTO results VALUES (1)")
    assert (stored(database).pending, stored(database).sequence) == (None, batch.sequence)


def test_an_error_in_the_block_undoes_both_and_comes_out_as_it_is(database: LostReply, sharing: Ledger) -> None:
    before = sharing.snapshot

    def fail(error: Exception) -> None:
        with sharing.transaction(sharing.batch(RANGES)) as connection:
            connection.execute("INSERT INTO results VALUES (1)")
            raise error

    for error in (ZeroDivisionError(), VersionConflict("of another ledger"), OutcomeUnknown("of another ledger")):
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error
    assert results(database) == []
    assert stored(database) == sharing.snapshot == before


def test_a_commit_whose_reply_was_lost_is_looked_up(database: LostReply, sharing: Ledger) -> None:
    database.faults = ("after",)
    process(sharing)
    assert results(database) == [1]
    assert stored(database) == sharing.snapshot


def test_a_lost_commit_that_is_not_stored_yet_is_in_doubt_and_can_be_tried_again(
    database: LostReply, sharing: Ledger
) -> None:
    """It may still be under way to the database, so one look cannot tell that it never will be."""
    database.faults = ("before",)
    with pytest.raises(
        OutcomeUnknown, match=r"is at version 2\. It is unknown whether its commit is or will be version 3"
    ):
        process(sharing)
    assert results(database) == []
    process(sharing)
    assert results(database) == [1]


class SlowToTell(LostReply):
    """A SQLite file that loses the reply, and whose reads then fail for a while: nothing can be looked up."""

    away = 0

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        if self.away:
            self.away -= 1
            raise StoreUnavailable("the store is away")
        return super().load(group)


def test_a_transaction_tried_again_after_it_landed_unseen_writes_nothing_twice(
    database: LostReply, sharing: Ledger
) -> None:
    slow = SlowToTell(f"sqlite:///{database.path}")
    sharing.store = slow
    impatient(sharing)
    slow.faults, slow.away = ("after",), 1
    with pytest.raises(OutcomeUnknown, match="it is unknown"):
        process(sharing)
    with pytest.raises(AlreadyCommitted, match=r"batch g/\w+/1 is already committed: continue with the next one"):
        process(sharing, value=2)
    assert results(database) == [1]
    assert stored(database) == sharing.snapshot
    with pytest.raises(RangeMismatch):
        process(sharing)


def test_a_run_taken_over_before_its_transaction_does_not_even_run_the_block(
    database: LostReply, sharing: Ledger
) -> None:
    Ledger(database, "g", name="rival").acquire()
    with pytest.raises(Fenced, match="taken over by rival"):
        process(sharing)
    assert results(database) == []


def test_nobody_can_take_over_in_the_midst_of_a_transaction(database: LostReply, sharing: Ledger) -> None:
    """The rival waits, or is told that the store is busy; both cannot commit."""
    rival = Ledger(SQLiteStore(f"sqlite:///{database.path}?timeout=0.1"), "g", retry_timeout_s=0)
    with sharing.transaction(sharing.batch(RANGES)) as connection:
        connection.execute("INSERT INTO results VALUES (1)")
        with pytest.raises(StoreUnavailable):
            rival.acquire()
    rival.acquire()
    assert dict(rival.snapshot.positions) == DONE
    assert results(database) == [1]


def test_wrong_ranges_are_refused_before_the_transaction_begins(database: LostReply, sharing: Ledger) -> None:
    with (
        pytest.raises(RangeMismatch),
        sharing.transaction(sharing.batch([OffsetRange("t", 0, 11, 12)])) as connection,
    ):
        connection.execute("INSERT INTO results VALUES (1)")
    assert results(database) == []
