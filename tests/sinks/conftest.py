"""A ledger in the place of the engine, and the database that its rows go to."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from fixtures.implementations import implementations
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.stores import open_store
from offsetkeeper.testing.cassandra import CassandraServer
from sinks.cassandra_tables import Shop

PARTITION = TopicPartition("orders", 0)
STAGING = "select relname from pg_class where relname ~ '^offsetkeeper_.*_' and relkind = 'r'"


@pytest.fixture(params=implementations("offsetkeeper_native.producer"))
def implementation(request: pytest.FixtureRequest) -> dict[str, str]:
    """The setting that takes one of the two producers of a task."""
    found: dict[str, str] = request.param
    return found


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
def mount(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A path that leads to one disk in this process, and to another one in Spark's; and where that other one is.

    It goes by the folder in which a process runs, and this one moves to another folder.
    """
    context = spark.sparkContext
    assert context._jvm is not None
    theirs = os.path.relpath(tmp_path / "executors", context._jvm.java.lang.System.getProperty("user.dir"))
    ups, names = theirs.count("../"), theirs.replace("../", "")
    here = tmp_path.joinpath("driver", *["down"] * ups)
    for folder in (here, tmp_path / "driver" / names, tmp_path / "executors"):
        folder.mkdir(parents=True)
    path = tmp_path / "mount"
    path.symlink_to(f"/proc/self/cwd/{theirs}")
    monkeypatch.chdir(here)
    yield path, tmp_path / "executors"
    monkeypatch.undo()


@pytest.fixture
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`failing_disk(pattern)` lets this process wait in vain for files whose path has that; "" for none any more."""
    patterns, fsync = [""], os.fsync

    def fails(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if patterns[0] and re.search(patterns[0], path):
            raise OSError(errno.EIO, "Input/output error", path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fails)
    return lambda pattern: patterns.__setitem__(0, pattern)


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
