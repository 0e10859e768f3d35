"""Rows into a SQLite file that the ledger is not in: each batch once, by a mark in the same file."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import MarkError, MarkMoved, OutcomeUnknown, Refused, SinkError
from offsetkeeper.sinks import Lander, MarkKey, Table, Writer
from offsetkeeper.sinks.once import Once
from offsetkeeper.sinks.sqlite import SQLiteDatabase
from offsetkeeper.stores import open_store
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import SCHEMA, batch_of, records

KEY = MarkKey("billing", "")
TABLE = 'create table records (batch text, topic text, "partition" integer, "offset" integer)'

DIES = """
import os, sys
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.sinks import MarkKey, Seen, Table
from offsetkeeper.stores import open_store

def staged(connection):
    connection.execute("insert into records values ('b', 't', 0, 0)")
    os._exit(9)

way = Table(f"sqlite:///{sys.argv[1]}", "records").prepare(open_store("memory://"), Guarantee.EXACTLY_ONCE)
way.land(MarkKey("billing", ""), Seen(None), OutputMark(1, "token", "digest"), staged)
"""


class TestSQLiteTable(LanderConformance):
    """Each output is a file."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, name: str) -> None:
        """See `LanderConformance`."""
        with closing(sqlite3.connect(self.folder / name)) as connection:
            connection.execute(TABLE)

    def open(self, name: str) -> Table:
        """See `LanderConformance`."""
        return Table(f"sqlite:///{self.folder / name}", "records")

    def read(self, name: str) -> Iterable[tuple[str, str, int, int]]:
        """See `LanderConformance`."""
        with closing(sqlite3.connect(self.folder / name)) as connection:
            return connection.execute("select * from records").fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Path of a file with a table of records."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute(TABLE)
    return tmp_path / "shop.db"


def lander(path: Path) -> Lander:
    """Return how a table of the file goes out beside offsets elsewhere."""
    with closing(open_store("memory://")) as store:
        way = Table(f"sqlite:///{path}", "records").prepare(store, Guarantee.EXACTLY_ONCE)
    assert isinstance(way, Lander)
    return way


def write(spark: SparkSession, way: Lander, sequence: int) -> None:
    """Write a batch as the engine does."""
    batch = batch_of(sequence)
    Once(way, "").write(spark.createDataFrame(records(batch), SCHEMA), batch)


def count(path: Path) -> int:
    """Return how many rows a user counts."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("select count(*) from records").fetchone()[0])


def execute(path: Path, statement: str) -> None:
    """Run a statement in the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def test_at_most_once_writes_without_a_mark_in_sqlite(shop: Path) -> None:
    """And at least once too, where the marks cannot be kept."""
    table = Table(f"sqlite:///{shop}", "records")
    with closing(open_store("memory://")) as store:
        assert isinstance(table.prepare(store, Guarantee.AT_MOST_ONCE), Writer)
        assert isinstance(table.prepare(store, Guarantee.AT_LEAST_ONCE), Lander)
        execute(shop, "drop table offsetkeeper_marks")
        execute(shop, "create view offsetkeeper_marks as select 1 as one")
        assert isinstance(table.prepare(store, Guarantee.AT_LEAST_ONCE), Writer)
        with pytest.raises(Refused, match=r"need select, insert and update on .*CREATE TABLE"):
            table.prepare(store, Guarantee.EXACTLY_ONCE)


SWALLOW = "create trigger swallow {} on offsetkeeper_marks begin {}; end"


@pytest.mark.parametrize(
    ("when", "what"),
    [
        ("before insert", "select raise(ignore)"),
        ("before update", "select raise(ignore)"),
        ("after update", "delete from offsetkeeper_marks"),
    ],
)
def test_a_start_is_refused_where_a_trigger_does_not_keep_the_mark_in_sqlite(
    spark: SparkSession, shop: Path, when: str, what: str
) -> None:
    """Else the rows are there without a mark."""
    write(spark, lander(shop), 1)
    if "insert" in when:
        execute(shop, "delete from offsetkeeper_marks")
    execute(shop, SWALLOW.format(when, what))
    with pytest.raises(Refused, match=r"does not keep the mark of group 'billing'.*trigger swallow of table"):
        lander(shop).seen(KEY)
    with pytest.raises(Refused, match="Nothing was written: change it for this table"):
        write(spark, lander(shop), 2)
    assert count(shop) == 3
    execute(shop, "drop trigger swallow")
    write(spark, lander(shop), 2)
    assert count(shop) == 6


