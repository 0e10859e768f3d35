"""The two properties on a real MariaDB: of all its types, character sets and collations."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any

import pymysql
import pytest
from hypothesis import strategies as st

from offsetkeeper.sinks import Table
from offsetkeeper.stores import open_store
from offsetkeeper.testing.mariadb import MariaDBServer
from sinks.exactness import SMALL_DAYS, TEXTS, VALUES, WALLS, Exactness, Kind, decimals, whole

BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
SPARK_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
# Every 37th character up to the surrogates and all of latin1: those that a character set has.
CHARACTERS = """
    select convert(convert(char(seq using utf32) using {0}) using utf8mb4) from
    (select seq from seq_0_to_55295_step_37 union select seq from seq_0_to_255) s
    where cast(convert(convert(char(seq using utf32) using {0}) using utf8mb4) as binary) =
        cast(convert(char(seq using utf32) using utf8mb4) as binary)"""
Query = Callable[..., list[Any]]


class TestMySQL(Exactness):
    """See `Exactness`."""

    here = True
    share = 0.1

    @pytest.fixture(autouse=True)
    def _connected(self, mariadb_server: MariaDBServer) -> Iterator[None]:
        database = mariadb_server.create_database()
        self.url = mariadb_server.url(database)
        settings: dict[str, Any] = {"host": "127.0.0.1", "port": mariadb_server.port, "user": "root"}
        setup = "set time_zone = '+00:00', sql_mode = ''"
        with pymysql.connect(**settings, database=database, autocommit=True, init_command=setup) as connection:
            self.connection = connection
            found = self.query("select collation_name, character_set_name from information_schema.collations")
            self.collations = [(name, charset) for name, charset in found if charset not in {None, "binary"}]
            self.characters = cache(self._characters)
            with closing(open_store(self.url)) as self.store:
                yield

    def query(self, statement: str) -> list[Any]:
        """Return what a statement finds."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return [*cursor.fetchall()]

    def kinds(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        kinds = st.one_of(self.texts(self.collations), self.texts(self.collations), numbers(), times(), others())
        return st.builds(lambda kind, null: kind._replace(declared=kind.declared + null), kinds, NULLS)

    def keys(self) -> st.SearchStrategy[Kind]:
        """See `Exactness`."""
        exact = [(name, charset) for name, charset in self.collations if name.endswith("_bin")]
        texts = self.texts(exact)
        kinds = st.one_of(texts, texts, texts, self.texts(self.collations), numbers(), times(), others())
        return st.builds(lambda kind, null: kind._replace(declared=kind.declared + null), kinds, NULLS)

    def obstacles(self) -> st.SearchStrategy[str]:
        """See `Exactness`."""
        no = "signal sqlstate '45000' set message_text = 'no'"
        return st.sampled_from(
            [
                "",
                "alter table {name} add unique (id)",
                "alter table {name} add check (id < 2)",
                "alter table {name} partition by list (id) (partition one values in (0, 1))",
                f"create trigger {{name}}_t before insert on {{name}} for each row if new.id = 2 then {no}; end if",
                "create trigger {name}_t before insert on {name} for each row set new.item = 'c'",
            ]
        )

    def triggers(self, column: str, kind: Kind) -> st.SearchStrategy[str]:
        """See `Exactness`."""
        upper = (
            f"create trigger {{name}}_u before insert on {{name}} for each row set new.{column} = upper(new.{column})"
        )
        return st.sampled_from(["", "", "", *([upper] if "character set" in kind.declared else ())])

    def create(self, name: str, columns: dict[str, str], key: Sequence[str] = ()) -> None:
        """See `Exactness`."""
        unique = f", unique ({', '.join(key)})" if key else ""
        listed = ", ".join(f"{column} {declared}" for column, declared in columns.items())
        self.query(f"create table {name} ({listed}{unique})")

    def run(self, statement: str) -> None:
        """See `Exactness`."""
        self.query(statement)

    def sink(self, name: str, **words: Any) -> Table:
        """See `Exactness`."""
        return Table(self.url, name, **words)

    def read(self, name: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """See `Exactness`. The server shows only six digits of a float, and -0.0 with zerofill as '0000-0'."""
        kinds = {column[0]: column[1] for column in self.query(f"describe {name}")}
        exact = (f"{each} * 1e0" if kinds[each].startswith(("float", "double")) else each for each in columns)
        return self.query(f"select {', '.join(exact)} from {name}")  # noqa: S608 - names of ours

    def same(self, kind: Kind, given: Any, found: Any) -> bool:
        """See `Exactness`."""
        if given is None or found is None:
            return given is found
        if kind.declared.startswith("bit"):
            return bool(int.from_bytes(found, "big") == given)
        if kind.declared.startswith("inet6"):
            return bool(ipaddress.IPv6Address(found) == _address(given))
        if isinstance(given, datetime):
            return bool(given.replace(tzinfo=None) == found)
        if isinstance(given, date) and isinstance(found, datetime):
            return bool(found == datetime.combine(given, time()))
        return super().same(kind, given, found)

    def texts(self, collations: Sequence[tuple[str, str]]) -> st.SearchStrategy[Kind]:
        """Return columns of text, and texts of which most fit."""
        return st.builds(self._text, st.sampled_from(collations), st.sampled_from(SIZES))

    def _text(self, collation: tuple[str, str], size: tuple[str, int]) -> Kind:
        (name, charset), (kind, most) = collation, size
        own = st.text(st.sampled_from(self.characters(charset)), max_size=most).map(lambda text: text.rstrip(" "))
        edge = st.builds(lambda text, longer: (text * most)[: most + longer], own, st.integers(-1, 1))
        blank = st.builds(lambda text, blanks: text + " " * blanks, st.one_of(own, edge), st.integers(1, 2))
        values = st.one_of(
            own, own, own, own, own, own, edge, blank, TEXTS.filter(lambda text: len(text) <= most), TEXTS
        )
        return Kind(f"{kind} character set {charset} collate {name}", "string", values)

    def _characters(self, charset: str) -> list[str]:
        return [character for (character,) in self.query(CHARACTERS.format(charset)) if character]


NULLS = st.sampled_from([" null", " null", " null", " not null"])
SIZES = [("char(2)", 2), ("varchar(3)", 3), ("varchar(8)", 8), ("char(5)", 5), ("tinytext", 255), ("text", 12)]


def numbers() -> st.SearchStrategy[Kind]:
    """Return columns of numbers."""
    sign = st.sampled_from(["", "", "", " unsigned", " unsigned zerofill"])
    wholes = st.builds(lambda kind, sign: f"{kind}{sign}", st.sampled_from([*BITS]), sign)
    exact = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))
    near = st.builds(lambda kind, sign: kind + sign, st.sampled_from(["float", "double"]), sign)
    return st.one_of(
        st.builds(_whole, wholes, st.sampled_from([*SPARK_BITS])),
        st.builds(_whole, exact, st.sampled_from([*SPARK_BITS])),
        st.builds(_decimal, exact, st.integers(1, 38), st.integers(0, 10)),
        st.builds(lambda kind: Kind(kind, "boolean", st.booleans()), st.one_of(wholes, exact, st.just("bit(3)"))),
        st.builds(lambda kind, spark: Kind(kind, spark, VALUES[spark]), near, st.sampled_from(["float", "double"])),
    )


