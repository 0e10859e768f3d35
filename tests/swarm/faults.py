"""Requests of a run that fail, once each, and a run that ends in the middle: at a call, before or after its effect.

A run that was cut off may come to its end only by errors: whatever it asks of store or output fails, as nothing of a
dead process works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, SinkError
from offsetkeeper.sinks import Joiner, Lander, Writer
from offsetkeeper.testing.faults import Fault as StoreFault
from offsetkeeper.testing.faults import FaultyStore, faulty

T = TypeVar("T")


class Died(BaseException):
    """Ends a run, as the crash of its process does."""


class DiedInQuery(Exception):
    """The same where Spark calls."""


class UserError(Exception):
    """The user's function fails."""


class Fault(NamedTuple):
    """What goes wrong.

    Attributes:
        where: store, output or function.
        how: of `HOWS`.
        nth: at which call, from 1 on.
    """

    where: str
    how: str
    nth: int

    def __str__(self) -> str:
        return f"call {self.nth} of the {self.where}: {self.how}"


HOWS = {
    "store": ("refused", "request lost", "reply lost", "dies before", "dies after"),
    "output": ("refused", "request lost", "reply lost", "dies before", "dies after"),
    "function": ("refused", "dies before"),
}
_OF_STORE = {
    "refused": StoreFault.REFUSED,
    "request lost": StoreFault.REQUEST_LOST,
    "reply lost": StoreFault.REPLY_LOST,
}


@dataclass
class Trip:
    """Counts the calls of one run.

    Attributes:
        faults: that are still to come.
        died: what a dead run raises.
        dead: whether it is.
        fired: the faults that have come.
        calls: how many there were, of each kind.
        once: what else happens at a call of the function, by its number.
    """

    faults: list[Fault] = field(default_factory=list)
    died: type[BaseException] = Died
    dead: bool = False
    fired: list[Fault] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    once: dict[int, Callable[[], object]] = field(default_factory=dict)

    def at(self, where: str) -> str:
        """Return how this call is to fail, or an empty text."""
        if self.dead:
            raise self.died
        self.calls[where] = self.calls.get(where, 0) + 1
        for fault in self.faults:
            if (fault.where, fault.nth) == (where, self.calls[where]):
                self.faults.remove(fault)
                self.fired.append(fault)
                if fault.how == "dies before":
                    self.die()
                return fault.how
        return ""

    def after(self, how: str) -> None:
        """End a call that had its effect."""
        if how == "dies after":
            self.die()

    def die(self) -> None:
        """End the run."""
        self.dead = True
        raise self.died


class TrippedStore:
    """A store whose calls fail as a trip says."""

    def __init__(self, store: FaultyStore, trip: Trip) -> None:
        self.address, self.abilities = store.address, store.abilities
        self._store, self._trip = store, trip

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        return self._call(lambda: self._store.load(group))

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        self._call(lambda: self._store.apply(change))

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        return self._call(lambda: self._store.history(group, limit))

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return self._store.groups()

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    def _call(self, call: Callable[[], T]) -> T:
        how = self._trip.at("store")
        self._store.arm(_OF_STORE.get(how))
        answer = call()
        self._trip.after(how)
        return answer


class TrippedTransactionalStore(TrippedStore):
    """The same with transactions."""

    _store: Any

    def identity(self) -> str:
        """See `TransactionalStore.identity`."""
        return str(self._call(self._store.identity))

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """See `TransactionalStore.transaction`."""
        how = self._trip.at("store")
        self._store.arm(_OF_STORE.get(how))
        with self._store.transaction(change) as connection:
            yield connection
        self._trip.after(how)


def tripped_store(store: Store, trip: Trip) -> Any:
    """Return a store that fails as a trip says."""
    kind = TrippedTransactionalStore if isinstance(store, TransactionalStore) else TrippedStore
    return kind(faulty(store), trip)


def trip_sink(sink: Any, trip: Trip) -> Any:
    """Let a sink, or a function, fail as a trip says."""
    if not hasattr(sink, "prepare"):
        return lambda frame, batch: _called(trip, lambda: sink(frame, batch))
    kind: Any = type(sink)

    class Tripped(kind):  # type: ignore[misc]  # a sink that knows its reader is a copy of its own class
        def prepare(self, *arguments: Any) -> Any:
            """See `Sink.prepare`."""
            return _tripped(super().prepare(*arguments), trip)

    Tripped.__name__ = kind.__name__
    sink.__class__ = Tripped
    return sink


def _tripped(way: Any, trip: Trip) -> Any:
    if isinstance(way, Lander):
        return replace(way, land=lambda *given: _called(trip, lambda: way.land(*given)))
    if isinstance(way, Writer):
        return replace(way, write=lambda *given: _called(trip, lambda: way.write(*given)))
    return _joins(way, trip)


def _joins(way: Joiner, trip: Trip) -> Joiner:
    def stage(*given: Any) -> Any:
        finish = way.stage(*given)
        return lambda connection: _called(trip, lambda: finish(connection), joined=True)

    return replace(way, stage=stage)


def _called(trip: Trip, call: Callable[[], Any], *, joined: bool = False) -> Any:
    how = trip.at("output")
    if how == "refused":
        raise SinkError("a fault was armed: the output refuses")
    if how == "request lost" and not joined:
        raise OutcomeUnknown("a fault was armed: the request to the output was lost")
    answer = call()
    if how == "reply lost" and not joined:
        raise OutcomeUnknown("a fault was armed: the reply of the output was lost")
    trip.after(how)
    return answer
