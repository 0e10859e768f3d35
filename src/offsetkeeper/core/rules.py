"""All rules of a ledger, as one table. No I/O, no clock, no threads.

A group's ledger is in one of six states, seen from the process that asks:

    who holds the group                   and is a batch pending?
    FREE    no run                        no  (IDLE)
    MINE    the process that asks         yes (PENDING)
    TAKEN   another run

and only twelve events change it. Each cell of the table says what the event does in that state:

    event     FREE            MINE idle   MINE pending          TAKEN
    acquire   take            take        take                  take: the owner before is fenced
    release   -               free        free: batch stays     fenced
    place     -               place       place other parts     fenced
    begin     -               begin       take over             fenced
    written   -               -           note an output        fenced
    wait      -               tell        tell                  fenced
    commit    -               advance     advance pending       fenced
    abandon   -               -           drop                  fenced
    settle    -               settle      -                     fenced
    rewind    move            move        move; may drop it     only when forced: the owner is fenced
    forget    forget          forget      forget other parts    forget when forced: the owner is fenced
    adopt     accept          accept      accept                accept when forced: the owner is fenced

A rewind that moves no partition of the pending batch leaves it pending: the next run finishes it, and no record comes
twice. Otherwise the rewind drops the batch: see `drops`. A dropped batch may still be on its way into outputs that keep
marks. It stays in the ledger as unsettled, and no batch is begun or committed before the next run has settled it. If
all outputs turn out to have it, its records count as done in the partitions that no rewind has moved. A rewind that
takes back all rewinds since the batch makes it pending again, before a run has looked at the outputs. If no output of a
dropped batch keeps a mark, no start can ask for it. The entry of the change has its ranges, and says if some have it.

A batch that is pending is taken over if another program begins it again for its own outputs, and gets more outputs if
a redeploy has added them: see `Begin`.

A pair that is not in the table raises an error and changes nothing. The function of each event checks the rest.
A batch gets the token of the owner that begins it, and keeps it. Each acquire makes a new token, so no two batches have
the same id, even if a backup is restored or a ledger is deleted and created again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from offsetkeeper.core.batch import (
    NO_OUTPUTS,
    NO_QUERIES,
    Batch,
    Kind,
    Output,
    Program,
    Queries,
    QueryBatch,
    check_output,
    check_query,
)
from offsetkeeper.core.model import (
    MAX_SEQUENCE,
    NO_CUTS,
    Change,
    Count,
    Counts,
    Cuts,
    Entry,
    Forgot,
    Having,
    Landed,
    Move,
    Moves,
    Owner,
    Snapshot,
    check_sequence,
    unasked,
)
from offsetkeeper.core.offsets import (
    MAX_OFFSET,
    OffsetRange,
    Position,
    Positions,
    TopicPartition,
    check_offset,
    check_partition,
)
from offsetkeeper.core.query_rows import check_kept
from offsetkeeper.errors import Fenced, NotAllowed, OffsetkeeperError, RangeMismatch

Targets = Mapping[str, str]
NO_TARGETS: Targets = MappingProxyType({})
NOTHING_LANDED: Mapping[str, Landed] = MappingProxyType({})
MAX_GIVEN = 20  # digests of offsets given by hand: a rollback goes back over fewer releases with such offsets


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take the group as a new owner. `owner.epoch` must be one more than the ledger's.

    `outputs` is what the run writes to, and `partly` the topics of which it reads chosen partitions alone. An owner
    that writes nothing is no run, and the ledger keeps those of the run before.
    """

    owner: Owner
    outputs: Mapping[str, Output] = field(default_factory=lambda: NO_OUTPUTS)
    partly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Release the group; a pending batch stays for the next owner."""


@dataclass(frozen=True, slots=True)
class Place:
    """Set positions as the plan decided: first runs, new partitions, offsets from the user or from a policy.

    `given` is the digest of the offsets that the user gave for this start; empty if none. `queries` has the number of
    the next batch of queries with state. `cuts` and `mirror` are as in `Entry`.
    """

    positions: Mapping[TopicPartition, Position]
    given: str = ""
    queries: Queries = field(default_factory=lambda: NO_QUERIES)
    cuts: Cuts = field(default_factory=lambda: NO_CUTS)
    mirror: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Record the intent to process exactly these ranges, and the outputs that keep marks.

    `landed` has the identity of the target of each output that has no batch yet. `query` is the number that a query
    with state gives the batch; only such a batch may have no ranges. `watermark_ms` is that of the batch.

    If a batch is pending, another program takes it over: with its ranges and its id, for outputs of its own. `landed`
    then has what these outputs have. What the ledger knew of outputs with these names was of those of the program
    before. If the program has all outputs that the batch was begun for, it is a redeploy. Then only more outputs are
    noted: those of `program`, and those of `lands_in`, which also has one that keeps a mark since then.
    """

    ranges: tuple[OffsetRange, ...]
    lands_in: tuple[str, ...] = ()
    landed: Mapping[str, Landed] = field(default_factory=lambda: NOTHING_LANDED)
    program: Program | None = None
    query: QueryBatch | None = None
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Record that one of several outputs has the pending batch, so that it is not written again.

    `target` is the identity of its target, if it keeps a mark; see `Landed`.
    """

    output: str
    target: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A run waits for an output that is away. Only the history says it: the reason of its entry has since when."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Record that these ranges are processed; if a batch is pending, they must be its ranges, and `query` its query.

    `targets` has the identity of the target of each output that keeps a mark, if it is known; see `Landed`.
    `watermark_ms` is that of the query's batch.
    """

    ranges: tuple[OffsetRange, ...]
    targets: Targets = field(default_factory=lambda: NO_TARGETS)
    query: QueryBatch | None = None
    watermark_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Abandon:
    """Drop the pending batch; its sequence is never used again.

    `targets` has each output whose mark now says that the batch can no longer land, with the identity of its target.
    `having` says which outputs have the batch.
    """

    targets: Targets = field(default_factory=lambda: NO_TARGETS)
    having: Having = Having.NONE


