"""How the history of a group is read on from poll to poll: all of it, in bounds, audited when it matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetkeeper import Ledger, OffsetRange, Position, TopicPartition, open_store
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.store import Store
from offsetkeeper.monitor import history as history_module
from offsetkeeper.monitor.history import NO_HISTORY, History, read_on
from offsetkeeper.operate.audit import Kind


class Reader:
    """Polls one group, and remembers as the collector does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.before = Snapshot("shop")
        self.history: History = NO_HISTORY

    def poll(self, at_s: float) -> History:
        """Poll at a time."""
        snapshot = self.store.load("shop")
        self.history = read_on(self.store, snapshot, self.before, self.history, round(at_s * 1000))
        self.before = snapshot
        return self.history


def run(store: Store, partitions: int) -> Ledger:
    """A run that holds the group."""
    ledger = Ledger(store, "shop")
    ledger.acquire()
    ledger.place({TopicPartition("orders", number): Position(0) for number in range(partitions)})
    return ledger


def commit(ledger: Ledger, times: int = 1) -> None:
    """Commit one offset of each partition, so many times."""
    for _ in range(times):
        at = ledger.snapshot.positions
        ledger.commit(ledger.batch([OffsetRange(*tp, p.offset, p.offset + 1) for tp, p in at.items()]))


def test_each_poll_has_all_there_is() -> None:
    store = open_store("memory://all")
    ledger = run(store, 1)
    reader = Reader(store)
    for times in (0, 1, 5, 100, 0, 900, 950, 990, 3):
        commit(ledger, times)
        assert list(reader.poll(0).entries) == list(store.history("shop", 1000))


def test_of_wide_groups_fewer_entries_are_kept() -> None:
    """What is kept has a hundred thousand ranges at the most."""
    store = open_store("memory://wide")
    ledger = run(store, 2_000)
    reader = Reader(store)
    for _ in range(3):
        commit(ledger, 20)
        entries = reader.poll(0).entries
        assert list(entries) == list(store.history("shop", len(entries)))
    assert len(entries) == 50


def test_plain_commits_are_audited_once_a_minute_and_in_the_end() -> None:
    store = open_store("memory://plain")
    ledger = run(store, 1)
    reader = Reader(store)
    assert reader.poll(100).audited == (2, 100_000)
    commit(ledger)
    assert reader.poll(130).audited == (2, 100_000)
    assert reader.poll(159).audited == (2, 100_000)
    assert reader.poll(160).audited == (3, 160_000)
    assert reader.poll(1000).audited == (3, 160_000)


def test_a_reset_is_audited_at_once() -> None:
    store = open_store("memory://moved")
    ledger = run(store, 1)
    commit(ledger)
    reader = Reader(store)
    assert reader.poll(100).findings == []
    commit(ledger)
    ledger.load()
    ledger.rewind({TopicPartition("orders", 0): Position(9)}, "skip", force=True)
    [gap] = reader.poll(101).findings
    assert (gap.kind, gap.start, gap.end) == (Kind.GAP, 2, 9)


def test_entries_of_far_more_ranges_than_partitions_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write in the store may give a group of one partition entries of a hundred thousand each."""
    store = open_store("memory://many-ranges")
    ledger = run(store, 1)
    commit(ledger, 300)
    asked: list[int] = []
    many = tuple(OffsetRange("orders", number, 0, 1) for number in range(100))
    whole = store.history

    def history(group: str, limit: int = 100) -> list[Entry]:
        asked.append(limit)
        return [replace(entry, ranges=many) for entry in whole(group, limit)]

    monkeypatch.setattr(store, "history", history)
    monkeypatch.setattr(history_module, "_MOST_RANGES", 1_000)
    assert len(Reader(store).poll(0).entries) == 10
    assert asked == [20]
    asked.clear()
    monkeypatch.setattr(history_module, "_MOST_RANGES", 1_000_000)
    reader = Reader(store)
    assert len(reader.poll(0).entries) == 302
    assert asked == [20, 160, 1000]
    monkeypatch.setattr(history_module, "_MOST_RANGES", 20_000)
    commit(ledger)
    assert len(reader.poll(0).entries) == 200
