"""Rows into a table of MySQL or MariaDB: staged by the executors, merged by the driver in one transaction.

The columns of the staging table have the types of the table, so that a value that does not fit is refused while it is
staged. Each task inserts its rows in a transaction of its own connection, with a unique attempt number, and reports the
number. When the job is done, the rows of the reported attempts are inserted into the table. The staging table is
dropped after the commit, with those of other runs of the group, because DROP TABLE commits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pymysql

from offsetkeeper import errors
from offsetkeeper.clients import mysql_tls
from offsetkeeper.clients.mysql import Connection, Connections, code_of, read_url
from offsetkeeper.clients.mysql_server import database_identity
from offsetkeeper.core import environment, outside, tls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, RowMismatch, SinkError, StoreUnavailable
from offsetkeeper.sinks import limits
from offsetkeeper.sinks.marks import Marks, apart, within
from offsetkeeper.sinks.mysql import task
from offsetkeeper.sinks.mysql.columns import MySQLColumn, Relation, check_key, find_table, misfit, quoted
from offsetkeeper.sinks.mysql.columns import limits as limits_of
from offsetkeeper.sinks.mysql.dialect import DIALECT
from offsetkeeper.sinks.sink import Joiner, Lander, Writer
from offsetkeeper.sinks.staging import asked, check_attempts, check_inserted, copied, staging_prefix
from offsetkeeper.sinks.table import (
    ORDER,
    Target,
    changed,
    changed_keys,
    limits_of_rows,
    match_columns,
    ordered,
    same_key,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

T = TypeVar("T")

_SHIPPED = (errors, environment, limits, outside, task, tls, mysql_tls)
# All that a merge relies on. The server sorts and groups only by the first max_sort_length bytes of a text.
_RELIED_ON = {
    "sql_mode": "'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "unique_checks": "1",
    "foreign_key_checks": "1",
    "sql_select_limit": "18446744073709551615",
    "max_sort_length": "65536",
}
_MARIADB = {"check_constraint_checks": "1"}  # which MySQL has not, and takes for a comment


def _sets(values: Callable[[str], str]) -> str:
    """Return the settings of a SET statement; `values` gives the value of each name."""
    common = ", ".join(f"{name} = {values(name)}" for name in _RELIED_ON)
    return common + "".join(f" /*M!100201 , {name} = {values(name)} */" for name in _MARIADB)


_OURS = _sets({**_RELIED_ON, **_MARIADB}.__getitem__)
_SETUP = f"SET NAMES utf8mb4, {_OURS}"
_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"  # no locks on gaps, so fewer deadlocks
# A merge may be on the store's connection, where the settings of the block must be restored.
_KEEP = f"SET {', '.join(f'@offsetkeeper_{name} = @@{name}' for name in _RELIED_ON)}" + "".join(
    f" /*M!100201 , @offsetkeeper_{name} = @@{name} */" for name in _MARIADB
)
_SET = f"SET {_OURS}"
_RESTORE = f"SET {_sets('@offsetkeeper_{}'.format)}"
_CREATE = "CREATE TABLE {staging} (attempt bigint NOT NULL, {columns}) ENGINE = InnoDB"
_MERGE = "INSERT INTO {table} ({columns}) SELECT {values} FROM {staging} s WHERE {done}{order}{conflict}"
_COUNT = "SELECT attempt, COUNT(*) FROM {staging} s WHERE {done} GROUP BY attempt"
# SQL_BIG_RESULT sorts: a table of the groups takes five times as long (200,000 rows on MariaDB 11.4).
_SAME_KEY = "SELECT SQL_BIG_RESULT 1 FROM {staging} s WHERE {done} GROUP BY {key} HAVING COUNT(*) > 1 LIMIT 1"
# A trigger may spell keys otherwise, so that two of them are one.
_KEPT = (
    "SELECT COUNT(*), COUNT({first}) FROM (SELECT DISTINCT {keys} FROM {staging} s WHERE {done}) s "
    "LEFT JOIN {table} t ON {same}"
)
# It fails if the key of the row that is there has other blanks at its end: the server has no plainer way to say no.
# REPEAT gives both branches one character set: a number as text cannot be swe7.
_SAME_BLANKS = (
    "IF(OCTET_LENGTH({old}) = OCTET_LENGTH({new}), {old}, "
    "REPEAT({old}, 18446744073709551615 + (OCTET_LENGTH({old}) <> OCTET_LENGTH({new}))))"
)
_TOO_LARGE = 1690
_PROBE = "INSERT INTO {table} ({columns}) SELECT {nulls} FROM DUAL WHERE 1 = 0{conflict}"
_LEFT_OVERS = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s"
_ORDER_TYPES = ("varchar(249) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "int", "bigint")


class MySQLTable:
    """The sink behind `Table("mysql://...", ...)`; see there."""

    worker_modules = ("numpy", "pyarrow", "pymysql")

    def __init__(self, url: str, target: Target) -> None:
        self._session = Session(url)
        self._target = target
        self._run = environment.token(4)
        self._tidied: set[str] = set()

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """See `Table.prepare`. Both databases are asked for their identity; URLs do not decide."""
        relation = self._session.run(self._check)
        marks = Marks(self._session, DIALECT, relation.schema, relation.name)
        if self._is_in_database_of(store):
            return within(self, marks)
        return apart(self, marks, guarantee)

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """See `Joiner`."""
        staging = self._session.run(lambda connection: self._make_staging(connection, frame, batch))
        kept = limits_of_rows(staging.fields, staging.columns, self._target, limits_of)
        write = ship(task.insert_rows, (self._session.executors, self._session.address, staging.name, kept), _SHIPPED)
        try:
            attempts = copied(frame, write, task.RESULT)
            self._session.run(lambda connection: staging.check(connection, attempts))
        except BaseException:
            with suppress(SinkError):
                self._session.run(lambda connection: drop(connection, [staging.name]))
            raise
        return lambda connection: staging.finish(connection, attempts, tidy=self._tidies(staging.prefix))

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `Writer`."""
        self._session.transaction(self.stage(frame, batch))

    def _is_in_database_of(self, store: Store) -> bool:
        if not isinstance(store, TransactionalStore) or not store.address.startswith(("mysql:", "mariadb:")):
            return False
        return store.identity() == self._session.run(database_identity)

    def _find(self, connection: Connection) -> Relation:
        return find_table(connection, self._target, self._session.database, self._session.address)

    def _check(self, connection: Connection) -> Relation:
        """Check what does not need a frame: the table, its key, the user's permissions."""
        relation = self._find(connection)
        check_key(relation, self._target, self._session.address)
        names = [column.name for column in relation.columns if not column.generated]
        probe = f"{quoted(relation.schema)}.{quoted(f'offsetkeeper_{environment.token(8)}')}"
        connection.execute(f"DROP TABLE IF EXISTS {probe}")  # a user who can create but not drop leaves them behind
        connection.execute(_CREATE.format(staging=probe, columns="c0 int"))
        try:
            connection.execute(f"EXPLAIN INSERT INTO {probe} SELECT * FROM {probe}")  # noqa: S608 - a name of ours
        finally:
            drop(connection, [probe])
        connection.execute(
            _PROBE.format(
                table=relation,
                columns=_listed(map(quoted, names)),
                nulls=_listed(["NULL"] * len(names)),
                conflict=_conflict(self._target, relation, dict.fromkeys(names, "NULL")),
            )
        )
        return relation

    def _make_staging(self, connection: Connection, frame: DataFrame, batch: Batch) -> Staging:
        relation = self._find(connection)
        fields = frame.schema.fields
        columns = match_columns(fields, relation.columns, self._target, misfit)
        check_key(relation, self._target, self._session.address, [field.name for field in fields])
        prefix = staging_prefix(batch.group, relation.schema, relation.name)
        mine = f"{prefix}{self._run}_"
        drop(connection, left_overs(connection, relation.schema, mine))
        name = f"{quoted(relation.schema)}.{quoted(mine + environment.token(4))}"
        staging = Staging(self._target, relation, prefix, name, fields, columns)
        staging.create(connection)
        return staging

    def _tidies(self, prefix: str) -> bool:
        """Whether this is the first batch of this run into that table."""
        first = prefix not in self._tidied
        self._tidied.add(prefix)
        return first


