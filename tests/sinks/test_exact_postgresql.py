"""Values and rows come out of PostgreSQL as they went in, or are refused."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st

from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store
from sinks.exactness import TEXTS, VALUES, Exactness, Kind
from sinks.postgresql_texts import SERVER_ALONE, TEXTS_OF, meaning

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
            with closing(open_store(database)) as self.store:
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
        texts = st.sampled_from(sorted(TEXTS_OF)).flatmap(
            lambda name: st.sampled_from([name, f"{name}[]"]).map(lambda declared: _texts(declared, TEXTS_OF[name]))
        )
        return st.one_of(near, near, near, read, any_pair, arrays, texts, texts)

    def keys(self) -> st.SearchStrategy[Kind]:
        """Return texts of each collation, and other types."""
        texts = st.tuples(st.sampled_from(["text", "varchar(9)", "char(3)", "short"]), st.sampled_from(self.collations))
        read = st.sampled_from(["uuid", "inet", "colour"])
        drawn = st.sampled_from(["time", "time(0)", "time(3)", "timetz(1)", "interval", "bit(3)", "int4range", "jsonb"])
        others = st.sampled_from(
            [("int", "long"), ("bytea", "binary"), ("numeric", "decimal(5,2)"), ("timestamptz(0)", "timestamp")]
        )
        others |= st.sampled_from([("float8", "double"), ("numeric(5,-2)", "int"), ("date", "date"), ("int4", "byte")])
        return st.one_of(
            texts.map(lambda it: Kind("".join(it), "string", TEXTS)),
            texts.map(lambda it: Kind("".join(it), "string", TEXTS)),
            read.map(lambda name: Kind(name, "string", st.sampled_from(READ))),
            drawn.map(
                lambda name: Kind(name, "string", TEXTS_OF[name if name in TEXTS_OF else name.partition("(")[0]])
            ),
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

    def triggers(self, column: str, kind: Kind) -> st.SearchStrategy[str]:
        """Return triggers that make one text of several, or leave rows out."""
        body = "create function u{name}() returns trigger language plpgsql as $$begin %s; return new; end$$"
        fires = "create trigger u before insert or update on {name} for each row execute function u{name}()"
        does = [f"new.{column} := upper(new.{column})", f"if new.{column} = 'a' then return null; end if"]
        texts = kind.declared.startswith(("text", "varchar"))
        return st.sampled_from(["", "", "", *(f"{body % each}; {fires}" for each in does if texts)])

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
        """Return rows by psycopg; what is not a plain value as text, and so within arrays."""
        types = self.connection.execute(
            "select attname, format_type(atttypid, null) from pg_attribute where attrelid = %s::regclass", [name]
        ).fetchall()
        listed = [f"{column}{_read_as(kind)}" for wanted in columns for column, kind in types if column == wanted]
        return self.connection.execute(f"select {', '.join(listed)} from {name}".encode()).fetchall()  # noqa: S608 - names of ours

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """Texts have the same meaning, worked out here wherever that can be."""
        if given is None or found is None:
            return given is found
        if isinstance(given, list):
            element = kind._replace(declared=kind.declared.replace("[]", ""), spark=kind.spark[len("array<") : -1])
            return len(given) == len(found) and all(map(self.same, [element] * len(given), given, found))
        if isinstance(given, str):
            return self._same_text(_plain(kind.declared), given, found)
        if isinstance(given, dt.date) and not isinstance(given, dt.datetime) and isinstance(found, dt.datetime):
            return found == dt.datetime(given.year, given.month, given.day)  # noqa: DTZ001 - a wall clock
        if kind.spark == "float" and _plain(kind.declared) == "real":  # psycopg reads the shortest text of a float
            return struct.pack("f", given) == struct.pack("f", found) or given != given != found  # noqa: PLR0124 - NaN
        return super().same(kind, given, found)

    def _same_text(self, whole: str, given: str, found: str) -> bool:
        if whole not in SERVER_ALONE:
            return bool(meaning(whole, given) == meaning(whole, found))
        [(read,)] = self.connection.execute(f"select (%s::text)::{whole}::text".encode(), [given]).fetchall()
        return bool(found == read)


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
# What else a type is called, and what a domain is of.
NAMES = {"char": "character", "varchar": "text", "time": "time without time zone", "timetz": "time with time zone"}
NAMES |= {"varbit": "bit varying", "short": "text", "filled": "text", "rough": "timestamp with time zone"}
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


def _plain(declared: str) -> str:
    """Return the name that the server gives to a type, without modifier."""
    declared = declared.partition(" not null")[0].partition(" collate")[0]
    before, _, after = declared.partition("(")
    name = (before + after.partition(")")[2]).strip()
    return "interval" if name.startswith("interval") else NAMES.get(name, name)


def _read_as(kind: str) -> str:
    """Return the cast by which psycopg gets a plain value, or a text, or a list of these."""
    element, array, _ = kind.partition("[]")
    if element not in PLAIN:
        return f"::text{array}"
    return f"::{NAMES[element]}[]" if array and element in NAMES else ""


def _texts(declared: str, texts: st.SearchStrategy[str]) -> Kind:
    if declared.endswith("[]"):
        return Kind(declared, "array<string>", st.lists(texts | st.none(), max_size=3))
    return Kind(declared, "string", texts)