@dataclass(frozen=True, slots=True)
class Settle:
    """Record that the unsettled batch can no longer land; `targets` and `having` as in `Abandon`.

    If all outputs have it, its ranges in partitions that no rewind has moved are processed.
    """

    targets: Targets = field(default_factory=lambda: NO_TARGETS)
    having: Having = Having.NONE


@dataclass(frozen=True, slots=True)
class Adopt:
    """Accept the mark of an output as it is, as an operator decided. `force` fences a live owner."""

    output: str
    sequence: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Rewind:
    """Set positions as an operator decided, forwards or backwards. `force` fences a live owner.

    `queries` sets the number of the next batch of queries with state. `stays` are partitions that the operator names
    too, and that are already where they are to be: what a dropped batch has of them is read again. `restores` says that
    this takes back the rewind that dropped the unsettled batch: it is pending again. `cuts` is as in `Entry`.
    """

    positions: Mapping[TopicPartition, Position]
    force: bool = False
    queries: Queries = field(default_factory=lambda: NO_QUERIES)
    stays: tuple[TopicPartition, ...] = ()
    restores: bool = False
    cuts: Cuts = field(default_factory=lambda: NO_CUTS)


@dataclass(frozen=True, slots=True)
class Forget:
    """Take positions out of the ledger, as an operator decided. `force` fences a live owner.

    Stores keep the rows, for other programs: `Snapshot.forgotten`. A position that the store has lost can be forgotten
    too.
    """

    partitions: tuple[TopicPartition, ...]
    force: bool = False


Event = Acquire | Release | Place | Begin | Written | Wait | Commit | Abandon | Settle | Rewind | Forget | Adopt


def event_name(event: type[Event]) -> str:
    """Return the name of an event in histories; that of `Written` is as the first releases wrote it."""
    return "mark" if event is Written else event.__name__.lower()


