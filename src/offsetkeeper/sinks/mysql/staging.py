"""Rows for a table of MySQL, in a staging table or sent along, and how they get into the target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pymysql

from offsetkeeper.clients.mysql import Connection, code_of
from offsetkeeper.errors import OffsetkeeperError, RowMismatch
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.mysql import task
from offsetkeeper.sinks.mysql.columns import MySQLColumn, Relation, find_table, quoted
from offsetkeeper.sinks.mysql.database import KEEP, RESTORE, SET
from offsetkeeper.sinks.staging import Copied, check_attempts, check_inserted
from offsetkeeper.sinks.table import ORDER, Target, altered, changed, changed_keys, ordered, same_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

# With a key, as servers with sql_require_primary_key or innodb_force_primary_key make no table without one.
CREATE = (
    "CREATE TABLE {staging} (n bigint AUTO_INCREMENT PRIMARY KEY, attempt bigint NOT NULL, {columns}) ENGINE = InnoDB"
)
_INSERT = "INSERT INTO {staging} (attempt, {columns}) VALUES "
# Of the session alone, so it is in no catalog. With the word TEMPORARY neither statement commits.
TEMPORARY = CREATE.replace("TABLE", "TEMPORARY TABLE", 1)
_NEEDED = "The user of the store needs CREATE TEMPORARY TABLES as well if that of the table has it: see docs/rights.md"
DROP_TEMPORARY = "DROP TEMPORARY TABLE IF EXISTS {staging}"
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
_LEFT_OVERS = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s"
_ORDER_TYPES = ("varchar(249) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "int", "bigint")


class Staging(NamedTuple):
    """A staging table, which a task makes if it has more than few rows, and how all rows get into the target.

    Attributes:
        address: URL of the database, without credentials.
        target: the table as the user named it.
        relation: the table as the database has it.
        prefix: common prefix of the names of all staging tables of the group.
        name: name of the staging table, quoted for SQL.
        fields: fields of the frame; field n is staged in column `c<n>`.
        columns: the table's column for each field; None for a field that is not stored.
    """

    address: str
    target: Target
    relation: Relation
    prefix: str
    name: str
    fields: Sequence[StructField]
    columns: Sequence[MySQLColumn | None]

    def statements(self) -> task.Statements:
        """Return the statements with which a task stages its rows."""
        make = CREATE.replace("TABLE", "TABLE IF NOT EXISTS", 1).format(staging=self.name, columns=self._declared)
        return task.Statements(make, self._head)

    def drop(self, connection: Connection) -> None:
        """Drop the staging table. A table that is still in use is left for a later run."""
        drop(connection, [self.name])

    def check(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        """Check that staged rows have different keys, or a known order.

        Raises:
            RowMismatch: several rows have the same key, and none of them is the last.
        """
        if not self.target.key or not attempts:
            return
        same = [*reversed(self._order), *(self._places[name] for name in self.target.key)]
        statement = _SAME_KEY.format(staging=self.name, done=_done(attempts), key=listed(same))
        connection.limit(None)
        if connection.execute(statement).fetchall():
            raise same_key(self.target, in_order=bool(self._order))

    def finish(self, connection: Connection, copied: Copied, *, spared: Collection[str] | None) -> None:
        """Merge the rows of these attempts into the table, in the connection's transaction.

        Args:
            connection: a connection in a transaction. After the commit, it drops the staging table.
            copied: where the rows are.
            spared: see `StagingTable.finish`.

        Raises:
            SinkError: the rows were not written.
            Refused: the table left some of them out.
            RowMismatch: it does not take a value; several rows have the same key, and none of them is the last; or a
                key of the table differs from one of these rows only by blanks.
        """
        connection.limit(None)
        try:
            if copied.attempts:
                connection.execute(KEEP)
                connection.execute(SET.format(locks=connection.locks))
                self._merge_all(connection, copied)
                connection.execute(RESTORE)
            others = left_overs(connection, self.relation.schema, self.prefix) if spared is not None else []
        except pymysql.Error as error:
            raise self._failure(error) from error
        mine = [self.name] if copied.staged else []
        connection.staged = (*connection.staged, *mine, *(name for name in others if name not in mine))

    def _merge_all(self, connection: Connection, copied: Copied) -> None:
        """Merge all rows. Few rows that came along are staged too: in a table of the session if no others are."""
        if not copied.few:
            self._merge(connection, copied.staged)
            return
        name = self.name if copied.staged else f"{quoted(self.relation.schema)}.{quoted(f'{self.prefix}few')}"
        place = self._replace(name=name)
        if not copied.staged:
            place._make_temporary(connection)  # noqa: SLF001 - of this class
        place._insert(connection, copied)  # noqa: SLF001
        place.check(connection, copied.attempts)
        place._merge(connection, copied.attempts)  # noqa: SLF001
        if not copied.staged:
            connection.execute(DROP_TEMPORARY.format(staging=name))

    def _make_temporary(self, connection: Connection) -> None:
        try:
            connection.execute(DROP_TEMPORARY.format(staging=self.name))  # a batch that failed may have left it
            connection.execute(TEMPORARY.format(staging=self.name, columns=self._declared))
        except pymysql.Error as error:
            text = f"table {self.target}: {words(error)}; nothing was written. {_NEEDED}"
            raise judged(error, text, of_rows=False) from error

    def _insert(self, connection: Connection, copied: Copied) -> None:
        """Stage the rows that came along."""
        head = self._head.encode()
        most = min(connection.packet, task.MOST_BYTES) - len(head)
        try:
            for rows in _joined((part for parts in copied.answers for part in parts), most):
                connection.execute(head + rows)  # type: ignore[arg-type]  # it takes bytes as well
        except pymysql.Error as error:
            why = task.named(words(error), [field.name for field in self.fields])
            raise judged(error, f"table {self.target}: {why}; nothing was written") from error

    @property
    def _head(self) -> str:
        """How a statement begins that stages rows."""
        return _INSERT.format(staging=self.name, columns=listed(f"c{place}" for place in range(len(self.fields))))

    @property
    def _declared(self) -> str:
        """The columns of a staging table, for SQL."""
        order = dict(zip(ORDER, _ORDER_TYPES, strict=True))
        pairs = enumerate(zip(self.fields, self.columns, strict=True))
        return listed(f"c{place} {column.staged if column else order[field.name]}" for place, (field, column) in pairs)

    def _merge(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        found = connection.execute(_COUNT.format(staging=self.name, done=_done(attempts))).fetchall()
        check_attempts(self.target, attempts, dict(found))
        inserted = connection.execute(self._statement(attempts)).rowcount
        now = self._unaltered(connection)
        if self.target.mode == "append":
            check_inserted(self.target, sum(attempts.values()), inserted)
        elif (self.relation.triggers or now.triggers) and not self.target.fewer_rows:
            self._check_keys(connection, attempts)

    def _unaltered(self, connection: Connection) -> Relation:
        """Return the table as it is now: the insert keeps it so until the transaction ends.

        The server would round the rows to other types, and match keys by another collation.
        """
        now = find_table(connection, self.target, self.relation.schema, self.address)
        kept = {(column.name, column.type, column.collation) for column in now.columns}
        stored = {(column.name, column.type, column.collation) for column in self.columns if column is not None}
        # A user who has rights on columns alone sees no indexes.
        if not stored <= kept or (self.target.key and now.unique and now.unique != self.relation.unique):
            raise altered(self.target)
        return now

    def _check_keys(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        """Check that the table has each key that was staged: no trigger has changed one."""
        places = {name: self._places[name] for name in self.target.key}
        statement = _KEPT.format(
            first=f"t.{quoted(self.target.key[0])}",
            keys=listed(places.values()),
            staging=self.name,
            done=_done(attempts),
            table=self.relation,
            same=" AND ".join(f"t.{quoted(name)} = {place}" for name, place in places.items()),
        )
        [(staged, kept)] = connection.execute(statement).fetchall()
        if kept < staged:
            raise changed_keys(self.target, staged, staged - kept)

    def _failure(self, error: pymysql.Error) -> OffsetkeeperError:
        if code_of(error) == _TOO_LARGE and any(column and column.padded for column in self.columns):
            return RowMismatch(
                f"table {self.target}: the key ({', '.join(self.target.key)}) of a row that is there differs from one "
                "of the batch only by blanks at its end, so the table takes them for the same. Nothing was written: "
                'remove that row, or give same_keys="as the column" if that is meant'
            )
        return judged(error, f"table {self.target}: {words(error)}; nothing was written")

    def _statement(self, attempts: Mapping[int, int]) -> str:
        order = f" ORDER BY {listed(self._order)}" if self._order else ""
        return _MERGE.format(
            table=self.relation,
            columns=listed(map(quoted, self._places)),
            values=listed(self._places.values()),
            staging=self.name,
            done=_done(attempts),
            order=order,
            conflict=conflict_of(self.target, self.relation, self._places),
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


def conflict_of(target: Target, relation: Relation, values: Mapping[str, str]) -> str:
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
    return f" ON DUPLICATE KEY UPDATE {listed(settings) or f'{relation}.{first} = {relation}.{first}'}"


def _joined(parts: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Return rows as SQL in as few pieces as possible, of at most `most` bytes unless one is larger."""
    piece = b""
    for part in parts:
        if piece and len(piece) + len(part) >= most:
            yield piece
            piece = b""
        piece = piece + b"," + part if piece else part
    if piece:
        yield piece


def _done(attempts: Mapping[int, int]) -> str:
    return f"s.attempt IN ({listed(map(str, attempts))})"


def listed(parts: Any) -> str:
    """Return parts of a statement with commas between them."""
    return ", ".join(parts)
