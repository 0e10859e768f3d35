"""What tables and files tell of the offsets that they hold, beside the ledger."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from typer.testing import CliRunner

from engines.lab import Lab
from offsetkeeper import Batch, Policies
from offsetkeeper.cli.main import app
from offsetkeeper.sinks import DeltaTable, Files, Outputs, Table
from sinks.icebergs import CATALOG, Lake

NewTopic = Callable[..., str]
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.int32())])


class Tables:
    """The same rows in three formats.

    Attributes:
        words: of the command `holds` for each.
    """

    def __init__(self, folder: Path) -> None:
        self.lake = lake = Lake.made(folder / "lake")
        lake.create("orders", SCHEMA)
        delta, files = str(folder / "delta"), str(folder / "files")
        deltalake.DeltaTable.create(delta, SCHEMA)
        properties = [word for name, value in lake.properties.items() for word in ("--option", f"{name}={value}")]
        self.sinks = Outputs(delta=DeltaTable(delta), files=Files(files), lake=lake.sink("orders"))
        self.words = {"delta": [delta], "files": [files], "lake": ["shop.orders", "--catalog", CATALOG, *properties]}

    def ask(self, name: str, *words: str) -> tuple[int, Any]:
        """Return the exit code of `holds`, and what it prints as JSON."""
        done = CliRunner().invoke(app, ["holds", *self.words[name], *words, "--json"])
        return done.exit_code, json.loads(done.stdout)


def told(found: tuple[int, Any]) -> set[tuple[str, int, int]]:
    """Return each offset of the findings, with kind and partition."""
    [output] = found[1]["outputs"]
    assert found[0] == 1
    return {(f["kind"], f["partition"], at) for f in output["findings"] for at in range(f["start"], f["end"])}


def rows(frame: DataFrame, _: Batch) -> DataFrame:
    return frame.select("partition", "offset", udf(lambda value: int(value), "int")("value").alias("value"))  # noqa: PLW0108 - it is shipped


@pytest.mark.usefixtures("tables")
def test_each_table_tells_the_offsets_that_the_ledger_has_committed(lab: Lab, topic: NewTopic, tmp_path: Path) -> None:
    """Two partitions, a dead letter, and a rewind, after which rows are there twice."""
    name, made = topic(2), Tables(tmp_path)
    letters = Table(lab.store, "letters")
    pipeline = lab.pipeline(
        name,
        max_records=4,
        policies=Policies(poison="quarantine"),
        dead_letters=letters,
        attempts=1,
    )

    def run() -> None:
        pipeline.run(lab.spark, rows, sink=made.sinks, guarantee="exactly_once", until="caught_up")

    lab.produce_all(name, [(number % 2, "bad" if number == 4 else str(number)) for number in range(10)])
    run()
    for each in made.words:
        code, found = made.ask(each, "--store", lab.store)
        [output] = found["outputs"]
        assert (code, output["findings"], found["lacks"], output["output"]) == (0, [], "", each)
        ranges = [r for batch in output["batches"] for r in batch["ranges"]]
        there = sorted((r[1], at) for r in ranges for at in range(*r[2:]))
        assert there == [(p, n) for p in range(2) for n in range(5) if (p, n) != (0, 2)]
        assert told(made.ask(each)) == {("gap", 0, 2)}  # the dead letter: only the ledger knows
    with lab.ledger() as ledger:
        ledger.acquire("reset")
        ledger.rewind({tp: at._replace(offset=3) for tp, at in ledger.snapshot.positions.items()}, "again")
        ledger.release()
    twice = [(partition, offset) for partition in range(2) for offset in (3, 4)]
    for each in made.words:
        assert told(made.ask(each, "--store", lab.store)) == {("ahead", *at) for at in twice}
    run()
    for each in made.words:
        assert told(made.ask(each, "--store", lab.store)) == {("overlap", *at) for at in twice}
    ends = CliRunner().invoke(app, ["holds", *made.words["lake"], "--export", "--store", lab.store, "--group", "group"])
    assert ends.stdout.splitlines() == [f"{name},0,5", f"{name},1,5"]
    deltalake.DeltaTable(made.words["delta"][0]).restore(1)
    _, found = made.ask("delta", "--store", lab.store)
    assert [each["place"] for each in found["outputs"][0]["batches"]] == ["version 1"]
    assert {each["kind"] for each in found["outputs"][0]["findings"]} == {"lacks"}
    shutil.rmtree(Path(made.words["files"][0], "batch=1"))
    assert made.ask("files")[1]["lacks"] == "batch=1 was deleted"
    table = made.words["lake"][0]
    with made.lake.catalog() as catalog:
        catalog.load_table(table).delete("partition = 1")
    assert made.ask("lake")[1]["changed"].endswith("(delete)")
    with made.lake.catalog() as catalog:
        catalog.drop_table(table)
    made.lake.create("orders", SCHEMA)
    code, found = made.ask("lake", "--store", lab.store, "--group", "group")
    assert (code, {each["kind"] for each in found["outputs"][0]["findings"]}) == (1, {"lacks"})


def test_a_partition_that_is_silent_since_its_output_got_a_name_comes_once(
    lab: Lab, topic: NewTopic, tmp_path: Path
) -> None:
    """As an operator follows docs/recover.md: export, reset, start."""
    name, files, copy = topic(2), str(tmp_path / "files"), str(tmp_path / "copy")
    outputs = Outputs(orders=Files(files), copy=Files(copy))

    def run(sink: Any) -> None:
        lab.pipeline(name).run(lab.spark, rows, sink=sink, guarantee="exactly_once", until="caught_up")

    def export(place: str, *words: str) -> str:
        return CliRunner().invoke(app, ["holds", place, "--group", "group", *words, *store, "--export"]).stdout

    store = ["--store", lab.store]
    lab.produce_all(name, [(0, "0"), (1, "1")])
    run(Files(files))
    lab.produce(name, "2")
    run(outputs)
    assert export(files, "--output", "orders") == export(files) == f"{name},0,2\n{name},1,1\n"
    assert export(copy, "--output", "copy") == f"{name},0,2\n"  # it has no row of partition 1, and is to get none
    for place in (files, copy):
        offsets = tmp_path / "offsets.csv"
        offsets.write_text(export(place), "utf-8")
        words = ["reset", "group", "--from-file", str(offsets), "--brokers", lab.kafka.bootstrap, *store, "--execute"]
        assert CliRunner().invoke(app, words).exit_code == 0
        run(outputs)
    there = lab.spark.read.parquet(files).collect()
    assert sorted((row["partition"], row["offset"]) for row in there) == [(0, 0), (0, 1), (1, 0)]
