"""Two rivals, a store that loses what it likes, and the history as the witness of what was really done.

The store is wrapped for this, as no server loses and delays requests by the draw.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.clock import no_waiting

PARTITIONS = [TopicPartition("t", p) for p in range(2)]
# Of the writes of one step, each of which is tried three times.
FAULTS = [
    [],
    [],
    ["away"] * 3,
    ["delayed"] * 3,
    ["delayed", "away", "away"],
    ["delayed", "request lost", "arrives"],
    ["reply lost"],
    ["request lost", "reply lost"],
    ["arrives"],
]


class Losing(MemoryStore):
    """A store in memory whose writes fail as drawn; what is delayed arrives with a later write, or never."""

    def __init__(self) -> None:
        super().__init__(f"memory://{secrets.token_hex(8)}?history=1000000")
        self.faults: list[str] = []
        self.under_way: list[Change] = []
        self.sent: set[str] = set()

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise StoreUnavailable("the store is away")
        self.sent.add(change.after.change_id)
        if fault == "delayed":
            self.under_way.append(change)
        if fault == "arrives":
            self.land()
        if fault not in {"delayed", "request lost"}:
            super().apply(change)
        if fault in {"delayed", "request lost", "reply lost"}:
            raise OutcomeUnknown("the connection broke")

    def land(self) -> None:
        """Carry out what is still under way."""
        while self.under_way:
            try:
                super().apply(self.under_way.pop(0))
            except VersionConflict:
                continue


class Step(NamedTuple):
    """What one of the two does next, and what happens to its writes."""

    who: int
    act: str
    size: int
    faults: list[str]


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 0, 1]),
        st.sampled_from(
            ["acquire", "begin", "commit", "commit", "commit", "mark", "rewind", "load", "abandon", "release"]
        ),
        st.integers(1, 3),
        st.sampled_from(FAULTS),
    ),
    max_size=15,
)


def do(ledger: Ledger, step: Step) -> None:
    positions = ledger.snapshot.positions
    ranges = [OffsetRange(*tp, at.offset, at.offset + step.size) for tp, at in positions.items()]
    batch = ledger.snapshot.pending or ledger.batch(ranges)
    acts: dict[str, Callable[[], object]] = {
        "acquire": ledger.acquire,
        "begin": lambda: ledger.begin(batch),
        "commit": lambda: ledger.commit(batch),
        "mark": lambda: ledger.note_written(batch, f"output {step.size}"),
        "rewind": lambda: ledger.rewind({PARTITIONS[0]: Position(step.size)}, "again", force=step.size > 1),
        "load": ledger.load,
        "abandon": lambda: ledger.abandon("no more"),
        "release": ledger.release,
    }
    acts[step.act]()


THREE_TRIES_S = 0.12  # by the ledger's pauses, the third try begins after it


@pytest.fixture(autouse=True)
def _without_waiting() -> Iterator[None]:
    """No time between the tries."""
    with no_waiting():
        yield


@settings(max_examples=300)
@given(steps)
def test_whoever_is_told_anything_can_believe_it(drawn: list[Step]) -> None:
    """Success is in the history, once; what surely failed is not, and never comes; only what is unknown may be both."""
    store = Losing()
    ledgers = [Ledger(store, "g", retry_timeout_s=THREE_TRIES_S) for _ in range(2)]
    ledgers[0].acquire()
    ledgers[0].place({tp: Position(0) for tp in PARTITIONS})
    done, failed, unknown = set[str](), set[str](), set[str]()
    for step in drawn:
        store.faults, store.sent = list(step.faults), set()
        try:
            do(ledgers[step.who], step)
        except OutcomeUnknown:
            unknown |= store.sent
        except OffsetkeeperError:
            failed |= store.sent
        else:
            done |= {ledgers[step.who].snapshot.change_id} & store.sent
    store.land()
    history = [entry.change_id for entry in store.history("g", 10_000)]
    assert len(history) == len(set(history)) == store.load("g").version
    assert done <= set(history)
    assert not (failed - unknown - done) & set(history)


@settings(max_examples=300)
@given(steps)
def test_the_positions_are_what_the_history_adds_up_to(drawn: list[Step]) -> None:
    """Every commit in it leads on from where the one before ended: no gap, no double, whoever made it."""
    store = Losing()
    ledgers = [Ledger(store, "g", retry_timeout_s=THREE_TRIES_S) for _ in range(2)]
    ledgers[0].acquire()
    ledgers[0].place({tp: Position(0) for tp in PARTITIONS})
    for step in drawn:
        store.faults = list(step.faults)
        try:
            do(ledgers[step.who], step)
        except OffsetkeeperError:
            continue
    positions: dict[TopicPartition, int] = {}
    for entry in reversed(store.history("g", 10_000)):
        for tp, move in entry.moves.items():
            assert positions.get(tp) == (move.before and move.before.offset)
            positions[tp] = move.after.offset
        for r in entry.ranges if entry.event == "commit" else ():
            assert positions[r.topic_partition] == r.start
            positions[r.topic_partition] = r.end
    assert positions == {tp: position.offset for tp, position in store.load("g").positions.items()}
