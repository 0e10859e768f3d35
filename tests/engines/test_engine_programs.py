"""A group is for one program: another one does not finish its pending batch, but a redeploy of the same one does."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from engines.lab import Lab
from offsetkeeper import Batch, Policies
from offsetkeeper.errors import StartRefused
from offsetkeeper.sinks import Outputs, Table

NewTopic = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Two tables, each in a database beside the store: batches are begun for them, and they keep marks."""
    for name in ("orders", "payments"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute(f"create table {name} (value text)")
    return tmp_path


def rows(shop: Path, table: str) -> list[str]:
    """Return the values in a table."""
    with closing(sqlite3.connect(shop / f"{table}.db")) as connection:
        return sorted(value for (value,) in connection.execute(f"select value from {table}"))  # noqa: S608 - ours


def parse(frame: DataFrame, _: Batch) -> DataFrame:
    """Return the tables' column."""
    return frame.selectExpr("cast(value as string) as value")


def die(frame: DataFrame, _: Batch) -> DataFrame:
    """Fail once the batch is begun."""
    return frame.selectExpr("raise_error('dead') || 'x' as value")


def run(lab: Lab, *topics: str, sink: Any, process: Any = parse, **settings: Any) -> None:
    """Run a program until all is read."""
    pipeline = lab.pipeline(*topics, attempts=1, **settings)
    pipeline.run(lab.spark, process, sink=sink, guarantee="exactly_once", until="caught_up")


def begin(lab: Lab, *topics: str, sink: Any) -> None:
    """Let the first program die with a batch that is begun."""
    with pytest.raises(Exception, match="dead"):
        run(lab, *topics, sink=sink, process=die)
    assert lab.snapshot().pending is not None


def table(shop: Path, name: str) -> Table:
    return Table(f"sqlite:///{shop}/{name}.db", name)


OTHERS: Mapping[str, tuple[str, str]] = {
    "other topic and table": ("payments", "payments"),
    "other topic": ("payments", "orders"),
    "other table": ("orders", "payments"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_program_on_the_group_is_refused_and_the_first_one_loses_nothing(
    lab: Lab, topic: NewTopic, shop: Path, other: str
) -> None:
    """It finished the batch with its own function, into its own table; the first program never got these rows.

    The table of the second program lacks batches that have landed in the first one's: that is no loss to tell of.
    """
    topics = {"orders": topic(), "payments": topic()}
    lab.produce(topics["orders"], "orders 0")
    run(lab, topics["orders"], sink=table(shop, "orders"))
    for kind, name in topics.items():
        lab.produce(name, f"{kind} 1", f"{kind} 2")
    begin(lab, topics["orders"], sink=table(shop, "orders"))
    reads, writes = OTHERS[other]
    with pytest.raises(StartRefused) as refused:
        run(lab, topics[reads], sink=table(shop, writes))
    told = f"That one reads {topics['orders']} and writes Table orders. This one reads {topics[reads]} and writes"
    assert f"{told} Table {writes}." in str(refused.value)
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["orders 0"], [])
    run(lab, topics["orders"], sink=table(shop, "orders"))
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["orders 0", "orders 1", "orders 2"], [])


def test_another_program_finishes_the_batch_if_its_policy_says_so(lab: Lab, topic: NewTopic, shop: Path) -> None:
    one, other = topic(), topic()
    lab.produce(one, "order")
    lab.produce(other, "payment")
    begin(lab, one, sink=table(shop, "orders"))
    run(lab, other, sink=table(shop, "payments"), policies=Policies(pending="finish"))
    assert (rows(shop, "orders"), rows(shop, "payments")) == ([], ["order", "payment"])


@pytest.mark.parametrize("reads", [(0, 1), (1,), (1, 2), "pattern"])
def test_a_redeploy_with_other_topics_goes_on(lab: Lab, topic: NewTopic, shop: Path, reads: Any) -> None:
    """Of topics 0 and 1, only 0 has records: the batch is of it alone, and the program that began it read both."""
    topics = [topic(), topic(), topic()]
    lab.produce(topics[0], "1", "2")
    begin(lab, *topics[:2], sink=table(shop, "orders"))
    if reads == "pattern":
        lab.pipeline(topics=re.compile("|".join(map(re.escape, topics))), attempts=1).run(
            lab.spark, parse, sink=table(shop, "orders"), guarantee="exactly_once", until="caught_up"
        )
    else:
        run(lab, *(topics[n] for n in reads), sink=table(shop, "orders"))
    assert rows(shop, "orders") == ["1", "2"]


def test_a_redeploy_with_an_output_more_goes_on(lab: Lab, topic: NewTopic, shop: Path) -> None:
    name = topic()
    lab.produce(name, "1", "2")
    begin(lab, name, sink=Outputs(orders=table(shop, "orders")))
    run(lab, name, sink=Outputs(orders=table(shop, "orders"), payments=table(shop, "payments")))
    assert rows(shop, "orders") == ["1", "2"]


def test_another_query_on_the_group_is_refused(lab: Lab, topic: NewTopic, shop: Path, tmp_path: Path) -> None:
    one, other = topic(), topic()
    lab.produce(one, "order")
    lab.produce(other, "payment")
    begin(lab, one, sink=table(shop, "orders"))
    with pytest.raises(StartRefused, match="another program began it"):
        lab.pipeline(other).start(
            lab.spark, parse, sink=table(shop, "payments"), guarantee="exactly_once", checkpoint=f"{tmp_path}/other"
        )
    run(lab, one, sink=table(shop, "orders"))
    assert (rows(shop, "orders"), rows(shop, "payments")) == (["order"], [])
