"""Clients that ask one store at the same time, in threads and in another process, and note what they are answered.

A history is all that is asked of one group, and the group is a register whose value is the id of its last change.
"""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

from offsetkeeper.core import rules
from offsetkeeper.core.environment import wait
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Owner, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.store import Ability, Store, TransactionalStore
from offsetkeeper.errors import OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.testing.linearizable import Answer, Call, linearized, told
from offsetkeeper.testing.rivals import Opener, rival

PARTITIONS = (TopicPartition("rivals", 0), TopicPartition("rivals", 1))
THREADS = 2  # of each process, which share a store
_SHORT, _LONG, _LONG_EVERY = 6, 40, 8  # calls of a client; long ones outlive what stores prune and write again
_PATIENCE = 5  # tries for each call that a client is to make, as the store may be away
_AWAY_S = 0.05
_LIMIT_S = 240.0
Histories = list[list[Call]]


class Plan(NamedTuple):
    """What the clients do.

    Attributes:
        seed: what they choose follows from it, but for the answers.
        histories: how many, one after the other.
        processes: in how many processes they are, this one among them.
    """

    seed: str
    histories: int
    processes: int = 2

    def group(self, number: int) -> str:
        """Return the group of a history."""
        return f"{self.seed}-{number}"


class _Client:
    """One client of a group: it notes each call that may have had an effect, or that shows one."""

    def __init__(self, store: Store, group: str, name: str, chance: random.Random) -> None:
        self.calls: list[Call] = []
        self._store, self._name, self._chance = store, name, chance
        self._seen = Snapshot(group)
        self._last: Change | None = None  # the change that it has tried last
        self._made = 0

    def step(self) -> None:
        """Read, or change what was seen last, which may be stale; or send the last change again."""
        if self._chance.random() < 0.35:  # noqa: PLR2004 - about as often as a run reads
            self._read()
        elif self._last is not None and self._chance.random() < 0.15:  # noqa: PLR2004 - as after a lost reply
            self._change(self._last)
        else:
            self._made += 1
            offset = self._chance.randrange(1_000_000) if self._chance.random() < 0.7 else None  # noqa: PLR2004 - mostly
            self._change(change_of(self._seen, f"{self._name}.{self._made}", offset))

    def _read(self) -> None:
        sent = time.monotonic()
        try:
            found = self._store.load(self._seen.group)
        except StoreUnavailable:
            wait(_AWAY_S)
            return
        self._seen = found
        self._note(sent, Answer.DONE, value_of(found))

    def _change(self, change: Change) -> None:
        self._last, sent = change, time.monotonic()
        try:
            if isinstance(self._store, TransactionalStore) and self._chance.random() < 0.25:  # noqa: PLR2004 - sometimes
                with self._store.transaction(change):
                    pass
            else:
                self._store.apply(change)
        except StoreUnavailable:
            wait(_AWAY_S)
            return
        except OutcomeUnknown:
            answer = Answer.UNKNOWN
        except VersionConflict:
            answer = Answer.REFUSED
        else:
            answer, self._seen = Answer.DONE, change.after
        self._note(sent, answer, value_of(change.after), value_of(change.before))
        if answer is not Answer.DONE:
            self._read()

    def _note(self, sent: float, answer: Answer, value: str, expected: str | None = None) -> None:
        answered = inf if answer is Answer.UNKNOWN else time.monotonic()
        self.calls.append(Call(self._name, sent, answered, answer, value, expected))


def change_of(before: Snapshot, name: str, offset: int | None) -> Change:
    """Return a change after which all positions are at one offset; None changes the owner only, and moves no row.

    Where rows are moved, a store may find by them alone that another change was faster.
    """
    event: rules.Event = rules.Acquire(Owner(name, before.epoch + 1))
    if offset is not None:
        event = rules.Rewind(dict.fromkeys(PARTITIONS, Position(offset)), force=True)
    at = _offsets(before)[:1] if offset is None else [offset]
    return rules.decide(before, event, rules.Author(name, name, 0, f"{name}@{at}"))


def value_of(snapshot: Snapshot) -> str:
    """Return the id of the last change; with the positions, if these are not those that the change left."""
    if not snapshot.version:
        return ""
    offsets = _offsets(snapshot)
    fits = snapshot.change_id.partition("@")[2] == f"{offsets[:1]}" and offsets == offsets[:1] * len(offsets)
    return snapshot.change_id if fits and len(offsets) in {0, len(PARTITIONS)} else f"{snapshot.change_id}: {offsets}"


def _offsets(snapshot: Snapshot) -> list[int]:
    return [at.offset for _, at in sorted(snapshot.positions.items())]


