"""Several outputs of a streaming query: a driver dies at each step, and none that has a batch gets it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame

from engines.test_engine_outputs import STEPS, Ends
from offsetkeeper import Batch
from offsetkeeper.sinks import Outputs, Table
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from structured.lab import StructuredLab, fail
from structured.test_structured_crashes import run_dying

NewTopic = Callable[..., str]


def distinct(records: DataFrame) -> DataFrame:
    """Drop records whose value has come before."""
    return records.dropDuplicates(["value"])


@pytest.mark.parametrize("state", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_query_whose_driver_dies_at_any_step_repeats_at_most_the_output_it_died_at(
    lab: StructuredLab,
    topic: NewTopic,
    state: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Without state the checkpoint is lost at every third death."""
    name, ends, values = topic(), Ends(), [str(n) for n in range(8)]
    lab.produce(name, *[value for value in values for _ in range(1 + state)])
    how: dict[str, Any] = {"query": distinct} if state else {}
    limit = 4 if state else 2
    for number, step in enumerate(STEPS):
        assert run_dying(lab, name, step, sink=ends.outputs, max_records=limit, **how)
        ends.died(step)
        if not state and number % 3 == 0:
            lab.delete_checkpoint()
    assert not run_dying(lab, name, "", sink=ends.outputs, max_records=limit, **how)
    assert ends.counted() == ends.expected(values)
    assert lab.offsets()[0] == 8 * (1 + state)


def test_state_is_kept_where_the_outputs_that_miss_a_batch_are_taken_away(lab: StructuredLab, topic: NewTopic) -> None:
    name, ends = topic(), Ends()
    lab.produce(name, "a")
    sink = Outputs(first=ends.output("first"), second=fail)
    with pytest.raises(RuntimeError, match="the output is away"):
        lab.follow(name, sink=sink, query=distinct, attempts=1)
    assert [entry.reason for entry in lab.history() if entry.event == "release"] == ["ended by RuntimeError"]
    lab.produce(name, "a", "b")
    lab.follow(name, sink=Outputs(first=ends.output("first")), query=distinct)
    assert ends.got["first"] == ["a", "b"]


def test_what_state_gives_is_worked_out_once_for_all_outputs(lab: StructuredLab, topic: NewTopic) -> None:
    name, kept = topic(), list[bool]()
    lab.produce(name, "a")

    def look(frame: DataFrame, _: object) -> None:
        frame.count()
        kept.append(frame.storageLevel.useMemory)

    lab.follow(name, sink=Outputs(first=look, second=look), query=distinct)
    assert kept == [True, True]


def test_a_query_waits_for_an_output_that_is_away(
    lab: StructuredLab, topic: NewTopic, database: str, postgresql_server: PostgreSQLServer
) -> None:
    """Within the batch of Spark, which ends once; each row is there once."""
    name, calls = topic(), list[int]()
    lab.produce(name, "a", "b", "c")
    with TcpProxy("127.0.0.1", postgresql_server.port) as proxy, psycopg.connect(database, autocommit=True) as rows:
        rows.execute("create table orders (value text)")

        def process(frame: DataFrame, batch: Batch) -> DataFrame:
            calls.append(batch.sequence)
            if len(calls) == 1:
                proxy.refuse()
            if len(calls) == 3:
                proxy.heal()
            return frame.selectExpr("string(value) as value")

        url = database.replace(f":{postgresql_server.port}", f":{proxy.port}")
        sink = Table(url, "orders")
        lab.follow(name, process, sink=sink, attempts=1, guarantee="exactly_once")
        assert rows.execute("select value from orders order by 1").fetchall() == [("a",), ("b",), ("c",)]
    assert calls == [1, 1, 1]
    assert lab.batch_ids("commits") == [0]
    assert [entry.event for entry in lab.history()].count("wait") == 1
