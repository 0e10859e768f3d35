"""The store in a PostgreSQL database: `postgresql://user:password@host/database`.

`Connections` are also used by the sink for tables: waits are limited, and failures are errors of offsetkeeper.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from offsetkeeper.clients.pool import Lost
from offsetkeeper.clients.postgresql import Connection, Connections, read_url
from offsetkeeper.clients.postgresql_server import (
    IS_STANDBY,
    LIMIT_IDLE,
    SET_DURABLE,
    UNKEPT,
    database_identity,
    obstacles,
    refuse_standby,
    refuse_unkept,
    server_settings,
)
from offsetkeeper.core.codec import control_mark, dump_control, dump_entry, empty
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.errors import (
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SinkError,
    StoreUnavailable,
)
from offsetkeeper.stores.tables import TableStore, name_tables, of_columns, table_names

log = logging.getLogger("offsetkeeper")
# There is never such a row: this is for the permissions and the column, so that one request has all.
_CHECK = f"{UNKEPT} AND NOT EXISTS (SELECT {{offsets}}.topic_id FROM {{offsets}}, {{groups}}, {{history}} WHERE false)"  # noqa: S608 - ours
# Ledgers of a group in other schemas of the search path: a schema that appears, such as one with the user's name, would
# hide them.
_BESIDE = """
    SELECT s, t FROM unnest(current_schemas(false)) s, unnest(%s::text[]) t, to_regclass(format('%%I.%%I', s, t)) r
    WHERE s <> %s AND has_table_privilege(r::oid, 'SELECT')
        AND EXISTS (SELECT FROM pg_attribute WHERE attrelid = r::oid AND attname = 'group_id')"""
# Alone, as CREATE TABLE IF NOT EXISTS fails when two run it at once. The fill factor leaves room for a row's next
# version beside it, so that a commit does not touch the index: twice as fast for thousands of partitions.
_CREATE = """
    SELECT pg_advisory_xact_lock(7307199665335594359);
    CREATE TABLE IF NOT EXISTS {offsets} (
        topic text NOT NULL, group_id text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL,
        timestamp timestamptz NOT NULL DEFAULT now(), topic_id text, PRIMARY KEY (group_id, topic, partition)
    ) WITH (fillfactor = 50);
    ALTER TABLE {offsets} ADD COLUMN IF NOT EXISTS topic_id text;
    CREATE TABLE IF NOT EXISTS {groups} (
        group_id text PRIMARY KEY, version bigint NOT NULL, control text NOT NULL
    ) WITH (fillfactor = 50);
    CREATE TABLE IF NOT EXISTS {history} (
        group_id text NOT NULL, version bigint NOT NULL, entry text NOT NULL, PRIMARY KEY (group_id, version));
"""
_FIRST = "INSERT INTO {groups} VALUES (%(group)s, 1, %(control)s) ON CONFLICT DO NOTHING RETURNING control"
_NEXT = """
    UPDATE {groups} SET control = %(control)s, version = version + 1
    WHERE group_id = %(group)s AND version = %(version)s AND strpos(control, %(mark)s) > 0 RETURNING control"""
# A pooler may lead a connection that was opened to the primary to a standby. So each answer says where it comes
# from, also one without rows.
_WATCHED = f"SELECT found.*, standby FROM ({IS_STANDBY}) AS here LEFT JOIN (?) AS found ON true"  # noqa: S608 - ours
_OTHER_WRITER = "another writer changed its ledger or its positions first"
_OLDEST = 100_000  # release 10, in libpq's form
# One change is one statement, so one round trip and one transaction. A failed check divides by zero, which rolls all of
# it back. Rows are counted as they are stored, because a trigger may swallow or change them. The group is a column of
# `moved`, not a constant, so that the planner expects to join a whole table: if its statistics do not know the group
# yet, it would expect one row and compare every row with every row.
_APPLY = """
    WITH control AS ({step}),
    moved AS MATERIALIZED (
        SELECT %(group)s::text AS group_id, m.* FROM unnest(
            %(topics)s::text[], %(partitions)s::int[], %(before)s::bigint[], %(after)s::bigint[], %(topic_ids)s::text[]
        ) AS m (topic, partition, before, after, topic_id)),
    updated AS (
        UPDATE {offsets} k SET "offset" = m.after, topic_id = m.topic_id, timestamp = now()
        FROM control, moved m WHERE k.group_id = m.group_id AND k.topic = m.topic AND k.partition = m.partition
            AND k."offset" = m.before RETURNING k."offset" = m.after AS kept),
    added AS (
        INSERT INTO {offsets} (group_id, topic, partition, "offset", topic_id)
        SELECT m.group_id, m.topic, m.partition, m.after, m.topic_id FROM control, moved m WHERE m.before IS NULL
        ON CONFLICT DO NOTHING RETURNING "offset"),
    recorded AS (
        INSERT INTO {history} SELECT %(group)s, %(version)s::bigint + 1, %(entry)s FROM control
        ON CONFLICT (group_id, version) DO UPDATE SET entry = excluded.entry RETURNING 1),
    pruned AS (DELETE FROM {history} WHERE group_id = %(group)s AND version <= %(oldest)s)
    SELECT 1 / CASE WHEN (SELECT count(*) FROM control WHERE control = %(control)s) = 1
        AND (SELECT count(*) FROM updated WHERE kept) + (SELECT count(*) FROM added) = %(moves)s
        AND (SELECT coalesce(sum("offset"), 0) FROM added) = %(added)s
        AND (SELECT count(*) FROM recorded) = 1 THEN 1 ELSE 0 END, {durable}
