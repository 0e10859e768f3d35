"""The table of rules, cell by cell, and the docstring that is its specification."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.batch import Batch, Program, QueryBatch
from offsetkeeper.core.codec import dump_entry, load_entry
from offsetkeeper.core.model import MAX_ADOPTED, MAX_SEQUENCE, Count, Entry, Having, Landed, Move, Owner, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.core.query_rows import split_positions
from offsetkeeper.core.rules import (
    Abandon,
    Acquire,
    Adopt,
    Author,
    Begin,
    Commit,
    Event,
    Forget,
    Holder,
    Place,
    Release,
    Rewind,
    Settle,
    Wait,
    Written,
    decide,
    drops,
)
from offsetkeeper.errors import Fenced, NotAllowed, RangeMismatch, SettingsError

ME, RIVAL, NEXT = Owner("me", 4, "host:1"), Owner("rival", 4, "host:2"), Owner("me", 5, "host:1")
AUTHOR = Author("me", "host:1", 1_700_000_000_000, "change-10", "because")
A, B, OTHER, UNKNOWN = (TopicPartition("t", p) for p in range(4))
POSITIONS = {A: Position(10, "id"), B: Position(20, "id"), OTHER: Position(30)}
RANGES = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 20, 21))
PENDING = Batch("g", "earlier", 7, RANGES, written=("first",))
PROGRAM = Program(("t",), {"": "Topic out"})
LANDING = replace(PENDING, lands_in=("topic", "delta"))
STATES = tuple(itertools.product(Holder, (False, True)))

EVENTS: tuple[Event, ...] = (
    Acquire(NEXT),
    Release(),
    Place({UNKNOWN: Position(3, "id")}),
    Begin(RANGES, ("topic",), {"topic": Landed(5, "17")}, PROGRAM),
    Written("second"),
    Wait(),
    Commit(RANGES),
    Abandon(),
    Settle(),
    Rewind({A: Position(2, "id")}, force=True),
    Forget((OTHER,), force=True),
    Adopt("topic", 9, force=True),
)
ADVANCED = {A: Move(Position(10, "id"), Position(15, "id")), B: Move(Position(20, "id"), Position(21, "id"))}
PLACED = {UNKNOWN: Move(None, Position(3, "id"))}
REWOUND = {A: Move(Position(10, "id"), Position(2, "id"))}


def ledger(holder: Holder, *, pending: bool) -> Snapshot:
    """Return a ledger of version 9 in one of the six states."""
    return Snapshot(
        group="g",
        version=9,
        owner={Holder.FREE: None, Holder.MINE: ME, Holder.TAKEN: RIVAL}[holder],
        epoch=4,
        generation=2,
        sequence=7,
        positions=dict(POSITIONS),
        pending=PENDING if pending else None,
        change_id="change-9",
    )


def moved(moves: dict[TopicPartition, Move]) -> Positions:
    return POSITIONS | {tp: move.after for tp, move in moves.items()}


# What each word of the table in the docstring means: the fields of the ledger that differ afterwards, the moves,
# and the ranges in the history.
Meaning = tuple[dict[str, Any], dict[TopicPartition, Move], tuple[OffsetRange, ...]]
TAKE: Meaning = ({"owner": NEXT, "epoch": 5}, {}, ())
PLACE: Meaning = ({"positions": moved(PLACED)}, PLACED, ())
MOVE: Meaning = ({"positions": moved(REWOUND), "generation": 3, "pending": None}, REWOUND, ())
ACCEPT: Meaning = ({"landed": {"topic": Landed(9)}, "sequence": 9, "pending": None}, {}, ())
KEPT = {A: POSITIONS[A], B: POSITIONS[B]}
FORGET: Meaning = ({"positions": KEPT, "forgotten": {OTHER: Position(30)}, "generation": 3}, {}, ())
MEANINGS: dict[str, Meaning] = {
    "take": TAKE,
    "take: the owner before is fenced": TAKE,
    "free": ({"owner": None}, {}, ()),
    "free: batch stays": ({"owner": None}, {}, ()),
    "place": PLACE,
    "place other parts": PLACE,
    "begin": (
        {
            "pending": Batch("g", "me", 8, RANGES, lands_in=("topic",), program=PROGRAM),
            "sequence": 8,
            "landed": {"topic": Landed(5, "17")},
        },
        {},
        RANGES,
    ),
    "take over": (
        {
            "pending": replace(PENDING, written=(), lands_in=("topic",), program=PROGRAM),
            "landed": {"topic": Landed(5, "17"), "first": Landed(7, "16")},
        },
        {},
        RANGES,
    ),
    "note an output": ({"pending": replace(PENDING, written=("first", "second"))}, {}, ()),
    "tell": ({}, {}, ()),
    "advance": ({"positions": moved(ADVANCED), "sequence": 8}, ADVANCED, RANGES),
    "advance pending": ({"positions": moved(ADVANCED), "pending": None}, ADVANCED, RANGES),
    "drop": ({"pending": None}, {}, RANGES),
    "move": MOVE,
    "move; may drop it": MOVE,
    "forget": FORGET,
    "forget other parts": FORGET,
    "forget when forced: the owner is fenced": (FORGET[0] | {"owner": None}, {}, ()),
    "settle": ({"unsettled": None}, {}, RANGES),
    "only when forced: the owner is fenced": (MOVE[0] | {"owner": None}, REWOUND, ()),
    "accept": ACCEPT,
    "accept when forced: the owner is fenced": (ACCEPT[0] | {"owner": None}, {}, ()),
}
# Whose batch it is that the history names.
TOKENS = {"begin": "me", "advance": "me"} | dict.fromkeys(
    ("note an output", "advance pending", "drop", "settle", "take over"), "earlier"
)


def documented() -> dict[tuple[str, Holder, bool], str]:
    """Return the table in the docstring of `rules`: event, holder and pending to the word in that cell."""
    lines = (rules.__doc__ or "").splitlines()
    head = next(i for i, line in enumerate(lines) if re.match(r" +event +FREE", line))
    starts = [lines[head].index(name) for name in ("event", "FREE", "MINE idle", "MINE pending", "TAKEN")]
    rows = [
        [line[start:end].strip() for start, end in itertools.zip_longest(starts, starts[1:])]
        for line in itertools.takewhile(str.strip, lines[head + 1 :])
    ]
    cells: dict[tuple[str, Holder, bool], str] = {}
    for event, free, idle, pending, taken in rows:
        cells |= {(event, Holder.FREE, p): free for p in (False, True)}
        cells |= {(event, Holder.MINE, False): idle, (event, Holder.MINE, True): pending}
        cells |= {(event, Holder.TAKEN, p): taken for p in (False, True)}
    return cells


def walk() -> list[Any]:
    return [
        pytest.param(event, holder, pending, id=f"{type(event).__name__}-{holder.name}-{'pending' * pending or 'idle'}")
        for event, (holder, pending) in itertools.product(EVENTS, STATES)
    ]


def test_the_docstring_has_a_cell_for_every_event_in_every_state() -> None:
    names = [type(event).__name__.lower() for event in EVENTS]
    assert set(documented()) == set(itertools.product(names, Holder, (False, True)))
    assert {type(event) for event in EVENTS} == set(Event.__args__)


def test_the_table_has_a_rule_exactly_where_the_docstring_has_more_than_a_refusal() -> None:
    allowed = {key for key, word in documented().items() if word not in {"-", "fenced"}}
    assert {(event.__name__.lower(), holder, pending) for event, holder, pending in rules.TABLE} == allowed


@pytest.mark.parametrize(("event", "holder", "pending"), walk())
def test_each_cell_does_what_the_docstring_says_and_nothing_else(event: Event, holder: Holder, pending: bool) -> None:  # noqa: FBT001 - the third axis of the table
    """Either exactly the documented change, every field of it compared, or the documented error and no change."""
    given = replace(ledger(holder, pending=pending), unsettled=LANDING if isinstance(event, Settle) else None)
    if isinstance(event, Begin) and pending:
        marked, landed = replace(PENDING, lands_in=("first",)), {"topic": Landed(6, "16"), "first": Landed(7, "16")}
        given = replace(given, pending=marked, landed=landed)
    before = replace(given, positions=dict(POSITIONS))
    name = rules.event_name(type(event))
    word = documented()[type(event).__name__.lower(), holder, pending]
    if word in {"-", "fenced"}:
        with pytest.raises(Fenced if word == "fenced" else NotAllowed):
            decide(before, event, AUTHOR)
    else:
        fields, moves, ranges = MEANINGS[word]
        change = decide(before, event, AUTHOR)
        drops = isinstance(event, Rewind | Adopt) and pending
        expected = replace(given, version=10, change_id="change-10", **fields)
        assert change.after == expected
        assert change.before is before
        assert change.moves == moves
        assert change.entry == Entry(
            version=10,
            event=name,
            change_id="change-10",
            at_ms=1_700_000_000_000,
            actor="host:1",
            reason="because",
            epoch=expected.epoch,
            generation=expected.generation,
            sequence=expected.sequence,
            token="earlier" if drops else TOKENS.get(word, ""),
            ranges=RANGES if drops else ranges,
            having=Having.SOME if drops else Having.MAYBE if word == "take over" else Having.NONE,
            moves={} if name == "commit" else moves,
            forgot={OTHER: Position(30)} if name == "forget" else {},
        )
    assert before == given


def test_every_word_of_the_docstring_is_known_and_used() -> None:
    assert set(documented().values()) == set(MEANINGS) | {"-", "fenced"}


def refused(before: Snapshot, event: Event, error: type[Exception]) -> str:
    """Check that `event` raises `error` and leaves the ledger as it was; return the message."""
    copy = replace(before, positions=dict(before.positions))
    with pytest.raises(error) as caught:
        decide(before, event, AUTHOR)
    assert before == copy
    return str(caught.value)


MINE = ledger(Holder.MINE, pending=False)
QUERY = "00000000-0000-0000-0000-000000000001"
OTHER_QUERY = str(UUID(int=2))
MINE_PENDING = ledger(Holder.MINE, pending=True)


def test_a_batch_that_is_taken_over_is_the_other_programs() -> None:
    """A restart of the program that began it would skip outputs that only the other one has written."""
    theirs = Program(("t",), {"": "Topic in"})
    before = replace(MINE_PENDING, pending=replace(PENDING, lands_in=("first",), program=theirs))
    after = decide(before, Begin(RANGES, ("topic",), program=PROGRAM), AUTHOR).after.pending
    assert after is not None
    assert (after.id, after.program, after.lands_in, after.written) == (PENDING.id, PROGRAM, ("topic",), ())


@pytest.mark.parametrize("outputs", [{"a": "Topic", "new": "Topic out"}, {"a": "Topic"}], ids=["more", "another kind"])
def test_a_redeploy_notes_the_marked_outputs_that_get_the_pending_batch_too(outputs: dict[str, str]) -> None:
    """One that has the batch by the ledger's note keeps none for it, and a target that is known stays."""
    began, here = Program(("t",), {"a": "Topic"}), Program(("t",), outputs)
    pending = replace(PENDING, lands_in=("a",), program=began)
    before = replace(MINE_PENDING, pending=pending, landed={"a": Landed(6, "16")})
    landed = {"a": Landed(0, "18"), "new": Landed(0, "17")}
    after = decide(before, Begin(RANGES, ("new", "first", "a"), landed, here), AUTHOR).after
    assert after.pending == replace(pending, lands_in=("a", "new"))
    assert after.pending is not None
    assert after.pending.program == here
    assert after.landed == {"a": Landed(6, "16"), "new": Landed(0, "17")}
    done = decide(after, Commit(RANGES, {"new": "19"}), AUTHOR).after
    assert done.landed == {"a": Landed(7), "new": Landed(7, "19")}


