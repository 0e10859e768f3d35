"""What each output refuses is its record's fault: it goes to the dead letters, and all else into the output."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from engines.lab import Lab
from engines.misfits import LETTERS
from engines.refusals import KINDS, Refusing
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import RowMismatch, SinkError
from offsetkeeper.sinks import Table

NewTopic = Callable[..., str]
TOGETHER = pytest.mark.xdist_group("test_cassandra")


@pytest.fixture
def output(kind: str, lab: Lab, request: pytest.FixtureRequest, tmp_path: Path) -> Refusing:
    """An output of the kind."""
    return KINDS[kind](lab, request, tmp_path)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=TOGETHER if each == "Cassandra" else ()) for each in KINDS],
)
def test_each_record_that_an_output_refuses_is_in_the_dead_letters_and_all_others_in_the_output(
    lab: Lab, topic: NewTopic, output: Refusing, tmp_path: Path
) -> None:
    """Also the very first: before it goes, others were tried, and nothing of these trials stays."""

    def process(frame: DataFrame, _: Batch) -> DataFrame:
        return frame.selectExpr(*output.columns)

    source = topic(1)
    values = [value for each in output.wrong for value in (each, "good")]
    lab.produce(source, *values)
    bad = [offset for offset, value in enumerate(values) if value != "good"]
    with closing(sqlite3.connect(tmp_path / "letters.db")) as connection:
        connection.execute(LETTERS)
        letters = Table(f"sqlite:///{tmp_path}/letters.db", "letters")
        with pytest.raises(RowMismatch):
            lab.pipeline(source, attempts=1).run(lab.spark, process, sink=output.sink, until="caught_up")
        assert output.offsets() == []
        pipeline = lab.pipeline(source, attempts=1, policies=Policies(poison="quarantine"), dead_letters=letters)
        pipeline.run(lab.spark, process, sink=output.sink, guarantee="exactly_once", until="caught_up")
        found = connection.execute('select "offset", cast(value as text), error from letters order by 1').fetchall()
    assert [offset for offset, _, _ in found] == bad
    assert output.offsets() == [offset for offset, value in enumerate(values) if value == "good"]
    late = "violates foreign key constraint"  # it is put off until the commit, which is the store's
    assert all(error.startswith("RowMismatch: ") or late in error for _, _, error in found)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("PostgreSQL", "parent"),
        ("PostgreSQL, in the store's transaction", "parent"),
        ("Topic", "missing"),
        pytest.param("Cassandra", "empty", marks=TOGETHER),
        pytest.param("Cassandra", "huge", marks=TOGETHER),
        pytest.param("Cassandra", "uuid", marks=TOGETHER),
    ],
)
def test_a_program_of_which_the_output_refuses_every_row_quarantines_none(
    lab: Lab, topic: NewTopic, output: Refusing, wrong: str, tmp_path: Path
) -> None:
    """Also where a constraint is put off until the commit, which a trial never comes to."""

    def process(frame: DataFrame, _: Batch) -> DataFrame:
        return frame.withColumn("value", f.lit(wrong)).selectExpr(*output.columns)

    source = topic(1)
    lab.produce(source, *["good"] * 4)
    with closing(sqlite3.connect(tmp_path / "letters.db")) as connection:
        connection.execute(LETTERS)
        letters = Table(f"sqlite:///{tmp_path}/letters.db", "letters")
        pipeline = lab.pipeline(source, attempts=1, policies=Policies(poison="quarantine"), dead_letters=letters)
        with pytest.raises(SinkError) as told:
            pipeline.run(lab.spark, process, sink=output.sink, guarantee="exactly_once", until="caught_up")
        assert "this program has written no other record yet" in "".join(told.value.__notes__)
        assert connection.execute("select count(*) from letters").fetchall() == [(0,)]
    assert output.offsets() == []
