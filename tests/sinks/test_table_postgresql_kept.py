"""Committed rows of a table in PostgreSQL outlive a crash, and are committed by this database alone."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.errors import Refused, SinkError
from offsetkeeper.sinks import Table
from offsetkeeper.sinks.sink import Lander, MarkKey
from offsetkeeper.stores import open_store
from offsetkeeper.stores.memory import MemoryStore
from sinks.conftest import PARTITION

ONCE = Guarantee.EXACTLY_ONCE
Connection = psycopg.Connection[Any]
Query = Callable[..., list[Any]]
KEY = MarkKey("shop", "")
LIST = "create table orders (id bigint) partition by list (id); create table rest partition of orders default; "
FOREIGN = "create foreign data wrapper no_handler; create server other foreign data wrapper no_handler; "
OTHER = "server other"
RULE = "create rule r as on insert to orders do instead nothing; "
UNDER_MORE = "create unlogged table most partition of more default"
TRIGGER = (
    "create function f() returns trigger language plpgsql as 'begin return new; end'; "
    "create trigger t before insert on orders for each row execute function f(); "
)


def crash_between(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Crash the server once the other task has staged its 50 rows, and go on when it is back."""
    found = "select relname from pg_class where relname ~ '^offsetkeeper_.*_' and relkind = 'r'"

    def staged() -> int:
        with psycopg.connect(url, connect_timeout=2) as look:
            names = look.execute(found).fetchall()
            counts = [sql.SQL("select count(*) from {}").format(sql.Identifier(name)) for (name,) in names]
            return sum(look.execute(count).fetchall()[0][0] for count in counts)

    for batch in batches:
        if batch.num_rows and batch.column(0)[0].as_py() < 50:
            with psycopg.connect(url, autocommit=True) as look:
                look.execute("checkpoint")  # the staging table outlives the crash, what comes next does not
        elif batch.num_rows:
            until(lambda: staged() == 50)
            with psycopg.connect(url, autocommit=True) as look:
                os.kill(look.info.backend_pid, signal.SIGKILL)
            until(lambda: staged() == 0)
        yield batch


def until(true: Callable[[], bool]) -> None:
    """Wait for something that another process does; a server that is away has not done it."""
    for _ in range(3000):
        try:
            if true():
                return
        except psycopg.Error:
            pass
        time.sleep(0.01)
    raise TimeoutError


@pytest.mark.usefixtures("all_staged")
def test_a_server_that_crashes_between_two_tasks_does_not_land_the_rows_of_one(
    spark: SparkSession, database: str, connection: Connection, batch: Batch
) -> None:
    """It gives the numbers of its transactions again."""
    connection.execute("create table orders (id bigint)")
    connection.close()
    lander, frame = (
        Table(database, "orders").prepare(MemoryStore("memory://kept"), ONCE),
        spark.range(100, numPartitions=2).toDF("id"),
    )
    assert isinstance(lander, Lander)
    crashing = frame.mapInArrow(ship(crash_between, (database,), (sys.modules[__name__],)), "id long")
    staged = lander.stage(crashing, batch)
    with pytest.raises(SinkError, match="50 rows of one task 0 are left"):
        lander.land(KEY, lander.seen(KEY), OutputMark.of(batch), staged)
    staged = lander.stage(frame, batch)
    lander.land(KEY, lander.seen(KEY), OutputMark.of(batch), staged)
    with psycopg.connect(database) as look:
        assert look.execute("select count(*), count(distinct id) from orders").fetchall() == [(100, 100)]


