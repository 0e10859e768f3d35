"""A log is cut after a batch was planned, before it is read: its offsets are those of other records by then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from engines.elections import SETTINGS, elect_follower, lose_follower, make_topics
from engines.lab import LIMIT_S, Lab, Running
from offsetkeeper import Batch, Pipeline
from offsetkeeper.errors import RangeGone
from offsetkeeper.sinks import Table
from offsetkeeper.testing.kafka import KafkaServers

OLD, LOST, NEW, FEW = (
    [f"{word}{n}" for n in range(count)] for word, count in (("old", 5), ("lost", 4), ("new", 7), ("new", 2))
)
RUNS: dict[str, dict[str, Any]] = {
    "C": {"kafka": {"offsetkeeper.native": "required"}},
    "Python": {"kafka": {"offsetkeeper.native": "never"}},
    "connector": {"reader": "connector"},
    "short": {"stall_s": 3600},
    "ahead": {"reader": "connector", "max_records": 3},
}
"""How a group reads that has the name; of "short", the new log ends before the batch does. "ahead" has read its first
batch when the log is cut, and not what its consumer has fetched with it."""
QUERIES: dict[str, dict[str, Any]] = {"packed": {"reader": "packed"}, "connector": {"reader": "connector"}}
TOPICS = [*RUNS, *(f"query-{name}" for name in QUERIES)]


@dataclass
class Group:
    """One that reads the topic of its name, and waits in its first batch until the log is cut.

    Attributes:
        lab: its store.
        name: of the topic.
        elected: set when the log is cut.
        begun: set when the first batch is planned, and not read.
        batches: the last offset of each batch that was tried.
    """

    lab: Lab
    name: str
    elected: threading.Event
    begun: threading.Event = field(default_factory=threading.Event)
    batches: list[int] = field(default_factory=list)

    def pipeline(self, **settings: Any) -> Pipeline:
        """Return its pipeline."""
        return self.lab.pipeline(self.name, **settings)

    def rows(self, frame: DataFrame, batch: Batch) -> DataFrame:
        """Return the values of a batch; of the first one when the log is cut."""
        self.batches += [r.end for r in batch.ranges]
        values = frame.selectExpr("cast(value as string) as value")
        if self.name == "ahead":
            values = frame.sparkSession.createDataFrame(values.collect(), values.schema)
        self.begun.set()
        assert self.elected.wait(LIMIT_S)
        return values

    @property
    def sink(self) -> dict[str, Any]:
        """The output, in the store."""
        return {"sink": Table(self.lab.store, "kept"), "guarantee": "exactly_once"}

    @property
    def kept(self) -> list[str]:
        """What landed."""
        with closing(connect(self.lab.store.removeprefix("sqlite:///"))) as connection:
            return sorted(value for (value,) in connection.execute("select value from kept"))

    def start(self, checkpoint: Path, **settings: Any) -> Any:
        """Start a query."""
        how: dict[str, Any] = {"checkpoint": f"{checkpoint}/{self.name}", "trigger": {"availableNow": True}}
        return self.pipeline(**settings).start(self.lab.spark, self.rows, **self.sink, **how)


@dataclass
class Cut:
    """What was begun before the logs were cut, and went on after it."""

    groups: dict[str, Group]
    runs: dict[str, Running]
    queries: dict[str, Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cut")


@pytest.fixture(scope="module")
def cut(spark: SparkSession, path: Path) -> Iterator[Cut]:
    """Let batches of the lost records be planned; then elect the replica that lacks them, and produce new ones."""
    with KafkaServers(settings=SETTINGS) as servers, ExitStack() as ending:
        make_topics(servers, TOPICS)
        elected = threading.Event()
        ending.callback(elected.set)
        groups = {name: group(spark, servers, path, name, elected) for name in TOPICS}
        produce(groups, lambda _: OLD)
        lose_follower(servers, TOPICS)
        produce(groups, lambda _: LOST)
        runs = {name: run(groups[name], ending, **how) for name, how in RUNS.items()}
        queries = {
            name: ending.enter_context(closing_query(groups[f"query-{name}"].start(path, **how)))
            for name, how in QUERIES.items()
        }
        for each in groups.values():
            assert each.begun.wait(LIMIT_S)
        elect_follower(servers, TOPICS)
        produce(groups, lambda name: FEW if name == "short" else NEW)
        elected.set()
        yield Cut(groups, runs, queries)


def group(spark: SparkSession, servers: Any, path: Path, name: str, elected: threading.Event) -> Group:
    """Return a group with a store of its own."""
    file = path / f"{name}.db"
    with closing(connect(file)) as connection, connection:
        connection.execute("create table kept (value text)")
    return Group(Lab(spark, servers, f"sqlite:///{file}"), name, elected)


def produce(groups: dict[str, Group], values: Callable[[str], list[str]]) -> None:
    """Produce to the topics of all groups."""
    for name, each in groups.items():
        each.lab.produce(name, *values(name))


def run(group: Group, ending: ExitStack, **settings: Any) -> Running:
    """Start a run."""
    made = Running(group.pipeline(**settings), group.lab.spark, group.rows, **group.sink, until="caught_up")
    ending.enter_context(made)
    return made


def closing_query(query: Any) -> Any:
    """Return what stops a query at the end."""
    return closing(_Stopped(query))


class _Stopped:
    def __init__(self, query: Any) -> None:
        self.query = query

    def close(self) -> None:
        """Stop it."""
        self.query.stop()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_plans_again_and_lands_each_record_of_now_once(cut: Cut, name: str) -> None:
    """It landed four new records as those that were planned, stopped, and had them again from where the logs part."""
    cut.runs[name].end()  # it reads up to where the partition ended when it began
    group = cut.groups[name]
    new = FEW if name == "short" else NEW
    group.pipeline().run(group.lab.spark, group.rows, **group.sink, until="caught_up")
    assert group.kept == sorted(OLD + new)
    assert group.batches == {"short": [9, 7], "ahead": [3, 6, 9, 12]}.get(name, [9, 9, 12])


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_ends_and_lands_nothing(cut: Cut, path: Path, name: str) -> None:
    """Spark has planned the batch and reads it again: then as records of the log of now."""
    group = cut.groups[f"query-{name}"]
    with pytest.raises(RangeGone, match="its log was cut at offset 5 by the election of a leader that lacked records"):
        cut.queries[name].query.awaitTermination(LIMIT_S)
    assert group.kept == []
    assert group.batches == [len(OLD + LOST)]
    again = group.start(path, **QUERIES[name])
    again.awaitTermination(LIMIT_S)
    again.stop()
    assert group.kept == sorted(OLD + NEW)
