"""Each row and each value in a Cassandra table, read by its own client library."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, timedelta
from typing import Any

import pytest
from hypothesis import strategies as st

from offsetkeeper.sinks import Cassandra
from offsetkeeper.testing.cassandra import CassandraServer
from sinks.exactness import VALUES, Exactness, Kind

pytestmark = pytest.mark.xdist_group("test_cassandra")

HOLDS = {
    "text": ("string",),
    "tinyint": ("byte",),
    "smallint": ("byte", "short"),
    "int": ("byte", "short", "int"),
    "bigint": ("byte", "short", "int", "long"),
    "varint": ("byte", "short", "int", "long"),
    "float": ("float",),
    "double": ("float", "double"),
    "decimal": ("decimal(5,2)", "decimal(20,0)", "decimal(38,10)"),
    "boolean": ("boolean",),
    "blob": ("binary",),
    "date": ("date",),
}
WHOLE_MS = VALUES["timestamp"].map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
TIMES = [Kind("timestamp", "timestamp", WHOLE_MS), Kind("timestamp", "timestamp", WHOLE_MS | VALUES["timestamp"])]
TIME_UUIDS = st.integers(0, 2**128 - 1).map(lambda n: uuid.UUID(int=n, version=1))
SPELLINGS = [str, lambda value: str(value).upper(), lambda value: value.hex, lambda value: f"{{{value}}}"]


def spelled(values: st.SearchStrategy[uuid.UUID], *, odd: bool) -> st.SearchStrategy[str]:
    """Return UUIDs as texts, some of them as Cassandra does not write them."""
    return st.builds(
        lambda value, spell: str(spell(value)), values, st.sampled_from(SPELLINGS if odd else SPELLINGS[:1])
    )


UUIDS = [
    Kind("uuid", "string", spelled(st.uuids(), odd=False)),
    Kind("uuid", "string", spelled(st.uuids(), odd=True)),
    Kind("timeuuid", "string", spelled(TIME_UUIDS, odd=False)),
    Kind("timeuuid", "string", spelled(TIME_UUIDS | st.uuids(), odd=True)),
]
KINDS = [Kind(declared, name, VALUES[name]) for declared, names in HOLDS.items() for name in names]


class TestCassandra(Exactness):
    """`Cassandra`: each batch is an upsert, and readers may see a part of one that was refused."""

    parts, share = True, 0.4
    test_an_append_adds_its_rows = None  # type: ignore[assignment]  # rows of one key are one

    @pytest.fixture(autouse=True)
    def _connected(self, cassandra_server: CassandraServer) -> Iterator[None]:
        self.server, self.keyspace = cassandra_server, cassandra_server.create_keyspace()
        self.made: list[str] = []
        self.keys_of: dict[str, Sequence[str]] = {}
        with cassandra_server.session() as session:
            self.session: Any = session
            yield

    def kinds(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        return st.sampled_from([*KINDS, *TIMES, *UUIDS])

    def keys(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        zeros = Kind("double", "double", st.sampled_from([0.0, -0.0, float("nan"), 0.5]))
        return st.sampled_from([*KINDS, zeros, *TIMES, *UUIDS])

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        """See `Exactness`. Of two columns of a key the second is in the partition key, or orders the partition."""
        if self.made:
            self.session.execute(f"DROP TABLE {self.keyspace}.{self.made.pop()}")
        self.keys_of[name] = key or ["id"]
        parts = ", ".join(self.keys_of[name])
        primary = f"({parts})" if next(self.numbers) % 2 else parts
        declared = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        self.session.execute(f"CREATE TABLE {self.keyspace}.{name} ({declared}, PRIMARY KEY ({primary}))")
        self.made.append(name)

    def sink(self, name: str, **words: Any) -> Cassandra:  # noqa: ARG002 - it knows the key
        """See `Exactness`."""
        return Cassandra(self.server.url(self.keyspace), name, key=self.keys_of[name])

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `Exactness`."""
        return [*map(tuple, self.session.execute(f"SELECT {', '.join(columns)} FROM {self.keyspace}.{name}"))]  # noqa: S608 - words

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `Exactness`."""
        if given is None or found is None:
            return given is found
        if kind.declared in {"uuid", "timeuuid"}:
            return bool(uuid.UUID(given) == found)
        if kind.declared == "timestamp":
            near = found.replace(tzinfo=UTC) + timedelta(microseconds=500)  # the client reads by floats
            return bool(given == near.replace(microsecond=near.microsecond // 1000 * 1000))
        if kind.declared == "date":
            return bool(given == date(1970, 1, 1) + timedelta(found.days_from_epoch))
        if kind.declared == "decimal":
            return bool(given.as_tuple() == found.as_tuple() or (given == found == 0))
        return type(given) is type(found) and repr(given) == repr(found)