@pytest.mark.usefixtures("all_staged")
def test_the_count_is_right_for_each_task_and_not_only_in_all(
    spark: SparkSession, database: str, connection: Connection, ledger: Ledger, batch: Batch, rows: Query
) -> None:
    connection.execute("create table orders (id bigint)")
    finish = Table(database, "orders").rows.stage(spark.range(100, numPartitions=2).toDF("id"), batch)
    [(name,)] = rows("select relname from pg_class where relname ~ '^offsetkeeper_.*_' and relkind = 'r'")
    staging = sql.Identifier(name)
    connection.execute(sql.SQL("delete from {} where c0 < 50").format(staging))
    connection.execute(sql.SQL("insert into {0} select * from {0}").format(staging))
    with pytest.raises(SinkError, match="nothing was written"), ledger.transaction(batch) as transaction:
        finish(transaction)
    assert rows("select count(*) from orders") == [(0,)]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("create unlogged table orders (id bigint)", "table orders is unlogged"),
        (
            f"{LIST}create unlogged table more partition of orders for values in (1)",
            "table more, of orders, is unlogged",
        ),
        (
            f"{LIST}create table more partition of orders for values in (1) partition by list (id); {UNDER_MORE}",
            "table most, of orders, is unlogged",
        ),
        (
            f"{FOREIGN}{LIST}create foreign table more partition of orders for values in (1) {OTHER}",
            "table more, of orders, is a foreign table",
        ),
        (
            f"create table orders (id bigint); {TRIGGER}create unlogged table heir () inherits (orders)",
            "table heir, of orders, is unlogged",
        ),
        (
            f"create table orders (id bigint); {RULE}{FOREIGN}create foreign table heir () inherits (orders) {OTHER}",
            "table heir, of orders, is a foreign table",
        ),
    ],
)
def test_a_table_whose_rows_may_be_lost_or_doubled_is_refused_at_the_start(
    database: str, ledger: Ledger, connection: Connection, make: str, why: str
) -> None:
    connection.execute(make.encode())
    for store in (ledger.store, MemoryStore("memory://kept")):
        with pytest.raises(Refused, match=why):
            Table(database, "orders").prepare(store, ONCE)


def test_an_heir_that_gets_no_rows_is_not_asked(database: str, ledger: Ledger, connection: Connection) -> None:
    """Without a trigger or a rule, rows stay in the table itself."""
    connection.execute("create table orders (id bigint); create unlogged table heir () inherits (orders)")
    Table(database, "orders").prepare(ledger.store, ONCE)


@pytest.mark.parametrize("part", ["unlogged", "foreign"])
@pytest.mark.parametrize("way", ["mark", "joined"])
def test_a_partition_that_is_attached_after_the_rows_were_staged_is_refused(
    spark: SparkSession,
    database: str,
    connection: Connection,
    ledger: Ledger,
    batch: Batch,
    rows: Query,
    part: str,
    way: str,
) -> None:
    connection.execute(f"{FOREIGN}{LIST}".encode())
    table, frame = Table(database, "orders"), spark.range(10).toDF("id")
    lander = table.prepare(MemoryStore("memory://kept"), ONCE)
    finish = table.rows.stage(frame, batch)
    connection.execute(
        f"create {part} table more partition of orders for values in (70) {OTHER if part == 'foreign' else ''}".encode()
    )
    if way == "mark":
        assert isinstance(lander, Lander)
        with pytest.raises(Refused, match=r"table more, of public\.orders, is "):
            lander.land(KEY, lander.seen(KEY), OutputMark.of(batch), finish)
    else:
        with (
            pytest.raises(Refused, match=r"table more, of public\.orders, is "),
            ledger.transaction(batch) as transaction,
        ):
            finish(transaction)
    assert rows("select count(*) from rest") == [(0,)]


def test_a_role_that_does_not_wait_for_its_commits_waits_for_these(
    spark: SparkSession, database: str, connection: Connection, batch: Batch
) -> None:
    """The server's log of what it wrote ahead is flushed where a landing, a joint commit and a change have returned."""
    connection.execute("create table orders (id bigint)")
    connection.execute(
        "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$"
    )
    with psycopg.connect(database, autocommit=True) as lazy:
        assert lazy.execute("show synchronous_commit").fetchall() == [("off",)]
    seen = []
    finish = Table(database, "orders").rows.stage(spark.range(10).toDF("id"), batch)

    def noted(transaction: Any) -> None:
        finish(transaction)
        seen.append(transaction.execute("show synchronous_commit").fetchall())

    Table(database, "orders").rows._database.transaction(noted)  # type: ignore[attr-defined]
    with closing(open_store(database)) as store:
        other = Ledger(store, "other")
        other.acquire()
        other.place({PARTITION: Position(0)})
        with other.transaction(other.batch([OffsetRange(*PARTITION, 0, 10)])) as transaction:
            transaction.execute("set local synchronous_commit = off")
            transaction.execute(
                "create table seen (value text); create function note() returns trigger language plpgsql as "
                "'begin insert into seen values (current_setting(''synchronous_commit'')); return null; end'; "
                "create constraint trigger last after insert or update on offsetkeeper_groups deferrable "
                "initially deferred for each row execute function note()"
            )
        other.release(reason="end")
    assert seen == [[("on",)]]
    assert connection.execute("select distinct value from seen").fetchall() == [("on",)]


