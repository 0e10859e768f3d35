"""Rows into a table of PostgreSQL: prepared by the executors, merged by the driver in one transaction.

A task with few rows gives them to the driver. A task with more copies them into one unlogged staging table, which the
first such task makes, in a transaction of its own connection and with a random attempt number, and reports the number.
When the job is done, the rows that came along and those of the reported attempts are inserted into the table: in the
ledger's transaction if rows and offsets are committed together, otherwise together with their mark. Rows of tasks that
were retried, speculative or given up are dropped with the staging table. Staging tables of other runs of the group are
dropped in the transaction of the first batch: after its commit, the batches of those runs can no longer be committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from offsetkeeper import errors
from offsetkeeper.clients import postgresql_tls, sql_codes
from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.clients.postgresql_server import is_in_database
from offsetkeeper.core import environment, executors, outside, tls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.store import Store
from offsetkeeper.errors import RowMismatch, SinkError
from offsetkeeper.kafka import codes
from offsetkeeper.sinks import blame, few, limits
from offsetkeeper.sinks.marks import Marks, apart, within
from offsetkeeper.sinks.postgresql import task
from offsetkeeper.sinks.postgresql.columns import check_key, check_table, columns_of, find_table, identity_of, misfit
from offsetkeeper.sinks.postgresql.database import PostgreSQLDatabase
from offsetkeeper.sinks.postgresql.dialect import DIALECT, schema_with_mark
from offsetkeeper.sinks.postgresql.staging import UNREADABLE, Staging, drop_left_overs
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, Writer
from offsetkeeper.sinks.staged_table import StagedTable, Write
from offsetkeeper.sinks.staging import Copied
from offsetkeeper.sinks.table import Target, match_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHIPPED = (errors, environment, outside, executors, codes, sql_codes, blame, few, limits, task, tls, postgresql_tls)


class PostgreSQLTable(StagedTable[Connection, Staging]):
    """The sink behind `Table("postgresql://...", ...)`; see there."""

    worker_modules = ("numpy", "psycopg", "pyarrow")

    _SCHEMES = ("postgres",)

    def __init__(self, url: str, target: Target) -> None:
        super().__init__(PostgreSQLDatabase(url), target)
        self._searched = not target.schema

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """See `Table.prepare`. Both databases are asked for their identity; URLs do not decide."""
        relation = self._database.run(lambda connection: check_table(connection, self._target, self._database.address))
        self._target = self._target._replace(schema=relation.schema)  # a schema may appear before it in the search path
        marks = Marks(self._database, DIALECT, relation.schema, relation.name, identity_of(relation))
        if self._is_in_database_of(store, is_in_database):
            return within(self._of_output(), marks, self._moved_from if self._searched else lambda *_: "")
        return apart(self, marks, guarantee)

    def _finish(self, staged: Staging, connection: Connection, answers: Copied) -> None:
        try:
            super()._finish(staged, connection, answers)
        except SinkError as error:
            if not isinstance(error.__cause__, UNREADABLE):
                raise
            name = self._database.run(lambda other: staged.unreadable(other, answers))
            if name is None:
                raise
            raise RowMismatch(f"column {name}: {error}") from error

    def _moved_from(self, connection: Connection, key: MarkKey) -> str:
        return schema_with_mark(connection, self._target, key)

    def _begin(self, connection: Connection, frame: DataFrame, batch: Batch) -> tuple[Staging, Write]:
        address = self._database.address
        relation = find_table(connection, self._target, address)
        schema = relation.workplace or relation.schema
        fields = frame.schema.fields
        found = columns_of(connection, relation)
        columns = match_columns(fields, found, self._target, misfit)
        collations = check_key(connection, relation, found, self._target, address)
        prefix, mine, name = self._names(batch, relation.schema, relation.name)
        drop_left_overs(connection, schema, mine)
        place = sql.Identifier(schema, name)
        apart = self._database.run
        staging = Staging(address, self._target, relation, schema, prefix, place, fields, columns, collations, apart)
        statements = staging.statements(connection)
        arguments = (self._database.executors, address, statements, staging.limits(), staging.few())
        return staging, ship(task.copy_rows, arguments, _SHIPPED)
