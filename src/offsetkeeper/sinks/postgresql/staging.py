"""A staging table of PostgreSQL, and how its rows get into the target."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.postgresql.columns import (
    PostgreSQLColumn,
    Relation,
    check_parts,
    limits,
    limits_in_key,
    losing_statement,
    staged_type,
)
from offsetkeeper.sinks.staging import check_attempts, check_inserted
from offsetkeeper.sinks.table import ORDER, Target, changed, changed_keys, limits_of_rows, ordered, same_key

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

    from offsetkeeper.sinks.limits import Limits

log = logging.getLogger(__name__)
# Unlogged and not flushed: a crash of the server empties it, and the merge notices that.
_CREATE = sql.SQL(
    "begin; set local synchronous_commit = off; "
    "create unlogged table {staging} (attempt bigint not null, {columns}) with (autovacuum_enabled = false); commit"
)
_COPY = sql.SQL("copy {staging} from stdin (format binary)")
_MERGE = sql.SQL("insert into {table} ({columns}) select {values} from {rows} {conflict}")
_ALL = sql.SQL("{staging} where {done}")
# Rows of one record with the same key have the same place: they are kept too, and PostgreSQL refuses them.
_LAST = sql.SQL(
    "(select *, rank() over w as place, row_number() over w as number from {staging} where {done} "
    "window w as (partition by {key} order by {newest})) ranked where place = 1 or place <> number"
)
_KEYS = sql.SQL("select count(*) from (select distinct {key} from {staging} where {done}) keys")
_FOUND = sql.SQL(
    "select count(*) from (select distinct {key} from {staging} where {done}) keys ({names}) "
    "where exists (select from {table} found where {same})"
)
# Rows that are there and not written again must not be deleted by others before they are counted.
_HELD = sql.SQL(
    "select from {table} found where exists "
    "(select from (select distinct {key} from {staging} where {done}) keys ({names}) where {same}) for key share"
)
_COUNT = sql.SQL("select attempt, count(*) from {staging} where {done} group by attempt")
# Syntax is that of a jsonpath; types such as gtsvector take no text at all.
UNREADABLE = (psycopg.DataError, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported)
_READ = sql.SQL("select count({value}) from {staging} where {done}")
_DONE = sql.SQL("attempt = any ({}::bigint[])")
# A given-up task may still write to the table: do not wait for it.
_DROP = sql.SQL("lock table {staging} in access exclusive mode nowait; drop table {staging}")
_LEFT_OVERS = """
    select relname from pg_class
    where relnamespace = to_regnamespace(quote_ident(%s)) and relkind = 'r' and starts_with(relname, %s)"""


class Staging(NamedTuple):
    """A staging table, and how its rows get into the target.

    Attributes:
        address: URL of the database, without credentials.
        target: the table as the user named it.
        relation: the table as the database has it.
        schema: schema of the staging table.
        prefix: common prefix of the names of all staging tables of the group.
        name: name of the staging table, with its schema.
        fields: fields of the frame; field n is staged in column `c<n>`.
        columns: the table's column for each field; None for a field that is not stored.
        collations: collation of each text column of the key.
    """

    address: str
    target: Target
    relation: Relation
    schema: str
    prefix: str
    name: sql.Identifier
    fields: Sequence[StructField]
    columns: Sequence[PostgreSQLColumn | None]
    collations: Mapping[str, sql.Composable]

    def create(self, connection: Connection) -> None:
        """Create the staging table."""
        columns = (
            sql.SQL("{} {}").format(_staged(place), sql.SQL(staged_type(field.dataType)))
            for place, field in enumerate(self.fields)
        )
        connection.execute(_CREATE.format(staging=self.name, columns=sql.SQL(", ").join(columns)))

    def limits(self) -> list[Limits]:
        """Return the limits of the values in each field."""
        key = () if self.target.same_keys else self.target.key

        def limited(data_type: DataType, column: PostgreSQLColumn) -> Limits:
            return (limits_in_key if column.name in key else limits)(data_type, column)

        return limits_of_rows(self.fields, self.columns, self.target, limited)

    def unreadable(self, connection: Connection, attempts: Mapping[int, int]) -> str | None:
        """Return the name of the first column that has a value which PostgreSQL cannot read, or None."""
        done = _done(attempts)
        for name in self._places:
            try:
                connection.execute(_READ.format(value=self._staged_value(name), staging=self.name, done=done))
            except UNREADABLE:
                return name
        return None

    def drop(self, connection: Connection) -> None:
        """Drop the staging table. A table that is still in use is left for a later run."""
        drop(connection, self.name)

    def copy_statement(self, connection: Connection) -> str:
        """Return the COPY statement that fills the staging table."""
        return _COPY.format(staging=self.name).as_string(connection)

    def finish(self, connection: Connection, attempts: Mapping[int, int], *, tidy: bool) -> None:
        """Merge the rows of these attempts into the table, in the connection's transaction, and drop the rest.

        Args:
            connection: a connection in a transaction.
            attempts: number of rows of each attempt that staged them.
            tidy: whether to also drop staging tables of other runs of the group.

        Raises:
            RowMismatch: several rows have the same key, and none is the last; or the table does not take a row.
            SinkMismatch: the table has changed, and does not take the frame any more.
            SinkError: the rows were not written.
            Refused: the table has got a partition that may lose or double its rows, or it leaves rows out.
        """
        try:
            if attempts:
                self._merge(connection, attempts)
            drop(connection, self.name)
            if tidy:
                drop_left_overs(connection, self.schema, self.prefix)
        except psycopg.errors.CardinalityViolation as error:
            raise same_key(self.target, in_order=ordered(self.fields, self.target)) from error
        except psycopg.Error as error:
            raise judged(error, f"table {self.target}: {words(error)}; nothing was written") from error

    def _merge(self, connection: Connection, attempts: Mapping[int, int]) -> None:
        done = _done(attempts)
        count, keys = _COUNT.format(staging=self.name, done=done), self._key_counts(done)
        whole = changed(self.target, self._places)
        held = connection.execute(_HELD.format(**self._parts(done))).rowcount if keys and not whole else 0
        # The look comes last: until the transaction ends, its locks keep the partitions that got rows as they are then.
        # All statements are one request.
        results = connection.execute(
            sql.SQL("; ").join([self._statement(done), count, *keys, losing_statement(self.relation)])
        )
        inserted, staged = results.rowcount, sum(attempts.values())
        results.nextset()
        check_attempts(self.target, attempts, dict(results.fetchall()))
        results.nextset()
        if keys:
            [(staged,)] = results.fetchall()
            results.nextset()
            [(found,)] = results.fetchall()
            results.nextset()
            check_inserted(self.target, staged, inserted if whole else max(held + inserted, found))
            if found < staged:
                raise changed_keys(self.target, staged, staged - found)
        elif self.target.mode == "append":
            check_inserted(self.target, staged, inserted)
        check_parts(results.fetchall(), self.target, self.address)

    def _statement(self, done: sql.Composable) -> sql.Composed:
        return _MERGE.format(
            table=sql.Identifier(self.relation.schema, self.relation.name),
            columns=_listed([sql.Identifier(name) for name in self._places]),
            values=_listed([self._staged_value(name) for name in self._places]),
            rows=self._rows(done),
            conflict=_conflict(self.target, list(self._places)),
        )

    def _rows(self, done: sql.Composable) -> sql.Composed:
        if not ordered(self.fields, self.target):
            return _ALL.format(staging=self.name, done=done)
        names = [field.name for field in self.fields]
        topic, *others = (_staged(names.index(name)) for name in ORDER)
        newest = [sql.SQL('{} collate "C" desc').format(topic), *(sql.SQL("{} desc").format(other) for other in others)]
        return _LAST.format(key=_listed(self._key), newest=_listed(newest), staging=self.name, done=done)

    @property
    def _places(self) -> Mapping[str, tuple[int, PostgreSQLColumn]]:
        """The place in the frame of each column of the table."""
        return {column.name: (place, column) for place, column in enumerate(self.columns) if column is not None}

    @property
    def _key(self) -> Sequence[sql.Composable]:
        """The values of the key, compared as the unique index compares them."""
        return [self._collated(name, self._staged_value(name)) for name in self.target.key]

    def _staged_value(self, name: str) -> sql.Composable:
        place, column = self._places[name]
        return _value(_staged(place), column)

    def _collated(self, name: str, value: sql.Composable) -> sql.Composable:
        """Return a value of a column of the key with the collation of the unique index."""
        return sql.SQL("({}) collate {}").format(value, self.collations[name]) if name in self.collations else value

    def _key_counts(self, done: sql.Composable) -> list[sql.Composed]:
        """Return the queries that tell whether a trigger leaves out rows of an upsert, deletes them, or changes keys.

        The first counts the keys, which are as many as the rows that are written; but with no column but the key, rows
        that are there are not written again. The second counts the keys that the table has afterwards. Without
        a trigger, or with fewer_rows="as the table", there are no queries.
        """
        if self.target.mode != "upsert" or not self.relation.triggers or self.target.fewer_rows:
            return []
        keys = _KEYS.format(key=_listed(self._key), staging=self.name, done=done)
        return [keys, _FOUND.format(**self._parts(done))]

    def _parts(self, done: sql.Composable) -> dict[str, sql.Composable]:
        """Return the parts of a query that compares the keys that were staged with those of the table."""
        names = [sql.Identifier(f"k{number}") for number in range(len(self._key))]
        columns = [
            self._collated(name, _value(sql.SQL("found.{}").format(sql.Identifier(name)), self._places[name][1]))
            for name in self.target.key
        ]
        same = sql.SQL(" and ").join(
            sql.SQL("{} = keys.{}").format(column, name) for column, name in zip(columns, names, strict=True)
        )
        table = sql.Identifier(self.relation.schema, self.relation.name)
        parts = {"key": _listed(self._key), "staging": self.name, "done": done, "table": table}
        return {**parts, "names": _listed(names), "same": same}


def drop(connection: Connection, staging: sql.Identifier) -> None:
    """Drop a staging table. A table that is still in use is left for a later run."""
    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable), connection.transaction():
        connection.execute(_DROP.format(staging=staging))


def drop_left_overs(connection: Connection, schema: str, prefix: str) -> None:
    """Drop the staging tables in a schema whose names start with a prefix."""
    for (name,) in connection.execute(_LEFT_OVERS, [schema, prefix]).fetchall():
        log.info("dropping staging table %s.%s of an earlier try", schema, name)
        drop(connection, sql.Identifier(schema, name))


def _done(attempts: Mapping[int, int]) -> sql.Composed:
    return _DONE.format(sql.Literal(f"{{{','.join(map(str, attempts))}}}"))


def _conflict(target: Target, names: Sequence[str]) -> sql.Composable:
    if target.mode == "append":
        return sql.SQL("")
    key = _listed([sql.Identifier(name) for name in target.key])
    others = changed(target, names)
    if not others:
        return sql.SQL("on conflict ({}) do nothing").format(key)
    changes = _listed([sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others])
    return sql.SQL("on conflict ({}) do update set {}").format(key, changes)


def _value(value: sql.Composable, column: PostgreSQLColumn) -> sql.Composable:
    return sql.SQL("{}::{}").format(value, sql.Identifier(column.schema, column.name_of_type))


def _staged(place: int) -> sql.Identifier:
    return sql.Identifier(f"c{place}")


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