class Holder(Enum):
    """Who holds the group, seen from the process that asks."""

    FREE = auto()
    MINE = auto()
    TAKEN = auto()


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, when and why: for the history, and to find out the outcome after a lost reply."""

    owner_id: str
    name: str
    at_ms: int
    change_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Outcome:
    after: Snapshot
    moves: Moves = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    token: str = ""
    cuts: Cuts = field(default_factory=dict)
    having: Having = Having.NONE
    forgot: Forgot = field(default_factory=dict)
    mirror: bool = False


def state_of(snapshot: Snapshot, owner_id: str) -> tuple[Holder, bool]:
    """Return who holds the group as `owner_id` sees it, and whether a batch is pending."""
    pending = snapshot.pending is not None
    if snapshot.owner is None:
        return Holder.FREE, pending
    return (Holder.MINE if snapshot.owner.id == owner_id else Holder.TAKEN), pending


def decide(snapshot: Snapshot, event: Event, author: Author) -> Change:
    """Return the change that `event` makes to the ledger; nothing is written.

    Raises:
        Fenced: another run holds the group.
        NotAllowed: the event does not fit the state.
        RangeMismatch: the ranges do not start at the positions, overlap, are empty, or are not those of the pending
            batch.
        SettingsError: an offset or a position is not valid.
    """
    holder, pending = state_of(snapshot, author.owner_id)
    rule = TABLE.get((type(event), holder, pending))
    if rule is None:
        raise _refusal(snapshot, event, holder)
    outcome = rule(snapshot, event)
    after = replace(
        outcome.after,
        version=snapshot.version + 1,
        positions=_moved(snapshot, outcome),
        forgotten=_forgotten(snapshot, outcome),
        queries={**snapshot.queries, **{query: count.after for query, count in outcome.counts.items()}},
        watermark_ms=event.watermark_ms if isinstance(event, Commit) else _kept_watermark(snapshot, outcome),
        missing=snapshot.missing.difference(outcome.moves, outcome.forgot),
        change_id=author.change_id,
    )
    entry = Entry(
        version=after.version,
        event=event_name(type(event)),
        change_id=author.change_id,
        at_ms=author.at_ms,
        actor=author.name,
        reason=author.reason,
        epoch=after.epoch,
        generation=after.generation,
        sequence=after.sequence,
        token=outcome.token,
        ranges=outcome.ranges,
        moves={} if isinstance(event, Commit) else outcome.moves,
        counts=outcome.counts,
        cuts=outcome.cuts,
        having=outcome.having,
        forgot=outcome.forgot,
        mirror=outcome.mirror,
    )
    return Change(before=snapshot, after=after, moves=_of_rows(snapshot, outcome.moves), entry=entry)


def check_ranges(
    snapshot: Snapshot, ranges: tuple[OffsetRange, ...], query: QueryBatch | None = None
) -> dict[TopicPartition, int]:
    """Check that `ranges` are sorted, not empty, and follow the positions without gap or overlap, and `query` too.

    One partition may have several ranges, each starting where the one before ends.

    Returns:
        The position of each partition after the ranges.

    Raises:
        RangeMismatch: a range is wrong; the message names the first one.
        SettingsError: a partition or an offset in the ranges is not valid.
    """
    if query is not None and query.number != snapshot.queries.get(query.query):
        counted = snapshot.queries.get(query.query)
        where = "is not counted" if counted is None else f"is at batch {counted}"
        raise RangeMismatch(f"group {snapshot.group!r}: {query} cannot follow: the query {where}")
    if not ranges and query is None:
        raise RangeMismatch(f"group {snapshot.group!r}: a batch needs at least one range")
    positions = snapshot.positions
    reached: dict[TopicPartition, int] = {}
    for r in ranges:
        topic, partition, start, end = r
        tp = TopicPartition(topic, partition)
        stored = positions.get(tp)
        if stored is None or type(partition) is not int:
            check_partition(tp)
        expected = reached.get(tp, stored.offset if stored else None)
        if type(start) is not int or start != expected:
            check_offset(start)
            where = "has no position" if expected is None else f"is at {expected}"
            raise RangeMismatch(f"group {snapshot.group!r}: range '{r}' cannot follow: the partition {where}")
        if type(end) is not int or not start < end <= MAX_OFFSET:
            check_offset(end)
            raise RangeMismatch(f"group {snapshot.group!r}: range '{r}' is empty or runs backwards")
        reached[tp] = end
    if list(ranges) != sorted(ranges):
        raise RangeMismatch(f"group {snapshot.group!r}: ranges must be sorted by topic, partition and start")
    return reached


def drops(pending: Batch, moved: Collection[TopicPartition]) -> bool:
    """Return whether a rewind that moves these partitions drops the pending batch.

    It does if one of them is in the batch. And it drops each batch of a query with state: only the query's checkpoint
    can finish it, and no checkpoint fits the ledger after a rewind.
    """
    return pending.kind is Kind.QUERY or any(r.topic_partition in moved for r in pending.ranges)


def _moved(snapshot: Snapshot, outcome: _Outcome) -> Positions:
    if not outcome.moves and not outcome.forgot:
        return snapshot.positions
    kept = {tp: at for tp, at in snapshot.positions.items() if tp not in outcome.forgot}
    return MappingProxyType({**kept, **{tp: move.after for tp, move in outcome.moves.items()}})


def _forgotten(snapshot: Snapshot, outcome: _Outcome) -> Positions:
    if not outcome.forgot and snapshot.forgotten.keys().isdisjoint(outcome.moves):
        return snapshot.forgotten
    rows = {tp: Position(at.offset, at.topic_id) for tp, at in outcome.forgot.items() if at is not None}
    return {**{tp: at for tp, at in snapshot.forgotten.items() if tp not in outcome.moves}, **rows}


def _kept_watermark(snapshot: Snapshot, outcome: _Outcome) -> int | None:
    """Return the watermark of the last batch, as long as the positions are those after it; new ones may be added."""
    return None if outcome.forgot or _sets_anew(outcome.moves, outcome.counts) else snapshot.watermark_ms


def _of_rows(snapshot: Snapshot, moves: Moves) -> Moves:
    """Return the moves of rows: a forgotten position still has one."""
    if snapshot.forgotten.keys().isdisjoint(moves):
        return moves
    return {tp: Move(snapshot.rows.get(tp), move.after) for tp, move in moves.items()}


def _refusal(snapshot: Snapshot, event: Event, holder: Holder) -> OffsetkeeperError:
    name = event_name(type(event))
    if holder is Holder.TAKEN and snapshot.owner is not None:
        owner = f"{snapshot.owner.name or snapshot.owner.id} (epoch {snapshot.owner.epoch})"
        return Fenced(
            f"group {snapshot.group!r} is held by {owner}, so this {name} was refused; nothing was changed. "
            "Only one run may work for a group: stop the other run first, or let this run end."
            + " If the other one is dead, give --force."
            * hasattr(event, "force")
        )
    held = "no run holds the group: acquire it first" if holder is Holder.FREE else "this run holds the group"
    batch = f"batch {snapshot.pending.id} is pending" if snapshot.pending else "no batch is pending"
    return NotAllowed(f"group {snapshot.group!r}: {name} is not allowed while {held}; {batch}")


def _acquire(snapshot: Snapshot, event: Acquire) -> _Outcome:
    if event.owner.epoch != snapshot.epoch + 1:
        raise NotAllowed(f"group {snapshot.group!r}: the next epoch is {snapshot.epoch + 1}, not {event.owner.epoch}")
    run = event if event.outputs else snapshot
    taken = replace(snapshot, owner=event.owner, epoch=event.owner.epoch, outputs=run.outputs, partly=run.partly)
    return _Outcome(taken)


def _release(snapshot: Snapshot, _: Release) -> _Outcome:
    return _Outcome(replace(snapshot, owner=None))


def _place(snapshot: Snapshot, event: Place) -> _Outcome:
    busy = snapshot.pending.partitions if snapshot.pending else set()
    taken = sorted(busy & set(event.positions))
    if taken:
        raise NotAllowed(
            f"group {snapshot.group!r}: {taken[0]} is in the pending batch; commit or abandon this batch first"
        )
    if snapshot.pending is not None and snapshot.pending.query is not None and event.queries:
        raise NotAllowed(
            f"group {snapshot.group!r}: {snapshot.pending.query} is pending; commit or abandon this batch first"
        )
    outcome = _move(snapshot, event.positions, event.queries)
    outcome = _with_cuts(outcome, event.cuts)
    given = snapshot.given
    if event.given:
        given = (*(each for each in given if each != event.given), event.given)[-MAX_GIVEN:]
    return replace(outcome, after=replace(outcome.after, given=given), mirror=event.mirror)


def _rewind(snapshot: Snapshot, event: Rewind) -> _Outcome:
    outcome = _with_cuts(_move(snapshot, event.positions, event.queries), event.cuts)
    after, pending = outcome.after, snapshot.pending
    if pending is not None and drops(pending, outcome.moves):
        after = _dropped(after)
        if not pending.lands_in:  # no start will settle it
            outcome = _with_dropped(outcome, pending)
    named = {*outcome.moves, *event.stays}
    after = replace(after, generation=snapshot.generation + 1, unsettled=_with_moved(after.unsettled, named))
    return replace(outcome, after=_restored(after, outcome) if event.restores else after)


def _with_cuts(outcome: _Outcome, cuts: Cuts) -> _Outcome:
    return replace(outcome, cuts={tp: cuts[tp] for tp in outcome.moves if tp in cuts})


def _restored(after: Snapshot, outcome: _Outcome) -> Snapshot:
    """Return a ledger with its unsettled batch pending again."""
    batch = after.unsettled
    if batch is None or after.pending is not None or batch.sequence != after.sequence:
        raise NotAllowed(f"group {after.group!r}: no batch can be made pending again")
    queries = {**after.queries, **{query: count.after for query, count in outcome.counts.items()}}
    there = replace(after, positions=_moved(after, outcome), queries=queries)
    check_ranges(there, batch.ranges, batch.query)
    return replace(after, pending=replace(batch, moved=()), unsettled=None)


def _rewind_taken(snapshot: Snapshot, event: Rewind) -> _Outcome:
    if not event.force:
        raise _refusal(snapshot, event, Holder.TAKEN)
    return _rewind(replace(snapshot, owner=None), event)


def check_forget(snapshot: Snapshot, partitions: Collection[TopicPartition]) -> None:
    """Check that positions can be taken out of the ledger.

    Raises:
        NotAllowed: a partition has no position, or is in a batch that is pending or unsettled.
    """
    for batch, what in ((snapshot.pending, "pending"), (snapshot.unsettled, "unsettled")):
        busy = sorted(batch.partitions.intersection(partitions)) if batch else ()
        if busy:
            raise NotAllowed(
                f"group {snapshot.group!r}: {busy[0]} is in batch {batch and batch.id}, which is {what}: the next "
                "start deals with it. Forget the position after that"
            )
    unknown = sorted({*partitions} - snapshot.positions.keys() - snapshot.missing)
    if unknown:
        raise NotAllowed(f"group {snapshot.group!r} has no position of {unknown[0]}: there is nothing to forget")


def _forget(snapshot: Snapshot, event: Forget) -> _Outcome:
    check_forget(snapshot, event.partitions)
    forgot = {tp: snapshot.positions.get(tp) for tp in sorted(event.partitions)}
    return _Outcome(replace(snapshot, generation=snapshot.generation + 1), forgot=forgot)


def _forget_taken(snapshot: Snapshot, event: Forget) -> _Outcome:
    if not event.force:
        raise _refusal(snapshot, event, Holder.TAKEN)
    return _forget(replace(snapshot, owner=None), event)


def _move(snapshot: Snapshot, positions: Mapping[TopicPartition, Position], queries: Queries) -> _Outcome:
    moves = {}
    for tp, position in sorted(positions.items()):
        check_offset(position.offset)
        before = snapshot.positions.get(check_kept(check_partition(tp)))
        if before != position:
            moves[tp] = Move(before, position)
    stored = snapshot.queries
    counts = {
        check_query(query): Count(stored.get(query), number)
        for query, number in sorted(queries.items())
        if stored.get(query) != check_offset(number)
    }
    return _Outcome(replace(snapshot, generation=snapshot.generation + _sets_anew(moves, counts)), moves, counts)


def _sets_anew(moves: Moves, counts: Counts) -> bool:
    """Whether a change sets a position or a number that was there, and does not only add new ones."""
    jumped = any(move.before is not None and move.before.offset != move.after.offset for move in moves.values())
    return jumped or any(count.before is not None for count in counts.values())


def _begin(snapshot: Snapshot, event: Begin) -> _Outcome:
    _check_settled(snapshot)
    if snapshot.sequence >= MAX_SEQUENCE and event.lands_in:
        raise NotAllowed(
            f"group {snapshot.group!r}: no mark can hold a sequence after {snapshot.sequence}, which was adopted. "
            "Nothing was written: adopt the sequence of the output's mark, or 0 if it has none"
        )
    check_ranges(snapshot, event.ranges, event.query)
    batch = Batch(
        snapshot.group,
        _token(snapshot),
        snapshot.sequence + 1,
        event.ranges,
        lands_in=event.lands_in,
        program=event.program,
        query=event.query,
        watermark_ms=event.watermark_ms,
    )
    after = replace(snapshot, pending=batch, sequence=batch.sequence, landed=_noted_targets(snapshot, event))
    return _Outcome(after, ranges=event.ranges, token=batch.token)


def _noted_targets(snapshot: Snapshot, event: Begin) -> Mapping[str, Landed]:
    """Return `landed` with the targets of outputs that have no batch yet."""
    first = {name: landed for name, landed in event.landed.items() if snapshot.landed_in(name) == Landed()}
    return {**snapshot.landed, **first}


def _take_over(snapshot: Snapshot, event: Begin) -> _Outcome:
    pending = snapshot.pending
    if pending is None or event.program is None:
        raise _refusal(snapshot, event, Holder.MINE)
    if pending.program is not None and pending.program.outputs.items() <= event.program.outputs.items():
        return _widen(snapshot, pending, event)
    _check_pending(snapshot, event)
    if pending.written_unmarked:
        raise NotAllowed(
            f"group {snapshot.group!r}: output {pending.written_unmarked[0]!r} of another program has batch "
            f"{pending.id} and keeps no mark, so this program cannot take the batch over"
        )
    batch = replace(pending, program=event.program, lands_in=event.lands_in, written=())
    after = replace(snapshot, pending=batch, landed={**snapshot.landed, **event.landed})
    # The ledger no longer asks the outputs that it was begun for.
    return _Outcome(after, ranges=event.ranges, token=batch.token, having=Having.MAYBE)


def _widen(snapshot: Snapshot, pending: Batch, event: Begin) -> _Outcome:
    """Return the ledger with the outputs that a redeploy has beside those that the pending batch was begun for.

    One that has the batch by the ledger's note alone does not get it again, so no mark of it is to be asked.
    """
    known = {*pending.lands_in, *pending.written}
    more = tuple(name for name in event.lands_in if name not in known)
    if event.program == pending.program and not more:
        raise _refusal(snapshot, event, Holder.MINE)
    _check_pending(snapshot, event)
    batch = replace(pending, program=event.program, lands_in=(*pending.lands_in, *more))
    after = replace(snapshot, pending=batch, landed=_noted_targets(snapshot, event))
    return _Outcome(after, ranges=event.ranges, token=batch.token)


def _wait(snapshot: Snapshot, _: Wait) -> _Outcome:
    return _Outcome(snapshot)


def _written(snapshot: Snapshot, event: Written) -> _Outcome:
    pending = snapshot.pending
    began = {*pending.program.outputs} if pending is not None and pending.program is not None else set[str]()
    if event.output not in began:  # an only output has no name, also after a redeploy has made it one of several
        check_output(event.output)
    if pending is None or event.output in pending.written:
        raise NotAllowed(f"group {snapshot.group!r}: output {event.output!r} is already marked")
    pending = replace(pending, written=(*pending.written, event.output))
    landed = _landed(snapshot, pending, {event.output: event.target} if event.output in pending.lands_in else {})
    return _Outcome(replace(snapshot, pending=pending, landed=landed), token=pending.token)


def _commit(snapshot: Snapshot, event: Commit) -> _Outcome:
    _check_settled(snapshot)
    ends = check_ranges(snapshot, event.ranges, event.query)
    sequence = snapshot.sequence if snapshot.pending else snapshot.sequence + 1
    pending = snapshot.pending
    landed = snapshot.landed if pending is None else _landed(snapshot, pending, _left(pending, event.targets))
    after = replace(snapshot, pending=None, sequence=sequence, landed=landed)
    moves, positions = {}, snapshot.positions
    for tp, end in ends.items():
        before = positions[tp]
        moves[tp] = Move(before, before._replace(offset=end))
    counts = {} if event.query is None else {event.query.query: Count(event.query.number, event.query.number + 1)}
    return _Outcome(after, moves, counts, event.ranges, _token(snapshot))


def _commit_pending(snapshot: Snapshot, event: Commit) -> _Outcome:
    _check_pending(snapshot, event)
    return _commit(snapshot, event)


def _abandon(snapshot: Snapshot, event: Abandon) -> _Outcome:
    batch = snapshot.pending
    if batch is None:
        raise NotAllowed(f"group {snapshot.group!r}: no batch is pending")
    landed = _landed(snapshot, batch, event.targets)
    after = replace(snapshot, pending=None, landed=landed)
    return _Outcome(after, ranges=batch.ranges, token=batch.token, having=event.having)


def _settle(snapshot: Snapshot, event: Settle) -> _Outcome:
    batch = snapshot.unsettled
    if batch is None:
        raise NotAllowed(f"group {snapshot.group!r}: no batch is unsettled")
    landed = _landed(snapshot, batch, event.targets)
    moves: dict[TopicPartition, Move] = {}
    for r in batch.counts(snapshot.positions) if event.having is Having.ALL else ():
        before = snapshot.positions[r.topic_partition]
        moves[r.topic_partition] = Move(before, before._replace(offset=r.end))
    after = replace(snapshot, unsettled=None, landed=landed)
    return _Outcome(after, moves, ranges=batch.ranges, token=batch.token, having=event.having)


def _landed(snapshot: Snapshot, batch: Batch, targets: Targets) -> Mapping[str, Landed]:
    """Return `landed` after the outputs in `targets` got the mark of a batch, of its rows or a void one."""
    return {**snapshot.landed, **{name: Landed(batch.sequence, target) for name, target in targets.items()}}


def _left(pending: Batch, targets: Targets) -> Targets:
    """Return the target of each output that gets the pending batch's mark with its commit, empty if unknown."""
    return {name: targets.get(name, "") for name in pending.lands_in if name not in pending.written}


