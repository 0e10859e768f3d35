"""Hypothesis makes the same calls of a real store and of its model: each answer is the same, or the same error."""
# ruff: noqa: S101 - it is made of assertions

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from offsetkeeper.core.model import Change, Move, Snapshot
from offsetkeeper.core.store import Ability, Store, TransactionalStore
from offsetkeeper.errors import OffsetkeeperError
from offsetkeeper.testing import strategies
from offsetkeeper.testing.decisions import decisions
from offsetkeeper.testing.model_store import ModelLedgerStore

T = TypeVar("T")
STORES = 3  # of which two write; the third reads, and so sees with other eyes
_STEPS = 25
_LONGEST = 240  # bytes of a group's name, less what tells the groups of one run from those of another
_number = itertools.count()
_writers, _readers = st.integers(0, STORES - 2), st.integers(0, STORES - 1)
_numbers = st.integers(0, 999)  # of one of so many, counted from the newest


@dataclass(frozen=True)
class Pair:
    """A real store and its model.

    Attributes:
        stores: `STORES` of them on one medium, each with connections of its own.
        model: of them all; like the medium it is not new in each run.
        kept: history entries of each group.
        rows_are_positions: see `Medium`; only then another program can move a position under a ledger.
    """

    stores: Sequence[Store]
    model: ModelLedgerStore
    kept: int
    rows_are_positions: bool


