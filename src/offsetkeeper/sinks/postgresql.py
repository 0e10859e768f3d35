"""Rows into a table of PostgreSQL: staged by the executors, merged by the driver in one transaction.

Each task copies its rows into one unlogged staging table, in a transaction of a connection of its own, and reports the
transaction's number. Once the job is done, the rows of the reported transactions are inserted into the table, in the
ledger's transaction where rows and offsets commit together. What else was staged, by tasks that were retried,
speculative or given up, is dropped with the staging table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from offsetkeeper import errors
from offsetkeeper.core.model import Batch, Guarantee
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import MissingExtra, SinkError
from offsetkeeper.sinks import copy_format, copy_task
from offsetkeeper.sinks.postgresql_session import Session
from offsetkeeper.sinks.postgresql_staging import Staging, drop, drop_left_overs, new_name, staging_prefix
from offsetkeeper.sinks.postgresql_table import check_table, columns_of, find_table
from offsetkeeper.sinks.postgresql_types import misfit
from offsetkeeper.sinks.target import Target, match_columns, two_databases
from offsetkeeper.stores.postgresql import Connection, database_identity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OURS = re.compile(r"offsetkeeper\.errors\.(SinkError|MissingExtra): ([^\r\n]*)")
_KINDS = {"SinkError": SinkError, "MissingExtra": MissingExtra}
_SHIPPED = (errors, copy_format, copy_task)


class PostgreSQLTable:
    """The sink behind `Table("postgresql://...", ...)`; see there."""

    def __init__(self, url: str, target: Target) -> None:
        self._session = Session(url)
        self._target = target
        self._run = secrets.token_hex(4)
        self._tidied: set[str] = set()
        self._asked: tuple[Store, bool] | None = None

    def check(self, store: Store, guarantee: Guarantee) -> None:
        """See `Sink.check`."""
        if guarantee is Guarantee.EXACTLY_ONCE and not self.shares_transaction(store):
            raise two_databases(self._session.address, store)
        self._session.run(lambda connection: check_table(connection, self._target, self._session.address))

    def shares_transaction(self, store: Store) -> bool:
        """Whether the store is in the same database, which both are asked once, whatever their URLs say."""
        if self._asked is None or self._asked[0] is not store:
            self._asked = store, self._is_in_database_of(store)
        return self._asked[1]

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """See `Sink.stage`."""
        staging, statement = self._session.run(lambda connection: self._make_staging(connection, frame, batch))
        write = ship(copy_task.copy_rows, (self._session.executors, self._session.address, statement), _SHIPPED)
        try:
            done = frame.mapInArrow(write, copy_task.RESULT).collect()
        except BaseException as error:
            with suppress(SinkError):
                self._session.run(lambda connection: drop(connection, staging.name))
            ours = _OURS.search(str(error))
            if ours is None:
                raise
            raise _KINDS[ours[1]](ours[2]) from error
        transactions = {row["transaction"]: row["rows"] for row in done}
        return lambda connection: staging.finish(connection, transactions)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `Sink.write`."""
        self._session.transaction(self.stage(frame, batch))

    def _is_in_database_of(self, store: Store) -> bool:
        if not isinstance(store, TransactionalStore) or not store.address.startswith("postgres"):
            return False
        return store.identity() == self._session.run(database_identity)

    def _make_staging(self, connection: Connection, frame: DataFrame, batch: Batch) -> tuple[Staging, str]:
        relation = find_table(connection, self._target, self._session.address)
        schema = relation.workplace or relation.schema
        fields = frame.schema.fields
        columns = match_columns(fields, columns_of(connection, relation), self._target, misfit)
        prefix = staging_prefix(batch.group, relation)
        mine = f"{prefix}{self._run}_"
        drop_left_overs(connection, schema, mine if prefix in self._tidied else prefix)
        self._tidied.add(prefix)
        staging = Staging(self._target, relation, new_name(schema, mine), fields, columns)
        staging.create(connection)
        return staging, staging.copy_statement(connection)
