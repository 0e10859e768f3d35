"""Rows into a MariaDB database that the ledger is not in: each batch once, by a mark in the database of the rows."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, ClassVar

import pymysql
import pytest
from pyspark.sql import SparkSession

from offsetkeeper.clients import mysql_server
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee, Landed
from offsetkeeper.errors import MarkMoved, Refused, SinkError, StoreUnavailable
from offsetkeeper.sinks import Joiner, Lander, MarkKey, Seen, Table, Writer
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores import open_store
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import SCHEMA, Record, batch_of, records
from offsetkeeper.testing.mariadb import MariaDBServer
from offsetkeeper.testing.proxy import TcpProxy
from offsetkeeper.testing.server import wait_until
from sinks.marks_suite import KEY, Marked, MarksSuite, lander, prepared, write

Query = Callable[..., list[Any]]
TABLE = "create table {}records (batch varchar(200), topic varchar(249), `partition` int, `offset` bigint)"


class TestMySQLTable(LanderConformance):
    """Each output is a table in a database of its own."""

    @pytest.fixture(autouse=True)
    def _connected(self, mariadb_server: MariaDBServer, execute: Query) -> None:
        self.server, self.execute = mariadb_server, execute
        self.databases: dict[str, str] = {}

    def make(self, name: str) -> None:
        """See `LanderConformance`."""
        self.databases[name] = self.server.create_database()
        self.execute(TABLE.format(f"{self.databases[name]}."))

    def open(self, name: str) -> Table:
        """See `LanderConformance`."""
        return Table(self.server.url(self.databases[name]), "records")

    def read(self, name: str) -> Iterable[Record]:
        """See `LanderConformance`."""
        return self.execute(f"select * from {self.databases[name]}.records")  # noqa: S608 - a word


@pytest.fixture
def execute(mariadb_server: MariaDBServer) -> Query:
    """`execute(statement)` runs it on the server, and returns what it finds."""
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "autocommit": True}

    def query(text: str) -> list[Any]:
        with pymysql.connect(**settings) as connection, connection.cursor() as cursor:
            cursor.execute(text)
            return [*cursor.fetchall()]

    return query


@pytest.fixture
def shop(mariadb_server: MariaDBServer, execute: Query) -> str:
    """Name of a database with a table of records."""
    name = mariadb_server.create_database()
    execute(TABLE.format(f"{name}."))
    return name


@pytest.fixture
def twin(mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MariaDBServer]:
    """Another server, whose names are those of the first one: its port and its folder are not asked for here."""
    assert mariadb_server.port
    monkeypatch.setattr(mysql_server, "_NAMES", ("hostname", "version"))
    with MariaDBServer(fsync=False) as server:
        yield server


@pytest.fixture
def proxy(mariadb_server: MariaDBServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", mariadb_server.port) as proxy:
        yield proxy


class TestMarks(MarksSuite):
    """A database of its own."""

    table = TABLE.format("")
    told: ClassVar[dict[str, str]] = {
        "table": "has no table records",
        "marks": "offsetkeeper_marks' doesn't exist",
        "faster": "group 'billing', output ''|Record has changed",
    }
    sent: ClassVar[dict[str, bytes]] = {"mark": b"UPDATE ", "rows": b"INSERT INTO `", "commit": b"COMMIT"}

    @pytest.fixture
    def marked(self, mariadb_server: MariaDBServer, shop: str, proxy: TcpProxy) -> Marked:
        """See `MarksSuite`."""
        settings: dict[str, Any] = {"port": mariadb_server.port, "database": shop, "autocommit": True}

        def ask(statement: str) -> Any:
            with pymysql.connect(host="127.0.0.1", user="root", **settings) as connection, connection.cursor() as it:
                it.execute(statement)
                return it.fetchall()

        return Marked(mariadb_server.url(shop), mariadb_server.url(shop, port=proxy.port), proxy, ask)


@pytest.fixture
def count(execute: Query, shop: str) -> Callable[[], int]:
    """`count()` returns how many rows a user counts."""
    return lambda: int(execute(f"select count(*) from {shop}.records")[0][0])  # noqa: S608 - a word


def test_rows_join_the_offsets_of_the_same_database_alone(mariadb_server: MariaDBServer, shop: str) -> None:
    url, spelled = mariadb_server.url(shop), mariadb_server.url(shop).replace("mysql://", "mariadb://")
    other = mariadb_server.url(mariadb_server.create_database())
    assert isinstance(prepared(spelled, Guarantee.EXACTLY_ONCE, store=url), Joiner)
    assert isinstance(prepared(url, Guarantee.EXACTLY_ONCE, store=other), Lander)
    assert isinstance(prepared(url, Guarantee.AT_LEAST_ONCE, store=other), Lander)
    assert isinstance(prepared(url, Guarantee.AT_MOST_ONCE, store=other), Writer)


@pytest.mark.usefixtures("shop")
def test_the_marks_are_in_the_database_of_the_rows(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, execute: Query, count: Callable[[], int]
) -> None:
    """Also where the URL names another one."""
    write(spark, lander(mariadb_server.url(shop)), 1)
    write(spark, lander(mariadb_server.url("mysql"), f"{shop}.records"), 1)
    found = execute(f"select group_name, output, mark from {shop}.offsetkeeper_marks")  # noqa: S608 - a word
    assert found == [(b"billing", b"", str(OutputMark.of(batch_of(1), "records")).encode())]
    assert count() == 3


@pytest.mark.parametrize("engine", ["Aria", "MEMORY"])
def test_marks_that_do_not_commit_with_the_rows_are_refused(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, execute: Query, count: Callable[[], int], engine: str
) -> None:
    """A mark that is there before the rows are would take a batch for written that is rolled back."""
    url = mariadb_server.url(shop)
    lander(url)
    execute(f"alter table {shop}.offsetkeeper_marks engine = {engine}")
    with pytest.raises(Refused, match=f"kept by {engine}, which does not commit together") as refused:
        lander(url)
    assert isinstance(prepared(url, Guarantee.AT_LEAST_ONCE), Writer)
    execute(str(refused.value).rpartition(": ")[2])
    write(spark, lander(url), 1)
    assert count() == 3


def test_a_server_that_makes_tables_by_another_engine_is_refused_in_mysql(
    mariadb_server: MariaDBServer, shop: str, execute: Query
) -> None:
    """As enforce_storage_engine has it, silently, unless the mode of the session forbids that."""
    url = mariadb_server.url(shop)
    execute("set global enforce_storage_engine = Aria")
    execute("set global sql_mode = ''")
    try:
        with pytest.raises(Refused, match="unset enforce_storage_engine"):
            lander(url)
    finally:
        execute("set global enforce_storage_engine = default")
        execute("set global sql_mode = default")
    assert execute(f"show tables from {shop}") == [("records",)]
    lander(url)


def test_runs_that_make_the_marks_at_once_do_not_disturb_one_another_in_mysql(
    mariadb_server: MariaDBServer, shop: str
) -> None:
    with ThreadPoolExecutor(8) as pool:
        ways = [*pool.map(lambda _: lander(mariadb_server.url(shop)), range(8))]
    assert [way.seen(KEY) for way in ways] == [Seen(None)] * 8


CHANGED = "create trigger {0}.other before {1} on {0}.offsetkeeper_marks for each row set new.mark = {2}"


@pytest.mark.parametrize(("when", "what"), [("insert", "'1 a b'"), ("update", "old.mark")])
def test_a_start_is_refused_where_a_trigger_changes_the_mark(
    spark: SparkSession,
    mariadb_server: MariaDBServer,
    shop: str,
    execute: Query,
    count: Callable[[], int],
    when: str,
    what: str,
) -> None:
    """Else the next start would take the rows for those of another batch, or for lost."""
    url = mariadb_server.url(shop)
    lander(url)
    if when == "update":
        write(spark, lander(url), 1)
    kept = count()
    execute(CHANGED.format(shop, when, what))
    with pytest.raises(Refused, match=r"not keep the mark of group 'billing'.*trigger other of table"):
        lander(url).seen(KEY)
    with pytest.raises(Refused, match="Nothing was written: change it for this table"):
        write(spark, lander(url), 2)
    assert count() == kept
    execute(f"drop trigger {shop}.other")
    write(spark, lander(url), 2)
    assert count() == kept + 3


@pytest.mark.parametrize("kept", [0, 3])
def test_a_start_does_not_wait_for_a_landing_that_another_run_has_under_way_in_mysql(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, execute: Query, count: Callable[[], int], kept: int
) -> None:
    """Then the run's first landing tries what the start could not."""
    url = mariadb_server.url(shop)
    older = lander(url)
    if kept:
        write(spark, older, 1)
    newer = lander(url)
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "database": shop}
    with pymysql.connect(**settings) as stalled:
        change = "update offsetkeeper_marks set mark = concat(mark, '-')"
        stalled.cursor().execute(change if kept else "insert into offsetkeeper_marks values ('billing', '', '1 a b')")
        began = time.monotonic()
        assert (newer.seen(KEY).mark is not None) == bool(kept)
        assert time.monotonic() - began < 10
        stalled.rollback()
    execute(CHANGED.format(shop, "update" if kept else "insert", "'1 a b'"))
    with pytest.raises(Refused, match="does not keep the mark of group 'billing'"):
        write(spark, newer, 2)
    assert count() == kept


