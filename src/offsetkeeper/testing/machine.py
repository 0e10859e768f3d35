"""Hypothesis plays three owners over one store against a simple model: they crash, are fenced, and lose replies."""
# ruff: noqa: S101 - it is made of assertions

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Ability, Store
from offsetkeeper.errors import Fenced
from offsetkeeper.testing.clock import no_waiting
from offsetkeeper.testing.faults import Fault, faulty, transact

PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
_number = itertools.count()
_owners = st.integers(0, 2)
_partitions = st.sampled_from(PARTITIONS)
_sizes = st.tuples(*[st.integers(0, 3)] * len(PARTITIONS)).filter(any)
_faults = st.none() | st.sampled_from(Fault)


@dataclass(frozen=True)
class World:
    """One store and the medium below it.

    Attributes:
        store: under test.
        read_positions: reads a group's offsets as another program does.
        write_row: writes a row on a connection that a transaction lends; None without that ability.
        read_rows: returns all rows.
    """

    store: Store
    read_positions: Callable[[str], Mapping[TopicPartition, int]]
    write_row: Callable[[Any, str], object] | None = None
    read_rows: Callable[[], Sequence[str]] = list


@dataclass
class Model:
    """What must be stored."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    holder: Ledger | None = None
    version: int = 0
    generation: int = 0
    pending: tuple[OffsetRange, ...] | None = None
    committed: list[tuple[int, OffsetRange]] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)


class Crash(Exception):
    """Ends a block before its time."""


class LedgerMachine(RuleBasedStateMachine):
    """Three owners, each a ledger that may be gone at any time; whoever does not hold the group must be fenced."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self._store = faulty(self.world.store)
        self._group = f"machine-{next(_number)}"
        self._model = Model()
        self._owners: list[Ledger | None] = [None, None, None]

    @rule(owner=_owners, fault=_faults, nth=st.integers(1, 2))
    def acquire(self, owner: int, fault: Fault | None, nth: int) -> None:
        """A new run takes the group. Another that held this place has crashed."""
        ledger = Ledger(self._store, self._group, name=f"owner {owner}")
        self._store.arm(fault, nth)
        ledger.acquire()
        self._store.arm(None)
        self._owners[owner] = self._model.holder = ledger
        self._model.version += 1

    @rule(owner=_owners)
    def crash(self, owner: int) -> None:
        """A run is gone without a word; the store still holds the group for it."""
        self._owners[owner] = None

    @rule(owner=_owners, tp=_partitions, offset=st.integers(0, 30), fault=_faults)
    def place(self, owner: int, tp: TopicPartition, offset: int, fault: Fault | None) -> None:
        """Set a position that no pending batch needs."""
        ledger = self._owners[owner]
        if ledger is None or tp in _partitions_of(ledger.snapshot.pending):
            return
        if self._does(ledger, lambda it: it.place({tp: Position(offset)}), fault):
            model = self._model
            model.generation += model.positions.get(tp, offset) != offset
            model.positions[tp] = offset

    @rule(owner=_owners, sizes=_sizes, fault=_faults)
    def begin(self, owner: int, sizes: tuple[int, ...], fault: Fault | None) -> None:
        """Record an intent."""
        ledger = self._owners[owner]
        if ledger is None or ledger.snapshot.pending or not (batch := _next(ledger, sizes)).ranges:
            return
        if self._does(ledger, lambda it: it.begin(batch), fault):
            self._model.pending = batch.ranges

    @rule(owner=_owners, sizes=_sizes, fault=_faults)
    def commit(self, owner: int, sizes: tuple[int, ...], fault: Fault | None) -> None:
        """Commit the pending batch, or any other if there is none."""
        ledger = self._owners[owner]
        if ledger is None or not (batch := _next(ledger, sizes)).ranges:
            return
        if self._does(ledger, lambda it: it.commit(batch), fault):
            self._committed(batch)

    @rule(owner=_owners, sizes=_sizes, fault=_faults, fails=st.booleans())
    def transact(self, owner: int, sizes: tuple[int, ...], fault: Fault | None, *, fails: bool) -> None:
        """Commit a batch and a row together, or fail before the end."""
        ledger, write = self._owners[owner], self.world.write_row
        if ledger is None or write is None or not (batch := _next(ledger, sizes)).ranges:
            return
        row = f"{self._group} {self._model.version}"
        if fails:
            self._does(ledger, lambda it: _fail(it, batch, lambda connection: write(connection, row)), fault, steps=0)
        elif self._does(ledger, lambda it: transact(it, batch, lambda connection: write(connection, row)), fault):
            self._committed(batch)
            self._model.rows.append(row)

    @rule(owner=_owners, fault=_faults)
    def abandon(self, owner: int, fault: Fault | None) -> None:
        """Drop the intent."""
        ledger = self._owners[owner]
        if ledger is None or ledger.snapshot.pending is None:
            return
        if self._does(ledger, lambda it: it.abandon("other ranges"), fault):
            self._model.pending = None

    @rule(owner=_owners, fault=_faults)
    def release(self, owner: int, fault: Fault | None) -> None:
        """Give the group back, and end."""
        ledger = self._owners[owner]
        if ledger is None:
            return
        if self._does(ledger, lambda it: it.release(), fault):
            self._model.holder = None
        self._owners[owner] = None

    @rule(tp=_partitions, offset=st.integers(0, 30), fault=_faults)
    def rewind(self, tp: TopicPartition, offset: int, fault: Fault | None) -> None:
        """An operator sets a position; whoever holds the group is fenced, and an intent that it moves is dropped."""
        operator = Ledger(self._store, self._group, name="operator")
        operator.load()
        self._store.arm(fault)
        operator.rewind({tp: Position(offset)}, "again", force=True)
        self._store.arm(None)
        model = self._model
        model.holder = None
        if model.positions.get(tp) != offset and any(r.topic_partition == tp for r in model.pending or ()):
            model.pending = None
        model.generation += 1
        model.version += 1
        model.positions[tp] = offset

    @invariant()
    def the_store_holds_the_model(self) -> None:
        """Seen by the store and by another program."""
        found, model = self.world.store.load(self._group), self._model
        assert {tp: position.offset for tp, position in found.positions.items()} == model.positions
        assert self.world.read_positions(self._group) == model.positions
        assert (found.version, found.generation) == (model.version, model.generation)
        assert (found.pending and found.pending.ranges) == model.pending
        assert found.owner == (model.holder and model.holder.snapshot.owner)

    @invariant()
    def the_history_tells_every_commit_once(self) -> None:
        """No version is missing, and in each generation the ranges of a partition follow one another."""
        if Ability.HISTORY not in self.world.store.abilities:
            return
        entries = list(reversed(self.world.store.history(self._group, 1000)))
        assert [entry.version for entry in entries] == list(range(1, self._model.version + 1))
        told = [(entry.generation, r) for entry in entries if entry.event == "commit" for r in entry.ranges]
        assert told == self._model.committed
        reached: dict[tuple[int, TopicPartition], int] = {}
        for generation, r in told:
            assert reached.get((generation, r.topic_partition), r.start) == r.start
            reached[generation, r.topic_partition] = r.end

    def teardown(self) -> None:
        """Check the rows: each batch's exactly once."""
        rows = [row for row in self.world.read_rows() if row.startswith(f"{self._group} ")]
        assert sorted(rows) == sorted(self._model.rows)

    def _does(self, ledger: Ledger, act: Callable[[Ledger], object], fault: Fault | None, *, steps: int = 1) -> bool:
        """Act as this owner; return whether it could. Whoever does not hold the group must be fenced, and ends."""
        holds = ledger is self._model.holder
        self._store.arm(fault)
        if holds:
            act(ledger)
            self._model.version += steps
        else:
            with pytest.raises(Fenced):
                act(ledger)
            self._owners = [None if each is ledger else each for each in self._owners]
        self._store.arm(None)
        return holds

    def _committed(self, batch: Batch) -> None:
        self._model.pending = None
        self._model.committed += [(self._model.generation, r) for r in batch.ranges]
        self._model.positions |= {r.topic_partition: r.end for r in batch.ranges}


