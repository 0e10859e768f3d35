"""Traces of runs of the real engine: each request is there, no secret and no record is, and what is wrong is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from engines.lab import Lab
from engines.marked import Marked
from offsetkeeper import Batch
from offsetkeeper.errors import MarkBehind
from offsetkeeper.operate.traces import check_traces
from offsetkeeper.sinks import Idempotent, Outputs

SECRET = "hunter2-and-more"
RECORD = "a-card-number"


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all files, without their heads."""
    texts = [line for path in sorted(folder.iterdir()) for line in path.read_text("utf-8").splitlines()]
    return [line for line in map(json.loads, texts) if line["event"] != "file"]


def test_a_trace_has_each_request_and_no_secret_and_no_record(
    lab: Lab, topic: Callable[..., str], database: str, tmp_path: Path, traces: Path
) -> None:
    name, tries = topic(1), []
    producer = Producer({"bootstrap.servers": lab.kafka.bootstrap})
    producer.produce(name, RECORD, key=f"key {RECORD}", headers={"token": f"header {RECORD}".encode()})
    producer.flush()

    def write(frame: DataFrame, batch: Batch) -> None:
        tries.append(batch.id)
        if len(tries) == 1:
            [row] = frame.collect()
            raise ValueError(f"{bytes(row['value']).decode()} cannot be written with {SECRET}")

    url = database.replace("://postgres@", f"://postgres:{SECRET}@")
    assert SECRET in url
    sink = Outputs(rows=Marked(tmp_path / "rows.db"), calls=Idempotent(write))
    pipeline = lab.pipeline(name, store=url)
    pipeline.run(lab.spark, sink=sink, guarantee="exactly_once", until="caught_up")
    assert len(tries) == 2
    found = lines_in(traces)
    assert [line["entry"]["event"] for line in found if line["event"] == "send"] == [
        *("acquire", "place", "begin", "mark", "commit", "release")
    ]
    events = [line["event"] for line in found]
    assert {"outputs", "load", "answer", "look", "land", "landed", "write", "wrote", "read", "end"} <= {*events}
    assert [line["outcome"] for line in found if line["event"] == "wrote"] == ["unknown", "done"]
    text = "".join(path.read_text("utf-8") for path in traces.iterdir())
    assert "ValueError" in text
    assert [each for each in (SECRET, RECORD, "cannot be written", "header") if each in text] == []


def test_an_output_that_was_restored_between_two_runs_is_seen_in_the_trace(
    lab: Lab, topic: Callable[..., str], tmp_path: Path, traces: Path
) -> None:
    """The second run is refused, so no rule is broken; without that refusal `kept` would be."""
    name, output, backup = topic(1), Marked(tmp_path / "rows.db"), tmp_path / "backup.db"

    def run() -> None:
        lab.pipeline(name).run(lab.spark, sink=Marked(output.path), guarantee="exactly_once", until="caught_up")

    lab.produce(name, "1")
    run()
    shutil.copy(output.path, backup)
    lab.produce(name, "2")
    run()
    shutil.copy(backup, output.path)
    lab.produce(name, "3")
    with pytest.raises(MarkBehind):
        run()
    assert check_traces(traces.iterdir()).broken == ()
    ends = [line.get("error", "") for line in lines_in(traces) if line["event"] == "end"]
    assert ends == ["", "", "MarkBehind"]
    assert [line["mark"]["sequence"] for line in lines_in(traces) if line["event"] == "look" and line["mark"]][-1] == 1
