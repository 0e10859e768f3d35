"""Rows into a table of SQLite: small data, through the driver.

The driver fetches one Spark partition after the other and collects the rows in a temporary database. So the target is
locked only while the rows are inserted.
"""

from __future__ import annotations

import re
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from offsetkeeper.clients.sqlite import (
    BUSY,
    DURABLE,
    PASSING,
    Connection,
    check_files,
    code_of,
    database_identity,
    has_outdated,
    read_url,
)
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, Refused, RowMismatch, SettingsError, SinkError
from offsetkeeper.sinks.blame import Blame, blame, judged
from offsetkeeper.sinks.limits import PLACE, Limits, named, no_value
from offsetkeeper.sinks.marks import Marks, apart, within
from offsetkeeper.sinks.sink import Joiner, Lander, Writer
from offsetkeeper.sinks.sqlite.columns import SQLiteColumn, affinity, converter, limits, misfit, shipped
from offsetkeeper.sinks.sqlite.dialect import DIALECT, TIMEOUT_S
from offsetkeeper.sinks.staging import check_inserted
from offsetkeeper.sinks.table import (
    ORDER,
    Target,
    altered,
    changed,
    changed_keys,
    limits_of_rows,
    match_columns,
    merged_keys,
    no_table,
    no_unique_index,
    ordered,
    same_key,
    says_record,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

T = TypeVar("T")
_Converter = tuple[int, str, Callable[[Any], Any]]
_TABLE = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?"  # a virtual table has no page
_STRICT = "SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ?"
_STRICT_SINCE = (3, 37, 0)
_TRIGGERS = "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
_DECLARED = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
_CLAUSE = re.compile(r"\bon\s+conflict\b", re.IGNORECASE)
# SQLite's DO UPDATE is one OR ABORT, which counts in the statements of the triggers that it fires, instead of these.
_OVERRIDDEN = r"\b(?:(?:insert\s+or\s+(?:ignore|replace)|replace)\s+into|update\s+or\s+(?:ignore|replace))\b"
_EACH_TRIGGER = "SELECT name, lower(tbl_name), sql FROM sqlite_schema WHERE type = 'trigger'"
_BROKEN = re.compile(r"(?:UNIQUE|NOT NULL) constraint failed: ([^.]+)\.")
_NO_TEXT = r"--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'"  # comments and texts
_NO_CODE = re.compile(rf"""{_NO_TEXT}|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]""", re.DOTALL)  # and quoted names
# The rowid alone is a primary key without an index; SQLite numbers the rows in it.
_COLUMNS = """
    SELECT name, type, "notnull" AND dflt_value IS NULL AND NOT numbered, hidden IN (2, 3),
        NOT "notnull" AND NOT numbered
    FROM (SELECT *, pk AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk') AS numbered
        FROM pragma_table_xinfo(?1))
    WHERE hidden <> 1"""
_PRIMARY_KEY = "SELECT name, 'BINARY' FROM pragma_table_info(?) WHERE pk"
_UNIQUE = """SELECT l.name, i.name, i.coll FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) i
    WHERE l."unique" AND NOT l.partial AND i.key"""

_NOTHING = "NOTHING"
_SETTINGS = "pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -16384; begin"
_SAME_KEY = "SELECT 1 FROM staged GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
_WITHOUT = "SELECT {shown} FROM staged WHERE {column} IS NULL LIMIT 1"


class _Look(NamedTuple):
    """How a table is: its columns, the collation of each column of the key, and whether it has triggers."""

    columns: list[SQLiteColumn]
    collations: Mapping[str, str]
    triggers: bool


class SQLiteTable:
    """The sink behind `Table("sqlite:///...", ...)`; see there."""

    worker_modules = ()

    def __init__(self, url: str, target: Target) -> None:
        read, path = read_url(url)
        self._database = SQLiteDatabase(path, read.address)
        self._address = read.address
        self._target = target
        if target.schema not in {"", "main"}:
            raise SettingsError(f"{target}: a SQLite file has no schema {target.schema!r}; give only the table's name")

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """See `Table.prepare`."""
        self._database.run(self._look)
        marks = Marks(
            self._database, DIALECT, "main", self._target.table.encode().lower().decode()
        )  # it folds ASCII alone
        if self._is_in_file_of(store):
            return within(self, marks)
        return apart(self, marks, guarantee)

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:  # noqa: ARG002 - the protocol's signature
        """See `Joiner`."""
        fields = frame.schema.fields
        look = self._database.run(self._look)
        found, collations, _ = look
        columns = match_columns(fields, found, self._target, misfit)
        kept = limits_of_rows(fields, columns, self._target, limits)
        staged = self._stage(frame, fields, kept)
        names = [field.name for field in fields]
        staged.check(kept, _places(fields))
        order = [names.index(name) for name in ORDER] if ordered(fields, self._target) else []
        key = {names.index(name): collations[name] for name in self._target.key}
        if key and self._same_key(staged, key, order):
            raise same_key(self._target, in_order=bool(order))
        places = [place for place, column in enumerate(columns) if column is not None]
        statement = _statement(self._target, [names[place] for place in places], aborts=not look.triggers)

        def finish(connection: Any) -> None:
            inserted = self._finish(connection, statement, staged.rows(places, order))
            if self._look(connection) != look:
                raise altered(self._target)
            there = count = staged.count()
            nothing = statement.endswith(_NOTHING) and inserted < count
            if collations and not self._target.fewer_rows and (nothing or look.triggers):
                keys = staged.rows([names.index(name) for name in self._target.key], [])
                there = self._found(connection, keys, collations)
            # With no column but the key, rows that are there are not written again.
            check_inserted(self._target, count, max(inserted, there) if nothing else inserted)
            if there < count:
                raise changed_keys(self._target, count, count - there)

        return finish

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `Writer`."""
        self._database.transaction(self.stage(frame, batch))

    def _is_in_file_of(self, store: Store) -> bool:
        """Whether the store is in the same file, even if the paths are spelled differently."""
        if not isinstance(store, TransactionalStore) or not store.address.startswith("sqlite:"):
            return False
        return self._database.run(database_identity) == store.identity()

    def _look(self, connection: Connection) -> _Look:
        """Return how the table is, after checks of its key and its triggers."""
        columns = self._columns(connection)
        triggers = self._has_triggers(connection)
        if not self._target.key:
            return _Look(columns, {}, triggers)
        indexes = [each for each in _unique_keys(connection, self._target.table) if set(each) == set(self._target.key)]
        if not indexes:
            raise no_unique_index(self._target._replace(schema=""), self._address, _quoted)
        by_name = {column.name: column for column in columns}
        merging = [
            (name, collation) for each in indexes for name, collation in each.items() if collation.upper() != "BINARY"
        ]
        if merging and not self._target.same_keys:
            name, collation = merging[0]
            why = f"is compared by the collation {collation}"
            remedy = "make the table again without that collation, in the column and in its unique indexes"
            raise merged_keys(self._target, by_name[name], why, remedy)
        return _Look(columns, indexes[0] | dict(merging), triggers)

    def _stage(self, frame: DataFrame, fields: Sequence[StructField], kept: Sequence[Limits]) -> _Staging:
        convert = [
            (place, field.name, function)
            for place, (field, each) in enumerate(zip(fields, kept, strict=True))
            if (function := converter(field.dataType.typeName(), each)) is not None
        ]
        record = _places(fields)
        rows = _fetch(frame.select(*(shipped(field).alias(_staged(place)) for place, field in enumerate(fields))))
        try:
            return _Staging((_converted(row, convert, record) for row in rows) if convert else rows, len(fields))
        except sqlite3.Error as error:
            raise SinkError(f"rows for {self._target} could not be staged: {error}; nothing was written") from error

    def _same_key(self, staged: _Staging, key: Mapping[int, str], order: Sequence[int]) -> bool:
        try:
            return staged.same_key(key, order)
        except sqlite3.OperationalError as error:  # a collation that another program has defined
            raise Refused(f"{self._address}, table {self._target}: {error}; nothing was written") from error

    def _finish(self, connection: sqlite3.Connection, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        try:
            return max(0, connection.executemany(statement, rows).rowcount)
        except sqlite3.Error as error:
            text = f"{self._address}, table {self._target}: {error}; nothing was written"
            if name := self._overridden(connection, error):
                raise Refused(
                    f"{text}. An upsert overrides `or ignore`, `or replace` and `replace into` of trigger {name}: "
                    "write `insert … on conflict do nothing` or `do update` there, and an `update` whose `where` "
                    "leaves out what is in conflict; or use append"
                ) from error
            raise judged(error, text) from error

    def _overridden(self, connection: sqlite3.Connection, error: sqlite3.Error) -> str:
        """Return the trigger whose clause for a conflict an upsert has overridden; else empty."""
        broken = _BROKEN.match(str(error))
        if not self._target.key or broken is None:
            return ""
        every = [
            (name, table, re.sub(_NO_TEXT, " ", code, flags=re.DOTALL))
            for name, table, code in connection.execute(_EACH_TRIGGER).fetchall()
        ]
        fired = [self._target.table.lower()]  # the tables whose triggers the upsert may have fired
        for at in fired:
            for name, _, code in (each for each in every if each[1] == at):
                if _names(code, broken[1], _OVERRIDDEN):
                    return str(name)
                fired += sorted({table for _, table, _ in every if _names(code, table)} - {*fired})
        return ""

    def _found(self, connection: Connection, keys: Iterable[Sequence[Any]], collations: Mapping[str, str]) -> int:
        """Return how many of these rows the table has, by their keys."""
        table, key = self._target.table, self._target.key
        same = " AND ".join(f"{_quoted(name)} = ? COLLATE {collations[name]}" for name in key)
        query = f"SELECT EXISTS (SELECT 1 FROM {_quoted(table)} WHERE {same})"  # noqa: S608 - quoted
        return sum(connection.execute(query, row).fetchone()[0] for row in keys)

    def _has_triggers(self, connection: sqlite3.Connection) -> bool:
        """Return whether the table has triggers.

        Raises:
            Refused: it has a conflict clause too. An insert overrides the clauses of the table and of its triggers, or
                none of them.
        """
        table = self._target.table
        triggers = connection.execute(_TRIGGERS, [table]).fetchone() is not None
        if triggers and not self._target.fewer_rows:
            [(declared,)] = connection.execute(_DECLARED, [table])
            if _CLAUSE.search(_NO_CODE.sub(" ", declared)):
                raise Refused(
                    f"{self._address}: table {table} has a conflict clause (ON CONFLICT), which may leave rows out, "
                    "and a trigger, whose own clauses would be lost if that one did not count: make the table without "
                    'the clause, or give fewer_rows="as the table" if that is meant'
                )
        return triggers

    def _columns(self, connection: sqlite3.Connection) -> list[SQLiteColumn]:
        table = self._target.table
        found = connection.execute(_TABLE, [table]).fetchone()
        if found is None:
            raise no_table(self._target, self._address)
        if not found[0]:
            raise Refused(
                f"{self._address}: {table} is a virtual table, which may change values, as rtree rounds numbers: write "
                "into an ordinary table, and fill this one from it by a trigger"
            )
        [(encoding,)] = connection.execute("PRAGMA encoding")
        keyed = () if self._target.same_keys else self._target.key
        strict = sqlite3.sqlite_version_info >= _STRICT_SINCE and connection.execute(_STRICT, [table]).fetchone()[0]
        return [
            SQLiteColumn(
                name, kind, bool(r), bool(g), bool(n), affinity(kind, strict=bool(strict)), encoding, name in keyed
            )
            for name, kind, r, g, n in connection.execute(_COLUMNS, [table])
        ]


class SQLiteDatabase(NamedTuple):
    """Access to a file, with a new connection for each piece of work. See `sinks.marks.Database`."""

    path: Path
    address: str

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`."""
        with closing(self._open()) as connection, self.request(connection):
            connection.execute(DURABLE)
            return work(connection)

    def transaction(self, work: Callable[[Connection], None]) -> None:
        """Do `work` in a transaction. The file is locked for other writers until it ends."""
        with closing(self._open()) as connection, self.request(connection):
            connection.execute(DURABLE)
            connection.execute("BEGIN IMMEDIATE")
            work(connection)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if connection.in_transaction:
                    raise
                raise OutcomeUnknown(f"{self.address}: the commit failed half-way ({error})") from error

    @contextmanager
    def request(self, connection: Connection) -> Iterator[None]:  # noqa: ARG002 - the protocol's signature
        """Translate errors of SQLite in the block."""
        try:
            yield
        except sqlite3.Error as error:
            text = f"{self.address}: {error}; nothing was written"
            passes = code_of(error) in BUSY | PASSING or blame(error) is Blame.RECORD
            raise (
                judged(error, text) if passes else Refused(text)
            ) from error  # our own SQL is never the program's fault

    def _open(self) -> Connection:
        check_files(self.path, self.address)
        if has_outdated(self.path):
            raise SinkError(
                f"{self.address}: the file was replaced while a store of this process has it open; nothing was written"
            )
        uri = f"{self.path.as_uri()}?mode=rw"
        try:
            return sqlite3.connect(uri, uri=True, timeout=TIMEOUT_S, isolation_level=None, factory=Connection)
        except sqlite3.Error as error:
            raise Refused(f"{self.address}: {error}; create the database and its table first") from error


def _unique_keys(connection: sqlite3.Connection, table: str) -> list[dict[str, str]]:
    """Return the columns of each unique key, with their collations."""
    indexes: dict[str, dict[str, str]] = {}
    for index, column, collation in connection.execute(_UNIQUE, [table]):
        indexes.setdefault(index, {})[column] = collation
    return [*indexes.values(), dict(connection.execute(_PRIMARY_KEY, [table]))]


def _statement(target: Target, names: Sequence[str], *, aborts: bool) -> str:
    """Return the statement for a row; if it aborts at conflicts, clauses of the table and its triggers do not count."""
    listed, key = ", ".join(map(_quoted, names)), ", ".join(map(_quoted, target.key))
    changes = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in changed(target, names))
    clause = " OR ABORT" if aborts and not target.fewer_rows else ""  # a table's own leave rows out, or replace some
    insert = f"INSERT{clause} INTO {_quoted(target.table)} ({listed}) VALUES ({', '.join('?' * len(names))})"
    if target.mode == "append":
        return insert
    return f"{insert} ON CONFLICT ({key}) DO {f'UPDATE SET {changes}' if changes else _NOTHING}"


