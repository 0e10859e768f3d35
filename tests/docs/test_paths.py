"""The design lists the files that one job passes; OFFSETKEEPER_WRITE_PATHS=1 writes the lists anew."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from types import CodeType, FrameType
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import offsetkeeper
from docs.pages import ROOT, hold
from engines.lab import QUICK, Lab
from offsetkeeper import Batch, Pipeline
from offsetkeeper.cli.main import app
from offsetkeeper.readers import streaming
from offsetkeeper.sinks import Table, postgresql
from offsetkeeper.testing.kafka import KafkaServer

PACKAGE = Path(offsetkeeper.__file__).parent
_FUNCTION = 0x1  # CO_OPTIMIZED: the body of a class or a module lacks it
READING = {Path(str(module.__file__)).relative_to(PACKAGE).as_posix() for module in streaming.READING}
STAGING = {Path(str(module.__file__)).relative_to(PACKAGE).as_posix() for module in postgresql._SHIPPED}
IN_TASKS = (READING | STAGING) - {"errors.py"}  # Spark's planner, beside the driver, passes no others


def check(job: str, files: set[str]) -> None:
    """Hold the list of a job's files in the design against those that it has passed."""
    rooms: dict[str, list[str]] = {}
    for name in sorted(files):
        room, slash, file = name.removesuffix(".py").rpartition("/")
        rooms.setdefault(f"{room}{slash}", []).append(file)
    listed = "; ".join(f"{room} {', '.join(names)}".strip() for room, names in rooms.items())
    text = fill(f"`{job}`, {len(files)} files: {listed}.", 120, break_on_hyphens=False)
    hold(ROOT / "docs" / "design.md", f"files of {job}", text, "OFFSETKEEPER_WRITE_PATHS")


def columns(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the columns of the table."""
    return frame.select("topic", "partition", "offset")


@contextmanager
def passed() -> Iterator[set[str]]:
    """Lend the set of the package's files of which a function is called meanwhile, in any thread."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    files: set[str] = set()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for code in codes:
            path = Path(code.co_filename)
            if code.co_flags & _FUNCTION and path.is_relative_to(PACKAGE):
                files.add(path.relative_to(PACKAGE).as_posix())
        files -= {name for name in files if name.startswith("testing/")}


@pytest.mark.parametrize("job", ["run", "start"])
def test_a_batch_into_a_table_of_postgresql_passes_the_files_that_the_design_lists(
    spark: SparkSession, kafka_server: KafkaServer, database: str, topic: Callable[..., str], tmp_path: Path, job: str
) -> None:
    lab, name = Lab(spark, kafka_server, database), topic(2)
    lab.produce(name, "a", "b")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('create table orders (topic text, partition int, "offset" bigint)')

    def work(group: str) -> None:
        settings: dict[str, Any] = {**QUICK, "group": group, "store": database, "brokers": kafka_server.bootstrap}
        pipeline = Pipeline(**settings, topics=[name])
        how: dict[str, Any] = {"sink": Table(database, "orders"), "guarantee": "exactly_once"}
        if job == "run":
            pipeline.run(spark, columns, until="caught_up", **how)
        else:
            how |= {"checkpoint": str(tmp_path / group), "trigger": {"availableNow": True}}
            pipeline.start(spark, columns, **how).awaitTermination()

    work("warm")
    with passed() as files:
        work("traced")
    check(f"Pipeline.{job}", files | IN_TASKS)


def test_the_lag_of_a_group_passes_the_files_that_the_design_lists(lab_with_lag: list[str]) -> None:
    runner = CliRunner()
    assert runner.invoke(app, lab_with_lag).exit_code == 0
    with passed() as files:
        assert runner.invoke(app, lab_with_lag).exit_code == 0
    files.discard("kafka/codes.py")  # runs only where a partition's end comes together with its last record
    check("offsetkeeper lag", files)


@pytest.fixture
def lab_with_lag(
    spark: SparkSession, kafka_server: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> list[str]:
    """A command that shows the lag of a group."""
    lab, name = Lab(spark, kafka_server, f"sqlite:///{tmp_path}/offsets.db"), topic(2)
    lab.produce(name, "a")
    assert lab.read(name) == ["a"]
    lab.produce(name, "b")
    return ["lag", "group", "--store", lab.store, "--brokers", kafka_server.bootstrap]
