"""Rows into a table of MySQL or MariaDB: prepared by the executors, merged by the driver in one transaction.

The columns of the staging table have the types of the table, so that a value that does not fit is refused while it is
staged. A task with few rows gives them to the driver, which stages them in a temporary table of its session. A task
with more inserts them in a transaction of its own connection, with a unique attempt number, into a staging table that
the first such task makes, and reports the number. When the job is done, the rows that came along and those of the
reported attempts are inserted into the table. The staging table is dropped after the commit, with those of other runs
of the group, because DROP TABLE commits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pymysql

from offsetkeeper import errors
from offsetkeeper.clients import mysql_tls, sql_codes
from offsetkeeper.clients.mysql import Connection, code_of
from offsetkeeper.clients.mysql_server import is_in_database
from offsetkeeper.core import environment, executors, outside, tls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Guarantee
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.store import Store
from offsetkeeper.kafka import codes
from offsetkeeper.sinks import blame, few, limits
from offsetkeeper.sinks.marks import Marks, apart, within
from offsetkeeper.sinks.mysql import task
from offsetkeeper.sinks.mysql.columns import Relation, check_key, find_table, misfit, quoted
from offsetkeeper.sinks.mysql.columns import limits as limits_of
from offsetkeeper.sinks.mysql.database import MySQLDatabase
from offsetkeeper.sinks.mysql.dialect import DIALECT
from offsetkeeper.sinks.mysql.staging import (
    CREATE,
    DROP_TEMPORARY,
    TEMPORARY,
    Staging,
    conflict_of,
    drop,
    left_overs,
    listed,
)
from offsetkeeper.sinks.sink import Joiner, Lander, Writer
from offsetkeeper.sinks.staged_table import StagedTable, Write
from offsetkeeper.sinks.staging import Copied
from offsetkeeper.sinks.table import Target, limits_of_rows, match_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
_SHIPPED = (errors, environment, executors, codes, sql_codes, blame, few, limits, outside, task, tls, mysql_tls)
_PROBE = "INSERT INTO {table} ({columns}) SELECT {nulls} FROM DUAL WHERE 1 = 0{conflict}"


class MySQLTable(StagedTable[Connection, Staging]):
    """The sink behind `Table("mysql://...", ...)`; see there."""

    worker_modules = ("numpy", "pyarrow", "pymysql")

    _SCHEMES = ("mysql:", "mariadb:")
    _database: MySQLDatabase

    def __init__(self, url: str, target: Target) -> None:
        super().__init__(MySQLDatabase(url), target)
        self._temporary: bool | None = None  # whether this user may make temporary tables; None if unknown

    def prepare(self, store: Store, guarantee: Guarantee) -> Writer | Joiner | Lander:
        """See `Table.prepare`. Both databases are asked for their identity; URLs do not decide."""
        relation = self._database.run(self._look)
        marks = Marks(self._database, DIALECT, relation.schema, relation.name)
        if self._is_in_database_of(store, is_in_database):
            return within(self._of_output(), marks)
        return apart(self, marks, guarantee)

    def _find(self, connection: Connection) -> Relation:
        return find_table(connection, self._target, self._database.name, self._database.address)

    def _look(self, connection: Connection) -> Relation:
        """Check what does not need a frame: the table, its key, the user's permissions."""
        relation = self._find(connection)
        check_key(relation, self._target, self._database.address)
        names = [column.name for column in relation.columns if not column.generated]
        probe = f"{quoted(relation.schema)}.{quoted(f'offsetkeeper_{environment.token(8)}')}"
        connection.execute(f"DROP TABLE IF EXISTS {probe}")  # a user who can create but not drop leaves them behind
        connection.execute(CREATE.format(staging=probe, columns="c0 int"))
        try:
            connection.execute(f"EXPLAIN INSERT INTO {probe} SELECT * FROM {probe}")  # noqa: S608 - a name of ours
        finally:
            drop(connection, [probe])
        connection.execute(
            _PROBE.format(
                table=relation,
                columns=listed(map(quoted, names)),
                nulls=listed(["NULL"] * len(names)),
                conflict=conflict_of(self._target, relation, dict.fromkeys(names, "NULL")),
            )
        )
        return relation

    def _begin(self, connection: Connection, frame: DataFrame, batch: Batch) -> tuple[Staging, Write]:
        relation, address = self._find(connection), self._database.address
        fields = frame.schema.fields
        columns = match_columns(fields, relation.columns, self._target, misfit)
        check_key(relation, self._target, address, [field.name for field in fields])
        prefix, mine, name = self._names(batch, relation.schema, relation.name)
        drop(connection, left_overs(connection, relation.schema, mine))
        place = f"{quoted(relation.schema)}.{quoted(name)}"
        staging = Staging(address, self._target, relation, prefix, place, fields, columns)
        kept = limits_of_rows(fields, columns, self._target, limits_of)
        arguments = (self._database.executors, address, staging.statements(), kept, self._few(connection, relation))
        return staging, ship(task.insert_rows, arguments, _SHIPPED)

    def _check(self, staged: Staging, answers: Copied) -> None:
        if not answers.few:  # otherwise not all rows are there yet
            self._database.run(lambda connection: staged.check(connection, answers.staged))

    def _few(self, connection: Connection, relation: Relation) -> few.Few:
        """Return the most rows of a task that are not staged: none where they cannot be merged from elsewhere."""
        if self._temporary is None:
            self._temporary = self._may_make_temporary(connection, relation)
        fits = few.LIMIT.bytes * 4 < connection.packet  # a row may be so much larger as SQL
        return few.LIMIT if self._temporary and fits else few.NONE

    def _may_make_temporary(self, connection: Connection, relation: Relation) -> bool | None:
        """Return whether this user may make temporary tables; None if another error leaves that open."""
        name = f"{quoted(relation.schema)}.{quoted(f'offsetkeeper_{environment.token(8)}')}"
        connection.begin()  # servers with GTIDs may refuse it only there
        try:
            connection.execute(TEMPORARY.format(staging=name, columns="c0 int"))
            connection.execute(DROP_TEMPORARY.format(staging=name))
        except pymysql.Error as error:
            found = blame.of_mysql(code_of(error))
            if found is blame.Blame.AWAY:
                raise
            if found is not blame.Blame.REFUSES:
                log.warning("this batch makes a staging table, as the server made no temporary one: %s", error)
                return None
            log.info("each batch makes a staging table, as this user may make no temporary one: %s", error)
            return False
        finally:
            if connection.open:
                connection.rollback()
        return True
