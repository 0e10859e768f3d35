"""A table of a database server: the driver merges the rows of a batch in one transaction.

Executors stage the rows first. Few rows of a task come to the driver with its answer, and need no staging table.

What PostgreSQL and MySQL have in common: how a batch is staged, written and dropped, and the driver's connections.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from offsetkeeper.clients.pool import Pool
from offsetkeeper.core import environment
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import SinkError, StoreUnavailable
from offsetkeeper.sinks.few import RESULT
from offsetkeeper.sinks.staging import Copied, asked, copied, staging_prefix
from offsetkeeper.sinks.table import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

C = TypeVar("C")  # a connection
T = TypeVar("T")
Write = Callable[[Iterator[Any]], Iterator[Any]]


class ServerDatabase(Generic[C]):
    """The driver's connections to a database: opened when needed, and opened again after they were lost.

    A subclass is a `sinks.marks.Database`.

    Args:
        address: the URL without credentials.
        executors: settings of the client library for executors, with the password: never show them.
        connections: the connections; they must not refer to this object, which would never be collected.
    """

    def __init__(self, address: str, executors: Mapping[str, Any], connections: Pool[C]) -> None:
        self.address = address
        self.executors = dict(executors)
        self._connections = connections
        weakref.finalize(self, connections.close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def run(self, work: Callable[[C], T]) -> T:
        """Return the result of `work`. It may be called twice: a kept connection may turn out to be lost.

        Raises:
            SinkError: the database could not be reached.
            Refused: the database refused the request.
        """
        return asked(lambda: self._run(work))

    def transaction(self, work: Callable[[C], None]) -> None:
        """Do `work` in a transaction, and return when it is durable.

        Raises:
            SinkError: nothing was written.
            OutcomeUnknown: the reply to the commit was lost.
        """
        try:
            with self._connections.lend() as connection:
                self._transact(connection, work)
        except StoreUnavailable as error:
            raise SinkError(str(error)) from error

    def _transact(self, connection: C, work: Callable[[C], None]) -> None:
        raise NotImplementedError

    def request(self, connection: C) -> AbstractContextManager[None]:
        """See `sinks.marks.Database`."""
        raise NotImplementedError

    def _run(self, work: Callable[[C], T]) -> T:
        with self._connections.lend() as connection, self.request(connection):
            return work(connection)


class StagingTable(Protocol):
    """A staging table, and how its rows get into the target.

    Attributes:
        prefix: common prefix of the names of all staging tables of the group for the target.
    """

    @property
    def prefix(self) -> str:
        """See `StagingTable`."""
        ...

    def drop(self, connection: Any) -> None:
        """Drop it, if a task has made it. A table that is still in use is left for a later run."""
        ...

    def finish(self, connection: Any, copied: Copied, *, spared: Collection[str] | None) -> None:
        """Merge the rows into the target, in the connection's transaction; see `Joiner`.

        Args:
            connection: a connection in a transaction.
            copied: where the rows are.
            spared: how the names of staging tables begin that other outputs here use, if those of other runs of the
                group are to be dropped too; None if they are not.
        """
        ...


S = TypeVar("S", bound=StagingTable)
_HERE: weakref.WeakSet[StagedTable[Any, Any]] = weakref.WeakSet()


class StagedTable(Generic[C, S]):
    """The common part of the sinks behind `Table` for database servers; it is a `Joiner` and a `Writer`.

    Args:
        database: the database of the table.
        target: the table as the user named it.
    """

    _SCHEMES: tuple[str, ...]  # how addresses of stores begin that may be in the same database

    def __init__(self, database: ServerDatabase[C], target: Target) -> None:
        self._database = database
        self._target = target
        self._run = environment.token(4)
        self._tidied: set[str] = set()

    def _of_output(self) -> Self:
        """Return this table as that of one output: outputs of one table may stage their rows at the same time."""
        own = copy(self)
        own._run, own._tidied = environment.token(4), set()  # noqa: SLF001 - its own
        _HERE.add(own)
        return own

    def stage(self, frame: DataFrame, batch: Batch) -> Callable[[Any], None]:
        """See `Joiner`."""
        staged, write = self._database.run(lambda connection: self._begin(connection, frame, batch))
        try:
            answers = Copied.of(copied(frame, write, RESULT))
            self._check(staged, answers)
        except BaseException:
            with suppress(SinkError):
                self._database.run(staged.drop)
            raise
        return lambda connection: self._finish(staged, connection, answers)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """See `Writer`."""
        self._database.transaction(self.stage(frame, batch))

    def _begin(self, connection: C, frame: DataFrame, batch: Batch) -> tuple[S, Write]:
        """Return a staging table for a frame, which no task has made yet, and the work of a task on its rows."""
        raise NotImplementedError

    def _check(self, staged: S, answers: Copied) -> None:
        """Check the rows that were staged, before the merge."""

    def _finish(self, staged: S, connection: C, answers: Copied) -> None:
        here = [f"{staged.prefix}{each._run}_" for each in _HERE]  # noqa: SLF001 - its own class
        staged.finish(connection, answers, spared=here if self._is_first(staged.prefix) else None)

    def _names(self, batch: Batch, schema: str, table: str) -> tuple[str, str, str]:
        """Return the prefixes of the staging tables of the group and of this run, and the name of a new one."""
        prefix = staging_prefix(batch.group, schema, table)
        mine = f"{prefix}{self._run}_"
        return prefix, mine, f"{mine}{environment.token(4)}"

    def _is_in_database_of(self, store: Store, is_in: Callable[[C, Callable[[], str]], bool]) -> bool:
        if not isinstance(store, TransactionalStore) or not store.address.startswith(self._SCHEMES):
            return False
        return self._database.run(lambda connection: is_in(connection, store.identity))

    def _is_first(self, prefix: str) -> bool:
        """Whether this is the first batch of this run into that table."""
        first = prefix not in self._tidied
        self._tidied.add(prefix)
        return first