@pytest.mark.parametrize(
    ("event", "batch", "error", "told"),
    [
        (Begin(RANGES, ("topic",)), PENDING, NotAllowed, "batch g/earlier/7 is pending"),
        (Begin(RANGES, program=PROGRAM), replace(PENDING, program=PROGRAM), NotAllowed, "begin is not allowed"),
        (
            Begin(RANGES, ("topic", "first"), program=PROGRAM),
            replace(PENDING, lands_in=("topic",), program=PROGRAM),
            NotAllowed,
            "begin is not allowed",
        ),
        (Begin(RANGES[:1], program=PROGRAM), PENDING, RangeMismatch, "not those of the pending batch g/earlier/7"),
        (
            Begin(RANGES[:1], ("topic",), program=PROGRAM),
            replace(PENDING, program=PROGRAM),
            RangeMismatch,
            "not those of the pending batch g/earlier/7",
        ),
        (
            Begin(RANGES, program=PROGRAM),
            PENDING,
            NotAllowed,
            "output 'first' of another program has batch g/earlier/7",
        ),
    ],
    ids=["no program", "the same program", "the same outputs", "other ranges", "fewer ranges", "an output has it"],
)
def test_a_batch_is_not_taken_over(event: Begin, batch: Batch, error: type[Exception], told: str) -> None:
    assert told in refused(replace(MINE_PENDING, pending=batch), event, error)


