"""A ledger in the place of the engine, and the database that its rows go to."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.stores import open_store
from offsetkeeper.testing.cassandra import CassandraServer
from sinks.cassandra_tables import Shop

PARTITION = TopicPartition("orders", 0)
STAGING = "select relname from pg_class where relname ~ '^offsetkeeper_.*_' and relkind = 'r'"


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The paths that this process has waited for until the disk had them."""
    found: set[str] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        found.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", recorded)
    return found


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def rows(connection: psycopg.Connection[Any]) -> Callable[..., list[Any]]:
    """`rows(query, parameters=())` returns what a query finds."""

    def query(text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return connection.execute(text.encode(), parameters).fetchall()

    return query


@pytest.fixture
def staging_tables(rows: Callable[..., list[Any]]) -> Callable[[], list[str]]:
    """`staging_tables()` returns the names of those that are there."""
    return lambda: [name for (name,) in rows(STAGING)]


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    """The ledger of a run that owns its group, in the test's database, with a position at offset 0."""
    with closing(open_store(database)) as store:
        ledger = Ledger(store, "shop")
        ledger.acquire()
        ledger.place({PARTITION: Position(0)})
        yield ledger


@pytest.fixture
def batch(ledger: Ledger) -> Batch:
    """The ledger's next batch, of offsets 0 to 10."""
    return ledger.batch([OffsetRange(*PARTITION, 0, 10)])


@pytest.fixture
def committed(ledger: Ledger) -> Callable[[], int]:
    """`committed()` returns the position as it is in the store."""
    return lambda: ledger.store.load(ledger.group).positions[PARTITION].offset


@pytest.fixture
def cassandra_shop(cassandra_server: CassandraServer, spark: SparkSession) -> Iterator[Shop]:
    """A keyspace of Cassandra with the table `orders`."""
    keyspace = cassandra_server.create_keyspace()
    with cassandra_server.session() as session:
        shop = Shop(cassandra_server, session, spark, keyspace)
        shop.make()
        yield shop
