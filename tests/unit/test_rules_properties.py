"""What holds for every ledger, however it came to be: the rules against brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from offsetkeeper.core.model import Change, Move, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.core.rules import (
    Abandon,
    Acquire,
    Author,
    Begin,
    Commit,
    Event,
    Place,
    Release,
    Rewind,
    Written,
    decide,
)
from offsetkeeper.errors import RangeMismatch, RuleError

PARTITIONS = [TopicPartition(topic, p) for topic in ("a", "b") for p in (0, 1)]
partitions = st.sampled_from(PARTITIONS)
offsets = st.integers(0, 9)
positions = st.dictionaries(partitions, st.builds(Position, offsets, st.sampled_from([None, "id"])), max_size=4)
wild_ranges = st.lists(
    st.builds(lambda tp, s, e: OffsetRange(tp.topic, tp.partition, s, e), partitions, offsets, offsets), max_size=4
)


class Step(NamedTuple):
    """What chance draws for one step; what of it is used depends on the ledger the step meets."""

    event: type[Event]
    who: str
    sizes: tuple[int, ...]
    split: bool
    fits: bool
    positions: dict[TopicPartition, Position]
    wild: list[OffsetRange]
    force: bool


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([Begin, Written, Commit, Commit, Place, Abandon, Acquire, Rewind, Release]),
        st.sampled_from(["holder", "holder", "one", "two"]),
        st.tuples(*[st.integers(0, 3)] * len(PARTITIONS)),
        st.booleans(),
        st.sampled_from([True, True, True, False]),
        positions,
        wild_ranges,
        st.booleans(),
    ),
    min_size=3,
    max_size=20,
)


def fitting(snapshot: Snapshot, step: Step) -> tuple[OffsetRange, ...]:
    """Return the pending ranges, or some that lead on from the positions, the larger ones split where drawn."""
    if snapshot.pending and step.event is Commit:
        return snapshot.pending.ranges
    ranges = []
    for tp, size in zip(PARTITIONS, step.sizes, strict=True):
        if size and tp in snapshot.positions:
            at = snapshot.positions[tp].offset
            cuts = [at, at + 1, at + size] if step.split and size > 1 else [at, at + size]
            ranges += [OffsetRange(tp.topic, tp.partition, start, end) for start, end in pairwise(cuts)]
    return tuple(ranges)


def event_of(snapshot: Snapshot, step: Step, who: str) -> Event:
    if step.event is Acquire:
        return Acquire(Owner(who, snapshot.epoch + 1))
    if step.event is Place:
        return Place(step.positions)
    if step.event is Rewind:
        return Rewind(step.positions, step.force)
    if step.event is Written:
        return Written(f"output {step.sizes[0]}")
    ranges = fitting(snapshot, step) if step.fits else tuple(step.wild)
    others: dict[type[Event], Event] = {Begin: Begin(ranges), Commit: Commit(ranges), Release: Release()}
    return others.get(step.event, Abandon())


def life(drawn: list[Step]) -> Iterator[tuple[Event, Change]]:
    """Yield each change in the life of a ledger that two rivals drive; check that refused events change nothing."""
    snapshot = Snapshot("g", 1, Owner("one", 1), 1, positions={tp: Position(5) for tp in PARTITIONS[:3]})
    for at, step in enumerate(drawn):
        who = snapshot.owner.id if snapshot.owner and step.who == "holder" else step.who
        event = event_of(snapshot, step, who)
        before = replace(snapshot, positions=dict(snapshot.positions))
        try:
            change = decide(snapshot, event, Author(who, who, at, f"{at}"))
        except RuleError:
            assert snapshot == before
            continue
        yield event, change
        snapshot = change.after


@given(steps)
def test_every_change_is_one_version_and_says_what_it_moved(drawn: list[Step]) -> None:
    for event, change in life(drawn):
        before, after = change.before, change.after
        assert after.version == change.entry.version == before.version + 1
        differ = {tp for tp in PARTITIONS if before.positions.get(tp) != after.positions.get(tp)}
        assert {tp: Move(before.positions.get(tp), after.positions[tp]) for tp in differ} == change.moves
        assert set(before.positions) <= set(after.positions)
        if differ:
            assert isinstance(event, Place | Commit | Rewind)


@given(steps)
def test_a_commit_advances_exactly_by_its_ranges(drawn: list[Step]) -> None:
    for event, change in life(drawn):
        if isinstance(event, Commit):
            for tp, position in change.before.positions.items():
                done = sum(r.size for r in event.ranges if r.topic_partition == tp)
                assert change.after.positions[tp] == position._replace(offset=position.offset + done)
            assert change.after.pending is None
            assert change.entry.ranges == event.ranges


@given(steps)
def test_no_sequence_is_given_to_two_batches(drawn: list[Step]) -> None:
    """A batch begun and then committed keeps its own; begun, committed and abandoned ones never come again."""
    used: set[int] = set()
    for event, change in life(drawn):
        before, after = change.before, change.after
        if isinstance(event, Begin) or (isinstance(event, Commit) and not before.pending):
            assert after.sequence not in used
            used.add(after.sequence)
        else:
            assert after.sequence == before.sequence
        if after.pending:
            assert after.pending.sequence == after.sequence


@given(steps)
def test_the_generation_moves_with_every_rewind_and_jump_and_with_nothing_else(drawn: list[Step]) -> None:
    for event, change in life(drawn):
        jumped = any(move.before and move.before.offset != move.after.offset for move in change.moves.values())
        moves_on = isinstance(event, Rewind) or (isinstance(event, Place) and jumped)
        assert change.after.generation == change.before.generation + moves_on


@given(steps)
def test_epochs_only_grow_and_the_owner_has_the_highest(drawn: list[Step]) -> None:
    for event, change in life(drawn):
        assert change.after.epoch == change.before.epoch + isinstance(event, Acquire)
        assert change.after.owner is None or change.after.owner.epoch == change.after.epoch


@given(steps)
def test_a_pending_batch_always_starts_at_the_positions(drawn: list[Step]) -> None:
    """So after any crash it can be tried again just as it was begun."""
    for _, change in life(drawn):
        pending = change.after.pending
        for r in pending.ranges if pending else ():
            first = min(x.start for x in pending.ranges if x.topic_partition == r.topic_partition) if pending else -1
            assert change.after.positions[r.topic_partition].offset == first


@given(positions, wild_ranges, st.booleans())
def test_ranges_are_accepted_exactly_when_they_cover_each_partition_on_from_its_position(
    stored: dict[TopicPartition, Position],
    ranges: list[OffsetRange],
    in_order: bool,  # noqa: FBT001 - drawn, not passed by people
) -> None:
    """Held against sets of single offsets: no gap, no double, none empty, in order."""
    if in_order:
        ranges.sort()
    snapshot = Snapshot("g", 1, Owner("me", 1), 1, positions=stored)
    covered: dict[TopicPartition, list[int]] = {}
    for r in ranges:
        covered.setdefault(r.topic_partition, []).extend(range(r.start, r.end))
    fits = (
        bool(ranges)
        and ranges == sorted(ranges)
        and all(r.start < r.end for r in ranges)
        and all(
            tp in stored and done == list(range(stored[tp].offset, stored[tp].offset + len(done)))
            for tp, done in covered.items()
        )
    )
    try:
        decide(snapshot, Begin(tuple(ranges)), Author("me", "me", 0, "x"))
        accepted = True
    except RangeMismatch:
        accepted = False
    assert accepted == fits
