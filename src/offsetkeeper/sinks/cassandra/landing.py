"""Lands batches in a Cassandra table: each batch gets its own write times, executors write it, then it is marked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from offsetkeeper import errors
from offsetkeeper.clients import sql_codes
from offsetkeeper.core import executors, outside, tls
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.errors import OffsetkeeperError, Refused, SinkMismatch
from offsetkeeper.kafka import codes
from offsetkeeper.sinks import blame, limits
from offsetkeeper.sinks.cassandra import connection, nodes, task
from offsetkeeper.sinks.cassandra.clock import clock_ahead, tell_ahead
from offsetkeeper.sinks.cassandra.columns import CassandraColumn, limits_of, misfit
from offsetkeeper.sinks.cassandra.marks import CassandraMarks, State, parsed
from offsetkeeper.sinks.cassandra.schema import check_kept, check_rights, delete_from, find_columns, insert_into
from offsetkeeper.sinks.cassandra.session import Session
from offsetkeeper.sinks.cassandra.times import WriteTimes
from offsetkeeper.sinks.latest import col, last_of_each_key, ranked
from offsetkeeper.sinks.sink import MarkKey, Seen
from offsetkeeper.sinks.staging import copied
from offsetkeeper.sinks.table import Target, match_columns, ordered, same_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("offsetkeeper")
_SHIPPED = (errors, executors, codes, sql_codes, blame, connection, limits, nodes, outside, task, tls)


class PlannedRows(NamedTuple):
    """A frame that fits the table, and the plan to write its rows."""

    frame: DataFrame
    plan: task.RowPlan


def write_all(place: connection.Place, rows: PlannedRows, window: task.Window) -> Collection[int]:
    """Let the executors write all rows; return the numbers of the attempts that wrote them.

    Raises:
        SinkError, RowMismatch, Refused, SettingsError: raised on an executor; some rows may be written.
    """
    answers = copied(rows.frame, ship(task.write_rows, (place, rows.plan, window), _SHIPPED), task.RESULT)
    return [attempt for attempt, *_ in answers]


@dataclass(frozen=True, slots=True)
class CassandraTable:
    """A table of a cluster, and the marks beside it.

    Attributes:
        target: the table.
        deletes: name of the frame's column that says which rows are deleted, or None.
        session: session with the cluster.
    """

    target: Target
    deletes: str | None
    session: Session
    _marks: CassandraMarks = field(init=False)
    _times: WriteTimes = field(init=False, default_factory=WriteTimes)

    def __post_init__(self) -> None:
        """Create the marks."""
        object.__setattr__(self, "_marks", CassandraMarks(self.session, self.target.schema))

    def check(self) -> None:
        """Check what does not need a frame: the table, its key, the user's permissions, the marks.

        Raises:
            Refused: one of them is wrong; the message says how to correct it.
            SinkError: the cluster could not be reached.
        """
        columns = find_columns(self.session, self.target)
        if self.deletes in {column.name for column in columns}:
            raise Refused(
                f"deletes={self.deletes!r} is a column of table {self.target}: add another column to the frame, which "
                "is true in the rows to delete"
            )
        check_kept(self.session, self.target)
        check_rights(self.session, self.target)
        self._marks.make()
        self._times.ahead, self._times.floor = clock_ahead(self.session), self._marks.newest()
        tell_ahead(self.session, self.target.schema, self._times.floor)

    def stage(self, frame: DataFrame, batch: Batch) -> PlannedRows:  # noqa: ARG002 - the protocol's signature
        """See `Lander`. No row is written yet, because readers would see it at once."""
        columns = find_columns(self.session, self.target)
        if self.deletes is not None:
            self._check_deletes(frame, self.deletes)
        fields = [each for each in frame.schema.fields if each.name != self.deletes]
        there = [each for each in match_columns(fields, columns, self.target, misfit) if each is not None]
        last = last_of_each_key(frame, self.target)
        chosen = [col(column.name).alias(f"c{place}") for place, column in enumerate(there)]
        chosen += [] if self.deletes is None else [col(self.deletes).alias("gone")]
        chosen += ranked(last, {column.name for column in there}, self.target)
        return PlannedRows(last.select(*chosen), self._plan(there, in_order=ordered(frame.schema.fields, self.target)))

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`."""
        state = self._marks.look(key)
        return Seen(parsed(state), state)

    def land(
        self,
        key: MarkKey,
        seen: Seen,
        mark: OutputMark,
        staged: PlannedRows | None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """See `Lander`. If it fails after the begin, rows may be written, but the mark is unchanged.

        So the next try writes them again, with a later time.
        """
        state: State | None = seen.handle
        if self._times.over is None:  # the run before may have landed batches since the start, under another name
            self._times.floor = max(self._times.floor, self._marks.newest())
        at = self._times.after(state)
        if staged is not None:
            window = self._times.begin(staged.frame.sparkSession, state)
            begun = State(None if state is None else state.mark, str(mark), window.last)
            self._marks.change(key, state, begun, decides=False)
            self._write(staged, window)
            check()
            state, at = begun, window.last
        elif state is not None and state.begun == str(mark._replace(void=False)):
            log.warning(
                "group %s: the batch with the mark '%s' was begun and is now dropped: some of its rows may be in table "
                "%s, and stay there until a later batch has the same keys",
                *(key.group, state.begun, self.target),
            )
        self._marks.change(key, state, State(str(mark), None, at), decides=True)
        self._times.floor = max(self._times.floor, at)  # the next batch may be landed under another name

    def rehearse(self, _: MarkKey, staged: PlannedRows) -> None:
        """See `Lander`. Nothing that is written could be taken back, so the server only checks the rows."""
        copied(staged.frame, ship(task.try_rows, (self.session.place, staged.plan), _SHIPPED), task.RESULT)

    def _write(self, staged: PlannedRows, window: task.Window) -> None:
        attempts: Collection[int] = ()
        try:
            attempts = write_all(self.session.place, staged, window)
        except OffsetkeeperError:  # of an attempt: the job has failed. After any other error it may still run
            self._times.end(window, attempts)
            raise
        self._times.end(window, attempts)

    def _check_deletes(self, frame: DataFrame, name: str) -> None:
        found = {each.name: each.dataType.typeName() for each in frame.schema.fields}.get(name, "not there")
        if found != "boolean":
            raise SinkMismatch(
                f"the frame does not fit table {self.target}: column {name}, which says what is deleted, is {found}: "
                "make it a boolean. Nothing was written"
            )

    def _plan(self, columns: list[CassandraColumn], *, in_order: bool) -> task.RowPlan:
        names = tuple(column.name for column in columns)
        alone = sum(column.kind == "partition_key" for column in columns) == 1
        key = [name for name in names if name in self.target.key]
        return task.RowPlan(
            table=str(self.target),
            insert=insert_into(self.target, names),
            delete=delete_from(self.target, key),
            limits=tuple(limits_of(each, alone=alone and each.kind == "partition_key") for each in columns),
            key=tuple(map(names.index, key)),
            deletes=self.deletes is not None,
            same_key=str(same_key(self.target, in_order=in_order)).replace(
                "Nothing was written", "The batch is not committed"
            ),
        )