"""
# The mark ends with the transaction: if it is gone afterwards, the block has ended the transaction.
_OPEN = """
    SELECT set_config('offsetkeeper.transaction', %s, true),
        coalesce((SELECT version FROM {groups} WHERE group_id = %s), 0)"""
_STILL_OPEN = f"SELECT current_setting('offsetkeeper.transaction', true), {LIMIT_IDLE}"


class PostgreSQLStore(TableStore):
    """Ledgers in PostgreSQL tables, which other programs may read by plain SQL; see `stores.tables`.

    Args:
        url: `postgresql://user:password@host:port/database`, with `?table=`, `?schema=`, `?history=` (entries kept
            for each group, 1000), `?timeout=` (seconds one request may take, 30) and any setting of libpq.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read, libpq = read_url(url)
        super().__init__(read)
        self._url_schema = self._settings.schema
        self._connections: Connections = Connections(read, libpq, self._prepare)

    def load(self, group: str) -> Snapshot:
        """See `Store.load`.

        Raises:
            Refused: the group has nothing here, but a ledger in another schema of the search path.
        """
        found = super().load(group)
        if found == empty(group) and not self._url_schema:
            self._look_beside(group)
        if found.missing:
            self._look_hidden(group)
        return found

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        with self._connections.lend() as connection:
            self._apply(connection, change, OutcomeUnknown)

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        with self._connections.lend() as connection, self._connections.request(connection):
            return database_identity(connection)

    def server_settings(self) -> dict[str, str | None]:
        """See `Examined.server_settings`."""
        with self._connections.lend() as connection, self._connections.request(connection):
            return server_settings(connection)

    def clock_ms(self) -> int:
        """See `Clocked.clock_ms`."""
        with self._connections.lend() as connection, self._connections.request(connection):
            [(seconds,)] = connection.execute("select extract(epoch from clock_timestamp())")
            return int(seconds * 1000)

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Connection]:
        """See `TransactionalStore.transaction`. The connection is psycopg's; it is reset afterwards.

        Raises:
            NotAllowed: the block ended the transaction, or continued after a failed statement.
            SinkError: the database refused to commit the writes of the block.
        """
        with self._connections.lend() as connection:
            try:
                yield from self._transact(connection, change)
            except BaseException:
                connection.close()
                raise

    def _transact(self, connection: Connection, change: Change) -> Iterator[Connection]:
        request = self._connections.request
        block = connection.transaction()  # within it, psycopg refuses connection.commit() and rollback()
        with request(connection):
            block.__enter__()
            rows = self._run(connection, _OPEN, (change.after.change_id, change.after.group))
            self._check_version(change, [(version,) for _, version in rows])
        try:
            with connection.lend():
                yield connection
        except BaseException:
            # Where a block within it has found the transaction over, psycopg's own count of blocks is wrong.
            with self._connections.limit(connection), suppress(psycopg.Error):
                block.__exit__(*sys.exc_info())
            raise
        self._check_open(connection, change)
        self._apply(connection, change, StoreUnavailable)
        with request(connection, OutcomeUnknown, SinkError):
            block.__exit__(None, None, None)
        self._renew(connection)

    def _renew(self, connection: Connection) -> None:
        try:
            with self._connections.request(connection):
                connection.execute("DISCARD ALL")
        except OffsetkeeperError:  # harmless: all is committed
            connection.close()
        connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor

    def _apply(self, connection: Connection, change: Change, lost: Lost) -> None:
        step = _NEXT if change.before.version else _FIRST
        with self._connections.request(connection, lost):
            try:
                statement = _APPLY.replace("{step}", step).replace("{durable}", SET_DURABLE)
                [(done, _)] = self._run(connection, statement, self._parameters(change))
                if done != 1:
                    raise ValueError("the row of another statement")
            except (psycopg.errors.DivisionByZero, psycopg.errors.UniqueViolation) as error:
                raise self._refused(change, _OTHER_WRITER) from error

    def _check_open(self, connection: Connection, change: Change) -> None:
        what = "closed the connection, which ended the transaction: all was rolled back"
        if not connection.closed or connection.broken:
            with self._connections.request(connection):
                if connection.pgconn.transaction_status == TransactionStatus.INERROR:
                    what = "continued after a failed statement: all was rolled back"
                elif self._is_open(connection, change):
                    return
                else:
                    what = "ended the transaction: its writes may be stored"
        raise NotAllowed(
            f"{self.address}: group {change.after.group!r} was not changed. The block {what}. "
            "Write on the connection, and leave commit, rollback and close to offsetkeeper"
        )

    def _is_open(self, connection: Connection, change: Change) -> bool:
        """Return whether the transaction is open; from now on the server ends it where this driver stalls."""
        stall_ms = max(1, int(self._settings.timeout * 1000))
        [(mark, _)] = self._run(connection, _STILL_OPEN, (str(stall_ms),))
        return bool(mark == change.after.change_id)

    def _parameters(self, change: Change) -> dict[str, Any]:
        moves = change.moves
        return {
            "group": change.after.group,
            "version": change.before.version,
            "mark": control_mark(change.before),
            "control": dump_control(change.after),
            "entry": dump_entry(change.entry),
            "oldest": change.after.version - self._settings.history,
            "moves": len(moves),
            "added": sum(m.after.offset for m in moves.values() if m.before is None),
            "topics": _texts(tp.topic for tp in moves),
            "partitions": _numbers(tp.partition for tp in moves),
            "before": _numbers(m.before and m.before.offset for m in moves.values()),
            "after": _numbers(m.after.offset for m in moves.values()),
            "topic_ids": _texts(m.after.topic_id for m in moves.values()),
        }

    def _read(self, columns: int, statement: str, *parameters: str | int) -> Sequence[tuple[Any, ...]]:
        with self._connections.lend() as connection, self._connections.request(connection):
            rows = self._run(connection, _WATCHED.replace("?", statement).replace("?", "%s"), parameters)
            try:
                refuse_standby(self.address, of_columns(columns + 1, rows)[0][-1])
            except StoreUnavailable:
                connection.close()  # a new one may lead to the primary
                raise
        return [row[:-1] for row in rows if row[0] is not None]

    def _look_hidden(self, group: str) -> None:
        """Log that missing positions may be hidden. This is not refused, as a policy may let them through."""
        for each in self._obstacles():
            if each.startswith("row-level security"):
                log.warning("%s: group %r lacks positions: %s may hide them", self.address, group, each)

    def _obstacles(self) -> Sequence[str]:
        with self._connections.lend() as connection, self._connections.request(connection):
            return obstacles(connection, [self._tables.offsets, self._tables.groups, self._tables.history])

    def _look_beside(self, group: str) -> None:
        mine, (offsets, groups, _) = self._settings.schema, table_names(self._settings)
        with self._connections.lend() as connection, self._connections.request(connection):
            for schema, table in self._run(connection, _BESIDE, [[offsets, groups], mine]):
                there = sql.SQL("SELECT FROM {} WHERE group_id = %s LIMIT 1").format(sql.Identifier(schema, table))
                if connection.execute(there, [group]).fetchall():
                    raise Refused(
                        f"{self.address}: group {group!r} has a ledger in schema {schema}, and none in schema {mine}, "
                        "which comes first in the search path now. Nothing was changed. Add to the URL "
                        f"?schema={schema} to go on there, or ?schema={mine} to begin anew"
                    )

    def _prepare(self, connection: Connection) -> None:
        if (found := connection.info.server_version) < _OLDEST:
            raise Refused(
                f"{self.address}: the server speaks the dialect of release {found // 10_000} (Redshift's is 8), which "
                "has no ON CONFLICT: keep the offsets in PostgreSQL 10 or newer"
            )
        if not self._settings.schema:  # fixed once: a block may change the search path
            [(schema,)] = self._run(connection, "SELECT current_schema()")
            if schema is None:
                raise Refused(f"{self.address}: the user's search path has no schema; add ?schema=")
            self._settings = self._settings._replace(schema=schema)
            self._tables = name_tables(self._settings, self.address)
        try:
            self._check(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            connection.execute(self._tables.sql(_CREATE).encode())
            self._check(connection)

    def _check(self, connection: Connection) -> None:
        names = [self._tables.offsets, self._tables.groups, self._tables.history]
        refuse_unkept(self.address, self._run(connection, _CHECK, [names]))

    def _run(
        self, connection: Connection, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        # A cursor of our own: the block of a transaction may have set other factories on its connection.
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(self._tables.sql(statement).encode(), parameters).fetchall()


def _numbers(values: Iterable[int | None]) -> str:
    """Return an array in PostgreSQL's text form: much faster than psycopg's conversion of each number."""
    return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"


def _texts(values: Iterable[str | None]) -> str:
    texts = list(values)
    written = {text: "NULL" if text is None else _quoted(text) for text in set(texts)}
    return "{" + ",".join([written[text] for text in texts]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
