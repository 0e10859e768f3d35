"""The marks of outputs in a keyspace: rows of a separate table, each changed by compare-and-set.

A landing takes two steps. The first step begins it: it gives the rows a write time above all earlier ones. The second
step changes the mark, when all rows are written. Each step succeeds only if the row is still as it was read, so of two
runs that read the same row, only one continues.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.cassandra.columns import quoted
from offsetkeeper.sinks.cassandra.session import Session
from offsetkeeper.sinks.marks import TABLE, moved
from offsetkeeper.sinks.sink import MarkKey

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {marks} (group_name text, output text, mark text, begun text, write_time bigint, "
    "PRIMARY KEY ((group_name, output)))"
)
_THERE = "SELECT default_time_to_live FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
_SEEN = "SELECT mark, begun, write_time FROM {marks} WHERE group_name = %s AND output = %s"
_TIMES = "SELECT write_time FROM {marks}"
_FIRST = "INSERT INTO {marks} (mark, begun, write_time, group_name, output) VALUES (%s, %s, %s, %s, %s) IF NOT EXISTS"
_NEXT = (
    "UPDATE {marks} SET mark = %s, begun = %s, write_time = %s WHERE group_name = %s AND output = %s "
    "IF mark = %s AND write_time = %s"
)
_NOBODY = MarkKey("", "")  # no group has an empty name
_NEW_S = 10.0


class State(NamedTuple):
    """A row of the marks.

    Attributes:
        mark: the mark as text, or None before the first batch has landed.
        begun: the mark of the batch whose rows are being written, or were being written when a run died; or None.
        write_time: the newest write time so far, in microseconds since 1970.
    """

    mark: str | None
    begun: str | None
    write_time: int | None


class CassandraMarks(NamedTuple):
    """The marks in one keyspace.

    Attributes:
        session: session with the cluster.
        keyspace: keyspace of the table with the rows.
    """

    session: Session
    keyspace: str

    def make(self) -> None:
        """Create the table if it does not exist, and check the permissions.

        Raises:
            Refused: a permission is missing; the message has the statement that helps.
            SinkError: the cluster could not be reached.
        """
        create = self._sql(_CREATE)
        try:
            found = self.session.rows(_THERE, (self.keyspace, TABLE))
            if not found:
                self.session.change(lambda session: session.execute(create), decides=False)
            retry(_is_new, _NEW_S, lambda _: self._try_out())
        except Refused as error:
            raise Refused(
                f"{error}. The output's marks need SELECT and MODIFY on {self._table}. If the table does not exist, "
                f"this user must be allowed to create it, or another user creates it: {create}"
            ) from error

        if found and found[0][0]:
            raise Refused(
                f"{self.session.place.address}: table {self._table} forgets marks after {found[0][0]} s: "
                f"ALTER TABLE {self._table} WITH default_time_to_live = 0"
            )

    def newest(self) -> int:
        """Return the newest write time of all groups and outputs in the keyspace; 0 if there is none.

        Raises:
            SinkError: the cluster could not be reached.
        """
        return max((at for (at,) in self.session.rows(self._sql(_TIMES), ()) if at is not None), default=0)

    def _try_out(self) -> None:
        nowhere = State(None, None, 0)  # a missing row has none of these values: nothing is written
        self.session.run(lambda session: self._look(session, _NOBODY))
        self.session.run(lambda session: session.execute(*self._change(_NOBODY, nowhere, nowhere)))

    def look(self, key: MarkKey) -> State | None:
        """Return the row of a key after all acknowledged changes."""
        state: State | None = self.session.run(lambda session: self._look(session, key))
        return state

    def change(self, key: MarkKey, before: State | None, after: State, *, decides: bool) -> None:
        """Change the row of a key if it is still as it was read.

        Raises:
            MarkMoved: the row has changed since; nothing was changed.
            OutcomeUnknown: the row may be changed, and `decides` is set.
            SinkError: nothing was changed; or `decides` is not set, so the change does not matter.
        """
        statement = self._insert(key, after) if before is None else self._change(key, before, after)
        if not self.session.change(lambda session: session.execute(*statement).was_applied, decides=decides):
            raise moved(self._table, key, "landed")

    def _look(self, session: Any, key: MarkKey) -> State | None:
        from cassandra.query import SimpleStatement  # noqa: PLC0415 - a client library, loaded on use

        serial = session.cluster.profile_manager.default.serial_consistency_level
        found = session.execute(SimpleStatement(self._sql(_SEEN), consistency_level=serial), tuple(key)).all()
        return State(*found[0]) if found else None

    def _insert(self, key: MarkKey, state: State) -> tuple[str, tuple[Any, ...]]:
        return self._sql(_FIRST), (*state, *key)

    def _change(self, key: MarkKey, before: State, after: State) -> tuple[str, tuple[Any, ...]]:
        return self._sql(_NEXT), (*after, *key, before.mark, before.write_time)

    def _sql(self, statement: str) -> str:
        return statement.format(marks=self._table)

    @property
    def _table(self) -> str:
        return f"{quoted(self.keyspace)}.{TABLE}"


def next_time(seen: State | None, floor: int = 0, ahead: int = 0) -> int:
    """Return a write time above all earlier ones, in microseconds: now, unless the clock is behind one of them.

    Args:
        seen: the row of the mark.
        floor: a write time that others have used.
        ahead: microseconds by which the servers' clock is ahead of this one.
    """
    given = max(floor, 0 if seen is None else seen.write_time or 0)
    return max(environment.now_ms() * 1000 + ahead, given + 1)


def parsed(state: State | None) -> OutputMark | None:
    """Return the mark in a row.

    Raises:
        MarkError: another program has written it.
    """
    return None if state is None or state.mark is None else OutputMark.parse(state.mark)


def _is_new(error: Exception) -> bool:
    """Whether a table is listed but cannot be used yet, because another run is creating it."""
    return isinstance(error, Refused) and f"table {TABLE} does not exist" in str(error)
