"""A table of a lake is restored while a batch is under way there: its mark outlives the rows, which no run may miss."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

from engines.lab import Lab
from engines.marked import Died, Marked, dies
from offsetkeeper import Batch, Position, TopicPartition
from offsetkeeper.cli.main import app
from offsetkeeper.errors import MarkBehind
from offsetkeeper.sinks import DeltaTable, Outputs
from offsetkeeper.sinks.delta.landing import DeltaTarget
from offsetkeeper.sinks.iceberg.landing import IcebergTarget
from sinks.icebergs import Lake

NewTopic = Callable[..., str]
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
THEIRS = pa.table({"partition": [-1], "offset": [0]}, SCHEMA)


class Delta:
    """A Delta table with a row of others."""

    target: Any = DeltaTarget

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "delta")
        deltalake.DeltaTable.create(self.path, SCHEMA)
        deltalake.write_deltalake(self.path, THEIRS, mode="append")
        self.sink = DeltaTable(self.path)

    def now(self) -> int:
        """Return its version."""
        return deltalake.DeltaTable(self.path).version()

    def restore(self, version: int) -> None:
        """Restore it."""
        deltalake.DeltaTable(self.path).restore(version)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return partition and offset of each row."""
        return [tuple(row.values()) for row in deltalake.DeltaTable(self.path).to_pyarrow_table().to_pylist()]


class Iceberg:
    """The same in Iceberg."""

    target: Any = IcebergTarget

    def __init__(self, folder: Path) -> None:
        self.lake = Lake.made(folder / "lake")
        self.lake.create("orders", SCHEMA).append(THEIRS)
        self.sink = self.lake.sink("orders")

    def now(self) -> int:
        """Return its snapshot."""
        found = self.lake.table("orders").current_snapshot()
        assert found is not None
        return found.snapshot_id

    def restore(self, snapshot: int) -> None:
        """Roll it back."""
        with self.lake.catalog() as catalog:
            catalog.load_table("shop.orders").manage_snapshots().set_current_snapshot(snapshot).commit()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return partition and offset of each row."""
        return self.lake.rows("orders")


@pytest.fixture(params=[Delta, Iceberg])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Delta | Iceberg:
    made: Delta | Iceberg = request.param(tmp_path)
    return made


def counted(table: Delta | Iceberg) -> Counter[int]:
    """Return how often each offset is there."""
    return Counter(offset for partition, offset in table.rows() if partition >= 0)


def run(lab: Lab, name: str, sink: Any) -> None:
    def process(frame: DataFrame, _: Batch) -> Any:
        rows = frame.select("topic", "partition", "offset")
        table = rows.drop("topic")
        return {"a": table, "b": rows} if isinstance(sink, Outputs) else table

    lab.pipeline(name).run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


def die(lab: Lab, name: str, table: Delta | Iceberg, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run die after a batch has landed, before the ledger commits it."""
    land = table.target.land

    def last(self: Any, *arguments: Any) -> None:
        land(self, *arguments)
        dies()

    with monkeypatch.context() as patch:
        patch.setattr(table.target, "land", last)
        with pytest.raises(Died):
            run(lab, name, table.sink)


def adopt(lab: Lab, name: str, sink: Any) -> None:
    """Do what a refused start says."""
    with pytest.raises(MarkBehind) as refused:
        run(lab, name, sink)
    words = shlex.split(str(refused.value).rpartition("accept both sides as they are: offsetkeeper ")[2])
    done = CliRunner().invoke(app, [*words, "--store", lab.store, "--execute"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("remedy", ["undo", "adopt", "reset and adopt"])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_each_record_of_a_batch_that_a_restore_took_back_is_there_once(
    lab: Lab, topic: NewTopic, table: Delta | Iceberg, monkeypatch: pytest.MonkeyPatch, remedy: str, *, first: bool
) -> None:
    """Whichever way the operator goes. The batch counted as done by its mark, without a word, and was never there."""
    name, last = topic(1), 0
    if not first:
        lab.produce(name, "a", "b")
        run(lab, name, table.sink)
        last = 2
    before = table.now()
    lab.produce(name, "c", "d")
    die(lab, name, table, monkeypatch)
    landed = table.now()
    table.restore(before)
    assert counted(table) == Counter(range(last))
    if remedy == "undo":
        with pytest.raises(MarkBehind):
            run(lab, name, table.sink)
        table.restore(landed)
    elif remedy == "adopt":
        adopt(lab, name, table.sink)
    else:
        with lab.ledger() as ledger:
            ledger.rewind({TopicPartition(name, 0): Position(last)}, "to the end of the rows", force=True)
        adopt(lab, name, table.sink)
    lab.produce(name, "e")
    for _ in range(2):
        run(lab, name, table.sink)
        assert counted(table) == Counter(range(last + 3))


def test_a_table_beside_an_output_that_has_the_batch_gets_what_a_restore_took_back(
    lab: Lab, topic: NewTopic, table: Delta | Iceberg, tmp_path: Path
) -> None:
    """Both have it by their marks, and the ledger knows it in the table. It counted as done after `adopt`."""
    name, beside = topic(1), Marked(tmp_path / "beside.db", after=dies)
    before = table.now()
    lab.produce(name, "a", "b")
    with pytest.raises(Died):
        run(lab, name, Outputs(a=table.sink, b=beside))
    table.restore(before)
    both = Outputs(a=table.sink, b=Marked(beside.path))
    adopt(lab, name, both)
    run(lab, name, both)
    assert counted(table) == Counter([0, 1])
    assert beside.counted() == {(0, 0): 2, (0, 1): 2}  # as of each batch that some outputs lack, when it is dropped
