"""The suite of outputs that keep a mark, on tables of Cassandra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from offsetkeeper.sinks import Cassandra
from offsetkeeper.testing.cassandra import CassandraServer
from offsetkeeper.testing.conformance import LanderConformance
from offsetkeeper.testing.conformance.landers import Record

pytestmark = pytest.mark.xdist_group("test_cassandra")

KEY = ("batch", "topic", "partition", "offset")
KEYSPACE = "create keyspace {} with replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
TABLE = (
    'create table {}.records ("batch" text, topic text, "partition" int, "offset" bigint, '
    'primary key (("batch", topic), "partition", "offset"))'
)


class TestCassandra(LanderConformance):
    """Each output is a table in a keyspace of its own.

    Each row of a batch has a key that no other batch has, so a row that is too much is seen.
    """

    histories = 2

    @pytest.fixture(autouse=True)
    def _connected(self, cassandra_server: CassandraServer) -> Iterator[None]:
        self.server = cassandra_server
        with cassandra_server.session() as session:
            self.execute: Callable[..., Any] = session.execute
            yield

    def make(self, name: str) -> None:
        """See `LanderConformance`."""
        self.execute(KEYSPACE.format(name))
        self.execute(TABLE.format(name))

    def open(self, name: str) -> Cassandra:
        """See `LanderConformance`."""
        return Cassandra(self.server.url(name), "records", key=KEY)

    def read(self, name: str) -> Iterable[Record]:
        """See `LanderConformance`."""
        return map(tuple, self.execute(f'select "batch", topic, "partition", "offset" from {name}.records'))  # noqa: S608 - a word
