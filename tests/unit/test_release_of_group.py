"""The group is released at a run's end, whichever process has written last."""

from __future__ import annotations

import secrets

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.engines.loop import release
from offsetkeeper.stores.memory import MemoryStore

TP = TopicPartition("t", 0)


def acquired(store: MemoryStore) -> Ledger:
    """Return the ledger of a run that has a place."""
    ledger = Ledger(store, "g", retry_timeout_s=0)
    ledger.acquire("start")
    ledger.place({TP: Position(0)})
    return ledger


def test_what_another_process_of_the_run_has_committed_does_not_keep_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    ledger, worker = acquired(store), Ledger(store, "g", retry_timeout_s=0)
    worker.join(ledger.owner_id)
    batch = worker.batch([OffsetRange(*TP, 0, 5)])
    worker.begin(batch)
    worker.commit(batch)
    release(ledger, rejoin=True)
    found = store.load("g")
    assert (found.owner, found.positions[TP].offset, caplog.messages) == (None, 5, [])


def test_a_run_that_is_alone_asks_the_store_for_nothing_but_the_release() -> None:
    store = MemoryStore(f"memory://{secrets.token_hex(8)}")
    ledger = acquired(store)
    loads: list[str] = []
    before, store.load = store.load, lambda group: loads.append(group) or before(group)  # type: ignore[method-assign,func-returns-value]
    release(ledger)
    assert (loads, before("g").owner) == ([], None)
