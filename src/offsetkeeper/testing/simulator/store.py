"""A store as a model: compare-and-set, and all that a real one may do between a request and its answer.

Requests fail before their effect, or after it, or take effect late; backups are restored. What each change that takes
effect must be is checked here, at the only place where it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.store import Ability
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.testing.model_store import check_change
from offsetkeeper.testing.simulator.schedule import GO, Flight, Schedule

AWAY = "the store is away"
LOST = "the request is lost"
ANSWER_LOST = "the answer is lost"
LATE = "the request is held, and no answer comes"
READ_FAULTS = (AWAY,)
WRITE_FAULTS = (AWAY, LOST, ANSWER_LOST, LATE)


@dataclass(frozen=True, slots=True)
class Past:
    """The content of a store for a group at one version, and its content before.

    Attributes:
        snapshot: the ledger.
        entry: the newest line of the history.
        rows: of the outputs in the store's own database, written by this change.
        before: the state that this change was made to.
        key: digest of the state and all before it.
    """

    snapshot: Snapshot
    entry: Entry | None = None
    rows: tuple[Row, ...] = ()
    before: Past | None = None
    key: int = 0

    def states(self) -> Iterator[Past]:
        """Return the states, newest first, without the empty one."""
        state: Past | None = self
        while state is not None and state.entry is not None:
            yield state
            state = state.before


Record = tuple[str, str, int, int]
"""Topic, id of the topic or of its cluster, partition and offset."""


class Row(NamedTuple):
    """A record in an output, and the batch as which it was written."""

    output: str
    batch: str
    record: Record


class Connection:
    """What an output in the store's own database writes on."""

    def __init__(self) -> None:
        self.rows: list[Row] = []


class ModelStore:
    """The ledger of one group, in memory, driven by a schedule.

    Args:
        schedule: chooses the faults.
        group: the consumer group.
        applied: called with each change that takes effect, and the owner id of the actor that sent it.
        kept: number of entries of the history that it keeps.
        address: for messages.

    Attributes:
        state: what is stored now.
    """

    abilities = frozenset(Ability)

    def __init__(
        self,
        schedule: Schedule,
        group: str,
        applied: Callable[[Change, str], None],
        kept: int = 1000,
        address: str = "model://store",
    ) -> None:
        self.address = address
        self.state = Past(Snapshot(group))
        self._schedule = schedule
        self._applied = applied
        self._kept = kept

    def load(self, group: str) -> Snapshot:  # noqa: ARG002 - the protocol's signature
        """See `Store.load`."""
        self._read("loads the ledger")
        found, actor = self.state.snapshot, self._schedule.current
        if actor is not None and actor.owner_id and (found.owner is None or found.owner.id != actor.owner_id):
            actor.fenced = True
        return found

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        self._write(f"stores {change.entry.event}", change, ())

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:  # noqa: ARG002 - the protocol's signature
        """See `Store.history`."""
        self._read("reads the history")
        return [state.entry for state in islice(self.state.states(), min(limit, self._kept)) if state.entry is not None]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return [self.state.snapshot.group] if self.state.entry else []

    def close(self) -> None:
        """See `Store.close`."""

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return self.address

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Connection]:
        """See `TransactionalStore.transaction`."""
        self._read("opens a transaction")
        self._check(change)
        connection = Connection()
        yield connection
        self._write(f"commits rows and {change.entry.event}", change, tuple(connection.rows))

    def has(self, change_id: str) -> bool:
        """Whether a change is stored, for checks."""
        return any(state.entry is not None and state.entry.change_id == change_id for state in self.state.states())

    def rows(self) -> list[Row]:
        """Return the rows of outputs in this database, for checks."""
        return [row for state in self.state.states() for row in state.rows]

    def _read(self, what: str) -> None:
        mode = self._schedule.point(what, READ_FAULTS)
        self._schedule.saw((mode, self.state.key))
        if mode != GO:
            raise StoreUnavailable(mode)

    def _write(self, what: str, change: Change, rows: tuple[Row, ...]) -> None:
        schedule = self._schedule
        mode = schedule.point(what, WRITE_FAULTS)
        schedule.saw((mode, self.state.key if mode in {GO, ANSWER_LOST} else 0))
        actor = schedule.current
        owner_id = "" if actor is None else actor.owner_id or change.after.change_id
        if mode == AWAY:
            raise StoreUnavailable(mode)
        if mode == LATE:
            key = hash((change.before.change_id, change.after.change_id, rows))
            schedule.flights.append(Flight(what, lambda: self._land(change, rows, owner_id), key))
        elif mode in {GO, ANSWER_LOST}:
            self._check(change)
            self._make(change, rows, owner_id)
        if mode != GO:
            raise OutcomeUnknown(mode)

    def _land(self, change: Change, rows: tuple[Row, ...], owner_id: str) -> None:
        try:
            self._check(change)
        except VersionConflict:
            return
        self._make(change, rows, owner_id)

    def _check(self, change: Change) -> None:
        check_change(change, self.state.snapshot, self.address)

    def _make(self, change: Change, rows: tuple[Row, ...], owner_id: str) -> None:
        before = self.state
        key = hash((before.key, change.after.change_id, change.entry.event, change.entry.ranges, rows))
        self.state = Past(change.after, change.entry, rows, before, key)
        self._applied(change, owner_id)
