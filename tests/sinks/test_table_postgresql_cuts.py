"""Connections to PostgreSQL that are cut, before a request arrives or before its reply does."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.errors import OutcomeUnknown, SinkError
from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store
from offsetkeeper.testing.postgresql import PostgreSQLServer
from offsetkeeper.testing.proxy import Cut, TcpProxy

Count = Callable[[], int]
COMMIT = b"Q\x00\x00\x00\x0bcommit\x00"  # alone in its message


@pytest.fixture
def proxy(postgresql_server: PostgreSQLServer) -> Iterator[TcpProxy]:
    """A proxy in front of the server."""
    with TcpProxy("127.0.0.1", postgresql_server.port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: TcpProxy, postgresql_server: PostgreSQLServer, connection: psycopg.Connection[Any]) -> str:
    """URL of the test's database through the proxy; it has an empty table of orders."""
    connection.execute("create table orders (id bigint unique deferrable initially deferred)")
    return postgresql_server.url(connection.info.dbname, port=proxy.port)


@pytest.fixture
def count(rows: Callable[..., list[Any]]) -> Count:
    """`count()` returns the number of orders in the table."""
    return lambda: int(rows("select count(*) from orders")[0][0])


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Ten orders."""
    return spark.range(10, numPartitions=1).toDF("id")


def test_a_lost_reply_to_the_commit_is_told_as_unknown(
    proxy: TcpProxy, url: str, frame: DataFrame, batch: Batch, count: Count
) -> None:
    """Here the rows are written; nobody can tell without looking."""
    with proxy.cut(Cut.REPLY, COMMIT), pytest.raises(OutcomeUnknown):
        Table(url, "orders").rows.write(frame, batch)
    assert count() == 10


def test_a_lost_commit_is_told_as_unknown_too(
    proxy: TcpProxy, url: str, frame: DataFrame, batch: Batch, count: Count
) -> None:
    with proxy.cut(Cut.REQUEST, COMMIT), pytest.raises(OutcomeUnknown):
        Table(url, "orders").rows.write(frame, batch)
    assert count() == 0


def test_a_commit_that_is_refused_has_written_nothing(
    spark: SparkSession, url: str, batch: Batch, count: Count
) -> None:
    """A constraint that is checked last."""
    with pytest.raises(SinkError, match="duplicate key value"):
        Table(url, "orders").rows.write(spark.sql("select 1L as id union all select 1L"), batch)
    assert count() == 0


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
@pytest.mark.usefixtures("all_staged")
def test_a_copy_that_is_cut_has_written_nothing(
    cut: Cut,
    proxy: TcpProxy,
    url: str,
    frame: DataFrame,
    batch: Batch,
    count: Count,
    staging_tables: Callable[[], list[str]],
) -> None:
    with proxy.cut(cut, b"copy "), pytest.raises(SinkError, match="rows could not be copied"):
        Table(url, "orders").rows.write(frame, batch)
    assert (count(), staging_tables()) == (0, [])


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.REPLY])
def test_a_merge_that_is_cut_is_rolled_back_with_the_offsets_and_done_again(
    cut: Cut, proxy: TcpProxy, url: str, frame: DataFrame, ledger: Ledger, count: Count, committed: Count
) -> None:
    table = Table(url, "orders")
    with closing(open_store(url)) as store:
        mine = Ledger(store, ledger.group)
        mine.acquire()
        batch = mine.batch([OffsetRange("orders", 0, 0, 10)])
        finish = table.rows.stage(frame, batch)
        with proxy.cut(cut, b"insert into"), pytest.raises(SinkError, match="nothing was written"):
            commit(mine, batch, finish)
        assert (count(), committed()) == (0, 0)
        commit(mine, batch, table.rows.stage(frame, batch))
        assert (count(), committed()) == (10, 10)


def commit(ledger: Ledger, batch: Batch, finish: Callable[[Any], None]) -> None:
    """Commit rows and offsets."""
    with ledger.transaction(batch) as connection:
        finish(connection)
