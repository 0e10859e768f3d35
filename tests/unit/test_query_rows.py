"""Ledgers that count the batches of queries as positions are read, and are written for older releases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from offsetkeeper.core.batch import Batch, QueryBatch
from offsetkeeper.core.codec import control_fields, empty, entry_fields, read_control, read_entry
from offsetkeeper.core.model import Count, Entry, Move, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.older_format import as_rows, entry_in_format, in_format
from offsetkeeper.errors import CorruptStore

QUERY = "0b1e2f3a-0000-4000-8000-000000000001"
ROW = TopicPartition(f"spark-query-{QUERY}", 0)
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
BATCH = Batch("g", "token", 7, (OffsetRange(*A, 5, 8),), query=QueryBatch(QUERY, 3))
LEDGER = Snapshot("g", 9, sequence=7, positions={A: Position(5)}, queries={QUERY: 3}, pending=BATCH)
OLDER: dict[str, Any] = {
    "format": 3,
    "owner": None,
    "epoch": 0,
    "generation": 0,
    "sequence": 7,
    "pending": {
        "token": "token",
        "ranges": {"a": [[0, 5, 8]], ROW.topic: [[0, 3, 4]]},
        "written": [],
        "lands_in": [],
        "program": None,
    },
    "change_id": "",
    "landed": {},
    "unsettled": None,
}
ROWS = {A: Position(5), ROW: Position(3)}


@pytest.mark.parametrize("number", [3, 4])
def test_an_older_ledger_is_read(number: int) -> None:
    """Early ledgers of format 4 have these rows too, and no `queries`."""
    assert read_control({**OLDER, "format": number}, "g", 9, ROWS, "here") == LEDGER


def test_rows_that_are_left_over_count_nothing_once_the_ledger_has_numbers() -> None:
    stored = json.loads(json.dumps(control_fields(LEDGER)))
    assert ROW.topic not in json.dumps(stored)
    assert read_control(stored, "g", 9, {**ROWS, ROW: Position(1)}, "here") == LEDGER


def test_a_row_that_an_older_ledger_names_and_the_store_has_lost_is_missing() -> None:
    raw = {**OLDER, "format": 4, "holds": {"a": "0", ROW.topic: "0"}}
    assert read_control(raw, "g", 9, {A: Position(5)}, "here").missing == {ROW}


def test_rows_without_a_ledger_are_read() -> None:
    assert empty("g", ROWS) == Snapshot("g", positions={A: Position(5)}, queries={QUERY: 3})


def test_an_older_release_gets_its_rows() -> None:
    assert control_fields(in_format(LEDGER, 3)) == OLDER
    assert in_format(LEDGER, 3).positions == ROWS
    assert as_rows(as_rows(LEDGER)) == as_rows(LEDGER)
    unsettled = replace(LEDGER, pending=None, unsettled=BATCH)
    found = read_control(control_fields(in_format(unsettled, 3)), "g", 9, ROWS, "here")
    every = tuple(sorted({r.topic_partition for r in BATCH.ranges}))
    assert found == replace(unsettled, unsettled=replace(BATCH, moved=every))  # that release does not say what moved


@pytest.mark.parametrize(
    "entry",
    [
        Entry(1, "place", "c", 1, "h", counts={QUERY: Count(None, 0)}),
        Entry(2, "rewind", "c", 1, "h", counts={QUERY: Count(3, 1)}),
        Entry(3, "commit", "c", 1, "h", ranges=BATCH.ranges, counts={QUERY: Count(3, 4)}),
        Entry(4, "commit", "c", 1, "h", counts={QUERY: Count(3, 4)}),
        Entry(5, "commit", "c", 1, "h", ranges=BATCH.ranges),
    ],
    ids=["place", "rewind", "commit", "no records", "no query"],
)
def test_a_history_entry_goes_to_an_older_release_and_back(entry: Entry) -> None:
    for written in (entry, entry_in_format(entry, 3)):
        raw = json.loads(json.dumps(entry_fields(written)))
        assert read_entry(raw, entry.version, "here") == entry
        assert ("counts" in raw) == (written is entry and bool(entry.counts))


def test_an_older_release_is_not_told_where_a_log_was_cut() -> None:
    entry = Entry(1, "place", "c", 1, "h", moves={A: Move(Position(9), Position(5))}, cuts={A: 5, B: -1})
    assert read_entry(json.loads(json.dumps(entry_fields(entry))), 1, "here") == entry
    assert entry_in_format(entry, 3) == replace(entry, cuts={})
    assert entry_in_format(replace(entry, mirror=True), 3) == replace(entry, cuts={})
    with pytest.raises(CorruptStore):
        read_entry(entry_fields(entry) | {"mirror": 1}, 1, "here")
    for wrong in ([["t", 0, -2]], [["t", 0, None]], [["t", -1, 5]], [[5]]):
        with pytest.raises(CorruptStore):
            read_entry(entry_fields(entry) | {"cuts": wrong}, 1, "here")