@pytest.mark.parametrize("when", ["before insert", "before update"])
def test_a_trigger_that_is_made_after_the_start_takes_the_rows_with_the_mark_in_sqlite(
    spark: SparkSession, shop: Path, when: str
) -> None:
    """The statement of each landing says that it has changed one row."""
    running = lander(shop)
    if "update" in when:
        write(spark, running, 1)
    running.seen(KEY)
    kept = count(shop)
    execute(shop, SWALLOW.format(when, "select raise(ignore)"))
    with pytest.raises(Refused, match="does not keep the mark of group 'billing'"):
        write(spark, running, 2)
    assert count(shop) == kept


def test_a_view_in_the_place_of_the_marks_is_refused_at_a_start(shop: Path) -> None:
    lander(shop)
    execute(shop, "alter table offsetkeeper_marks rename to kept")
    execute(shop, "create view offsetkeeper_marks as select * from kept")
    for when in ("insert", "update"):
        execute(shop, f"create trigger {when}s instead of {when} on offsetkeeper_marks begin select 1; end")
    with pytest.raises(Refused, match="trigger inserts of table offsetkeeper_marks"):
        lander(shop).seen(KEY)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_start_does_not_wait_for_a_run_that_holds_the_lock_of_the_file(
    spark: SparkSession, shop: Path, journal: str
) -> None:
    """Then the run's first landing tries what the start could not."""
    execute(shop, f"pragma journal_mode = {journal}")
    write(spark, lander(shop), 1)
    newer = lander(shop)
    with closing(sqlite3.connect(shop, isolation_level=None)) as stalled:
        stalled.execute("begin immediate")
        stalled.execute("update offsetkeeper_marks set mark = mark")
        began = time.monotonic()
        assert newer.seen(KEY).mark == OutputMark.of(batch_of(1), newer.writes_to)
        assert time.monotonic() - began < 10
        stalled.execute("rollback")
    execute(shop, SWALLOW.format("after update", "delete from offsetkeeper_marks"))
    with pytest.raises(Refused, match="does not keep the mark of group 'billing'"):
        write(spark, newer, 2)
    assert count(shop) == 3


def test_a_batch_of_which_a_trigger_leaves_rows_out_leaves_the_mark(spark: SparkSession, shop: Path) -> None:
    execute(
        shop,
        'create trigger odd before insert on records when new."offset" % 2 = 1 begin select raise(ignore); end',
    )
    way = lander(shop)
    with pytest.raises(Refused, match="of 3 rows of a batch the database has inserted 2; nothing was written"):
        write(spark, way, 1)
    assert (way.seen(KEY).mark, count(shop)) == (None, 0)


def test_a_batch_that_does_not_fit_the_table_leaves_the_mark(spark: SparkSession, shop: Path) -> None:
    execute(shop, 'create unique index one on records ("partition")')
    way = lander(shop)
    with pytest.raises(SinkError, match=r"UNIQUE constraint failed.*nothing was written"):
        write(spark, way, 1)
    assert (way.seen(KEY).mark, count(shop)) == (None, 0)


def test_a_table_that_changes_between_batches_is_looked_at_again_in_sqlite(spark: SparkSession, shop: Path) -> None:
    way = lander(shop)
    write(spark, way, 1)
    execute(shop, "alter table records add column note text default 'none'")
    write(spark, way, 2)
    execute(shop, "alter table records drop column note")
    execute(shop, "alter table records add column owner text not null default ''")
    write(spark, way, 3)
    assert count(shop) == 9


def test_a_table_that_is_made_again_after_it_was_staged_for_takes_the_rows(spark: SparkSession, shop: Path) -> None:
    way, batch = lander(shop), batch_of(1)
    staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
    execute(shop, "drop table records")
    with pytest.raises(SinkError, match="no such table"):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch), staged)
    assert way.seen(KEY).mark is None
    execute(shop, TABLE)
    write(spark, way, 1)
    assert count(shop) == 3


def test_marks_that_are_gone_stop_the_run_and_are_not_taken_for_none_in_sqlite(spark: SparkSession, shop: Path) -> None:
    """Only the next start makes the table again, and compares it with the ledger."""
    way = lander(shop)
    write(spark, way, 1)
    execute(shop, "drop table offsetkeeper_marks")
    with pytest.raises(Refused, match="no such table"):
        write(spark, way, 1)
    assert count(shop) == 3