@pytest.mark.usefixtures("all_staged")
def test_a_server_that_is_killed_between_staging_and_landing_takes_nothing_that_was_told_as_staged(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, count: Callable[[], int]
) -> None:
    way, batch = lander(mariadb_server.url(shop)), batch_of(1)
    staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
    mariadb_server.restart()
    way.land(KEY, way.seen(KEY), OutputMark.of(batch), staged)
    write(spark, way, 1)
    assert count() == 3


def test_a_driver_that_stalls_within_its_landing_holds_up_the_next_for_no_longer_than_the_timeout_in_mysql(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, count: Callable[[], int]
) -> None:
    """The server ends its session, so that nothing of it lands when it wakes up."""
    way, newer, batch = lander(mariadb_server.url(shop) + "?timeout=2"), lander(mariadb_server.url(shop)), batch_of(2)
    write(spark, way, 1)
    staged: Any = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)

    def stalls(connection: Any) -> None:
        staged(connection)
        connection.execute(f"update {shop}.offsetkeeper_marks set mark = concat(mark)")  # noqa: S608 - its locks
        connection.execute(f"delete from {shop}.offsetkeeper_marks where group_name = 'none'")  # noqa: S608
        write(spark, newer, 2)

    with pytest.raises(SinkError):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch), stalls)
    assert count() == 6


