"""What a table in PostgreSQL holds after failures: each row once, or none."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.errors import Fenced, SinkError
from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store
from offsetkeeper.testing.postgresql import PostgreSQLServer

Connection = psycopg.Connection[Any]
Query = Callable[..., list[Any]]
Names = Callable[[], list[str]]
SECRET = "hunter2"


@pytest.fixture
def table(database: str, connection: Connection) -> Table:
    """The sink for an empty table of orders."""
    connection.execute("create table orders (id bigint)")
    return Table(database, "orders")


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """A hundred orders in two tasks."""
    return spark.range(100, numPartitions=2).toDF("id")


@pytest.fixture
def orders(rows: Query) -> Callable[[], tuple[int, int]]:
    """`orders()` returns the numbers of rows and of different rows."""
    return lambda: tuple(rows("select count(*), count(distinct id) from orders")[0])


def fail_after(finish: Callable[[Any], None], transaction: Any) -> None:
    """Fail once the rows are merged, before they are committed."""
    finish(transaction)
    raise ZeroDivisionError


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("size", [10_000, 100])
def test_the_rows_of_failed_attempts_are_never_merged(
    database: str, tmp_path: Path, orders: Callable[[], Any], staging_tables: Names, size: int
) -> None:
    """A task fails before and after its work, and is tried again; few rows come along. No log has the password."""
    mark, url = tmp_path / "failed", database.replace("postgres@", f"postgres:{SECRET}@")
    driver = [sys.executable, str(Path(__file__).with_name("retrying_driver.py")), url, str(mark), str(size)]
    done = subprocess.run(driver, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    for what in ("an attempt fails half-way", "an attempt fails after its commit"):
        assert what in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert orders() == (size, size)
    assert staging_tables() == []


@pytest.mark.usefixtures("all_staged")
def test_rows_of_attempts_that_spark_knows_nothing_of_are_left_out_in_postgresql(
    table: Table,
    frame: DataFrame,
    ledger: Ledger,
    batch: Batch,
    connection: Connection,
    orders: Callable[[], Any],
    staging_tables: Names,
) -> None:
    """As a speculative or abandoned task leaves them."""
    finish = table.rows.stage(frame, batch)
    [staging] = staging_tables()
    connection.execute(sql.SQL("insert into {0} select attempt + 1, c0 from {0}").format(sql.Identifier(staging)))
    with ledger.transaction(batch) as transaction:
        finish(transaction)
    assert orders() == (100, 100)


def test_nothing_is_there_where_the_transaction_fails_in_postgresql(
    table: Table,
    frame: DataFrame,
    ledger: Ledger,
    batch: Batch,
    orders: Callable[[], Any],
    committed: Callable[[], int],
    staging_tables: Names,
) -> None:
    """And the next try writes all of it, once."""
    finish = table.rows.stage(frame, batch)
    with pytest.raises(ZeroDivisionError), ledger.transaction(batch) as transaction:
        fail_after(finish, transaction)
    assert (orders(), committed()) == ((0, 0), 0)
    finish = table.rows.stage(frame, batch)
    with ledger.transaction(batch) as transaction:
        finish(transaction)
    assert (orders(), committed()) == ((100, 100), 10)
    assert staging_tables() == []


def test_a_fenced_run_writes_nothing(
    table: Table, frame: DataFrame, ledger: Ledger, batch: Batch, database: str, orders: Callable[[], Any]
) -> None:
    finish = table.rows.stage(frame, batch)
    with closing(open_store(database)) as store:
        Ledger(store, ledger.group).acquire()
        with pytest.raises(Fenced), ledger.transaction(batch) as transaction:
            finish(transaction)
    assert orders() == (0, 0)


@pytest.mark.usefixtures("all_staged")
def test_a_job_that_fails_leaves_nothing_behind(
    spark: SparkSession, table: Table, batch: Batch, orders: Callable[[], Any], staging_tables: Names
) -> None:
    """The error is Spark's own."""
    frame = spark.range(100, numPartitions=2).selectExpr("if(id = 99, raise_error('row 99 is bad'), id) as id")
    with pytest.raises(PySparkException, match="row 99 is bad"):
        table.rows.stage(frame, batch)
    assert orders() == (0, 0)
    assert staging_tables() == []