def test_a_type_that_only_one_of_two_sessions_finds_is_not_taken_for_an_altered_table(
    spark: SparkSession, database: str, connection: Connection, ledger: Ledger, batch: Batch, rows: Query
) -> None:
    """The session of the store spells it with its schema, and that of the table without."""
    connection.execute("create schema ops; create type ops.state as enum ('new'); create table orders (kept ops.state)")
    table = Table(f"{database}?options=-csearch_path%3Dpublic,ops", "orders")
    finish = table.rows.stage(spark.sql("select 'new' as kept"), batch)
    with ledger.transaction(batch) as transaction:
        finish(transaction)
    assert rows("select kept::text from orders") == [("new",)]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_table_that_is_altered_after_the_snapshot_of_the_transaction_gets_no_rows(
    spark: SparkSession, database: str, connection: Connection, ledger: Ledger, rows: Query, level: str
) -> None:
    """A session of the store that is at another level by default sees nothing of it, and the rows were rounded."""
    name = database.rpartition("/")[2]
    connection.execute(f"alter database {name} set default_transaction_isolation = '{level}'".encode())
    connection.execute("create table orders (seen timestamptz)")
    table, frame = Table(database, "orders"), spark.sql("select timestamp'2024-07-01 12:00:00.6 UTC' as seen")
    with closing(open_store(database)) as store:
        strict = Ledger(store, ledger.group)
        strict.acquire()
        batch = strict.batch([OffsetRange(*PARTITION, 0, 10)])
        finish = table.rows.stage(frame, batch)

        def alter_and_finish(transaction: Any) -> None:
            assert transaction.execute("show transaction_isolation").fetchall() == [(level,)]
            connection.execute("alter table orders alter seen type timestamptz(0)")
            finish(transaction)

        with pytest.raises(SinkError, match="altered while rows were staged"), strict.transaction(batch) as transaction:
            alter_and_finish(transaction)
        assert rows("select * from orders") == []
        connection.execute("alter table orders alter seen type timestamptz")
        finish = table.rows.stage(frame, batch)
        with strict.transaction(batch) as transaction:
            finish(transaction)
    assert rows("select extract(microseconds from seen)::int from orders") == [(600_000,)]


def test_a_driver_that_stalls_in_the_ledgers_transaction_is_limited_but_for_blocks_in_postgresql(
    spark: SparkSession, database: str, connection: Connection, ledger: Ledger, batch: Batch, rows: Query
) -> None:
    """The server ends a session that sends nothing while it merges, or once the blocks are done."""
    connection.execute(
        "create table orders (id bigint); create table seen (value text); "
        "create function note() returns trigger language plpgsql as 'begin "
        "insert into seen values (current_setting(''idle_in_transaction_session_timeout'')); return null; end'; "
        "create trigger merged after insert on orders execute function note(); "
        "create trigger moved after update on kafka_offsets for each row execute function note()"
    )
    finish = Table(database, "orders").rows.stage(spark.range(10).toDF("id"), batch)
    with closing(open_store(f"{database}?timeout=20")) as store:
        other = Ledger(store, ledger.group)
        other.acquire()
        again = other.batch(batch.ranges)
        with other.transaction(again) as transaction:
            assert transaction.execute("show idle_in_transaction_session_timeout").fetchall() == [("0",)]
            finish(transaction)
            assert transaction.execute("show idle_in_transaction_session_timeout").fetchall() == [("0",)]
    assert rows("select value from seen") == [("30s",), ("20s",)]