def test_a_table_that_is_made_again_beside_its_mark_is_not_noticed(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, execute: Query, count: Callable[[], int]
) -> None:
    """Its rows are gone. The server shows a table's id to users with PROCESS alone, and a time that ALTER changes."""
    url = mariadb_server.url(shop)
    way = lander(url)
    write(spark, way, 1)
    landed = Landed(1, way.seen(KEY).target)
    execute(f"drop table {shop}.records")
    execute(TABLE.format(f"{shop}."))
    newer, batch = lander(url), batch_of(2)
    Once(newer, "").write(spark.createDataFrame(records(batch), SCHEMA), batch, landed)
    assert (landed.target, count()) == ("", 3)


@pytest.mark.usefixtures("all_staged")
def test_a_run_that_stages_leaves_alone_what_another_has_staged_in_mysql(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, count: Callable[[], int]
) -> None:
    ways = [lander(mariadb_server.url(shop)) for _ in range(2)]
    batch = batch_of(1)
    staged = [way.stage(spark.createDataFrame(records(batch), SCHEMA), batch) for way in ways]
    ways[0].land(KEY, Seen(None), OutputMark.of(batch), staged[0])
    with pytest.raises(MarkMoved):
        ways[1].land(KEY, Seen(None), OutputMark.of(batch), staged[1])
    assert count() == 3


@pytest.mark.usefixtures("all_staged")
def test_staged_rows_that_never_landed_are_dropped_with_the_next_batch_in_mysql(
    spark: SparkSession, mariadb_server: MariaDBServer, shop: str, execute: Query, count: Callable[[], int]
) -> None:
    """But for what a task still writes to, for which nobody waits."""
    url, batch = mariadb_server.url(shop), batch_of(1)
    way, frame = lander(url), spark.createDataFrame(records(batch), SCHEMA)
    tables = f"select table_name from information_schema.tables where table_schema = '{shop}' and table_name like "  # noqa: S608
    staged = way.stage(frame, batch)
    way.land(KEY, way.seen(KEY), OutputMark.of(batch, void=True), None)
    with pytest.raises(MarkMoved):
        way.land(KEY, Seen(None), OutputMark.of(batch), staged)
    way.stage(frame, batch)
    [(left,)] = execute(tables + "'offsetkeeper\\_%\\_%'")
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root", "database": shop}
    with pymysql.connect(**settings) as zombie:
        zombie.cursor().execute(f"insert into {left} (attempt) values (1)")  # noqa: S608 - ours
        write(spark, lander(url), 2)
    assert execute(tables + "'offsetkeeper\\_%\\_%'") == [(left,)]
    write(spark, lander(url), 3)
    assert (execute(tables + "'offsetkeeper\\_%\\_%'"), count()) == ([], 6)


def test_a_server_that_is_read_only_shows_no_mark(mariadb_server: MariaDBServer, shop: str, execute: Query) -> None:
    """It may be a replica: an older mark would say that rows are lost, which are there. A kept connection is asked too.

    This user may write into such a server.
    """
    way = lander(mariadb_server.url(shop))
    way.land(KEY, way.seen(KEY), mark := OutputMark.of(batch_of(1)), None)
    seen = way.seen(KEY)
    execute("set global read_only = 1")
    try:
        for act in (
            lambda: way.land(KEY, seen, OutputMark.of(batch_of(2)), None),
            lambda: lander(mariadb_server.url(shop)),
        ):
            with pytest.raises((SinkError, StoreUnavailable), match="read-only for now, or a replica"):
                act()
        execute("set global read_only = 0")
        way.seen(KEY)
        execute("set global read_only = 1")
        with pytest.raises(SinkError, match="read-only for now, or a replica"):
            way.seen(KEY)
    finally:
        execute("set global read_only = 0")
    assert lander(mariadb_server.url(shop)).seen(KEY).mark == mark