def _adopt(snapshot: Snapshot, event: Adopt) -> _Outcome:
    check_sequence(event.sequence)
    before = snapshot.pending or snapshot.unsettled
    if snapshot.sequence >= MAX_SEQUENCE:  # the one way down: no mark can hold the next one
        snapshot = replace(snapshot, sequence=0, pending=None, unsettled=None)
    passed = snapshot.pending is not None and event.sequence >= snapshot.pending.sequence
    asked = _unwritten(snapshot, event)
    after = _dropped(asked) if passed else asked
    landed = {**snapshot.landed, event.output: Landed(event.sequence)}
    outcome = _Outcome(replace(after, sequence=max(snapshot.sequence, event.sequence), landed=landed))
    if before is None or after.pending is not None or after.unsettled is not None:
        return outcome
    return _with_dropped(outcome, before)


def _adopt_taken(snapshot: Snapshot, event: Adopt) -> _Outcome:
    if not event.force:
        raise _refusal(snapshot, event, Holder.TAKEN)
    return _adopt(replace(snapshot, owner=None), event)


def _unwritten(snapshot: Snapshot, event: Adopt) -> Snapshot:
    """Return the ledger without the note that an output has a batch, unless its mark is of a later one.

    The output is asked again. It lacks a batch that is newer than its mark, and may lack that of its mark: the mark may
    have outlived the rows.
    """

    def without(batch: Batch | None) -> Batch | None:
        if batch is None or event.output not in batch.lands_in or event.sequence > batch.sequence:
            return batch
        return replace(batch, written=tuple(name for name in batch.written if name != event.output))

    return replace(snapshot, pending=without(snapshot.pending), unsettled=without(snapshot.unsettled))


