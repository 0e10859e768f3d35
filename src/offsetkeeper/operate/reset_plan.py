"""The plan of an operator's reset, partition by partition, with a digest that detects edits. Pure.

The plan has the old and the new offset of each partition, and the records that are read again or skipped. It has the
version of the ledger it was made for and a digest of itself, so that exactly the reviewed plan is executed later: after
a commit in between, or an edit of the file, it is refused. It is checked against Kafka when it is made and again when
it is executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self

from offsetkeeper.core.batch import DEAD_LETTERS, NO_OUTPUTS, NO_QUERIES, Batch, Output, Queries, check_query
from offsetkeeper.core.bounds import Bounds, Standing, cut_text, is_another, seen_at, standing_of
from offsetkeeper.core.codec import GARBAGE
from offsetkeeper.core.identity import is_elsewhere, is_recreated
from offsetkeeper.core.mark import listed_name
from offsetkeeper.core.model import RUN, START, Count, Cuts, Entry, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition, check_offset, check_partition
from offsetkeeper.core.outside import TooManyValues, load_json
from offsetkeeper.core.plain import plain
from offsetkeeper.core.rules import drops
from offsetkeeper.errors import Refused, SettingsError, Stale, listed
from offsetkeeper.operate.audit import NOTHING_READ, Read, what_was_read


class Dropped(NamedTuple):
    """A pending batch (begun, not committed) that a reset drops together with its id.

    Attributes:
        batch: id of the batch.
        written: names of the outputs, if there are several, that already have the batch.
        lands_in: names of the outputs that keep a mark. The next start finds out whether they have the batch.
        again: the ranges of the batch that are read again; sorted.
        stays: its ranges in partitions that do not move, if outputs keep a mark of it; sorted. They count as done if
            all outputs turn out to have the batch. Otherwise they are read again.
        unasked: outputs of its program that keep no mark, and that are not noted to have it.
    """

    batch: str
    written: tuple[str, ...] = ()
    lands_in: tuple[str, ...] = ()
    again: tuple[OffsetRange, ...] = ()
    stays: tuple[OffsetRange, ...] = ()
    unasked: tuple[str, ...] = ()

    @classmethod
    def of(cls, batch: Batch, positions: Positions, moved: Positions, others: Collection[TopicPartition] = ()) -> Self:
        """Return what is dropped with a batch.

        Args:
            batch: the pending batch.
            positions: the positions before the reset.
            moved: the positions that the reset sets, also of partitions that are there already.
            others: partitions whose topic was created again, or that move to another cluster: what the batch has of
                them does not come again.
        """
        there = [r for r in batch.ranges if r.topic_partition not in others]
        settled = {r for r in there if batch.lands_in and batch.query is None and r.topic_partition not in moved}
        after = {**positions, **moved}
        starts = {r: max(r.start, after[r.topic_partition].offset) for r in there if r not in settled}
        again = tuple(r._replace(start=start) for r, start in starts.items() if start < r.end)
        began = filter(batch.goes_into, batch.program.outputs if batch.program else ())
        unasked = tuple(name for name in began if name not in {*batch.lands_in, *batch.written})
        return cls(batch.id, batch.written, batch.lands_in, again, tuple(sorted(settled)), unasked)

    @property
    def notes(self) -> list[str]:
        """Sentences on what becomes of the batch, and of its records in the outputs."""
        undo = "an undo before the next start brings it back" if self.lands_in else "undo does not restore it"
        notes = [f"batch {self.batch} was begun and not committed: it is dropped, and {undo}"]
        if self.again:
            notes.append(
                "these records of that batch are read again, and may come twice into outputs that have it: "
                + listed(self.again, ", ")
            )
        if self.stays:
            notes.append(
                "that batch has records of partitions that do not move. They count as done if all outputs have the "
                "batch. Otherwise they are read again, and come twice into outputs that have it: "
                + listed(self.stays, ", ")
            )
        notes += [f"{listed_name(name)} already has that batch" for name in self.written]
        left = [name for name in self.lands_in if name not in self.written]
        notes += [
            f"{listed_name(name)} may have that batch: the next start asks the output "
            "and writes the answer to the history"
            for name in left
        ]
        if not self.lands_in:
            return [*notes, "an output without a mark may have that batch, and cannot be asked"]
        return notes + [
            f"{listed_name(name)} keeps no mark: it may have that batch, unless it is in the store's own transaction"
            for name in self.unasked
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """What a reset does to one partition.

    Attributes:
        topic_partition: the partition.
        old: the stored position, or None.
        new: the new position.
        beginning, end: the offsets that Kafka holds of the partition.
        another: whether the stored position is of another topic with that name, or of another cluster. Then the old
            offset says nothing of this one, and the history tells what was read of it before.
        read: what the group has read of the partition.
        cut: offset from which on the log has other records than those that were read, if an election has cut it since;
            else None.
    """

    topic_partition: TopicPartition
    old: int | None
    new: Position
    beginning: int
    end: int
    another: bool = False
    read: Read = NOTHING_READ
    cut: int | None = None

    @property
    def replayed(self) -> int:
        """Number of offsets that were or may have been committed and will be read again, an upper bound of records."""
        known = max(self.new.offset, min(self.read.began, self.end))
        return known - self.new.offset + self.read.perhaps_between(known, self.end)

    @property
    def skipped(self) -> int:
        """Number of offsets that Kafka holds, that the reset goes over, and that no batch has committed."""
        return max(0, self.new.offset - self.reached) - self.read.between(self.reached, self.new.offset)

    @property
    def reached(self) -> int:
        """The first offset that Kafka holds, and that is not before the old position in this log."""
        if self.old is None or self.another:
            return self.beginning
        return max(self.beginning, self.old if self.cut is None else min(self.old, self.cut))

    @property
    def never_read(self) -> tuple[OffsetRange, ...]:
        """Where the position goes back: what Kafka holds before the new one, and no batch has committed nor will."""
        if self.old is None or self.another or self.new.offset >= self.old:
            return ()
        at, found = max(self.beginning, self.read.began), list[OffsetRange]()
        known = (*self.read.committed, *self.read.passed, *self.read.perhaps)
        for start, end in sorted((*known, (self.new.offset, self.new.offset))):
            if at < min(start, self.new.offset):
                found.append(OffsetRange(*self.topic_partition, at, min(start, self.new.offset)))
            at = max(at, end)
        return tuple(found)

    @property
    def perhaps_again(self) -> tuple[OffsetRange, ...]:
        """The ranges of dropped batches that are read again: some outputs have them, or may."""
        there = ((max(start, self.new.offset), end) for start, end in self.read.perhaps)
        return tuple(OffsetRange(*self.topic_partition, start, end) for start, end in there if start < end)

    @property
    def above_beginning(self) -> int:
        """Number of offsets between the new position and the beginning, where retention deletes next."""
        return self.new.offset - self.beginning

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        offset, topic_id, cluster_id, leader_epoch = self.new
        new = {"new": offset, "topic_id": topic_id, "cluster_id": cluster_id, "leader_epoch": leader_epoch}
        return plain(self, "replayed", "skipped", "above_beginning") | new


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset of one group that is not executed yet.

    Attributes:
        group: the consumer group.
        store: address of its store.
        version: version of the ledger that the plan was made for.
        change_id: id of the change that made that version: versions repeat after a ledger was deleted.
        steps: one for each partition that moves, sorted.
        stays: offsets of partitions that are already at their target, sorted.
        left: partitions of the same topics that have no position and get none, or one of a topic that was created again
            since, sorted.
        gone: partitions of the same topics that are no longer in Kafka; their positions stay; sorted.
        drops: the pending batch, if the reset drops it.
        keeps: id of the pending batch, if it stays pending; else empty.
        unsettled: id of a batch that an earlier reset dropped and no run has settled since; else empty.
        once_more: the ranges of that batch that are read again, also if all outputs turn out to have them; sorted.
        restores: its id, if this takes back all that dropped it: then the batch is pending again.
        clipped: requested offsets that Kafka does not hold, sorted; the nearest offset is used instead.
        clusters: ids of the Kafka cluster that positions are of, and of the one that the reset moves them to; empty if
            they stay in theirs.
        queries: queries with state, and the numbers of their next batch before and after the reset, if they differ.
        states: ids of the queries with state that have done a batch for the group.
        outputs: what the last run of the group writes to, by the outputs' names.
        direct: whether all runs that the history knows were direct ones: no streaming query has read for the group.
    """

    group: str
    store: str
    version: int
    change_id: str
    steps: tuple[Step, ...]
    stays: tuple[tuple[TopicPartition, int], ...] = ()
    left: tuple[TopicPartition, ...] = ()
    gone: tuple[TopicPartition, ...] = ()
    drops: Dropped | None = None
    clipped: tuple[tuple[TopicPartition, int], ...] = ()
    keeps: str = ""
    unsettled: str = ""
    clusters: tuple[str, ...] = ()
    queries: tuple[tuple[str, Count], ...] = ()
    restores: str = ""
    once_more: tuple[OffsetRange, ...] = ()
    states: tuple[str, ...] = ()
    outputs: Mapping[str, Output] = field(default_factory=lambda: NO_OUTPUTS)
    direct: bool = False

    @property
    def moves(self) -> bool:
        """Whether the reset changes anything, if only what becomes of a batch that an earlier reset dropped."""
        return bool(self.steps or self.queries or self.unsettled or self.restores)

    @property
    def numbers(self) -> Queries:
        """The new number of the next batch of each query that moves."""
        return {query: count.after for query, count in self.queries}

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The new positions."""
        return {step.topic_partition: step.new for step in self.steps}

    @property
    def cuts(self) -> Cuts:
        """The offsets from which on logs that were cut have other records; see `Step.cut`."""
        return {step.topic_partition: step.cut for step in self.steps if step.cut is not None}

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The offset of each partition after the reset, also of partitions that do not move."""
        return dict(self.stays) | {tp: at.offset for tp, at in self.positions.items()}

    @property
    def notes(self) -> list[str]:
        """Sentences on other effects of the reset, and on partitions that it does not move."""
        notes = []
        if self.clusters:
            old, new = self.clusters
            notes.append(
                f"the positions are of the Kafka cluster {old}; the brokers, and the new ones, are of {new}. What the "
                "group has read there before comes again too, and is not counted if the history does not reach back so "
                "far. If it is a mirror, with each record at the same offset, start there with "
                "Policies(elsewhere='keep') first, and reset then: else its records count as others"
            )
        if others := sorted({step.topic_partition.topic for step in self.steps if step.another}):
            notes.append(
                f"deleted and created again since the group read them, or of another cluster: {', '.join(others)}. The "
                "old offsets are of other records: what was not read before the new offsets is skipped"
            )
        if self.cuts:
            told = listed((f"{tp} {offset}" for tp, offset in self.cuts.items()), ", ")
            notes.append(
                "a leader was elected that lacked records, and others get the offsets of some that were read. What is "
                f"there from these offsets on counts as not read: {told}"
            )
        notes += self._batches()
        if perhaps := [each for step in self.steps for each in step.perhaps_again]:
            notes.append(
                "some outputs have, or may have, these records of batches that were dropped. They are read again, and "
                f"may come twice: {listed(perhaps, ', ')}"
            )
        notes += self._effects()
        if self.steps and not self.direct:
            notes.append(_of_state(self.states, back=self._goes_back) if self.states else self._queries())
        notes += [
            f"the next batch of streaming query {query} was {count.before}, and is {count.after} then"
            for query, count in self.queries
        ]
        notes += self._new_names()
        if self.left:
            told = "not moved, because they have no position in the topic, and a start reads them from their beginning"
            notes += [f"{told}: {listed(self.left, ', ')}"]
        if self.gone:
            notes += [f"not moved, because they are no longer in Kafka: {listed(self.gone, ', ')}"]
        return notes + self.clips

    def _new_names(self) -> list[str]:
        notes = []
        if not self.version:
            notes.append(f"the store has no group {self.group!r} yet, so check the name: this reset makes it")
        if first := sorted({s.topic_partition.topic for s in self.steps if s.old is None} - self._read):
            notes.append(
                f"without a position until now, so check the names: {listed(first, ', ')}. If no program of this group "
                "reads them, these positions stay behind for ever, and undo does not take them out: offsetkeeper "
                "forget does"
            )
        return notes

    def _batches(self) -> list[str]:
        """Return what becomes of batches that were begun and not committed."""
        notes: list[str] = []
        if self.drops is not None:
            notes += self.drops.notes
        if self.keeps:
            notes.append(
                f"batch {self.keeps} was begun and not committed: none of its partitions moves, so it stays, and the "
                "next start deals with it"
            )
        if self.restores:
            notes.append(f"batch {self.restores}, which was dropped, is pending again: the next start deals with it")
        elif self.unsettled:
            notes.append(
                f"batch {self.unsettled} was dropped by an earlier reset: the next start asks its outputs whether they "
                "have it; what they have and is read again comes twice"
            )
            if self.once_more:
                notes.append(
                    "of that batch these records are read again, also if all outputs have them: "
                    + listed(self.once_more, ", ")
                )
        return notes

    @property
    def lost(self) -> dict[TopicPartition, int]:
        """Number of offsets from a requested one to the beginning, where it is used instead: their records are gone."""
        return {tp: gone for tp, offset in self.clipped if (gone := _gone(offset, self.offsets[tp]))}

    @property
    def clips(self) -> list[str]:
        """Sentences on the offsets that Kafka does not hold, and on the offsets used instead."""
        return [self._clip(tp, offset) for tp, offset in self.clipped]

    def _clip(self, tp: TopicPartition, asked: int) -> str:
        used = self.offsets[tp]
        if asked > used == self.cuts.get(tp):
            return f"{tp}: offset {asked} was of a log that was cut; {used} is the offset from which on it has others"
        lost = f". {self.lost[tp]} offsets in between are lost" if tp in self.lost else ""
        return f"{tp}: Kafka does not hold offset {asked}; {used} is the nearest one that it holds{lost}"

    @property
    def _read(self) -> set[str]:
        """Topics of which this reset moves a position that was there."""
        return {step.topic_partition.topic for step in self.steps if step.old is not None}

    def _effects(self) -> list[str]:
        """Return what each output gets twice or never."""
        again, never = (sum(getattr(step, name) for step in self.steps) for name in ("replayed", "skipped"))
        names: dict[str, list[str]] = {}
        for name, (target, mode) in sorted(self.outputs.items()):
            if name != DEAD_LETTERS:
                names.setdefault(_AGAIN.get(mode, _UNKNOWN), []).append(f"{listed_name(name)} ({target})")
        notes = [f"{text.format(again)}: {listed(some, ', ')}" for text, some in names.items() if again]
        if passed := [each for step in self.steps for each in step.never_read]:
            notes.append(
                "before the new positions there are offsets that were never read, as an earlier reset or start went "
                f"over them: {listed(passed, ', ')}. No batch will read them, unless you set the positions before them"
            )
        every = [each for some in names.values() for each in some]
        if never and every:
            notes.append(f"the results of up to {never} records that are skipped are not in {listed(every, ', ')}")
        return notes

    @property
    def _goes_back(self) -> bool:
        return any(step.old is not None and step.new.offset < step.old for step in self.steps)

    def _queries(self) -> str:
        """Return what streaming queries need in order to follow the reset; the ledger does not know of it."""
        if self._goes_back:
            return (
                "streaming queries of this group need a new checkpoint to follow this reset; queries with state also "
                "need offsets=. With the old checkpoint their start is refused"
            )
        return (
            "streaming queries of this group skip the records in between; the start of queries with state is refused: "
            "they need a new checkpoint and offsets= to follow this reset"
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the whole plan, in hexadecimal."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()

    def dump(self) -> str:
        """Return the plan as JSON, with its digest."""
        return json.dumps({**self._content(), "digest": self.digest}, indent=1)

    def check(self, found: Snapshot, store: str) -> ResetPlan:
        """Return the plan itself if it was made for exactly this ledger.

        Raises:
            Stale: the plan was made for another group, store or version.
        """
        if (found.group, store) != (self.group, self.store):
            raise Stale(f"the plan is for group {self.group!r} in {self.store}, not {found.group!r} in {store}")
        if (found.version, found.change_id) != (self.version, self.change_id):
            raise Stale(
                f"the ledger of group {self.group!r} has changed from version {self.version} to {found.version} since "
                "the plan was made; nothing was changed. Make a new plan"
            )
        return self

    def _content(self) -> dict[str, Any]:
        head = {"group": self.group, "store": self.store, "version": self.version, "change_id": self.change_id}
        return {
            **head,
            "steps": [step.as_dict() for step in self.steps],
            "stays": [[*tp, offset] for tp, offset in self.stays],
            "left": [[*tp] for tp in self.left],
            "gone": [[*tp] for tp in self.gone],
            "drops": self.drops and self.drops._asdict(),
            "keeps": self.keeps,
            "unsettled": self.unsettled,
            "restores": self.restores,
            "once_more": self.once_more,
            "clusters": [*self.clusters],
            "queries": [[query, *count] for query, count in self.queries],
            "states": [*self.states],
            "outputs": {name: [*each] for name, each in self.outputs.items()},
            "direct": self.direct,
            "clipped": [[*tp, offset] for tp, offset in self.clipped],
        }


_AGAIN = {
    "append": "the results of up to {} records come twice into what the last run appends to",
    "upsert": "the results of up to {} records come again, over the rows with the same key",
}
_UNKNOWN = "the results of up to {} records come again, and whether they are twice is up to the output"
_DECIDING = {"begin", "commit", "abandon", "settle", "rewind", "adopt"}  # what becomes of a batch
_FIELDS = {each.name for each in fields(ResetPlan)}
_STEP_FIELDS = Step(TopicPartition("", 0), None, Position(0), 0, 0).as_dict().keys()


class Goal(NamedTuple):
    """What a reset is to reach.

    Attributes:
        positions: offset of each partition, with the id of the topic it belongs to, None is the current topic; and with
            a leader epoch if it belongs to the log of then.
        clip: whether an offset that Kafka does not hold becomes the nearest one that it holds; the plan lists these.
        numbers: the number that the next batch of a query with state gets, by the query's id.
    """

    positions: Positions
    clip: bool = False
    numbers: Queries = NO_QUERIES


def make_reset(
    snapshot: Snapshot,
    store: str,
    goal: Goal,
    bounds: Mapping[TopicPartition, Bounds],
    left: Iterable[TopicPartition] = (),
    gone: Iterable[TopicPartition] = (),
    *,
    history: Iterable[Entry] = (),
) -> ResetPlan:
    """Return the plan that moves each partition of the goal to its offset.

    Args:
        snapshot: the group's ledger.
        store: address of its store.
        goal: what is to be reached.
        bounds: the offsets that Kafka holds, and where logs were cut since they were read.
        left: partitions without a position that the plan lists as not moved.
        gone: partitions with a position that the plan lists as gone.
        history: the group's history, newest first. It tells which offsets were read; without it, all before a position
            count as read.

    Raises:
        Refused: see `check_within`.
    """
    asked = goal.positions
    targets = _clipped(asked, bounds) if goal.clip else asked
    check_within(targets, bounds)
    positions = snapshot.positions
    news = {tp: _seen(at, bounds[tp], positions.get(tp)) for tp, at in sorted(targets.items())}
    cuts = {tp: cut for tp in news if (cut := bounds[tp].others_from) is not None}
    entries = [*history]
    known = what_was_read(entries, snapshot, news, cuts)
    steps, stays = [], []
    for tp, new in news.items():
        here, stored, cut = bounds[tp], positions.get(tp), cuts.get(tp)
        if cut is None and _is_there(stored, new):
            stays.append((tp, new.offset))
        else:
            another = stored is not None and is_another(stored, new)
            steps.append(Step(tp, stored and stored.offset, new, here.beginning, here.end, another, known[tp], cut))
    moved = {step.topic_partition: step.new for step in steps}
    others = {step.topic_partition.topic: step.new for step in steps if step.another}
    away = {step.topic_partition for step in steps if step.another}
    older = {tp for tp, at in snapshot.positions.items() if tp not in moved and _is_older(at, others.get(tp.topic))}
    counted = snapshot.queries
    counts = [(query, Count(counted[query], to)) for query, to in sorted(goal.numbers.items()) if counted[query] != to]
    pending = snapshot.pending if steps or counts else None
    dropped = pending if pending is not None and drops(pending, moved) else None
    unsettled = snapshot.unsettled if steps or counts or _counts_no_more(snapshot, dict(stays)) else None
    return ResetPlan(
        snapshot.group,
        store,
        snapshot.version,
        snapshot.change_id,
        tuple(steps),
        tuple(stays),
        tuple(sorted({*left, *older})),
        tuple(sorted(gone)),
        None if dropped is None else Dropped.of(dropped, positions, news, away | older),
        tuple((tp, at.offset) for tp, at in sorted(asked.items()) if at.offset != targets[tp].offset),
        "" if pending is None or dropped is not None else pending.id,
        "" if unsettled is None else unsettled.id,
        next(iter(_clusters(snapshot.positions, moved)), ()),
        tuple(counts),
        once_more=() if unsettled is None else _read_again(unsettled.ranges, news, away | older),
        states=tuple(sorted(query for query, number in counted.items() if number)),
        outputs=snapshot.outputs,
        direct=not snapshot.queries and only_direct(entries),
    )


def only_direct(history: Iterable[Entry]) -> bool:
    """Whether direct runs have taken the group, and no streaming query, as far as the history knows."""
    reasons = {entry.reason for entry in history if entry.event == "acquire"}
    return RUN in reasons and START not in reasons


def _seen(target: Position, here: Bounds, stored: Position | None) -> Position:
    """Return the new position. One of the log of then keeps its leader epoch: a batch may be pending again there."""
    seen = seen_at(target.offset, here, stored)
    return seen if target.leader_epoch is None else seen._replace(leader_epoch=target.leader_epoch)


def _is_there(stored: Position | None, new: Position) -> bool:
    """Whether a partition is at its target. A start notes cluster and epoch, no reset is needed for it."""
    new = new._replace(leader_epoch=None)
    return stored is not None and stored._replace(leader_epoch=None) in {new, new._replace(cluster_id=None)}


def _counts_no_more(snapshot: Snapshot, stays: Mapping[TopicPartition, int]) -> bool:
    """Whether a dropped batch counts no more in one of these partitions, which a reset names and which stay."""
    unmoved = () if snapshot.unsettled is None else snapshot.unsettled.unmoved
    return any(stays.get(r.topic_partition) == r.start for r in unmoved)


def _read_again(
    ranges: Iterable[OffsetRange], news: Positions, others: Collection[TopicPartition]
) -> tuple[OffsetRange, ...]:
    """Return what is read again of ranges in partitions that a reset names."""
    named = [r for r in ranges if r.topic_partition in news and r.topic_partition not in others]
    starts = {r: max(r.start, news[r.topic_partition].offset) for r in named}
    return tuple(r._replace(start=start) for r, start in starts.items() if start < r.end)


def restoring(plan: ResetPlan, snapshot: Snapshot, entries: Iterable[Entry], version: int) -> ResetPlan:
    """Return a plan that makes the unsettled batch pending again, if it takes back all that happened since.

    Args:
        plan: goes back to a version.
        snapshot: the ledger.
        entries: its history, newest first.
        version: the version. The batch was pending then if its begin is the newest entry that says so.
    """
    batch = snapshot.unsettled
    if batch is None or batch.sequence != snapshot.sequence:
        return plan
    known = list(entries)
    starts = {r.topic_partition: r.start for r in reversed(batch.ranges)}
    there = {**snapshot.positions, **plan.positions}
    stands = all(tp in there and there[tp].offset == start for tp, start in starts.items())
    newest = next((entry for entry in known if entry.version <= version and entry.event in _DECIDING), None)
    began = newest is not None and (newest.event, newest.token) == ("begin", batch.token)
    only = all(entry.event == "rewind" for entry in known if entry.version > version)  # no run has looked since
    return replace(plan, restores=batch.id, unsettled="", once_more=()) if stands and began and only else plan


def _is_older(at: Position, new: Position | None) -> bool:
    """Whether a position is of the topic before it was created again, in the same cluster."""
    return (
        new is not None and is_recreated(at.topic_id, new.topic_id) and not is_elsewhere(at.cluster_id, new.cluster_id)
    )


def _clusters(positions: Positions, moved: Positions) -> Iterator[tuple[str, ...]]:
    """Yield the old and the new cluster of each position that goes to another one."""
    for tp, new in moved.items():
        old = positions.get(tp, new).cluster_id
        if old is not None and new.cluster_id is not None and is_elsewhere(old, new.cluster_id):
            yield old, new.cluster_id


def _clipped(targets: Positions, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Position]:
    return {tp: _nearest(at, bounds[tp]) if tp in bounds else at for tp, at in targets.items()}


def _nearest(target: Position, here: Bounds) -> Position:
    most = here.end
    if target.leader_epoch is not None and here.common is not None and here.common >= 0:
        most = min(most, here.common)
    offset = max(min(target.offset, most), here.beginning)
    return target if offset == target.offset else target._replace(offset=offset, leader_epoch=None)


def check_within(targets: Positions, bounds: Mapping[TopicPartition, Bounds]) -> None:
    """Check that Kafka holds each offset, and that it belongs to the current topic.

    Raises:
        Refused: a partition does not exist, Kafka does not hold an offset, or the topic was deleted and created
            again; the message lists up to twenty problems.
    """
    refuse(problem for tp in sorted(targets) if (problem := _problem(tp, targets[tp], bounds.get(tp))))


def check_exist(partitions: Iterable[TopicPartition], known: Collection[TopicPartition]) -> None:
    """Check that partitions exist.

    Raises:
        Refused: a partition does not exist; the message lists up to twenty.
    """
    refuse(_missing(tp) for tp in sorted(partitions) if tp not in known)


def refuse(problems: Iterable[str]) -> None:
    """Raise an error if there are problems.

    Raises:
        Refused: there is a problem; the message lists up to twenty.
    """
    if wrong := list(problems):
        raise Refused(f"nothing was changed:\n  {listed(wrong)}")


class Scope(NamedTuple):
    """The partitions that an operator names, directly or by their topics; all partitions if nothing is named.

    Attributes:
        partitions: partitions.
        topics: topics, each with all of its partitions.
        all_topics: whether a reset moves all topics that the ledger has positions of, beside those named.
    """

    partitions: Collection[TopicPartition] = ()
    topics: Collection[str] = ()
    all_topics: bool = False

    @property
    def names_some(self) -> bool:
        """Whether a partition or a topic is named."""
        return bool(self.partitions or self.topics)

    def covers(self, tp: TopicPartition) -> bool:
        """Whether a partition is named, directly or by its topic; true for all if nothing is named."""
        return not self.names_some or tp in self.partitions or tp.topic in self.topics

    def select(self, of: Iterable[TopicPartition], what: str) -> set[TopicPartition]:
        """Return the partitions that are named; all if nothing is named.

        Args:
            of: the partitions to choose from.
            what: a name for `of`, for messages.

        Raises:
            Refused: a named partition or topic is not in `of`.
        """
        there = set(of)
        absent = sorted(set(self.topics) - {tp.topic for tp in there})
        refuse(
            [f"{tp} is not among {what}" for tp in sorted(self.partitions) if tp not in there]
            + [f"no partition of {topic} is among {what}" for topic in absent]
        )
        return {tp for tp in there if self.covers(tp)}


EVERYTHING = Scope()


def load_plan(text: str, where: str) -> ResetPlan:
    """Return the plan that `dump` wrote.

    Raises:
        SettingsError: the text is not a plan, was saved by another version of offsetkeeper, or was edited since.
    """
    try:
        raw = load_json(text)
        digest = raw.pop("digest")
        plan = (
            _load(raw) if raw.keys() == _FIELDS and all(each.keys() == _STEP_FIELDS for each in raw["steps"]) else None
        )
    except GARBAGE as error:
        ours = isinstance(error, json.JSONDecodeError | TooManyValues)  # others quote the file
        why = f"{error}" if ours else type(error).__name__
        raise SettingsError(f"{where} is not a plan of a reset ({why}): save one with --save") from None
    if plan is None:
        raise SettingsError(f"{where} was saved by another version of offsetkeeper: make a new plan")
    if digest != plan.digest:
        raise SettingsError(f"{where} was edited after it was made: its digest does not match. Make a new plan")
    return plan


def positions_before(entries: Iterable[Entry], positions: Positions, version: int) -> dict[TopicPartition, Position]:
    """Return the positions at an earlier `version`; partitions that had none then are left out.

    Args:
        entries: the history, newest first, at least down to `version + 1`.
        positions: the current positions.
        version: version of the ledger.

    Raises:
        Refused: the entries do not reach back that far.
    """
    then: dict[TopicPartition, Position | None] = dict(positions)
    reached = None
    for entry in entries:
        if entry.version <= version:
            break
        reached = entry.version
        for r in reversed(entry.ranges) if entry.event == "commit" else ():
            later = then.get(r.topic_partition)
            then[r.topic_partition] = (later or Position(0))._replace(offset=r.start)
        then |= {tp: move.before for tp, move in entry.moves.items()}
        then |= entry.forgot
    if reached is not None and reached > version + 1:
        raise Refused(f"the history goes back only to version {reached}, not to {version}")
    return {tp: position for tp, position in then.items() if position is not None}


def numbers_before(entries: Iterable[Entry], queries: Queries, version: int) -> Queries:
    """Return the numbers of queries at an earlier `version`; those of queries that began since are where they began.

    Args:
        entries: the history, newest first, at least down to `version + 1`.
        queries: the current numbers.
        version: version of the ledger.
    """
    then = dict(queries)
    for entry in entries:
        if entry.version > version:
            then |= {q: count.after if count.before is None else count.before for q, count in entry.counts.items()}
    return then


def starts_since(entries: Iterable[Entry], version: int) -> dict[TopicPartition, Position]:
    """Return where runs have started to read partitions that had no position at `version`.

    Args:
        entries: the history, at least down to `version + 1`.
        version: version of the ledger.
    """
    places = [entry for entry in entries if entry.event == "place" and entry.version > version]
    return {tp: move.after for entry in places for tp, move in entry.moves.items() if move.before is None}


def _problem(tp: TopicPartition, target: Position, bounds: Bounds | None) -> str:
    if bounds is None:
        return _missing(tp)
    standing = standing_of(target, bounds if target.leader_epoch is not None else bounds._replace(common=None))
    if standing is Standing.ELSEWHERE:
        return (
            f"{tp}: the brokers are of the Kafka cluster {bounds.cluster_id}, and the position is of "
            f"{target.cluster_id}: offset {target.offset} means another record there. Correct --brokers. If the group "
            "is to go on in the other cluster, reset it to earliest, latest, a time, or offsets of that cluster"
        )
    if standing is Standing.RECREATED:
        return (
            f"{tp}: the topic was deleted and created again since; offset {target.offset} means another record now. "
            "Reset it to earliest, latest, a time, or an offset of the new topic"
        )
    if standing is Standing.CUT:
        clip = "" if bounds.common == -1 else f". --clip takes {max(bounds.common or 0, bounds.beginning)}"
        return (
            f"{tp}: offset {target.offset} means another record now: its log {cut_text(bounds)}. Reset it to earliest, "
            f"latest, a time, or an offset of the log as it is now{clip}"
        )
    if standing is not Standing.WITHIN:
        there = f"{bounds.beginning} to {bounds.end}"
        gone = _gone(target.offset, bounds.beginning)
        lost = f" ({gone} offsets are lost)" if gone else ""
        return (
            f"{tp}: offset {target.offset} is outside the offsets that Kafka holds, {there}{lost}. "
            "--clip takes the nearest one"
        )
    return ""


def _gone(offset: int, beginning: int) -> int:
    """Return how many records a partition may have lost from an offset on; a shift may lead below 0."""
    return max(0, beginning - max(offset, 0))


def _missing(tp: TopicPartition) -> str:
    return f"{tp} does not exist in Kafka: leave it out, and name the other partitions with --topic"


def _load(raw: Mapping[str, Any]) -> ResetPlan:
    return ResetPlan(
        str(raw["group"]),
        str(raw["store"]),
        int(raw["version"]),
        str(raw["change_id"]),
        tuple(_load_step(each) for each in raw["steps"]),
        tuple((TopicPartition(topic, number), offset) for topic, number, offset in raw["stays"]),
        tuple(TopicPartition(*pair) for pair in raw["left"]),
        tuple(TopicPartition(*pair) for pair in raw["gone"]),
        raw["drops"] and _load_dropped(**raw["drops"]),
        tuple((TopicPartition(topic, number), offset) for topic, number, offset in raw["clipped"]),
        str(raw["keeps"]),
        str(raw["unsettled"]),
        tuple(map(str, raw["clusters"])),
        tuple((check_query(query), Count(before, check_offset(to))) for query, before, to in raw["queries"]),
        str(raw["restores"]),
        tuple(OffsetRange(*each) for each in raw["once_more"]),
        tuple(map(check_query, raw["states"])),
        {str(name): Output(*map(str, each)) for name, each in raw["outputs"].items()},
        bool(raw["direct"]),
    )


def _of_state(queries: Collection[str], *, back: bool) -> str:
    """Return what a reset means for the state of queries, and for their output."""
    query = listed(queries, ", ")
    if back:
        return (
            f"streaming query {query} keeps state, and the state does not go back: a start with its checkpoint is "
            "refused. To follow, give it a new checkpoint, and offsets= that begin before the oldest window that is "
            "open at the new positions. The output then gets the results of these records again: delete them there "
            "first, or let a key replace them"
        )
    return (
        f"streaming query {query} keeps state, and the state gets none of the records in between: a start with its "
        "checkpoint is refused. To follow, give it a new checkpoint, and offsets= or OnMismatch(state='empty'). "
        "Windows that are open lack these records in the output"
    )


def _load_dropped(
    batch: str,
    written: list[str],
    lands_in: list[str],
    again: list[list[Any]],
    stays: list[list[Any]],
    unasked: list[str],
) -> Dropped:
    comes, remains = (tuple(OffsetRange(*each) for each in some) for some in (again, stays))
    return Dropped(batch, tuple(written), tuple(lands_in), comes, remains, tuple(unasked))


def _load_step(raw: Mapping[str, Any]) -> Step:
    tp = check_partition(TopicPartition(raw["topic"], raw["partition"]))
    old = None if raw["old"] is None else check_offset(raw["old"])
    epoch, cut = (raw[name] and check_offset(raw[name]) for name in ("leader_epoch", "cut"))
    new = Position(check_offset(raw["new"]), raw["topic_id"], raw["cluster_id"], epoch)
    committed, began, perhaps, passed = raw["read"]
    read = Read(_load_spans(committed), check_offset(began), _load_spans(perhaps), _load_spans(passed))
    return Step(tp, old, new, check_offset(raw["beginning"]), check_offset(raw["end"]), bool(raw["another"]), read, cut)


def _load_spans(raw: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((check_offset(start), check_offset(end)) for start, end in raw)
