"""The store in a PostgreSQL database: `postgresql://user:password@host/database`.

`Connections` are also used by the sink for tables: waits are limited, and failures are errors of offsetkeeper.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, TransactionStatus
from psycopg.rows import TupleRow, tuple_row

from offsetkeeper.core import environment
from offsetkeeper.core.codec import control_mark, dump_control, dump_entry, empty
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.outside import unknown_setting
from offsetkeeper.core.tls import may_be_objection
from offsetkeeper.errors import (
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    SinkError,
    StoreUnavailable,
)
from offsetkeeper.stores import base
from offsetkeeper.stores.pool import SENSELESS, Lost, Pool, senseless
from offsetkeeper.stores.postgresql_tls import FILES, check_files, objection
from offsetkeeper.stores.tables import TableStore, name_tables, of_columns, table_names

log = logging.getLogger("offsetkeeper")
_OWN = ("schema", "table", "history", "timeout")
_FILES = ("sslkeylogfile", "servicefile")
T = TypeVar("T")

# libpq has no error codes for failed connections, only texts. With a server in another language, such errors are
# retried until the timeout: this is better than to give up while a server is only starting.
_HOPELESS = re.compile(
    r"authentication failed|does not exist|no pg_hba\.conf entry|pg_hba\.conf rejects|no password supplied"
    r"|permission denied|not permitted to log in|does not support SSL|certificate |unrecognized configuration"
    r"|invalid \w+ value|bad value|private key file|alert (bad certificate|unknown ca|access denied)"
)
_OF_SERVER = re.compile(r"connection to server .+?(?=connection to server |\Z)", re.DOTALL)
# Surely rolled back, and worth a retry: read-only for now, serialization and deadlock, resources, locks,
# cancelled, the system, internal.
_PASSING = ("25", "40", "53", "55", "57", "58", "XX")
# Of these tables, and those that are parts of them: what is no table here, or does not outlive a crash.
_UNKEPT = """
    WITH RECURSIVE kept AS (
        SELECT oid FROM pg_class WHERE oid = ANY (%s::text[]::regclass[])
        UNION SELECT inhrelid FROM pg_inherits JOIN kept ON inhparent = oid)
    SELECT oid::regclass::text, relkind::text, relpersistence::text FROM kept JOIN pg_class USING (oid)
    WHERE NOT (relkind IN ('r', 'p') AND relpersistence = 'p')"""
# There is never such a row: this is for the permissions and the column, so that one request has all.
_CHECK = f"{_UNKEPT} AND NOT EXISTS (SELECT {{offsets}}.topic_id FROM {{offsets}}, {{groups}}, {{history}} WHERE false)"  # noqa: S608 - ours
# What may keep a user's rows from being seen or from being stored as they are written.
_OBSTACLES = """
    WITH given AS (SELECT unnest(%s::text[]::regclass[]) AS t)
    SELECT format('row-level security of table %%s for user %%s', t, current_user) FROM given
    WHERE row_security_active(t)
    UNION ALL SELECT format('trigger %%s of table %%s', tgname, t) FROM pg_trigger JOIN given ON tgrelid = t
    WHERE NOT tgisinternal AND tgenabled <> 'D'
    UNION ALL SELECT format('rule %%s of table %%s', rulename, t) FROM pg_rewrite JOIN given ON ev_class = t
    WHERE ev_type <> '1' AND ev_enabled <> 'D'"""
_REMEDIES = {
    "u": "is unlogged, so a crash of the server empties it: ALTER TABLE {} SET LOGGED",
    "t": "is temporary, so it ends with its session: make a lasting table in its place",
    "f": "is a foreign table, whose server commits by itself: make a table of this database in its place",
    "v": "is a view: make a table in its place",
}
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
# A role or a database may have set it off: then a crash of the server takes back what was acknowledged. Other values
# flush here too, and say what standbys do: they stay. It ends with the transaction, as connections may be pooled.
_DURABLE = """
    set_config('synchronous_commit',
        coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)"""
DURABLE = f"SELECT {_DURABLE}"
_FIRST = "INSERT INTO {groups} VALUES (%(group)s, 1, %(control)s) ON CONFLICT DO NOTHING RETURNING control"
_NEXT = """
    UPDATE {groups} SET control = %(control)s, version = version + 1
    WHERE group_id = %(group)s AND version = %(version)s AND strpos(control, %(mark)s) > 0 RETURNING control"""
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
_STILL_OPEN = "SELECT current_setting('offsetkeeper.transaction', true)"
_IDENTITY = """
    SELECT extract(epoch FROM pg_postmaster_start_time())::text, oid::bigint, datname
    FROM pg_database WHERE datname = current_database()"""

# Anyone may see these, as they hold in this session, and that a replica is connected, but not always its state.
_SETTINGS = """
    SELECT name, setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
    UNION ALL SELECT 'replicas', count(*)::text FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'"""


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
                statement = _APPLY.replace("{step}", step).replace("{durable}", _DURABLE)
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
                elif self._run(connection, _STILL_OPEN) == [(change.after.change_id,)]:
                    return
                else:
                    what = "ended the transaction: its writes may be stored"
        raise NotAllowed(
            f"{self.address}: group {change.after.group!r} was not changed. The block {what}. "
            "Write on the connection, and leave commit, rollback and close to offsetkeeper"
        )

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
            return of_columns(columns, self._run(connection, statement.replace("?", "%s"), parameters))

    def _look_hidden(self, group: str) -> None:
        """Say that missing positions may be hidden: that is no reason to refuse, as a policy may let them through."""
        for each in self._obstacles():
            if each.startswith("row-level security"):
                log.warning("%s: group %s lacks positions: %s may hide them", self.address, group, each)

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