def test_a_mark_that_somebody_else_wrote_is_refused(spark: SparkSession, shop: Path) -> None:
    way = lander(shop)
    write(spark, way, 1)
    execute(shop, "update offsetkeeper_marks set mark = 'done'")
    with pytest.raises(MarkError, match="is not a mark of offsetkeeper"):
        write(spark, way, 2)
    assert count(shop) == 3


def test_a_file_that_is_away_is_told_and_not_made(spark: SparkSession, shop: Path) -> None:
    way, batch = lander(shop), batch_of(1)
    staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
    seen = way.seen(KEY)
    shop.rename(shop.with_name("away"))
    with pytest.raises(Refused, match="unable to open"):
        way.land(KEY, seen, OutputMark.of(batch), staged)
    assert not shop.exists()
    shop.with_name("away").rename(shop)
    way.land(KEY, seen, OutputMark.of(batch), staged)
    assert count(shop) == 3


def test_a_locked_file_is_tried_again(spark: SparkSession, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = lander(shop)
    monkeypatch.setattr("offsetkeeper.sinks.sqlite.TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(shop, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(SinkError, match="database is locked; nothing was written"):
            write(spark, way, 1)
    write(spark, way, 1)
    assert count(shop) == 3


def test_a_commit_that_waits_for_a_reader_in_vain_has_written_nothing(
    spark: SparkSession, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers hold up a commit where the file has no write-ahead log."""
    way = lander(shop)
    monkeypatch.setattr("offsetkeeper.sinks.sqlite.TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(shop, isolation_level=None)) as reader:
        reader.execute("begin")
        assert reader.execute("select count(*) from records").fetchall() == [(0,)]
        with pytest.raises(SinkError, match="database is locked; nothing was written"):
            write(spark, way, 1)
    assert (way.seen(KEY).mark, count(shop)) == (None, 0)


def test_the_mark_is_compared_once_more_as_it_is_changed_in_sqlite(spark: SparkSession, shop: Path) -> None:
    """By what changes it: here another run is faster between the look and the change."""
    way, batch = lander(shop), batch_of(1)
    finish = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)

    def overtaken(connection: sqlite3.Connection) -> None:
        finish(connection)  # type: ignore[operator]
        connection.execute("update offsetkeeper_marks set mark = '9 other digest'")
        connection.execute("insert or ignore into offsetkeeper_marks values ('billing', '', '9 other digest')")

    for before in (None, batch_of(1)):
        if before:
            write(spark, way, before.sequence)
        with pytest.raises(MarkMoved, match="group 'billing', output ''"):
            way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(2)), overtaken)
    assert count(shop) == 3


def test_a_driver_that_is_killed_before_its_commit_leaves_neither_rows_nor_mark(
    spark: SparkSession, shop: Path
) -> None:
    way = lander(shop)
    assert subprocess.run([sys.executable, "-c", DIES, str(shop)], check=False, timeout=60).returncode == 9
    assert (way.seen(KEY).mark, count(shop)) == (None, 0)
    write(spark, way, 1)
    assert count(shop) == 3


def test_a_commit_waits_for_the_disk_and_for_the_folder(shop: Path) -> None:
    """What a build of SQLite does by itself may wait for neither, and a file that is not in WAL mode needs both."""
    found: list[object] = []
    database = SQLiteDatabase(shop, "shop")
    for use in (database.run, database.transaction):
        use(lambda connection: found.append(connection.execute("pragma synchronous").fetchone()))
    assert found == [(3,), (3,)]  # EXTRA


def test_a_commit_that_fails_half_way_is_told_as_unknown(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(sqlite3.Connection):
        def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
            if sql == "COMMIT":
                self.rollback()
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, parameters)  # type: ignore[arg-type]

    way = lander(shop)
    monkeypatch.setattr("offsetkeeper.sinks.sqlite.Connection", Failing)
    with pytest.raises(OutcomeUnknown, match="half-way"):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch_of(1)), None)


def test_groups_and_outputs_with_odd_names_are_kept_apart(shop: Path) -> None:
    way = lander(shop)
    keys = [MarkKey(group, output) for group in ("a", "A", "a'b", 'a"%s') for output in ("", "o", "O ", "ö?")]
    for number, key in enumerate(keys):
        way.land(key, way.seen(key), OutputMark.of(batch_of(number + 1)), None)
    assert [way.seen(key).mark for key in keys] == [OutputMark.of(batch_of(n + 1)) for n in range(len(keys))]