def run_machine(world: World, examples: int) -> None:
    """Let hypothesis try so many runs of up to 50 steps.

    Raises:
        AssertionError: the store and the model differ; the message has the shortest run that shows it.
    """

    class Played(LedgerMachine):
        pass

    Played.world = world
    profile = settings(max_examples=examples, stateful_step_count=50, deadline=None)
    with no_waiting():
        run_state_machine_as_test(Played, settings=profile)


def _partitions_of(batch: Batch | None) -> set[TopicPartition]:
    return batch.partitions if batch else set()


def _next(ledger: Ledger, sizes: tuple[int, ...]) -> Batch:
    """Return the pending batch, or one with so many offsets of each partition that has a position."""
    snapshot = ledger.snapshot
    if snapshot.pending:
        return snapshot.pending
    starts = {tp: snapshot.positions[tp].offset for tp in PARTITIONS if tp in snapshot.positions}
    wanted = [(tp, size) for tp, size in zip(PARTITIONS, sizes, strict=True) if size and tp in starts]
    return ledger.batch([OffsetRange(*tp, starts[tp], starts[tp] + size) for tp, size in wanted])


def _fail(ledger: Ledger, batch: Batch, write: Callable[[Any], object]) -> None:
    def write_and_fail(connection: Any) -> None:
        write(connection)
        raise Crash

    with suppress(Crash):
        transact(ledger, batch, write_and_fail)
