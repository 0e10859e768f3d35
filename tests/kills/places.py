"""The outputs of a life: those of the swarm, and what a cluster needs beside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its library leaves them without types, and public

from offsetkeeper.sinks import Cassandra, Files
from swarm.outputs import KINDS, Database, Folder, OtherTopic, Place
from swarm.records import COLUMNS, Row

_CQL = {"string": "text"}
_LIMIT_S = 60.0


@dataclass
class Shared(Folder):
    """Files of Parquet, in a folder that all executors see."""

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Files(self.folder / "rows", shared=True)


@dataclass
class OwnTopic(OtherTopic):
    """A topic that no other life has."""

    @property
    def topic(self) -> str:
        """Its name."""
        return "-".join(["out", *self.folder.parts[-3:]])

    def make(self) -> None:
        """See `Place.make`."""
        assert self.kafka is not None
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(_LIMIT_S)


@dataclass
class CassandraTable(Place):
    """A table of Cassandra. Its key has the id of the batch: so a record that comes in two batches is there twice.

    Attributes:
        url: of the keyspace.
    """

    url: str = ""

    def make(self) -> None:
        """See `Place.make`."""
        columns = ", ".join(f"{name} {_CQL.get(kind, kind)}" for name, kind in COLUMNS.items())
        self._do(f"create table orders ({columns}, primary key (number, copy, id))")

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Cassandra(self.url, "orders", key=("number", "copy", "id"))

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        return [Row(*each) for each in self._do(f"select {', '.join(Row._fields)} from orders")]  # noqa: S608 - our own columns

    def _do(self, statement: str) -> list[Any]:
        address, _, keyspace = self.url.rpartition("@")[2].partition("/")
        host, _, port = address.partition(":")
        user = PlainTextAuthProvider("cassandra", "cassandra")
        cluster = Cluster([(host, int(port))], auth_provider=user, protocol_version=5, connect_timeout=_LIMIT_S)
        try:
            return [*cluster.connect(keyspace).execute(statement, timeout=_LIMIT_S)]
        finally:
            cluster.shutdown()


def place_of(kind: str, name: str, folder: Path, *, brokers: str, store: str, url: str) -> Place:
    """Return an output.

    Args:
        kind: of `draw.OUTPUTS`.
        name: of the output in the run.
        folder: of the pipeline.
        brokers: addresses of Kafka.
        store: URL of the store.
        url: of the output's own database, if it has one.
    """
    made, own = KINDS.get(kind, CassandraTable), folder / name
    if kind == "Files":
        return Shared(name, own)
    if kind == "Cassandra":
        return CassandraTable(name, own, url=url)
    if kind == "Topic":
        return OwnTopic(name, own, kafka=cast("Any", SimpleNamespace(bootstrap=brokers)))
    if issubclass(made, Database):
        return made(name, own, url=store if made.joined else url)
    return made(name, folder / "store" if made.joined else own)
