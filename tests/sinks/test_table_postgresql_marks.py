"""Rows into a PostgreSQL database that the ledger is not in: each batch once, by a mark in the schema of the rows."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import MarkMoved, Refused, SinkError
from offsetkeeper.sinks import Lander, MarkKey, Table, Writer
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import SCHEMA, Record, batch_of, records
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import TcpProxy
from sinks.marks_suite import KEY, Marked, MarksSuite, lander, prepared, write

Connection = psycopg.Connection[Any]
TABLE = 'create table {} (batch text, topic text, "partition" int, "offset" bigint)'


class TestPostgreSQLTable(LanderConformance):
    """Each output is a table in a schema of its own."""

    @pytest.fixture(autouse=True)
    def _connected(self, database: str, connection: Connection) -> None:
        self.url, self.connection = database, connection

    def make(self, name: str) -> None:
        """See `LanderConformance`."""
        self.connection.execute(f"create schema {name}".encode())
        self.connection.execute(TABLE.format(f"{name}.records").encode())

    def open(self, name: str) -> Table:
        """See `LanderConformance`."""
        return Table(self.url, f"{name}.records")

    def read(self, name: str) -> Iterable[Record]:
        """See `LanderConformance`."""
        return self.connection.execute(f"select * from {name}.records".encode()).fetchall()  # noqa: S608 - a word


@pytest.fixture
def shop(connection: Connection) -> Connection:
    """A connection to a database with a table of records."""
    connection.execute(TABLE.format("records").encode())
    return connection


@pytest.fixture
def proxy(postgresql_server: PostgreSQLServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", postgresql_server.port) as proxy:
        yield proxy


class TestMarks(MarksSuite):
    """A database of its own."""

    table = TABLE.format("records")
    told: ClassVar[dict[str, str]] = {
        "table": r"has no table public\.records",
        "marks": r"offsetkeeper_marks. does not exist",
        "faster": "group 'billing', output ''",
    }
    sent: ClassVar[dict[str, bytes]] = {
        "mark": b"UPDATE ",
        "rows": b"insert into ",
        "commit": b"Q\x00\x00\x00\x0bcommit\x00",  # alone in its message
    }

    @pytest.fixture
    def marked(self, shop: Connection, database: str, proxy: TcpProxy, postgresql_server: PostgreSQLServer) -> Marked:
        """See `MarksSuite`."""

        def ask(statement: str) -> Any:
            cursor = shop.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        return Marked(database, postgresql_server.url(shop.info.dbname, port=proxy.port), proxy, ask)


def count(connection: Connection) -> int:
    """Return how many rows a user counts."""
    return int(connection.execute("select count(*) from records").fetchall()[0][0])


@pytest.mark.usefixtures("shop")
def test_at_most_once_writes_without_a_mark_in_postgresql(database: str) -> None:
    assert isinstance(prepared(database, Guarantee.AT_MOST_ONCE), Writer)
    assert isinstance(prepared(database, Guarantee.AT_LEAST_ONCE), Lander)


def test_the_marks_are_where_the_rows_are_whatever_the_search_path(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    """Else another user would find none, and write the last batch again."""
    write(spark, lander(database), 1)
    shop.execute("create schema desk")
    write(spark, lander(database + "?options=-csearch_path%3Ddesk,public"), 1)
    assert shop.execute("select group_name, output, mark from public.offsetkeeper_marks").fetchall() == [
        ("billing", "", str(OutputMark.of(batch_of(1), lander(database).writes_to)))
    ]
    assert count(shop) == 3


def test_a_user_without_permission_for_the_marks_is_told_each_remedy(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    """At least once goes on without marks."""
    shop.execute("drop role if exists teller; create role teller login; create schema teller authorization teller")
    shop.execute("grant insert on records to teller")
    url = database.replace("postgres@", "teller@")
    with pytest.raises(Refused, match=r"(?s)permission denied for schema public.*CREATE TABLE") as refused:
        lander(url)
    shop.execute(str(refused.value).partition("creates it: ")[2].encode())
    with pytest.raises(Refused, match="permission denied for table offsetkeeper_marks"):
        lander(url)
    assert isinstance(prepared(url, Guarantee.AT_LEAST_ONCE), Writer)
    shop.execute("grant select, insert, update on offsetkeeper_marks to teller")
    way = lander(url)
    write(spark, way, 1)
    shop.execute("revoke update on offsetkeeper_marks from teller")
    with pytest.raises(Refused, match="permission denied for table offsetkeeper_marks"):
        write(spark, way, 2)
    assert count(shop) == 3


@pytest.mark.usefixtures("shop")
def test_runs_that_make_the_marks_at_once_do_not_disturb_one_another_in_postgresql(database: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        ways = [*pool.map(lambda _: lander(database), range(8))]
    assert [way.seen(KEY).mark for way in ways] == [None] * 8


def test_marks_that_a_crash_empties_are_refused(spark: SparkSession, database: str, shop: Connection) -> None:
    """The rows would still be there."""
    lander(database)
    shop.execute("alter table offsetkeeper_marks set unlogged")
    with pytest.raises(Refused, match="offsetkeeper_marks is unlogged, so a crash of the server empties it") as refused:
        lander(database)
    shop.execute(str(refused.value).rpartition(": ")[2].encode())
    write(spark, lander(database), 1)
    shop.execute("alter table offsetkeeper_marks rename to a; create view offsetkeeper_marks as select * from a")
    with pytest.raises(Refused, match="offsetkeeper_marks is a view"):
        lander(database)
    assert count(shop) == 3


FUNCTION = "create or replace function swallow() returns trigger language plpgsql as $${}$$"
TRIGGER = "create {} trigger swallow {} on offsetkeeper_marks {} for each row execute function swallow()"
SWALLOWED = {
    "before an insert": ("", "before insert", "", "return null"),
    "after an insert": ("", "after insert", "", "delete from offsetkeeper_marks; return null"),
    "another text": ("", "before insert", "", "new.mark = '1 a b'; return new"),
    "before an update": ("", "before update", "", "return null"),
    "after an update": ("", "after update of mark", "", "delete from offsetkeeper_marks; return null"),
    "at the commit": (
        "constraint",
        "after update",
        "initially deferred",
        "delete from offsetkeeper_marks; return null",
    ),
    "a later one": ("", "before update", "", "new.mark = old.mark; return new"),
}
Swallow = Callable[[str], None]


@pytest.fixture
def swallow(shop: Connection) -> Swallow:
    """`swallow(way)` makes a trigger that keeps no mark."""

    def make(way: str) -> None:
        kind, when, deferred, what = SWALLOWED[way]
        shop.execute(FUNCTION.format(f"begin {what}; end").encode())
        shop.execute(TRIGGER.format(kind, when, deferred).encode())

    return make


@pytest.mark.parametrize("way", SWALLOWED)
def test_a_start_is_refused_where_a_trigger_does_not_keep_the_mark_in_postgresql(
    spark: SparkSession, database: str, shop: Connection, swallow: Swallow, way: str
) -> None:
    """Else the rows are there without a mark, and come twice if the answer to their commit is lost."""
    lander(database)
    if "update" in SWALLOWED[way][1]:
        write(spark, lander(database), 1)
    kept = count(shop)
    swallow(way)
    with pytest.raises(
        Refused,
        match=r"not keep the mark of group 'billing'.*trigger swallow of table offsetkeeper_\w+ is in",
    ):
        lander(database).seen(KEY)
    with pytest.raises(Refused, match="Nothing was written: change it for this table"):
        write(spark, lander(database), 2)
    assert count(shop) == kept
    shop.execute("drop trigger swallow on offsetkeeper_marks")
    write(spark, lander(database), 2)
    assert count(shop) == kept + 3


@pytest.mark.parametrize("way", ["before an update", "before an insert"])
def test_a_trigger_that_is_made_after_the_start_takes_the_rows_with_the_mark_in_postgresql(
    spark: SparkSession, database: str, shop: Connection, swallow: Swallow, way: str
) -> None:
    """The statement of each landing says that it has changed one row."""
    running = lander(database)
    if "update" in way:
        write(spark, running, 1)
    assert (running.seen(KEY).mark is None) == ("insert" in way)
    kept = count(shop)
    swallow(way)
    with pytest.raises(Refused, match="does not keep the mark of group 'billing'"):
        write(spark, running, 2)
    assert count(shop) == kept


def test_a_rule_in_the_place_of_the_mark_is_refused_at_a_start(database: str, shop: Connection) -> None:
    lander(database)
    shop.execute("create rule away as on insert to offsetkeeper_marks do instead nothing")
    with pytest.raises(Refused, match="rule away of table offsetkeeper_marks is in the way"):
        lander(database).seen(KEY)


def test_a_start_leaves_no_trace_in_the_marks(spark: SparkSession, database: str, shop: Connection) -> None:
    way = lander(database)
    assert way.seen(KEY).mark is None
    assert shop.execute("select * from offsetkeeper_marks").fetchall() == []
    write(spark, way, 1)
    again = lander(database)
    assert again.seen(KEY).mark == OutputMark.of(batch_of(1), again.writes_to)
    assert shop.execute("select mark from offsetkeeper_marks").fetchall() == [
        (str(OutputMark.of(batch_of(1), again.writes_to)),)
    ]


@pytest.mark.parametrize("kept", [0, 3])
def test_a_start_does_not_wait_for_a_landing_that_another_run_has_under_way_in_postgresql(
    spark: SparkSession, database: str, shop: Connection, swallow: Swallow, kept: int
) -> None:
    """Then the run's first landing tries what the start could not."""
    older = lander(database)
    if kept:
        write(spark, older, 1)
    newer = lander(database)
    with psycopg.connect(database) as stalled:
        if not kept:
            stalled.execute("insert into offsetkeeper_marks values ('billing', '', '1 a b')")
        else:
            stalled.execute("update offsetkeeper_marks set mark = mark")
        assert (newer.seen(KEY).mark is not None) == bool(kept)
        stalled.rollback()
    swallow("after an update" if kept else "after an insert")
    with pytest.raises(Refused, match="does not keep the mark"):
        write(spark, newer, 2)
    assert count(shop) == kept


