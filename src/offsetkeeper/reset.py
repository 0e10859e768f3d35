"""Where an operator's reset leads, partition by partition, and a plan of it that nobody can change unseen. Pure.

A reset is first a plan: old and new offset of each partition, with the records that will be read again or skipped. The
plan names the version of the ledger it was made for and carries a digest of itself, so that what is executed later is
what was looked at: if a commit came in between, or the file was edited, it is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offsetkeeper.control import GARBAGE
from offsetkeeper.errors import SettingsError
from offsetkeeper.model import Entry, Position, Positions, Snapshot, TopicPartition, check_offset, check_partition
from offsetkeeper.plan import Found


@dataclass(frozen=True, slots=True)
class Step:
    """What a reset does to one partition.

    Attributes:
        topic_partition: which one.
        old: the stored position, or None.
        new: the position it gets.
        beginning, end: what Kafka holds of the partition.
    """

    topic_partition: TopicPartition
    old: int | None
    new: Position
    beginning: int
    end: int

    @property
    def replayed(self) -> int:
        """Offsets that will be read again, the upper bound of records."""
        return 0 if self.old is None else max(0, min(self.old, self.end) - self.new.offset)

    @property
    def skipped(self) -> int:
        """Offsets that Kafka holds and that will never be read."""
        old = self.beginning if self.old is None else max(self.old, self.beginning)
        return max(0, self.new.offset - old)

    @property
    def above_beginning(self) -> int:
        """Offsets between the new position and what retention deletes next."""
        return self.new.offset - self.beginning

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "old": self.old,
            "new": self.new.offset,
            "topic_id": self.new.topic_id,
            "beginning": self.beginning,
            "end": self.end,
            "replayed": self.replayed,
            "skipped": self.skipped,
        }


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset of one group, not yet done.

    Attributes:
        group: the consumer group.
        store: address of its store.
        version: of the ledger it was made for.
        change_id: of the change that made that version, as versions repeat where a ledger is deleted.
        steps: one for each partition that moves, sorted.
    """

    group: str
    store: str
    version: int
    change_id: str
    steps: tuple[Step, ...]

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """The new positions."""
        return {step.topic_partition: step.new for step in self.steps}

    @property
    def digest(self) -> str:
        """SHA-256 of all of the plan, in hexadecimal."""
        return hashlib.sha256(json.dumps(self._content(), sort_keys=True).encode()).hexdigest()

    def dump(self) -> str:
        """Return the plan as JSON, sealed by its digest."""
        return json.dumps({**self._content(), "digest": self.digest}, indent=1)

    def check(self, found: Snapshot, store: str) -> ResetPlan:
        """Return the plan itself if it was made for this very ledger.

        Raises:
            SettingsError: it was made for another group, another store, or another version.
        """
        if (found.group, store) != (self.group, self.store):
            raise SettingsError(f"the plan is for group {self.group!r} in {self.store}, not {found.group!r} in {store}")
        if (found.version, found.change_id) != (self.version, self.change_id):
            raise SettingsError(
                f"the ledger of group {self.group!r} has moved on from version {self.version} to {found.version} since "
                "the plan was made: nothing was changed. Make a new plan"
            )
        return self

    def _content(self) -> dict[str, Any]:
        head = {"group": self.group, "store": self.store, "version": self.version, "change_id": self.change_id}
        return {**head, "steps": [step.as_dict() for step in self.steps]}


def make_reset(
    snapshot: Snapshot, store: str, targets: Mapping[TopicPartition, int], found: Mapping[TopicPartition, Found]
) -> ResetPlan:
    """Return the plan that moves each partition of `targets` to its offset.

    Partitions that stand there already are left out.

    Raises:
        SettingsError: a partition does not exist, or an offset is outside of what Kafka holds of it.
    """
    wrong = [problem for tp in sorted(targets) if (problem := _problem(tp, targets[tp], found.get(tp)))]
    if wrong:
        more = f"\n  and {len(wrong) - 20} more" if len(wrong) > 20 else ""  # noqa: PLR2004 - what fits a screen
        raise SettingsError("nothing was changed:\n  " + "\n  ".join(wrong[:20]) + more)
    steps = []
    for tp, offset in sorted(targets.items()):
        held, stored = found[tp], snapshot.positions.get(tp)
        new = Position(offset, held.topic_id or (stored and stored.topic_id))
        if stored != new:
            steps.append(Step(tp, stored and stored.offset, new, held.beginning, held.end))
    return ResetPlan(snapshot.group, store, snapshot.version, snapshot.change_id, tuple(steps))


def load_plan(text: str, where: str) -> ResetPlan:
    """Return the plan that `dump` wrote.

    Raises:
        SettingsError: it is none, or was changed since.
    """
    try:
        raw = json.loads(text)
        steps = tuple(_load_step(each) for each in raw["steps"])
        plan = ResetPlan(str(raw["group"]), str(raw["store"]), int(raw["version"]), str(raw["change_id"]), steps)
        digest = raw["digest"]
    except GARBAGE as error:
        raise SettingsError(f"{where} is no plan of a reset ({error!r:.200})") from error
    if digest != plan.digest:
        raise SettingsError(f"{where} was changed after it was made: its digest does not fit. Make a new plan")
    return plan


def positions_before(entries: Iterable[Entry], positions: Positions, version: int) -> dict[TopicPartition, Position]:
    """Return the positions as they were at `version`; partitions that had none then are left out.

    Args:
        entries: the history, newest first, at least down to `version + 1`.
        positions: as they are now.
        version: of the ledger.

    Raises:
        SettingsError: the entries do not reach back that far.
    """
    then: dict[TopicPartition, Position | None] = dict(positions)
    reached = None
    for entry in entries:
        if entry.version <= version:
            break
        reached = entry.version
        for r in reversed(entry.ranges) if entry.event == "commit" else ():
            held = then.get(r.topic_partition)
            then[r.topic_partition] = Position(r.start, held and held.topic_id)
        then |= {tp: move.before for tp, move in entry.moves.items()}
    if reached is not None and reached > version + 1:
        raise SettingsError(f"the history goes back to version {reached} only, not to {version}")
    return {tp: position for tp, position in then.items() if position is not None}


def _problem(tp: TopicPartition, offset: int, held: Found | None) -> str:
    if held is None:
        return f"{tp} does not exist in Kafka"
    if not held.beginning <= offset <= held.end:
        return f"{tp}: offset {offset} is outside of what Kafka holds, {held.beginning} to {held.end}"
    return ""


def _load_step(raw: Mapping[str, Any]) -> Step:
    tp = check_partition(TopicPartition(raw["topic"], raw["partition"]))
    old = None if raw["old"] is None else check_offset(raw["old"])
    new = Position(check_offset(raw["new"]), raw["topic_id"])
    return Step(tp, old, new, check_offset(raw["beginning"]), check_offset(raw["end"]))
