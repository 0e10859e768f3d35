"""What must hold in every history, checked at the step that would break it. The letters are those of docs/proof.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from offsetkeeper.core.batch import DEAD_LETTERS, Batch
from offsetkeeper.core.mark import Landing
from offsetkeeper.core.model import Change, Guarantee, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition
from offsetkeeper.errors import (
    CheckpointMismatch,
    CorruptStore,
    Fenced,
    MarkAhead,
    MarkBehind,
    MarkMismatch,
    OffsetkeeperError,
    ReadStalled,
    Refused,
    StartRefused,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.testing.simulator.checkpoint import SparkError
from offsetkeeper.testing.simulator.outputs import POISON, known

if TYPE_CHECKING:
    from offsetkeeper.testing.simulator.schedule import Actor
    from offsetkeeper.testing.simulator.store import ModelStore, Record, Row
    from offsetkeeper.testing.simulator.world import World

_REFUSALS = (Refused, MarkAhead, MarkBehind, MarkMismatch)
_OF_THE_OWNER = {"release", "place", "begin", "mark", "wait", "commit", "abandon", "settle"}


class Promises:
    """Watches one history.

    Args:
        world: in which it happens.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ranges: dict[str, tuple[OffsetRange, ...]] = {}
        self._begun: set[str] = set()
        self._tokens: set[str] = set()  # of all owners
        self._committed: dict[str, tuple[OffsetRange, ...]] = {}
        self._dropped: set[str] = set()
        self._taken_over: set[str] = set()
        self._void: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._skipped: dict[TopicPartition, Position] = {}

    def applied(self, change: Change, owner_id: str) -> None:
        """Check a change that takes effect now."""
        before, after, entry = change.before, change.after, change.entry
        self._tokens |= {after.owner.id} if after.owner else set()
        if after.version != before.version + 1 or entry.version != after.version:
            self._broken("e", f"version {after.version} follows version {before.version}")
        if entry.event in _OF_THE_OWNER and (before.owner is None or before.owner.id != owner_id):
            self._broken("d", f"a {entry.event} of {owner_id} takes effect, but the group is {before.owner}'s")
        anew = self._world.repeats and not before.version  # a ledger that was deleted looks like one that never was
        if entry.change_id in self._refused and not anew:
            self._broken(
                "f", f"a {entry.event} takes effect, although its sender got the answer that it surely does not"
            )
        if entry.event == "acquire" and after.epoch <= before.epoch:
            self._broken("e", f"an owner has epoch {after.epoch}, and the one before had {before.epoch}")
        if after.sequence < before.sequence or (entry.event == "abandon" and after.sequence != before.sequence):
            self._broken("c", f"sequence {before.sequence} is followed by {after.sequence}, so that ids come again")
        self._check_positions(change)
        self._check_batch(change)

    def writing(self, output: str, batch: Batch) -> None:
        """Check a batch that the current actor is about to write into an output apart."""
        world = self._world
        actor, pending = world.schedule.current, world.store.state.snapshot.pending
        self._check_identity(batch.id, batch.ranges)
        if actor is not None and actor.fenced:
            self._broken("d", f"{actor.name} writes batch {batch.id}, though it has seen that the group is another's")
        if world.scenario.guarantee is Guarantee.AT_MOST_ONCE:
            if batch.id not in self._committed:
                self._broken("h", f"batch {batch.id} is written before it is committed")
        elif world.scenario.dead_letters and batch.token not in self._tokens:
            self._dropped.add(batch.id)  # a quarantine tries it: what a function writes then stays, and comes again
        elif batch.id not in self._begun:
            self._broken("c", f"batch {batch.id} is written, and was never begun")
        if actor is not None and (batch.id, output) in actor.returned:
            self._broken("g", f"{actor.name} writes batch {batch.id} into {output!r} again, where it has written it")
        if pending is None or pending.id != batch.id or not self._owns(actor):
            return
        written = {*map(known, pending.written)}
        if output in written:
            self._broken("g", f"the owner writes batch {batch.id} into {output!r}, which the ledger marks as written")
        if output != DEAD_LETTERS:
            self._check_marks(batch.id, written, world.apart[: world.apart.index(output)])

    def landing(self, output: str, target: str) -> None:
        """Check that who lands a batch, or a void mark, has seen the target that the ledger knows."""
        landed = self._world.store.state.snapshot.landed_in(output)
        if landed.sequence and landed.target not in {"", target}:
            self._broken("i", f"{output!r} has its batches in target {landed.target}, and {target} gets the next one")

    def sends(self, change: Change) -> None:
        """Note that a change is sent, perhaps once more under the same id: then it may take effect."""
        self._refused.discard(change.after.change_id)

    def told(self, store: ModelStore, change: Change, error: Exception | None) -> None:
        """Compare the answer to the sender of a change with the content of the store."""
        stored = store.has(change.after.change_id)
        event = change.entry.event
        if error is None and not stored:
            self._broken("f", f"a {event} is reported as stored, and is not")
        refused = isinstance(error, StoreUnavailable | VersionConflict) or (
            isinstance(error, Fenced) and "was refused" in str(error)
        )
        if refused and stored:
            self._broken("f", f"a {event} is reported as surely not stored, and is")
        if refused:
            self._refused.add(change.after.change_id)

    def at_the_end(self, last: Actor) -> None:
        """Check what a user would count, after the last owner has worked undisturbed."""
        world = self._world
        for actor in world.schedule.actors:
            expected = isinstance(actor.raised, OffsetkeeperError | SparkError) or _wrote_none(actor.raised)
            if actor.raised is not None and not expected:
                self._broken("r", f"{actor.name} ends with an unexpected error: {actor.raised!r}")
            if isinstance(actor.raised, _REFUSALS) and not self._disturbed():
                self._broken("s", f"{actor.name} ends with {actor.raised!r}, and only other runs have changed anything")
        if last.raised is not None:
            if self._may_end_with(last.raised):
                return
            self._broken("liveness", f"the last owner, undisturbed, ends with {last.raised!r}")
        for name in world.scenario.every_output:
            tables = [world.rows_of(name, program) for program in range(len(world.scenario.tables))]
            rows: Counter[Row] = sum(tables, Counter())
            self._check_rows(name, self._once_taken_over(tables))
            wrong = sorted(row.record for row in rows if not self._belongs(row.record, name))
            if wrong:
                self._broken("q", f"{name!r} has {wrong}, which belong elsewhere")
        state = world.checkpoint.state.get(world.checkpoint.done())
        if world.scenario.stateful and not (world.repeats or world.mixed) and state != Counter(world.cluster.records()):
            self._broken("a", f"the state of the query holds {state}")

    def _disturbed(self) -> bool:
        """Whether others than runs of the one program can have changed anything."""
        scenario = self._world.scenario
        return len({*scenario.actors.values()}) > 1 or bool(scenario.events) or scenario.own_checkpoints

    def _may_end_with(self, raised: Exception) -> bool:
        world = self._world
        if _wrote_none(raised):
            return True  # where few records are left, all of them may fail
        if isinstance(raised, StartRefused):
            return self._may_refuse()
        if isinstance(raised, CorruptStore | SparkError):
            return world.mixed  # Spark itself reports an edit of its checkpoint during the run
        if isinstance(raised, CheckpointMismatch):
            # An operator, or a policy on another cluster, has moved ledger or checkpoint away from the other.
            return world.repeats or world.edited or world.cluster.led
        return isinstance(raised, ReadStalled)  # a part of the batch is in a transaction that never ends here

    def _check_positions(self, change: Change) -> None:
        before, after = change.before, change.after
        for tp, position in before.positions.items():
            moved = after.positions.get(tp)
            if moved is None:
                if tp not in change.entry.forgot:
                    self._broken("e", f"the position of {tp} is gone")
            elif change.entry.event == "commit" and moved[1:] != position[1:]:
                self._broken("e", f"a commit changes the ids of {tp}")
            elif moved.offset < position.offset and after.generation == before.generation:
                self._broken("e", f"{tp} goes back from {position.offset} to {moved.offset} without a new generation")

        if self._world.scenario.start == "latest" and not before.positions:
            self._skipped = dict(after.positions)  # the topic is known from now on: a partition that is added is not

    def _skips(self, record: Record) -> bool:
        """Whether a record was there before the group began at the latest."""
        topic, topic_id, partition, offset = record
        began = self._skipped.get(TopicPartition(topic, partition))
        return began is not None and began.topic_id == topic_id and offset < began.offset

    def _check_batch(self, change: Change) -> None:
        entry, before = change.entry, change.before
        batch_id = f"{before.group}/{entry.token}/{entry.sequence}"
        if entry.event in {"begin", "commit"}:
            self._check_identity(batch_id, entry.ranges)
        if entry.event == "begin":
            self._begun.add(batch_id)
            self._taken_over |= {batch_id} if before.pending else set()
        if before.pending is not None and change.after.pending is None and entry.event != "commit":
            self._dropped.add(before.pending.id)
            unsettled = change.after.unsettled
            kept = unsettled is not None and unsettled.id == before.pending.id
            if entry.event != "abandon" and before.pending.lands_in and not kept:
                self._broken("i", f"batch {before.pending.id} may still land, and a {entry.event} forgets it")
            touched = before.pending.query or any(r.topic_partition in entry.moves for r in before.pending.ranges)
            if entry.event == "rewind" and not touched:
                self._broken("b", f"batch {before.pending.id} is dropped by a reset that moves nothing of it")
            if entry.event == "abandon":
                self._check_cannot_land(before.pending)
                self._check_drop(before)
        if before.unsettled is not None and change.after.unsettled is None:
            if change.after.pending is not None and change.after.pending.id == before.unsettled.id:
                self._dropped.discard(before.unsettled.id)  # what dropped it is taken back
            else:
                self._check_cannot_land(before.unsettled)
                self._check_settled(before.unsettled, change.entry.moves)
        if entry.event == "commit":
            self._committed[batch_id] = entry.ranges
            self._check_commit(change, batch_id)

    def _check_commit(self, change: Change, batch_id: str) -> None:
        world, wanted = self._world, _offsets(change.entry.ranges)
        reached: dict[TopicPartition, int] = {tp: at.offset for tp, at in change.before.positions.items()}
        for each in change.entry.ranges:
            if reached.get(each.topic_partition) != each.start:
                self._broken("a", f"range {each} is committed, and its partition stands elsewhere")
            reached[each.topic_partition] = each.end
        if world.scenario.guarantee is Guarantee.AT_MOST_ONCE:
            return
        if world.scenario.stateful and not (world.repeats or world.mixed) and world.schedule.current is not None:
            self._check_state(batch_id)
        letter = change.entry.is_of_letters
        outputs = [name for name in world.scenario.every_output if (name == DEAD_LETTERS) == letter]
        if change.before.pending is not None and set(world.apart) < set(outputs):
            self._check_marks(batch_id, {*map(known, change.before.pending.written)}, world.apart)
        marked = {*map(known, world.marks())} & set(outputs)
        forgotten = [name for name in marked if world.landed_in(change.after, name) != change.after.sequence]
        if forgotten:
            self._broken("i", f"batch {batch_id} is committed, and the ledger does not say so of {forgotten}")
        self._check_there(batch_id, world.program_of(change.before.pending), outputs, wanted, "is committed")

    def _check_marks(self, batch_id: str, written: set[str], before: list[str]) -> None:
        """Check that the outputs before this one are marked, so that no crash from here on repeats them."""
        if not set(before) <= written:
            self._broken("g", f"batch {batch_id} goes into the next output, and of {before} only {written} are marked")

    def _check_state(self, batch_id: str) -> None:
        """Check that the state from which a batch's results come has all records that were committed before it."""
        checkpoint = self._world.checkpoint
        state = checkpoint.state[max(checkpoint.state)]
        committed = set().union(*map(_offsets, self._committed.values()))
        lacking = committed - {(record[0], record[2], record[3]) for record in state}
        if lacking:
            self._broken("a", f"batch {batch_id} is committed from a state that lacks {sorted(lacking)}")

    def _check_cannot_land(self, batch: Batch) -> None:
        """Check that the outputs that keep marks can never get a batch any more, and note which of them have it not."""
        for name in batch.lands_in:
            says = self._world.landing(name, batch)
            if says in {Landing.ABSENT, Landing.PARTLY} and batch.id not in self._world.gone(name):
                self._broken("i", f"batch {batch.id} is given up, and may still land in {name!r}")
            if says is Landing.VOID:
                self._void.add((batch.id, known(name)))

    def _check_settled(self, batch: Batch, moves: Collection[TopicPartition]) -> None:
        """Check that the outputs of its program have the partitions of a batch that now count as done."""
        wanted = _offsets(tuple(r for r in batch.unmoved if r.topic_partition in moves))
        self._check_there(batch.id, self._world.program_of(batch), batch.lands_in, wanted, "counts as done")

    def _check_there(
        self, batch_id: str, program: int, outputs: Iterable[str], wanted: set[tuple[str, int, int]], what: str
    ) -> None:
        """Check that outputs of a program have the wanted offsets of a batch."""
        for name in outputs:
            there = [row.record for row in self._world.rows_of(name, program) if row.batch == batch_id]
            lacking = wanted - {(record[0], record[2], record[3]) for record in there}
            if lacking and batch_id not in self._world.gone(name):  # the next landing finds rows that a backup lacks
                self._broken("b", f"batch {batch_id} {what}, and {name!r} lacks {sorted(lacking)}")

    def _check_drop(self, before: Snapshot) -> None:
        """Check that a batch that can be read is not dropped, unless that is the policy."""
        world, pending = self._world, before.pending
        if pending is None or world.dropping:
            return
        if world.scenario.guarantee is Guarantee.EXACTLY_ONCE and "keyed" in world.scenario.every_output.values():
            self._broken("b", f"batch {pending.id} is dropped, though the output may have it")
        if world.repeats:
            return
        if world.scenario.dead_letters:
            return  # a batch that fails is given up, to be cut
        if self._readable(pending, before.positions):
            self._broken("b", f"batch {pending.id} is dropped, though Kafka has all of it")

    def _check_identity(self, batch_id: str, ranges: tuple[OffsetRange, ...]) -> None:
        joined = self._world.scenario.joined
        if self._ranges.setdefault(batch_id, ranges) == ranges:
            return
        if joined and batch_id not in self._begun and batch_id not in self._committed:
            self._ranges[batch_id] = ranges  # nothing of the batch that had this id before is anywhere
            return
        self._broken("c", f"batch {batch_id} has the ranges {ranges}, and had {self._ranges[batch_id]}")

    def _once_taken_over(self, tables: list[Counter[Row]]) -> Counter[Row]:
        """Return the rows of all programs; of records in a batch that was taken over, those of one program.

        Both may have such a batch, which `verify` tells; but none has it twice.
        """
        every: Counter[Row] = sum(tables, Counter())
        shared = {row.record for row in every if row.batch in self._taken_over}
        kept = Counter({row: n for row, n in every.items() if row.record not in shared})
        for record in shared:
            copies = [Counter({row: n for row, n in rows.items() if row.record == record}) for rows in tables]
            most = max(copies, key=Counter.total)
            kept += most
        return kept

    def _check_rows(self, name: str, rows: Counter[Row]) -> None:
        world, guarantee = self._world, self._world.scenario.guarantee
        copies = Counter[tuple[str, str, int, int]]()
        batches: dict[tuple[str, str, int, int], set[str]] = {}
        for row, count in rows.items():
            copies[row.record] += count
            if row.batch not in self._dropped:
                batches.setdefault(row.record, set()).add(row.batch)
        doubled = sorted(record for record, count in copies.items() if count > 1)
        there = (each for each in world.cluster.records() - copies.keys() if self._belongs(each, name))
        lacking = sorted(each for each in there if not self._skips(each))
        if lacking and guarantee is not Guarantee.AT_MOST_ONCE:
            self._broken("b", f"{name!r} lacks {lacking}")
        void = sorted({row.batch for row in rows if (row.batch, name) in self._void} - world.gone(name))
        if void:
            self._broken("i", f"{name!r} has batch {void[0]}, which was reported as void")
        if doubled and world.scenario.marked and not world.rewound:
            self._broken("i", f"{name!r} has {doubled} more than once")
        if world.repeats:
            return
        if doubled and guarantee is Guarantee.AT_MOST_ONCE:
            self._broken("h", f"{name!r} has {doubled} more than once")
        if doubled and guarantee is Guarantee.EXACTLY_ONCE and not self._dropped:
            self._broken("a", f"{name!r} has {doubled} more than once")
        renamed = sorted(record for record, ids in batches.items() if len(ids) > 1)
        if renamed:
            self._broken("b", f"{name!r} has {renamed} as records of several batches: {batches[renamed[0]]}")

    def _belongs(self, record: Record, output: str) -> bool:
        """Whether a record goes into an output: those that cannot be processed are dead letters."""
        return not self._world.scenario.dead_letters or (record[2:] in POISON) == (output == DEAD_LETTERS)

    def _may_refuse(self) -> bool:
        """Whether the last owner may be refused: a batch that was begun exactly once can be read no more."""
        world = self._world
        snapshot = world.store.state.snapshot
        if -1 in world.cluster.cut_before(snapshot.positions).values():
            return True  # the leader does not know where the log was cut, so a start asks for a policy
        if snapshot.pending is None or world.scenario.guarantee is not Guarantee.EXACTLY_ONCE:
            return False
        if [*world.scenario.outputs.values()] == ["marked"]:
            return False  # its mark tells what became of the batch
        return not self._readable(snapshot.pending, snapshot.positions)

    def _readable(self, batch: Batch, positions: Positions) -> bool:
        """Whether Kafka has all of a batch, of the topics that it was begun with."""
        stored = ((r, positions.get(r.topic_partition, Position(0))) for r in batch.ranges)
        return all(self._world.cluster.holds(r, at) for r, at in stored)

    def _owns(self, actor: Actor | None) -> bool:
        owner = self._world.store.state.snapshot.owner
        return actor is not None and owner is not None and owner.id == actor.owner_id

    def _broken(self, letter: str, what: str) -> None:
        self._world.schedule.violate(f"({letter}) {what}")


def _offsets(ranges: tuple[OffsetRange, ...]) -> set[tuple[str, int, int]]:
    return {(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


def _wrote_none(raised: BaseException | None) -> bool:
    """Whether a run with a quarantine has ended because it could write no record, so that none is known to be wrong."""
    return any("no record is quarantined" in note for note in getattr(raised, "__notes__", ()))
