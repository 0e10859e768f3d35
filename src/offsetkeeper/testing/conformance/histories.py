"""What holds for a store that keeps an entry for each change."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from offsetkeeper.core.model import Change
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.testing import strategies
from offsetkeeper.testing.conformance.medium import THOROUGH, Medium, ledger_of, with_setting

A = TopicPartition("a", 0)


class HistoryConformance(Medium):
    """For stores with `Ability.HISTORY`; their URL takes `?history=`, the number of entries kept."""

    @settings(
        max_examples=15 * THOROUGH,
        deadline=None,
        suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.differing_executors),
    )
    @given(history=strategies.histories())
    def test_every_entry_comes_back_as_it_was_newest_first(self, store: Store, history: list[Change]) -> None:
        """Every field of every entry survives."""
        for change in history:
            store.apply(change)
        found = list(store.history(history[0].before.group))
        assert found == [change.entry for change in reversed(history)]

    def test_the_limit_cuts_off_the_oldest(self, store: Store) -> None:
        """And there may be fewer than asked for."""
        commit_batches(store, "orders", 5)
        newest = [entry.version for entry in store.history("orders", 3)]
        assert newest == [7, 6, 5]
        assert list(store.history("orders", 0)) == []
        assert [entry.version for entry in store.history("orders", 1000)] == [7, 6, 5, 4, 3, 2, 1]

    def test_only_so_many_entries_are_kept_of_each_group(self, url: str) -> None:
        """The oldest go, in the step that adds a new one; other groups keep theirs."""
        store = self.opener()(with_setting(url, "history=3"))
        commit_batches(store, "payments", 0)
        commit_batches(store, "orders", 5)
        assert [entry.version for entry in store.history("orders", 1000)] == [7, 6, 5]
        assert [entry.version for entry in store.history("payments", 1000)] == [2, 1]
        store.close()

    def test_entries_tell_who_what_and_why(self, store: Store) -> None:
        """A commit names its ranges, a rewind its moves and its reason."""
        commit_batches(store, "orders", 1)
        ledger = ledger_of(store)
        generation = ledger.load().generation
        ledger.rewind({A: Position(3)}, "a bad release", force=True)
        rewind, commit = store.history("orders", 2)
        assert (commit.event, commit.ranges, dict(commit.moves)) == ("commit", (OffsetRange(*A, 0, 10),), {})
        assert (rewind.event, rewind.reason, rewind.generation) == ("rewind", "a bad release", generation + 1)
        assert {tp: (m.before, m.after) for tp, m in rewind.moves.items()} == {A: (Position(10), Position(3))}


def commit_batches(store: Store, group: str, commits: int) -> None:
    """Write 2 + `commits` changes."""
    ledger = ledger_of(store, group)
    ledger.acquire()
    ledger.place({A: Position(0)})
    for number in range(commits):
        ledger.commit(ledger.batch([OffsetRange(*A, number * 10, number * 10 + 10)]))
