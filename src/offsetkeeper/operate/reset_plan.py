"""The plan of an operator's reset, partition by partition, with a digest that detects edits. Pure.

The plan has the old and the new offset of each partition, and the records that are read again or skipped. It has the
version of the ledger it was made for and a digest of itself, so that exactly the reviewed plan is executed later: after
a commit in between, or an edit of the file, it is refused. It is checked against Kafka when it is made and again when
it is executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from offsetkeeper.core.batch import NO_OUTPUTS, Batch, Output, Queries, check_query
from offsetkeeper.core.codec import GARBAGE
from offsetkeeper.core.model import Count, Cuts, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, Positions, TopicPartition, check_offset, check_partition
from offsetkeeper.core.outside import TooManyValues, load_json
from offsetkeeper.core.plain import plain
from offsetkeeper.errors import SettingsError, Stale
from offsetkeeper.operate.audit import NOTHING_READ, Read


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
    def lost(self) -> dict[TopicPartition, int]:
        """Number of offsets from a requested one to the beginning, where it is used instead: their records are gone."""
        return {tp: gone for tp, offset in self.clipped if (gone := deleted(offset, self.offsets[tp]))}

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


_FIELDS = {each.name for each in fields(ResetPlan)}
_STEP_FIELDS = Step(TopicPartition("", 0), None, Position(0), 0, 0).as_dict().keys()


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


def deleted(offset: int, beginning: int) -> int:
    """Return how many records a partition may have lost from an offset on; a shift may lead below 0."""
    return max(0, beginning - max(offset, 0))


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
