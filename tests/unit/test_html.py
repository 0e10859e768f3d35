"""What notebooks show of plans, batches, runs and lag: read back by a parser, so nothing in them can be markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from offsetkeeper import Batch, OffsetRange, Policies, Position, Summary, TopicPartition
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.html import html_table
from offsetkeeper.core.plan import FirstOffsets, plan
from offsetkeeper.operate.lag import measure

HOSTILE = "<script>alert('x')</script>&\"><img src=x onerror=y>"
"""No topic of Kafka is named so; a store that others write to may say anything."""
A, B, GONE = TopicPartition("orders", 0), TopicPartition(HOSTILE, 1), TopicPartition("orders", 7)
BOUNDS = {A: Bounds(0, 30, None), B: Bounds(5, 20, None)}
STORED = {A: Position(10), B: Position(2), GONE: Position(3)}


class Table(HTMLParser):
    """Reads a table: the caption and the text of each cell, by row; the names of all tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.caption = ""
        self._in = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Begin a row or a cell."""
        del attrs
        self.tags.add(tag)
        self._in = tag
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if self._in == "caption":
            self.caption += data
        else:
            self.rows[-1][-1] += data


def shown(value: Any) -> Table:
    """Read what a notebook shows."""
    table = Table(value._repr_html_())
    assert table.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    return table


def test_a_plan_begins_with_what_stops_the_run() -> None:
    table = shown(plan(f"g{HOSTILE}", STORED, BOUNDS, Policies(), FirstOffsets()))
    assert HOSTILE in table.caption.replace("\\'", "'")
    stopped, removed, resumed = table.rows[1:]
    assert stopped == [HOSTILE, "1", "below the beginning", "2", "5..20", "-", "3", "-", "-", "below_beginning=stop"]
    assert removed[:6] == ["orders", "7", "removed", "3", "gone", "-"]
    assert resumed == ["orders", "0", "resume", "10", "0..30", "10", "-", "-", "-", "store"]


def test_a_batch_has_its_ranges() -> None:
    table = shown(Batch("shop", "token", 7, (OffsetRange(HOSTILE, 1, 2, 12), OffsetRange("orders", 0, 0, 5))))
    assert table.caption == "batch shop/token/7, 15 offsets"
    assert table.rows[1:] == [[HOSTILE, "1", "2", "12", "10"], ["orders", "0", "0", "5", "5"]]


def test_a_summary_is_a_row() -> None:
    assert shown(Summary(3, 120, 1, "caught_up")).rows[1:] == [["3", "120", "1", "caught_up", ""]]


def test_lag_tells_of_each_partition_and_of_all() -> None:
    table = shown(measure(STORED, BOUNDS, 100_000, {A: 40_000}, estimated=[A]))
    assert table.caption == "35 records behind"
    assert table.rows[1:] == [
        [HOSTILE, "1", "2", "20", "15", "3", "-", "lost records"],
        ["orders", "0", "10", "30", "20", "-", "~1 min", ""],
        ["orders", "7", "3", "-", "-", "-", "-", "gone"],
    ]
    assert shown(measure({GONE: Position(3)}, {}, 0)).caption == "lag is not known"


@pytest.mark.parametrize(("count", "last"), [(20, "19"), (21, "… and 1 more"), (10_000, "… and 9980 more")])
def test_of_many_rows_the_first_twenty_are_shown(count: int, last: str) -> None:
    rows = Table(html_table("many", ["n"], [(n,) for n in range(count)])).rows
    assert rows[-1] == [last]
    assert len(rows) <= 22
