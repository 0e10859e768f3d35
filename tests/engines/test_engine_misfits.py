"""A frame that does not fit its output is the program's fault: no record of it goes into the dead letters.

A value that the output cannot hold is its record's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from engines.misfits import KINDS, LETTERS, PLACE, Output
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import RowMismatch, SinkMismatch
from offsetkeeper.sinks import Table, Transaction

NewTopic = Callable[..., str]
STARTS = 5
FUSSY = ("SQLite", "MySQL", "Topic", "DeltaTable", "Cassandra")
"""Outputs that refuse values by themselves."""

KEEPERS = ("SQLite", "PostgreSQL", "PostgreSQL, in the store's transaction", "MySQL", "Files", "DeltaTable")
"""Outputs whose table has the columns of `PLACE`, and a text `item`."""


def named(*kinds: str) -> list[Any]:
    """Return the kinds as parameters; the tests of one server run together."""
    together = pytest.mark.xdist_group("test_cassandra")
    return [pytest.param(kind, marks=together if kind == "Cassandra" else ()) for kind in kinds]


@pytest.fixture
def letters(tmp_path: Path) -> str:
    """URL of the database that has the dead letters."""
    with closing(sqlite3.connect(tmp_path / "letters.db")) as connection:
        connection.execute(LETTERS)
    return f"sqlite:///{tmp_path}/letters.db"


@pytest.fixture
def output(kind: str, lab: Lab, request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """An output of the kind."""
    return KINDS[kind](lab, request, tmp_path)


def offsets_in(letters: str) -> list[int]:
    with closing(sqlite3.connect(letters.removeprefix("sqlite:///"))) as connection:
        return [offset for (offset,) in connection.execute('select "offset" from letters order by 1')]


def values_in(letters: str) -> list[tuple[int, bytes]]:
    with closing(sqlite3.connect(letters.removeprefix("sqlite:///"))) as connection:
        return connection.execute('select "offset", value from letters order by 1').fetchall()


def run(lab: Lab, source: str, output: Output, letters: str, columns: Sequence[str]) -> None:
    """Start a program that makes these columns, and let it catch up."""

    def process(frame: DataFrame, _: Batch) -> DataFrame:
        return frame.selectExpr(*columns)

    pipeline = lab.pipeline(
        source, attempts=1, policies=Policies(poison="quarantine"), dead_letters=Table(letters, "letters")
    )
    if callable(output.sink):
        sink: Any = lambda frame, batch: output.sink(process(frame, batch), batch)  # noqa: E731 - a function as output
        pipeline.run(lab.spark, sink, guarantee=output.guarantee, until="caught_up")
    else:
        pipeline.run(lab.spark, process, sink=output.sink, guarantee=output.guarantee, until="caught_up")


@pytest.mark.parametrize("kind", named(*KINDS))
def test_a_new_program_whose_frame_does_not_fit_quarantines_no_record(
    lab: Lab, topic: NewTopic, output: Output, letters: str
) -> None:
    """However often a supervisor starts it. The program before, or a mended one, then writes all records."""
    source = topic()
    lab.produce(source, *map(str, range(3)))
    run(lab, source, output, letters, output.fits)
    lab.produce(source, *map(str, range(10)))
    for number in range(STARTS):
        with pytest.raises(SinkMismatch):
            run(lab, source, output, letters, output.misfits[number % len(output.misfits)])
        assert (output.rows(), offsets_in(letters)) == (3, [])
    run(lab, source, output, letters, output.fits)
    assert (output.rows(), offsets_in(letters)) == (13, [])


@pytest.mark.parametrize("kind", named(*FUSSY))
def test_a_value_that_the_output_cannot_hold_puts_its_record_into_the_dead_letters(
    lab: Lab, topic: NewTopic, output: Output, letters: str
) -> None:
    assert output.value is not None
    source = topic()
    lab.produce(source, "0", "1", "bad", "3", "4")
    run(lab, source, output, letters, output.value)
    assert (output.rows(), offsets_in(letters)) == (4, [2])


NO_TEXT = b"caf\xe9"
ITEM = "string(value) as item"
TEXTS = {
    **dict.fromkeys(KEEPERS, (*PLACE, ITEM)),
    "Cassandra": (*PLACE, "partition as part", "offset as place", ITEM),
}
"""Frames with a text that Spark does not check, by kind of output."""


@pytest.mark.parametrize("kind", named(*TEXTS))
def test_a_text_that_is_not_utf_8_is_its_record_s_fault_in_every_output(
    lab: Lab, topic: NewTopic, kind: str, output: Output, letters: str
) -> None:
    """The error names the record and the user's column, and the dead letter has the bytes as they were."""
    source = topic()
    lab.produce(source, "0", "é", NO_TEXT, "3", "4")
    frame = TEXTS[kind]
    with pytest.raises(RowMismatch, match=rf"{source} 0 offset 2: column item\b.*not UTF-8, (b'caf|X'636166E9)"):
        lab.pipeline(source, attempts=1).run(
            lab.spark, lambda given, _: given.selectExpr(*frame), sink=output.sink, until="caught_up"
        )
    assert output.rows() == 0
    run(lab, source, output, letters, frame)
    assert (output.rows(), values_in(letters)) == (4, [(2, NO_TEXT)])
    if kind == "DeltaTable":
        table = deltalake.DeltaTable(output.sink.writes_to)
        table.optimize.compact()
        assert sorted(table.to_pandas()["item"]) == ["0", "3", "4", "é"]


def by_function(columns: Sequence[str]) -> tuple[Any, str]:
    """Return a function that writes by itself, and has a mistake in what it selects."""

    def write(frame: DataFrame, _: Batch) -> None:
        frame.select(*columns).write.format("noop").mode("overwrite").save()

    return write, "at_least_once"


def in_transaction(columns: Sequence[str]) -> tuple[Any, str]:
    """Return a function on the store's connection, with a mistake in its SQL."""

    def insert(frame: DataFrame, _: Batch, connection: Any) -> None:
        listed = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        rows = [tuple(row) for row in frame.select("topic", "partition", "offset").collect()]
        connection.executemany(f"insert into orders ({listed}) values ({marks})", rows)  # noqa: S608 - the test's own

    return Transaction(insert), "exactly_once"


@pytest.mark.parametrize(
    ("made", "note"), [(by_function, "it also fails without records"), (in_transaction, "in batch ")]
)
def test_a_function_that_fails_without_records_too_quarantines_none(
    lab: Lab, topic: NewTopic, letters: str, made: Callable[..., tuple[Any, str]], note: str
) -> None:
    """However often it is started. What a database says of a column needs no other try."""
    KINDS["SQLite"](lab, None, None)  # type: ignore[arg-type]  # it asks for neither
    source = topic()
    lab.produce(source, *map(str, range(10)))
    pipeline = lab.pipeline(
        source, attempts=1, policies=Policies(poison="quarantine"), dead_letters=Table(letters, "letters")
    )
    sink, guarantee = made(["topic", "partition", "place"])
    for _ in range(STARTS):
        with pytest.raises(Exception, match="place") as told:
            pipeline.run(lab.spark, sink=sink, guarantee=guarantee, until="caught_up")
        assert note in "".join(told.value.__notes__)
        assert offsets_in(letters) == []