def secured(shop: Connection, database: str, role: str) -> str:
    """Return the URL of a user for whom row-level security hides all marks."""
    shop.execute(f"drop role if exists {role}; create role {role} login".encode())
    shop.execute(
        f"grant create on schema public to {role}; grant all on all tables in schema public to {role}".encode()
    )
    shop.execute("alter table offsetkeeper_marks enable row level security")
    return database.replace("postgres@", f"{role}@")


def test_a_mark_that_row_level_security_hides_refuses_the_start_and_is_named(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    """A mark that is there and hidden is not taken for one that was lost with its rows."""
    lander(database)
    url = secured(shop, database, "cashier")
    with pytest.raises(Refused, match="new row violates row-level security policy"):
        lander(url).seen(KEY)
    shop.execute("create policy writes on offsetkeeper_marks for insert with check (true)")
    with pytest.raises(Refused, match="row-level security of table offsetkeeper_marks for user cashier is in the way"):
        lander(url).seen(KEY)
    shop.execute("create policy reads on offsetkeeper_marks for select using (true)")
    with pytest.raises(Refused, match="row-level security of table offsetkeeper_marks for user cashier is in the way"):
        lander(url).seen(KEY)
    shop.execute("create policy changes on offsetkeeper_marks for update using (true)")
    write(spark, lander(url), 1)
    shop.execute("drop policy reads on offsetkeeper_marks")
    with pytest.raises(Refused, match=r"has a row for group 'billing'.* that this user cannot see"):
        lander(url).seen(KEY)
    assert count(shop) == 3


def test_rows_that_row_level_security_does_not_let_in_stop_the_batch(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    """No row is left out in silence."""
    lander(database)
    shop.execute("drop role if exists packer; create role packer login; grant create on schema public to packer")
    shop.execute("grant all on all tables in schema public to packer")
    shop.execute("alter table records enable row level security")
    shop.execute("""create policy small on records for insert with check ("offset" < 1)""")
    way = lander(database.replace("postgres@", "packer@"))
    with pytest.raises(Refused, match="row-level security policy"):
        write(spark, way, 1)
    assert (count(shop), way.seen(KEY).mark) == (0, None)


def test_a_policy_that_lets_the_mark_of_the_group_through_is_no_obstacle(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    lander(database)
    url = secured(shop, database, "clerk")
    shop.execute("create policy own on offsetkeeper_marks using (group_name = 'billing')")
    write(spark, lander(url), 1)
    assert count(shop) == 3


@pytest.mark.usefixtures("all_staged")
def test_a_server_that_restarts_between_staging_and_landing_costs_another_try(
    spark: SparkSession, database: str, shop: Connection, postgresql_server: PostgreSQLServer
) -> None:
    """Staged rows that it has lost are missed."""
    way, batch = lander(database), batch_of(1)
    staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)
    shop.execute("checkpoint")
    postgresql_server.restart()
    with pytest.raises(SinkError):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch), staged)
    write(spark, way, 1)
    with psycopg.connect(database) as connection:
        assert count(connection) == 3