class Session:
    """Connections that are opened when needed, and opened again after they were lost. See `sinks.marks.Session`.

    Attributes:
        address: the URL without credentials.
        database: the database in the URL.
        executors: PyMySQL's settings for executors, see `connectable`, with the password: never show them.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read, library = read_url(url)
        self.address = read.address
        self.database = read.settings.schema
        self._timeout = read.settings.timeout
        timeouts = {"read_timeout": self._timeout, "write_timeout": self._timeout}
        self.executors: dict[str, Any] = {**library, **timeouts, "charset": "utf8mb4", "autocommit": None}
        self._connections = Connections(read, library, partial(_prepare, self._timeout), several=True)
        weakref.finalize(self, self._connections.close)

    def __repr__(self) -> str:
        return f"Session({self.address!r})"

    def run(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. It may be called twice: a kept connection may turn out to be lost."""
        return asked(lambda: self._run(work))

    def transaction(self, work: Callable[[Connection], None]) -> None:
        """Do `work` in a transaction of a separate connection, and return when it is durable."""
        try:
            with self._connections.lend() as connection:
                try:
                    self._transact(connection, work)
                finally:
                    connection.drop()
        except StoreUnavailable as error:
            raise SinkError(str(error)) from error

    @contextmanager
    def request(self, connection: Connection) -> Iterator[None]:
        """Limit the time of each answer in the block, and translate errors."""
        connection.limit(self._timeout)
        with self._connections.request(connection):
            yield

    def _transact(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        with self.request(connection):
            # A driver that stalls here holds its locks only as long as another run waits for them.
            connection.execute(f"SET SESSION wait_timeout = {max(1, int(self._timeout))}")
            connection.begin()
        work(connection)
        connection.limit(self._timeout)
        with self._connections.request(connection, OutcomeUnknown):
            connection.commit()
        with suppress(errors.OffsetkeeperError), self.request(connection):  # harmless: all is committed
            connection.drop_staged()

    def _run(self, work: Callable[[Connection], T]) -> T:
        with self._connections.lend() as connection, self.request(connection):
            return work(connection)


def _prepare(timeout: float, connection: Connection) -> None:
    """Set up a new connection. It is not a method: a pool that refers to its session is never collected."""
    locks = max(1, int(timeout))  # otherwise the server waits after this side gave up
    for statement in (_SETUP, _READ_COMMITTED, f"SET SESSION innodb_lock_wait_timeout = {locks}"):
        connection.execute(statement)


class Staging(NamedTuple):
    """A staging table, and how its rows get into the target.

    Attributes:
        target: the table as the user named it.
        relation: the table as the database has it.
        prefix: common prefix of the names of all staging tables of the group.
        name: name of the staging table, quoted for SQL.
        fields: fields of the frame; field n is staged in column `c<n>`.
        columns: the table's column for each field; None for a field that is not stored.
    """

    target: Target
    relation: Relation
    prefix: str
    name: str
    fields: Sequence[StructField]
    columns: Sequence[MySQLColumn | None]

    def create(self, connection: Connection) -> None:
        """Create the staging table."""
        order = dict(zip(ORDER, _ORDER_TYPES, strict=True))
        pairs = enumerate(zip(self.fields, self.columns, strict=True))
        columns = (f"c{place} {column.staged if column else order[field.name]}" for place, (field, column) in pairs)
        connection.execute(_CREATE.format(staging=self.name, columns=_listed(columns)))

    def check(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        """Check that staged rows have different keys, or a known order.

        Raises:
            RowMismatch: several rows have the same key, and none of them is the last.
        """
        if not self.target.key or not attempts:
            return
        same = [*reversed(self._order), *(self._places[name] for name in self.target.key)]
        statement = _SAME_KEY.format(staging=self.name, done=_done(attempts), key=_listed(same))
        connection.limit(None)
        if connection.execute(statement).fetchall():
            raise same_key(self.target, in_order=bool(self._order))

    def finish(self, connection: Connection, attempts: Mapping[int, int], *, tidy: bool) -> None:
        """Merge the rows of these attempts into the table, in the connection's transaction.

        Args:
            connection: a connection in a transaction. After the commit, it drops the staging table.
            attempts: number of rows of each attempt that staged them.
            tidy: whether to also drop staging tables of other runs of the group.

        Raises:
            SinkError: the rows were not written.
            Refused: the table left some of them out.
            RowMismatch: it does not take a value; or a key of the table differs from one of these rows only by blanks.
        """
        connection.limit(None)
        try:
            if attempts:
                for statement in (_KEEP, _SET):
                    connection.execute(statement)
                self._merge(connection, attempts)
                connection.execute(_RESTORE)
            others = left_overs(connection, self.relation.schema, self.prefix) if tidy else []
        except pymysql.Error as error:
            raise self._failure(error) from error
        connection.staged = (*connection.staged, self.name, *(name for name in others if name != self.name))

    def _merge(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        found = connection.execute(_COUNT.format(staging=self.name, done=_done(attempts))).fetchall()
        check_attempts(self.target, attempts, dict(found))
        inserted = connection.execute(self._statement(attempts)).rowcount
        if self.target.mode == "append":
            check_inserted(self.target, sum(attempts.values()), inserted)
        elif self.relation.triggers and not self.target.fewer_rows:
            self._check_keys(connection, attempts)

    def _check_keys(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        """Check that the table has each key that was staged: no trigger has changed one."""
        places = {name: self._places[name] for name in self.target.key}
        statement = _KEPT.format(
            first=f"t.{quoted(self.target.key[0])}",
            keys=_listed(places.values()),
            staging=self.name,
            done=_done(attempts),
            table=self.relation,
            same=" AND ".join(f"t.{quoted(name)} = {place}" for name, place in places.items()),
        )
        [(staged, kept)] = connection.execute(statement).fetchall()
        if kept < staged:
            raise changed_keys(self.target, staged, staged - kept)

    def _failure(self, error: pymysql.Error) -> SinkError | RowMismatch:
        code = code_of(error)
        if code == _TOO_LARGE and any(column and column.padded for column in self.columns):
            return RowMismatch(
                f"table {self.target}: the key ({', '.join(self.target.key)}) of a row that is there differs from one "
                "of the batch only by blanks at its end, so the table takes them for the same. Nothing was written: "
                'remove that row, or give same_keys="as the column" if that is meant'
            )
        kind = RowMismatch if code in task.VALUES else SinkError
        return kind(f"table {self.target}: {error}; nothing was written")

    def _statement(self, attempts: Mapping[int, int]) -> str:
        order = f" ORDER BY {_listed(self._order)}" if self._order else ""
        return _MERGE.format(
            table=self.relation,
            columns=_listed(map(quoted, self._places)),
            values=_listed(self._places.values()),
            staging=self.name,
            done=_done(attempts),
            order=order,
            conflict=_conflict(self.target, self.relation, self._places),
        )

    @property
    def _order(self) -> list[str]:
        """What orders the rows, topics by their bytes; nothing if the frame does not say."""
        if not ordered(self.fields, self.target):
            return []
        names = [field.name for field in self.fields]
        topic, *numbers = (f"s.c{names.index(name)}" for name in ORDER)
        if self.columns[names.index(ORDER[0])] is not None:  # it has the collation of the table
            topic = f"CONVERT({topic} USING utf8mb4) COLLATE utf8mb4_bin"
        return [topic, *numbers]

    @property
    def _places(self) -> dict[str, str]:
        """The staged values of the table's columns, by name."""
        return {column.name: f"s.c{place}" for place, column in enumerate(self.columns) if column is not None}


def drop(connection: Connection, tables: Sequence[str]) -> None:
    """Drop staging tables. A table that is still in use is left for a later run."""
    connection.staged = tuple(tables)
    with suppress(pymysql.err.OperationalError):
        connection.drop_staged()


def left_overs(connection: Connection, schema: str, prefix: str) -> list[str]:
    """Return the staging tables in a schema whose names start with a prefix, quoted for SQL."""
    found = connection.execute(_LEFT_OVERS, (schema, len(prefix), prefix)).fetchall()
    return [f"{quoted(schema)}.{quoted(name)}" for (name,) in found]


def _conflict(target: Target, relation: Relation, values: Mapping[str, str]) -> str:
    """Return what becomes of a row whose key is there; `values` are the new values of its columns."""
    if target.mode == "append":
        return ""
    renewed = (column.name for column in relation.columns if column.renewed and column.name in target.key)
    changes = {name: values[name] for name in (*changed(target, values), *renewed)}
    for column in relation.columns:
        old = f"{relation}.{quoted(column.name)}"
        if column.padded:
            changes[column.name] = _SAME_BLANKS.format(old=old, new=values[column.name])
    first = quoted(target.key[0])
    settings = (f"{relation}.{quoted(name)} = {value}" for name, value in changes.items())
    return f" ON DUPLICATE KEY UPDATE {_listed(settings) or f'{relation}.{first} = {relation}.{first}'}"


def _done(attempts: Mapping[int, int]) -> str:
    return f"s.attempt IN ({_listed(map(str, attempts))})"


def _listed(parts: Any) -> str:
    return ", ".join(parts)