def _whole(declared: str, spark: str) -> Kind:
    bits = next((bits for kind, bits in BITS.items() if declared.startswith(kind)), 8)
    usual = whole(min(bits, SPARK_BITS[spark])).map(lambda n: max(n, ~n) if "unsigned" in declared else n)
    return Kind(declared, spark, st.one_of(usual, usual, usual, whole(SPARK_BITS[spark])))


def _decimal(declared: str, precision: int, scale: int) -> Kind:
    most, digits = (int(number) for number in re.findall(r"\d+", declared))
    fits = decimals(max(min(precision, most), 1), min(scale, digits, precision))
    return Kind(declared, f"decimal({precision},{min(scale, digits, precision)})", fits)


def times() -> st.SearchStrategy[Kind]:
    """Return columns of dates and times."""
    unix = st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 18))  # noqa: DTZ001 - UTC follows

    def moment(digits: int) -> st.SearchStrategy[Kind]:
        step = 10 ** (6 - digits)
        cut: Callable[[datetime], datetime] = lambda at: at.replace(microsecond=at.microsecond // step * step)  # noqa: E731
        walls = st.one_of(WALLS.map(cut), WALLS.map(cut), WALLS.map(cut), WALLS)
        moments = st.one_of(unix.map(cut), unix.map(cut), unix, WALLS).map(lambda at: at.replace(tzinfo=UTC))
        return st.sampled_from(
            [
                Kind(f"datetime({digits})", "timestamp_ntz", walls),
                Kind(f"timestamp({digits})", "timestamp", moments),
                Kind(f"datetime({digits})", "date", SMALL_DAYS),
                Kind("date", "date", SMALL_DAYS),
            ]
        )

    return st.integers(0, 6).flatmap(moment)


def others() -> st.SearchStrategy[Kind]:
    """Return columns of bytes, and of texts that the server reads."""
    uuids = st.uuids().map(str)
    fours, sixes = st.ip_addresses(v=4).map(str), st.ip_addresses(v=6)
    documents = st.sampled_from(["{}", '{"a": 1}', '{"b":1,"a":1.10}', "[1, 2]", '"x"', "1e2", "null", "{", ""])
    return st.sampled_from(
        [
            Kind("varbinary(4)", "binary", st.one_of(st.binary(max_size=4), st.binary(max_size=6))),
            Kind("tinyblob", "binary", st.one_of(st.binary(max_size=6), st.binary(min_size=254, max_size=256))),
            Kind("blob", "binary", st.binary(max_size=6)),
            Kind("uuid", "string", st.one_of(uuids, uuids, uuids, uuids.map(str.upper), TEXTS)),
            Kind("inet4", "string", st.one_of(fours, fours, fours, st.just("01.2.3.4"), TEXTS)),
            Kind("inet6", "string", st.one_of(sixes.map(str), sixes.map(str), sixes.map(lambda a: a.exploded), fours)),
            Kind("json", "string", documents),
            Kind("enum('a', '2', '1')", "string", st.sampled_from(["a", "1", "2"])),
        ]
    )


def _address(text: str) -> ipaddress.IPv6Address:
    return ipaddress.IPv6Address(text if ":" in text else f"::ffff:{text}")