class CallMachine(RuleBasedStateMachine):
    """Changes of several groups by two writers: such as must be made, and such as must be refused."""

    pair: Pair

    @initialize(
        names=st.lists(strategies.groups, min_size=1, max_size=3, unique_by=lambda name: name[:_LONGEST]),
        topics=st.tuples(strategies.topics, strategies.topics),
    )
    def begin(self, names: list[str], topics: tuple[str, str]) -> None:
        """Take groups that were never used before."""
        number = next(_number)
        self._topics = topics
        self._known = {name: [Snapshot(name)] for name in (f"{name[:_LONGEST]}~{number}" for name in names)}
        self._made: list[Change] = []

    @rule(number=_numbers, writer=_writers, count=st.integers(1, 8), data=st.data())
    def change(self, number: int, writer: int, count: int, data: st.DataObject) -> None:
        """Change what is stored, a few times."""
        group = self._group(number)
        for _ in range(count):
            self._applies(data.draw(decisions(self._known[group][-1], self._topics)), writer)

    @rule(number=_numbers, back=_numbers, writer=_writers, data=st.data())
    def change_what_was_stored(self, number: int, back: int, writer: int, data: st.DataObject) -> None:
        """An owner who saw an older ledger goes on; where there is none but the newest, it is in time."""
        known = self._known[self._group(number)]
        self._applies(data.draw(decisions(_of(known, back), self._topics)), writer)

    @rule(number=_numbers, ahead=st.integers(1, 3), writer=_writers, data=st.data())
    def change_what_is_not_stored_yet(self, number: int, ahead: int, writer: int, data: st.DataObject) -> None:
        """The store is a backup that was restored, and somebody saw more."""
        newest = self._known[self._group(number)][-1]
        self._applies(
            data.draw(decisions(replace(newest, version=newest.version + ahead), self._topics)), writer, refused=True
        )

    @precondition(lambda self: self._made)
    @rule(back=_numbers, other=strategies.words, writer=_writers, data=st.data())
    def change_another_ledger_of_the_version(self, back: int, other: str, writer: int, data: st.DataObject) -> None:
        """That of another store: its id is like the one stored, but for the case of letters, or a part of it."""
        newest = self._newest(back)
        mine = newest.change_id
        near = st.sampled_from([mine.upper(), mine[1:], mine[:-1], f"{mine}0", "_" * len(mine), "%", "", other])
        change_id = data.draw(near.filter(lambda drawn: drawn != mine))
        self._applies(data.draw(decisions(replace(newest, change_id=change_id), self._topics)), writer, refused=True)

    @precondition(lambda self: self._made and self.pair.rows_are_positions)
    @rule(back=_numbers, which=_numbers, writer=_writers, data=st.data())
    def change_positions_that_another_program_moved(
        self, back: int, which: int, writer: int, data: st.DataObject
    ) -> None:
        """The ledger is the one stored, but of one row the change has seen another offset, or none, or one too much.

        If the ledger is a document, no store is asked: its change id identifies the whole content.
        """
        change = data.draw(decisions(self._newest(back), self._topics, moving=True))
        if change.moves:
            tp = _of(sorted(change.moves), which)
            stored, after = change.moves[tp].before, change.moves[tp].after
            seen = data.draw(
                (st.none() | strategies.positions).filter(
                    lambda drawn: (drawn and drawn.offset) != (stored and stored.offset)
                )
            )
            others = {each: at for each, at in change.before.positions.items() if each != tp}
            before = replace(change.before, positions={**others, **({tp: seen} if seen else {})})
            moves = {**change.moves, tp: Move(seen, after)}
            self._applies(replace(change, before=before, moves=moves), writer, refused=True)

    @precondition(lambda self: self._made)
    @rule(back=_numbers, writer=_writers)
    def change_again(self, back: int, writer: int) -> None:
        """A change that was made is sent once more."""
        self._applies(_of(self._made, back), writer, refused=True)

    @rule(number=_numbers, reader=_readers)
    def load(self, number: int, reader: int) -> None:
        """Look at one ledger."""
        group = self._group(number)
        assert self._same(lambda store: store.load(group), reader) == self._known[group][-1]

    @precondition(lambda self: Ability.HISTORY in self.pair.stores[0].abilities)
    @rule(number=_numbers, reader=_readers, more=st.integers(-2, 2) | st.none(), limit=st.integers(0, 3) | st.none())
    def history(self, number: int, reader: int, more: int | None, limit: int | None) -> None:
        """Read the newest entries: a few, about as many as are kept, or all."""
        group = self._group(number)
        most = limit if limit is not None else 1000 if more is None else self.pair.kept + more
        self._same(lambda store: list(store.history(group, most)), reader)

    @rule(reader=_readers)
    def groups(self, reader: int) -> None:
        """Read the names of all groups, those of earlier runs too."""
        self._same(lambda store: list(store.groups()), reader)

    def teardown(self) -> None:
        """Look at all that is there."""
        for number in range(len(getattr(self, "_known", ()))):
            self.load(number, STORES - 1)
            if Ability.HISTORY in self.pair.stores[0].abilities:
                self.history(number, STORES - 1, None, None)
        self.groups(STORES - 1)

    def _group(self, number: int) -> str:
        return _of(list(self._known), number)

    def _newest(self, back: int) -> Snapshot:
        """Return the newest ledger of one of the groups that have one."""
        return self._known[_of(self._made, back).after.group][-1]

    def _applies(self, change: Change, writer: int, *, refused: bool = False) -> None:
        """Apply a change; every other writer does so in a transaction, where the store has some."""

        def apply(store: Store) -> None:
            if writer and isinstance(store, TransactionalStore):
                with store.transaction(change):
                    pass
            else:
                store.apply(change)

        made = self._same(apply, writer) is None
        assert not (made and refused)
        if made:
            self._known[change.after.group].append(change.after)
            self._made.append(change)

    def _same(self, call: Callable[[Store], object], number: int) -> object:
        """Call one of the stores and the model; return the answer, or the type of the error, of both."""
        told = _answer(call, self.pair.model)
        assert _answer(call, self.pair.stores[number]) == told
        return told


def run_calls(pair: Pair, examples: int, *, shrink: bool) -> None:
    """Let hypothesis try so many runs of up to 25 steps.

    Args:
        pair: of stores and model.
        examples: number of runs.
        shrink: whether a run that fails is made as short as can be, which takes up to five minutes.

    Raises:
        AssertionError: store and model answer differently; the message has the run that shows it.
    """

    class Called(CallMachine):
        pass

    Called.pair = pair
    phases = [Phase.reuse, Phase.generate, *([Phase.shrink] if shrink else [])]
    profile = settings(max_examples=examples, stateful_step_count=_STEPS, deadline=None, phases=phases)
    run_state_machine_as_test(Called, settings=profile)


def _answer(call: Callable[[Store], object], store: Store) -> object:
    try:
        return call(store)
    except OffsetkeeperError as error:
        return type(error)


def _of(those: Sequence[T], number: int) -> T:
    """Return one, counted from the newest, and around again."""
    return those[-1 - number % len(those)]
