"""Takes positions out of a ledger: of a topic that the group never read, or reads no more. Preview first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offsetkeeper.core.commands import command
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import SettingsError, listed
from offsetkeeper.operate.scope import Scope


def forget_command(group: str, tp: TopicPartition) -> str:
    """Return the command that takes out one position, for a shell.

    Args:
        group: the consumer group.
        tp: the partition.
    """
    return command("forget", group, "", f"{tp.topic}:{tp.partition}")


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The positions that are to be taken out of a ledger.

    Attributes:
        group: the consumer group.
        version: version of the ledger that the plan was made for.
        positions: the positions, sorted by partition; None if the store has lost the position.
        known: topics that keep positions of other partitions.
        before: partitions of topics that keep none, and that were forgotten before; sorted.
    """

    group: str
    version: int
    positions: tuple[tuple[TopicPartition, Position | None], ...]
    known: tuple[str, ...] = ()
    before: tuple[TopicPartition, ...] = ()

    def start(self, tp: TopicPartition) -> str:
        """Return where a start reads the partition if its program reads the topic."""
        return "from its beginning" if tp.topic in self.known else "where start= says"

    @property
    def notes(self) -> list[str]:
        """Sentences on the effects."""
        notes = [
            "a start whose program does not read these topics leaves them out",
            "a start that reads them takes these partitions for new ones: what was read may come again, or be skipped",
            "streaming queries of this group that read these partitions need a new checkpoint",
            "the rows in the store stay for other programs; the ledger does not count them any more",
        ]
        if lost := [tp for tp, at in self.positions if at is None]:
            notes.append(f"the store has lost these positions, so undo cannot put them back: {listed(lost, ', ')}")
        if any(self.start(tp).startswith("where") for tp, _ in self.positions):
            notes.append(
                "where start= says: at the beginning, the end or a time, as the program gives it. A topic that a "
                "pattern finds starts as Policies(new_topics=) says, if the group keeps a position of another topic "
                "that it finds. That holds for each partition without a position"
            )
        if self.before:
            notes.append(
                "these were forgotten before. A start read them from their beginning, and now reads them where "
                "start= says: " + listed(self.before, ", ")
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values."""
        rows = [
            {"topic": tp.topic, "partition": tp.partition, "position": at and at.offset, "start": self.start(tp)}
            for tp, at in self.positions
        ]
        return {"group": self.group, "version": self.version, "positions": rows, "notes": self.notes}


def plan_forgetting(snapshot: Snapshot, scope: Scope) -> Forgetting:
    """Return which positions would be taken out; nothing changes. Kafka is not asked: the topic may be gone.

    Args:
        snapshot: the ledger.
        scope: the partitions to forget.

    Raises:
        SettingsError: nothing is named.
        Refused: what is named has no position.
    """
    if not scope.names_some:
        raise SettingsError("say which positions to forget: a topic, or partitions such as orders:0,1")
    there = snapshot.positions.keys() | snapshot.missing
    chosen = scope.select(there, f"the positions of group {snapshot.group!r}")
    left = {tp.topic for tp in there - chosen}
    touched = {tp.topic for tp in chosen}
    before = sorted(tp for tp in snapshot.forgotten if tp.topic in touched - left)
    positions = tuple((tp, snapshot.positions.get(tp)) for tp in sorted(chosen))
    return Forgetting(snapshot.group, snapshot.version, positions, tuple(sorted(left & touched)), tuple(before))


def apply_forgetting(ledger: Ledger, plan: Forgetting, reason: str, *, force: bool = False) -> None:
    """Execute a plan on the ledger as it was loaded for the plan.

    Raises:
        Fenced: a run holds the group, and `force` is not set.
        NotAllowed: a partition is in a batch that is pending or unsettled.
        VersionConflict: another writer changed the ledger at the same time; nothing was changed.
    """
    ledger.forget([tp for tp, _ in plan.positions], reason, force=force)
