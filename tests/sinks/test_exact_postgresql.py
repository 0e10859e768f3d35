"""Values and rows come out of PostgreSQL as they went in, or are refused."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st

from offsetkeeper.sinks import Table
from sinks.exactness import TEXTS, VALUES, Exactness, Kind

TYPES = """
    select format_type(oid, null), typmodin <> 0, typcategory::text from pg_type
    where typnamespace in ('pg_catalog'::regnamespace, 'public'::regnamespace) and typisdefined
        and typtype in ('b', 'e', 'r', 'm', 'd') and typcategory not in ('A', 'P', 'Z') and typname !~ '^_'"""
COLLATIONS = "select collname from pg_collation where collnamespace = 'public'::regnamespace"
# `citext` is not in this build: a domain and a collation merge as it does.
PREPARED = """
    create type colour as enum ('red', 'blue', 'a', 'A');
    create domain short as varchar(3); create domain rough as timestamptz(2); create domain filled as text not null;
    create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    create collation noaccent (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
    create collation english (provider = icu, locale = 'en');"""
MODIFIERS = {
    "numeric": ["(5,2)", "(3,0)", "(5,-2)", "(2,4)", "(38,10)"],
    "interval": ["(0)", "(3)", " day", " second(2)"],
    "character varying": ["(1)", "(3)", "(10)"],
    "character": ["(1)", "(3)", "(10)"],
    "bit": ["(1)", "(3)"],
    "bit varying": ["(1)", "(3)"],
}
ELSEWHERE = """
    create table o{name} (id int, item text);
    create rule r as on insert to {name} do instead insert into o{name} values (new.id, new.item)"""
PARTITIONED = """
    drop table {name}; create table {name} (id int, item text) partition by range (id);
    create table p{name} partition of {name} for values from (0) to (3)"""
PRECISIONS = ["(0)", "(3)", "(6)"]
# The sink's sessions have these, and the client that reads has others.
STYLES = """
    do $$ begin
        execute format('alter database %I set intervalstyle = %L', current_database(), 'sql_standard');
        execute format('alter database %I set datestyle = %L', current_database(), 'SQL, DMY');
        execute format('alter database %I set timezone = %L', current_database(), 'Asia/Kolkata');
    end $$"""
FIELDS = (["1y", "2 years"], ["3mon", "0.5 mon"], ["4d", "1.5 days"], ["5h", "6:07", "06:07:08.123"])


def spans() -> st.SearchStrategy[str]:
    """Return texts of intervals: fields with or without a sign, and what may stand between them."""
    fields = st.tuples(*(st.sampled_from(["", "", *each]) for each in FIELDS)).map(lambda each: [*filter(None, each)])
    signs = st.lists(st.sampled_from(["", "", "", "-", "+"]), min_size=len(FIELDS), max_size=len(FIELDS))
    return st.builds(
        lambda first, fields, signs, between: first + between.join(map("".join, zip(signs, fields, strict=False))),
        st.sampled_from(["", "-", "-", "@ -"]),
        fields,
        signs,
        st.sampled_from(["", " ", " ", ",", "_"]),
    )


READ = [
    *("10:00", "10:00:00.5", "10:00:00.1234567", "now", "24:00:00", "10:00:00+02", "10:00:00.123987-05:30", "allballs"),
    *("1 day", "-1 day 02:03:04", "1 day 05:00", "0.0000001 seconds", "1.5 months", "P1Y2DT3H", "-02:03:04.123456"),
    *("[2024-07-01 10:00,)", "[2024-07-01 10:00+02,2024-07-01 12:00:00.123+00)", "(,2024-07-01]", "[now,)", "empty"),
    *("[2024-07-01,2024-07-03)", "[01/02/2024,)", "{[2024-07-01 10:00+02,)}", "[1,5]", "[1.55,2)", "{[1,3),[7,9)}"),
    *(
        "00000000-0000-0000-0000-00000000000a",
        "00000000-0000-0000-0000-00000000000A",
        "0000000000000000000000000000000b",
    ),
    *(
        '{"a": 1, "a": 2}',
        '{"a": 1.50}',
        "[1]",
        '"\\u0000"',
        "<a/>",
        "<a>",
        "10.0.0.1",
        "10.0.0.0/8",
        "::1",
        "10.0.0.1/8",
    ),
    *(
        "08:00:2b:01:02:03",
        "08002B010203",
        "(0.1,0.30000000000000004)",
        "101",
        "B101",
        "x1",
        "red",
        "blue",
        "a",
        "a & b",
    ),
    *("16/B374D848", "10:20:10,14", "100000000000000000000000000000000000000"),
]


def spark_types() -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    """Return Spark types with their values; texts more often, and arrays too."""
    texts = st.just(("string", st.one_of(st.sampled_from(READ), TEXTS)))
    plain = st.sampled_from(sorted(VALUES)).map(lambda name: (name, VALUES[name]))
    lists = st.sampled_from(sorted(VALUES)).map(
        lambda name: (f"array<{name}>", st.lists(st.one_of(VALUES[name], st.none()), max_size=3))
    )
    return st.one_of(plain, plain, texts, lists)


class TestPostgreSQL(Exactness):
    """`Table("postgresql://…")`."""

    here = True
    share = 0.1

    @pytest.fixture(autouse=True)
    def database_of_test(self, database: str) -> Iterator[None]:
        """A database of this test, with all types that its catalog has."""
        self.database = database
        with psycopg.connect(database, autocommit=True) as self.connection:
            self.connection.execute(PREPARED)
            self.connection.execute(STYLES)
            self.connection.execute("set timezone = 'UTC'; set datestyle = 'ISO, YMD'; set extra_float_digits = 3")
            self.connection.execute("set intervalstyle = 'postgres'")
            self.types = self.connection.execute(TYPES).fetchall()
            self.collations = ["", *(f' collate "{name}"' for (name,) in self.connection.execute(COLLATIONS))]
            yield

    def declared(self) -> st.SearchStrategy[str]:
        """Return types of the catalog, with their modifiers, nullable or not."""
        names = [
            name + modifier
            for name, modified, _ in self.types
            for modifier in ["", *(MODIFIERS.get(name, PRECISIONS) if modified else ())]
        ]
        nulls = st.sampled_from(["", "", " not null", " not null default null"])
        return st.tuples(st.sampled_from([_placed(name) for name in names]), nulls).map("".join)

    def kinds(self) -> st.SearchStrategy[Kind]:
        """Return pairs of types; half of them are made for one another."""
        any_pair = st.tuples(self.declared(), spark_types()).map(lambda each: Kind(each[0], *each[1]))
        arrays = st.tuples(self.declared(), spark_types()).map(
            lambda each: Kind(each[0].replace(" not null", "").replace(" default null", "") + "[]", *each[1])
        )
        read = self.declared().map(lambda declared: Kind(declared, "string", st.one_of(st.sampled_from(READ), TEXTS)))
        near = st.sampled_from(sorted(NEAR)).flatmap(
            lambda name: st.sampled_from(NEAR[name]).map(lambda declared: Kind(declared, name, VALUES[name]))
        )
        intervals = st.just(Kind("interval", "string", spans()))
        return st.one_of(near, near, near, read, any_pair, arrays, intervals)

    def keys(self) -> st.SearchStrategy[Kind]:
        """Return texts of each collation, and other types."""
        texts = st.tuples(st.sampled_from(["text", "varchar(9)", "char(3)", "short"]), st.sampled_from(self.collations))
        read = st.sampled_from(["uuid", "time", "timetz", "interval", "inet", "colour", "bit(3)", "int4range", "jsonb"])
        others = st.sampled_from(
            [("int", "long"), ("bytea", "binary"), ("numeric", "decimal(5,2)"), ("timestamptz(0)", "timestamp")]
        )
        others |= st.sampled_from([("float8", "double"), ("numeric(5,-2)", "int"), ("date", "date"), ("int4", "byte")])
        return st.one_of(
            texts.map(lambda it: Kind("".join(it), "string", TEXTS)),
            texts.map(lambda it: Kind("".join(it), "string", TEXTS)),
            read.map(lambda name: Kind(name, "string", st.sampled_from(READ))),
            others.map(lambda it: Kind(it[0], it[1], VALUES[it[1]])),
        )

    def obstacles(self) -> st.SearchStrategy[str]:
        """Return rules, triggers and constraints."""
        body = "language plpgsql as $$begin if new.id = 1 then return null; end if; return new; end$$"
        trigger = "create trigger t before insert on {name} for each row execute function f{name}()"
        return st.sampled_from(
            [
                "",
                "create unique index on {name} (id)",
                "create rule r as on insert to {name} do instead nothing",
                "create rule r as on insert to {name} where new.id = 1 do instead nothing",
                ELSEWHERE,
                f"create function f{{name}}() returns trigger {body}; {trigger}",
                "alter table {name} add check (id <> 1)",
                PARTITIONED,
            ]
        )

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        """Make a table with a unique index that may have nulls."""
        parts = [f"{column} {declared}" for column, declared in columns.items()]
        self.connection.execute(f"create table {name} ({', '.join(parts)})".encode())
        if key:
            self.connection.execute(f"create unique index on {name} ({', '.join(key)})".encode())

    def run(self, statement: str) -> None:
        """Execute statements."""
        self.connection.execute(statement.encode())

    def sink(self, name: str, **words: Any) -> Table:
        """Return the sink."""
        return Table(self.database, name, **words)

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return rows by psycopg; what is not a plain value as text."""
        types: dict[str, str] = dict(
            self.connection.execute(
                "select attname, format_type(atttypid, null) from pg_attribute where attrelid = %s::regclass", [name]
            ).fetchall()
        )
        listed = [column if types[column] in PLAIN else f"{column}::text" for column in columns]
        return self.connection.execute(f"select {', '.join(listed)} from {name}".encode()).fetchall()  # noqa: S608 - names of ours

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """Texts are compared with what PostgreSQL itself reads in them."""
        if given is None or found is None:
            return given is found
        declared = kind.declared.partition(" not null")[0].partition(" collate")[0]
        if declared.endswith("[]"):
            return self._same_list(declared, given, found)
        if isinstance(given, str):
            whole = _without_modifier(declared)
            [(read,)] = self.connection.execute(f"select (%s::text)::{whole}::text".encode(), [given]).fetchall()
            return bool(found.rstrip(" ") == read.rstrip(" ") if declared.startswith("char") else found == read)
        if isinstance(given, dt.date) and not isinstance(given, dt.datetime) and isinstance(found, dt.datetime):
            return found == dt.datetime(given.year, given.month, given.day)  # noqa: DTZ001 - a wall clock
        if kind.spark == "float" and declared == "real":  # psycopg reads the shortest text of a float
            return struct.pack("f", given) == struct.pack("f", found) or given != given != found  # noqa: PLR0124 - NaN
        return super().same(kind, given, found)

    def _same_list(self, declared: str, given: list[Any], found: str) -> bool:
        whole = _without_modifier(declared.removesuffix("[]"))
        statement = f"select %s::{whole}[]::text".encode()
        [(read,)] = self.connection.execute(statement, [[None if each is None else each for each in given]]).fetchall()
        return bool(read == found)


PLAIN = {"smallint", "integer", "bigint", "numeric", "real", "double precision", "text", "character varying", "boolean"}
PLAIN |= {
    "bytea",
    "date",
    "timestamp without time zone",
    "timestamp with time zone",
    "character",
    "short",
    "filled",
    "rough",
}
NEAR = {
    "int": [
        "smallint",
        "integer",
        "bigint",
        "numeric(3,0)",
        "numeric(5,-2)",
        "numeric(12,2)",
        "real",
        "double precision",
    ],
    "long": ["smallint", "integer", "bigint", "numeric(5,0)", "numeric"],
    "byte": ["smallint", "real", "numeric(2,0)"],
    "double": ["double precision", "real", "numeric"],
    "float": ["real", "double precision"],
    "decimal(5,2)": ["numeric", "numeric(4,2)", "numeric(5,2)", "numeric(5,1)", "numeric(2,4)", "double precision"],
    "decimal(38,10)": ["numeric", "numeric(20,10)", "numeric(38,10)"],
    "string": ["text", "varchar(3)", "char(3)", "short", "filled", "json", "varchar(10) collate nocase"],
    "timestamp": ["timestamptz", "timestamptz(0)", "timestamptz(3) not null", "rough", "timestamp"],
    "timestamp_ntz": ["timestamp", "timestamp(0)", "timestamp(3)"],
    "date": ["date", "timestamp", "timestamp(0)"],
    "binary": ["bytea"],
    "boolean": ["boolean not null"],
}


def _placed(name: str) -> str:
    """Return a type with its modifier where PostgreSQL wants it: `time(3) with time zone`."""
    for words in (" without time zone", " with time zone"):
        if words in name:
            before, _, after = name.partition(words)
            return before + after + words
    return name


def _without_modifier(declared: str) -> str:
    if declared.startswith("interval"):
        return "interval"
    before, _, after = declared.partition("(")
    kind = (before + after.partition(")")[2]).strip()
    return {"char": "bpchar", "character": "bpchar", "bit": '"bit"', "short": "text", "rough": "timestamptz"}.get(
        kind, kind
    )