def _dropped(snapshot: Snapshot) -> Snapshot:
    """Return the ledger without its pending batch; if that batch may still land, it becomes unsettled."""
    pending = snapshot.pending
    return replace(snapshot, pending=None, unsettled=pending if pending and pending.lands_in else snapshot.unsettled)


def _with_dropped(outcome: _Outcome, batch: Batch) -> _Outcome:
    """Return an outcome whose entry names a dropped batch: no start will ask the outputs for it."""
    return replace(outcome, ranges=batch.ranges, token=batch.token, having=unasked(batch))


def _with_moved(unsettled: Batch | None, named: Collection[TopicPartition]) -> Batch | None:
    """Return an unsettled batch that knows where a rewind has set it: there the operator's word counts."""
    if unsettled is None:
        return None
    return replace(unsettled, moved=tuple(sorted({*unsettled.moved, *unsettled.partitions.intersection(named)})))


def _check_pending(snapshot: Snapshot, event: Begin | Commit) -> None:
    pending = snapshot.pending
    if pending is not None and (event.ranges, event.query) != (pending.ranges, pending.query):
        raise RangeMismatch(
            f"group {snapshot.group!r}: the ranges are not those of the pending batch {pending.id}; "
            "first process or abandon that batch"
        )


def _check_settled(snapshot: Snapshot) -> None:
    if snapshot.unsettled is not None:
        raise NotAllowed(f"group {snapshot.group!r}: batch {snapshot.unsettled.id} is unsettled; settle it first")