@pytest.mark.parametrize(
    ("event", "before", "error", "told"),
    [
        (Forget((UNKNOWN,)), MINE, NotAllowed, "no position of t 3: there is nothing to forget"),
        (Forget((OTHER, A)), MINE_PENDING, NotAllowed, "t 0 is in batch g/earlier/7, which is pending"),
        (Forget((A,)), replace(MINE, unsettled=PENDING), NotAllowed, "t 0 is in batch g/earlier/7, which is unsettled"),
        (Forget((OTHER,)), ledger(Holder.TAKEN, pending=False), Fenced, "is held by host:2"),
    ],
    ids=["no position", "in the pending batch", "in the unsettled batch", "held"],
)
def test_a_position_is_not_forgotten_under_a_batch_or_a_run(
    event: Forget, before: Snapshot, error: type[Exception], told: str
) -> None:
    assert told in refused(before, event, error)


def test_a_position_that_the_store_has_lost_can_be_forgotten() -> None:
    """Only the control record still named it, so no start was possible, and no command took it out."""
    lost = replace(MINE, missing=frozenset({UNKNOWN, TopicPartition("t", 9)}))
    change = decide(lost, Forget((OTHER, UNKNOWN)), AUTHOR)
    assert (change.after.missing, change.after.forgotten) == (
        frozenset({TopicPartition("t", 9)}),
        {OTHER: Position(30)},
    )
    assert change.entry.forgot == {OTHER: Position(30), UNKNOWN: None}
    assert load_entry(dump_entry(change.entry), change.entry.version, "here") == change.entry


@pytest.mark.parametrize("event", [Place({OTHER: Position(3, "id")}), Rewind({OTHER: Position(3, "id")})])
def test_a_forgotten_position_comes_back_over_its_row(event: Event) -> None:
    """The store checks the row that is there; the history says that there was no position."""
    forgotten = decide(MINE, Forget((OTHER,)), AUTHOR).after
    change = decide(forgotten, event, AUTHOR)
    assert change.moves == {OTHER: Move(Position(30), Position(3, "id"))}
    assert change.entry.moves == {OTHER: Move(None, Position(3, "id"))}
    assert (change.after.positions[OTHER], change.after.forgotten) == (Position(3, "id"), {})


@pytest.mark.parametrize("epoch", [0, 3, 4, 6])
def test_an_owner_takes_exactly_the_next_epoch(epoch: int) -> None:
    """So two rivals who read the same ledger cannot both think they are newer than it."""
    assert "the next epoch is 5" in refused(MINE, Acquire(Owner("me", epoch)), NotAllowed)