def _names(code: str, table: str, after: str = r"(?<!\w)") -> bool:
    """Whether SQL has the name of a table, quoted or not, right after what a pattern matches."""
    return re.search(rf"""{after}\s*["`\[]?{re.escape(table)}(?!\w)""", code, re.IGNORECASE) is not None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _converted(row: Sequence[Any], convert: Sequence[_Converter], record: Sequence[int]) -> Sequence[Any]:
    values = list(row)
    for place, name, function in convert:
        if values[place] is not None:
            try:
                values[place] = function(values[place])
            except (ValueError, OverflowError) as error:
                raise RowMismatch(f"{_record(row, record)}column {name}: {error}; nothing was written") from error
    return values


def _places(fields: Sequence[StructField]) -> list[int]:
    """Return the columns that say of which record a row is; empty if none do."""
    return [[field.name for field in fields].index(name) for name in PLACE] if says_record(fields) else []


def _record(row: Sequence[Any], places: Sequence[int]) -> str:
    if not places:
        return ""
    topic, partition, offset = (row[place] for place in places)
    return named(topic.encode() if isinstance(topic, str) else topic, partition, offset)


def _fetch(frame: DataFrame) -> Iterator[Sequence[Any]]:
    """Return a frame's rows one by one; each partition is computed once. The driver holds at most two partitions.

    With Spark Connect it holds what the server sends in advance.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        return frame.toLocalIterator()
    # Not DataFrame.toLocalIterator: Spark 4.2 keeps each of its jobs in memory until the application ends.
    rows: Iterator[Sequence[Any]] = frame.rdd.toLocalIterator(prefetchPartitions=True)
    return rows


class _Staging:
    """Rows in a separate temporary database that disappears with the last reference. Little of it is in memory.

    Raises:
        sqlite3.Error: the rows could not be staged, for example because the disk is full.
    """

    def __init__(self, rows: Iterable[Sequence[Any]], width: int) -> None:
        # An empty name means a temporary database. The garbage collector may close it in any thread.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.executescript(_SETTINGS)
        self._connection.execute(f"CREATE TABLE staged ({_columns(range(width))})")  # no types: values do not change
        self._connection.executemany(f"INSERT INTO staged VALUES ({', '.join('?' * width)})", rows)  # noqa: S608 - as below

    def check(self, limits: Sequence[Limits], record: Sequence[int]) -> None:
        """Check that there is a value where one is needed.

        Args:
            limits: of each column.
            record: the columns that say of which record a row is; empty if none do.

        Raises:
            RowMismatch: there is none.
        """
        shown = _columns(record) or "1"
        for place, each in enumerate(limits):
            if each.nullable:
                continue
            row = self._connection.execute(_WITHOUT.format(shown=shown, column=_staged(place))).fetchone()
            if row is not None:
                raise no_value(each, _record(row, range(len(record))))

    def same_key(self, key: Mapping[int, str], order: Sequence[int]) -> bool:
        """Whether two rows have the same key, compared by the collation of each column, and the same order."""
        columns = [f"{_staged(place)} COLLATE {collation}" for place, collation in key.items()]
        return (
            self._connection.execute(_SAME_KEY.format(key=", ".join([*columns, *map(_staged, order)]))).fetchone()
            is not None
        )

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._connection.execute("SELECT count(*) FROM staged").fetchone()[0])

    def rows(self, places: Sequence[int], order: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """Return the columns `places` of each row, sorted by the columns `order`; without them in insertion order.

        The rows are available as long as the staging exists.
        """
        by = _columns(order) if order else "rowid"
        return self._connection.execute(f"SELECT {_columns(places)} FROM staged ORDER BY {by}")  # noqa: S608 - numbers


def _columns(places: Iterable[int]) -> str:
    return ", ".join(map(_staged, places))


def _staged(place: int) -> str:
    return f"c{place}"
