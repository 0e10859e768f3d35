"""Hypothesis strategies for what the rules allow: an event that fits a ledger, and the change it makes."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from offsetkeeper.core import rules
from offsetkeeper.core.batch import Batch, Program
from offsetkeeper.core.model import Change, Owner, Snapshot
from offsetkeeper.core.offsets import MAX_OFFSET, OffsetRange, Position, TopicPartition
from offsetkeeper.testing.strategies import times, topic_ids, words

_MOST = 50  # partitions of one event
_STEP = 3  # offsets of one range
_starts = st.integers(0, 9) | st.sampled_from([2**53, MAX_OFFSET - 2 * _MOST])  # past the second, ranges run out
_outputs = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=20)


@st.composite
def decisions(draw: st.DrawFn, snapshot: Snapshot, topics: tuple[str, str], *, moving: bool = False) -> Change:
    """Return a change of the ledger, by its owner or by another, as `rules.decide` makes it of any of the events.

    Args:
        draw: see hypothesis.
        snapshot: the ledger.
        topics: that positions are placed of.
        moving: only by events that move positions, though they may be where they already were.
    """
    holder = snapshot.owner.id if snapshot.owner else "nobody"
    author = rules.Author(
        owner_id=draw(st.sampled_from([holder, holder, holder, "another"])),
        name=draw(words),
        at_ms=draw(times),
        change_id=draw(st.uuids(version=4)).hex,
        reason=draw(words),
    )
    state = rules.state_of(snapshot, author.owner_id)
    fitting = [kind for kind, *when in rules.TABLE if tuple(when) == state]
    possible = [kind for kind in fitting if _may_be(kind, snapshot)]
    wanted = [kind for kind in possible if kind in _MOVING or not moving]
    usual = [kind for kind in wanted if kind not in _SELDOM] or wanted[:1]
    event = draw(_EVENTS[draw(st.sampled_from(wanted + 4 * usual))](snapshot, topics))
    return rules.decide(snapshot, event, author)


@st.composite
def _acquires(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Acquire:
    return rules.Acquire(Owner(draw(st.uuids(version=4)).hex, snapshot.epoch + 1, draw(words)))


@st.composite
def _places(draw: st.DrawFn, snapshot: Snapshot, topics: tuple[str, str]) -> rules.Place:
    busy = _partitions(snapshot.pending)
    return rules.Place({tp: at for tp, at in draw(_positions(topics)).items() if tp not in busy})


@st.composite
def _rewinds(draw: st.DrawFn, _: Snapshot, topics: tuple[str, str]) -> rules.Rewind:
    return rules.Rewind(draw(_positions(topics)), force=True)


@st.composite
def _forgets(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Forget:
    count = draw(st.integers(1, _MOST))
    return rules.Forget(tuple(sorted(_free(snapshot)))[:count], force=True)


@st.composite
def _begins(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Begin:
    lands_in = tuple(draw(st.lists(_outputs.filter(str.isprintable), max_size=2, unique=True)))
    program = Program(("topic",), {"": f"Table {draw(st.uuids(version=4)).hex}"})
    return rules.Begin(_next_ranges(snapshot, draw(st.integers(1, _MOST))), lands_in, program=program)


@st.composite
def _commits(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Commit:
    return rules.Commit(_next_ranges(snapshot, draw(st.integers(1, _MOST))))


@st.composite
def _marks(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Written:
    written = snapshot.pending.written if snapshot.pending else ()
    return rules.Written(draw(_outputs.filter(lambda output: output not in written and output.isprintable())))


@st.composite
def _adopts(draw: st.DrawFn, snapshot: Snapshot, _: tuple[str, str]) -> rules.Adopt:
    sequence = draw(st.integers(max(0, snapshot.sequence - 2), snapshot.sequence + 2))
    return rules.Adopt(draw(_outputs), sequence, force=True)


@st.composite
def _positions(draw: st.DrawFn, topics: tuple[str, str]) -> dict[TopicPartition, Position]:
    """Return positions of neighbouring partitions of both topics."""
    first, count, start = draw(st.integers(0, 9)), draw(st.integers(1, _MOST)), draw(_starts)
    ids = draw(st.none() | topic_ids), draw(st.none() | words)
    return {TopicPartition(topics[n % 2], first + n // 2): Position(start + n, *ids) for n in range(count)}


def _next_ranges(snapshot: Snapshot, count: int) -> tuple[OffsetRange, ...]:
    """Return the pending ranges, or those that come next of so many partitions, every other one in two parts."""
    if snapshot.pending:
        return snapshot.pending.ranges
    ranges: list[OffsetRange] = []
    for number, (tp, (at, *_)) in enumerate(sorted(snapshot.positions.items())[:count]):
        if at <= MAX_OFFSET - 2 * _STEP:
            ranges.append(OffsetRange(*tp, at, at + _STEP))
            ranges += [OffsetRange(*tp, at + _STEP, at + 2 * _STEP)] * (number % 2)
    return tuple(ranges)


def _may_be(kind: type[rules.Event], snapshot: Snapshot) -> bool:
    if kind is rules.Forget:
        return bool(_free(snapshot))
    if kind is rules.Settle:
        return snapshot.unsettled is not None
    if kind is rules.Begin and snapshot.pending and snapshot.pending.written_unmarked:
        return False
    if kind in {rules.Begin, rules.Commit}:
        return snapshot.unsettled is None and bool(_next_ranges(snapshot, _MOST))
    return True


def _free(snapshot: Snapshot) -> set[TopicPartition]:
    """Return the partitions with a position that are in no batch."""
    return snapshot.positions.keys() - _partitions(snapshot.pending) - _partitions(snapshot.unsettled)


def _partitions(batch: Batch | None) -> set[TopicPartition]:
    return batch.partitions if batch else set()


_SELDOM = {rules.Acquire, rules.Release, rules.Rewind, rules.Forget, rules.Adopt}  # where the owner can go on
_MOVING = {rules.Place, rules.Commit, rules.Rewind}
Events = Callable[[Snapshot, tuple[str, str]], st.SearchStrategy[rules.Event]]
_EVENTS: dict[type[rules.Event], Events] = {
    rules.Acquire: _acquires,
    rules.Release: lambda *_: st.just(rules.Release()),
    rules.Place: _places,
    rules.Begin: _begins,
    rules.Written: _marks,
    rules.Wait: lambda *_: st.just(rules.Wait()),
    rules.Commit: _commits,
    rules.Abandon: lambda *_: st.just(rules.Abandon()),
    rules.Settle: lambda *_: st.just(rules.Settle()),
    rules.Rewind: _rewinds,
    rules.Forget: _forgets,
    rules.Adopt: _adopts,
}