def test_an_operator_cannot_move_what_a_run_holds_unless_forced() -> None:
    message = refused(ledger(Holder.TAKEN, pending=False), Rewind({A: Position(0)}), Fenced)
    assert "held by host:2 (epoch 4)" in message


def test_an_owner_without_a_name_is_told_by_its_id() -> None:
    taken = replace(MINE, owner=Owner("0badcafe", 4))
    assert "held by 0badcafe (epoch 4)" in refused(taken, Release(), Fenced)


def test_a_forced_rewind_frees_the_group_and_the_old_owner_is_refused() -> None:
    after = decide(ledger(Holder.TAKEN, pending=True), Rewind({A: Position(0)}, force=True), AUTHOR).after
    rival = replace(AUTHOR, owner_id="rival")
    with pytest.raises(NotAllowed, match="no run holds the group: acquire it first"):
        decide(after, Commit(RANGES), rival)


def test_a_position_in_the_pending_batch_cannot_be_placed() -> None:
    """The batch must be tried again with the very ranges it was begun with."""
    message = refused(MINE_PENDING, Place({UNKNOWN: Position(0), B: Position(25)}), NotAllowed)
    assert "t 1 is in the pending batch" in message


def test_the_pending_batch_is_committed_whole_or_not_at_all() -> None:
    for ranges in (RANGES[:1], (*RANGES, OffsetRange("t", 2, 30, 31)), (RANGES[0], OffsetRange("t", 1, 20, 22))):
        assert "not those of the pending batch g/earlier/7" in refused(MINE_PENDING, Commit(ranges), RangeMismatch)


def test_a_pending_batch_whose_position_moved_outside_of_the_ledger_is_refused() -> None:
    """Some other program wrote the store's rows: what that batch processed no longer leads on from them."""
    drifted = replace(MINE_PENDING, positions=POSITIONS | {A: Position(11, "id")})
    assert "is at 11" in refused(drifted, Commit(RANGES), RangeMismatch)


def test_a_commit_keeps_the_cluster() -> None:
    there = replace(MINE, positions={tp: at._replace(cluster_id="A") for tp, at in MINE.positions.items()})
    assert decide(there, Commit(RANGES), AUTHOR).after.positions[A] == Position(15, "id", "A")


def test_a_commit_keeps_the_topic_ids() -> None:
    assert decide(MINE, Commit(RANGES), AUTHOR).after.positions[A] == Position(15, "id")


def test_placing_what_is_there_already_moves_nothing() -> None:
    change = decide(MINE, Place(POSITIONS), AUTHOR)
    assert change.moves == {}
    assert change.after.positions == POSITIONS


def test_placing_a_jump_starts_a_generation_of_its_own() -> None:
    assert decide(MINE, Place({A: Position(3, "id")}), AUTHOR).after.generation == 3


def test_learning_a_topic_id_is_no_jump() -> None:
    change = decide(MINE, Place({OTHER: Position(30, "id")}), AUTHOR)
    assert change.moves == {OTHER: Move(Position(30), Position(30, "id"))}
    assert change.after.generation == 2


@pytest.mark.parametrize("holder", [*Holder])
def test_a_rewind_of_other_partitions_leaves_the_pending_batch_as_it_is(holder: Holder) -> None:
    before = ledger(holder, pending=True)
    assert before.pending is not None
    for to in ({UNKNOWN: Position(4)}, {A: before.positions[A], UNKNOWN: Position(4)}, {}):
        after = decide(before, Rewind(to, force=True), AUTHOR).after
        assert (after.pending, after.unsettled) == (before.pending, before.unsettled)
        assert after.generation == before.generation + 1


def test_a_rewind_drops_a_batch_whole_if_one_of_its_partitions_moves_or_a_query_with_state_began_it() -> None:
    two = (OffsetRange("t", 0, 1, 2), OffsetRange("t", 1, 0, 5))
    assert drops(Batch("g", "me", 7, two), {TopicPartition("t", 1)})
    assert not drops(Batch("g", "me", 7, two), {TopicPartition("t", 2), TopicPartition("s", 0)})
    assert drops(Batch("g", "me", 7, two, query=QueryBatch(QUERY, 3)), {TopicPartition("t", 2)})


COUNTED = replace(MINE, queries={QUERY: 3})


def test_a_batch_of_a_query_needs_no_records_and_counts_the_query() -> None:
    begun = decide(COUNTED, Begin((), query=QueryBatch(QUERY, 3)), AUTHOR).after
    assert begun.pending is not None
    assert (begun.pending.query, begun.queries) == (QueryBatch(QUERY, 3), {QUERY: 3})
    done = decide(begun, Commit((), query=QueryBatch(QUERY, 3)), AUTHOR)
    assert (done.after.queries, done.after.positions) == ({QUERY: 4}, COUNTED.positions)
    assert done.entry.counts == {QUERY: Count(3, 4)}


@pytest.mark.parametrize("number", [2, 4])
def test_a_query_is_counted_without_gap_and_without_overlap(number: int) -> None:
    for event in (Begin(RANGES, query=QueryBatch(QUERY, number)), Commit(RANGES, query=QueryBatch(QUERY, number))):
        with pytest.raises(RangeMismatch, match=f"batch {number} of query {QUERY} cannot follow.*is at batch 3"):
            decide(COUNTED, event, AUTHOR)
        with pytest.raises(RangeMismatch, match="is not counted"):
            decide(MINE, event, AUTHOR)


