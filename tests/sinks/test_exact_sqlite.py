"""Values and rows come out of SQLite as they went in, or are refused."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store
from sinks.exactness import TEXTS, VALUES, Exactness, Kind

TYPES = [
    "",
    "any",
    "int",
    "bigint",
    "text",
    "varchar(3)",
    "char(2)",
    "blob",
    "real",
    "double",
    "numeric",
    "decimal(5,2)",
]
TYPES += ["date", "timestamp", "boolean"]
NULLS = [
    "",
    " not null",
    " not null default 'x'",
    " not null on conflict replace default 7",
    " not null on conflict ignore",
]
OBSTACLES = [
    "create unique index i{name} on {name} (id)",
    "create trigger t{name} before insert on {name} when new.id = 1 begin select raise(ignore); end",
    "create trigger t{name} before insert on {name} when new.id = 1 begin select raise(abort, 'no'); end",
    "create trigger t{name} after insert on {name} begin update {name} set item = 'z'; end",
]
OBSTACLES += [
    f"drop table {{name}}; create table {{name}} (id int {clause}, item text not null)"
    for clause in ("primary key", *(f"unique on conflict {way}" for way in ("ignore", "replace", "rollback", "fail")))
]


class TestSQLite(Exactness):
    """`Table("sqlite:///…")`."""

    share = 0.1

    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> Iterator[None]:
        """A file of this test."""
        self.path = tmp_path / "shop.db"
        connected = closing(sqlite3.connect(self.path, isolation_level=None))
        with connected as self.connection, closing(open_store(f"sqlite:///{self.path}")) as self.store:
            yield

    def kinds(self) -> st.SearchStrategy[Kind]:
        """Return each of SQLite's affinities with each type of Spark."""
        names = st.tuples(st.sampled_from(TYPES), st.sampled_from(NULLS), st.sampled_from(sorted(VALUES)))
        return names.map(lambda each: Kind(each[0] + each[1], each[2], VALUES[each[2]]))

    def keys(self) -> st.SearchStrategy[Kind]:
        """Return columns of each collation, and of other types."""
        collations = st.sampled_from(["", " collate nocase", " collate rtrim", " collate binary"])
        texts = st.tuples(st.sampled_from(["text", "blob", ""]), collations).map(
            lambda it: Kind("".join(it), "string", TEXTS)
        )
        others = st.sampled_from(
            [("int", "long"), ("blob", "binary"), ("text", "decimal(5,2)"), ("text", "timestamp"), ("real", "double")]
        )
        return st.one_of(texts, texts, others.map(lambda it: Kind(it[0], it[1], VALUES[it[1]])))

    def obstacles(self) -> st.SearchStrategy[str]:
        """Return triggers and indexes."""
        return st.sampled_from(["", *OBSTACLES])

    def triggers(self, column: str, kind: Kind) -> st.SearchStrategy[str]:
        """Return triggers that make one text of several, or leave rows out."""
        upper = f"after insert on {{name}} begin update {{name}} set {column} = upper({column}) where rowid = new.rowid"  # noqa: S608 - names of ours
        less = f"before insert on {{name}} when new.{column} = 'a' begin select raise(ignore)"
        does = [upper, less] if kind.declared.startswith("text") else []
        return st.sampled_from(["", "", "", *(f"create trigger u{{name}} {each}; end" for each in does)])

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        """Make a table, its key as a constraint or as an index."""
        parts = [f"{column} {declared}" for column, declared in columns.items()]
        unique = [f"unique ({', '.join(key)})"] if key else []
        self.connection.execute(f"create table {name} ({', '.join(parts + unique)})")

    def run(self, statement: str) -> None:
        """Execute a statement."""
        self.connection.executescript(statement)

    def sink(self, name: str, **words: Any) -> Table:
        """Return the sink."""
        return Table(f"sqlite:///{self.path}", name, **words)

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return rows by Python's own client."""
        return self.connection.execute(f"select {', '.join(columns)} from {name}").fetchall()  # noqa: S608 - names of ours

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """SQLite has no decimals, dates and times: they are texts."""
        if isinstance(given, Decimal):
            return Decimal(str(found)) == given
        if isinstance(given, dt.date):
            return str(dt.datetime.fromisoformat(found) if isinstance(given, dt.datetime) else found) == str(given)
        if kind.declared.startswith(("real", "double")) and given == 0.0:
            given = abs(given)  # SQLite keeps a zero there as a whole number, which has no sign; see docs/types.md
        return type(found) is type(+given if isinstance(given, bool) else given) and super().same(kind, given, found)
