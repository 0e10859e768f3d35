"""The store in a MySQL or MariaDB database: `mysql://user:password@host:3306/database`. Tested on MariaDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql.constants import ER

from offsetkeeper.clients.mysql import OURS, Connection, Connections, Result, code_of, is_conflict, read_url
from offsetkeeper.clients.mysql_server import (
    IS_READ_ONLY,
    clock_ms,
    database_identity,
    refuse_read_only,
    server_settings,
    triggers,
)
from offsetkeeper.core.codec import empty
from offsetkeeper.core.model import LONGEST_GROUP, Change, Snapshot
from offsetkeeper.errors import (
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    VersionConflict,
)
from offsetkeeper.stores.group_names import Names
from offsetkeeper.stores.mysql.statements import EXACTLY, Statements, largest, packets, statements
from offsetkeeper.stores.mysql.tables import check_name, check_tables, make_tables
from offsetkeeper.stores.tables import LOAD, VERSION, TableStore, of_columns, table_names

_EXACT_GROUP = EXACTLY.format(column="group_id", value="?")
# To most collations a name is equal to itself with spaces at its end. A column has 249 characters.
NAMES = Names(re.compile(r" \Z"), longest=LONGEST_GROUP)
_MARK = "offsetkeeper"  # a savepoint, gone with its transaction
_READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"  # no locks on gaps, so fewer deadlocks


class MySQLStore(TableStore):
    """Ledgers in MySQL or MariaDB tables, which other programs may read by plain SQL; see `stores.tables`.

    Args:
        url: `mysql://user:password@host:port/database`, with `?table=`, `?history=` (entries kept for each group,
            1000), `?timeout=` (seconds one answer may take, 30), `connect_timeout`, `unix_socket`, `ssl_ca`,
            `ssl_cert`, `ssl_key`, `ssl_verify_cert`, `ssl_verify_identity` and `ssl_disabled`.

    Raises:
        SettingsError: the URL is wrong.
    """

    _LOAD = LOAD.replace('"offset"', "`offset`").replace("partition", "`partition`") + f" AND {_EXACT_GROUP}"
    _GROUPS = """
        SELECT group_id FROM {groups}
        UNION ALL SELECT DISTINCT CONVERT(group_id USING utf8mb4) COLLATE utf8mb4_bin FROM {offsets}"""

    def __init__(self, url: str) -> None:
        read, library = read_url(url)
        super().__init__(read, quote="`")
        self._ready = False
        self._connections: Connections = Connections(read, library, self._prepare_own, several=True)
        self._lent = Connections(read, library, self._prepare, several=False)

    def load(self, group: str) -> Snapshot:
        """See `Store.load`.

        Raises:
            Refused: also if another program has rows of the group, which ends with a space.
        """
        found, others = super().load(group), NAMES.others_name(group)
        if others and found == empty(group) and self._snapshot(group, others).rows:
            raise Refused(
                f"{self._tables.where} has rows of group {group!r}, written by another program. MySQL may not tell a "
                f"name that ends with a space from the one without, so this store writes {self._name(group)!r} in its "
                "place. To take the offsets over, set group_id of these rows to that; else delete them"
            )
        return found

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        with self._connections.lend() as connection:
            wanted = self._statements(connection, change)
            with self._connections.request(connection):
                self._check(connection, change, ["START TRANSACTION"], wanted)
            with self._connections.request(connection, OutcomeUnknown):
                self._run(connection, change, [*wanted.writes, "COMMIT"])

    def close(self) -> None:
        """See `Store.close`."""
        super().close()
        self._lent.close()

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
            return clock_ms(connection)

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Connection]:
        """See `TransactionalStore.transaction`. The connection is PyMySQL's with an `execute`; it is reset afterwards.

        Raises:
            NotAllowed: the block ended the transaction; CREATE, ALTER and DROP end it too.
        """
        with self._lent.lend() as connection:
            try:
                yield from self._transact(connection, change)
            except BaseException:
                connection.drop()
                raise

    def _transact(self, connection: Connection, change: Change) -> Iterator[Connection]:
        self._statements(connection, change)  # refuse a change that is too large before it begins
        with self._lent.request(connection):
            version = connection.execute(self._sql(VERSION), (self._name(change.after.group),))
            self._check_version(change, version.fetchall())
            connection.execute("START TRANSACTION")
            connection.execute(f"SAVEPOINT {_MARK}")
        with self._lend(connection):
            yield connection
        self._check_open(connection, change)
        with self._lent.request(connection):
            # The block may have set another mode. And from now on a driver that stalls keeps its locks no longer.
            connection.run([f"{OURS}, wait_timeout = {connection.locks}"])
            wanted = self._statements(connection, change)
            self._check(connection, change, [], wanted)
            self._run(connection, change, wanted.writes)
        with self._lent.request(connection, OutcomeUnknown):
            connection.commit()
        with suppress(OffsetkeeperError), self._lent.request(connection):  # harmless: all is committed
            connection.drop_staged()
            connection.renew()
            return
        connection.drop()

    @contextmanager
    def _lend(self, connection: Connection) -> Iterator[None]:
        connection.lent = True
        connection.limit(None)  # the block takes the time it needs
        try:
            yield
        finally:
            connection.lent = False
            connection.limit(self._settings.timeout)

    def _check(self, connection: Connection, change: Change, before: Sequence[str], wanted: Statements) -> None:
        results = self._run(connection, change, [*before, *(check.statement for check in wanted.checks)])
        for (changed, rows), check in zip(results[len(before) :], wanted.checks, strict=True):
            if (rows[0][0] if rows else changed) != check.rows:
                raise self._conflict(connection, change, "another writer changed its ledger or its positions first")

    def _run(self, connection: Connection, change: Change, wanted: Sequence[str]) -> list[Result]:
        limit = connection.packet if connection.several else 0
        try:
            return [result for packet in packets(wanted, limit) for result in connection.run(packet)]
        except pymysql.Error as error:
            if not is_conflict(error):
                raise
            what = f"another writer was first, or the table treats two names as the same: {error}"
            raise self._conflict(connection, change, what) from error

    def _statements(self, connection: Connection, change: Change) -> Statements:
        name = self._name(change.after.group)
        wanted = statements(name, change, self._tables, self._settings.history, connection.escape)
        size = largest(wanted)
        if size > connection.packet:
            raise Refused(
                f"{self.address}: group {change.after.group!r} was not changed: its change has a statement of {size} "
                f"bytes, but max_allowed_packet of the server allows {connection.packet}; raise it"
            )
        return wanted

    def _check_open(self, connection: Connection, change: Change) -> None:
        what = "closed the connection, which ended the transaction: all was rolled back"
        if not connection.closed:
            with self._lent.request(connection):
                try:
                    connection.run([f"RELEASE SAVEPOINT {_MARK}"])
                except pymysql.Error as error:
                    if code_of(error) != ER.SP_DOES_NOT_EXIST:
                        raise
                    what = "ended the transaction: its writes may be stored"
                else:
                    return
        raise NotAllowed(
            f"{self.address}: group {change.after.group!r} was not changed. The block {what}. "
            "Write on the connection, and leave commit, rollback and close to offsetkeeper, and CREATE, ALTER and DROP "
            "to another connection, as MySQL commits with them"
        )

    def _conflict(self, connection: Connection, change: Change, what: str) -> VersionConflict:
        if connection.open:
            connection.rollback()
        return self._refused(change, what)

    def _obstacles(self) -> Sequence[str]:
        with self._connections.lend() as connection, self._connections.request(connection):
            return triggers(connection, self._settings.schema, table_names(self._settings))

    def _name(self, group: str) -> str:
        return NAMES.name_of(group)

    def _group(self, name: str) -> str:
        return NAMES.group_of(name)

    def _read(self, columns: int, statement: str, *parameters: str | int) -> Sequence[tuple[Any, ...]]:
        with self._connections.lend() as connection, self._connections.request(connection):
            text = self._sql(statement) % tuple(map(connection.escape, parameters))
            [(_, [read_only]), (_, found)] = connection.run([IS_READ_ONLY, text])
            refuse_read_only(self.address, read_only)
            return of_columns(columns, found)

    def _sql(self, statement: str) -> str:
        return self._tables.sql(statement.replace("?", "%s"))

    def _prepare_own(self, connection: Connection) -> None:
        connection.run([OURS, _READ_COMMITTED, f"SET SESSION innodb_lock_wait_timeout = {connection.locks}"])
        self._prepare(connection)

    def _prepare(self, connection: Connection) -> None:
        if not self._ready:
            check_name(connection, self._settings)
            make_tables(connection, self._tables)
            check_tables(connection, self._tables, self._settings, self.address)
            self._ready = True
