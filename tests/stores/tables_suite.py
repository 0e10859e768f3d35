"""What holds for each store that keeps a group in tables of a database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import CorruptStore, VersionConflict

A = TopicPartition("a", 0)


class Tables(NamedTuple):
    """A database of the test's own: a store in it by further parameters of its URL, and what a statement answers."""

    open: Callable[[str], Store]
    ask: Callable[[str], list[tuple[Any, ...]]]


def rewind(snapshot: Snapshot, offset: int) -> Change:
    """Return a change that sets the position."""
    return rules.decide(snapshot, rules.Rewind({A: Position(offset)}, force=True), rules.Author("me", "me", 0, "id"))


class TablesSuite:
    """The tests; a class has a fixture `tables`."""

    quote: ClassVar[str] = '"'
    theirs: ClassVar[str] = ""
    """A statement that makes a table of others, which lacks our column."""

    without_case: ClassVar[tuple[str, ...]] = ()
    """Statements that make a table of others whose columns ignore case."""

    def test_groups_that_a_collation_takes_for_one_are_not_mixed_up(self, tables: Tables) -> None:
        """A first run of `shop` took over what `Shop` had read, and wrote its row."""
        for statement in self.without_case:
            tables.ask(statement)
        with closing(tables.open("")) as store:
            store.apply(rewind(store.load("Shop"), 900))
            tables.ask("DELETE FROM offsetkeeper_groups")  # so that it is a group of others
            with suppress(CorruptStore):
                found = store.load("shop")
                assert found == Snapshot("shop")
                with suppress(VersionConflict):
                    store.apply(rewind(found, 1))
                assert store.load("shop").rows in ({}, {A: Position(1)})
            assert store.load("Shop") == Snapshot("Shop", positions={A: Position(900)})

    def test_a_group_whose_control_record_was_deleted_begins_anew(self, tables: Tables) -> None:
        """As a message about a spoilt one advises. The positions stay; the history is that of the new ledger."""
        with closing(tables.open("")) as store:
            for offset in (1, 2, 3):
                store.apply(rewind(store.load("g"), offset))
            tables.ask("DELETE FROM offsetkeeper_groups")
            assert store.load("g") == Snapshot("g", positions={A: Position(3)})
            assert [entry.version for entry in store.history("g")] == [3, 2, 1]  # by which verify tells what is gone
            change = rewind(store.load("g"), 4)
            store.apply(change)
            assert store.load("g") == change.after
            assert list(store.history("g")) == [change.entry]

    def test_many_that_start_at_once_make_the_tables_once(self, tables: Tables) -> None:
        """None of them fails."""
        many = 6
        start = threading.Barrier(many)
        if self.theirs:
            tables.ask(self.theirs)

        def run(_: int) -> Snapshot:
            with closing(tables.open("")) as store:
                start.wait(30)
                return store.load("g")

        with ThreadPoolExecutor(many) as pool:
            assert list(pool.map(run, range(many))) == [Snapshot("g")] * many

    @pytest.mark.parametrize(
        "table", ["my offsets", 'quo"te', "back`tick", "x; DROP TABLE y", "{offsets}", "tabelle_für_alles", "?"]
    )
    def test_a_table_may_have_any_name(self, tables: Tables, table: str) -> None:
        """Its companions are named after it, so that two tables in one database do not meet."""
        with closing(tables.open(f"table={quote(table)}")) as named, closing(tables.open("")) as plain:
            named.apply(rewind(Snapshot("g"), 1))
            assert plain.load("g") == Snapshot("g")
            plain.apply(rewind(Snapshot("g"), 2))
            assert named.load("g").positions == {A: Position(1)}
            assert (list(named.groups()), len(named.history("g"))) == (["g"], 1)
        quoted = self.quote + table.replace(self.quote, self.quote * 2) + self.quote
        assert [*map(tuple, tables.ask(f"SELECT group_id, topic FROM {quoted}"))] == [("g", "a")]  # noqa: S608 - quoted