def test_the_pending_batch_is_of_its_query_alone() -> None:
    begun = decide(COUNTED, Begin(RANGES, query=QueryBatch(QUERY, 3)), AUTHOR).after
    with pytest.raises(RangeMismatch, match="not those of the pending batch"):
        decide(begun, Commit(RANGES), AUTHOR)
    with pytest.raises(NotAllowed, match=f"batch 3 of query {QUERY} is pending"):
        decide(begun, Place({}, queries={QUERY: 0}), AUTHOR)


def test_a_watermark_is_that_of_the_last_batch_and_of_no_other_positions() -> None:
    """From it a lost state is built again, up to the positions after that batch."""
    done = decide(COUNTED, Commit(RANGES, query=QueryBatch(QUERY, 3), watermark_ms=7), AUTHOR).after
    assert done.watermark_ms == 7
    keeps: list[Event] = [
        Release(),
        Place({UNKNOWN: Position(3, "id")}, queries={OTHER_QUERY: 1}),
        Place({A: done.positions[A]._replace(leader_epoch=4)}),
        Begin((OffsetRange("t", 0, 15, 16),), query=QueryBatch(QUERY, 4), watermark_ms=9),
    ]
    moves: list[Event] = [
        Commit((OffsetRange("t", 0, 15, 16),)),
        Place({A: Position(1)}),
        Place({}, queries={QUERY: 9}),
        Rewind({A: Position(1)}),
        Forget((A,)),
    ]
    assert [decide(done, event, AUTHOR).after.watermark_ms for event in keeps] == [7] * len(keeps)
    assert [decide(done, event, AUTHOR).after.watermark_ms for event in moves] == [None] * len(moves)
    begun = decide(done, keeps[-1], AUTHOR).after
    assert begun.pending is not None
    assert begun.pending.watermark_ms == 9
    assert decide(begun, Abandon(), AUTHOR).after.watermark_ms == 7


def test_a_cut_log_is_told_of_the_partitions_that_move() -> None:
    moved = decide(MINE, Place({A: Position(1)}, cuts={A: 1, B: 0}), AUTHOR)
    assert moved.entry.cuts == {A: 1}
    assert decide(MINE, Place({}, cuts={A: 1}), AUTHOR).entry.cuts == {}
    back = decide(MINE, Rewind({A: Position(1)}, cuts={A: 1, B: 0}), AUTHOR)
    assert (back.entry.event, back.entry.cuts) == ("rewind", {A: 1})


def test_a_query_is_set_back_and_its_batch_dropped() -> None:
    begun = decide(COUNTED, Begin(RANGES, query=QueryBatch(QUERY, 3)), AUTHOR).after
    moved = decide(begun, Rewind({}, queries={QUERY: 1}), AUTHOR)
    assert (moved.after.queries, moved.after.pending) == ({QUERY: 1}, None)
    assert moved.entry.counts == {QUERY: Count(3, 1)}
    for wrong in (-1, "1", None):
        with pytest.raises(SettingsError):
            decide(MINE, Rewind({}, queries={QUERY: cast("Any", wrong)}), AUTHOR)
    with pytest.raises(SettingsError, match="such an id is a UUID"):
        decide(MINE, Place({}, queries={"feed": 1}), AUTHOR)


def test_a_rewind_of_nothing_is_still_a_new_generation() -> None:
    assert decide(MINE, Rewind({}), AUTHOR).after.generation == 3


def test_a_batch_keeps_the_token_it_was_begun_with_and_the_next_one_has_its_owners() -> None:
    taken = decide(MINE_PENDING, Acquire(Owner("newer", 5)), AUTHOR).after
    assert taken.pending == PENDING
    newer = replace(AUTHOR, owner_id="newer")
    done = decide(taken, Commit(RANGES), newer)
    assert done.entry.token == "earlier"
    following = (OffsetRange("t", 0, 15, 16),)
    assert decide(done.after, Begin(following), newer).after.pending == Batch("g", "newer", 8, following)


def test_a_ledger_begins_with_generation_0() -> None:
    assert decide(Snapshot("g"), Acquire(Owner("me", 1)), AUTHOR).after.generation == 0
    assert decide(Snapshot("g"), Rewind({}), AUTHOR).after.generation == 1


def test_a_rewind_may_give_a_partition_its_first_position() -> None:
    change = decide(MINE, Rewind({UNKNOWN: Position(4)}), AUTHOR)
    assert change.moves == {UNKNOWN: Move(None, Position(4))}