class _Stepwise(psycopg.Pipeline):
    """A pipeline that sends one statement at a time, so that there is nothing to wait for."""

    def sync(self) -> None:
        """Do nothing: all statements are answered."""


class Connection(psycopg.Connection[TupleRow]):
    """A connection whose waits for the server can be limited, and that can be lent within a transaction.

    Attributes:
        deadline: time limit by `environment.monotonic`, in seconds.
        lent: whether a block of the user has the connection; the block must not end the transaction. After it has, no
            further statement is sent: each would be stored at once.
    """

    deadline = math.inf
    lent = False

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait as psycopg does, but check the deadline ten times a second. All that is sent is sent here.

        Raises:
            NotAllowed: the connection is lent, and its transaction has ended.
        """
        if self.lent and self.pgconn.transaction_status == TransactionStatus.IDLE:
            gen.close()
            raise NotAllowed(
                "the block has ended the transaction, so nothing more is written: write on the connection, and leave "
                "commit and rollback to offsetkeeper"
            )
        return super().wait(_until(gen, self), *args, **kwargs)

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Send statements without waiting for answers. While it is lent, one by one: an answer tells of the end."""
        if self.lent:
            yield _Stepwise(self)
            return
        with super().pipeline() as pipeline:
            yield pipeline

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Lend it to the block, in a transaction that has begun."""
        self.lent = True
        try:
            yield
        finally:
            self.lent = False


def read_url(url: str) -> tuple[base.StoreUrl, dict[str, Any]]:
    """Return the parsed URL, and the settings for libpq.

    Raises:
        SettingsError: the URL cannot be parsed, or has a setting that neither offsetkeeper nor libpq knows. The message
            shows no part of the URL that could be a password.
    """
    read = base.read_url(url, _OWN, own=None)
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if error := unknown_setting("the store's URL", read.given, (*_OWN, *sorted(known))):
        raise error
    _refuse_code(read.given)
    parts, query = read.parts, urlencode(read.given, quote_via=quote)
    try:
        found = conninfo_to_dict(
            f"postgresql://{parts.netloc}{parts.path}?{query}"
        )  # `geturl` leaves // out before no host
    except (psycopg.Error, ValueError):  # the original message quotes the URL
        raise read.error(
            "cannot be parsed: write postgresql://user:password@host:port/database, and special characters in the "
            "password as %XX"
        ) from None
    _refuse_senders(found)
    return read, {"connect_timeout": "10", "fallback_application_name": "offsetkeeper", **_verifying(found), **found}


def _verifying(given: Mapping[str, object]) -> dict[str, str]:
    """Return what makes libpq check certificate and name, if a file for TLS is given: else it may speak without TLS.

    What stands in the URL counts before the environment, so that no variable of another program lowers it.
    """
    here = given.keys() & {*FILES}
    around = "PGSSLMODE" not in os.environ and any(os.environ.get(f"PG{name.upper()}") for name in FILES)
    return {"sslmode": "verify-full"} if here or around else {}


def _is_hopeless(text: str) -> bool:
    """Whether no other try will connect, by what libpq says of each server."""
    return all(map(_HOPELESS.search, _OF_SERVER.findall(text) or [text]))


def _refuse_code(given: Mapping[str, str]) -> None:
    """Check that no setting has libpq load a library, write a file, or take more settings from a file.

    Raises:
        SettingsError: one has.
    """
    if ":" in given.get("sslkey", ""):  # engine:key, and the engine may be the path of a library
        raise SettingsError("sslkey in the URL names a key in an OpenSSL engine, whose code would run: give a file")
    if wrong := next((name for name in _FILES if name in given), None):
        raise SettingsError(f"{wrong} is not taken from a URL: it names a file to write, or with more settings")


def _refuse_senders(found: Mapping[str, object]) -> None:
    """Check that no credential of this machine goes to a server that another part of the URL names.

    Raises:
        SettingsError: one would.
    """
    if found.get("gssdelegation", "0") != "0":
        raise SettingsError("gssdelegation is not taken from a URL: it sends a Kerberos ticket to the server")
    if "password" in found:
        return
    if "service" in found and not found.keys().isdisjoint({"host", "hostaddr"}):
        raise SettingsError(
            "service in the URL stands beside a host, which would get the password of the service: leave the host out"
        )
    if {"host", "hostaddr"} <= found.keys() and found.get("sslmode") != "verify-full":
        raise SettingsError(
            "hostaddr in the URL stands beside a host, and its server would get the password that a file has for the "
            "host: give one of both, the password, or sslmode=verify-full"
        )


class Connections(Pool[Connection]):
    """Connections of one store, kept unless they are broken or still in a transaction.

    `lend` raises StoreUnavailable if the server cannot be reached, and Refused if it refuses the user, the
    password or the database.

    Args:
        url: URL of the store; its timeout is for one request.
        libpq: settings of libpq.
        prepare: called with each new connection.
    """

    def __init__(self, url: base.StoreUrl, libpq: dict[str, Any], prepare: Callable[[Connection], None]) -> None:
        super().__init__(self._open, Connection.close, clean=lambda connection, _: _is_idle(connection))
        self._libpq = libpq
        self._url = url
        self._address = url.address
        self._timeout = url.settings.timeout
        self._prepare = prepare

    @contextmanager
    def request(
        self, connection: Connection, lost: Lost = StoreUnavailable, refused: type[OffsetkeeperError] = Refused
    ) -> Iterator[None]:
        """Limit the time of the block's statements, and translate their errors.

        Raises:
            StoreUnavailable: surely rolled back, and worth a retry.
            OffsetkeeperError: `lost` if the connection broke, no answer came in time, or it made no sense; `refused`
                if the server refused for good.
        """
        try:
            with self.limit(connection):
                yield
        except psycopg.Error as error:
            raise self._failure(connection, error, lost, refused) from error
        except OffsetkeeperError:
            raise
        except SENSELESS as error:
            connection.close()  # the next answer may be another one's too
            raise lost(senseless(self._address, error, "the port of PostgreSQL (5432)")) from error

    @contextmanager
    def limit(self, connection: Connection) -> Iterator[None]:
        """Break the connection if the block takes longer than the timeout.

        A stopped server that is not dead keeps its end open, so only this side can end the wait.
        """
        connection.deadline = environment.monotonic() + self._timeout
        try:
            yield
        finally:
            connection.deadline = math.inf

    def _open(self) -> Connection:
        check_files(self._libpq)
        try:
            # No prepared statements: poolers do not support them, and their plans would not know the number of rows.
            # A database or a role in SQL_ASCII would answer with bytes.
            settings = {**self._libpq, "client_encoding": "utf8"}
            connection = Connection.connect(**settings, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            hopeless = _is_hopeless(str(error))
            if hopeless and may_be_objection(str(error)) and (why := objection(self._libpq)):
                raise Refused(f"{self._address}: nothing was written: {why}") from self._url.cause(error)
            kind = Refused if hopeless else StoreUnavailable
            raise kind(f"{self._address}: cannot connect: {self._url.redact(error)}") from self._url.cause(error)
        try:
            with self.request(connection):
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failure(
        self, connection: Connection, error: psycopg.Error, lost: Lost, refused: type[OffsetkeeperError]
    ) -> OffsetkeeperError:
        state = error.sqlstate or ""
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not state
        if connection.closed or broken or state.startswith(("08", "57P")):
            return lost(f"{self._address}: the connection broke, or no answer came for {self._timeout:g} s: {error}")
        if state.startswith(_PASSING):
            return StoreUnavailable(f"{self._address}: nothing was written: {error}")
        return refused(f"{self._address}: PostgreSQL refused, and nothing was written: {error}")


def _is_idle(connection: Connection) -> bool:
    return not connection.closed and connection.pgconn.transaction_status == TransactionStatus.IDLE


def _until(waiting: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """Continue a wait for the server until the connection's deadline."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            late = not ready and environment.monotonic() > connection.deadline
            wanted = waiting.throw(psycopg.OperationalError("no answer in time")) if late else waiting.send(ready)
    except StopIteration as end:
        return cast("T", end.value)


