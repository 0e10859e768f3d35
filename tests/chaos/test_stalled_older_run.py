"""An older run stalls, a newer one takes the group, goes on and ends; then the older wakes up, and all is counted.

What it may still do follows from what it can know. The last answer of the store before a write names it the owner, or
it does not write. So rows come twice only where that answer came before the newer run did, and then as the same batch
with the same ranges; and what a newer run has set is set back by no run that could know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chaos.results import Results, times
from chaos.stalls import Stall, SteppedStore, WatchedStore, failed, lost
from engines.lab import LIMIT_S, Running
from offsetkeeper.errors import Fenced
from offsetkeeper.testing.kafka import KafkaServer
from structured.lab import StructuredLab

NewTopic = Callable[..., str]
RECORDS = ["apple 1", "pear 1", "apple 2", "pear 2"]  # two batches of two, the second with newer prices
NEWEST = {"apple": 2, "pear": 2}
LANDED = {"after commit", "after transaction"}
BATCH = (0, 1)
ALWAYS = {"processingTime": "50 milliseconds"}


@dataclass(frozen=True)
class Case:
    """Where the older run stalls in its first batch, and what is allowed then.

    Attributes:
        kind: of output.
        step: where it stalls.
        then: what happens to it there when it goes on, if anything does.
        twice: by output, offsets that may be there twice.
        unaware: whether it still writes, as nothing has told it that it is fenced.
    """

    kind: str
    step: str
    then: Callable[[], Exception] | None = None
    twice: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unaware: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.step, self.then and self.then.__name__)))

    def parameter(self) -> Any:
        """Return it as a test's parameter; on HDFS it is run where its other tests have the server."""
        marks = [pytest.mark.soak] if str(self) in SOAK else []
        marks += [pytest.mark.xdist_group("test_hdfs")] if self.kind == "hdfs" else []
        return pytest.param(self, id=str(self), marks=marks)

    def stall(self) -> Stall:
        """Return what stalls the older run."""
        return Stall(self.step, self.then and self.then())


DIRECT = [
    Case("function", "before begin"),
    Case("function", "after begin", twice={"": BATCH}, unaware=True),
    Case("function", "after begin", lost),
    Case("function", "half", twice={"": BATCH}, unaware=True),
    Case("function", "half", failed, twice={"": (0,)}),
    Case("function", "written", twice={"": BATCH}),
    Case("function", "written", failed, twice={"": BATCH}),
    Case("function", "after commit", lost),
    Case("rows", "after begin", lost),
    Case("rows", "half", unaware=True),
    Case("rows", "half", failed),
    Case("files", "after begin"),
    Case("files", "inside"),
    Case("files", "half"),
    Case("files", "written"),
    Case("hdfs", "inside"),
    Case("hdfs", "half"),
    Case("outputs", "after begin", lost),
    Case("outputs", "before mark first", twice={"first": BATCH}),
    Case("outputs", "after mark first", lost),
    Case("outputs", "half second", twice={"second": BATCH}, unaware=True),
    Case("outputs", "written second", failed, twice={"second": BATCH}),
    Case("transaction", "parse", failed),
    Case("transaction", "before transaction"),
    Case("transaction", "after transaction", lost),
    Case("table", "parse", failed),
    Case("table", "before transaction"),
    Case("table", "after transaction", lost),
]
STRUCTURED = [
    Case("function", "after begin", lost),
    Case("function", "half", twice={"": BATCH}, unaware=True),
    Case("function", "half", failed, twice={"": (0,)}),
    Case("function", "after commit", lost),
    Case("rows", "half", failed),
    Case("files", "half"),
    Case("outputs", "after mark first", lost),
    Case("transaction", "before transaction"),
    Case("table", "parse", failed),
]

SOAK = {
    *("function after begin", "function half", "function written failed", "rows after begin lost", "rows half failed"),
    *("files after begin", "files half", "files written", "hdfs inside", "outputs half second"),
    *("outputs written second failed", "transaction parse failed", "table before transaction"),
    "table after transaction lost",
}
"""Cases that are like another one but for the output, or for where in the output the run stalls."""