def test_groups_outputs_and_databases_with_odd_names_are_kept_apart(
    mariadb_server: MariaDBServer, shop: str, execute: Query
) -> None:
    odd = f"My Shop %s {shop}"
    execute(f"create database `{odd}`")
    execute(TABLE.format(f"`{odd}`."))
    ways = [lander(mariadb_server.url(shop)), lander(mariadb_server.url(shop), f'"{odd}".records')]
    keys = [
        MarkKey(group, output) for group in ("a", "A", "a'b", 'a"%s') for output in ("", "o", "o ", "ö", "\U0001f600")
    ]
    for number, (way, key) in enumerate((way, key) for way in ways for key in keys):
        way.land(key, way.seen(key), OutputMark.of(batch_of(number + 1)), None)
    found = [way.seen(key).mark for way in ways for key in keys]
    assert found == [OutputMark.of(batch_of(number + 1)) for number in range(len(found))]


def test_a_table_that_nobody_uses_any_more_keeps_no_connection(
    mariadb_server: MariaDBServer, shop: str, execute: Query
) -> None:
    mine = f"select id from information_schema.processlist where db = '{shop}'"  # noqa: S608 - a word
    table = Table(mariadb_server.url(shop), "records")
    with closing(open_store("memory://test")) as store:
        table.prepare(store, Guarantee.EXACTLY_ONCE)
    assert execute(mine)
    del table
    gc.collect()
    wait_until(lambda: not execute(mine), "its connection was closed", 30)


def test_a_copy_of_the_ledgers_server_is_not_taken_for_it(
    spark: SparkSession, mariadb_server: MariaDBServer, twin: MariaDBServer, shop: str, count: Callable[[], int]
) -> None:
    """Host, port and folder are the same in two clusters of containers, and so may the database be."""
    twin.create_database(shop)
    with closing(open_store(twin.url(shop))) as store:
        way = Table(mariadb_server.url(shop), "records").prepare(store, Guarantee.EXACTLY_ONCE)
        assert isinstance(way, Lander)
        write(spark, way, 1)
        assert count() == 3
    with closing(open_store(mariadb_server.url(shop))) as store:
        assert isinstance(Table(mariadb_server.url(shop), "records").prepare(store, Guarantee.EXACTLY_ONCE), Joiner)


def test_a_lock_of_the_server_that_another_session_keeps_is_waited_for_shorter_than_an_answer(
    mariadb_server: MariaDBServer, shop: str
) -> None:
    """The connection broke, and the start said that the server was away."""
    url = f"{mariadb_server.url(shop)}?timeout=2"
    with pymysql.connect(host="127.0.0.1", port=mariadb_server.port, user="root") as other, other.cursor() as cursor:
        cursor.execute("select get_lock('offsetkeeper.identity', 0)")
        assert cursor.fetchall() == ((1,),)
        assert isinstance(prepared(url, Guarantee.EXACTLY_ONCE, store=url), Joiner)


def test_the_holder_of_the_lock_may_change_while_two_answers_are_compared(
    mariadb_server: MariaDBServer, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the table would be written by a mark, and the next start by the ledger's transaction."""
    url, holders = f"{mariadb_server.url(shop)}?timeout=2", iter([7, 8, 9, 9])
    monkeypatch.setattr("offsetkeeper.clients.mysql_server.database_identity", lambda _: f"server:lock={next(holders)}")
    with closing(open_store(url)) as store:
        monkeypatch.setattr(store, "identity", lambda: f"server:lock={next(holders)}")
        assert isinstance(Table(url, "records").prepare(store, Guarantee.EXACTLY_ONCE), Joiner)


def test_the_lock_of_the_server_is_given_back_whatever_the_store_says(
    mariadb_server: MariaDBServer, shop: str, execute: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection lives on in its pool, and other starts waited ten seconds for it."""

    def away() -> str:
        raise StoreUnavailable("away")

    url = mariadb_server.url(shop)
    with closing(open_store(url)) as store:
        monkeypatch.setattr(store, "identity", away)
        table = Table(url, "records")
        with pytest.raises(SinkError, match="away"):
            table.prepare(store, Guarantee.EXACTLY_ONCE)
        assert execute("select is_free_lock('offsetkeeper.identity')") == [(1,)]