def database_identity(connection: psycopg.Connection[Any]) -> str:
    """Return a text that identifies the database of a connection until its server restarts."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        [(began, oid, name)] = cursor.execute(_IDENTITY).fetchall()
    return f"postgresql:{began}:{oid}:{name}"


def server_settings(connection: psycopg.Connection[Any]) -> dict[str, str | None]:
    """Return the settings that decide what a commit of this user survives, and the number of replicas."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return dict(cursor.execute(_SETTINGS).fetchall())


def check_tables(connection: psycopg.Connection[Any], address: str, names: Sequence[str]) -> None:
    """Check that tables are committed and rolled back together, and outlive a crash of the server.

    Args:
        connection: a connection to the database.
        address: the database without credentials, for messages.
        names: the tables, quoted for SQL.

    Raises:
        Refused: one of them, or a table that is a part of one, is not a table of this database, or not a logged one.
    """
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        refuse_unkept(address, cursor.execute(_UNKEPT.encode(), [list(names)]).fetchall())


def obstacles(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[str]:
    """Return what may hide rows of tables from this user or change what it writes: policies, triggers, rules."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return [text for (text,) in cursor.execute(_OBSTACLES.encode(), [list(names)]).fetchall()]


def refuse_unkept(address: str, found: Iterable[Sequence[str]]) -> None:
    """Raise Refused if the check of tables has found one: name, kind and persistence as PostgreSQL writes them."""
    for name, kind, persistence in found:
        remedy = _REMEDIES.get(persistence) or _REMEDIES.get(kind, _REMEDIES["v"])
        raise Refused(f"{address}: table {name} {remedy.format(name)}")


def _numbers(values: Iterable[int | None]) -> str:
    """Return an array in PostgreSQL's text form: much faster than psycopg's conversion of each number."""
    return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"


def _texts(values: Iterable[str | None]) -> str:
    texts = list(values)
    written = {text: "NULL" if text is None else _quoted(text) for text in set(texts)}
    return "{" + ",".join([written[text] for text in texts]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
