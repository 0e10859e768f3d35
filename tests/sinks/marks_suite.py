"""What holds for each table on a server, in a database that the ledger is not in: faults of marks and of landings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar, NamedTuple

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import MarkError, OutcomeUnknown, Refused, SinkError
from offsetkeeper.sinks import Lander, MarkKey, Table
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores import open_store
from offsetkeeper.testing.conformance.landers import SCHEMA, batch_of, records
from offsetkeeper.testing.proxy import Cut, TcpProxy

KEY = MarkKey("billing", "")


class Marked(NamedTuple):
    """A database with a table of records: its URLs, straight and through a proxy, and what a statement answers."""

    url: str
    proxied: str
    proxy: TcpProxy
    ask: Callable[[str], Any]

    def counted(self) -> int:
        """Return how many rows a user counts."""
        return int(self.ask("select count(*) from records")[0][0])


def prepared(url: str, guarantee: Guarantee, name: str = "records", store: str = "memory://") -> Any:
    """Return how a table of the database goes out beside offsets elsewhere."""
    with closing(open_store(store)) as opened:
        return Table(url, name).prepare(opened, guarantee)


def lander(url: str, name: str = "records") -> Lander:
    """Return how it does for exactly once."""
    way = prepared(url, Guarantee.EXACTLY_ONCE, name)
    assert isinstance(way, Lander)
    return way


def write(spark: SparkSession, way: Lander, sequence: int) -> None:
    """Write a batch as the engine does."""
    batch = batch_of(sequence)
    Once(way, "").write(spark.createDataFrame(records(batch), SCHEMA), batch)


class MarksSuite:
    """The tests; a class has a fixture `marked`."""

    table: ClassVar[str]
    """The statement that makes the table of records."""
    told: ClassVar[dict[str, str]]
    """What is told if there is no `table`, if there are no `marks`, and if another run was `faster`."""
    sent: ClassVar[dict[str, bytes]]
    """What is sent to change the `mark`, to insert `rows`, and to `commit`."""

    @pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
    def test_a_commit_that_is_cut_off_is_looked_up(self, spark: SparkSession, marked: Marked, cut: Cut) -> None:
        """The batch is there once."""
        way, batch = lander(marked.proxied), batch_of(1)
        staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
        seen = way.seen(KEY)
        with marked.proxy.cut(cut, self.sent["commit"]), pytest.raises(OutcomeUnknown):
            way.land(KEY, seen, OutputMark.of(batch, way.writes_to), staged)
        write(spark, way, 1)
        assert (way.seen(KEY).mark, marked.counted()) == (OutputMark.of(batch, way.writes_to), 3)

    @pytest.mark.parametrize("statement", ["mark", "rows"])
    def test_a_landing_that_is_cut_off_before_its_commit_has_written_nothing(
        self, spark: SparkSession, marked: Marked, statement: str
    ) -> None:
        """Neither rows nor mark."""
        way, batch = lander(marked.proxied), batch_of(2)
        write(spark, way, 1)
        staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
        seen = way.seen(KEY)
        with marked.proxy.cut(Cut.REPLY, self.sent[statement]), pytest.raises(SinkError):
            way.land(KEY, seen, OutputMark.of(batch, way.writes_to), staged)
        assert (way.seen(KEY).mark, marked.counted()) == (OutputMark.of(batch_of(1), way.writes_to), 3)

    def test_the_mark_is_compared_once_more_as_it_is_changed(self, spark: SparkSession, marked: Marked) -> None:
        """Here a newer run is faster, between the older one's look and its change."""
        way, newer = lander(marked.url), lander(marked.url)
        for sequence in (1, 2):

            def overtaken(connection: Any, sequence: int = sequence) -> None:
                write(spark, newer, sequence)
                connection.execute("insert into records (topic) values ('from the older one')")

            with pytest.raises(SinkError, match=self.told["faster"]):
                way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(sequence)), overtaken)
        assert marked.counted() == 6

    def test_a_table_that_changes_between_batches_is_looked_at_again(self, spark: SparkSession, marked: Marked) -> None:
        """It gets a column, is dropped, and is made again."""
        way = lander(marked.url)
        write(spark, way, 1)
        marked.ask("alter table records add column note text default 'none'")
        write(spark, way, 2)
        marked.ask("drop table records")
        with pytest.raises(Refused, match=self.told["table"]):
            write(spark, way, 3)
        marked.ask(self.table)
        write(spark, way, 3)
        assert marked.counted() == 3

    def test_marks_that_are_gone_stop_the_run_and_are_not_taken_for_none(
        self, spark: SparkSession, marked: Marked
    ) -> None:
        """Only the next start makes the table again, and compares it with the ledger."""
        way = lander(marked.url)
        write(spark, way, 1)
        marked.ask("update offsetkeeper_marks set mark = 'done'")
        with pytest.raises(MarkError, match="is not a mark of offsetkeeper"):
            write(spark, way, 2)
        marked.ask("drop table offsetkeeper_marks")
        with pytest.raises(Refused, match=self.told["marks"]):
            write(spark, way, 1)
        assert marked.counted() == 3