def test_a_driver_that_stalls_within_its_landing_holds_up_the_next_for_no_longer_than_the_timeout_in_postgresql(
    spark: SparkSession, database: str, shop: Connection
) -> None:
    """The server ends its session, so that nothing of it lands when it wakes up."""
    way, newer, batch = lander(database + "?timeout=1"), lander(database), batch_of(2)
    write(spark, way, 1)
    staged = way.stage(spark.createDataFrame(records(batch), SCHEMA), batch)

    def stalls(connection: Any) -> None:
        staged(connection)  # type: ignore[operator]
        connection.execute("update offsetkeeper_marks set mark = mark")  # its locks, as if it stalled just after
        write(spark, newer, 2)

    with pytest.raises(SinkError, match=r"nothing was written|connection broke"):
        way.land(KEY, way.seen(KEY), OutputMark.of(batch), stalls)
    assert count(shop) == 6


@pytest.mark.usefixtures("all_staged")
def test_a_run_that_stages_leaves_alone_what_another_has_staged_in_postgresql(
    spark: SparkSession, database: str, shop: Connection, staging_tables: Callable[[], list[str]]
) -> None:
    """Until a batch of its own is there: then the other's cannot be."""
    ways = [lander(database) for _ in range(3)]
    batch = batch_of(1)
    staged = [way.stage(spark.createDataFrame(records(batch), SCHEMA), batch) for way in ways]
    before = ways[0].seen(KEY)
    ways[0].land(KEY, before, OutputMark.of(batch), staged[0])
    assert (staging_tables(), count(shop)) == ([], 3)
    for way, rows in zip(ways[1:], staged[1:], strict=True):
        with pytest.raises(MarkMoved):
            way.land(KEY, before, OutputMark.of(batch), rows)