def clients(store: Store, plan: Plan, process: int, start: Barrier) -> Histories:
    """Run the clients of one process; return all calls of each history."""

    def run(client: int) -> Histories:
        found = list[list[Call]]()
        for number in range(plan.histories):
            name = f"{process}{client}"
            chance, shared = random.Random(f"{plan.seed} {name} {number}"), random.Random(f"{plan.seed} {number}")  # noqa: S311 - no secret
            asks = _Client(store, plan.group(number), name, chance)
            steps = _SHORT if shared.randrange(_LONG_EVERY) else _LONG
            start.wait(_LIMIT_S)
            for _ in range(steps * _PATIENCE):
                if len(asks.calls) < steps:
                    asks.step()
            found.append(asks.calls)
        return found

    def surely(client: int) -> Histories:
        try:
            return run(client)
        except BaseException:
            start.abort()
            raise

    with ThreadPoolExecutor(THREADS) as pool:
        every = list(pool.map(surely, range(THREADS)))
    return _joined(every)


def _joined(parts: Sequence[Histories]) -> Histories:
    """Return all calls of each history, from what several clients or processes have noted of it."""
    return [[*chain.from_iterable(of_history)] for of_history in zip(*parts, strict=True)]


def process_of_clients(pipe: Connection, opener: Opener, url: str, plan: Plan, start: Barrier) -> None:
    """Run clients in a process of their own."""
    with closing(opener(url)) as store:
        pipe.send(clients(store, plan, 1, start))


def run_clients(opener: Opener, url: str, plan: Plan) -> Histories:
    """Let all clients work; return all calls of each history."""
    start = multiprocessing.get_context("spawn").Barrier(THREADS * plan.processes)
    with ExitStack() as opened:
        others = [
            opened.enter_context(rival(process_of_clients, opener, url, plan, start)) for _ in range(plan.processes - 1)
        ]
        store = opened.enter_context(closing(opener(url)))
        found = [clients(store, plan, 0, start), *(each.hear() for each in others)]
    return _joined(found)


def violations(store: Store, plan: Plan, histories: Histories) -> Iterator[str]:
    """Read each group once more, and yield what no register could have answered."""
    for number, calls in enumerate(histories):
        ledger = Ledger(store, plan.group(number), retry_timeout_s=_LIMIT_S)
        sent = time.monotonic()
        last = Call("last", sent, sent, Answer.DONE, value_of(ledger.load()))
        if linearized([*calls, last]) is None:
            yield f"no order explains the history of {ledger.group}:\n{told([*calls, last])}"
        elif (Ability.HISTORY in store.abilities) and (wrong := _wrong_entries(ledger, calls)):
            yield f"{wrong} in the history of {ledger.group}:\n{told([*calls, last])}"


def _wrong_entries(ledger: Ledger, calls: Sequence[Call]) -> str:
    """Return what of the entries is not the chain of changes that the clients have made; empty if they are."""
    changes = [call for call in calls if call.expected is not None and call.answer is not Answer.REFUSED]
    steps = {(call.expected, call.value) for call in changes}
    entries = ledger.history()
    found = [entry.change_id for entry in entries] + [""] * (not entries or entries[-1].version == 1)
    numbers = [entry.version for entry in entries]
    if numbers != [*range(ledger.snapshot.version, ledger.snapshot.version - len(entries), -1)]:
        return f"entries of versions {numbers}, at version {ledger.snapshot.version}"
    if wrong := set(zip(found[1:], found, strict=False)) - steps:
        return f"steps that were not made, {wrong},"
    done = {call.value for call in changes if call.answer is Answer.DONE}
    if found[-1] == "" and (lost := done - set(found)):
        return f"no entry of {lost}"
    return ""


def counted(histories: Histories) -> Counter[str]:
    """Return how many calls got which answer."""
    return Counter(call.answer for calls in histories for call in calls)


@contextmanager
def disturbing(acts: Sequence[Callable[[], object]], seed: str, calm_s: float) -> Iterator[Counter[str]]:
    """Meanwhile, do one of these after the other, by chance; yield how often each was done.

    Up to `calm_s` seconds pass between two of them.

    An act ends what it has begun, so that all is well again at the end.
    """
    done, chance = Counter[str](), random.Random(seed)  # noqa: S311 - no secret
    over = threading.Event()

    def disturb() -> None:
        while not over.wait(chance.random() * calm_s):
            act = chance.choice(acts)
            act()
            done[act.__name__] += 1

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(disturb)
        try:
            yield done
        finally:
            over.set()
        working.result(_LIMIT_S)