def test_an_abandoned_sequence_is_never_used_again() -> None:
    after = decide(MINE_PENDING, Abandon(), AUTHOR).after
    assert decide(after, Begin(RANGES), AUTHOR).after.sequence == 8
    assert decide(after, Commit(RANGES), AUTHOR).after.sequence == 8


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        pytest.param((), "at least one range", id="none at all"),
        pytest.param((OffsetRange("t", 0, 11, 15),), "'t 0 11 15' cannot follow: the", id="gap"),
        pytest.param((OffsetRange("t", 0, 9, 15),), "the partition is at 10", id="double"),
        pytest.param((OffsetRange("t", 0, 10, 10),), "is empty or runs backwards", id="empty"),
        pytest.param((OffsetRange("t", 0, 10, 9),), "is empty or runs backwards", id="backwards"),
        pytest.param((OffsetRange("t", 3, 0, 9),), "the partition has no position", id="partition not placed"),
        pytest.param((OffsetRange("other", 0, 10, 12),), "has no position", id="topic not placed"),
        pytest.param((RANGES[1], RANGES[0]), "must be sorted", id="unsorted"),
        pytest.param((RANGES[0], RANGES[0]), "is at 15", id="the same twice"),
        pytest.param((RANGES[0], OffsetRange("t", 0, 16, 17)), "is at 15", id="gap in a split"),
        pytest.param((RANGES[0], OffsetRange("t", 0, 14, 17)), "is at 15", id="overlap in a split"),
        pytest.param((OffsetRange("t", 0, 12, 15), OffsetRange("t", 0, 10, 12)), "is at 10", id="split backwards"),
        pytest.param((RANGES[0], RANGES[1], OffsetRange("t", 0, 15, 16)), "must be sorted", id="split, not together"),
    ],
)
@pytest.mark.parametrize("event", [Begin, Commit])
def test_ranges_that_do_not_lead_on_from_the_positions_are_refused(
    event: Callable[[tuple[OffsetRange, ...]], Event], ranges: tuple[OffsetRange, ...], told: str
) -> None:
    assert told in refused(MINE, event(ranges), RangeMismatch)


def test_a_partition_may_be_split_into_ranges_that_follow_one_another() -> None:
    split = (OffsetRange("t", 0, 10, 12), OffsetRange("t", 0, 12, 13), OffsetRange("t", 0, 13, 15), RANGES[1])
    assert decide(MINE, Begin(split), AUTHOR).after.pending == Batch("g", "me", 8, split)
    assert decide(MINE, Commit(split), AUTHOR).moves == ADVANCED


NOT_OFFSETS = [-1, 2**63, True, 1.0, "1", None]


@pytest.mark.parametrize("event", [Place, Rewind])
@pytest.mark.parametrize("offset", NOT_OFFSETS, ids=repr)
def test_a_position_that_cannot_be_one_is_refused(event: Callable[[Positions], Event], offset: Any) -> None:
    assert "is not an offset" in refused(MINE, event({A: Position(offset)}), SettingsError)


@pytest.mark.parametrize("event", [Place, Rewind])
@pytest.mark.parametrize("tp", [("t", -1), ("t", True), ("t", 1.0), ("t", "1"), ("t", 2**31), ("", 0), ("a/b", 0)])
def test_a_partition_that_cannot_be_one_is_refused(event: Callable[[Positions], Event], tp: tuple[Any, Any]) -> None:
    """It would be stored, and no store could give it back."""
    assert "is not a" in refused(MINE, event({TopicPartition(*tp): Position(1)}), SettingsError)


@pytest.mark.parametrize("event", [Place, Rewind])
@pytest.mark.parametrize("partition", [0, 1])
def test_a_topic_that_has_the_name_of_a_querys_row_is_refused(
    event: Callable[[Positions], Event], partition: int
) -> None:
    """Its positions were stored, and left out when the ledger was read: each start began anew."""
    tp = TopicPartition(f"spark-query-{QUERY}", partition)
    assert split_positions({tp: Position(1)})[0] == {}
    assert "its position would be lost" in refused(MINE, event({tp: Position(1)}), SettingsError)
    other = TopicPartition(f"{tp.topic}-events", partition)
    assert decide(MINE, Place({other: Position(1)}), AUTHOR).after.positions[other] == Position(1)


@pytest.mark.parametrize("event", [Begin, Commit])
@pytest.mark.parametrize(
    "ends",
    [("t", 0, 10.0, 15), ("t", 0, 10, 15.0), ("t", 0, 10, 2**63), ("t", False, 10, 15), ("t", 0.0, 10, 15)],
    ids=repr,
)
def test_numbers_that_only_look_like_offsets_are_refused_in_ranges(
    event: Callable[[tuple[OffsetRange, ...]], Event], ends: tuple[Any, Any, Any, Any]
) -> None:
    """10.0 equals 10 in Python, but a store cannot give back what 15.0 would make of the position."""
    assert "is not a" in refused(MINE, event((OffsetRange(*ends),)), SettingsError)


def test_the_largest_offset_can_be_reached() -> None:
    end = 2**63 - 1
    assert decide(MINE, Commit((OffsetRange("t", 0, 10, end),)), AUTHOR).after.positions[A].offset == end


def test_an_output_is_marked_once_and_has_a_name() -> None:
    refused(MINE_PENDING, Written("first"), NotAllowed)
    for name in ("", "x" * 101, "two\nlines"):
        refused(MINE_PENDING, Written(name), SettingsError)


def test_an_output_that_was_the_only_one_is_marked_without_a_name() -> None:
    """A redeploy has made it one of several."""
    assert MINE_PENDING.pending is not None
    found = replace(MINE_PENDING, pending=replace(MINE_PENDING.pending, program=PROGRAM))
    after = decide(found, Written(""), AUTHOR).after
    assert after.pending is not None
    assert "" in after.pending.written


