"""What happens to the golden ledgers before they are kept, and what a program of any version finds in them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from offsetkeeper.core import environment
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.store import Store

TOPICS = {"golden-clicks": 3, "golden-sales": 2}  # with their partitions
CLICKS, SALES = TOPICS
ORDERS = "orders"
ODD = ".50%off *[é] 🛒"  # each store that can't take a name as it is has a character here to escape
GROUPS = (ORDERS, ODD)
_FIRST_MS = 1_700_000_000_000
_IDS = {CLICKS: "c-l_IcKsQ2mYvT8wXzA0eg", SALES: "s-a_LeSbN4kRdW6uHyJ1fg"}


class FixedChance(environment.Environment):
    """Clock and random ids that are the same each time, and in each store: every module that asks counts by itself.

    One second lies between two looks at the clock.
    """

    def __init__(self) -> None:
        self._looks: Counter[str] = Counter()

    def now_ms(self) -> int:
        """See `Environment.now_ms`."""
        return _FIRST_MS + 1000 * (self._count("now") - 1)

    def token(self, size: int = 8) -> str:
        """See `Environment.token`."""
        return f"{self._count('token'):0{2 * size}x}"

    def _count(self, what: str) -> int:
        asks = f"{sys._getframe(3).f_globals['__name__']} {what}"  # above are this, its caller and `environment`
        self._looks[asks] += 1
        return self._looks[asks]


def fixed_chance() -> AbstractContextManager[object]:
    """Let clock and random ids be the same each time, but for what servers make up."""
    return environment.using(FixedChance())


def write(store: Store) -> None:
    """Write the golden ledgers: one in the middle of a batch, with every kind of change behind it, and an idle one."""
    first = Ledger(store, ORDERS, name="first run")
    first.acquire("the first start")
    first.place({TopicPartition(CLICKS, n): Position(10 * n, _IDS[CLICKS]) for n in range(3)}, "earliest")
    first.place({TopicPartition(SALES, 0): Position(0, _IDS[SALES]), TopicPartition(SALES, 1): Position(7)})
    for round_ in range(2):
        _begin(first, {(CLICKS, 0): 100, (CLICKS, 1): 50, (SALES, round_): 5})
        first.commit(first.batch(_pending(first)))
    _begin(first, {(CLICKS, 2): 1, (SALES, 0): 2}, lands_in=["table"])
    first.note_written(first.batch(_pending(first)), "audit")
    first.note_written(first.batch(_pending(first)), "table")
    first.commit(first.batch(_pending(first)))
    first.release("the first end")
    operator = Ledger(store, ORDERS, name="operator")
    operator.load()
    operator.rewind({TopicPartition(CLICKS, 0): Position(150, _IDS[CLICKS])}, "a wrong price: 3 €")
    second = Ledger(store, ORDERS, name="second run")
    second.acquire()
    second.commit(second.batch(_next(second, {(CLICKS, 0): 20})))
    _begin(second, {(CLICKS, 1): 9})
    second.abandon("other ranges")
    _begin(second, {(CLICKS, 0): 30, (CLICKS, 2): 4, (SALES, 1): 1_000_000_000_000}, lands_in=["audit", "table"])
    second.note_written(second.batch(_pending(second)), "audit")
    idle = Ledger(store, ODD, name="nightly")
    idle.acquire()
    idle.place({TopicPartition(SALES, 0): Position(3, _IDS[SALES])})
    _begin(idle, {(SALES, 0): 4})
    idle.commit(idle.batch(_pending(idle)))
    idle.release()


def facts(store: Store, group: str) -> dict[str, Any]:
    """Return what a group's ledger says, as JSON: what no version may lose or change."""
    return {"ledger": _ledger(store.load(group)), "history": [_entry(each) for each in store.history(group)]}


def _known(position: Position) -> list[Any]:
    """Return a position without what is unknown of it: before format 4 it had no cluster."""
    return list(position[:2] if position.cluster_id is None else position)


def positions(found: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Return the offsets in the `facts` of a group."""
    return {(topic, partition): offset for topic, partition, offset, *_ in found["ledger"]["positions"]}


def _begin(ledger: Ledger, sizes: Mapping[tuple[str, int], int], lands_in: Sequence[str] = ()) -> None:
    ledger.begin(ledger.batch(_next(ledger, sizes)), lands_in)


def _next(ledger: Ledger, sizes: Mapping[tuple[str, int], int]) -> tuple[OffsetRange, ...]:
    starts = {tp: ledger.snapshot.positions[TopicPartition(*tp)].offset for tp in sizes}
    return tuple(OffsetRange(*tp, starts[tp], starts[tp] + size) for tp, size in sizes.items())


def _pending(ledger: Ledger) -> tuple[OffsetRange, ...]:
    assert ledger.snapshot.pending is not None
    return ledger.snapshot.pending.ranges


def _ledger(snapshot: Snapshot) -> dict[str, Any]:
    owner, pending = snapshot.owner, snapshot.pending
    marked = set(pending.written) if pending else set()  # before format 4 `landed` did not have these
    known = {name: landed.sequence for name, landed in snapshot.landed.items() if name not in marked}
    landed = {"landed": known} if known else {}  # before format 3 there was none
    return {
        **landed,
        "version": snapshot.version,
        "owner": owner and [owner.id, owner.epoch, owner.name],
        "epoch": snapshot.epoch,
        "sequence": snapshot.sequence,
        "change_id": snapshot.change_id,
        "pending": pending
        and {"id": pending.id, "ranges": [list(r) for r in pending.ranges], "written": list(pending.written)},
        "positions": [[*tp, *_known(position)] for tp, position in sorted(snapshot.positions.items())],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    moves = {str(tp): [move.before and _known(move.before), _known(move.after)] for tp, move in entry.moves.items()}
    return {
        "version": entry.version,
        "event": entry.event,
        "change_id": entry.change_id,
        "at_ms": entry.at_ms,
        "actor": entry.actor,
        "reason": entry.reason,
        "epoch": entry.epoch,
        "sequence": entry.sequence,
        "ranges": [list(r) for r in entry.ranges],
        "moves": moves,
    }