def _token(snapshot: Snapshot) -> str:
    """Return the token of the pending batch, else the token of the owner, for the next batch."""
    if snapshot.pending is not None:
        return snapshot.pending.token
    return snapshot.owner.id if snapshot.owner is not None else ""


_IDLE, _PENDING = False, True
# The table pairs each event type with the function for that type; a type checker cannot follow this.
Rule = Callable[[Snapshot, Any], _Outcome]

TABLE: Mapping[tuple[type[Event], Holder, bool], Rule] = MappingProxyType(
    {
        (Acquire, Holder.FREE, _IDLE): _acquire,
        (Acquire, Holder.FREE, _PENDING): _acquire,
        (Acquire, Holder.MINE, _IDLE): _acquire,
        (Acquire, Holder.MINE, _PENDING): _acquire,
        (Acquire, Holder.TAKEN, _IDLE): _acquire,
        (Acquire, Holder.TAKEN, _PENDING): _acquire,
        (Release, Holder.MINE, _IDLE): _release,
        (Release, Holder.MINE, _PENDING): _release,
        (Place, Holder.MINE, _IDLE): _place,
        (Place, Holder.MINE, _PENDING): _place,
        (Begin, Holder.MINE, _IDLE): _begin,
        (Begin, Holder.MINE, _PENDING): _take_over,
        (Written, Holder.MINE, _PENDING): _written,
        (Wait, Holder.MINE, _IDLE): _wait,
        (Wait, Holder.MINE, _PENDING): _wait,
        (Commit, Holder.MINE, _IDLE): _commit,
        (Commit, Holder.MINE, _PENDING): _commit_pending,
        (Abandon, Holder.MINE, _PENDING): _abandon,
        (Settle, Holder.MINE, _IDLE): _settle,
        (Rewind, Holder.FREE, _IDLE): _rewind,
        (Rewind, Holder.FREE, _PENDING): _rewind,
        (Rewind, Holder.MINE, _IDLE): _rewind,
        (Rewind, Holder.MINE, _PENDING): _rewind,
        (Rewind, Holder.TAKEN, _IDLE): _rewind_taken,
        (Rewind, Holder.TAKEN, _PENDING): _rewind_taken,
        (Forget, Holder.FREE, _IDLE): _forget,
        (Forget, Holder.FREE, _PENDING): _forget,
        (Forget, Holder.MINE, _IDLE): _forget,
        (Forget, Holder.MINE, _PENDING): _forget,
        (Forget, Holder.TAKEN, _IDLE): _forget_taken,
        (Forget, Holder.TAKEN, _PENDING): _forget_taken,
        (Adopt, Holder.FREE, _IDLE): _adopt,
        (Adopt, Holder.FREE, _PENDING): _adopt,
        (Adopt, Holder.MINE, _IDLE): _adopt,
        (Adopt, Holder.MINE, _PENDING): _adopt,
        (Adopt, Holder.TAKEN, _IDLE): _adopt_taken,
        (Adopt, Holder.TAKEN, _PENDING): _adopt_taken,
    }
)