@pytest.fixture
def lab(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> StructuredLab:
    """A lab with its store in a SQLite file, for runs and queries."""
    store = f"sqlite:///{tmp_path}/offsets.db?timeout=0.5"
    settings = {"reader": "connector", "max_records": 2}
    return StructuredLab(spark, kafka_server, store, checkpoint=tmp_path / "checkpoint", settings=settings)


@pytest.fixture
def results(lab: StructuredLab, tmp_path: Path, request: pytest.FixtureRequest) -> Results:
    """What the runs write."""

    def hdfs_folder() -> str:
        return f"{request.getfixturevalue('hdfs_server').rpc}/{tmp_path.name}/orders"

    return Results(tmp_path, lab.store, hdfs_folder)


@pytest.fixture
def name(lab: StructuredLab, topic: NewTopic) -> str:
    """Name of a topic with records."""
    name = topic()
    lab.produce(name, *RECORDS)
    return name


@pytest.mark.parametrize("case", [case.parameter() for case in DIRECT])
def test_an_older_run_that_stalled_writes_nothing_once_it_can_know_of_the_newer(
    lab: StructuredLab, results: Results, name: str, case: Case
) -> None:
    stall = case.stall()
    pipeline = lab.pipeline(name, max_records=2, store=SteppedStore(lab.store, stall.at))
    with Running(pipeline, lab.spark, **results.how(case.kind, stall.at)) as older:
        try:
            assert stall.reached.wait(LIMIT_S), older.error
            run_newer(lab, results, name, case.kind)
        finally:
            stall.go.set()
        with pytest.raises(Fenced):
            older.end()
    assert [batch.sequence for batch in older.batches] == [1] * (case.step in LANDED)
    check(lab, results, case)


@pytest.mark.parametrize("case", [case.parameter() for case in STRUCTURED])
def test_an_older_query_that_stalled_writes_nothing_once_it_can_know_of_the_newer(
    lab: StructuredLab, results: Results, name: str, case: Case
) -> None:
    stall = case.stall()
    how = {"trigger": ALWAYS, "store": SteppedStore(lab.store, stall.at), **results.how(case.kind, stall.at)}
    with lab.start(name, checkpoint=f"{lab.checkpoint}-older", **how) as older:
        try:
            assert stall.reached.wait(LIMIT_S), older.exception()
            lab.follow(name, **results.how(case.kind, ignore))
        finally:
            stall.go.set()
        with pytest.raises(Fenced):
            older.awaitTermination(LIMIT_S)
    check(lab, results, case)


@pytest.mark.parametrize(("kind", "step"), [("transaction", "half"), ("table", "inside")])
def test_a_newer_run_waits_for_the_transaction_that_an_older_one_is_in(
    lab: StructuredLab, results: Results, name: str, kind: str, step: str
) -> None:
    stall, watched = Stall(step), WatchedStore(lab.store)
    pipeline = lab.pipeline(name, max_records=2, store=SteppedStore(lab.store, stall.at))
    with Running(pipeline, lab.spark, **results.how(kind, stall.at), until="caught_up") as older:
        try:
            assert stall.reached.wait(LIMIT_S), older.error
            arguments = {**results.how(kind, ignore), "until": "caught_up"}
            with Running(lab.pipeline(name, max_records=2, store=watched), lab.spark, **arguments) as newer:
                assert watched.kept_out.wait(LIMIT_S), newer.error
                stall.go.set()
                newer.end()
        finally:
            stall.go.set()
        with suppress(Fenced):  # it may have read all before the newer one got the lock
            older.end()
    check(lab, results, Case(kind, step))


def ignore(_: str) -> None:
    """Go on at every step."""


def run_newer(lab: StructuredLab, results: Results, name: str, kind: str) -> None:
    """Take the group, finish its batch, read the rest, and give the group back."""
    newer = lab.pipeline(name, max_records=2)
    assert newer.run(lab.spark, **results.how(kind, ignore), until="caught_up").ended == "caught_up"


def check(lab: StructuredLab, results: Results, case: Case) -> None:
    """Count every record in every output."""
    for output in ("first", "second") if case.kind == "outputs" else ("",):
        rows = results.read(case.kind, lab.spark, output)
        allowed = {offset: 1 + (offset in case.twice.get(output, ())) for offset in range(len(RECORDS))}
        found = times(rows)
        assert found.keys() == allowed.keys(), f"lost or foreign in output {output!r}"
        assert all(found[offset] <= most for offset, most in allowed.items()), f"written again: {found} in {output!r}"
        assert {(row.place, row.value) for row in rows} == set(enumerate(RECORDS))
        assert len({(row.place, row.batch, row.ranges) for row in rows}) == len(RECORDS), "another id, or other ranges"
    if case.kind in {"files", "hdfs"} and case.step != "inside":  # there it still writes, and a later run removes it
        assert results.attempts(case.kind, lab.spark) == [], "the attempt that was refused is left over"
    if case.kind in {"function", "rows", "outputs"} and not case.unaware:
        assert results.prices() == NEWEST, "set back to what was older"
    assert (lab.offsets(), lab.snapshot().owner, lab.snapshot().pending) == ({0: len(RECORDS)}, None, None)
