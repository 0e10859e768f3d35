"""Spark itself dies under a driver: it is told, nothing is lost, and the next run finishes the rest."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines import cut_collect, orphan
from engines.lab import LIMIT_S, QUICK, Lab
from engines.test_engine_processes import SESSION
from offsetkeeper import Batch
from offsetkeeper.sinks import Table
from offsetkeeper.testing.java import java
from structured.lab import started

NewTopic = Callable[..., str]
GONE = "Spark is gone: its JVM at 127.0.0.1:"


class Orphan:
    """A run of `orphan.py` whose JVM is killed in the second batch.

    Attributes:
        answers: the errors it got, in turn.
    """

    def __init__(self, lab: Lab, topic: str, how: str, checkpoint: Path) -> None:
        pipeline = {**QUICK, "store": lab.store, "brokers": lab.kafka.bootstrap, "topics": [topic], "max_records": 3}
        settings = {"pipeline": pipeline, "spark": SESSION, "checkpoint": str(checkpoint), "how": how}
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
        command = [sys.executable, orphan.__file__, json.dumps(settings)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, process_group=0
        ) as process:
            assert process.stdout
            try:
                line = process.stdout.readline()
                assert line.strip().isdigit(), line
                os.kill(int(line), signal.SIGKILL)
                told, _ = process.communicate("go\n", timeout=LIMIT_S)
            finally:
                process.kill()  # its JVM ends with it
        self.answers: list[dict[str, Any]] = [json.loads(line) for line in told.splitlines()]


@pytest.fixture
def shop(lab: Lab) -> Lab:
    """A lab whose store is in a file beside a table `orders`."""
    sql(lab, 'create table orders (partition int, "offset" int, value text)')
    return lab


def cut(lab: Lab, topic: str, how: str) -> list[str]:
    """Return the lines of a run of `cut_collect.py`."""
    pipeline = {**QUICK, "store": lab.store, "brokers": lab.kafka.bootstrap, "topics": [topic]}
    settings = json.dumps({"pipeline": pipeline, "spark": SESSION, "how": how})
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java().resolve().parent.parent)}
    done = subprocess.run(
        [sys.executable, "-m", cut_collect.__name__, settings],
        cwd=Path(cut_collect.__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout.splitlines()


def sql(lab: Lab, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement in the store's file."""
    with closing(sqlite3.connect(lab.store.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


def orders(lab: Lab) -> list[str]:
    """Return the values in the table."""
    return [value for (value,) in sql(lab, "select value from orders order by value")]


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the table's columns."""
    return frame.selectExpr(*orphan.COLUMNS)


@pytest.mark.parametrize("how", ["run", "start"])
def test_a_jvm_that_dies_in_a_batch_is_told_and_loses_nothing(
    shop: Lab, topic: NewTopic, tmp_path: Path, how: str
) -> None:
    """At once, not after two more tries; whatever is asked of it afterwards; and the group is given back."""
    name = topic(2)
    shop.produce_all(name, [(n % 2, str(n)) for n in range(8)])
    answers = started(lambda: Orphan(shop, name, how, tmp_path / "checkpoint")).answers
    assert [(each["error"], each["message"][: len(GONE)]) for each in answers] == [("SparkGone", GONE)] * len(answers)
    assert len(answers) == {"run": 2, "start": 3}[how]
    assert "Committed batches stay committed" in answers[0]["message"]
    if how == "run":
        assert "attempt 1, ranges:" in answers[0]["notes"][0]
    first = orders(shop)
    assert len(first) == 3
    assert sum(shop.offsets().values()) == 3
    assert (shop.snapshot().owner, shop.events()[-1]) == (None, "release")

    pending = shop.snapshot().pending  # of the query whose function writes by itself
    assert (pending is not None) == (how == "start")
    batches: list[Batch] = []

    def note(frame: DataFrame, batch: Batch) -> DataFrame:
        batches.append(batch)
        return parse(frame, batch)

    # The same group, by Pipeline.run in each case: the ledger alone says what is left.
    shop.pipeline(name).run(
        shop.spark, note, sink=Table(shop.store, "orders"), guarantee="exactly_once", until="caught_up"
    )
    assert orders(shop) == [str(n) for n in range(8)]
    assert sum(batch.size for batch in batches) == 5
    assert [batch.retry for batch in batches] == ([True, False] if pending is not None else [False])
    if pending is not None:
        assert batches[0].ranges == pending.ranges


@pytest.mark.parametrize("how", ["function", "transaction"])
def test_rows_that_a_jvm_takes_with_it_in_collect_are_not_committed(shop: Lab, topic: NewTopic, how: str) -> None:
    """PySpark takes the end of what it gets for the end of the rows, so the function writes a short list."""
    name, values = topic(2), [f"{n:02}" for n in range(cut_collect.ROWS)]
    shop.produce_all(name, [(n % 2, value) for n, value in enumerate(values)])
    [answer] = [json.loads(line) for line in started(lambda: cut(shop, name, how))]
    assert (answer["error"], answer["message"][: len(GONE)]) == ("SparkGone", GONE)
    assert sum(shop.offsets().values()) == 0
    written = orders(shop)
    assert (len(written) > 0) == (how == "function")  # it has written a part by itself
    assert len(written) < len(values)

    def write(frame: DataFrame, _: Batch) -> None:
        rows = frame.selectExpr(*orphan.COLUMNS).collect()
        for row in rows:
            sql(shop, f"insert into orders values ({row.partition}, {row.offset}, '{row.value}')")  # noqa: S608 - digits

    shop.pipeline(name).run(shop.spark, write, until="caught_up")
    assert sorted({*orders(shop)}) == values


def test_answers_of_tasks_that_a_jvm_takes_with_it_are_missed(shop: Lab, topic: NewTopic) -> None:
    """A table's rows come with these answers, or are in its staging table under their numbers."""
    [line] = started(lambda: cut(shop, topic(), "copied"))
    assert json.loads(line)["error"] == "SparkGone"


def test_an_output_that_refuses_connections_is_not_taken_for_spark(lab: Lab, topic: NewTopic) -> None:
    """It raises the same as PySpark does without its JVM; it is tried again, and comes out as it is."""
    name = topic()
    lab.produce(name, "a")
    tries: list[Batch] = []

    def refused(_: DataFrame, batch: Batch) -> None:
        tries.append(batch)
        raise ConnectionRefusedError("the output is away")

    with pytest.raises(ConnectionRefusedError, match="the output is away"):
        lab.pipeline(name, attempts=2, retry_timeout_s=1).run(lab.spark, refused)
    assert len(tries) >= 2
