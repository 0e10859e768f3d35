"""The staging table in PostgreSQL: made for one batch, merged into the table, dropped."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from offsetkeeper.errors import SinkError
from offsetkeeper.sinks.postgresql_table import Relation
from offsetkeeper.sinks.postgresql_types import PostgreSQLColumn, staged_type
from offsetkeeper.sinks.target import ORDER, Target, ordered, same_key
from offsetkeeper.stores.postgresql import Connection

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

log = logging.getLogger(__name__)

# Unlogged and not flushed: a crash of the server empties it, which the merge notices.
_CREATE = sql.SQL(
    "begin; set local synchronous_commit = off; "
    "create unlogged table {staging} ({columns}) with (autovacuum_enabled = false); commit"
)
_COPY = sql.SQL("copy {staging} from stdin (format binary)")
_MERGE = sql.SQL(
    "insert into {table} ({columns}) select {last} {values} from {staging} where {done} {order} {conflict}"
)
_COUNT = sql.SQL("select count(*) from {staging} where {done}")
_DONE = sql.SQL("xmin = any ({}::xid[])")
# What still writes to it, a task that was given up, may go on for as long as it likes: nobody waits for it.
_DROP = sql.SQL("lock table {staging} in access exclusive mode nowait; drop table {staging}")
_LEFT_OVERS = """
    select relname from pg_class
    where relnamespace = to_regnamespace(quote_ident(%s)) and relkind = 'r' and starts_with(relname, %s)"""


def staging_prefix(group: str, relation: Relation) -> str:
    """Return what the names of all staging tables begin with that the group's runs make for a table."""
    digest = hashlib.sha256(repr((group, relation.schema, relation.name)).encode())
    return f"offsetkeeper_{digest.hexdigest()[:16]}_"


class Staging(NamedTuple):
    """A staging table, and how its rows go on.

    Attributes:
        target: as the user named it.
        relation: as the database did.
        name: of the staging table.
        fields: of the frame; field n is staged in column `c<n>`.
        columns: of the table, for each field; None for one that is not stored.
    """

    target: Target
    relation: Relation
    name: sql.Identifier
    fields: Sequence[StructField]
    columns: Sequence[PostgreSQLColumn | None]

    def create(self, connection: Connection) -> None:
        """Make the staging table."""
        columns = (
            sql.SQL("{} {}").format(_staged(place), sql.SQL(staged_type(field.dataType)))
            for place, field in enumerate(self.fields)
        )
        connection.execute(_CREATE.format(staging=self.name, columns=sql.SQL(", ").join(columns)))

    def copy_statement(self, connection: Connection) -> str:
        """Return the COPY that fills it."""
        return _COPY.format(staging=self.name).as_string(connection)

    def finish(self, connection: Connection, transactions: Mapping[int, int]) -> None:
        """Merge the rows of these transactions into the table, in the connection's own, and drop the rest.

        Args:
            connection: in a transaction.
            transactions: number of rows by the number of the transaction that staged them.

        Raises:
            SinkMismatch: several rows have one key, and nothing says which is the last.
            SinkError: the rows were not written.
        """
        try:
            if transactions:
                self._merge(connection, transactions)
        except psycopg.errors.CardinalityViolation as error:
            raise same_key(self.target) from error
        except psycopg.Error as error:
            raise SinkError(f"table {self.target}: {' '.join(str(error).split())}; nothing was written") from error
        drop(connection, self.name)

    def _merge(self, connection: Connection, transactions: Mapping[int, int]) -> None:
        done = _DONE.format(sql.Literal(f"{{{','.join(map(str, transactions))}}}"))
        staged = sum(transactions.values())
        merged = connection.execute(self._statement(done)).rowcount
        # Triggers and equal keys may leave rows out, but not before they were read.
        if merged != staged:
            [[found]] = connection.execute(_COUNT.format(staging=self.name, done=done)).fetchall()
            if found != staged:
                raise SinkError(
                    f"table {self.target}: {staged} rows were staged and {found} are left, as after a crash of the "
                    "server; nothing was written"
                )

    def _statement(self, done: sql.Composable) -> sql.Composed:
        places = {c.name: (place, c) for place, c in enumerate(self.columns) if c is not None}
        key = [_value(*places[name]) for name in self.target.key]
        last: sql.Composable = sql.SQL("")
        order: sql.Composable = sql.SQL("")
        if ordered(self.fields, self.target):
            names = [field.name for field in self.fields]
            newest = [sql.SQL("{} desc").format(_staged(names.index(name))) for name in ORDER]
            last = sql.SQL("distinct on ({})").format(_listed(key))
            order = sql.SQL("order by {}").format(_listed([*key, *newest]))
        return _MERGE.format(
            table=sql.Identifier(self.relation.schema, self.relation.name),
            columns=_listed([sql.Identifier(name) for name in places]),
            values=_listed([_value(*place) for place in places.values()]),
            staging=self.name,
            done=done,
            last=last,
            order=order,
            conflict=_conflict(self.target, list(places)),
        )


def drop(connection: Connection, staging: sql.Identifier) -> None:
    """Drop a staging table, unless something still uses it: then it is left, for a later run to drop."""
    with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable), connection.transaction():
        connection.execute(_DROP.format(staging=staging))


def drop_left_overs(connection: Connection, schema: str, prefix: str) -> None:
    """Drop the staging tables in a schema whose names begin with a prefix."""
    for (name,) in connection.execute(_LEFT_OVERS, [schema, prefix]).fetchall():
        log.info("dropping staging table %s.%s, which an earlier try left behind", schema, name)
        drop(connection, sql.Identifier(schema, name))


def new_name(schema: str, prefix: str) -> sql.Identifier:
    """Return the name of a staging table that was never used."""
    return sql.Identifier(schema, prefix + secrets.token_hex(4))


def _conflict(target: Target, names: Sequence[str]) -> sql.Composable:
    if target.mode == "append":
        return sql.SQL("")
    key = _listed([sql.Identifier(name) for name in target.key])
    others = [sql.Identifier(name) for name in names if name not in target.key]
    if not others:
        return sql.SQL("on conflict ({}) do nothing").format(key)
    changes = _listed([sql.SQL("{0} = excluded.{0}").format(name) for name in others])
    return sql.SQL("on conflict ({}) do update set {}").format(key, changes)


def _value(place: int, column: PostgreSQLColumn) -> sql.Composable:
    return sql.SQL("{}::{}").format(_staged(place), sql.Identifier(column.schema, column.name_of_type))


def _staged(place: int) -> sql.Identifier:
    return sql.Identifier(f"c{place}")


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)