@pytest.mark.parametrize(
    ("batch", "having"),
    [
        (replace(PENDING, written=()), Having.MAYBE),
        (replace(PENDING, written=("first",)), Having.SOME),
        (LANDING, Having.NONE),
    ],
    ids=["without a mark", "written", "with a mark"],
)
def test_a_rewind_says_who_may_have_a_batch_that_no_start_settles(batch: Batch, having: Having) -> None:
    free = replace(ledger(Holder.FREE, pending=True), pending=batch)
    entry = decide(free, Rewind({A: Position(2)}), AUTHOR).entry
    assert entry.having is having
    assert (entry.token, entry.ranges) == (("", ()) if having is Having.NONE else ("earlier", RANGES))


def test_a_batch_that_is_rewound_stays_unsettled_and_nothing_is_begun_before_it_is_settled() -> None:
    """It may still land in outputs that keep marks, and whoever rewinds cannot ask them."""
    free = replace(ledger(Holder.FREE, pending=True), pending=LANDING)
    rewound = decide(free, Rewind({A: Position(2)}), AUTHOR).after
    moved_ = replace(LANDING, moved=(A,))
    assert (rewound.pending, rewound.unsettled) == (None, moved_)
    again = decide(rewound, Rewind({A: Position(3), UNKNOWN: Position(0)}), AUTHOR).after
    assert again.unsettled == moved_
    mine = replace(again, owner=ME)
    to = (OffsetRange("t", 0, 3, 15),)
    assert "is unsettled" in refused(mine, Begin(to), NotAllowed)
    assert "is unsettled" in refused(mine, Commit(to), NotAllowed)
    settled = decide(mine, Settle(), AUTHOR)
    assert settled.after.unsettled is None
    assert (settled.entry.token, settled.entry.ranges) == ("earlier", RANGES)
    assert decide(settled.after, Begin(to), AUTHOR).after.sequence == 8
    assert "no batch is unsettled" in refused(settled.after, Settle(), NotAllowed)


@pytest.mark.parametrize("having", Having)
def test_a_dropped_batch_that_all_outputs_have_is_done_where_no_reset_moved_it(having: Having) -> None:
    """Partition A is moved away and back to the start of the batch: there the operator's word counts."""
    ledger_ = replace(ledger(Holder.FREE, pending=True), pending=LANDING)
    for offset in (2, 10):
        ledger_ = decide(ledger_, Rewind({A: Position(offset, "new")}), AUTHOR).after
    settled = decide(replace(ledger_, owner=ME), Settle(having=having), AUTHOR)
    move = {B: Move(POSITIONS[B], Position(21, "id"))} if having is Having.ALL else {}
    assert (settled.moves, settled.entry.moves, settled.entry.having) == (move, move, having)
    assert settled.after.positions == {**POSITIONS, A: Position(10, "new")} | {tp: m.after for tp, m in move.items()}


def test_a_partition_that_a_reset_names_and_that_is_there_already_is_read_again() -> None:
    """As where an operator has emptied the output, and resets all to the earliest."""
    free = replace(ledger(Holder.FREE, pending=True), pending=LANDING)
    rewound = decide(free, Rewind({A: Position(2)}, stays=(B, OTHER)), AUTHOR).after
    assert rewound.unsettled == replace(LANDING, moved=(A, B))


def test_a_rewind_that_takes_back_what_dropped_a_batch_makes_it_pending_again() -> None:
    free = replace(ledger(Holder.FREE, pending=True), pending=LANDING, positions=dict(POSITIONS))
    rewound = decide(free, Rewind({A: Position(2)}), AUTHOR).after
    back = decide(rewound, Rewind({A: POSITIONS[A]}, restores=True), AUTHOR).after
    assert (back.pending, back.unsettled, back.positions) == (LANDING, None, POSITIONS)
    refused(rewound, Rewind({A: Position(3)}, restores=True), RangeMismatch)
    refused(replace(rewound, sequence=8), Rewind({A: POSITIONS[A]}, restores=True), NotAllowed)
    refused(free, Rewind({A: Position(2)}, restores=True), RangeMismatch)
    refused(replace(free, pending=None), Rewind({A: Position(2)}, restores=True), NotAllowed)


def test_what_is_left_of_a_dropped_batch_is_done_range_by_range_and_never_where_it_stands_elsewhere() -> None:
    """One partition may have several ranges; and another program may have edited a position."""
    ranges = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 0, 15, 18), OffsetRange("t", 1, 21, 22))
    mine = replace(MINE, unsettled=replace(LANDING, ranges=ranges))
    settled = decide(mine, Settle(having=Having.ALL), AUTHOR)
    assert settled.moves == {A: Move(POSITIONS[A], Position(18, "id"))}
    query = replace(LANDING, query=QueryBatch(str(UUID(int=1)), 3))
    assert decide(replace(mine, unsettled=query), Settle(having=Having.ALL), AUTHOR).moves == {}


def test_a_commit_notes_the_batch_for_each_output_that_keeps_a_mark() -> None:
    mine = replace(MINE_PENDING, pending=LANDING, landed={"topic": Landed(5), "gone": Landed(3)})
    assert decide(mine, Commit(RANGES), AUTHOR).after.landed == {
        "topic": Landed(7),
        "delta": Landed(7),
        "gone": Landed(3),
    }
    assert decide(replace(MINE, landed={"topic": Landed(5)}), Commit(RANGES), AUTHOR).after.landed == {
        "topic": Landed(5)
    }


