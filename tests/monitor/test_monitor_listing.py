"""Which groups the page lists, and in which order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from monitor.gallery import group, view
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.monitor.listing import COLUMNS, UNREADABLE, Asked, counted, listing
from offsetkeeper.monitor.view import GroupSample
from offsetkeeper.operate.lag import Speed

GROUPS = {
    each.snapshot.group: each
    for each in (
        group("calm", [0], owner="b:1"),
        group("halted", [7], 400),
        group("Halted-too", [900], 5),
        group("spoilt", [3], error="no control record"),
        group("beyond", [0], bounds={0: Bounds(0, 5, "id")}),
    )
}


def listed(**query: str) -> list[str]:
    """The names of those that an address asks for."""
    return [row.name for row in listing(GROUPS, Asked.of(query)).rows]


def test_the_worst_is_the_first() -> None:
    assert listed() == ["spoilt", "beyond", "Halted-too", "halted", "calm"]


def test_a_part_of_the_name_is_enough() -> None:
    assert listed(search=" halt ") == ["Halted-too", "halted"]
    assert listed(search="nothing") == []


def test_counts_are_filters() -> None:
    found = listing(GROUPS, Asked())
    assert list(found.counts.items()) == [(UNREADABLE, 1), ("refused", 1), ("stopped", 2), ("ok", 1)]
    for word, count in found.counts.items():
        assert len(listed(status=word)) == count


def test_counts_are_of_what_the_search_leaves_over_and_the_chosen_one_stays() -> None:
    found = listing(GROUPS, Asked.of({"search": "halt", "status": "ok"}))
    assert (dict(found.counts), found.rows, found.every) == ({"stopped": 2, "ok": 0}, [], 5)


def test_what_is_not_known_comes_last_in_either_order() -> None:
    assert listed(sort="waiting") == ["Halted-too", "halted", "spoilt", "calm", "beyond"]
    assert listed(sort="-waiting") == ["calm", "spoilt", "halted", "Halted-too", "beyond"]
    assert listed(sort="held")[0] == "calm"


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.key)
def test_the_list_can_be_sorted_by_each_column(column: object) -> None:
    key = next(each.key for each in COLUMNS if each is column)
    assert sorted(listed(sort=key)) == sorted(listed(sort=f"-{key}")) == sorted(GROUPS)


def test_a_click_on_the_head_of_a_column_sorts_and_another_turns_it_round() -> None:
    waiting = next(column for column in COLUMNS if column.key == "waiting")
    once = Asked.of({"search": "a b&c"}).turned(waiting)
    assert (once.address, once.order.direction(waiting)) == ("/?search=a%20b%26c&sort=waiting", "descending")
    assert once.turned(waiting).address == "/?search=a%20b%26c&sort=-waiting"
    assert once.turned(waiting).order.direction(waiting) == "ascending"
    assert Asked.of({"sort": "-no column"}) == Asked()
    assert Asked().address == "/"


def test_alarms_are_counted_by_rule() -> None:
    found = view(alarms=[("down", "a"), ("far", "a"), ("far", "b")]).alarms
    assert counted(found) == [("far", 2), ("down", 1)]


def with_speed(processed: float | None, produced: float | None, waiting: int = 7, owner: str = "host:1") -> GroupSample:
    """A group that reads and grows so fast."""
    sample = group("shop", [waiting], owner=owner)
    assert sample.total is not None
    return replace(sample, total=replace(sample.total, speed=Speed(processed, produced)))


def test_a_group_that_never_catches_up_is_not_one_of_which_nothing_is_known() -> None:
    assert with_speed(2.0, 2.0).time_to_catch_up_s == math.inf
    assert with_speed(9.0, 2.0).time_to_catch_up_s == 1
    assert with_speed(9.0, 2.0, owner="").time_to_catch_up_s is None  # nobody reads
    assert with_speed(None, 2.0).time_to_catch_up_s is None
    assert with_speed(2.0, None).time_to_catch_up_s is None
    assert with_speed(None, None, waiting=0).time_to_catch_up_s == 0
    assert GroupSample(0, group("shop").snapshot).time_to_catch_up_s is None


def test_a_group_without_a_commit_is_not_one_whose_history_was_pruned() -> None:
    fresh = group("shop", commits=0)
    pruned = replace(fresh, history=fresh.history._replace(entries=[replace(fresh.entries[0], version=77)]))
    assert fresh.never_committed
    assert not pruned.never_committed
    assert not group("shop", commits=1).never_committed


def test_an_address_of_any_length_asks_for_a_short_text() -> None:
    asked = Asked.of({"search": "x" * 10_000, "status": "y" * 10_000})
    assert len(asked.text) == len(asked.word) == 300