@pytest.mark.usefixtures("all_staged")
def test_staged_rows_that_never_landed_are_dropped_with_the_next_batch_in_postgresql(
    spark: SparkSession, database: str, shop: Connection, staging_tables: Callable[[], list[str]]
) -> None:
    way, batch = lander(database), batch_of(1)
    frame = spark.createDataFrame(records(batch), SCHEMA)
    staged = way.stage(frame, batch)
    before = way.seen(KEY)
    way.land(KEY, before, OutputMark.of(batch, void=True), None)
    with pytest.raises(MarkMoved):
        way.land(KEY, before, OutputMark.of(batch), staged)
    way.stage(frame, batch)
    assert len(staging_tables()) == 1
    write(spark, lander(database), 2)
    assert (staging_tables(), count(shop)) == ([], 3)


def test_groups_outputs_and_schemas_with_odd_names_are_kept_apart(database: str, shop: Connection) -> None:
    odd = 'My "Shop" %s'
    shop.execute(sql.SQL("create schema {0}; create table {0}.records (id int)").format(sql.Identifier(odd)))
    quoted = '"My ""Shop"" %s".records'
    ways = [lander(database), prepared(database, Guarantee.EXACTLY_ONCE, quoted)]
    keys = [MarkKey(group, output) for group in ("a", "A", "a'b", 'a"%s') for output in ("", "o", "O ", "ö?")]
    for number, (way, key) in enumerate((way, key) for way in ways for key in keys):
        way.land(key, way.seen(key), OutputMark.of(batch_of(number + 1)), None)
    found = [way.seen(key).mark for way in ways for key in keys]
    assert found == [OutputMark.of(batch_of(number + 1)) for number in range(len(found))]