def test_an_output_that_keeps_no_mark_is_not_said_to_have_one() -> None:
    """Else its first mark would be missed, as where a right that marks need is given later."""
    mine = replace(MINE_PENDING, pending=replace(LANDING, lands_in=("topic",)))
    assert decide(mine, Written("delta", ""), AUTHOR).after.landed == {}


def test_what_is_known_of_a_target_is_noted_with_each_mark_of_a_batch_also_a_void_one() -> None:
    """Else a void mark would hide that an output went back to before it."""
    one = decide(replace(MINE_PENDING, pending=LANDING), Written("topic", "a"), AUTHOR).after
    assert one.landed == {"topic": Landed(7, "a")}
    assert decide(one, Commit(RANGES, {"topic": "z", "delta": "b"}), AUTHOR).after.landed == {
        "topic": Landed(7, "a"),
        "delta": Landed(7, "b"),
    }
    dropped = decide(one, Abandon({"delta": "c"}), AUTHOR).after
    assert dropped.landed == {"topic": Landed(7, "a"), "delta": Landed(7, "c")}
    unsettled = replace(MINE, unsettled=LANDING, landed={"delta": Landed(5)})
    assert decide(unsettled, Settle({"topic": ""}), AUTHOR).after.landed == {"topic": Landed(7), "delta": Landed(5)}


def test_an_adopted_mark_raises_the_sequence_and_drops_a_batch_that_could_not_land_any_more() -> None:
    free = replace(ledger(Holder.FREE, pending=True), pending=LANDING)
    behind = decide(free, Adopt("topic", 6), AUTHOR).after
    assert (behind.pending, behind.sequence, behind.landed) == (LANDING, 7, {"topic": Landed(6)})
    same = decide(free, Adopt("topic", 7), AUTHOR).after
    assert (same.pending, same.unsettled, same.sequence) == (None, LANDING, 7)
    ahead = decide(free, Adopt("topic", 12), AUTHOR).after
    assert (ahead.pending, ahead.unsettled, ahead.sequence) == (None, LANDING, 12)
    held = replace(free, owner=RIVAL)
    refused(held, Adopt("topic", 12), Fenced)
    assert decide(held, Adopt("topic", 12, force=True), AUTHOR).after.owner is None
    for wrong in (-1, 1.5, True, MAX_ADOPTED + 1):
        refused(free, Adopt("topic", wrong), SettingsError)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize(("sequence", "noted"), [(6, ("other",)), (7, ("other",)), (8, ("topic", "other"))])
def test_an_adopted_mark_that_is_not_newer_forgets_that_the_output_has_the_batch(
    sequence: int, noted: tuple[str, ...]
) -> None:
    """Of a batch that a reset has dropped the note stayed: its records counted as done, and never came again."""
    batch = replace(LANDING, lands_in=("topic", "other"), written=("topic", "other"))
    free = replace(ledger(Holder.FREE, pending=True), pending=None, unsettled=batch)
    kept = decide(free, Adopt("topic", sequence), AUTHOR).after.unsettled
    assert kept is not None
    assert kept.written == noted
    if sequence < batch.sequence:
        pending = decide(replace(free, pending=batch, unsettled=None), Adopt("topic", sequence), AUTHOR).after.pending
        assert pending is not None
        assert pending.written == noted


def test_a_sequence_that_no_mark_can_hold_is_left_by_adopting_one_that_it_can() -> None:
    """And no other sequence falls: a batch of it may be in an output."""
    high = replace(MINE_PENDING, sequence=MAX_SEQUENCE, pending=replace(LANDING, sequence=MAX_SEQUENCE))
    change = decide(high, Adopt("topic", 6), AUTHOR)
    assert (change.entry.ranges, change.entry.having) == (RANGES, Having.SOME)
    down = change.after
    assert (down.pending, down.unsettled, down.sequence, down.landed) == (None, None, 6, {"topic": Landed(6)})
    idle = replace(high, pending=None)
    assert "no mark can hold a sequence after" in refused(idle, Begin(RANGES, ("topic",)), NotAllowed)
    assert decide(idle, Begin(RANGES), AUTHOR).after.sequence == MAX_SEQUENCE + 1  # no mark is written
    last = replace(idle, sequence=MAX_ADOPTED)
    assert decide(last, Adopt("topic", 6), AUTHOR).after.sequence == MAX_ADOPTED
    assert decide(last, Begin(RANGES, ("topic",)), AUTHOR).after.sequence == MAX_ADOPTED + 1


def test_the_last_twenty_sets_of_offsets_by_hand_are_remembered() -> None:
    """One that is given once more is the newest again, and is there once."""
    found = ledger(Holder.MINE, pending=False)
    for number in [*range(21), 3]:
        found = decide(found, Place({}, f"{number:016x}"), AUTHOR).after
    assert found.given == tuple(f"{number:016x}" for number in [1, 2, *range(4, 21), 3])
    assert decide(found, Place({UNKNOWN: Position(3, "id")}), AUTHOR).after.given == found.given
