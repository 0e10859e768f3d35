"""What holds for every store when a group moves into it and out of it."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import secrets
from dataclasses import replace

from offsetkeeper.core.model import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Ability, Store
from offsetkeeper.operate.copy import copy
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.conformance.medium import Medium, ledger_of

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class CopyConformance(Medium):
    """Part of `StoreConformance`."""

    def test_a_group_moves_in_and_out_whole(self, store: Store, url: str) -> None:
        """Positions with their topic ids, the batch under way, generation and history are the same at the end."""
        first, last = (MemoryStore(f"memory://{secrets.token_hex(8)}") for _ in range(2))
        ledger = ledger_of(first)
        ledger.acquire("start")
        ledger.place({A: Position(0, "id a"), B: Position(7)})
        ledger.commit(ledger.batch([OffsetRange(*A, 0, 5)]))
        batch = ledger.batch([OffsetRange(*A, 5, 9), OffsetRange(*B, 7, 8)])
        ledger.begin(batch)
        ledger.mark(batch, "audit")
        ledger.release()
        copy("orders", first, store)
        assert self.read_positions(url, "orders") == {A: 5, B: 7}
        copy("orders", store, last)
        began, ended = (replace(each.load("orders"), version=0, change_id="") for each in (first, last))
        assert began == ended
        events = [entry.event for entry in last.history("orders", 100)][::-1]
        told = ["acquire", "place", "commit", "begin", "mark", "release", "copy"]
        assert events == ([*told, "copy"] if Ability.HISTORY in store.abilities else ["copy"])