@pytest.mark.usefixtures("all_staged")
def test_an_executor_that_cannot_copy_says_so_as_a_sink(
    table: Table,
    frame: DataFrame,
    batch: Batch,
    connection: Connection,
    postgresql_server: PostgreSQLServer,
    staging_tables: Names,
) -> None:
    """Here the database lets nobody in any more, once the driver has its connection."""
    table.rows.write(frame, batch)
    allow = sql.SQL("alter database {} allow_connections {}")
    name = sql.Identifier(connection.info.dbname)
    with psycopg.connect(postgresql_server.url(), autocommit=True) as other:
        other.execute(allow.format(name, sql.SQL("false")))
        try:
            with pytest.raises(
                SinkError, match=r"postgresql://127.0.0.1:\d+/\w+: rows could not be copied .*not currently"
            ):
                table.rows.stage(frame, batch)
        finally:
            other.execute(allow.format(name, sql.SQL("true")))
    assert staging_tables() == []


@pytest.mark.usefixtures("all_staged")
def test_what_a_killed_run_left_is_dropped_by_the_next_run_of_its_group(
    table: Table, frame: DataFrame, batch: Batch, database: str, staging_tables: Names
) -> None:
    """And by no other group, and for no other table."""
    table.rows.stage(frame, batch)
    [left] = staging_tables()
    Table(database, "orders").rows.write(frame, replace(batch, group="another"))
    assert staging_tables() == [left]
    Table(database, "orders").rows.write(frame, batch)
    assert staging_tables() == []


@pytest.mark.usefixtures("all_staged")
def test_a_left_over_that_is_still_written_to_stays_and_disturbs_nobody(
    table: Table, frame: DataFrame, batch: Batch, database: str, orders: Callable[[], Any], staging_tables: Names
) -> None:
    """As by a task of a killed driver that goes on for a while."""
    table.rows.stage(frame, batch)
    [left] = staging_tables()
    with psycopg.connect(database) as zombie:
        zombie.execute(sql.SQL("insert into {} values (1, 1)").format(sql.Identifier(left)))
        Table(database, "orders").rows.write(frame, batch)
        assert staging_tables() == [left]
    Table(database, "orders").rows.write(frame, batch)
    assert staging_tables() == []
    assert orders() == (200, 100)


@pytest.mark.usefixtures("all_staged")
def test_a_merge_waits_for_no_task_that_was_given_up(
    table: Table,
    frame: DataFrame,
    ledger: Ledger,
    batch: Batch,
    database: str,
    orders: Callable[[], Any],
    staging_tables: Names,
) -> None:
    """Its staging table is dropped by the next batch."""
    finish = table.rows.stage(frame, batch)
    [staging] = staging_tables()
    with psycopg.connect(database) as zombie:
        zombie.execute(sql.SQL("insert into {} values (1, 1)").format(sql.Identifier(staging)))
        with ledger.transaction(batch) as transaction:
            finish(transaction)
    assert orders() == (100, 100)
    table.rows.write(frame, batch)
    assert staging_tables() == []


@pytest.mark.usefixtures("all_staged")
def test_rows_that_a_crash_of_the_server_took_from_the_staging_table_are_missed(
    table: Table, frame: DataFrame, batch: Batch, postgresql_server: PostgreSQLServer, database: str
) -> None:
    """Unlogged tables are empty after a crash. The offsets must not be committed without the rows."""
    finish = table.rows.stage(frame, batch)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("checkpoint")  # else the crash may take the table itself, which no merge could overlook
    postgresql_server.restart()
    with (
        psycopg.connect(database) as connection,
        pytest.raises(SinkError, match="100 rows were staged; of 50 rows of one task 0 are left"),
    ):
        finish(connection)


def test_the_driver_connects_again_after_the_server_was_restarted(
    table: Table, frame: DataFrame, batch: Batch, postgresql_server: PostgreSQLServer, database: str
) -> None:
    table.rows.write(frame, batch)
    postgresql_server.restart()
    table.rows.write(frame, batch)
    with psycopg.connect(database) as connection:
        assert connection.execute("select count(*) from orders").fetchall() == [(200,)]
