"""The judge finds what is wrong with rows, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.book import Batch, Book, Finding
from swarm.records import Program, Record, Row, Where

LOG = ("orders", "id", 0)
PROGRAM = Program(copies=2)


def book(**settings: str) -> tuple[Book, list[Row]]:
    """Return three records of which two are behind the position, and their rows."""
    found = Book(programs={1: PROGRAM}, reached={LOG: 2})
    found.open("o", settings.get("keeps", "exactly_once"))
    for number in range(3):
        found.add(Record(Where(*LOG, number), number, "key", f"value {number}"))
    return found, rows_of(found, 0, 1)


def rows_of(found: Book, *numbers: int, batch: str = "g/t/1") -> list[Row]:
    """Return the rows of records."""
    return [row._replace(id=batch) for n in numbers for row in PROGRAM.rows(found.records[n], "o")]


def kinds(findings: list[Finding]) -> list[str]:
    """Return what was found, in short."""
    return [finding.kind for finding in findings]


def test_rows_that_are_right_are_right() -> None:
    found, rows = book()
    assert found.judge("o", rows) == []


@pytest.mark.parametrize("keeps", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_lost_row_is_found(keeps: str) -> None:
    found, rows = book(keeps=keeps)
    assert kinds(found.judge("o", rows[:-1])) == ["lost"]
    assert kinds(found.judge("o", rows[:-2])) == ["lost"]


@pytest.mark.parametrize("keeps", ["exactly_once", "at_least_once", "at_most_once"])
def test_a_doubled_row_is_found(keeps: str) -> None:
    found, rows = book(keeps=keeps)
    assert kinds(found.judge("o", [*rows, rows[0]])) == ["doubled", "doubled"]
    assert kinds(found.judge("o", [*rows, *rows_of(found, 1, batch="g/t/2")])) == ["doubled"]


def test_a_changed_value_is_found() -> None:
    found, rows = book()
    assert kinds(found.judge("o", [rows[0]._replace(value="other"), *rows[1:]])) == ["changed"]
    assert kinds(found.judge("o", [*rows, rows[0]._replace(number=7)])) == ["changed"]


def test_a_record_that_was_not_read_yet_is_not_there() -> None:
    found, rows = book()
    early = [*rows, *rows_of(found, 2, batch="g/t/2")]
    assert kinds(found.judge("o", early)) == ["doubled"]
    found.pending = Batch("g/t/2", frozenset({Where(*LOG, 2)}))
    assert found.judge("o", early) == []


def test_a_record_of_an_aborted_transaction_is_nowhere() -> None:
    found, rows = book()
    found.records[1] = replace(found.records[1], aborted=True)
    assert kinds(found.judge("o", rows)) == ["changed"]


def test_after_a_disturbance_at_least_once_may_double_and_at_most_once_may_lose() -> None:
    for keeps, right in (("at_least_once", [0, 0, 1]), ("at_most_once", [0])):
        found, _ = book(keeps=keeps)
        found.disturbed = True
        several = [row for n, each in enumerate(right) for row in rows_of(found, each, batch=f"g/t/{n}")]
        assert found.judge("o", several) == []
        wrong = rows_of(found, 0) if keeps == "at_least_once" else [*several, *rows_of(found, 0, batch="g/t/9")]
        assert len(found.judge("o", wrong)) == 1


def test_what_a_reset_goes_back_to_comes_once_more() -> None:
    found, rows = book()
    found.reached[LOG] = 1
    found.begin("o", rows, lambda where: where.offset >= 1, Batch())
    assert found.judge("o", rows) == []
    found.reached[LOG] = 3
    assert kinds(found.judge("o", rows)) == ["lost"]
    again = [*rows, *rows_of(found, 1, 2, batch="g/t/2")]
    assert found.judge("o", again) == []
    assert kinds(found.judge("o", [*again, *rows_of(found, 0, batch="g/t/2")])) == ["doubled"]


def test_rows_of_a_batch_that_stays_pending_count_once() -> None:
    found, rows = book()
    landed = rows_of(found, 2, batch="g/t/2")
    found.pending = Batch("g/t/2", frozenset({Where(*LOG, 2)}))
    found.begin("o", [*rows, *landed], lambda where: where.offset >= 2, Batch())
    found.reached[LOG], found.pending = 3, Batch()
    assert found.judge("o", [*rows, *landed]) == []
    assert kinds(found.judge("o", rows)) == ["lost"]
    assert kinds(found.judge("o", [*rows, *landed, *rows_of(found, 2, batch="g/t/3")])) == ["doubled"]


def test_rows_that_somebody_deletes_are_not_missed_and_do_not_come_again() -> None:
    found, rows = book()
    found.forgive("o", rows[:2])
    assert found.judge("o", rows[2:]) == []
    assert kinds(found.judge("o", rows)) == ["doubled"]
