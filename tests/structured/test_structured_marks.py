"""Outputs that keep a mark, under a streaming query, with state and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.marked import Died, Marked, dies
from offsetkeeper.core.model import Landed
from offsetkeeper.sinks import Outputs
from structured.lab import StructuredLab

NewTopic = Callable[..., str]


def distinct(records: DataFrame) -> DataFrame:
    """Return each value once, which takes state."""
    return records.dropDuplicates(["value"])


@pytest.mark.parametrize("query", [None, distinct], ids=["records", "with state"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_batch_that_was_under_way_at_a_crash_is_in_all_outputs_once(
    lab: StructuredLab, topic: NewTopic, tmp_path: Path, query: Any, where: str
) -> None:
    """The first of two outputs has it then, and the second has it or not."""
    name = topic()
    lab.produce(name, "a", "b")
    paths = tmp_path / "one.db", tmp_path / "two.db"
    how = {"query": query, "guarantee": "exactly_once"}
    dying = Outputs(one=Marked(paths[0]), two=Marked(paths[1], **{where: dies}))
    with pytest.raises(Died):
        lab.follow(name, sink=dying, attempts=1, **how)
    lab.produce(name, "c", "a")
    one, two = (Marked(path) for path in paths)
    lab.follow(name, sink=Outputs(one=one, two=two), **how)
    expected = Counter((0, offset) for offset in range(4 if query is None else 3))
    assert one.counted() == two.counted() == expected
    assert one.mark() == two.mark()
    assert lab.snapshot().landed == {
        "one": Landed(int(one.mark().split()[0])),
        "two": Landed(int(two.mark().split()[0])),
    }


def test_a_lost_checkpoint_doubles_nothing(lab: StructuredLab, topic: NewTopic, tmp_path: Path) -> None:
    name, output = topic(), Marked(tmp_path / "output.db")
    lab.produce(name, "a", "b")
    lab.follow(name, sink=output, guarantee="exactly_once")
    lab.delete_checkpoint()
    lab.produce(name, "c")
    lab.follow(name, sink=output, guarantee="exactly_once")
    assert output.counted() == Counter((0, offset) for offset in range(3))
