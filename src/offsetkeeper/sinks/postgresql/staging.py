"""Rows for a table of PostgreSQL, in a staging table or sent along, and how they get into the target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.clients.postgresql_server import IDLE, LIMIT_IDLE
from offsetkeeper.core import environment
from offsetkeeper.sinks import few
from offsetkeeper.sinks.blame import judged, words
from offsetkeeper.sinks.postgresql.columns import (
    PostgreSQLColumn,
    Relation,
    check_key,
    columns_of,
    find_table,
    limits,
    limits_in_key,
    staged_type,
)
from offsetkeeper.sinks.postgresql.source import Source, sent_along
from offsetkeeper.sinks.postgresql.task import Statements
from offsetkeeper.sinks.staging import Copied, check_attempts, check_inserted
from offsetkeeper.sinks.table import ORDER, Target, altered, changed, changed_keys, limits_of_rows, ordered, same_key

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

    from offsetkeeper.sinks.limits import Limits

log = logging.getLogger(__name__)
# Unlogged and not flushed: a crash of the server empties it, and the merge notices that. The first task that has more
# than few rows makes it. The lock is for the others: IF NOT EXISTS alone fails where two are at it.
_CREATE = sql.SQL(
    "begin; set local synchronous_commit = off; select pg_advisory_xact_lock(hashtextextended({key}, 0)); "
    "create unlogged table if not exists {staging} (attempt bigint not null, {columns}) "
    "with (autovacuum_enabled = false); commit"
)
# A session that was left idle in its transaction would hold a merge up for ever, and nobody would be told.
LOCK_WAIT_MS = 30_000
_STALL_MS = 30_000  # a driver that stalls between two statements of a merge holds its locks no longer
_WAIT = f"""
    select current_setting('transaction_isolation') in ('repeatable read', 'serializable'),
        current_setting('{IDLE}'),
        set_config('lock_timeout', coalesce(nullif(current_setting('lock_timeout'), '0'), %s), true),
        {LIMIT_IDLE}"""
_UNLIMITED = f"set local {IDLE} = 0"  # blocks take the time they need
_COPY = sql.SQL("copy {staging} from stdin (format binary)")
_MERGE = sql.SQL("insert into {table} ({columns}) select {values} from {rows} {conflict}")
_STAGED = sql.SQL("{staging} where {done}")
# Beside rows that are staged, those that are sent along are staged too.
_STAGE = sql.SQL("insert into {staging} select {attempt}, * from {rows}")
# Rows of one record with the same key have the same place: they are kept too, and PostgreSQL refuses them.
_LAST = sql.SQL(
    "(select *, rank() over w as place, row_number() over w as number from {rows} "
    "window w as (partition by {key} order by {newest})) ranked where place = 1 or place <> number"
)
_KEYS = sql.SQL("select count(*) from (select distinct {key} from {rows}) keys")
_FOUND = sql.SQL(
    "select count(*) from (select distinct {key} from {rows}) keys ({names}) "
    "where exists (select from {table} found where {same})"
)
# Rows that are there and not written again must not be deleted by others before they are counted.
_HELD = sql.SQL(
    "select from {table} found where exists "
    "(select from (select distinct {key} from {rows}) keys ({names}) where {same}) for key share"
)
# Rows that are nothing but their key are inserted `on conflict do nothing`, which takes one key twice.
_SAME_KEY = sql.SQL("select from {rows} group by {key} having count(*) > 1 limit 1")
_COUNT = sql.SQL("select attempt, count(*) from {rows} group by attempt")
# Syntax is that of a jsonpath; types such as gtsvector take no text at all.
UNREADABLE = (psycopg.DataError, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported)
_READ = sql.SQL("select count({value}) from {rows}")
_DONE = sql.SQL("attempt = any ({}::bigint[])")
# A given-up task may still write to the table: do not wait for it.
_DROP = sql.SQL("lock table {staging} in access exclusive mode nowait; drop table {staging}")
_LEFT_OVERS = """
    select relname from pg_class
    where relnamespace = to_regnamespace(quote_ident(%s)) and relkind = 'r' and starts_with(relname, %s)"""


class Staging(NamedTuple):
    """A staging table, which a task makes if it has more than few rows, and how all rows get into the target.

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
        apart: does work on a connection of the sink's own.
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
    apart: Callable[[Callable[[Connection], None]], None]

    def statements(self, connection: Connection) -> Statements:
        """Return the statements with which a task stages its rows."""
        columns = [sql.SQL("{} {}").format(_staged(place), sql.SQL(kind)) for place, kind in enumerate(self._types)]
        key = sql.Literal(self.name.as_string(connection))
        make = _CREATE.format(key=key, staging=self.name, columns=_listed(columns))
        return Statements(make.as_string(connection), _COPY.format(staging=self.name).as_string(connection))

    def few(self) -> few.Few:
        """Return the most rows that a task does not stage: none if a column has lists, which unnest would flatten."""
        return few.NONE if any(kind.endswith("[]") for kind in self._types) else few.LIMIT

    def limits(self) -> list[Limits]:
        """Return the limits of the values in each field."""
        key = () if self.target.same_keys else self.target.key

        def limited(data_type: DataType, column: PostgreSQLColumn) -> Limits:
            return (limits_in_key if column.name in key else limits)(data_type, column)

        return limits_of_rows(self.fields, self.columns, self.target, limited)

    def unreadable(self, connection: Connection, copied: Copied) -> str | None:
        """Return the name of the first column that has a value which PostgreSQL cannot read, or None."""
        for name, (place, _) in self._places.items():
            sources = [self._staged_rows(copied.staged)] if copied.staged else []
            if copied.few:
                sources.append(sent_along(copied.answers, {place: self._types[place]}))
            try:
                for source in sources:
                    source.ask(connection, [_READ.format(value=self._staged_value(name), rows=source.rows)])
            except UNREADABLE:
                return name
        return None

    def drop(self, connection: Connection) -> None:
        """Drop the staging table. A table that is still in use is left for a later run."""
        drop(connection, self.name)

    def finish(self, connection: Connection, copied: Copied, *, spared: Collection[str] | None) -> None:
        """Merge the rows of these attempts into the table, in the connection's transaction, and drop the rest.

        Args:
            connection: a connection in a transaction.
            copied: where the rows are.
            spared: see `StagingTable.finish`.

        Raises:
            RowMismatch: several rows have the same key, and none is the last; or the table does not take a row.
            SinkMismatch: the table has changed, and does not take the frame any more.
            SinkError: the rows were not written; among others, the table was altered while they were staged.
            Refused: the table has got a partition that may lose or double its rows, or it leaves rows out.
        """
        try:
            limits = [str(LOCK_WAIT_MS), str(_STALL_MS)]
            [(blind, idle, *_)] = connection.execute(_WAIT.encode(), limits).fetchall()
            if copied.attempts:
                self._merge(connection, self._all_rows(connection, copied), sum(copied.attempts.values()))
                self._check_unaltered(connection)
            if copied.attempts and blind:  # its snapshot is older than what others have committed since
                self.apart(self._check_unaltered)
            if copied.staged:
                drop(connection, self.name)
            if spared is not None:
                drop_left_overs(connection, self.schema, self.prefix, spared)
            if idle == "0":
                connection.execute(_UNLIMITED.encode())
        except psycopg.errors.CardinalityViolation as error:
            raise same_key(self.target, in_order=ordered(self.fields, self.target)) from error
        except psycopg.Error as error:
            raise judged(error, f"table {self.target}: {words(error)}; nothing was written") from error

    def _all_rows(self, connection: Connection, copied: Copied) -> Source:
        """Return where all rows are: few rows are staged too if others are."""
        if not copied.few:
            return self._staged_rows(copied.staged)
        if connection.info.encoding != "utf-8":  # a block before may have changed it
            connection.execute("set local client_encoding = 'utf8'")
        along = sent_along(copied.answers, dict(enumerate(self._types)))
        if not copied.staged:
            return along
        attempt = environment.bigint()
        along.ask(connection, [_STAGE.format(staging=self.name, attempt=attempt, rows=along.rows)])
        return self._staged_rows({**copied.staged, attempt: sum(copied.few.values())})

    def _merge(self, connection: Connection, source: Source, count: int) -> None:
        keys, rows = self._key_counts(source.rows), source.rows
        whole = changed(self.target, self._places)
        if self.target.key and not whole:
            [(same, _)] = source.ask(connection, [_SAME_KEY.format(rows=self._last(rows), key=_listed(self._key))])
            if same:
                raise same_key(self.target, in_order=ordered(self.fields, self.target))
        held = source.ask(connection, [_HELD.format(**self._parts(rows))])[0][0] if keys and not whole else 0
        counts = [_COUNT.format(rows=rows)] if source.staged else []
        (inserted, _), *others = source.ask(connection, [self._statement(rows), *keys, *counts])
        if source.staged:
            check_attempts(self.target, source.staged, dict(others.pop()[1]))
        if keys:
            (_, [(staged,)]), (_, [(found,)]) = others
            check_inserted(self.target, staged, inserted if whole else max(held + inserted, found))
            if found < staged:
                raise changed_keys(self.target, staged, staged - found)
        elif self.target.mode == "append":
            check_inserted(self.target, count, inserted)

    def _check_unaltered(self, connection: Connection) -> None:
        """Look at the table again. The look comes last: until the transaction ends, its locks keep what got rows.

        PostgreSQL would cast the rows to other types without a word, such as a time to one without its zone.
        """
        now = find_table(connection, self.target, self.address)
        columns = columns_of(connection, now)
        collations = check_key(connection, now, columns, self.target, self.address)
        stored = {_kept(column) for column in self.columns if column is not None}
        before = (self.relation.oid, self.relation.triggers, self.collations)
        if not stored <= {*map(_kept, columns)} or (now.oid, now.triggers, collations) != before:
            raise altered(self.target)

    def _statement(self, rows: sql.Composable) -> sql.Composed:
        return _MERGE.format(
            table=sql.Identifier(self.relation.schema, self.relation.name),
            columns=_listed([sql.Identifier(name) for name in self._places]),
            values=_listed([self._staged_value(name) for name in self._places]),
            rows=self._last(rows),
            conflict=_conflict(self.target, list(self._places)),
        )

    def _last(self, rows: sql.Composable) -> sql.Composable:
        if not ordered(self.fields, self.target):
            return rows
        names = [field.name for field in self.fields]
        topic, *others = (_staged(names.index(name)) for name in ORDER)
        newest = [sql.SQL('{} collate "C" desc').format(topic), *(sql.SQL("{} desc").format(other) for other in others)]
        return _LAST.format(key=_listed(self._key), newest=_listed(newest), rows=rows)

    def _staged_rows(self, attempts: Mapping[int, int]) -> Source:
        return Source(_STAGED.format(staging=self.name, done=_done(attempts)), attempts)

    @property
    def _types(self) -> list[str]:
        """The type of each field in SQL."""
        return [staged_type(field.dataType) for field in self.fields]

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

    def _key_counts(self, rows: sql.Composable) -> list[sql.Composed]:
        """Return the queries that tell whether a trigger leaves out rows of an upsert, deletes them, or changes keys.

        The first counts the keys, which are as many as the rows that are written; but with no column but the key, rows
        that are there are not written again. The second counts the keys that the table has afterwards. Without
        a trigger, or with fewer_rows="as the table", there are no queries.
        """
        if self.target.mode != "upsert" or not self.relation.triggers or self.target.fewer_rows:
            return []
        return [_KEYS.format(key=_listed(self._key), rows=rows), _FOUND.format(**self._parts(rows))]

    def _parts(self, rows: sql.Composable) -> dict[str, sql.Composable]:
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
        parts = {"key": _listed(self._key), "rows": rows, "table": table}
        return {**parts, "names": _listed(names), "same": same}


def drop(connection: Connection, staging: sql.Identifier) -> None:
    """Drop a staging table. A table that is still in use is left for a later run."""
    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable), connection.transaction():
        connection.execute(_DROP.format(staging=staging))


def drop_left_overs(connection: Connection, schema: str, prefix: str, spared: Collection[str] = ()) -> None:
    """Drop the staging tables in a schema whose names start with a prefix, and with none that is spared."""
    found = [name for (name,) in connection.execute(_LEFT_OVERS, [schema, prefix]).fetchall()]
    for name in (each for each in found if not each.startswith(tuple(spared))):
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


def _kept(column: PostgreSQLColumn) -> PostgreSQLColumn:
    """Return a column without the spelling of its type, which depends on the search path of the session."""
    return replace(column, type="")


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
